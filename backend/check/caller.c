/* Simulates the caller: checks the results of a call, and rewrites all its tensors for the next call. */
#include "backend/check/check.h"
#include "backend/schedule/build.h"

static uint64_t value_rank_bit(int rank) { return (uint64_t)1 << (rank % 64); }
/* result_expected_chunk returns the chunk of INPUT that belongs in chunk c of OUTPUT. result_expected_owner returns the
   rank that it comes from; -1: the sum over all ranks. */
static int result_expected_chunk(const struct schedule *s, int c)
{
    if (s->collective == ALLGATHER || s->collective == GATHER) return c % s->cut;
    if (s->collective == REDUCE_SCATTER || s->collective == SCATTER) return s->rank * s->cut + c;
    return s->collective == ALL_TO_ALL ? s->rank * s->cut + c % s->cut : c;
}
static int result_expected_owner(const struct schedule *s, int c)
{
    if (s->collective == BROADCAST || s->collective == SCATTER) return s->root;
    return s->collective == ALLGATHER || s->collective == GATHER || s->collective == ALL_TO_ALL ? c / s->cut : -1;
}
static bool result_is_right(const struct checker *k, const struct schedule *s, int c, int tile, const struct value *v)
{
    int only = result_expected_owner(s, c);
    bool right =
        v->valid && v->tile == tile && v->chunk == result_expected_chunk(s, c) && v->raw == k->plan->stage_inputs;
    for (int q = 0; q < s->size; q++) right &= ((v->have[q / 64] & value_rank_bit(q)) != 0) == (only < 0 || q == only);
    return right && (s->size == 1 || v->finished == collective_is_reduction(s->collective));
}
static void checker_judge_results(struct checker *k, const struct schedule *s, int operation)
{
    for (int c = 0; !s->absent[OUTPUT] && c < s->chunks[OUTPUT]; c++)
        for (int t = 0; t < k->tiles; t++) {
            const struct value *v = &checker_cell(k, span_of_chunk(s->rank, OUTPUT, c), 0, t, operation)->value;
            if (v->operation != operation || !result_is_right(k, s, c, t, v))
                checker_report_error(k, "wrong result", s->rank, c, t);
        }
}
/* True if a chunk of INPUT is unchanged. An OUTPUT in the same cell may have changed it. */
static bool input_is_intact(const struct checker *k, const struct schedule *s, int c, const struct value *v)
{
    int home = plan_cell_index(k->plan, s->rank, INPUT, c), output = plan_cell_index(k->plan, s->rank, OUTPUT, 0);
    bool intact = v->valid && v->chunk == c && !v->raw && !v->finished;
    for (int w = 0; w < CHECK_WORDS; w++) intact &= v->have[w] == (w == s->rank / 64 ? value_rank_bit(s->rank) : 0);
    return intact || (!s->absent[OUTPUT] && home >= output && home < output + s->chunks[OUTPUT]);
}
static void checker_judge_inputs(struct checker *k, const struct schedule *s, int operation)
{
    for (int c = 0; !s->absent[INPUT] && c < s->chunks[INPUT]; c++)
        for (int t = 0; t < k->tiles; t++) {
            const struct value *v = &checker_cell(k, span_of_chunk(s->rank, INPUT, c), 0, t, operation)->value;
            if (v->operation != operation || !input_is_intact(k, s, c, v))
                checker_report_error(k, "input changed", s->rank, c, t);
        }
}
static void checker_rewrite_buffer(struct checker *k, const struct schedule *s, enum buffer buffer, int operation)
{
    for (int c = 0; !s->absent[buffer] && c < s->chunks[buffer]; c++)
        for (int t = 0; t < k->tiles; t++) {
            struct check_cell *cell = checker_cell(k, span_of_chunk(s->rank, buffer, c), 0, t, operation);
            checker_record_access(k, cell, s->rank * k->slots, true, NULL, -1, t);
            cell->value = (struct value){ .chunk = c, .tile = t, .operation = operation, .valid = buffer == INPUT };
            cell->value.have[s->rank / 64] = value_rank_bit(s->rank);
        }
}
void checker_judge_operation(struct checker *k, const struct schedule *s, int operation)
{
    checker_judge_results(k, s, operation);
    checker_judge_inputs(k, s, operation);
}
void checker_rewrite_tensors(struct checker *k, const struct schedule *s, int operation)
{
    checker_rewrite_buffer(k, s, OUTPUT, operation);
    checker_rewrite_buffer(k, s, INPUT, operation);
}
