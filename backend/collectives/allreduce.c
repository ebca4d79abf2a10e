/* Allreduce: each rank gets the sum of the messages of all ranks. Partial sums lie in OUTPUT only if this rank later
 * adds to them or receives over them. The team_ functions serve a flat group here and one level of a hierarchy
 * elsewhere. */
#include "backend/collectives/common.h"
#include <assert.h>

/* Naive: rank 0 adds up all messages in rank order and sends the sum to all ranks. 2(p - 1) rounds; rank 0 sends (p -
   1)n, the others n. */
void allreduce_naive(struct schedule *schedule)
{
    struct span out = span_of_buffer(schedule, schedule->rank, OUTPUT),
                have = span_of_buffer(schedule, schedule->rank, INPUT),
                recv_chunks = span_new_scratch(schedule, 2 * out.count);
    struct team all = team_of_group(schedule);
    if (team_copy_if_alone(schedule, &all)) return;
    if (schedule->rank > 0) {
        step_send(schedule, have, 0);
        step_recv(schedule, out, 0);
        return;
    }
    for (int peer = 1; peer < schedule->size; peer++) {
        struct span received = span_part(recv_chunks, peer % 2 * out.count, out.count);
        step_recv(schedule, received, peer);
        have = step_accumulate(schedule, out, have, received);
    }
    for (int peer = 1; peer < schedule->size; peer++) step_send(schedule, out, peer);
}

/* Tree: binomial reduce to rank 0, then binomial broadcast. 2 ⌈log2 p⌉ rounds; rank 0 sends ⌈log2 p⌉ n. */
void allreduce_tree(struct schedule *schedule)
{
    struct team all = team_of_group(schedule);
    team_reduce_binomial(schedule, &all, 0, span_of_buffer(schedule, schedule->rank, OUTPUT));
    team_broadcast_binomial(schedule, &all, 0);
}

/* Double tree: each half of the message goes up and down a tree of its own. At most 4 ⌈log2 p⌉ + 1 rounds of n/2; a
   rank sends at most 2n. Tiles follow each other, so a long message takes the time of 2n, at logarithmic depth.
   (Sanders, Speck, Träff 2009) */
void team_allreduce_double_tree(struct schedule *schedule, const struct team *team)
{
    assert(team->pieces == 2);
    team_reduce_double_tree(schedule, team, 0, team_all_pieces(schedule, team, OUTPUT));
    team_broadcast_double_tree(schedule, team, 0);
}
void allreduce_double_tree(struct schedule *schedule)
{
    schedule_cut(schedule, 2);
    struct team all = team_of_group(schedule);
    team_allreduce_double_tree(schedule, &all);
}

/* Ring: partial sums travel once around the ring, then the complete pieces do. 2(p - 1) rounds of n/p. (Patarasuk, Yuan
   2009) */
void team_allreduce_ring(struct schedule *schedule, const struct team *team)
{
    struct span recv_chunks = span_new_scratch(schedule, 2),
                have = team_piece(schedule, team, team->source, team->me - 1);
    assert(team->pieces == team->size);
    if (team_copy_if_alone(schedule, team)) return;
    for (int k = 1; k < team->size; k++) {
        struct span received = span_part(recv_chunks, k % 2, 1);
        int next = team->me - k - 1;
        step_send(schedule, have, team_rank(team, team->me + 1));
        step_recv(schedule, received, team_rank(team, team->me - 1));
        have = step_accumulate(schedule, team_piece(schedule, team, OUTPUT, next),
            team_piece(schedule, team, team->source, next), received);
    }
    team_allgather_ring(schedule, team);
}
void allreduce_ring(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    struct team all = team_of_group(schedule);
    team_allreduce_ring(schedule, &all);
}

/* Recursive doubling, the butterfly: in round k exchange sums with the rank 2^k away. log2 p rounds of n for powers of
   two, else ⌊log2 p⌋ + 2, to fold. For short messages. (Thakur, Rabenseifner, Gropp 2005) */
void team_allreduce_doubling(struct schedule *schedule, const struct team *team)
{
    struct fold fold = fold_for_rank(team->size, team->me);
    struct span recv_chunks = span_new_scratch(schedule, 2 * team->pieces),
                out = team_all_pieces(schedule, team, OUTPUT), have = team_all_pieces(schedule, team, team->source);
    if (team_copy_if_alone(schedule, team) || !fold_join_pair(schedule, team, &fold, out, &have)) return;
    for (int bit = 1, half = 0; bit < fold.power; bit *= 2, half = !half) {
        struct span received = span_part(recv_chunks, half * team->pieces, team->pieces);
        int peer = team_rank(team, fold_member_of_id(&fold, fold.id ^ bit));
        step_send(schedule, have, peer);
        step_recv(schedule, received, peer);
        have = step_accumulate(schedule, out, have, received);
    }
    fold_return_result(schedule, team, &fold, out);
}
void allreduce_doubling(struct schedule *schedule)
{
    struct team all = team_of_group(schedule);
    team_allreduce_doubling(schedule, &all);
}

