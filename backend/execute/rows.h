/* Rows of a sum that are normalised before anybody sees them: what an allreduce does beyond adding up. Part of the
   executor. */
#pragma once
#include "kernels/norm.h"
#include <stddef.h>

struct part;
struct program;
struct executor;
struct step;

struct rows {                                           /* of an allreduce whose INPUT and OUTPUT are rows */
    norm_function *function;                            /* NULL: of one that only adds up */
    struct norm norm;
    size_t row_bytes;
    void *residual;                                     /* of all rows, or of mine alone, or NULL */
    bool mine_alone;                                    /* a residual is kept by the rank that makes its row's sum */
};
enum { ROWS_MOST_COLUMNS = (1 << 24) - 1 };
/* All that ranks must say alike, in one number; and back, in words, as in "RMSNorm of rows of 4096, epsilon 1e-06". */
uint64_t rows_bits(const struct rows *rows);
void rows_words(uint64_t bits, char *out, size_t bytes);
/* Whether a row of each chunk fits into the slots of this program. */
bool rows_fit(const struct executor *x, const struct program *program, size_t row_bytes);
/* Whether rows are normalised by whoever has made their sum, as it makes them; else each rank does it with all, at the
   end. To be called when the program is known; rows that are mine alone must fit it. */
bool rows_go_early(const struct executor *x);
/* In place of the sum of a step that finishes: to[0] = … = the normalised sum of the froms, row by row. */
void rows_finish(const struct executor *x, const struct step *t, void *const *to, const void *const *from,
    const struct part *part);
void rows_end(const struct executor *x);                /* all of OUTPUT */
