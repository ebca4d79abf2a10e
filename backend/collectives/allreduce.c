/* Allreduce: each rank gets the sum of the messages of all ranks. Partial sums lie in OUTPUT only if this rank later
 * adds to them or receives over them. The team_ functions serve a flat group here and one level of a hierarchy
 * elsewhere. */
#include "backend/collectives/common.h"
#include <assert.h>

/* Naive: rank 0 adds up all messages in rank order and sends the sum to all ranks. 2(p - 1) rounds; rank 0 sends
   (p - 1)n, the others n. */
void allreduce_naive(struct schedule *s)
{
    struct span out = span_of_buffer(s, s->rank, OUTPUT), have = span_of_buffer(s, s->rank, INPUT),
                landing = span_new_scratch(s, 2 * out.count);
    struct team all = team_of_group(s);
    if (team_is_alone(s, &all)) return;
    if (s->rank > 0) {
        step_send(s, have, 0);
        step_recv(s, out, 0);
        return;
    }
    for (int peer = 1; peer < s->size; peer++) {
        struct span received = span_part(landing, peer % 2 * out.count, out.count);
        step_recv(s, received, peer);
        have = step_accumulate(s, out, have, received);
    }
    for (int peer = 1; peer < s->size; peer++) step_send(s, out, peer);
}

/* Tree: binomial reduce to rank 0, then binomial broadcast. 2 ⌈log2 p⌉ rounds; rank 0 sends ⌈log2 p⌉ n. */
void allreduce_tree(struct schedule *s)
{
    struct team all = team_of_group(s);
    team_reduce_binomial(s, &all, 0, span_of_buffer(s, s->rank, OUTPUT));
    team_broadcast_binomial(s, &all, 0);
}

/* Double tree: each half of the message goes up and down a tree of its own. At most 4 ⌈log2 p⌉ + 1 rounds of n/2; a
   rank sends at most 2n. Tiles follow each other, so a long message takes the time of 2n, at logarithmic depth.
   (Sanders, Speck, Träff 2009) */
void team_allreduce_double_tree(struct schedule *s, const struct team *t)
{
    assert(t->pieces == 2);
    team_reduce_double_tree(s, t, 0, team_all_pieces(s, t, OUTPUT));
    team_broadcast_double_tree(s, t, 0);
}
void allreduce_double_tree(struct schedule *s)
{
    schedule_cut(s, 2);
    struct team all = team_of_group(s);
    team_allreduce_double_tree(s, &all);
}

/* Ring: partial sums travel once around the ring, then the complete pieces do. 2(p - 1) rounds of n/p. (Patarasuk, Yuan
   2009) */
void team_allreduce_ring(struct schedule *s, const struct team *t)
{
    struct span landing = span_new_scratch(s, 2), have = team_piece(s, t, t->source, t->me - 1);
    assert(t->pieces == t->size);
    if (team_is_alone(s, t)) return;
    for (int k = 1; k < t->size; k++) {
        struct span received = span_part(landing, k % 2, 1);
        int next = t->me - k - 1;
        step_send(s, have, team_rank(t, t->me + 1));
        step_recv(s, received, team_rank(t, t->me - 1));
        have = step_accumulate(s, team_piece(s, t, OUTPUT, next), team_piece(s, t, t->source, next), received);
    }
    team_allgather_ring(s, t);
}
void allreduce_ring(struct schedule *s)
{
    schedule_cut(s, s->size);
    struct team all = team_of_group(s);
    team_allreduce_ring(s, &all);
}

/* Recursive doubling, the butterfly: in round k exchange sums with the rank 2^k away. log2 p rounds of n for powers of
   two, else ⌊log2 p⌋ + 2, to fold. For short messages. (Thakur, Rabenseifner, Gropp 2005) */
void team_allreduce_doubling(struct schedule *s, const struct team *t)
{
    struct fold f = fold_for_rank(t->size, t->me);
    struct span landing = span_new_scratch(s, 2 * t->pieces), out = team_all_pieces(s, t, OUTPUT),
                have = team_all_pieces(s, t, t->source);
    if (team_is_alone(s, t) || !fold_join_pair(s, t, &f, out, &have)) return;
    for (int bit = 1, half = 0; bit < f.power; bit *= 2, half = !half) {
        struct span received = span_part(landing, half * t->pieces, t->pieces);
        int peer = team_rank(t, fold_member_of_id(&f, f.id ^ bit));
        step_send(s, have, peer);
        step_recv(s, received, peer);
        have = step_accumulate(s, out, have, received);
    }
    fold_return_result(s, t, &f, out);
}
void allreduce_doubling(struct schedule *s)
{
    struct team all = team_of_group(s);
    team_allreduce_doubling(s, &all);
}

/* Rabenseifner: halve the message with the rank 2^k away, from far to near, then double it back. 2 log2 p rounds and
   2(p - 1)/p n for powers of two; else 2 ⌊log2 p⌋ + 2 rounds and up to n more, to fold.
   (Rabenseifner 2004; Thakur, Rabenseifner, Gropp 2005) */
