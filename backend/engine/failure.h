/* Why a communicator failed, as text that names ranks and gives the remedy. The first error wins, on this rank and,
 * through the segment, on all others. No function here waits. */
#pragma once
#include "backend/base/status.h"
#include "include/tutti.h"
#include <stdatomic.h>

struct outcome {
    /* 1 + a rank whose process has died, or 0. */
    _Atomic uint32_t lost;
    /* The negated status to fail with after an abort or a destroy, or 0. */
    _Atomic uint32_t stop;
    /* Set once status and detail are valid. */
    _Atomic uint32_t failed;
    tutti_status status;
    char detail[STATUS_DETAIL_BYTES];
};
/* ---- any thread; the driver reacts soon ---- */
/* Records that the process of a rank has died. */
void failure_record_lost_rank(tutti_comm *comm, int rank);
void failure_request_stop(tutti_comm *comm, tutti_status status);
/* Returns OK, or the status of the failure, and then sets this thread's last error. */
tutti_status comm_get_failure(tutti_comm *comm);
/* True if that rank has destroyed its communicator. */
bool comm_rank_has_left(const tutti_comm *comm, int rank);

/* ---- driver only ---- */
/* Fails the communicator here and on the other ranks. The first rank to fail decides the error. Returns the status it
   failed with. In a group of several hosts it only proposes the cause: the communicator fails when the hosts have
   agreed on one and comm_check has adopted it. */
tutti_status comm_fail(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails only this rank's communicator, without telling the other ranks. */
void comm_fail_locally(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Checks, while waiting, for a reason to stop waiting. Returns OK or the failure. */
tutti_status comm_check(tutti_comm *comm);
/* True if comm_check may find a reason. After this call the rank sees everything that its peers have done so far. */
bool comm_has_reason_to_fail(const tutti_comm *comm);
/* True if the status is that of a message which a peer cancelled because the group failed. The peer has reported that
   failure, and comm_check has adopted it. */
bool failure_came_from_peer(tutti_comm *comm, tutti_status status);
/* Fails with a description of both ranks' calls. */
tutti_status comm_fail_mismatch(tutti_comm *comm);
