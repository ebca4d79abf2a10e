/* Checks the arguments of calls and makes operations from them. A refused call sends nothing and leaves the
   communicator unchanged. */
#include "c_api/call.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/engine/stream_operations.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Programs of the first version have requests of this size. Later members come after it. */
enum { FIRST_REQUEST_BYTES = 1088 };
static_assert(sizeof(struct operation) <= TUTTI_REQUEST_ROOM_BYTES, "an operation fits into a request");
static_assert(_Alignof(struct operation) <= _Alignof(tutti_request), "and may lie there");
static_assert(offsetof(tutti_request, reserved) + TUTTI_REQUEST_ROOM_BYTES == FIRST_REQUEST_BYTES,
    "a request has its first members and its room where the first version had them");

/* ---- checks ---- */
tutti_status call_refuse_struct_size(const char *type, const char *initial, size_t size, size_t least, size_t most)
{
    if (!size)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "%s.struct_size is 0: initialize it with %s", type, initial);
    if (size < least)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "%s.struct_size is %zu, but every version of it has at least %zu bytes: initialize it with %s", type, size,
            least, initial);
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "%s.struct_size is %zu, but this library, tutti %s, knows %zu bytes: the program was compiled for a later "
        "version, or did not initialize it with %s",
        type, size, TUTTI_VERSION, most, initial);
}
/* Returns the queue of a request, or NULL. Requests of older programs have no queue and no label. */
static tutti_queue *request_get_queue(const tutti_request *request)
{
    return request->struct_size > FIRST_REQUEST_BYTES ? request->queue : NULL;
}
static uint64_t request_get_label(const tutti_request *request)
{
    return request->struct_size > offsetof(tutti_request, label) ? request->label : 0;
}
/* Returns true if the call enqueues its operation on a CUDA stream. */
static bool request_is_on_stream(const tutti_request *request)
{
    return request->struct_size > offsetof(tutti_request, on_stream) && request->on_stream;
}
/* Refuses an invalid queue, options that a queue excludes, and a request that is still in its queue. */
static tutti_status request_check_queue(const tutti_request *request, tutti_queue *queue)
{
    const struct operation *op = (const struct operation *)(const void *)request->reserved;
    TRY(queue_check(queue));
    if (request->blocking || request->done)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "a request with a queue cannot also be blocking or have a `done` callback");
    if (op->comm && op->queued.queue && op->queued.is_queued)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "the request is still in its queue: take it with tutti_queue_wait before you use it again");
    return TUTTI_OK;
}
/* Refuses a request of an unknown size. If it has a queue, also refuses an invalid queue, and a request that is
   `blocking`, has `done`, or is still in its queue. */
static tutti_status request_check(const tutti_request *request)
{
    size_t size = request->struct_size;
    if (size != sizeof *request && size != offsetof(tutti_request, on_stream) && size != offsetof(tutti_request, label)
        && size != FIRST_REQUEST_BYTES)
        return call_refuse_struct_size("tutti_request", "TUTTI_REQUEST_INIT", size, FIRST_REQUEST_BYTES,
            sizeof *request);
    if (size == sizeof *request && (request->on_stream ? request->blocking : request->stream != NULL))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            request->on_stream ? "a request with on_stream cannot also be blocking: wait for it with tutti_wait"
                               : "the request has a stream, but not on_stream");
    tutti_queue *queue = request_get_queue(request);
    return queue ? request_check_queue(request, queue) : TUTTI_OK;
}
tutti_status call_check_comm(tutti_comm *comm)
{
    if (!comm) return status_refuse(TUTTI_INVALID_ARGUMENT, "the communicator is NULL");
    if (comm_is_inherited_by_fork(comm))
        return status_fail(TUTTI_FORKED,
            "this communicator (%s, rank %d) was made before a fork; a child process must make its own",
            comm->group.name, comm->group.rank);
    return comm_get_failure(comm);
}
/* Refuses an unknown type, and `parts` parts beyond the address space. *part_bytes gets the bytes of `count`
   elements. */
