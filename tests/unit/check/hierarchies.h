/* Small hierarchical algorithms that have both steps on peers' memory and messages, over hosts of unequal sizes. The
   data is cut into as many slices as the largest host has ranks, and the ranks of each host own the slices in turns. */
#pragma once
#include "tests/unit/schedule/plans.h"

static inline int slices_of(const struct schedule *s) { return s->layout->largest; }
/* Sums INPUT of all ranks of the host, from chunk `first` on, into `into`. */
static inline void sum_over_host(struct schedule *s, struct span into, int first)
{
    struct team host = team_of_host(s);
    for (int i = 0; i < host.size; i++) {
        struct span from = { team_rank(&host, i), INPUT, first, into.count };
        if (i == 0) step_copy(s, into, from);
        else step_reduce(s, into, from);
    }
}
/* Does a ring all-reduce of chunks base … base + t->size - 1 of OUTPUT over the team, as allreduce_ring does. */
static inline void ring_across(struct schedule *s, const struct team *t, int base)
{
    struct span staged = span_new_scratch(s, 2);
    for (int k = 0; k < 2 * t->size - 2; k++) {
        int sent = (t->me + 2 * t->size - k) % t->size, got = (t->me + 2 * t->size - k - 1) % t->size;
        bool sums = k < t->size - 1;
        struct span into =
            sums ? span_of_chunk(s->rank, SCRATCH, staged.first + k % 2) : span_of_chunk(s->rank, OUTPUT, base + got);
        step_send(s, span_of_chunk(s->rank, OUTPUT, base + sent), team_rank(t, t->me + 1));
        step_recv(s, into, team_rank(t, t->me - 1));
        if (sums) step_reduce(s, span_of_chunk(s->rank, OUTPUT, base + got), into);
    }
}
/* Sums each slice of this rank over all ranks, into its OUTPUT. */
static inline void own_slices(struct schedule *s)
{
    struct team host = team_of_host(s);
    int hosts = s->layout->hosts, slices = slices_of(s);
    schedule_cut(s, slices * hosts);
    for (int k = host.me; k < slices; k += host.size) {
        struct team across = team_across_hosts(s, k);
        sum_over_host(s, (struct span){ s->rank, OUTPUT, k * hosts, hosts }, k * hosts);
        ring_across(s, &across, k * hosts);
    }
}
static void allreduce_reading(struct schedule *s)
{
    struct team host = team_of_host(s);
    int hosts = s->layout->hosts, slices = slices_of(s);
    own_slices(s);
    for (int k = 0; k < slices; k++) {
        struct span mine = { s->rank, OUTPUT, k * hosts, hosts }, theirs = mine;
        theirs.rank = team_rank(&host, k);
        if (theirs.rank != s->rank) step_copy(s, mine, theirs);
    }
}
static void allreduce_writing(struct schedule *s)
{
    struct team host = team_of_host(s);
    int hosts = s->layout->hosts, slices = slices_of(s);
    own_slices(s);
    for (int k = host.me; k < slices; k += host.size)
        for (int hop = 1; hop < host.size; hop++) {
            struct span mine = { s->rank, OUTPUT, k * hosts, hosts }, theirs = mine;
            theirs.rank = team_rank(&host, host.me + hop);
            step_copy(s, theirs, mine);
        }
}
/* The ranks of the root's host copy their slices from the root, hosts pass the slices on in a chain, and each rank
   copies the other slices from ranks of its host. */
static void broadcast_slices(struct schedule *s)
{
    struct team host = team_of_host(s);
    int hosts = s->layout->hosts, slices = slices_of(s), root_host = layout_host(s->layout, s->root);
    int nth = (s->place.host - root_host + hosts) % hosts;
    schedule_cut(s, slices);
    if (s->rank == s->root) step_copy(s, span_of_buffer(s, s->rank, OUTPUT), span_of_buffer(s, s->rank, INPUT));
    for (int k = host.me; k < slices; k += host.size) {
        struct team across = team_across_hosts(s, k);
        if (nth == 0 && s->rank != s->root)
            step_copy(s, span_of_chunk(s->rank, OUTPUT, k), span_of_chunk(s->root, INPUT, k));
        if (nth > 0) step_recv(s, span_of_chunk(s->rank, OUTPUT, k), team_rank(&across, s->place.host - 1));
        if (nth < hosts - 1) step_send(s, span_of_chunk(s->rank, OUTPUT, k), team_rank(&across, s->place.host + 1));
    }
    for (int k = 0; k < slices && s->rank != s->root; k++)
        if (k % host.size != host.me)
            step_copy(s, span_of_chunk(s->rank, OUTPUT, k), span_of_chunk(team_rank(&host, k), OUTPUT, k));
}
/* One message to each rank of another host carries the blocks of all ranks of this host. Its sender reads them in the
   INPUT of its peers. */
static void all_to_all_gathered(struct schedule *s)
{
    struct team host = team_of_host(s);
    for (int hop = 1; hop < s->layout->hosts; hop++) {
        int hosts = s->layout->hosts, to = (s->place.host + hop) % hosts, from = (s->place.host + hosts - hop) % hosts;
        for (int i = host.me; i < layout_host_size(s->layout, to); i += host.size) {
            int peer = layout_rank(s->layout, to, i);
            step_send(s, span_of_chunk(team_rank(&host, 0), INPUT, peer), peer);
            for (int j = 1; j < host.size; j++) step_add_span(s, span_of_chunk(team_rank(&host, j), INPUT, peer));
        }
        step_recv(s, span_of_chunk(s->rank, OUTPUT, layout_rank(s->layout, from, 0)),
            layout_rank(s->layout, from, host.me % layout_host_size(s->layout, from)));
        for (int i = 1; i < layout_host_size(s->layout, from); i++)
            step_add_span(s, span_of_chunk(s->rank, OUTPUT, layout_rank(s->layout, from, i)));
    }
    for (int i = 0; i < host.size; i++) {
        int peer = team_rank(&host, host.me + i);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_chunk(peer, INPUT, s->rank));
    }
}
enum { HIERARCHIES = 4 };
static const struct algorithm hierarchies[HIERARCHIES] = {
    { .name = "allreduce_reading", .collective = ALLREDUCE, .record = allreduce_reading },
    { .name = "allreduce_writing", .collective = ALLREDUCE, .record = allreduce_writing },
    { .name = "broadcast_slices", .collective = BROADCAST, .record = broadcast_slices },
    { .name = "all_to_all_gathered", .collective = ALL_TO_ALL, .record = all_to_all_gathered, .stage_in_place = true },
};
static const int host_sizes[][5] = { { 2, 1 }, { 2, 2 }, { 1, 3 }, { 1, 2, 1 }, { 3, 2, 1 }, { 4, 4 }, { 2, 2, 2, 2 },
    { 1, 3, 2 }, { 4, 3, 2, 1 }, { 3 }, { 1, 1, 1 }, { 1 }, { 2, 4, 1, 3 } };
enum { LAYOUTS = sizeof host_sizes / sizeof *host_sizes };
static inline const struct layout *layout_nth(struct hosts *h, int nth)
{
    int hosts = 0;
    while (hosts < 5 && host_sizes[nth][hosts]) hosts++;
    return hosts_of(h, host_sizes[nth], hosts);
}
