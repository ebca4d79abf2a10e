/* Normalises the rows of an allreduce's sum before any rank reads them. Part of the executor. */
#pragma once
#include "kernels/norm.h"
#include <stddef.h>

struct part;
struct program;
struct executor;
struct step;

/* Describes an allreduce whose INPUT and OUTPUT are rows. */
struct rows {
    /* NULL: the allreduce only sums. */
    norm_function *function;
    struct norm norm;
    size_t row_bytes;
    /* The residual of all rows, of this rank's rows if own_rows_only, or NULL. */
    void *residual;
    /* Each rank keeps only the residual of the rows that it sums. */
    bool own_rows_only;
};
enum { ROWS_MOST_COLUMNS = (1 << 24) - 1 };
/* Packs everything on which ranks must agree into one number: columns, epsilon, and which arrays are given. */
uint64_t rows_encode_bits(const struct rows *rows);
/* Formats the number of rows_encode_bits as in "RMSNorm of rows of 4096, epsilon 1e-06". */
void rows_format_bits(uint64_t bits, char *out, size_t bytes);
/* True if a row of each chunk fits into the slots of this program. */
bool rows_fit_into_slots(const struct executor *executor, const struct program *program, size_t row_bytes);
/* True if the rank that sums a row normalises it at once; else each rank normalises all rows at the end. The program
   must be known, and rows that are own_rows_only must fit it. */
bool rows_are_normalised_early(const struct executor *executor);
/* Replaces the sum of a finishing step: sets to[0] = … = the normalised sum of the froms, row by row. */
void rows_normalise_sum(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part);
/* Normalises all of OUTPUT. */
void rows_normalise_output(const struct executor *executor);
