/* The public collectives whose parts differ from rank to rank. The arrays of counts and offsets are read before the
   call returns. */
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "c_api/call.h"
#include <stdlib.h>

/* Converts counts and offsets of `size` parts from elements of `bytes` bytes to bytes. *total gets the bytes of the
   whole buffer. Refuses parts beyond the address space. */
static tutti_status counts_convert_to_bytes(const size_t *counts, const size_t *offsets, int size, size_t bytes,
    size_t *lengths, size_t *starts, size_t *total)
{
    *total = 0;
    for (int q = 0; q < size; q++) {
        size_t end;
        if (!size_multiply(counts[q], bytes, &lengths[q]) || !size_multiply(offsets[q], bytes, &starts[q])
            || !size_add(lengths[q], starts[q], &end) || end > PTRDIFF_MAX)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "%zu elements at %zu for rank %d exceed the address space",
                counts[q], offsets[q], q);
        if (end > *total && counts[q]) *total = end;
    }
    return TUTTI_OK;
}
/* Refuses received parts that overlap. The check is fast if parts lie in the order of their ranks, the usual case. */
static tutti_status uneven_check_received_parts(const struct operation *op, const struct uneven *uneven)
{
    const size_t *lengths = uneven->lengths[OUTPUT], *offsets = uneven->offsets[OUTPUT];
    int size = op->comm->group.size;
    size_t end = 0;
    for (int q = 0; q < size; q++) {
        if (!lengths[q]) continue;
        for (int before = 0; offsets[q] < end && before < q; before++)
            if (lengths[before] && offsets[before] < offsets[q] + lengths[q]
                && offsets[q] < offsets[before] + lengths[before])
                return status_refuse(TUTTI_INVALID_ARGUMENT,
                    "%s on rank %d of %s: the parts that ranks %d and %d send are received into memory that "
                    "overlaps; give each part memory of its own",
                    collective_name((enum collective)op->collective), op->comm->group.rank, op->comm->group.name,
                    before, q);
        end = size_larger(end, offsets[q] + lengths[q]);
    }
    return TUTTI_OK;
}
/* Refuses a sent part that overlaps a received part. The buffers as a whole, of `sent` and `received` bytes, may
   overlap. */
static tutti_status uneven_check_overlap(const struct operation *op, const struct uneven *uneven, const char *send,
    size_t sent, const char *recv, size_t received)
{
    int size = call_buffers_overlap(send, sent, recv, received) ? op->comm->group.size : 0;
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            if (call_buffers_overlap(send + uneven->offsets[0][a], uneven->lengths[0][a], recv + uneven->offsets[1][b],
                    uneven->lengths[1][b]))
                return call_refuse_overlap(op, ", and it cannot work in place");
    return TUTTI_OK;
}
/* Allocates lengths and offsets of input and output for `size` ranks. */
static tutti_status uneven_allocate_counts(int agreement, size_t size, struct uneven **out)
{
    struct uneven *uneven = memory_alloc_zeroed(1, sizeof *uneven + 4 * size * sizeof(size_t));
    if (!uneven) return status_refuse(TUTTI_NO_MEMORY, "no memory for the counts of %zu ranks", size);
    size_t *room = (size_t *)(uneven + 1);
    for (int i = 0; i < 2; i++) {
        uneven->lengths[i] = room + (size_t)i * size;
        uneven->offsets[i] = room + (size_t)(2 + i) * size;
    }
    uneven->agreement = agreement;
    *out = uneven;
    return TUTTI_OK;
}
static tutti_status uneven_free_and_return(struct uneven *uneven, tutti_status status)
{
    free(uneven);
    return status;
}
/* Runs an operation with uneven counts, and takes ownership of `uneven`. bytes: the size of all parts together. It
   gives the approximate size of a part, by which small operations are recognized. */
static tutti_status uneven_run(struct operation *o, const void *send, void *recv, struct uneven *uneven, size_t bytes,
    tutti_request *request)
{
    o->part_bytes = bytes / (size_t)o->comm->group.size + 1;
    o->input = send;
    o->output = recv;
    o->uneven = uneven;
    return call_run_operation(o, request);
}
tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_offsets, void *recv,
    const size_t *recv_counts, const size_t *recv_offsets, tutti_dtype dtype, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    struct uneven *uneven = NULL;
    TRY(call_prepare_operation(comm, ALL_TO_ALL, 0, 1, dtype, 0, request, &o));
    if (!send_counts || !send_offsets || !recv_counts || !recv_offsets)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "all_to_all_v: one of the four arrays of counts and offsets is NULL");
    int size = comm->group.size;
    size_t bytes = tutti_dtype_bytes(dtype), sent, received;
    TRY(uneven_allocate_counts(IN_PAIRS, (size_t)size, &uneven));
    tutti_status status = counts_convert_to_bytes(send_counts, send_offsets, size, bytes, uneven->lengths[INPUT],
        uneven->offsets[INPUT], &sent);
    if (status == TUTTI_OK)
        status = counts_convert_to_bytes(recv_counts, recv_offsets, size, bytes, uneven->lengths[OUTPUT],
            uneven->offsets[OUTPUT], &received);
    if (status == TUTTI_OK) status = call_check_buffer(send, sent, "send");
    if (status == TUTTI_OK) status = call_check_buffer(recv, received, "receive");
    if (status == TUTTI_OK) status = uneven_check_received_parts(&o, uneven);
    if (status == TUTTI_OK) status = uneven_check_overlap(&o, uneven, send, sent, recv, received);
    return status == TUTTI_OK ? uneven_run(&o, send, recv, uneven, sent, request)
                              : uneven_free_and_return(uneven, status);
}

