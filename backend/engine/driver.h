/* Each communicator has a driver: the one thread that may touch its run queue and its executor. A blocking call
 * takes the role if it is free, so that on an idle group the caller works directly on shared memory. Otherwise, and
 * for operations that are only started, one progress thread of the process drives (progress.h). A driver does all
 * the work of the communicator, its own and that of other threads. If operations are left when it leaves, it hands
 * the communicator to the progress thread, and wakes that thread unless the operations can rest (rest.h). */
#pragma once
#include "backend/engine/operation.h"

/* Nobody sleeps longer without looking for reasons not to: 20 ms. What gets an operation on wakes, and is not left to
   that look; tests show it by having it come never. */
extern _Atomic int most_sleep_ms;
struct gate {                                           /* of any thread */
    _Atomic uint32_t driver;                            /* 1: somebody drives */
    _Atomic(struct operation *) intake;                 /* submitted, newest first */
    _Atomic uint32_t inside;                            /* threads that wait for an operation, or submit one */
    _Atomic bool closed;                                /* nothing is submitted any more: see operations_close */
    _Atomic uint32_t bell, bell_waiters;                /* wakes a driver that sleeps */
    _Atomic bool resting;                               /* what is open can be left alone; see rest.h */
    _Atomic bool settled;                               /* calls like the last one can be repeated; see again.h */
};
struct run_queue {                                        /* of the driver */
    struct operation *head, *last;                      /* collectives, oldest first */
    bool running;                                       /* head has begun */
    bool stuck;                                         /* head ends with the verdict of all hosts, which comes */
    const struct operation *driven;                     /* the driver's own: nobody else waits for it */
    uint64_t sequence;                                  /* of the last collective that has begun */
    unsigned visits;                                    /* of whoever drives: every so often it looks for failures */
    unsigned idle_tests;                                /* of callers that only test, since something moved */
};
/* ---- the role ---- */
bool driver_try(tutti_comm *comm);
void driver_acquire(tutti_comm *comm);                  /* waits for whoever drives */
void driver_release(tutti_comm *comm);                  /* hands what is left to the progress thread */
void driver_leave(tutti_comm *comm);                    /* leaves everything as it is */
void driver_call(tutti_comm *comm);                     /* something to look at for whoever drives as a caller */
void comm_call(tutti_comm *comm);                       /* for whoever drives, the progress thread too */

/* ---- the work; driver only ---- */
bool driver_has_open(const tutti_comm *comm);
bool driver_is_idle(const tutti_comm *comm);            /* nothing open, submitted or failed */
void driver_take_intake(tutti_comm *comm);
void driver_accept(tutti_comm *comm, struct operation *op);
/* At once, on an idle communicator: as far as it gets without waiting. */
void driver_begin(tutti_comm *comm, struct operation *op);
/* The same with one that has begun, and how that went. */
void driver_go_on(tutti_comm *comm, struct operation *op, tutti_status status);
/* As far as it gets without waiting. True: something moved. */
bool driver_progress(tutti_comm *comm, struct wait_set *blocked);
/* In every 64th fruitless turn n and every 1024th of any: a look for failures. True: something moved. */
bool driver_check(tutti_comm *comm, int64_t n);
int64_t driver_soon(int64_t n);                         /* the number of a turn after which the next one looks */
/* Until the operation is over. */
void driver_drive(tutti_comm *comm, struct operation *op);
/* So many turns at most, no longer than it takes to wake another thread, and not while a peer needs this core. True:
   something moved. */
bool driver_drive_briefly(tutti_comm *comm, int turns);
/* Looks for a reason not to go on. true: there is one and all have failed, or they got on. */
bool operations_check(tutti_comm *comm);
void operations_go_on(tutti_comm *comm);                /* as far as they get within a second */
/* Ends all with the reason to stop. false: not all yet, as a peer may still be at its tensors. */
bool operations_abandon(tutti_comm *comm);
