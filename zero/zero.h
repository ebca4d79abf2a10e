/* A tutti_zero: the parts that one model of one rank has, and the checks with which the public calls begin. */
#pragma once
#include "include/tutti_zero.h"
#include "zero/async_step.h"
#include "zero/placement.h"
#include "zero/reduce.h"
#include "zero/update.h"
#include <sys/types.h>

struct tutti_zero {
    struct partition partition;
    struct zero_placement placement;
    struct reducer reducer;
    struct optimizer optimizer;
    /* `comms` carry large messages, `control_comm` small ones. `async` is NULL without async steps. */
    struct priority_comms comms;
    tutti_comm *control_comm;
    struct async_step *async;
    struct trace trace;
    /* The rates and the scale (a factor of the gradients) belong to the current step. `updates`: a rule updates the
       parameters, not the caller. */
    tutti_zero_rates *rates;                            /* [groups], owned */
    double scale;
    bool updates;
    /* `steps` have changed parameters, `writes` of them by the caller. `claimed`: no rank reads parameters. */
    uint64_t steps, writes;
    /* `begun`: tutti_zero_begin has set the first values. After a failure all calls return `failure`, with the error
       text `why`. `process` is the one that created this object; a forked child may not use it. */
    bool begun, claimed;
    pid_t process;
    tutti_status failure;
    char why[STATUS_DETAIL_BYTES];
};

/* Returns `status`. If it is a failure that other ranks may not have, this tutti_zero fails: its communicators are
   aborted, so no other rank waits for this one. A refusal (nothing was sent) changes nothing. */
tutti_status zero_keep_failure(tutti_zero *zero, tutti_status status);
/* Fails if `zero` is NULL, of another process, failed, or not begun. */
tutti_status zero_check_usable(const tutti_zero *zero);
/* Calls zero_check_usable and waits for the asynchronous step. Returns the error of either. */
tutti_status zero_check_and_await(const tutti_zero *zero);
/* Calls zero_check_and_await, and refuses a parameter that does not exist. */
tutti_status zero_check_parameter(const tutti_zero *zero, int parameter);
