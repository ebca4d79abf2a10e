/* The public functions: check arguments, fill an operation, hand it to the backend. No logic. */
#include "backend/comm/comm.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/memory/arena.h"
#include "backend/info/info.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Programs are compiled with these sizes; what is added comes after them. */
enum { FIRST_REQUEST_BYTES = 1088, LEAST_CONFIG_BYTES = offsetof(tutti_config, store) };
static_assert(sizeof(struct operation) <= TUTTI_REQUEST_ROOM_BYTES, "an operation fits into a request");
static_assert(_Alignof(struct operation) <= _Alignof(tutti_request), "and may lie there");
static_assert(offsetof(tutti_request, reserved) + TUTTI_REQUEST_ROOM_BYTES == FIRST_REQUEST_BYTES,
    "a request has its first members and its room where the first version had them");

/* ---- names ---- */
const char *tutti_get_version(void) { return TUTTI_VERSION; }
const char *tutti_get_error_string(tutti_status status) { return status_message(status); }
const char *tutti_get_last_error(void) { return status_detail(); }
size_t tutti_dtype_bytes(tutti_dtype dtype) { return dtype_bytes(dtype); }
const char *tutti_dtype_name(tutti_dtype dtype) { return dtype_name(dtype); }
const char *tutti_op_name(tutti_op op) { return op_name(op); }

/* ---- checks ---- */
static tutti_status refuse_struct_size(const char *type, const char *initial, size_t size, size_t least, size_t most)
{
    if (!size) return status_fail(TUTTI_INVALID_ARGUMENT, "%s.struct_size is 0: begin with %s", type, initial);
    if (size < least)
        return status_fail(TUTTI_INVALID_ARGUMENT, "%s.struct_size is %zu, but no version of it has less than %zu "
            "bytes: begin with %s", type, size, least, initial);
    return status_fail(TUTTI_INVALID_ARGUMENT, "%s.struct_size is %zu, but this library, tutti %s, knows %zu bytes: "
        "the program was compiled for a later version, or did not begin with %s", type, size, TUTTI_VERSION, most,
        initial);
}
static tutti_status check_options(const tutti_request *request)
{
    if (request->struct_size == sizeof *request) return TUTTI_OK;
    return refuse_struct_size("tutti_request", "TUTTI_REQUEST_INIT", request->struct_size, FIRST_REQUEST_BYTES,
        sizeof *request);
}
/* What an older program does not have is as TUTTI_CONFIG_INIT has it. */
static tutti_status read_config(const tutti_config *given, tutti_config *out)
{
    size_t size = given->struct_size;
    if (size < LEAST_CONFIG_BYTES || size > sizeof *out)
        return refuse_struct_size("tutti_config", "TUTTI_CONFIG_INIT", size, LEAST_CONFIG_BYTES, sizeof *out);
    *out = (tutti_config)TUTTI_CONFIG_INIT;
    memcpy(out, given, size);
    return TUTTI_OK;
}
static tutti_status check_comm(tutti_comm *comm)
{
    if (!comm) return status_fail(TUTTI_INVALID_ARGUMENT, "the communicator is NULL");
    if (comm->group.generation != process_generation())
        return status_fail(TUTTI_FORKED,
            "this communicator (%s, rank %d) was made before a fork; a child process must make its own",
            comm->group.name, comm->group.rank);
    return comm_failure(comm);
}
static tutti_status check_dtype(tutti_dtype dtype, size_t count, size_t parts, size_t *part_bytes)
{
    size_t bytes = tutti_dtype_bytes(dtype), all;
    if (!bytes) return status_fail(TUTTI_INVALID_ARGUMENT, "unknown element type %d", (int)dtype);
    if (!size_multiply(count, bytes, part_bytes) || !size_multiply(*part_bytes, parts, &all) || all > PTRDIFF_MAX)
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "%zu elements of %s for %zu ranks are more bytes than there are addresses", count, tutti_dtype_name(dtype),
            parts);
    return TUTTI_OK;
}
static tutti_status check_op(tutti_dtype dtype, tutti_op op, struct operation *out)
{
    out->op = op;
    out->reduce = NULL;
    if ((unsigned)op >= TUTTI_OP_COUNT)
        return status_fail(TUTTI_INVALID_ARGUMENT, "unknown reduction operation %d", (int)op);
    out->reduce = reduce_find(dtype, op);
    if (!out->reduce || (op == TUTTI_PREMUL_SUM && !scale_find(dtype)))
        return status_fail(TUTTI_INVALID_ARGUMENT, "%s of %s elements is not defined", tutti_op_name(op),
            tutti_dtype_name(dtype));
    return TUTTI_OK;
}
static tutti_status check_rank(const tutti_comm *comm, int rank, const char *what)
{
    if (rank >= 0 && rank < comm->group.size) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT, "%s %d is not a rank of %s, which has ranks 0 to %d", what, rank,
        comm->group.name, comm->group.size - 1);
}
static tutti_status check_buffer(const void *buffer, size_t bytes, const char *what)
{
    return buffer || !bytes ? TUTTI_OK : status_fail(TUTTI_INVALID_ARGUMENT,
        "the %s buffer is NULL, but %zu bytes are asked for", what, bytes);
}

