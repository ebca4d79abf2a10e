/* Slices, carriers and leaders. They depend only on the layout, so every rank can compute those of every host. */
#include "backend/collectives/hierarchy.h"

/* ---- slices ---- */
struct slices slices_cut(struct schedule *s, int pieces)
{
    struct slices all = { team_of_host(s), s->layout->largest, pieces };
    schedule_cut(s, all.count * pieces);
    return all;
}
struct span slice_span_of_rank(const struct slices *all, int rank, enum buffer buffer, int k)
{
    return (struct span){ rank, buffer, k * all->pieces, all->pieces };
}
struct team slice_owner_team(const struct schedule *s, const struct slices *all, int k)
{
    struct team across = team_across_hosts(s, k);
    across.base = k * all->pieces;
    across.pieces = all->pieces;
    across.source = all->host.size == 1 ? INPUT : OUTPUT;
    return across;
}
void slices_read_from_peers(struct schedule *s, const struct slices *all)
{
    for (int k = 0; k < all->count; k++)
        if (k % all->host.size != all->host.me)
            step_copy(s, slice_span_of_rank(all, s->rank, OUTPUT, k),
                slice_span_of_rank(all, team_rank(&all->host, k), OUTPUT, k));
}
void step_sum_host_inputs(struct schedule *s, struct span into, int first)
{
    struct team host = team_of_host(s);
    step_copy(s, into, (struct span){ team_rank(&host, 0), INPUT, first, into.count });
    for (int i = 1; i < host.size; i++)
        step_reduce(s, into, (struct span){ team_rank(&host, i), INPUT, first, into.count });
}

/* ---- carriers and leaders ---- */
int layout_carrier_of_rank(const struct layout *l, int host, int rank)
{
    struct place at = layout_place(l, rank);
    return layout_rank(l, host, (l->first[at.host] + at.index) % layout_host_size(l, host));
}
struct team team_of_leaders(const struct schedule *s)
{
    struct team leaders = team_across_hosts(s, layout_place(s->layout, s->root).index);
    leaders.pieces = s->cut;
    leaders.source = layout_host_size(s->layout, s->place.host) == 1 ? INPUT : OUTPUT;
    return leaders;
}
bool team_has_rank_as_leader(const struct schedule *s, const struct team *leaders)
{
    return team_rank(leaders, leaders->me) == s->rank;
}
void blocks_recv_from_host(struct schedule *s, enum buffer buffer, int host, int peer)
{
    const struct layout *l = s->layout;
    step_recv(s, span_of_chunk(s->rank, buffer, layout_rank(l, host, 0)), peer);
    for (int i = 1; i < layout_host_size(l, host); i++)
        step_add_span(s, span_of_chunk(s->rank, buffer, layout_rank(l, host, i)));
}