/* ---- one part on one side, and a part of each rank on the other ---- */
/* The two buffers: `all` has a part of each rank, and is the input or output that of_all names; `one` has a single
   part. */
struct sides {
    const char *one, *all;
    enum buffer of_all;
};
/* Refuses a single part that overlaps a part in `all`, unless it is exactly this rank's own part there. */
static tutti_status uneven_check_single_part(const struct operation *op, const struct uneven *uneven,
    const struct sides *s)
{
    const char *unless = s->of_all == OUTPUT ? ", but not in place (send == recv + offsets[rank])"
                                             : ", but not in place (recv == send + offsets[rank])";
    int mine = op->comm->group.rank;
    for (int q = 0; q < op->comm->group.size; q++) {
        const char *part = s->all + uneven->offsets[s->of_all][q];
        bool in_place = q == mine && part == s->one;
        if (!in_place
            && call_buffers_overlap(s->one, uneven->lengths[s->of_all][mine], part, uneven->lengths[s->of_all][q]))
            return call_refuse_overlap(op, unless);
    }
    return TUTTI_OK;
}
/* Checks and runs an all-gather or a reduce-scatter with uneven counts. */
static tutti_status uneven_run_one_sided(struct operation *o, const struct sides *s, const void *send, void *recv,
    const size_t *counts, const size_t *offsets, tutti_request *request)
{
    struct uneven *uneven = NULL;
    int size = o->comm->group.size, of_one = s->of_all == OUTPUT ? INPUT : OUTPUT;
    bool gathers = s->of_all == OUTPUT;
    size_t most, all = 0;
    if (!counts || !offsets)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "%s_v: the array of counts or of offsets is NULL",
            gathers ? "all_gather" : "reduce_scatter");
    TRY(uneven_allocate_counts(gathers ? EQUAL_OUTPUT : EQUAL_INPUT, (size_t)size, &uneven));
    tutti_status status = counts_convert_to_bytes(counts, offsets, size, tutti_dtype_bytes(o->dtype),
        uneven->lengths[s->of_all], uneven->offsets[s->of_all], &most);
    size_t mine = uneven->lengths[of_one][0] = uneven->lengths[s->of_all][o->comm->group.rank];
    if (status == TUTTI_OK) status = call_check_buffer(send, gathers ? mine : most, "send");
    if (status == TUTTI_OK) status = call_check_buffer(recv, gathers ? most : mine, "receive");
    for (int q = 0; status == TUTTI_OK && q < size; q++)
        if (!size_add(all, uneven->lengths[s->of_all][q], &all) || all > PTRDIFF_MAX)
            status = status_refuse(TUTTI_INVALID_ARGUMENT,
                "the counts of %d ranks add up to more bytes than the address space has", size);
    if (status == TUTTI_OK && gathers) status = uneven_check_received_parts(o, uneven);
    if (status == TUTTI_OK) status = uneven_check_single_part(o, uneven, s);
    return status == TUTTI_OK ? uneven_run(o, send, recv, uneven, all, request)
                              : uneven_free_and_return(uneven, status);
}
tutti_status tutti_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *offsets,
    tutti_dtype dtype, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    const struct sides sides = { send, recv, OUTPUT };
    TRY(call_prepare_operation(comm, ALLGATHER, 0, 1, dtype, 0, request, &o));
    return uneven_run_one_sided(&o, &sides, send, recv, counts, offsets, request);
}
tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts, const size_t *offsets, void *recv,
    tutti_dtype dtype, tutti_op op, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    const struct sides sides = { recv, send, INPUT };
    TRY(call_prepare_operation(comm, REDUCE_SCATTER, 0, 1, dtype, 0, request, &o));
    TRY(call_set_op(dtype, op, &o));
    return uneven_run_one_sided(&o, &sides, send, recv, counts, offsets, request);
}
