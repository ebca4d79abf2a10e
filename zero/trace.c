/* The events fill an array once. Later events only count as missed. */
#include "zero/trace.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <sched.h>
#include <stdlib.h>
#include <string.h>

void trace_init(struct trace *trace)
{
    *trace = (struct trace){ .room = 0 };
    pthread_mutex_init(&trace->lock, NULL);
}
void trace_finish(struct trace *trace)
{
    pthread_mutex_destroy(&trace->lock);
    free(trace->event);
}
tutti_status trace_open(struct trace *trace, size_t events)
{
    tutti_zero_event *fresh = events ? memory_alloc_zeroed(events, sizeof *fresh) : NULL;
    if (events && !fresh) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %zu events", events);
    pthread_mutex_lock(&trace->lock);
    if (events) {
        free(trace->event);
        trace->event = fresh;
        trace->room = events;
        trace->count = trace->missed = 0;
    }
    trace->open = events > 0;
    pthread_mutex_unlock(&trace->lock);
    return TUTTI_OK;
}
size_t trace_read(struct trace *trace, tutti_zero_event *out, size_t capacity, size_t *missed)
{
    pthread_mutex_lock(&trace->lock);
    size_t count = trace->count, copied = count < capacity ? count : capacity;
    if (copied) memcpy(out, trace->event, copied * sizeof *out);
    *missed = trace->missed;
    pthread_mutex_unlock(&trace->lock);
    return count;
}
int64_t trace_now(struct trace *trace)
{
    return atomic_load_explicit(&trace->open, memory_order_relaxed) ? clock_ns() : 0;
}
/* Appends the event if the trace is open and has room, or counts it as missed. */
static void trace_add_event(struct trace *trace, const tutti_zero_event *event)
{
    pthread_mutex_lock(&trace->lock);
    if (trace->open && trace->count < trace->room) trace->event[trace->count++] = *event;
    else trace->missed += trace->open;
    pthread_mutex_unlock(&trace->lock);
}
void trace_record(struct trace *trace, tutti_zero_event_kind kind, int unit, int64_t began_ns, uint64_t bytes)
{
    if (began_ns) trace_add_event(trace, &(tutti_zero_event){ kind, unit, began_ns, clock_ns(), bytes });
}
void trace_interval_begin(struct trace_interval *interval, struct trace *trace, tutti_zero_event_kind kind, int unit,
    uint64_t bytes)
{
    *interval = (struct trace_interval){ trace, { kind, unit, trace_now(trace), 0, bytes }, false };
}
/* Ends the interval when its request is over, on the thread that completes the request. */
static void trace_interval_on_request_done(tutti_request *request, void *context)
{
    struct trace_interval *interval = context;
    (void)request;
    trace_interval_end(interval);
    interval->followed = false;
}
void trace_interval_follow_request(struct trace_interval *interval, tutti_request *request)
{
    if (!interval->event.began_ns) return;
    request->done = trace_interval_on_request_done;
    request->context = interval;
    interval->followed = true;
}
void trace_interval_await_end(struct trace_interval *interval)
{
    while (interval->followed) sched_yield();
}
void trace_interval_end(struct trace_interval *interval)
{
    if (!interval->event.began_ns) return;
    interval->event.ended_ns = clock_ns();
    trace_add_event(interval->trace, &interval->event);
}