/* Rabenseifner: halve the message with the rank 2^k away, from far to near, then double it back. 2 log2 p rounds and
   2(p - 1)/p n for powers of two; else 2 ⌊log2 p⌋ + 2 rounds and up to n more, to fold. (Rabenseifner 2004; Thakur,
   Rabenseifner, Gropp 2005) */
void team_allreduce_rabenseifner(struct schedule *schedule, const struct team *team)
{
    struct fold fold = fold_for_rank(team->size, team->me);
    struct span out = team_all_pieces(schedule, team, OUTPUT), have = team_all_pieces(schedule, team, team->source);
    int first = 0;
    assert(team->pieces == fold.power);
    if (team_copy_if_alone(schedule, team) || !fold_join_pair(schedule, team, &fold, out, &have)) return;
    for (int bit = fold.power / 2; bit; bit /= 2, have = out) {
        int peer = team_rank(team, fold_member_of_id(&fold, fold.id ^ bit)), peer_half = first + (~fold.id & bit),
            own_half = first + (fold.id & bit);
        struct span received = span_new_scratch(schedule, bit);
        step_send(schedule, span_part(have, peer_half, bit), peer);
        step_recv(schedule, received, peer);
        step_accumulate(schedule, span_part(out, own_half, bit), span_part(have, own_half, bit), received);
        first = own_half;
    }
    for (int bit = 1; bit < fold.power; bit *= 2, first &= ~(bit - 1)) {
        int peer = team_rank(team, fold_member_of_id(&fold, fold.id ^ bit));
        step_send(schedule, span_part(out, first, bit), peer);
        step_recv(schedule, span_part(out, first ^ bit, bit), peer);
    }
    fold_return_result(schedule, team, &fold, out);
}
void allreduce_rabenseifner(struct schedule *schedule)
{
    schedule_cut(schedule, power_of_two_at_most(schedule->size));
    struct team all = team_of_group(schedule);
    team_allreduce_rabenseifner(schedule, &all);
}

/* Circulant: in each round a rank sends the far half of its remaining pieces and adds the received ones to the near
   half; then the same rounds run backwards. 2 ⌈log2 p⌉ rounds and 2(p - 1)/p n for every p. (Träff 2024: Optimal,
   non-pipelined reduce-scatter and allreduce algorithms) */
void team_allreduce_circulant(struct schedule *schedule, const struct team *team)
{
    int me = team->me, widths[32], rounds = 0;
    enum buffer have = team->source;
    assert(team->pieces == team->size);
    if (team_copy_if_alone(schedule, team)) return;
    for (int width = team->size, skip; width > 1; width = skip, have = OUTPUT) {
        int half = width / 2;
        struct span received = span_new_scratch(schedule, half);
        widths[rounds++] = width;
        skip = width - half;
        piece_run_send(schedule, team_piece_run(schedule, team, have, me + skip, half), team_rank(team, me + skip));
        step_recv(schedule, received, team_rank(team, me - skip));
        piece_run_accumulate(schedule, team_piece_run(schedule, team, OUTPUT, me, half),
            team_piece_run(schedule, team, have, me, half), received);
        /* An odd number of pieces leaves one between the halves, which must be in OUTPUT for the next round. */
        if (half < skip && have != OUTPUT)
            step_copy(schedule, team_piece(schedule, team, OUTPUT, me + half),
                team_piece(schedule, team, have, me + half));
    }
    while (rounds-- > 0) {
        int half = widths[rounds] / 2, skip = widths[rounds] - half;
        piece_run_send(schedule, team_piece_run(schedule, team, OUTPUT, me, half), team_rank(team, me - skip));
        piece_run_recv(schedule, team_piece_run(schedule, team, OUTPUT, me + skip, half), team_rank(team, me + skip));
    }
}
void allreduce_circulant(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    struct team all = team_of_group(schedule);
    team_allreduce_circulant(schedule, &all);
}

/* ---- on one host ---- */
/* One shot: each rank reads the messages of all ranks. 1 round; each rank reads (p - 1)n. */
void allreduce_one_shot(struct schedule *schedule)
{
    step_sum_all_inputs(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), 0);
}

/* Two shot: each rank sums its chunk over all ranks and writes the result to all. 2 rounds; each rank reads (p - 1)/p n
   and writes (p - 1)/p n. */
void allreduce_two_shot(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    struct span mine = span_of_chunk(schedule->rank, OUTPUT, schedule->rank);
    step_sum_all_inputs(schedule, mine, schedule->rank);
    for (int hop = 1; hop < schedule->size; hop++)
        step_copy(schedule, span_of_chunk(int_modulo(schedule->rank + hop, schedule->size), OUTPUT, schedule->rank),
            mine);
}

/* Two shot read: each rank sums its chunk over all ranks, then reads the other results. 2 rounds; each rank reads 2(p -
   1)/p n. */
void allreduce_two_shot_read(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    step_sum_all_inputs(schedule, span_of_chunk(schedule->rank, OUTPUT, schedule->rank), schedule->rank);
    for (int hop = 1; hop < schedule->size; hop++) {
        int peer = int_modulo(schedule->rank + hop, schedule->size);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_chunk(peer, OUTPUT, peer));
    }
}
