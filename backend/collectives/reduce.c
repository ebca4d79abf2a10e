/* Reduce: the root gets the sum of the messages of all ranks. Only the root has OUTPUT; the others work in their own
 * SCRATCH. */
#include "backend/collectives/common.h"

/* Returns the span in which this rank may sum the whole message: OUTPUT on the root, new SCRATCH chunks elsewhere. */
static struct span reduce_own_sum_span(struct schedule *schedule)
{
    return schedule->rank == schedule->root ? span_of_buffer(schedule, schedule->rank, OUTPUT)
                                            : span_new_scratch(schedule, schedule->chunks[INPUT]);
}

/* Naive: the root receives all messages and adds them up. p - 1 rounds of n. */
void reduce_naive(struct schedule *schedule)
{
    struct span have = span_of_buffer(schedule, schedule->rank, INPUT),
                recv_chunks = span_new_scratch(schedule, 2 * have.count);
    struct team all = team_of_group(schedule);
    if (schedule->rank != schedule->root) step_send(schedule, have, schedule->root);
    if (schedule->rank != schedule->root || team_copy_if_alone(schedule, &all)) return;
    for (int hop = 1; hop < schedule->size; hop++) {
        struct span received = span_part(recv_chunks, hop % 2 * have.count, have.count);
        step_recv(schedule, received, int_modulo(schedule->root + hop, schedule->size));
        have = step_accumulate(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), have, received);
    }
}

/* Binomial tree: in round k the rank 2^k away sends its sum. ⌈log2 p⌉ rounds; every other rank than the root sends n
   once. */
void team_reduce_binomial(struct schedule *schedule, const struct team *team, int root, struct span sum)
{
    int relative = int_modulo(team->me - root, team->size), half = 0, bit = 1;
    struct span have = team_all_pieces(schedule, team, team->source),
                recv_chunks = span_new_scratch(schedule, 2 * sum.count);
    if (team_copy_sum_if_alone(schedule, team, sum)) return;
    for (; bit < team->size && !(relative & bit); bit *= 2, half = !half) {
        if (relative + bit >= team->size) continue;
        struct span received = span_part(recv_chunks, half * sum.count, sum.count);
        step_recv(schedule, received, team_rank(team, relative + bit + root));
        have = step_accumulate(schedule, sum, have, received);
    }
    if (relative) step_send(schedule, have, team_rank(team, relative - bit + root));
}
void reduce_binomial(struct schedule *schedule)
{
    struct team all = team_of_group(schedule);
    team_reduce_binomial(schedule, &all, schedule->root, reduce_own_sum_span(schedule));
}

/* Double tree: each half of the message goes up a tree of its own. At most 2 ⌈log2 p⌉ rounds of n/2; a rank sends at
   most n, and tiles follow each other. (Sanders, Speck, Träff 2009) */
void reduce_double_tree(struct schedule *schedule)
{
    schedule_cut(schedule, 2);
    struct team all = team_of_group(schedule);
    team_reduce_double_tree(schedule, &all, schedule->root, reduce_own_sum_span(schedule));
}

/* ---- on one host ---- */
/* Read: the root reads the messages of all ranks. 1 round; only the root reads, (p - 1)n. */
void reduce_read(struct schedule *schedule)
{
    if (schedule->rank == schedule->root)
        step_sum_all_inputs(schedule, span_of_buffer(schedule, schedule->rank, OUTPUT), 0);
}

/* Two shot: every rank sums one chunk over all ranks and writes the result to the root. 1 round; each rank reads (p -
   1)/p n and writes n/p. */
void reduce_two_shot(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    step_sum_all_inputs(schedule, span_of_chunk(schedule->root, OUTPUT, schedule->rank), schedule->rank);
}

/* Two shot read: every rank sums one chunk over all ranks, and the root reads the results. 2 rounds; each rank reads (p
   - 1)/p n, the root twice that. */
void reduce_two_shot_read(struct schedule *schedule)
{
    schedule_cut(schedule, schedule->size);
    struct span mine = span_new_scratch(schedule, 1),
                sum = schedule->rank == schedule->root ? span_of_chunk(schedule->rank, OUTPUT, schedule->rank) : mine;
    step_sum_all_inputs(schedule, sum, schedule->rank);
    for (int hop = 1; hop < schedule->size && schedule->rank == schedule->root; hop++) {
        int peer = int_modulo(schedule->root + hop, schedule->size);
        step_copy(schedule, span_of_chunk(schedule->rank, OUTPUT, peer), span_of_chunk(peer, SCRATCH, mine.first));
    }
}