/* ---- group calls ---- */
struct grouped { tutti_request request; struct grouped *next; };
static _Thread_local int group_depth;
static _Thread_local struct grouped *group_first, **group_end;

static tutti_status grouped_request(tutti_request **out)
{
    struct grouped *g = memory_aligned(sizeof *g);
    if (!g) return status_fail(TUTTI_NO_MEMORY, "no memory for a grouped call");
    if (!group_first) group_end = &group_first;
    g->request.struct_size = sizeof g->request;
    *group_end = g;
    group_end = &g->next;
    *out = &g->request;
    return TUTTI_OK;
}
tutti_status tutti_group_start(void)
{
    group_depth++;
    return TUTTI_OK;
}
tutti_status tutti_group_end(void)
{
    if (group_depth == 0) return status_fail(TUTTI_INVALID_ARGUMENT, "tutti_group_end without tutti_group_start");
    if (--group_depth > 0) return TUTTI_OK;
    tutti_status first = TUTTI_OK;
    char detail[STATUS_DETAIL_BYTES] = "";
    while (group_first) {
        struct grouped *g = group_first;
        tutti_status status = tutti_wait(&g->request, 0);
        if (status != TUTTI_OK && first == TUTTI_OK) {
            first = status;
            strcpy(detail, status_detail());
        }
        group_first = g->next;
        free(g);
    }
    return first == TUTTI_OK ? TUTTI_OK : status_repeat(first, detail);
}

/* ---- requests ---- */
static struct operation *operation_of(tutti_request *request) { return (struct operation *)(void *)request->reserved; }
static tutti_status apply_options(struct operation *op, tutti_request *request)
{
    atomic_init(&op->limit.timeout_ms, op->comm->timeout_ms);
    if (!request) return TUTTI_OK;
    if (request->timeout_ms > 0) op->limit.timeout_ms = request->timeout_ms;
    op->factor = request->factor;
    if (!request->algorithm) return TUTTI_OK;
    if (op->family == POINT_TO_POINT)
        return status_fail(TUTTI_INVALID_ARGUMENT, "a send or receive has no algorithms to choose from");
    TRY(algorithm_for((enum family)op->family, request->algorithm, &op->algorithm));
    return comm_allows(op->comm, op->algorithm);
}
/* Takes over prepared->uneven. An error leaves the request as it was. */
static tutti_status run(struct operation *prepared, tutti_request *request)
{
    struct operation *op = prepared;
    bool grouped = !request && group_depth;
    tutti_status status = apply_options(prepared, request);
    if (status == TUTTI_OK && grouped) status = grouped_request(&request);
    if (status != TUTTI_OK) {
        free(prepared->uneven);
        return status;
    }
    if (request) {
        op = operation_of(request);
        memcpy(op, prepared, prepared->family == POINT_TO_POINT ? offsetof(struct operation, detail)
            : offsetof(struct operation, message.piece));
        op->request = request;
        request->refused = false;
    }
    return operation_run(op, !request || (request->blocking && !grouped));
}
static tutti_status check_request(const tutti_request *request)
{
    const struct operation *op = request ? (const struct operation *)(const void *)request->reserved : NULL;
    if (!op || !op->comm) return status_fail(TUTTI_INVALID_ARGUMENT, "the request was never used in a call");
    if (op->generation == process_generation()) return TUTTI_OK;
    return status_fail(TUTTI_FORKED,
        "this request was started before a fork, by the parent process; only that can wait");
}
tutti_status tutti_wait(tutti_request *request, int64_t timeout_ms)
{
    TRY(check_request(request));
    return operation_wait(operation_of(request), timeout_ms);
}
tutti_status tutti_test(tutti_request *request)
{
    TRY(check_request(request));
    return operation_test(operation_of(request));
}
tutti_status tutti_hasten(tutti_request *request)
{
    TRY(check_request(request));
    operation_hasten(operation_of(request));
    return TUTTI_OK;
}

