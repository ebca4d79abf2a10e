/* Why a communicator failed, as text that names ranks and gives the remedy. The first error wins, on this rank and,
 * through the segment, on all others of the host; but a rank that aborts or finds a mismatch keeps its own error.
 * Several hosts agree on one error. No function here waits, except at most a second for the record of a rank that
 * failed first. */
#pragma once
#include "backend/agree/agree.h"
#include "backend/base/status.h"
#include "include/tutti.h"
#include <stdatomic.h>

enum { STOP_INTERRUPTED = 1 << 16 };
struct outcome {
    /* 1 + a rank whose process has died, or 0. */
    _Atomic uint32_t lost;
    /* The negated status to fail with after an abort or a destroy, STOP_INTERRUPTED if a thread of this rank was
       interrupted while it waited, or 0. The first request counts. */
    _Atomic uint32_t stop;
    /* Set once status and detail are valid. */
    _Atomic uint32_t failed;
    tutti_status status;
    char detail[STATUS_DETAIL_BYTES];
};
/* ---- any thread; the driver reacts soon ---- */
/* Records that the process of a rank has died. */
void failure_record_lost_rank(tutti_comm *comm, int rank);
/* Asks the driver to fail the communicator with `status`, because it is aborted or destroyed. */
void failure_request_stop(tutti_comm *comm, tutti_status status);
/* Asks the driver to fail the communicator with ABORTED, because a thread of this rank was interrupted in a wait. */
void failure_request_interrupt(tutti_comm *comm);
/* Returns OK, or the status with which the communicator has failed, and then sets this thread's last error. */
tutti_status comm_get_failure(tutti_comm *comm);
/* Returns true if that rank has destroyed its communicator. */
bool comm_rank_has_left(const tutti_comm *comm, int rank);

/* ---- driver only ---- */
/* Fails the communicator here and on the other ranks. The first rank to fail decides the error. Returns the status it
   failed with. In a group of several hosts it only proposes the cause: the communicator fails when the hosts have
   agreed on one and comm_fail_if_due has adopted it. */
tutti_status comm_fail(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The kind of a reason, and the rank that it concerns, or -1. */
struct failure_subject { enum agree_kind kind; int other; };
/* Does what comm_fail does, with a given subject. comm_fail derives the kind from the status, and names no rank. */
tutti_status comm_fail_about_rank(tutti_comm *comm, struct failure_subject about, tutti_status status,
    const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Fails only this rank's communicator; the other ranks get no report. Does nothing if it has failed already. */
void comm_fail_locally(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails this rank's communicator with the failure that another rank of this host has published, and returns its
   status. */
tutti_status comm_adopt_peer_failure(tutti_comm *comm);
/* Fails this rank's communicator with the cause on which the hosts have agreed, and returns its status. */
tutti_status comm_adopt_decision(tutti_comm *comm);
/* Writes a description of the operation that runs here to out[bytes], for error texts. */
void failure_describe_running(const tutti_comm *comm, char *out, size_t bytes);
