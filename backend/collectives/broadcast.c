/* Broadcast: each rank gets the root's message. Only the root has INPUT; the others receive into OUTPUT and forward
 * from there. */
#include "backend/collectives/common.h"

/* Naive: the root sends the message to all ranks. p - 1 rounds of n. */
void broadcast_naive(struct schedule *schedule)
{
    step_copy_root_input(schedule);
    if (schedule->rank != schedule->root)
        step_recv(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), schedule->root);
    for (int hop = 1; hop < schedule->size && schedule->rank == schedule->root; hop++)
        step_send(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT),
            int_modulo(schedule->root + hop, schedule->size));
}

/* Binomial tree: in every round all ranks that have the message send it on, over half the last distance. ⌈log2 p⌉
   rounds; the root sends ⌈log2 p⌉ n. */
void team_broadcast_binomial(struct schedule *schedule, const struct team *team, int root)
{
    int relative = int_modulo(team->me - root, team->size), bit = 1;
    struct span out = team_all_pieces(schedule, team, OUTPUT);
    while (bit < team->size && !(relative & bit)) bit *= 2;
    if (relative) step_recv(schedule, out, team_rank(team, relative - bit + root));
    for (bit /= 2; bit; bit /= 2)
        if (relative + bit < team->size) step_send(schedule, out, team_rank(team, relative + bit + root));
}
void broadcast_binomial(struct schedule *schedule)
{
    struct team all = team_of_group(schedule);
    step_copy_root_input(schedule);
    team_broadcast_binomial(schedule, &all, schedule->root);
}

/* Chain: each rank sends to the next. p - 1 rounds of n; in S tiles p - 2 + S rounds of n/S, for long messages. */
void team_broadcast_chain(struct schedule *schedule, const struct team *team, int root)
{
    int relative = int_modulo(team->me - root, team->size);
    if (relative > 0) step_recv(schedule, team_all_pieces(schedule, team, OUTPUT), team_rank(team, team->me - 1));
    if (relative < team->size - 1)
        step_send(schedule, team_all_pieces(schedule, team, OUTPUT), team_rank(team, team->me + 1));
}
void broadcast_chain(struct schedule *schedule)
{
    struct team all = team_of_group(schedule);
    step_copy_root_input(schedule);
    team_broadcast_chain(schedule, &all, schedule->root);
}

/* Double tree: each half of the message goes down a tree of its own. At most 2 ⌈log2 p⌉ + 1 rounds of n/2; a rank sends
   at most n, and tiles follow each other. (Sanders, Speck, Träff 2009) */
void broadcast_double_tree(struct schedule *schedule)
{
    schedule_cut(schedule, 2);
    struct team all = team_of_group(schedule);
    step_copy_root_input(schedule);
    team_broadcast_double_tree(schedule, &all, schedule->root);
}

/* ---- on one host ---- */
/* Read: each rank reads the root's message. 1 round; each rank reads n, all from one place. */
void broadcast_read(struct schedule *schedule)
{
    step_copy(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT),
        span_of_buffer(schedule, schedule->root, INPUT));
}

/* Read and write: the root writes one chunk to all ranks, which read the other chunks from it. 1 round; each rank
   copies (p - 1)/p n. So in place, where the root has no other work, all are equally busy. */
void broadcast_read_write(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    step_copy_root_input(schedule);
    for (int hop = 1; hop < schedule->size; hop++) {
        int other = int_modulo(schedule->root + hop, schedule->size);
        if (schedule->rank == schedule->root)
            step_copy(schedule, span_of_chunk(other, OUTPUT, schedule->root),
                span_of_chunk(schedule->root, INPUT, schedule->root));
        else
            step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, other),
                span_of_chunk(schedule->root, INPUT, other));
    }
}

/* Two shot: every rank reads one chunk from the root, and the other chunks from the ranks that have read them. 2
   rounds; each rank reads n, and about 2n is read from the root's memory instead of (p - 1)n. */
void broadcast_two_shot_read(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    step_copy_root_input(schedule);
    if (schedule->rank == schedule->root) return;
    step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, schedule->rank),
        span_of_chunk(schedule->root, INPUT, schedule->rank));
    for (int hop = 1; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->rank + hop, schedule->size);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer),
            span_of_chunk(peer, peer == schedule->root ? INPUT : OUTPUT, peer));
    }
}
