/* The public collectives with equal parts, and messages. */
#include "backend/engine/fast_path.h"
#include "c_api/call.h"

/* ---- collectives ---- */
/* Refuses overlapping buffers of `sent` and `received` bytes unless they lie as the in-place form requires, because
   ranks would read partly overwritten data. all_to_all never works in place. */
static tutti_status operation_check_in_place(const struct operation *op, const void *send, size_t sent,
    const void *recv, size_t received)
{
    uintptr_t from = (uintptr_t)send, to = (uintptr_t)recv, mine = (uintptr_t)op->comm->group.rank * op->part_bytes;
    if (op->collective == ALL_TO_ALL) return call_refuse_overlap(op, ", and it cannot work in place");
    if (sent == received) return from == to ? TUTTI_OK : call_refuse_overlap(op, ", but not in place (send == recv)");
    if (sent < received)
        return from == to + mine ? TUTTI_OK
                                 : call_refuse_overlap(op, ", but not in place (send == recv + rank * count)");
    return to == from + mine ? TUTTI_OK : call_refuse_overlap(op, ", but not in place (recv == send + rank * count)");
}
/* Returns how many parts this rank's input or output has; 0 if the rank has no such buffer. */
static size_t operation_count_parts(const struct operation *op, enum buffer buffer)
{
    bool has = collective_has_buffer((enum collective)op->collective, op->root, op->comm->group.rank, buffer);
    return has ? (size_t)collective_count_chunks((enum collective)op->collective, buffer, op->comm->group.size) : 0;
}
/* Checks the buffers of an operation and stores them. */
static tutti_status operation_set_buffers(struct operation *op, const void *send, void *recv)
{
    size_t sent = op->part_bytes * operation_count_parts(op, INPUT),
           received = op->part_bytes * operation_count_parts(op, OUTPUT);
    TRY(call_check_buffer(send, sent, "send"));
    TRY(call_check_buffer(recv, received, "receive"));
    if (call_buffers_overlap(send, sent, recv, received)) TRY(operation_check_in_place(op, send, sent, recv, received));
    op->input = send;
    op->output = recv;
    return TUTTI_OK;
}
/* Returns how many parts a rank's larger buffer has at most. */
static size_t call_count_most_parts(const struct call *call, const tutti_comm *comm)
{
    int size = comm ? comm->group.size : 1;
    int sent = collective_count_chunks((enum collective)call->collective, INPUT, size);
    int received = collective_count_chunks((enum collective)call->collective, OUTPUT, size);
    return (size_t)(sent > received ? sent : received);
}
/* Runs a repeated call on the fast path, which needs no checks, with the result in *out. Returns false if the call
   needs the ordinary path. */
static inline bool call_run_fast_path(tutti_comm *comm, struct call *call, const void *send, void *recv,
    tutti_status *out)
{
    bool may = comm && atomic_load_explicit(&comm->submission.fast_path_ready, memory_order_relaxed)
        && !atomic_load_explicit(&call_groups_open, memory_order_relaxed)
        && comm->group.generation == process_generation();
    return may && fast_path_run(comm, call, send, recv, out);
}
/* Runs a collective: a repeated call on the fast path, any other after checks of its arguments. */
static tutti_status call_run_collective(struct call *call, const void *send, void *recv, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    tutti_status status;
    if (!request && call_run_fast_path(comm, call, send, recv, &status)) return status;
    /* Some algorithms of a barrier sum empty buffers. */
    bool sums = collective_is_reduction((enum collective)call->collective) || call->collective == BARRIER;
    TRY(call_prepare_operation(comm, call->collective, call->count, call_count_most_parts(call, comm), call->dtype,
        call->root, request, &o));
    if (sums) TRY(call_set_op(call->dtype, call->op, &o));
    TRY(operation_set_buffers(&o, send, recv));
    return call_run_operation(&o, request);
}
tutti_status tutti_all_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    return call_run_collective(&(struct call){ .collective = ALLREDUCE, .dtype = dtype, .op = op, .count = count },
        send, recv, comm, request);
}
tutti_status tutti_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op, int root,
    tutti_comm *comm, tutti_request *request)
{
    return call_run_collective(
        &(struct call){ .collective = REDUCE, .root = root, .dtype = dtype, .op = op, .count = count }, send, recv,
        comm, request);
}
tutti_status tutti_broadcast(const void *send, void *recv, size_t count, tutti_dtype dtype, int root, tutti_comm *comm,
    tutti_request *request)
{
    return call_run_collective(&(struct call){ .collective = BROADCAST, .root = root, .dtype = dtype, .count = count },
        send, recv, comm, request);
}
tutti_status tutti_all_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    return call_run_collective(&(struct call){ .collective = ALLGATHER, .dtype = dtype, .count = send_count }, send,
        recv, comm, request);
}
tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    return call_run_collective(
        &(struct call){ .collective = REDUCE_SCATTER, .dtype = dtype, .op = op, .count = recv_count }, send, recv, comm,
        request);
}
tutti_status tutti_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request)
{
    return call_run_collective(
        &(struct call){ .collective = GATHER, .root = root, .dtype = dtype, .count = send_count }, send, recv, comm,
        request);
}
tutti_status tutti_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request)
{
    return call_run_collective(
        &(struct call){ .collective = SCATTER, .root = root, .dtype = dtype, .count = recv_count }, send, recv, comm,
        request);
}
tutti_status tutti_barrier(tutti_comm *comm, tutti_request *request)
{
    return call_run_collective(&(struct call){ .collective = BARRIER, .dtype = TUTTI_UINT8, .op = TUTTI_BOR }, NULL,
        NULL, comm, request);
}
tutti_status tutti_all_to_all(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    return call_run_collective(&(struct call){ .collective = ALL_TO_ALL, .dtype = dtype, .count = count }, send, recv,
        comm, request);
}

/* ---- point to point ---- */
/* Runs a send or receive. A blocking message to oneself is refused, because no other call could match it. */
static tutti_status call_run_message(bool is_send, const void *send, void *recv, size_t count, tutti_dtype dtype,
    int peer, uint32_t tag, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(call_prepare_operation(comm, POINT_TO_POINT, count, 1, dtype, 0, request, &o));
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
    /* Single assignments leave the large remainder of the struct unset, as operation_init does. */
    o.message.transfer.peer = peer;
    o.message.transfer.is_send = is_send;
    o.message.transfer.state = TRANSFER_IDLE;
    o.message.transfer.source = -1;
    return call_run_operation(&o, request);
}
tutti_status tutti_send(const void *send, size_t count, tutti_dtype dtype, int peer, uint32_t tag, tutti_comm *comm,
    tutti_request *request)
{
    return call_run_message(true, send, NULL, count, dtype, peer, tag, comm, request);
}
tutti_status tutti_recv(void *recv, size_t count, tutti_dtype dtype, int peer, uint32_t tag, tutti_comm *comm,
    tutti_request *request)
{
    return call_run_message(false, NULL, recv, count, dtype, peer, tag, comm, request);
}
