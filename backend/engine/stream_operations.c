/* A call chooses its algorithm and its tiles from what all ranks know alike. A message that exceeds what the slots and
   the driver's queue take in one operation becomes several, which follow each other without another call between them,
   because the call keeps the lock. */
#include "backend/engine/stream_operations.h"
#include "backend/base/clock.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "backend/engine/stream_thread.h"
#include "backend/streams/enqueue.h"
#include <string.h>
#include <time.h>

/* one_shot moves (ranks - 1) messages into each rank, and two_shot 2, but one_shot takes two calls of the driver less,
   about 8 us. In this time a link of 200 GB/s moves 1.6 MB. The bound leaves room for slower links. */
enum { ONE_SHOT_BYTES = 1 << 20 };
/* The bytes of a tile unless TUTTI_TILE_BYTES is set, their least value, and the slots unless TUTTI_SLOTS is set. */
enum { STREAM_TILE_BYTES = 4 << 20, STREAM_LEAST_TILE = 4096, STREAM_TILE_SLOTS = 2 };
/* How long a call sleeps before it tries again, while the device has too much work. */
enum { ROOM_PAUSE_NS = 100000 };

/* ---- choosing ---- */
/* Returns the algorithm that this communicator uses on streams for all messages of a size. */
static const struct algorithm *stream_algorithm_for_size(enum collective collective, size_t bytes, int ranks)
{
    bool one_shot = ranks <= 2 || bytes <= ONE_SHOT_BYTES / (size_t)ranks;
    const char *name = collective != ALLREDUCE ? "read" : one_shot ? "one_shot" : "two_shot";
    return collectives_find_algorithm(collective, name);
}
/* The algorithm of the call counts, then that of the communicator, if it has no messages and the parts are even. */
static const struct algorithm *operation_choose_algorithm(const struct operation *op, int ranks)
{
    const struct algorithm *chosen = atomic_load_explicit(&op->comm->chosen[op->collective], memory_order_relaxed);
    const struct algorithm *wanted = op->algorithm ? op->algorithm : chosen;
    /* Uneven parts need steps that each have a chunk of the rank's own tensors. */
    if (wanted && wanted->host_memory && !op->uneven) return wanted;
    return stream_algorithm_for_size((enum collective)op->collective, operation_message_bytes(op->comm, op), ranks);
}
/* Finds the plan of an operation. The tensors of all ranks count as private and in place. */
static tutti_status operation_find_plan(struct stream_comm *streams, const struct operation *op,
    const struct plan **out)
{
    const struct group *group = &op->comm->group;
    int64_t slots = settings_get()->slots;
    struct plan key = {
        .algorithm = op->algorithm,
        .layout = group->layout,
        .root = op->root,
        .one_host = true,
        .host = group->host,
        .slots = slots >= 1 && slots <= STREAM_SLOTS ? (int)slots : STREAM_TILE_SLOTS,
        .in_place = op->collective == ALL_TO_ALL ? NULL : mask_all,
        .stage_inputs = collective_is_reduction((enum collective)op->collective) && op->op == TUTTI_PREMUL_SUM,
        .one_rank = true,
        .rank = group->rank,
    };
    return plan_cache_get(streams->plans, &key, out);
}
/* Returns the bytes of a part, or if they are uneven, of the longest part that this rank knows. */
static size_t operation_longest_part(const struct operation *op)
{
    const struct uneven *uneven = op->uneven;
    size_t longest = 0;
    if (!uneven) return op->part_bytes;
    for (int q = 0; q < op->comm->group.size; q++)
        longest = size_larger(longest, size_larger(uneven->lengths[INPUT][q], uneven->lengths[OUTPUT][q]));
    return longest;
}
/* Describes the operation to the site. */
static struct stream_operation operation_describe_to_site(const struct operation *op, const struct plan *plan)
{
    int64_t tile = settings_get()->tile_bytes;
    struct stream_operation made = {
        .plan = plan,
        .input = (CUdeviceptr)(uintptr_t)op->input,
        .output = (CUdeviceptr)(uintptr_t)op->output,
        .part_bytes = operation_longest_part(op),
        .tile_bytes = tile > 0 ? size_larger((size_t)tile, STREAM_LEAST_TILE) : STREAM_TILE_BYTES,
        .dtype = op->dtype,
        .op = op->op,
        .part_stride = op->part_bytes,
        .uneven = op->uneven,
        .deadline_ms = atomic_load(&op->limit.deadline_ms),
    };
    if (op->op == TUTTI_PREMUL_SUM) memcpy(&made.factor, &op->bits, sizeof made.factor);
    else made.label = op->bits;
    return made;
}

