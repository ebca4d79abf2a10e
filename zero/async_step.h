/* The rest of a step after its call has returned, and the thread that does it, one unit after another. It needs no
 * later call of another rank, so a rank may compute, evaluate or sleep meanwhile. While the thread is busy it owns all
 * that it works on; the caller may only wait. */
#pragma once
#include "backend/base/status.h"
#include "include/tutti.h"
#include <pthread.h>

struct async_step {
    pthread_t thread;
    tutti_status (*work)(void *context);                /* constant, with its context */
    void *context;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, stop;                                    /* under the lock, from here on */
    uint64_t *steps;                                    /* [units] that the work has said */
    tutti_status status;                                /* of the last work, once it has failed */
    char why[STATUS_DETAIL_BYTES];
    uint64_t waited_ns;                                 /* the caller's: in async_step_await_unit */
};
/* NULL in the calls below: there is no asynchronous step, and it is never busy. */
tutti_status async_step_create(int units, tutti_status (*work)(void *context), void *context, struct async_step **out);
void async_step_destroy(struct async_step *async); /* waits for the work; a child of fork does not call it */
void async_step_start(struct async_step *async);                     /* it is not busy */
void async_step_complete_unit(struct async_step *async, int unit, uint64_t steps); /* of the work: the unit is done */
/* Returns when the work has said so many steps of the unit, or has ended; its error. */
tutti_status async_step_await_unit(struct async_step *async, int unit, uint64_t steps);
tutti_status async_step_await(struct async_step *async);             /* when it has ended; its error */
bool async_step_is_over(struct async_step *async, int64_t until_ms);  /* waits no longer than that */
