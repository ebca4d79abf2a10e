/* Events, also those that several processes share. An event is a slot of the machine with the last recorded point. */
#include "tests/fake_cuda/capture.h"
#include "tests/fake_cuda/settings.h"
#include "tests/fake_cuda/streams.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const uint32_t event_magic = 0x46434556;
struct CUevent_st {
    struct CUevent_st *next;
    CUcontext context;
    unsigned flags;
    uint32_t slot;
    /* The event's last record, if that was a capture's. */
    struct mark mark;
};
struct event_handle {
    uint32_t magic, slot, flags;
    int32_t owner;
    uint64_t key;
    char padding[40];
};
_Static_assert(sizeof(struct event_handle) == CU_IPC_HANDLE_SIZE, "a handle has 64 bytes");
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUevent events;

static uint32_t slot_create(void)
{
    for (uint32_t slot = 1; slot < EVENTS; slot++) {
        struct event_slot *event = &machine->events[slot];
        if (event->references) continue;
        *event = (struct event_slot){ 1, 0, ++machine->next_key };
        return slot;
    }
    machine_full("events", EVENTS);
}
static void slot_drop(uint32_t slot)
{
    struct event_slot *event = &machine->events[slot];
    if (--event->references) return;
    point_drop(event->point);
    event->point = 0;
}
/* Returns the last point of an event with a reference, or 0. */
static uint32_t event_point(CUevent event)
{
    machine_lock();
    uint32_t point = machine->events[event->slot].point;
    if (point) point_hold(point);
    machine_unlock();
    return point;
}
static void point_release(uint32_t point)
{
    machine_lock();
    point_drop(point);
    machine_unlock();
}
static CUresult event_add(CUcontext context, unsigned flags, uint32_t slot, CUevent *out)
{
    CUevent event = calloc(1, sizeof *event);
    if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
    event->context = context;
    event->flags = flags;
    event->slot = slot;
    pthread_mutex_lock(&lock);
    event->next = events;
    events = *out = event;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}
static bool event_exists(CUevent event)
{
    pthread_mutex_lock(&lock);
    CUevent at = events;
    while (at && at != event) at = at->next;
    pthread_mutex_unlock(&lock);
    return at;
}

CUresult fake_cuEventCreate(CUevent *out, unsigned flags)
{
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    bool shared = flags & CU_EVENT_INTERPROCESS, timed = !(flags & CU_EVENT_DISABLE_TIMING);
    if (!out || (flags & ~known) || (shared && timed)) return CUDA_ERROR_INVALID_VALUE;
    machine_lock();
    uint32_t slot = slot_create();
    machine_unlock();
    return event_add(context, flags, slot, out);
}
/* Operations that wait for the event keep its point. */
CUresult fake_cuEventDestroy_v2(CUevent event)
{
    if (!event_exists(event)) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    CUevent *at = &events;
    while (*at != event) at = &(*at)->next;
    *at = event->next;
    pthread_mutex_unlock(&lock);
    machine_lock();
    slot_drop(event->slot);
    machine_unlock();
    free(event);
    return CUDA_SUCCESS;
}
CUresult fake_cuEventRecord(CUevent event, CUstream handle)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (!event_exists(event) || event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
    if (capture_record(stream, &event->mark)) return CUDA_SUCCESS;
    event->mark.capture = 0;
    uint32_t point = stream_record(stream);
    machine_lock();
    struct event_slot *slot = &machine->events[event->slot];
    point_drop(slot->point);
    slot->point = point;
    machine_unlock();
    return CUDA_SUCCESS;
}
CUresult fake_cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags)
{
    return flags ? CUDA_ERROR_INVALID_VALUE : fake_cuEventRecord(event, stream);
}
/* An event that was never recorded is done. */
CUresult fake_cuEventQuery(CUevent event)
{
    if (!event_exists(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->mark.capture) return CUDA_ERROR_CAPTURED_EVENT;
    if (context_error(event->context)) return context_error(event->context);
    uint32_t point = event_point(event);
    bool done = !point || point_is_done(point);
    point_release(point);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult fake_cuEventSynchronize(CUevent event)
{
    if (!event_exists(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->mark.capture) return CUDA_ERROR_CAPTURED_EVENT;
    uint32_t point = event_point(event);
    if (point) point_wait(point);
    point_release(point);
    return context_error(event->context);
}
/* The wait is for the last record before this call, also if another one follows. */
CUresult fake_cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!event_exists(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (stream_captures(stream) || event->mark.capture) return capture_wait(stream, event->mark);
    uint32_t point = event_point(event);
    if (point) stream_await(stream, point);
    return CUDA_SUCCESS;
}
static CUresult elapsed_ms(uint32_t begin, uint32_t end, float *out)
{
    if (!begin || !end) return CUDA_ERROR_INVALID_HANDLE;
    if (!point_is_done(begin) || !point_is_done(end)) return CUDA_ERROR_NOT_READY;
    *out = (float)(machine->points[end].time_ns - machine->points[begin].time_ns) / 1e6f;
    return CUDA_SUCCESS;
}
CUresult fake_cuEventElapsedTime_v2(float *out, CUevent begin, CUevent end)
{
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!event_exists(begin) || !event_exists(end)) return CUDA_ERROR_INVALID_HANDLE;
    if ((begin->flags | end->flags) & CU_EVENT_DISABLE_TIMING) return CUDA_ERROR_INVALID_HANDLE;
    uint32_t first = event_point(begin), last = event_point(end);
    CUresult result = elapsed_ms(first, last, out);
    point_release(first);
    point_release(last);
    return result;
}
CUresult fake_cuEventElapsedTime(float *out, CUevent begin, CUevent end)
{
    return fake_cuEventElapsedTime_v2(out, begin, end);
}

CUresult fake_cuIpcGetEventHandle(CUipcEventHandle *out, CUevent event)
{
    if (!settings()->ipc) return CUDA_ERROR_NOT_SUPPORTED;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!event_exists(event) || !(event->flags & CU_EVENT_INTERPROCESS)) return CUDA_ERROR_INVALID_HANDLE;
    struct event_handle handle = { event_magic, event->slot, event->flags, getpid(), 0, { 0 } };
    machine_lock();
    handle.key = machine->events[event->slot].key;
    machine_unlock();
    memcpy(out, &handle, sizeof handle);
    return CUDA_SUCCESS;
}
/* Processes of another machine (FAKE_CUDA_MACHINE) have no such slot. */
CUresult fake_cuIpcOpenEventHandle(CUevent *out, CUipcEventHandle bytes)
{
    struct event_handle handle;
    CUcontext context;
    CUresult result = context_current(&context);
    if (result) return result;
    memcpy(&handle, &bytes, sizeof handle);
    if (!settings()->ipc) return CUDA_ERROR_NOT_SUPPORTED;
    if (!out || handle.magic != event_magic || handle.slot >= EVENTS) return CUDA_ERROR_INVALID_VALUE;
    if (handle.owner == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    machine_lock();
    struct event_slot *slot = &machine->events[handle.slot];
    bool exists = slot->references && slot->key == handle.key;
    slot->references += exists;
    machine_unlock();
    return exists ? event_add(context, handle.flags, handle.slot, out) : CUDA_ERROR_INVALID_VALUE;
}