/* ---- communicators ---- */
tutti_status tutti_get_unique_id(tutti_unique_id *out) { return random_fill(out->bytes, sizeof out->bytes); }
tutti_status tutti_comm_init(tutti_comm **out, const tutti_config *config)
{
    if (!out || !config)
        return status_fail(TUTTI_INVALID_ARGUMENT, "tutti_comm_init needs a place for the communicator and a config");
    tutti_config known;
    TRY(read_config(config, &known));
    if (known.size > 1 && (!known.store.put || !known.store.get))
        return status_fail(TUTTI_INVALID_ARGUMENT, "a group of %d ranks needs a store to find each other", known.size);
    return comm_create(&known, NULL, out);
}
tutti_status tutti_comm_init_rank(tutti_comm **out, int size, tutti_unique_id id, int rank)
{
    if (!out) return status_fail(TUTTI_INVALID_ARGUMENT, "tutti_comm_init_rank needs a place for the communicator");
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = rank;
    config.size = size;
    return comm_create(&config, &id, out);
}
tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, tutti_comm **out)
{
    TRY(check_comm(comm));
    if (!out) return status_fail(TUTTI_INVALID_ARGUMENT, "tutti_comm_split needs a place for the communicator");
    return comm_split(comm, color, key, out);
}
tutti_status tutti_comm_destroy(tutti_comm *comm)
{
    comm_destroy(comm);
    return TUTTI_OK;
}
tutti_status tutti_comm_abort(tutti_comm *comm)
{
    if (!comm || comm->group.generation != process_generation()) return check_comm(comm);
    comm_abort(comm);
    return TUTTI_OK;
}
tutti_status tutti_comm_get_async_error(tutti_comm *comm)
{
    TRY(check_comm(comm));
    return comm_poll_failure(comm);
}
int tutti_comm_count(const tutti_comm *comm) { return comm ? comm->group.size : 0; }
int tutti_comm_user_rank(const tutti_comm *comm) { return comm ? comm->group.rank : -1; }
tutti_status tutti_comm_set_timeout(tutti_comm *comm, int64_t timeout_ms)
{
    TRY(check_comm(comm));
    if (timeout_ms <= 0)
        return status_fail(TUTTI_INVALID_ARGUMENT, "a timeout of %lld ms: it must be at least 1",
            (long long)timeout_ms);
    comm->timeout_ms = timeout_ms;
    return TUTTI_OK;
}
tutti_status tutti_comm_set_algorithm(tutti_comm *comm, const char *collective, const char *algorithm)
{
    TRY(check_comm(comm));
    const struct algorithm *found;
    TRY(algorithm_by_name(collective, algorithm ? algorithm : tutti_algorithm_name(collective, 0), &found));
    TRY(comm_allows(comm, algorithm ? found : NULL));
    atomic_store(&comm->chosen[found->family], algorithm ? found : NULL);
    return TUTTI_OK;
}

