/* The collectives with equal parts, and messages. */
#include "c_api/call.h"

/* ---- collectives ---- */
/* Overlapping buffers must be in place, or ranks would read what is partly overwritten. all_to_all is never. */
static tutti_status check_in_place(const struct operation *op, const void *send, size_t sent, const void *recv,
    size_t received)
{
    uintptr_t from = (uintptr_t)send, to = (uintptr_t)recv, mine = (uintptr_t)op->comm->group.rank * op->part_bytes;
    if (op->family == ALL_TO_ALL) return call_refuse_overlap(op, ", and it cannot work in place");
    if (sent == received)
        return from == to ? TUTTI_OK : call_refuse_overlap(op, ", but not in place, which is send == recv");
    if (sent < received)
        return from == to + mine ? TUTTI_OK
                                 : call_refuse_overlap(op, ", but not in place, which is send == recv + rank * count");
    return to == from + mine ? TUTTI_OK
                             : call_refuse_overlap(op, ", but not in place, which is recv == send + rank * count");
}
static tutti_status with_buffers(struct operation *op, const void *send, size_t send_parts, void *recv,
    size_t recv_parts, tutti_request *request)
{
    size_t sent = op->part_bytes * send_parts, received = op->part_bytes * recv_parts;
    TRY(call_check_buffer(send, sent, "send"));
    TRY(call_check_buffer(recv, received, "receive"));
    if (call_overlaps(send, sent, recv, received)) TRY(check_in_place(op, send, sent, recv, received));
    op->input = send;
    op->output = recv;
    return call_run(op, request);
}
tutti_status tutti_all_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, ALLREDUCE, count, 1, dtype, 0, request, &o));
    TRY(call_check_op(dtype, op, &o));
    return with_buffers(&o, send, 1, recv, 1, request);
}
tutti_status tutti_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op, int root,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, REDUCE, count, 1, dtype, root, request, &o));
    TRY(call_check_op(dtype, op, &o));
    return with_buffers(&o, send, 1, recv, comm->group.rank == root, request);
}
tutti_status tutti_broadcast(const void *send, void *recv, size_t count, tutti_dtype dtype, int root, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, BROADCAST, count, 1, dtype, root, request, &o));
    return with_buffers(&o, send, comm->group.rank == root, recv, 1, request);
}
tutti_status tutti_all_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, ALLGATHER, send_count, comm ? (size_t)comm->group.size : 1, dtype, 0, request, &o));
    return with_buffers(&o, send, 1, recv, (size_t)comm->group.size, request);
}
tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, REDUCE_SCATTER, recv_count, comm ? (size_t)comm->group.size : 1, dtype, 0, request, &o));
    TRY(call_check_op(dtype, op, &o));
    return with_buffers(&o, send, (size_t)comm->group.size, recv, 1, request);
}
tutti_status tutti_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, GATHER, send_count, comm ? (size_t)comm->group.size : 1, dtype, root, request, &o));
    return with_buffers(&o, send, 1, recv, comm->group.rank == root ? (size_t)comm->group.size : 0, request);
}
tutti_status tutti_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, SCATTER, recv_count, comm ? (size_t)comm->group.size : 1, dtype, root, request, &o));
    return with_buffers(&o, send, comm->group.rank == root ? (size_t)comm->group.size : 0, recv, 1, request);
}
tutti_status tutti_barrier(tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, BARRIER, 0, 1, TUTTI_UINT8, 0, request, &o));
    TRY(call_check_op(TUTTI_UINT8, TUTTI_BOR, &o));          /* some algorithms add up nothing */
    return with_buffers(&o, NULL, 0, NULL, 0, request);
}
tutti_status tutti_all_to_all(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, ALL_TO_ALL, count, comm ? (size_t)comm->group.size : 1, dtype, 0, request, &o));
    return with_buffers(&o, send, (size_t)comm->group.size, recv, (size_t)comm->group.size, request);
}

/* ---- point to point ---- */
static tutti_status message(bool is_send, const void *send, void *recv, size_t count, tutti_dtype dtype, int peer,
    uint32_t tag, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare(comm, POINT_TO_POINT, count, 1, dtype, 0, request, &o));
    if (is_send || peer != TUTTI_ANY_SOURCE) TRY(call_check_rank(comm, peer, "peer"));
    TRY(call_check_buffer(is_send ? send : recv, o.part_bytes, "message"));
    if (peer == comm->group.rank && (!request || request->blocking) && !call_is_grouped())
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "rank %d sends to or receives from itself in a blocking call, "
            "which would wait forever: use a request or a group",
            peer);
    o.input = send;
    o.output = recv;
    o.message.tag = tag;
    o.message.transfer.peer = peer;                             /* field by field, as in prepare */
    o.message.transfer.is_send = is_send;
    o.message.transfer.state = TRANSFER_IDLE;
    o.message.transfer.source = -1;
    return call_run(&o, request);
}
tutti_status tutti_send(const void *send, size_t count, tutti_dtype dtype, int peer, uint32_t tag, tutti_comm *comm,
    tutti_request *request)
{
    return message(true, send, NULL, count, dtype, peer, tag, comm, request);
}
tutti_status tutti_recv(void *recv, size_t count, tutti_dtype dtype, int peer, uint32_t tag, tutti_comm *comm,
    tutti_request *request)
{
    return message(false, NULL, recv, count, dtype, peer, tag, comm, request);
}
