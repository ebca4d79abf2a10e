/* Reduce: the root gets the sum of the messages of all ranks. Only the root has OUTPUT; the others work in their own
 * SCRATCH. */
#include "backend/collectives/common.h"

/* Returns where this rank may sum the message. */
static struct span reduce_own_sum_span(struct schedule *s)
{
    return s->rank == s->root ? span_of_buffer(s, s->rank, OUTPUT) : span_new_scratch(s, s->chunks[INPUT]);
}

/* Naive: the root receives all messages and adds them up. p - 1 rounds of n. */
void reduce_naive(struct schedule *s)
{
    struct span have = span_of_buffer(s, s->rank, INPUT), landing = span_new_scratch(s, 2 * have.count);
    struct team all = team_of_group(s);
    if (s->rank != s->root) step_send(s, have, s->root);
    if (s->rank != s->root || team_is_alone(s, &all)) return;
    for (int hop = 1; hop < s->size; hop++) {
        struct span received = span_part(landing, hop % 2 * have.count, have.count);
        step_recv(s, received, int_modulo(s->root + hop, s->size));
        have = step_accumulate(s, span_of_buffer(s, s->rank, OUTPUT), have, received);
    }
}

/* Binomial tree: in round k the rank 2^k away sends its sum. ⌈log2 p⌉ rounds; every other rank than the root sends n
   once. */
void team_reduce_binomial(struct schedule *s, const struct team *t, int root, struct span sum)
{
    int v = int_modulo(t->me - root, t->size), half = 0, bit = 1;
    struct span have = team_all_pieces(s, t, t->source), landing = span_new_scratch(s, 2 * sum.count);
    if (team_is_alone_with_sum(s, t, sum)) return;
    for (; bit < t->size && !(v & bit); bit *= 2, half = !half) {
        if (v + bit >= t->size) continue;
        struct span received = span_part(landing, half * sum.count, sum.count);
        step_recv(s, received, team_rank(t, v + bit + root));
        have = step_accumulate(s, sum, have, received);
    }
    if (v) step_send(s, have, team_rank(t, v - bit + root));
}
void reduce_binomial(struct schedule *s)
{
    struct team all = team_of_group(s);
    team_reduce_binomial(s, &all, s->root, reduce_own_sum_span(s));
}

/* Double tree: each half of the message goes up a tree of its own. At most 2 ⌈log2 p⌉ rounds of n/2; a rank sends at
   most n, and tiles follow each other. (Sanders, Speck, Träff 2009) */
void reduce_double_tree(struct schedule *s)
{
    schedule_cut(s, 2);
    struct team all = team_of_group(s);
    team_reduce_double_tree(s, &all, s->root, reduce_own_sum_span(s));
}

/* ---- on one host ---- */
/* Read: the root reads the messages of all ranks. 1 round; only the root reads, (p - 1)n. */
void reduce_read(struct schedule *s)
{
    if (s->rank == s->root) step_sum_all_inputs(s, span_of_buffer(s, s->rank, OUTPUT), 0);
}

/* Two shot: every rank sums one chunk over all ranks and writes the result to the root. 1 round; each rank reads
   (p - 1)/p n and writes n/p. */
void reduce_two_shot(struct schedule *s)
{
    schedule_cut(s, s->size);
    step_sum_all_inputs(s, span_of_chunk(s->root, OUTPUT, s->rank), s->rank);
}

/* Two shot read: every rank sums one chunk over all ranks, and the root reads the results. 2 rounds; each rank reads
   (p - 1)/p n, the root twice that. */
void reduce_two_shot_read(struct schedule *s)
{
    schedule_cut(s, s->size);
    struct span mine = span_new_scratch(s, 1),
                sum = s->rank == s->root ? span_of_chunk(s->rank, OUTPUT, s->rank) : mine;
    step_sum_all_inputs(s, sum, s->rank);
    for (int hop = 1; hop < s->size && s->rank == s->root; hop++) {
        int peer = int_modulo(s->root + hop, s->size);
        step_copy(s, span_of_chunk(s->rank, OUTPUT, peer), span_of_chunk(peer, SCRATCH, mine.first));
    }
}
