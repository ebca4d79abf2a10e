/* A thread runs the asynchronous part of a step after the call has returned. This part needs no later call of another
 * rank, so a rank may meanwhile compute, evaluate or sleep. While the thread is busy it owns all that it works on, and
 * the caller may only wait. */
#pragma once
#include "backend/base/status.h"
#include "include/tutti.h"
#include <pthread.h>

struct async_step {
    pthread_t thread;
    /* `work` and `context` are constant. */
    tutti_status (*work)(void *context);
    void *context;
    /* The lock guards all fields below. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* `busy`: the thread runs `work` or is about to. `stop`: the thread must end. */
    bool busy, stop;
    /* The work records here how many steps have updated each unit. */
    uint64_t *steps;                                    /* [units], owned */
    /* `status` and `why` keep the first error of the work. */
    tutti_status status;
    char why[STATUS_DETAIL_BYTES];
    /* The caller has waited this long in async_step_await_unit. */
    uint64_t waited_ns;
};
/* Starts a thread that runs work(context) for each async_step_start_work. The calls that wait and async_step_destroy
   accept NULL, for steps without an asynchronous part. */
tutti_status async_step_create(int units, tutti_status (*work)(void *context), void *context, struct async_step **out);
/* Waits for the work, ends the thread and frees the object. A forked child must not call this. */
void async_step_destroy(struct async_step *async);
/* Makes the thread run the work once, and returns at once. The thread must not be busy. */
void async_step_start_work(struct async_step *async);
/* Records that `steps` steps have updated the unit, and wakes the waiting caller. The work calls this. */
void async_step_complete_unit(struct async_step *async, int unit, uint64_t steps);
/* Returns when the unit has had `steps` steps or the work has ended. Returns the work's error. */
tutti_status async_step_await_unit(struct async_step *async, int unit, uint64_t steps);
/* Returns when the thread is not busy, with the first error of all work so far or TUTTI_OK. */
tutti_status async_step_await_end(struct async_step *async);
/* Waits for the end of the work, at most until the clock shows until_ms. Returns true if the thread is not busy. */
bool async_step_await_until(struct async_step *async, int64_t until_ms);