/* ---- collectives ---- */
/* All that collectives and messages share; field by field, because zeroing the whole costs as much as the rest. */
static tutti_status prepare(tutti_comm *comm, int family, size_t count, size_t parts, tutti_dtype dtype, int root,
    tutti_request *request, struct operation *out)
{
    if (request) TRY(check_options(request));
    tutti_status status = check_comm(comm);
    if (request) request->refused = !comm || status == TUTTI_OK;       /* until it has started */
    TRY(status);
    out->comm = comm;
    out->family = family;
    out->count = count;
    out->dtype = dtype;
    out->root = root;
    out->generation = process_generation();
    out->request = NULL;
    out->algorithm = NULL;
    out->uneven = NULL;
    out->reduce = NULL;
    out->op = TUTTI_SUM;
    out->factor = 0;
    out->sequence = 0;
    out->message.tag = 0;
    atomic_init(&out->limit.deadline_ms, 0);
    out->limit.looked_ms = 0;
    out->limit.forgiven = false;
    atomic_init(&out->hastened, false);
    TRY(check_rank(comm, root, "root"));
    return check_dtype(dtype, count, parts, &out->part_bytes);
}
static bool overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes)
{
    uintptr_t a = (uintptr_t)one, b = (uintptr_t)other;
    return one_bytes && other_bytes && a < b + other_bytes && b < a + one_bytes;
}
static tutti_status refuse_overlap(const struct operation *op, const char *unless)
{
    return status_fail(TUTTI_INVALID_ARGUMENT, "%s on rank %d of %s: what is sent and what is received overlap in "
        "memory%s; use memory of its own for one of them", family_name((enum family)op->family), op->comm->group.rank,
        op->comm->group.name, unless);
}
/* Overlapping buffers must be in place, or ranks would read what is partly overwritten. all_to_all is never. */
static tutti_status check_in_place(const struct operation *op, const void *send, size_t sent, const void *recv,
    size_t received)
{
    uintptr_t from = (uintptr_t)send, to = (uintptr_t)recv, mine = (uintptr_t)op->comm->group.rank * op->part_bytes;
    if (op->family == ALL_TO_ALL) return refuse_overlap(op, ", and it cannot work in place");
    if (sent == received)
        return from == to ? TUTTI_OK : refuse_overlap(op, ", but not in place, which is send == recv");
    if (sent < received)
        return from == to + mine ? TUTTI_OK
            : refuse_overlap(op, ", but not in place, which is send == recv + rank * count");
    return to == from + mine ? TUTTI_OK
        : refuse_overlap(op, ", but not in place, which is recv == send + rank * count");
}
static tutti_status with_buffers(struct operation *op, const void *send, size_t send_parts, void *recv,
    size_t recv_parts, tutti_request *request)
{
    size_t sent = op->part_bytes * send_parts, received = op->part_bytes * recv_parts;
    TRY(check_buffer(send, sent, "send"));
    TRY(check_buffer(recv, received, "receive"));
    if (overlap(send, sent, recv, received)) TRY(check_in_place(op, send, sent, recv, received));
    op->input = send;
    op->output = recv;
    return run(op, request);
}
tutti_status tutti_all_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, ALLREDUCE, count, 1, dtype, 0, request, &o));
    TRY(check_op(dtype, op, &o));
    return with_buffers(&o, send, 1, recv, 1, request);
}
tutti_status tutti_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op, int root,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, REDUCE, count, 1, dtype, root, request, &o));
    TRY(check_op(dtype, op, &o));
    return with_buffers(&o, send, 1, recv, comm->group.rank == root, request);
}
tutti_status tutti_broadcast(const void *send, void *recv, size_t count, tutti_dtype dtype, int root, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, BROADCAST, count, 1, dtype, root, request, &o));
    return with_buffers(&o, send, comm->group.rank == root, recv, 1, request);
}
tutti_status tutti_all_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, ALLGATHER, send_count, comm ? (size_t)comm->group.size : 1, dtype, 0, request, &o));
    return with_buffers(&o, send, 1, recv, (size_t)comm->group.size, request);
}
tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, REDUCE_SCATTER, recv_count, comm ? (size_t)comm->group.size : 1, dtype, 0, request, &o));
    TRY(check_op(dtype, op, &o));
    return with_buffers(&o, send, (size_t)comm->group.size, recv, 1, request);
}
tutti_status tutti_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, GATHER, send_count, comm ? (size_t)comm->group.size : 1, dtype, root, request, &o));
    return with_buffers(&o, send, 1, recv, comm->group.rank == root ? (size_t)comm->group.size : 0, request);
}
tutti_status tutti_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, SCATTER, recv_count, comm ? (size_t)comm->group.size : 1, dtype, root, request, &o));
    return with_buffers(&o, send, comm->group.rank == root ? (size_t)comm->group.size : 0, recv, 1, request);
}
tutti_status tutti_barrier(tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, BARRIER, 0, 1, TUTTI_UINT8, 0, request, &o));
    TRY(check_op(TUTTI_UINT8, TUTTI_BOR, &o));          /* some algorithms add up nothing */
    return with_buffers(&o, NULL, 0, NULL, 0, request);
}
tutti_status tutti_all_to_all(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, ALL_TO_ALL, count, comm ? (size_t)comm->group.size : 1, dtype, 0, request, &o));
    return with_buffers(&o, send, (size_t)comm->group.size, recv, (size_t)comm->group.size, request);
}