void team_allreduce_rabenseifner(struct schedule *s, const struct team *t)
{
    struct fold f = fold_for_rank(t->size, t->me);
    struct span out = team_all_pieces(s, t, OUTPUT), have = team_all_pieces(s, t, t->source);
    int first = 0;
    assert(t->pieces == f.power);
    if (team_is_alone(s, t) || !fold_join_pair(s, t, &f, out, &have)) return;
    for (int bit = f.power / 2; bit; bit /= 2, have = out) {
        int peer = team_rank(t, fold_member_of_id(&f, f.id ^ bit)), its = first + (~f.id & bit),
            mine = first + (f.id & bit);
        struct span received = span_new_scratch(s, bit);
        step_send(s, span_part(have, its, bit), peer);
        step_recv(s, received, peer);
        step_accumulate(s, span_part(out, mine, bit), span_part(have, mine, bit), received);
        first = mine;
    }
    for (int bit = 1; bit < f.power; bit *= 2, first &= ~(bit - 1)) {
        int peer = team_rank(t, fold_member_of_id(&f, f.id ^ bit));
        step_send(s, span_part(out, first, bit), peer);
        step_recv(s, span_part(out, first ^ bit, bit), peer);
    }
    fold_return_result(s, t, &f, out);
}
void allreduce_rabenseifner(struct schedule *s)
{
    schedule_cut(s, power_of_two_below(s->size));
    struct team all = team_of_group(s);
    team_allreduce_rabenseifner(s, &all);
}

/* Circulant: in each round a rank sends the far half of its remaining pieces and adds the received ones to the near
   half; then the same rounds run backwards. 2 ⌈log2 p⌉ rounds and 2(p - 1)/p n for every p.
   (Träff 2024: Optimal, non-pipelined reduce-scatter and allreduce algorithms) */
void team_allreduce_circulant(struct schedule *s, const struct team *t)
{
    int me = t->me, widths[32], rounds = 0;
    enum buffer have = t->source;
    assert(t->pieces == t->size);
    if (team_is_alone(s, t)) return;
    for (int width = t->size, skip; width > 1; width = skip, have = OUTPUT) {
        int half = width / 2;
        struct span received = span_new_scratch(s, half);
        widths[rounds++] = width;
        skip = width - half;
        piece_run_send(s, team_piece_run(s, t, have, me + skip, half), team_rank(t, me + skip));
        step_recv(s, received, team_rank(t, me - skip));
        piece_run_accumulate(s, team_piece_run(s, t, OUTPUT, me, half), team_piece_run(s, t, have, me, half), received);
        /* An odd number of pieces leaves one between the halves, which must be in OUTPUT for the next round. */
        if (half < skip && have != OUTPUT)
            step_copy(s, team_piece(s, t, OUTPUT, me + half), team_piece(s, t, have, me + half));
    }
    while (rounds-- > 0) {
        int half = widths[rounds] / 2, skip = widths[rounds] - half;
        piece_run_send(s, team_piece_run(s, t, OUTPUT, me, half), team_rank(t, me - skip));
        piece_run_recv(s, team_piece_run(s, t, OUTPUT, me + skip, half), team_rank(t, me + skip));
    }
}
void allreduce_circulant(struct schedule *s)
{
    schedule_cut(s, s->size);
    struct team all = team_of_group(s);
    team_allreduce_circulant(s, &all);
}

/* ---- on one host ---- */
/* One shot: each rank reads the messages of all ranks. 1 round; each rank reads (p - 1)n. */
void allreduce_one_shot(struct schedule *s) { step_sum_all_inputs(s, span_of_buffer(s, s->rank, OUTPUT), 0); }

/* Two shot: each rank sums its chunk over all ranks and writes the result to all. 2 rounds; each rank reads
   (p - 1)/p n and writes (p - 1)/p n. */
void allreduce_two_shot(struct schedule *s)
{
    schedule_cut(s, s->size);
    struct span mine = span_of_chunk(s->rank, OUTPUT, s->rank);
    step_sum_all_inputs(s, mine, s->rank);
    for (int hop = 1; hop < s->size; hop++)
        step_copy(s, span_of_chunk(int_modulo(s->rank + hop, s->size), OUTPUT, s->rank), mine);
}

/* Two shot read: each rank sums its chunk over all ranks, then reads the other results. 2 rounds; each rank reads
   2(p - 1)/p n. */
void allreduce_two_shot_read(struct schedule *s)
{
    schedule_cut(s, s->size);
    step_sum_all_inputs(s, span_of_chunk(s->rank, OUTPUT, s->rank), s->rank);
    for (int hop = 1; hop < s->size; hop++) {
        int peer = int_modulo(s->rank + hop, s->size);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_chunk(peer, OUTPUT, peer));
    }
}
