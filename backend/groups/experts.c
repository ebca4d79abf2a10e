/* Each token chooses some experts, and each choice within capacity is a row. A rank's rows for an expert are in the
   order of its tokens. An expert's rows are in the order of the ranks that they come from, and a rank's experts in the
   order of their numbers. So the counts determine the place of each row. */
#include "backend/groups/experts.h"
#include "backend/base/dtype.h"
#include "backend/base/status.h"
#include "kernels/blend.h"
#include <string.h>

enum { MOST_CHOICES = 64 };

/* ---- placing rows ---- */
tutti_status experts_place(const int64_t *expert, size_t tokens, int choices, int experts, uint64_t capacity,
    int64_t *place, uint64_t *counts)
{
    size_t choice_count = tokens * (size_t)choices;
    for (size_t i = 0; i < choice_count; i++)
        if (expert[i] < -1 || expert[i] >= experts)
            return status_refuse(TUTTI_INVALID_ARGUMENT,
                "experts: token %zu chooses expert %lld; allowed are 0 to %d, and -1 for none", i / (size_t)choices,
                (long long)expert[i], experts - 1);
    memset(counts, 0, (size_t)experts * sizeof *counts);
    for (size_t i = 0; i < choice_count; i++) {
        uint64_t *count = expert[i] < 0 ? NULL : &counts[expert[i]];
        place[i] = count && *count < capacity ? (int64_t)(*count)++ : -1;
    }
    return TUTTI_OK;
}
tutti_status experts_compute_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded, uint64_t *first,
    uint64_t *rows)
{
    int experts_per_rank = experts / ranks;
    for (int owner = 0; owner < ranks; owner++) {
        uint64_t next = 0;
        for (int expert = owner * experts_per_rank; expert < (owner + 1) * experts_per_rank; expert++)
            for (int source = 0; source < ranks; source++) {
                size_t cell = (size_t)source * (size_t)experts + (size_t)expert;
                if (padded && counts[cell] > padded)
                    return status_refuse(TUTTI_INVALID_ARGUMENT,
                        "experts: rank %d has %llu rows for expert %d, but there is room for %llu", source,
                        (unsigned long long)counts[cell], expert, (unsigned long long)padded);
                first[cell] = next;
                next += padded ? padded : counts[cell];
            }
        rows[owner] = next;
    }
    return TUTTI_OK;
}

/* ---- moving and combining rows ---- */
static size_t experts_row_bytes(const tutti_experts_rows *rows) { return rows->columns * dtype_bytes(rows->dtype); }
/* Returns the address of a choice's row: `place` rows after this rank's first row of the expert. NULL: it has none. */
static void *experts_row_at(const tutti_experts_rows *rows, size_t choice)
{
    int64_t expert = rows->expert[choice], place = rows->place[choice];
    return expert < 0 || place < 0 ? NULL : (char *)rows->first[expert] + (size_t)place * experts_row_bytes(rows);
}
/* INVALID_ARGUMENT for rows of a type without kernels, or with too many choices for a token. */
static tutti_status experts_check_rows(const tutti_experts_rows *rows)
{
    if (!blend_find(rows->dtype))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "experts: rows of type %s cannot be moved: use float32, bfloat16 or float16", dtype_name(rows->dtype));
    if (rows->choices < 1 || rows->choices > MOST_CHOICES)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "experts: %d choices for each token; allowed are 1 to %d",
            rows->choices, MOST_CHOICES);
    return TUTTI_OK;
}
tutti_status experts_scatter(const tutti_experts_rows *rows, const void *from, const float *weight)
{
    TRY(experts_check_rows(rows));
    blend_function *blend = blend_find(rows->dtype);
    size_t bytes = experts_row_bytes(rows), choices = (size_t)rows->choices;
    for (size_t token = 0; token < rows->tokens; token++) {
        const void *row = (const char *)from + token * bytes;
        for (size_t i = token * choices; i < (token + 1) * choices; i++) {
            void *to = experts_row_at(rows, i);
            if (to && weight) blend(to, &row, weight + i, 1, rows->columns);
            else if (to) memcpy(to, row, bytes);
        }
    }
    return TUTTI_OK;
}
tutti_status experts_gather(const tutti_experts_rows *r, void *to, const float *weight)
{
    TRY(experts_check_rows(r));
    blend_function *blend = blend_find(r->dtype);
    size_t bytes = experts_row_bytes(r), choices = (size_t)r->choices;
    for (size_t token = 0; token < r->tokens; token++) {
        const void *rows[MOST_CHOICES];
        for (size_t k = 0; k < choices; k++) rows[k] = experts_row_at(r, token * choices + k);
        blend((char *)to + token * bytes, rows, weight ? weight + token * choices : NULL, r->choices, r->columns);
    }
    return TUTTI_OK;
}
tutti_status experts_dot(const tutti_experts_rows *rows, const void *with, float *out)
{
    TRY(experts_check_rows(rows));
    dot_function *dot = dot_find(rows->dtype);
    size_t bytes = experts_row_bytes(rows), choices = (size_t)rows->choices;
    for (size_t i = 0; i < rows->tokens * choices; i++) {
        const void *row = experts_row_at(rows, i);
        out[i] = row ? dot((const char *)with + i / choices * bytes, row, rows->columns) : 0;
    }
    return TUTTI_OK;
}
