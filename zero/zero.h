/* A tutti_zero: the parts of one model on one rank, and the checks with which the public calls begin. */
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
    /* The rates and the scale (a factor of the gradients) belong to the current step. has_rule: a rule updates the
       parameters in this step, not the caller. */
    tutti_zero_rates *rates;                            /* [groups], owned */
    double scale;
    bool has_rule;
    /* This many steps have changed parameters; `writes` of them were tutti_zero_begin_pieces. */
    uint64_t steps, writes;
    /* is_begun: tutti_zero_begin has set the first values. is_claimed: tutti_zero_claim has completed the sums of this
       step, and no rank reads parameters. After a failure all calls return `failure`, with the error text `why`.
       `process` is the one that created this object; a forked child may not use it. */
    bool is_begun, is_claimed;
    pid_t process;
    tutti_status failure;
    char why[STATUS_DETAIL_BYTES];
};

/* Returns `status`, the result of a public call. If it is a failure that other ranks may not have, records it as the
   result of all later calls, and aborts the communicators, so that no other rank waits for this one. A refusal (nothing
   was sent) changes nothing. */
tutti_status zero_record_failure(tutti_zero *zero, tutti_status status);
/* Returns TUTTI_OK, or an error if `zero` is NULL, was made by another process, has failed, or has not begun. */
tutti_status zero_check_usable(const tutti_zero *zero);
/* Calls zero_check_usable and waits for the asynchronous step. Returns the error of either. */
tutti_status zero_check_and_await(const tutti_zero *zero);
/* Calls zero_check_and_await, and refuses a parameter number that does not exist. */
tutti_status zero_check_parameter(const tutti_zero *zero, int parameter);
