/* The operation that a driver waits for, as other threads may read it. The driver records it in the turns in which it
 * checks for failures, so a call that waits shortly records nothing. */
#pragma once
#include "include/tutti.h"
#include <stdatomic.h>

struct operation;
enum activity_kind { ACTIVITY_NONE, ACTIVITY_COLLECTIVE, ACTIVITY_MESSAGE, ACTIVITY_WINDOW };
/* The fields of one record may be of different operations if the driver writes while a thread reads. */
struct activity {
    /* An enum activity_kind. */
    _Atomic uint32_t kind;
    /* The clock_ms() of the first record of this operation. */
    _Atomic int64_t since_ms;
    /* The number of a collective. */
    _Atomic uint64_t number;
    /* The peer (negative: any rank), tag and bytes of a message, and whether this rank sends it. */
    _Atomic int peer;
    _Atomic uint32_t tag;
    _Atomic uint64_t bytes;
    _Atomic bool is_send;
    /* The recorded operation. It may be over; the driver only compares the address. */
    const struct operation *operation;
};
/* Records the oldest open operation of the communicator: a collective, else a message, else one of a window. Driver
   only. */
void activity_record(tutti_comm *comm);
/* Makes the next record of an operation at that address a new one. Driver only. */
void activity_forget(tutti_comm *comm, const struct operation *operation);
