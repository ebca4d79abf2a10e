/* A rank sums, normalises and copies a row before it begins the next one, so the row stays in the nearest cache. Peers
   see only normalised rows, because a reader of OUTPUT or of a slot waits for the step that does both. Rows must then
   be whole in every piece and tile, so bind.c cuts at rows. */
#include "backend/execute/rows.h"
#include "backend/execute/execute.h"
#include "backend/execute/slots.h"
#include <assert.h>
#include <stdio.h>
#include <string.h>

/* ---- what ranks must agree on ---- */
/* The bits of rows_encode_bits, above the epsilon and below the columns. */
enum { CENTRED, WEIGHT, BIAS, RESIDUAL, MINE_ALONE, FLAGS };
uint64_t rows_encode_bits(const struct rows *rows)
{
    const struct norm *norm = &rows->norm;
    uint32_t epsilon;
    memcpy(&epsilon, &norm->epsilon, sizeof epsilon);
    uint64_t flags = (uint64_t)norm->centred << CENTRED | (uint64_t)(norm->weight != NULL) << WEIGHT
        | (uint64_t)(norm->bias != NULL) << BIAS | (uint64_t)(rows->residual != NULL) << RESIDUAL
        | (uint64_t)rows->own_rows_only << MINE_ALONE;
    return ((uint64_t)norm->columns << FLAGS | flags) << 32 | epsilon;
}
void rows_format_bits(uint64_t bits, char *out, size_t bytes)
{
    static const char *const with[FLAGS] = {
        [WEIGHT] = ", weight", [BIAS] = ", bias", [RESIDUAL] = ", residual", [MINE_ALONE] = ", each its own rows"
    };
    uint64_t flags = bits >> 32;
    uint32_t low = (uint32_t)bits;
    float epsilon;
    memcpy(&epsilon, &low, sizeof epsilon);
    snprintf(out, bytes, "%s of rows of %llu, epsilon %g", flags >> CENTRED & 1 ? "LayerNorm" : "RMSNorm",
        (unsigned long long)(flags >> FLAGS), (double)epsilon);
    for (int f = WEIGHT; f < FLAGS; f++)
        if (flags >> f & 1) snprintf(out + strlen(out), bytes - strlen(out), "%s", with[f]);
}

/* ---- rows ---- */

bool rows_fit_into_slots(const struct executor *executor, const struct program *program, size_t row_bytes)
{
    size_t chunks = (size_t)program->schedule->chunks[SCRATCH];
    return row_bytes * chunks * (size_t)program->plan->slots <= slots_max_bytes(executor);
}
/* If each rank sums everything, each can normalise all rows early. If each rank sums some rows for all, it can
   normalise them early only if it alone keeps their residuals. */
bool rows_are_normalised_early(const struct executor *executor)
{
    const struct plan *plan = executor->launch.program->plan;
    const struct rows *rows = executor->launch.rows;
    if (!rows || plan->size == 1) return false;
    if (rows->own_rows_only) return true;
    return plan->algorithm->host_memory && executor->launch.program->schedule->cut == 1
        && rows_fit_into_slots(executor, executor->launch.program, rows->row_bytes);
}
/* Returns the index of the step's target that lies in this rank's OUTPUT. */
static int step_index_of_own_output(const struct executor *executor, const struct step *step)
{
    const struct span *to = step_to(executor->launch.program->schedule, step);
    for (int k = 0; k < step->to_count; k++)
        if (to[k].rank == executor->site.rank && to[k].buffer == OUTPUT) return k;
    /* Plans whose rows go early finish sums only in OUTPUT. */
    assert(false);
    return 0;
}
/* Returns the residual of the row at a byte offset of OUTPUT, or NULL. */
static char *rows_residual_at_offset(const struct executor *executor, size_t offset)
{
    const struct rows *rows = executor->launch.rows;
    size_t first = rows->own_rows_only ? (size_t)executor->site.rank * executor->run.cut->piece_bytes : 0;
    return rows->residual ? (char *)rows->residual + (offset - first) : NULL;
}
void rows_normalise_sum(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part)
{
    const struct launch *launch = &executor->launch;
    const struct rows *rows = launch->rows;
    const void **source = launch->program->piece.from;
    int own = step_index_of_own_output(executor, step);
    char *residual = rows_residual_at_offset(executor, (size_t)((char *)to[own] - (char *)launch->output));
    memmove(source, from, (size_t)step->from_count * sizeof *source);
    for (size_t at = 0; at < part->bytes; at += rows->row_bytes) {
        void *row = (char *)to[own] + at;
        launch->reduce(&row, 1, source, step->from_count, rows->norm.columns, 1);
        rows->function(&rows->norm, row, residual ? residual + at : NULL, 1);
        for (int k = 0; k < step->to_count; k++)
            if (k != own) memcpy((char *)to[k] + at, row, rows->row_bytes);
        for (int k = 0; k < step->from_count; k++) source[k] = (const char *)source[k] + rows->row_bytes;
    }
}
void rows_normalise_output(const struct executor *executor)
{
    const struct rows *rows = executor->launch.rows;
    rows->function(&rows->norm, executor->launch.output, rows->residual, executor->launch.part_bytes / rows->row_bytes);
}
