/* Why a communicator failed, in words that name ranks and say what to do. The first error wins, on this rank and,
 * through the segment, on all others. Nothing here waits. */
#pragma once
#include "backend/base/status.h"
#include "include/tutti.h"
#include <stdatomic.h>

struct outcome {
    _Atomic uint32_t lost;                              /* 1 + a rank whose process is gone */
    _Atomic uint32_t stop;                              /* a status (negated) to end with: aborted, destroyed */
    _Atomic uint32_t failed;                            /* status and detail are valid */
    tutti_status status;
    char detail[STATUS_DETAIL_BYTES];
};
/* ---- of any thread: seen by whoever drives, soon ---- */
void failure_record_lost(tutti_comm *comm, int rank);     /* its process is gone */
void failure_ask_to_stop(tutti_comm *comm, tutti_status status);
tutti_status comm_failure(tutti_comm *comm);            /* OK, or the status; then this thread's last error is set */

/* ---- driver only ---- */
/* Fails the communicator, here and on the other ranks: the first to come decides. Returns the status it failed with. Of
   several hosts: gives them the reason; it has failed when they have agreed on one and comm_check says so. */
tutti_status comm_fail(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, of this rank's communicator alone, in good order: the others are not told. */
void comm_fail_silently(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Looks, while waiting, whether there is a reason not to go on waiting: OK or the failure. */
tutti_status comm_check(tutti_comm *comm);
/* Whether it may find one. What all ranks have done by now is there to be seen after this. */
bool comm_is_alerted(const tutti_comm *comm);
/* That of a message which a peer has given up, having failed with the group and told it why: that is the failure. */
bool failure_is_told(tutti_comm *comm, tutti_status status);
tutti_status comm_mismatch(tutti_comm *comm);           /* fails with both sides' descriptions */
