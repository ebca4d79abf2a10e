/* Records events with their times while a trace is open. Any thread may record. */
#pragma once
#include "include/tutti_zero.h"
#include <pthread.h>
#include <stdatomic.h>

struct trace {
    pthread_mutex_t lock;
    _Atomic bool open;
    tutti_zero_event *event;                            /* under the lock, from here on */
    size_t room, count, missed;
};
/* From the start of an operation to its end, on whichever thread that is. */
struct trace_span { struct trace *trace; tutti_zero_event event; _Atomic bool followed; };
void trace_init(struct trace *trace);
void trace_finish(struct trace *trace);
tutti_status trace_open(struct trace *trace, size_t events);     /* empty, for so many; 0: closed */
size_t trace_read(struct trace *trace, tutti_zero_event *out, size_t capacity, size_t *missed);
int64_t trace_now(struct trace *trace);           /* 0: no trace is open */
/* began_ns 0: no trace was open then, and the event is not recorded. */
void trace_record(struct trace *trace, tutti_zero_event_kind kind, int unit, int64_t began_ns, uint64_t bytes);
/* Of an operation that is about to start: the request tells of its end, or the caller does with span_end. */
void span_begin(struct trace_span *span, struct trace *trace, tutti_zero_event_kind kind, int unit, uint64_t bytes);
void span_follow(struct trace_span *span, tutti_request *request);
void span_end(struct trace_span *span);
/* Of a request that is over: returns when it has told so, and the span may be used again. */
void span_await(struct trace_span *span);
