/* Streams and their threads. A thread takes the next operation, waits for a time that the seed gives, and runs it. All
   waits between streams are waits for points, so each order that the driver promises is an edge between clocks. */
#include "tests/fake_cuda/streams.h"
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/capture.h"
#include "tests/fake_cuda/order.h"
#include "tests/fake_cuda/report.h"
#include "tests/fake_cuda/settings.h"
#include "tests/support/random.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Protects the list of streams and their queues. The lock of the machine may be taken while it is held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct CUstream_st *streams;
static uint64_t next_id = 1;
static _Thread_local CUstream thread_streams[DEVICES_MOST];
enum { WAIT_US = 1000 };

/* ---- clocks of streams and hosts ---- */
void hosts_see(const struct clock *clock)
{
    machine_lock();
    clock_merge(&machine->hosts, clock);
    machine_unlock();
}
void stream_see(CUstream stream, const struct clock *clock)
{
    machine_lock();
    clock_merge(&stream->clock, clock);
    machine_unlock();
}
void operation_next_epoch(struct operation *operation)
{
    CUstream stream = operation->stream;
    machine_lock();
    operation->epoch = stream->clock.seen[stream->lane] = ++machine->lanes[stream->lane].epoch;
    machine_unlock();
}
static void operation_begin(struct operation *operation)
{
    CUstream stream = operation->stream;
    machine_lock();
    if (!stream->has_lane) stream->lane = lane_take();
    stream->has_lane = true;
    operation->epoch = ++machine->lanes[stream->lane].epoch;
    clock_merge(&stream->clock, &operation->known);
    stream->clock.seen[stream->lane] = operation->epoch;
    machine_unlock();
    accesses_begin(operation);
}

/* ---- a stream's thread ---- */
/* Shuffled delays are short or long, by powers of two, so that streams overtake each other in many ways. */
static unsigned delay_draw(CUstream stream)
{
    unsigned most = settings()->delay_us;
    if (settings()->delay == DELAY_NONE || !most) return 0;
    uint64_t drawn = random_next(&stream->random);
    if (settings()->delay == DELAY_EVERY) return (unsigned)(drawn % most);
    return drawn & 1 ? most >> (drawn >> 1) % 12 : 0;
}
static void operation_run(struct operation *operation)
{
    unsigned delay_us = operation->kind == OPERATION_WORK ? delay_draw(operation->stream) : 0;
    if (delay_us) usleep(delay_us);
    operation_begin(operation);
    operation->run(operation);
    accesses_end(operation);
    if (operation->finish) operation->finish(operation);
    free(operation);
}
static void stream_free(CUstream stream)
{
    machine_lock();
    if (stream->has_lane) lane_release(stream->lane);
    machine_unlock();
    pthread_cond_destroy(&stream->queued);
    free(stream);
}
static void *stream_serve(void *argument)
{
    CUstream stream = argument;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!stream->first && !stream->is_destroyed) pthread_cond_wait(&stream->queued, &lock);
        struct operation *operation = stream->first;
        if (!operation) break;
        stream->first = operation->next;
        if (!stream->first) stream->last = &stream->first;
        pthread_mutex_unlock(&lock);
        bool counts = operation->kind != OPERATION_RECORD;
        operation_run(operation);
        pthread_mutex_lock(&lock);
        stream->ended += counts;
    }
    pthread_mutex_unlock(&lock);
    stream_free(stream);
    return NULL;
}
/* Appends an operation; the caller holds the lock. */
static void queue_append(CUstream stream, struct operation *operation)
{
    operation->stream = stream;
    *stream->last = operation;
    stream->last = &operation->next;
    stream->enqueued += operation->kind != OPERATION_RECORD;
    stream->work += operation->kind == OPERATION_WORK;
    if (!stream->has_thread) {
        stream->has_thread = pthread_create(&stream->thread, NULL, stream_serve, stream) == 0;
        if (!stream->has_thread) abort();
        pthread_detach(stream->thread);
    }
    pthread_cond_signal(&stream->queued);
}

