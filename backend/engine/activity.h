/* The operation that a thread waits for, as other threads may read it. A thread records it in the turns in which it
 * checks for failures or interrupts, so a call that waits shortly records nothing. */
#pragma once
#include "include/tutti.h"
#include <stdatomic.h>

struct operation;
enum activity_kind { ACTIVITY_NONE, ACTIVITY_COLLECTIVE, ACTIVITY_MESSAGE, ACTIVITY_WINDOW };
/* If several threads wait, the record is that of the last one. Fields that are read while it changes may not fit
   together. */
struct activity {
    /* The recorded operation, only for comparisons, or NULL. */
    _Atomic(const struct operation *) operation;
    /* An enum activity_kind. */
    _Atomic uint32_t kind;
    /* The clock_ms() of the first record of this operation. */
    _Atomic int64_t since_ms;
    /* The peer (negative: any rank), tag and bytes of a message, and whether this rank sends it. */
    _Atomic int peer;
    _Atomic uint32_t tag;
    _Atomic uint64_t bytes;
    _Atomic bool is_send;
};
/* Records that the calling thread waits for the operation. Does nothing if that is recorded already. */
void activity_begin(tutti_comm *comm, const struct operation *op);
/* Removes the record of that operation, which is over. */
void activity_end(tutti_comm *comm, const struct operation *op);