/* ---- enqueueing ---- */
/* Returns OK, or why the communicator accepts no operations on streams. */
static tutti_status stream_comm_check_open(struct stream_comm *streams, tutti_comm *comm)
{
    TRY(comm_get_failure(comm));
    if (stream_comm_has_failed(streams)) return status_repeat(streams->failure.status, streams->failure.detail);
    if (atomic_load(&streams->state) == STREAMS_OPEN) return TUTTI_OK;
    return status_refuse(TUTTI_ABORTED, "this communicator (%s, rank %d) was destroyed; make a new one",
        comm->group.name, comm->group.rank);
}
/* Fails because the device had no room in time for an operation of the site, or for the rest of one. */
static tutti_status operation_fail_without_room(const struct stream_comm *streams, const struct operation *op)
{
    char absent[128];
    stream_comm_list_absent_ranks(streams, atomic_load(&streams->site->enqueued), absent, sizeof absent);
    return status_fail(TUTTI_TIMEOUT,
        "rank %d of %s waited %lld ms, but got no room for more work of an operation on a stream: %s%s%s",
        op->comm->group.rank, op->comm->group.name, (long long)atomic_load(&op->limit.timeout_ms),
        absent[0] ? "calls have not been made by rank " : "its streams have too much work", absent,
        absent[0] ? ", which may wait for this rank elsewhere" : "");
}
/* Enqueues one operation of the site. While the device has too much work, it waits until the deadline of the call. */
static tutti_status operation_enqueue_in_time(struct stream_comm *streams, struct operation *op,
    const struct stream_operation *part, CUstream stream)
{
    tutti_status status;
    for (;;) {
        status = stream_site_enqueue_operation(streams->site, part, stream, &op->sequence);
        bool is_late = clock_ms() >= part->deadline_ms;
        if (status == TUTTI_TIMEOUT && is_late) return operation_fail_without_room(streams, op);
        if (status != TUTTI_IN_PROGRESS) return status;
        TRY(stream_comm_check_open(streams, op->comm));
        if (is_late) return operation_fail_without_room(streams, op);
        nanosleep(&(struct timespec){ 0, ROOM_PAUSE_NS }, NULL);
    }
}
/* Makes an error count as a failure although the call that caused it was refused. */
static tutti_status status_unmark_refusal(tutti_status status)
{
    char detail[STATUS_DETAIL_BYTES];
    strcpy(detail, status_detail());
    return status_repeat(status, detail);
}
/* Enqueues the message in operations of at most `most` bytes of each part. */
static tutti_status operation_enqueue_parts(struct stream_comm *streams, struct operation *op,
    const struct stream_operation *whole, size_t most, CUstream stream)
{
    struct stream_operation part = *whole;
    size_t at = 0;
    do {
        part.input = whole->input + at;
        part.output = whole->output + at;
        part.part_bytes = size_smaller(most, whole->part_bytes - at);
        tutti_status status = operation_enqueue_in_time(streams, op, &part, stream);
        /* After the first part the other ranks wait for the rest. */
        if (status != TUTTI_OK) return at ? status_unmark_refusal(status) : status;
        at += part.part_bytes;
    } while (at < whole->part_bytes);
    return TUTTI_OK;
}
/* Plans and enqueues the operation. The caller holds the lock of the calls. */
static tutti_status operation_plan_and_enqueue(struct stream_comm *streams, struct operation *op, CUstream stream)
{
    const struct plan *plan;
    TRY(stream_comm_check_open(streams, op->comm));
    op->algorithm = operation_choose_algorithm(op, streams->ranks);
    TRY(status_mark_refusal(operation_find_plan(streams, op, &plan)));
    struct stream_operation whole = operation_describe_to_site(op, plan);
    bool is_cut = !plan->has_messages && !op->uneven;
    size_t most = is_cut ? stream_cut_find_most_bytes(streams->site, &whole) : 0;
    /* If no part fits, the site refuses the whole with the reason. Uneven parts are not cut here, because ranks that do
       not know all lengths would make different numbers of operations. */
    return operation_enqueue_parts(streams, op, &whole, most ? most : whole.part_bytes, stream);
}
/* Hands an operation over to the stream thread. It may end at once, so the caller no longer uses it. */
static void operation_add_to_open(struct stream_comm *streams, const struct operation *enqueued, struct operation *out)
{
    memcpy(out, enqueued, offsetof(struct operation, message));
    atomic_store_explicit(&out->state, OPERATION_ON_STREAM, memory_order_relaxed);
    if (out->queued.queue) queue_add_operation(out);
    stream_comm_append_operation(streams, out);
    stream_thread_wake();
}
/* Records why a call has failed. If it has only found a failure, the stream thread records the cause. Returns what is
   recorded, as this thread's last error. */