static tutti_status call_check_dtype(tutti_dtype dtype, size_t count, size_t parts, size_t *part_bytes)
{
    size_t bytes = dtype_bytes(dtype), all;
    if (!bytes) return status_refuse(TUTTI_INVALID_ARGUMENT, "unknown element type %d", (int)dtype);
    if (!size_multiply(count, bytes, part_bytes) || !size_multiply(*part_bytes, parts, &all) || all > PTRDIFF_MAX)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "%zu elements of %s for %zu ranks exceed the address space", count,
            dtype_name(dtype), parts);
    return TUTTI_OK;
}
tutti_status call_set_op(tutti_dtype dtype, tutti_op op, struct operation *out)
{
    out->op = op;
    out->sum.reduce = NULL;
    if ((unsigned)op >= TUTTI_OP_COUNT)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "unknown reduction operation %d", (int)op);
    out->sum.reduce = reduce_find(dtype, op);
    if (!out->sum.reduce || (op == TUTTI_PREMUL_SUM && !scale_find(dtype)))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "%s of %s elements is not defined", op_name(op),
            dtype_name(dtype));
    return TUTTI_OK;
}
tutti_status call_check_rank(const tutti_comm *comm, int rank, const char *what)
{
    if (rank >= 0 && rank < comm->group.size) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "%s %d is not a rank of %s, which has ranks 0 to %d", what, rank,
        comm->group.name, comm->group.size - 1);
}
tutti_status call_check_buffer(const void *buffer, size_t bytes, const char *what)
{
    return buffer || !bytes
        ? TUTTI_OK
        : status_refuse(TUTTI_INVALID_ARGUMENT, "the %s buffer is NULL, but must have %zu bytes", what, bytes);
}

/* ---- preparing ---- */
tutti_status call_prepare_operation(tutti_comm *comm, int collective, size_t count, size_t parts, tutti_dtype dtype,
    int root, tutti_request *request, struct operation *out)
{
    if (request) TRY(request_check(request));
    tutti_status status = call_check_comm(comm);
    /* The request counts as refused until call_run_operation starts it. */
    if (request) request->refused = !comm || status == TUTTI_OK;
    TRY(status);
    operation_init(out, comm, collective, count, dtype, root);
    TRY(call_check_rank(comm, root, "root"));
    return call_check_dtype(dtype, count, parts, &out->part_bytes);
}
bool call_buffers_overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
    uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return one_bytes && other_bytes && a < b + other_bytes && b < a + one_bytes;
}
tutti_status call_refuse_overlap(const struct operation *op, const char *unless)
{
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "%s on rank %d of %s: the send and receive buffers overlap%s; give one of them memory of its own",
        collective_name((enum collective)op->collective), op->comm->group.rank, op->comm->group.name, unless);
}

/* ---- group calls ---- */
/* A call between tutti_group_start and tutti_group_end. */
struct grouped { tutti_request request; struct grouped *next; };
/* The number of starts without an end, and the list of this thread's calls. */
static _Thread_local int group_depth;
static _Thread_local struct grouped *group_first, **group_end;
_Atomic int call_groups_open;

/* Adds a call to this thread's group, and returns the request that the library makes for it. */
static tutti_status group_add_request(tutti_request **out)
{
    struct grouped *g = memory_alloc_aligned(sizeof *g);
    if (!g) return status_refuse(TUTTI_NO_MEMORY, "no memory for a grouped call");
    if (!group_first) group_end = &group_first;
    g->request.struct_size = sizeof g->request;
    *group_end = g;
    group_end = &g->next;
    *out = &g->request;
    return TUTTI_OK;
}
tutti_status tutti_group_start(void)
{
    if (!group_depth++) atomic_fetch_add(&call_groups_open, 1);
    return TUTTI_OK;
}
tutti_status tutti_group_end(void)
{
    if (group_depth == 0) return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_group_end without tutti_group_start");
    if (--group_depth > 0) return TUTTI_OK;
    atomic_fetch_sub(&call_groups_open, 1);
    tutti_status first = TUTTI_OK;
    bool refused = false;
    char detail[STATUS_DETAIL_BYTES] = "";
    while (group_first) {
        struct grouped *g = group_first;
        tutti_status status = tutti_wait(&g->request, 0);
        if (status != TUTTI_OK && first == TUTTI_OK) {
            first = status;
            refused = status_is_refusal();
            strcpy(detail, status_detail());
        }
        group_first = g->next;
        free(g);
    }
    if (first == TUTTI_OK) return TUTTI_OK;
    return refused ? status_repeat_refusal(first, detail) : status_repeat(first, detail);
}

