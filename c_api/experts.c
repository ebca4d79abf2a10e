/* The public functions of experts, with their checks of sizes and pointers. */
#include "backend/groups/experts.h"
#include "backend/base/status.h"
#include "c_api/call.h"

/* Returns INVALID_ARGUMENT for a NULL pointer. */
static tutti_status experts_refuse_null(void)
{
    return status_refuse(TUTTI_INVALID_ARGUMENT, "experts: the pointer to the result or to an input is NULL");
}
tutti_status tutti_experts_place(const int64_t *expert, size_t tokens, int choices, int experts, uint64_t capacity,
    int64_t *place, uint64_t *counts)
{
    if (choices < 1 || experts < 1)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "experts: %d experts, and %d choices of a token; there must be 1 or more", experts, choices);
    if (!counts || (tokens && (!expert || !place))) return experts_refuse_null();
    return experts_place(expert, tokens, choices, experts, capacity, place, counts);
}
tutti_status tutti_experts_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded, uint64_t *first,
    uint64_t *rows)
{
    if (ranks < 1 || experts < 1 || experts % ranks != 0)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "experts: %d experts cannot be divided evenly among %d ranks: use a multiple of %d", experts, ranks, ranks);
    if (!counts || !first || !rows) return experts_refuse_null();
    return experts_compute_offsets(counts, ranks, experts, padded, first, rows);
}
/* Refuses rows of an unknown size or with NULL arrays. `other`: another array of the call. */
static tutti_status experts_check_rows(const tutti_experts_rows *rows, const void *other)
{
    if (!rows) return experts_refuse_null();
    if (rows->struct_size != sizeof *rows)
        return call_refuse_struct_size("tutti_experts_rows", "TUTTI_EXPERTS_ROWS_INIT", rows->struct_size, sizeof *rows,
            sizeof *rows);
    if (rows->tokens && (!rows->expert || !rows->place || !rows->first || !other)) return experts_refuse_null();
    return TUTTI_OK;
}
tutti_status tutti_experts_scatter(const tutti_experts_rows *rows, const void *from, const float *weight)
{
    TRY(experts_check_rows(rows, from));
    return experts_scatter(rows, from, weight);
}
tutti_status tutti_experts_gather(const tutti_experts_rows *rows, void *to, const float *weight)
{
    TRY(experts_check_rows(rows, to));
    return experts_gather(rows, to, weight);
}
tutti_status tutti_experts_dot(const tutti_experts_rows *rows, const void *with, float *out)
{
    TRY(experts_check_rows(rows, with));
    if (rows->tokens && !out) return experts_refuse_null();
    return experts_dot(rows, with, out);
}