/* ---- points ---- */
struct point_operation {
    struct operation base;
    uint32_t point;
};
static void point_run_record(struct operation *operation)
{
    struct point *point = &machine->points[((struct point_operation *)operation)->point];
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    machine_lock();
    point->clock = operation->stream->clock;
    point->time_ns = now.tv_sec * 1000000000 + now.tv_nsec;
    __atomic_store_n(&point->done, 1, __ATOMIC_RELEASE);
    machine_unlock();
    machine_notify();
}
static bool point_done(uint32_t point) { return __atomic_load_n(&machine->points[point].done, __ATOMIC_ACQUIRE); }
static void point_await(uint32_t point)
{
    for (uint32_t seen = machine_changes(); !point_done(point); seen = machine_changes()) machine_wait(seen, WAIT_US);
}
static void point_run_wait(struct operation *operation)
{
    uint32_t point = ((struct point_operation *)operation)->point;
    point_await(point);
    stream_see(operation->stream, &machine->points[point].clock);
}
static void point_finish(struct operation *operation)
{
    machine_lock();
    point_drop(((struct point_operation *)operation)->point);
    machine_unlock();
}
static struct operation *point_operation(uint32_t point, enum operation_kind kind)
{
    bool records = kind == OPERATION_RECORD;
    struct point_operation *operation = operation_create(sizeof *operation, records ? point_run_record : point_run_wait,
        records ? "cuEventRecord" : "cuStreamWaitEvent");
    operation->base.finish = point_finish;
    operation->base.kind = kind;
    operation->point = point;
    return &operation->base;
}
static uint32_t queue_record(CUstream stream)
{
    machine_lock();
    uint32_t point = point_create();
    point_hold(point);
    machine_unlock();
    queue_append(stream, point_operation(point, OPERATION_RECORD));
    return point;
}
static void queue_await(CUstream stream, uint32_t point)
{
    queue_append(stream, point_operation(point, OPERATION_JOIN));
}
bool point_is_done(uint32_t point)
{
    if (!point_done(point)) return false;
    hosts_see(&machine->points[point].clock);
    return true;
}
void point_wait(uint32_t point)
{
    point_await(point);
    hosts_see(&machine->points[point].clock);
}

/* ---- the legacy stream ---- */
static bool stream_is_legacy(CUstream stream) { return stream == stream->context->legacy; }
static bool stream_blocks(CUstream stream)
{
    return !stream_is_legacy(stream) && !(stream->flags & CU_STREAM_NON_BLOCKING);
}
/* Makes the end of the queue wait for the work before it that the legacy stream orders: the legacy stream waits for all
   blocking streams, and these wait for the legacy stream. */
static void queue_join(CUstream stream)
{
    CUstream legacy = stream->context->legacy;
    if (stream_blocks(stream) && legacy && stream->awaits_legacy != legacy->work) {
        stream->awaits_legacy = legacy->work;
        queue_await(stream, queue_record(legacy));
    }
    for (CUstream other = stream_is_legacy(stream) ? streams : NULL; other; other = other->next) {
        if (other->context != stream->context || !stream_blocks(other) || other->legacy_awaits == other->work) continue;
        other->legacy_awaits = other->work;
        queue_await(stream, queue_record(other));
    }
}

/* ---- operations ---- */
void *operation_create(size_t bytes, void (*run)(struct operation *operation), const char *call)
{
    struct operation *operation = calloc(1, bytes);
    if (!operation) abort();
    operation->run = run;
    operation->call = call;
    call_stack_take(&operation->stack);
    machine_lock();
    operation->known = machine->hosts;
    machine_unlock();
    return operation;
}
void stream_enqueue(CUstream stream, struct operation *operation)
{
    if (capture_add(stream, operation)) return;
    pthread_mutex_lock(&lock);
    queue_join(stream);
    queue_append(stream, operation);
    pthread_mutex_unlock(&lock);
}
uint32_t stream_record(CUstream stream)
{
    pthread_mutex_lock(&lock);
    queue_join(stream);
    uint32_t point = queue_record(stream);
    pthread_mutex_unlock(&lock);
    return point;
}
void stream_await(CUstream stream, uint32_t point) { stream_enqueue(stream, point_operation(point, OPERATION_WORK)); }
void stream_wait(CUstream stream)
{
    uint32_t point = stream_record(stream);
    point_wait(point);
    machine_lock();
    point_drop(point);
    machine_unlock();
}
void stream_run(CUstream stream, struct operation *operation)
{
    stream_enqueue(stream, operation);
    stream_wait(stream);
}
/* Records a point in each stream before it waits for the first. */
void streams_wait(CUcontext context)
{
    uint32_t points[LANES];
    int count = 0;
    pthread_mutex_lock(&lock);
    for (CUstream stream = streams; stream; stream = stream->next) {
        if (!stream->enqueued || (context && stream->context != context)) continue;
        if (count == LANES) machine_full("streams with operations", LANES);
        points[count++] = queue_record(stream);
    }
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < count; i++) point_wait(points[i]);
    machine_lock();
    for (int i = 0; i < count; i++) point_drop(points[i]);
    machine_unlock();
}
void streams_wait_all(void) { streams_wait(NULL); }

