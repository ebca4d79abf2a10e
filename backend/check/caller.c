/* Simulates the caller: checks the results of a call, and rewrites all its tensors for the next call. */
#include "backend/check/check.h"
#include "backend/schedule/build.h"

static uint64_t rank_bit(int rank) { return (uint64_t)1 << (rank % 64); }
/* expected_chunk returns the chunk of INPUT that belongs in chunk c of OUTPUT. expected_owner returns the rank that it
   comes from; -1: the sum over all ranks. */
static int expected_chunk(const struct schedule *s, int c)
{
    if (s->family == ALLGATHER || s->family == GATHER) return c % s->cut;
    if (s->family == REDUCE_SCATTER || s->family == SCATTER) return s->rank * s->cut + c;
    return s->family == ALL_TO_ALL ? s->rank * s->cut + c % s->cut : c;
}
static int expected_owner(const struct schedule *s, int c)
{
    if (s->family == BROADCAST || s->family == SCATTER) return s->root;
    return s->family == ALLGATHER || s->family == GATHER || s->family == ALL_TO_ALL ? c / s->cut : -1;
}
static bool result_right(const struct checker *k, const struct schedule *s, int c, int tile, const struct value *v)
{
    int only = expected_owner(s, c);
    bool right = v->valid && v->tile == tile && v->chunk == expected_chunk(s, c) && v->raw == k->plan->stage_inputs;
    for (int q = 0; q < s->size; q++) right &= ((v->have[q / 64] & rank_bit(q)) != 0) == (only < 0 || q == only);
    return right && (s->size == 1 || v->finished == family_reduces(s->family));
}
static void judge_results(struct checker *k, const struct schedule *s, int operation)
{
    for (int c = 0; !s->absent[OUTPUT] && c < s->chunks[OUTPUT]; c++)
        for (int t = 0; t < k->tiles; t++) {
            const struct value *v = &checker_cell(k, chunk(s->rank, OUTPUT, c), 0, t, operation)->value;
            if (v->operation != operation || !result_right(k, s, c, t, v))
                checker_fail(k, "wrong result", s->rank, c, t);
        }
}
/* True if a chunk of INPUT is unchanged. An OUTPUT in the same cell may have changed it. */
static bool input_intact(const struct checker *k, const struct schedule *s, int c, const struct value *v)
{
    int home = plan_home(k->plan, s->rank, INPUT, c), output = plan_home(k->plan, s->rank, OUTPUT, 0);
    bool intact = v->valid && v->chunk == c && !v->raw && !v->finished;
    for (int w = 0; w < CHECK_WORDS; w++) intact &= v->have[w] == (w == s->rank / 64 ? rank_bit(s->rank) : 0);
    return intact || (!s->absent[OUTPUT] && home >= output && home < output + s->chunks[OUTPUT]);
}
static void judge_inputs(struct checker *k, const struct schedule *s, int operation)
{
    for (int c = 0; !s->absent[INPUT] && c < s->chunks[INPUT]; c++)
        for (int t = 0; t < k->tiles; t++) {
            const struct value *v = &checker_cell(k, chunk(s->rank, INPUT, c), 0, t, operation)->value;
            if (v->operation != operation || !input_intact(k, s, c, v)) checker_fail(k, "input changed", s->rank, c, t);
        }
}
static void rewrite_buffer(struct checker *k, const struct schedule *s, enum buffer buffer, int operation)
{
    for (int c = 0; !s->absent[buffer] && c < s->chunks[buffer]; c++)
        for (int t = 0; t < k->tiles; t++) {
            struct check_cell *cell = checker_cell(k, chunk(s->rank, buffer, c), 0, t, operation);
            checker_touch(k, cell, s->rank * k->slots, true, NULL, -1, t);
            cell->value = (struct value){ .chunk = c, .tile = t, .operation = operation, .valid = buffer == INPUT };
            cell->value.have[s->rank / 64] = rank_bit(s->rank);
        }
}
void checker_judge(struct checker *k, const struct schedule *s, int operation)
{
    judge_results(k, s, operation);
    judge_inputs(k, s, operation);
}
void checker_rewrite(struct checker *k, const struct schedule *s, int operation)
{
    rewrite_buffer(k, s, OUTPUT, operation);
    rewrite_buffer(k, s, INPUT, operation);
}
