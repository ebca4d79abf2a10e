/* Each communicator has a driver: the one thread that may touch its run queue and its executor. A blocking call takes
 * the role if it is free, so that on an idle group the caller works directly on shared memory. Otherwise, and for
 * asynchronous operations, the progress thread of the process drives (progress_thread.h). A driver does all the work of
 * the communicator, its own and that of other threads. If operations are left when it leaves, it hands the communicator
 * to the progress thread. It wakes that thread unless the operations can be deferred (deferral.h). */
#pragma once
#include "backend/engine/operation.h"

/* The longest sleep before a driver checks for failures (20 ms). Progress never depends on this limit, because every
   event wakes the sleeper. Tests verify this with a limit that is never reached. */
extern _Atomic int most_sleep_ms;
/* Any thread may use these fields. */
struct submission {
    /* 1 while a thread drives. */
    _Atomic uint32_t driver;
    /* Submitted operations, newest first. */
    _Atomic(struct operation *) submitted;
    /* The number of threads that wait for an operation or submit one. */
    _Atomic uint32_t inside;
    /* Set by operations_close_comm. Later operations fail at once. */
    _Atomic bool closed;
    /* Wakes a sleeping driver. */
    _Atomic uint32_t bell, bell_waiters;
    /* The open operations are deferred; see deferral.h. */
    _Atomic bool resting;
    /* Calls equal to the last one may take the fast path; see fast_path.h. */
    _Atomic bool settled;
};
/* The driver owns these fields. */
struct run_queue {
    /* Collectives, oldest first. */
    struct operation *head, *last;
    /* The head has begun. */
    bool running;
    /* The head cannot continue, and ends with the coming decision of all hosts. */
    bool stuck;
    /* The blocking call of the driver itself. No other thread waits for it. */
    const struct operation *driven;
    /* The number of the last collective that has begun. */
    uint64_t sequence;
    /* Turns of all drivers, counted to check for failures regularly. */
    unsigned visits;
    /* Tests by callers since the last test that made progress. */
    unsigned idle_tests;
};
/* ---- the role ---- */
bool driver_try_acquire(tutti_comm *comm);
/* Takes the role; waits until it is free. */
void driver_acquire_role(tutti_comm *comm);
/* Gives up the role and hands open operations to the progress thread. */
void driver_hand_over_role(tutti_comm *comm);
/* Gives up the role without handing over open operations. */
void driver_release_role(tutti_comm *comm);

/* ---- the work; driver only ---- */
bool driver_has_open_operations(const tutti_comm *comm);
/* True if operations are open, or peers may send messages to a window. */
bool driver_is_needed(const tutti_comm *comm);
/* True if no operation is open or submitted and the communicator has not failed. */
bool driver_is_idle(const tutti_comm *comm);
void driver_take_submitted(tutti_comm *comm);
void driver_accept_operation(tutti_comm *comm, struct operation *op);
/* Begins an operation at once on an idle communicator, and continues it as far as it gets without waiting. */
void driver_begin(tutti_comm *comm, struct operation *op);
/* Takes over an operation that has begun; `status` is the result of its first step. */
void driver_continue_operation(tutti_comm *comm, struct operation *op, tutti_status status);
/* Continues all operations as far as they get without waiting. True: one made progress. */
bool driver_make_progress(tutti_comm *comm, struct wait_set *blocked);
/* Checks for failures in every 64th turn n without progress, and in every 1024th turn of all. True: an operation made
   progress or failed. */
bool driver_check_periodically(tutti_comm *comm, int64_t n);
/* Returns a turn number whose next turn checks for failures. */
int64_t driver_turn_before_check(int64_t n);
/* Drives until the operation is over. */
void driver_drive(tutti_comm *comm, struct operation *op);
/* Drives for at most that many turns, a time shorter than waking another thread takes. It stops earlier when a peer
   needs this core. True: an operation made progress. */
bool driver_drive_briefly(tutti_comm *comm, int turns);
/* Looks for a reason to fail. True: there is one, and the operations have all failed or made progress. */
bool driver_check_for_failure(tutti_comm *comm);
/* Continues the operations as long as they make progress, for at most a second. */
void driver_continue_all(tutti_comm *comm);
/* Fails all operations with the reason to stop. False: some are still open, because a peer may be using their
   tensors. */
bool driver_abandon_operations(tutti_comm *comm);
