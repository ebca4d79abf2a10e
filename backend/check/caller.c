/* Simulates the caller: checks the results of a call, and rewrites all its tensors for the next call. */
#include "backend/check/check.h"
#include "backend/schedule/build.h"

/* Returns the bit of a rank in its word of value.have. */
static uint64_t value_rank_bit(int rank) { return (uint64_t)1 << (rank % 64); }
/* result_expected_chunk returns the chunk of INPUT that belongs in chunk c of OUTPUT. result_expected_owner returns the
   rank that it comes from; -1: the sum over all ranks. */
static int result_expected_chunk(const struct schedule *schedule, int c)
{
    if (schedule->collective == ALLGATHER || schedule->collective == GATHER) return c % schedule->cut;
    if (schedule->collective == REDUCE_SCATTER || schedule->collective == SCATTER)
        return schedule->rank * schedule->cut + c;
    return schedule->collective == ALL_TO_ALL ? schedule->rank * schedule->cut + c % schedule->cut : c;
}
static int result_expected_owner(const struct schedule *schedule, int c)
{
    if (schedule->collective == BROADCAST || schedule->collective == SCATTER) return schedule->root;
    return schedule->collective == ALLGATHER || schedule->collective == GATHER || schedule->collective == ALL_TO_ALL
        ? c / schedule->cut
        : -1;
}
/* True if `value` is right for a tile of OUTPUT chunk c: it has the contributions of exactly the right ranks to the
   right chunk, premultiplied and finished as it must be. */
static bool result_is_right(const struct checker *checker, const struct schedule *schedule, int c, int tile,
    const struct value *value)
{
    int owner = result_expected_owner(schedule, c);
    bool right = value->valid && value->tile == tile && value->chunk == result_expected_chunk(schedule, c)
        && value->premultiplied == checker->plan->stage_inputs;
    for (int rank = 0; rank < schedule->size; rank++)
        right &= ((value->have[rank / 64] & value_rank_bit(rank)) != 0) == (owner < 0 || rank == owner);
    return right && (schedule->size == 1 || value->finished == collective_is_reduction(schedule->collective));
}
/* Reports each OUTPUT chunk of a rank that is wrong after an operation. */
static void checker_judge_results(struct checker *checker, const struct schedule *schedule, int operation)
{
    for (int c = 0; !schedule->absent[OUTPUT] && c < schedule->chunks[OUTPUT]; c++)
        for (int t = 0; t < checker->tiles; t++) {
            const struct value *value =
                &checker_cell(checker, span_of_chunk(schedule->rank, OUTPUT, c), 0, t, operation)->value;
            if (value->operation != operation || !result_is_right(checker, schedule, c, t, value))
                checker_report_chunk(checker, "wrong result", schedule->rank, c, t);
        }
}
/* True if `value` is what the caller put into a tile of INPUT chunk c, or OUTPUT shares the cell and may have changed
   it. */
static bool input_is_intact(const struct checker *checker, const struct schedule *schedule, int c, int tile,
    const struct value *value)
{
    int cell = plan_cell_index(checker->plan, schedule->rank, INPUT, c),
        output = plan_cell_index(checker->plan, schedule->rank, OUTPUT, 0);
    bool intact = value->valid && value->tile == tile && value->chunk == c && !value->premultiplied && !value->finished;
    for (int w = 0; w < CHECK_WORDS; w++)
        intact &= value->have[w] == (w == schedule->rank / 64 ? value_rank_bit(schedule->rank) : 0);
    return intact || (!schedule->absent[OUTPUT] && cell >= output && cell < output + schedule->chunks[OUTPUT]);
}
/* Reports each INPUT chunk of a rank that an operation has changed. */
static void checker_judge_inputs(struct checker *checker, const struct schedule *schedule, int operation)
{
    for (int c = 0; !schedule->absent[INPUT] && c < schedule->chunks[INPUT]; c++)
        for (int t = 0; t < checker->tiles; t++) {
            const struct value *value =
                &checker_cell(checker, span_of_chunk(schedule->rank, INPUT, c), 0, t, operation)->value;
            if (value->operation != operation || !input_is_intact(checker, schedule, c, t, value))
                checker_report_chunk(checker, "input changed", schedule->rank, c, t);
        }
}
/* Writes new symbolic values into a rank's tensor, as a caller does between operations. */
static void checker_rewrite_buffer(struct checker *checker, const struct schedule *schedule, enum buffer buffer,
    int operation)
{
    for (int c = 0; !schedule->absent[buffer] && c < schedule->chunks[buffer]; c++)
        for (int t = 0; t < checker->tiles; t++) {
            struct check_cell *cell = checker_cell(checker, span_of_chunk(schedule->rank, buffer, c), 0, t, operation);
            checker_record_access(checker, cell, schedule->rank * checker->slots, true, NULL, -1, t);
            cell->value = (struct value){ .chunk = c, .tile = t, .operation = operation, .valid = buffer == INPUT };
            cell->value.have[schedule->rank / 64] = value_rank_bit(schedule->rank);
        }
}
void checker_judge_operation(struct checker *checker, const struct schedule *schedule, int operation)
{
    checker_judge_results(checker, schedule, operation);
    checker_judge_inputs(checker, schedule, operation);
}
void checker_rewrite_tensors(struct checker *checker, const struct schedule *schedule, int operation)
{
    checker_rewrite_buffer(checker, schedule, OUTPUT, operation);
    checker_rewrite_buffer(checker, schedule, INPUT, operation);
}