/* ---- uneven ---- */
static tutti_status convert_counts(const size_t *counts, const size_t *offsets, int size, size_t bytes, size_t *lengths,
    size_t *starts, size_t *total)
{
    *total = 0;
    for (int q = 0; q < size; q++) {
        size_t end;
        if (!size_multiply(counts[q], bytes, &lengths[q]) || !size_multiply(offsets[q], bytes, &starts[q])
            || !size_add(lengths[q], starts[q], &end) || end > PTRDIFF_MAX)
            return status_fail(TUTTI_INVALID_ARGUMENT, "%zu elements at %zu for rank %d are beyond all addresses",
                counts[q], offsets[q], q);
        if (end > *total && counts[q]) *total = end;
    }
    return TUTTI_OK;
}
/* Parts may lie in one piece of memory as long as no two of them meet. */
static tutti_status check_parts_apart(const struct operation *op, const struct uneven *u, const char *send,
    size_t sent, const char *recv, size_t received)
{
    int size = overlap(send, sent, recv, received) ? op->comm->group.size : 0;
    for (int a = 0; a < size; a++)
        for (int b = 0; b < size; b++)
            if (overlap(send + u->offsets[0][a], u->lengths[0][a], recv + u->offsets[1][b], u->lengths[1][b]))
                return refuse_overlap(op, ", and it cannot work in place");
    return TUTTI_OK;
}
tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_offsets, void *recv,
    const size_t *recv_counts,
    const size_t *recv_offsets, tutti_dtype dtype, tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, ALL_TO_ALL, 0, 1, dtype, 0, request, &o));
    if (!send_counts || !send_offsets || !recv_counts || !recv_offsets)
        return status_fail(TUTTI_INVALID_ARGUMENT, "all_to_all_v needs all four arrays of counts and offsets");
    size_t size = (size_t)comm->group.size, bytes = tutti_dtype_bytes(dtype), sent, received;
    struct uneven *u = memory_zeroed(1, sizeof *u + 4 * size * sizeof(size_t));
    if (!u) return status_fail(TUTTI_NO_MEMORY, "no memory for the counts of %zu ranks", size);
    size_t *room = (size_t *)(u + 1);
    for (int i = 0; i < 2; i++) { u->lengths[i] = room + i * size; u->offsets[i] = room + (2 + i) * size; }
    tutti_status status = convert_counts(send_counts, send_offsets, (int)size, bytes, u->lengths[0], u->offsets[0],
        &sent);
    if (status == TUTTI_OK)
        status = convert_counts(recv_counts, recv_offsets, (int)size, bytes, u->lengths[1], u->offsets[1], &received);
    if (status == TUTTI_OK) status = check_buffer(send, sent, "send");
    if (status == TUTTI_OK) status = check_buffer(recv, received, "receive");
    if (status == TUTTI_OK) status = check_parts_apart(&o, u, send, sent, recv, received);
    if (status != TUTTI_OK) { free(u); return status; }
    o.part_bytes = sent / size + 1;                     /* what the choice of an algorithm goes by */
    o.input = send;
    o.output = recv;
    o.uneven = u;
    return run(&o, request);
}

/* ---- point to point ---- */
static tutti_status message(bool is_send, const void *send, void *recv, size_t count, tutti_dtype dtype, int peer,
    uint32_t tag,
    tutti_comm *comm, tutti_request *request)
{
    struct operation o;
    TRY(prepare(comm, POINT_TO_POINT, count, 1, dtype, 0, request, &o));
    if (is_send || peer != TUTTI_ANY_SOURCE) TRY(check_rank(comm, peer, "peer"));
    TRY(check_buffer(is_send ? send : recv, o.part_bytes, "message"));
    if (peer == comm->group.rank && (!request || request->blocking) && !group_depth)
        return status_fail(TUTTI_INVALID_ARGUMENT, "rank %d sends to or receives from itself in a blocking call, which "
            "would wait forever: use a request or a group", peer);
    o.input = send;
    o.output = recv;
    o.message.tag = tag;
    o.message.transfer.peer = peer;                             /* field by field, as in prepare */
    o.message.transfer.is_send = is_send;
    o.message.transfer.state = TRANSFER_IDLE;
    o.message.transfer.source = -1;
    return run(&o, request);
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

/* ---- memory ---- */
tutti_status tutti_mem_alloc(void **out, size_t bytes)
{
    if (!out) return status_fail(TUTTI_INVALID_ARGUMENT, "tutti_mem_alloc needs a place for the address");
    return arena_allocate(bytes, out);
}
tutti_status tutti_mem_free(void *memory) { return arena_free(memory); }

/* ---- introspection ---- */
const char *tutti_collective_name(int index)
{
    return index >= 0 && index < FAMILY_COUNT ? family_name((enum family)index) : NULL;
}
const char *tutti_algorithm_name(const char *collective, int index) { return algorithm_name(collective, index); }
tutti_status tutti_schedule_print(const char *collective, const char *algorithm, int ranks, int root, char *buffer,
    size_t capacity, size_t *bytes)
{
    const struct algorithm *found;
    if (!collective || !algorithm)
        return status_fail(TUTTI_INVALID_ARGUMENT, "a schedule needs the names of a collective and of an algorithm");
    TRY(algorithm_by_name(collective, algorithm, &found));
    return info_schedule(found, ranks, root, buffer, capacity, bytes);
}
tutti_status tutti_info(char *buffer, size_t capacity, size_t *bytes) { return info_json(buffer, capacity, bytes); }
