/* What is left of a step when the call has returned, and the thread that does it: of one unit after the other. Nobody
 * depends on another rank's next call, so a rank may compute, evaluate or sleep as it likes meanwhile. While the tail
 * is busy all that it works on is its own; the caller may but wait. */
#pragma once
#include "backend/base/status.h"
#include "include/tutti.h"
#include <pthread.h>

struct tail {
    pthread_t thread;
    tutti_status (*work)(void *context);                /* constant, with its context */
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop;                                    /* under the lock, from here on */
    uint64_t *steps;                                    /* [units] that the work has said */
    tutti_status status;                                /* of the last work, once it has failed */
    char why[STATUS_DETAIL_BYTES];
    uint64_t waited_ns;                                 /* the caller's: in tail_await_unit */
};
/* NULL, below: there is none, and it is never busy. */
tutti_status tail_create(int units, tutti_status (*work)(void *context), void *context, struct tail **out);
void tail_destroy(struct tail *tail);                   /* waits for the work; a child of fork does not call it */
void tail_start(struct tail *tail);                     /* it is not busy */
void tail_say(struct tail *tail, int unit, uint64_t steps); /* of the work: the unit is done */
/* Returns when the work has said so many steps of the unit, or has ended; its error. */
tutti_status tail_await_unit(struct tail *tail, int unit, uint64_t steps);
tutti_status tail_await(struct tail *tail);             /* when it has ended; its error */
bool tail_is_over(struct tail *tail, int64_t until_ms);  /* waits no longer than that */