static tutti_status stream_comm_record_call_failure(struct stream_comm *streams, tutti_status status)
{
    int64_t limit_ms = clock_ms() + RELEASE_MS;
    char detail[STATUS_DETAIL_BYTES];
    strcpy(detail, status_detail());
    stream_thread_wake();
    while (streams->site->found_failure && !stream_comm_has_failed(streams) && !comm_has_failed(streams->comm)
        && clock_ms() < limit_ms)
        nanosleep(&(struct timespec){ 0, ROOM_PAUSE_NS }, NULL);
    stream_comm_fail(streams, status, "%s", detail);
    return status_repeat(streams->failure.status, streams->failure.detail);
}
/* Fails the communicator because a call has failed, or lets the stream thread do that if another thread drives. Another
   rank may have found the cause before; then its text counts. */
static tutti_status comm_fail_after_call(tutti_comm *comm, tutti_status status)
{
    char detail[STATUS_DETAIL_BYTES];
    strcpy(detail, status_detail());
    stream_thread_wake();
    if (driver_try_acquire(comm)) {
        driver_fail_if_due(comm);
        driver_hand_over_role(comm);
    }
    return comm_has_failed(comm) ? comm_get_failure(comm) : status_repeat(status, detail);
}
tutti_status stream_operation_run(const struct operation *prepared, void *stream, struct operation *out)
{
    tutti_comm *comm = prepared->comm;
    struct operation op;
    struct stream_comm *streams = atomic_load(&comm->streams);
    if (!streams)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "%s is not open for operations on CUDA streams: all ranks must call tutti_comm_open_cuda first",
            comm->group.name);
    memcpy(&op, prepared, offsetof(struct operation, message));
    atomic_store(&op.limit.deadline_ms, clock_deadline(atomic_load(&op.limit.timeout_ms)));
    pthread_mutex_lock(&streams->call_lock);
    atomic_store(&streams->has_call, true);
    tutti_status status = operation_plan_and_enqueue(streams, &op, (CUstream)stream);
    /* The counts stay with the caller. */
    if (op.uneven) op.count = UNEVEN_COUNT;
    op.uneven = NULL;
    if (status == TUTTI_OK) operation_add_to_open(streams, &op, out);
    bool fails = status != TUTTI_OK && !status_is_refusal();
    if (fails) status = stream_comm_record_call_failure(streams, status);
    atomic_store(&streams->has_call, false);
    pthread_mutex_unlock(&streams->call_lock);
    return fails ? comm_fail_after_call(comm, status) : status;
}