/* ---- creation ---- */
static CUresult stream_create(CUcontext context, unsigned flags, int priority, CUstream *out)
{
    CUstream stream = calloc(1, sizeof *stream);
    if (!stream) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->context = context;
    stream->flags = flags;
    stream->priority = priority < PRIORITY_GREATEST ? PRIORITY_GREATEST
        : priority > PRIORITY_LEAST                 ? PRIORITY_LEAST
                                                    : priority;
    stream->last = &stream->first;
    stream->id = next_id++;
    stream->random = settings()->seed * 1000003 + stream->id + (uint64_t)getpid() * 7919;
    pthread_cond_init(&stream->queued, NULL);
    stream->next = streams;
    streams = stream;
    *out = stream;
    return CUDA_SUCCESS;
}
CUresult stream_find(CUstream handle, CUstream *out)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    pthread_mutex_lock(&lock);
    CUstream *special = !handle || handle == CU_STREAM_LEGACY ? &context->legacy : &thread_streams[context->device];
    if (handle && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        for (*out = streams; *out && *out != handle;) *out = (*out)->next;
        if (!*out) result = CUDA_ERROR_INVALID_HANDLE;
    } else {
        if (!*special) result = stream_create(context, CU_STREAM_DEFAULT, PRIORITY_LEAST, special);
        *out = *special;
    }
    pthread_mutex_unlock(&lock);
    if (!result) result = context_error((*out)->context);
    return result ? result : capture_refuse_legacy(*out);
}
CUresult fake_cuStreamCreateWithPriority(CUstream *out, unsigned flags, int priority)
{
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    if (!out || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&lock);
    result = stream_create(context, flags, priority, out);
    pthread_mutex_unlock(&lock);
    return result;
}
CUresult fake_cuStreamCreate(CUstream *out, unsigned flags)
{
    return fake_cuStreamCreateWithPriority(out, flags, PRIORITY_LEAST);
}
/* Removes a stream from the list; its thread ends after the operations. The caller holds the lock. */
static void stream_destroy(CUstream stream)
{
    CUstream *at = &streams;
    while (*at != stream) at = &(*at)->next;
    *at = stream->next;
    stream->is_destroyed = true;
    pthread_cond_signal(&stream->queued);
    if (!stream->has_thread) stream_free(stream);
}
CUresult fake_cuStreamDestroy_v2(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (stream != handle) return CUDA_ERROR_INVALID_HANDLE;
    result = capture_refuse(stream);
    if (result) return result;
    pthread_mutex_lock(&lock);
    stream_destroy(stream);
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
void streams_destroy(CUcontext context)
{
    streams_wait(context);
    pthread_mutex_lock(&lock);
    for (CUstream stream = streams, next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context) stream_destroy(stream);
    }
    context->legacy = thread_streams[context->device] = NULL;
    pthread_mutex_unlock(&lock);
}

/* ---- queries ---- */
CUresult fake_cuStreamQuery(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (!result) result = capture_refuse(stream);
    if (result) return result;
    pthread_mutex_lock(&lock);
    queue_join(stream);
    bool idle = stream->ended == stream->enqueued;
    if (idle) hosts_see(&stream->clock);
    pthread_mutex_unlock(&lock);
    return idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult fake_cuStreamSynchronize(CUstream handle)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (!result) result = capture_refuse(stream);
    if (result) return result;
    stream_wait(stream);
    return context_error(stream->context);
}
