/* Records events with their times while a trace is open. Any thread may record. */
#pragma once
#include "include/tutti_zero.h"
#include <pthread.h>
#include <stdatomic.h>

struct trace {
    /* The lock guards all fields after `open`. */
    pthread_mutex_t lock;
    _Atomic bool open;
    tutti_zero_event *event;                            /* [room], owned */
    /* `count` events are in the array; `missed` more came when it was full. */
    size_t room, count, missed;
};
/* An interval is the event of one operation, from its start to its end on any thread. `followed`: the end of a request
   will end the interval. */
struct trace_interval { struct trace *trace; tutti_zero_event event; _Atomic bool followed; };
void trace_init(struct trace *trace);
void trace_finish(struct trace *trace);
/* Opens an empty trace with room for `events` events. 0 closes it; the recorded events stay readable. */
tutti_status trace_open(struct trace *trace, size_t events);
/* Copies the first `capacity` recorded events to `out`, and returns how many are recorded. *missed gets how many events
   came when the trace was full. */
size_t trace_read(struct trace *trace, tutti_zero_event *out, size_t capacity, size_t *missed);
/* Returns the time in nanoseconds, or 0 while the trace is closed. */
int64_t trace_now(struct trace *trace);
/* Records an event that began at began_ns and ends now. With began_ns 0 (the trace was closed at its start) it does
   nothing. */
void trace_record(struct trace *trace, tutti_zero_event_kind kind, int unit, int64_t began_ns, uint64_t bytes);
/* Starts the interval of an operation that is about to start. The caller ends it with trace_interval_end, or calls
   trace_interval_follow_request, and the end of the request ends it. */
void trace_interval_begin(struct trace_interval *interval, struct trace *trace, tutti_zero_event_kind kind, int unit,
    uint64_t bytes);
/* Makes the end of `request` end the interval. It sets request->done and request->context. */
void trace_interval_follow_request(struct trace_interval *interval, tutti_request *request);
/* Ends the interval and records its event. */
void trace_interval_end(struct trace_interval *interval);
/* Waits until the followed request, which must be over, has ended the interval. Then the interval may be used again. */
void trace_interval_await_end(struct trace_interval *interval);
