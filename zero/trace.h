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
    size_t room, count, missed;
};
/* A span lasts from the start of an operation to its end, on any thread. */
struct trace_span { struct trace *trace; tutti_zero_event event; _Atomic bool followed; };
void trace_init(struct trace *trace);
void trace_finish(struct trace *trace);
/* Opens an empty trace with room for `events`. 0 closes it. */
tutti_status trace_open(struct trace *trace, size_t events);
size_t trace_read(struct trace *trace, tutti_zero_event *out, size_t capacity, size_t *missed);
/* Returns the time, or 0 while no trace is open. */
int64_t trace_now(struct trace *trace);
/* Records an event that ends now. With began_ns 0 the trace was closed then, and the event is not recorded. */
void trace_record(struct trace *trace, tutti_zero_event_kind kind, int unit, int64_t began_ns, uint64_t bytes);
/* Starts the span of an operation that is about to start. The caller ends it with trace_span_end, or
   trace_span_follow_request makes the request do so. */
void trace_span_begin(struct trace_span *span, struct trace *trace, tutti_zero_event_kind kind, int unit,
    uint64_t bytes);
void trace_span_follow_request(struct trace_span *span, tutti_request *request);
void trace_span_end(struct trace_span *span);
/* Waits until a request that is over has ended its span, so that the span may be used again. */
void trace_span_await_end(struct trace_span *span);
