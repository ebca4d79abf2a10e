/* Why a communicator failed, as text that names ranks and gives the remedy. The first error wins, on this rank and,
 * through the segment, on all others. No function here waits, except for the record of a rank that was first. */
#pragma once
#include "backend/agree/agree.h"
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
/* The kind of a reason, and the rank that it concerns, or -1. */
struct failure_subject { enum agree_kind kind; int other; };
/* Fails likewise. comm_fail derives the subject from the status. */
tutti_status comm_fail_about_rank(tutti_comm *comm, struct failure_subject about, tutti_status status,
    const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Fails only this rank's communicator, without telling the other ranks. */
void comm_fail_locally(tutti_comm *comm, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Fails with the failure that another rank of this host has published. */
tutti_status comm_adopt_peer_failure(tutti_comm *comm);
/* Fails with the cause on which the hosts have agreed. */
tutti_status comm_adopt_decision(tutti_comm *comm);
/* Describes the call that runs, for errors. */
void failure_describe_running(const tutti_comm *comm, char *out, size_t bytes);
