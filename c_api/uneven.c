/* The collectives whose parts differ from rank to rank. Arrays of counts and offsets are read before the call
   returns. */
#include "c_api/call.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include <stdlib.h>

static tutti_status convert_counts(const size_t *counts, const size_t *offsets, int size, size_t bytes, size_t *lengths,
    size_t *starts, size_t *total)
{
    *total = 0;
    for (int q = 0; q < size; q++) {
        size_t end;
        if (!size_multiply(counts[q], bytes, &lengths[q]) || !size_multiply(offsets[q], bytes, &starts[q])
            || !size_add(lengths[q], starts[q], &end) || end > PTRDIFF_MAX)
            return status_refuse(TUTTI_INVALID_ARGUMENT, "%zu elements at %zu for rank %d are beyond all addresses",
                counts[q], offsets[q], q);
        if (end > *total && counts[q]) *total = end;
    }
    return TUTTI_OK;
}
/* Parts may lie in one piece of memory as long as no two of them meet. */
static tutti_status check_parts_apart(const struct operation *op, const struct uneven *u, const char *send,
    size_t sent, const char *recv, size_t received)
{
    int size = call_overlaps(send, sent, recv, received) ? op->comm->group.size : 0;
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            if (call_overlaps(send + u->offsets[0][a], u->lengths[0][a], recv + u->offsets[1][b], u->lengths[1][b]))
                return call_refuse_overlap(op, ", and it cannot work in place");
    return TUTTI_OK;
}
tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_offsets, void *recv,
    const size_t *recv_counts,
    const size_t *recv_offsets, tutti_dtype dtype, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, ALL_TO_ALL, 0, 1, dtype, 0, request, &o));
    if (!send_counts || !send_offsets || !recv_counts || !recv_offsets)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "all_to_all_v needs all four arrays of counts and offsets");
    size_t size = (size_t)comm->group.size, bytes = tutti_dtype_bytes(dtype), sent, received;
    struct uneven *u = memory_zeroed(1, sizeof *u + 4 * size * sizeof(size_t));
    if (!u) return status_refuse(TUTTI_NO_MEMORY, "no memory for the counts of %zu ranks", size);
    size_t *room = (size_t *)(u + 1);
    for (int i = 0; i < 2; i++) { u->lengths[i] = room + i * size; u->offsets[i] = room + (2 + i) * size; }
    tutti_status status = convert_counts(send_counts, send_offsets, (int)size, bytes, u->lengths[0], u->offsets[0],
        &sent);
    if (status == TUTTI_OK)
        status = convert_counts(recv_counts, recv_offsets, (int)size, bytes, u->lengths[1], u->offsets[1], &received);
    if (status == TUTTI_OK) status = call_check_buffer(send, sent, "send");
    if (status == TUTTI_OK) status = call_check_buffer(recv, received, "receive");
    if (status == TUTTI_OK) status = check_parts_apart(&o, u, send, sent, recv, received);
    if (status != TUTTI_OK) { free(u); return status; }
    o.part_bytes = sent / size + 1;                     /* what the choice of an algorithm goes by */
    o.input = send;
    o.output = recv;
    o.uneven = u;
    return call_run(&o, request);
}