bool call_is_grouped(void) { return group_depth > 0; }

/* ---- requests ---- */
static struct operation *request_get_operation(tutti_request *request)
{
    return (struct operation *)(void *)request->reserved;
}
/* Applies timeout, label, factor and algorithm of a request to its operation. Refuses options that the operation cannot
   have. Without a request (NULL) the communicator's timeout applies. */
static tutti_status operation_apply_options(struct operation *op, tutti_request *request)
{
    atomic_init(&op->limit.timeout_ms, op->comm->timeout_ms);
    if (!request) return TUTTI_OK;
    if (request->timeout_ms > 0) op->limit.timeout_ms = request->timeout_ms;
    uint64_t label = request_get_label(request);
    if (label && (op->collective >= POINT_TO_POINT || op->op == TUTTI_PREMUL_SUM || op->sum.rows.function))
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "a send, a receive, a premul_sum and a norm cannot have a label, nor can an operation of a window");
    if (label) op->bits = label;
    if (op->op == TUTTI_PREMUL_SUM) memcpy(&op->bits, &request->factor, sizeof op->bits);
    if (!request->algorithm) return TUTTI_OK;
    if (op->collective >= POINT_TO_POINT)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "a send, a receive or an operation of a window cannot choose an algorithm");
    TRY(status_mark_refusal(algorithm_find_for_collective((enum collective)op->collective, request->algorithm,
        &op->algorithm)));
    return status_mark_refusal(comm_check_algorithm(op->comm, op->algorithm));
}
/* Enqueues an operation on the stream of its request. After an error the request is unchanged. */
static tutti_status call_run_on_stream(struct operation *prepared, tutti_request *request)
{
    if (prepared->collective >= POINT_TO_POINT || prepared->sum.rows.function)
        return status_refuse(TUTTI_UNSUPPORTED,
            "operations on CUDA streams are collectives: no messages, no norms and no windows; synchronize the stream "
            "and call without on_stream");
    prepared->request = request;
    prepared->queued.queue = request_get_queue(request);
    request->refused = false;
    tutti_status status = stream_operation_run(prepared, request->stream, request_get_operation(request));
    if (status != TUTTI_OK && status_is_refusal()) request->refused = true;
    return status;
}
tutti_status call_run_operation(struct operation *prepared, tutti_request *request)
{
    struct operation *op = prepared;
    bool grouped = !request && group_depth;
    tutti_status status = operation_apply_options(prepared, request);
    bool on_stream = status == TUTTI_OK && request && request_is_on_stream(request);
    if (on_stream) status = call_run_on_stream(prepared, request);
    if (status == TUTTI_OK && grouped) status = group_add_request(&request);
    if (status != TUTTI_OK || on_stream) {
        free(prepared->uneven);
        return status;
    }
    if (request) {
        op = request_get_operation(request);
        memcpy(op, prepared,
            prepared->collective < POINT_TO_POINT ? offsetof(struct operation, message.piece)
                                                  : offsetof(struct operation, detail));
        op->request = request;
        request->refused = false;
        op->queued.queue = grouped ? NULL : request_get_queue(request);
        if (op->queued.queue) queue_add_operation(op);
    }
    return operation_run(op, !request || (request->blocking && !grouped));
}
/* Refuses a request that was never used in a call, or that a parent process has started. */
static tutti_status request_check_used(const tutti_request *request)
{
    const struct operation *op = request ? (const struct operation *)(const void *)request->reserved : NULL;
    if (!op || !op->comm) return status_refuse(TUTTI_INVALID_ARGUMENT, "the request was never used in a call");
    if (op->generation == process_generation()) return TUTTI_OK;
    return status_fail(TUTTI_FORKED,
        "this request was started by the parent process before a fork; only the parent can wait for it");
}
tutti_status tutti_wait(tutti_request *request, int64_t timeout_ms)
{
    TRY(request_check_used(request));
    return operation_wait(request_get_operation(request), timeout_ms);
}
tutti_status tutti_test(tutti_request *request)
{
    TRY(request_check_used(request));
    return operation_test(request_get_operation(request));
}
tutti_status tutti_detach(tutti_request *request)
{
    TRY(request_check_used(request));
    operation_detach(request_get_operation(request));
    return TUTTI_OK;
}
