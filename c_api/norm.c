/* The all-reduce that normalises rows: its checks and its arguments. */
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/collectives/collectives.h"
#include "c_api/call.h"
#include <math.h>

/* Returns how many rows each rank has, except the last ones, if `size` ranks divide `rows` rows. */
static size_t rows_per_rank(size_t rows, int size) { return rows / (size_t)size + (rows % (size_t)size != 0); }
tutti_status tutti_norm_rows(size_t rows, int size, int rank, size_t *first, size_t *count)
{
    if (!first || !count || size < 1 || rank < 0 || rank >= size)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_norm_rows: the rank must be from 0 to size - 1, and both pointers to results not NULL");
    size_t each = rows_per_rank(rows, size), begin;
    if (!size_multiply(each, (size_t)rank, &begin) || begin > rows) begin = rows;
    *first = begin;
    *count = size_smaller(each, rows - begin);
    return TUTTI_OK;
}
/* Refuses a norm of unknown kind, type or size. */
static tutti_status norm_check_options(const tutti_norm *norm, size_t columns, const struct operation *op)
{
    const struct group *group = &op->comm->group;
    if (!norm)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_all_reduce_norm: the pointer to the tutti_norm is NULL");
    if (norm->struct_size != sizeof *norm)
        return call_refuse_struct_size("tutti_norm", "TUTTI_NORM_INIT", norm->struct_size, sizeof *norm, sizeof *norm);
    if (norm->kind != TUTTI_NORM_RMS && norm->kind != TUTTI_NORM_LAYER)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "unknown norm %d", (int)norm->kind);
    if (!norm_find(op->dtype))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "rows of %s cannot be normalised: use float32, bfloat16 or float16", dtype_name(op->dtype));
    if (!(norm->epsilon >= 0) || isinf(norm->epsilon))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "epsilon is %g: it must be 0 or more", norm->epsilon);
    if (!columns || columns > ROWS_MOST_COLUMNS)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "rows of %zu columns: there must be 1 to %d", columns,
            ROWS_MOST_COLUMNS);
    if (norm->own_rows && group_has_several_hosts(group))
        return status_refuse(TUTTI_UNSUPPORTED,
            "own_rows needs all ranks on one host, but those of %s are on several: give residuals of all rows",
            group->name);
    return TUTTI_OK;
}
/* Refuses a residual, weight or bias that overlaps recv, which holds the normalised rows. The residual must not overlap
   send either. */
static tutti_status norm_check_overlap(const struct operation *op, const tutti_norm *norm, size_t columns, size_t own)
{
    const size_t row = columns * dtype_bytes(op->dtype),
                 bytes[] = { norm->own_rows ? own * row : op->part_bytes, row, row };
    const void *const given[] = { norm->residual, norm->weight, norm->bias };
    for (int k = 0; k < 3; k++) {
        bool input = k == 0 && call_buffers_overlap(given[k], given[k] ? bytes[k] : 0, op->input, op->part_bytes);
        if (input || call_buffers_overlap(given[k], given[k] ? bytes[k] : 0, op->output, op->part_bytes))
            return status_refuse(TUTTI_INVALID_ARGUMENT,
                "all_reduce_norm on rank %d of %s: the %s overlaps with %s in memory; give it memory of its own",
                op->comm->group.rank, op->comm->group.name,
                k == 0       ? "residual"
                    : k == 1 ? "weight"
                             : "bias",
                input ? "the send buffer" : "the receive buffer");
    }
    return TUTTI_OK;
}
/* Returns the description of the rows for the executor. */
static struct rows norm_make_rows(const tutti_norm *norm, size_t columns, tutti_dtype dtype)
{
    return (struct rows){ .function = norm_find(dtype),
        .norm = { norm->kind == TUTTI_NORM_LAYER, (float)norm->epsilon, columns, norm->weight, norm->bias },
        .row_bytes = columns * dtype_bytes(dtype),
        .residual = norm->residual,
        .own_rows_only = norm->own_rows };
}
tutti_status tutti_all_reduce_norm(const void *send, void *recv, size_t rows, size_t columns, tutti_dtype dtype,
    const tutti_norm *norm, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    size_t count, first, own;
    /* call_prepare_operation refuses SIZE_MAX with a text about the address space. */
    if (!size_multiply(rows, columns, &count)) count = SIZE_MAX;
    TRY(call_prepare_operation(comm, ALLREDUCE, count, 1, dtype, 0, request, &o));
    TRY(call_set_op(dtype, TUTTI_SUM, &o));
    TRY(norm_check_options(norm, columns, &o));
    TRY(call_check_buffer(send, o.part_bytes, "send"));
    TRY(call_check_buffer(recv, o.part_bytes, "receive"));
    if (send != recv && call_buffers_overlap(send, o.part_bytes, recv, o.part_bytes))
        return call_refuse_overlap(&o, ", but not in place (send == recv)");
    TRY(tutti_norm_rows(rows, comm->group.size, comm->group.rank, &first, &own));
    o.input = send;
    o.output = recv;
    TRY(norm_check_overlap(&o, norm, columns, own));
    o.sum.rows = norm_make_rows(norm, columns, dtype);
    o.bits = rows_encode_bits(&o.sum.rows);
    if (norm->own_rows) {
        if (request && request->algorithm)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "own_rows always uses algorithm two_shot: choose none");
        o.algorithm = collectives_find_algorithm(ALLREDUCE, "two_shot");
    }
    return call_run_operation(&o, request);
}
