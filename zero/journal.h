/* What happens when, kept while somebody watches. Of any thread. */
#pragma once
#include "include/tutti_zero.h"
#include <pthread.h>
#include <stdatomic.h>

struct journal {
    pthread_mutex_t lock;
    _Atomic bool open;
    tutti_zero_event *event;                            /* under the lock, from here on */
    size_t room, count, missed;
};
/* From the start of an operation to its end, on whichever thread that is. */
struct span { struct journal *journal; tutti_zero_event event; _Atomic bool followed; };
void journal_init(struct journal *journal);
void journal_finish(struct journal *journal);
tutti_status journal_open(struct journal *journal, size_t events);     /* empty, for so many; 0: closed */
size_t journal_read(struct journal *journal, tutti_zero_event *out, size_t capacity, size_t *missed);
int64_t journal_now(struct journal *journal);           /* 0: nobody watches */
/* began_ns 0: nobody watched then, and it is not kept. */
void journal_record(struct journal *journal, tutti_zero_event_kind kind, int unit, int64_t began_ns, uint64_t bytes);
/* Of an operation that is about to start: the request tells of its end, or the caller does with span_end. */
void span_begin(struct span *span, struct journal *journal, tutti_zero_event_kind kind, int unit, uint64_t bytes);
void span_follow(struct span *span, tutti_request *request);
void span_end(struct span *span);
/* Of a request that is over: returns when it has told so, and the span may be used again. */
void span_await(struct span *span);
