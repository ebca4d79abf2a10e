/* Each communicator has a driver: the one thread that may touch its run queue and its executor. A blocking call takes
 * the role if it is free, so that on an idle group the caller works directly on shared memory. Otherwise, and for
 * asynchronous operations, the progress thread of the process drives (progress_thread.h). A driver does all the work of
 * the communicator, its own and that of other threads. If operations are left when it leaves, it hands the communicator
 * to the progress thread. It wakes that thread unless the operations can be deferred (deferral.h). */
#pragma once
#include "backend/engine/interrupt.h"
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
    /* The number of threads inside a call that waits for an operation or submits one. The communicator is freed only at
       0. */
    _Atomic uint32_t inside;
    /* Set by operations_close_comm. Later operations fail at once. */
    _Atomic bool closed;
    /* Wakes a sleeping driver. */
    _Atomic uint32_t bell, bell_waiters;
    /* The open operations are deferred; see deferral.h. */
    _Atomic bool deferred;
    /* A call that equals the last one may take the fast path; see fast_path.h. */
    _Atomic bool fast_path_ready;
};
/* The collectives that are queued, and the state of the driver, which owns these fields. */
struct run_queue {
    /* Collectives, oldest first. */
    struct operation *head, *last;
    bool head_has_begun;
    /* The head cannot continue, and ends with the coming decision of all hosts. */
    bool head_is_stuck;
    /* The blocking call of the driver itself. No other thread waits for it. */
    const struct operation *driven;
    /* The number of the last collective that has begun. */
    uint64_t sequence;
    /* Turns of all drivers, counted to check for failures regularly, and the bell at the last turn. */
    unsigned visits;
    uint32_t bell_seen;
    /* Tests by callers since the last test that made progress. */
    unsigned idle_tests;
};
/* ---- the role ---- */
/* Makes this thread the driver. Returns false if another thread is. */
bool driver_try_acquire(tutti_comm *comm);
/* Takes the role; waits until it is free. */
void driver_acquire_role(tutti_comm *comm);
/* Gives up the role and hands open operations to the progress thread. */
void driver_hand_over_role(tutti_comm *comm);
/* Gives up the role without handing over open operations. */
void driver_release_role(tutti_comm *comm);

/* ---- the work; driver only ---- */
/* Returns true if collectives, messages or operations of windows are open. */
bool driver_has_open_operations(const tutti_comm *comm);
/* Returns true if operations are open, or windows are listening (windows_are_listening). */
bool driver_is_needed(const tutti_comm *comm);
/* Returns true if no operation is open or submitted and the communicator has not failed. */
bool driver_is_idle(const tutti_comm *comm);
/* Accepts all submitted operations, oldest first. */
void driver_take_submitted(tutti_comm *comm);
/* Adds an operation to the run queue, the open messages or the operations of windows. Ends it if the communicator has
   failed. */
void driver_accept_operation(tutti_comm *comm, struct operation *op);
/* Begins an operation at once on an idle communicator, and continues it as far as it gets without waiting. */
void driver_begin(tutti_comm *comm, struct operation *op);
/* Takes over an operation that has begun; `status` is how far it got: IN_PROGRESS, OK, or why it fails. No other
   operation is open. */
void driver_continue_operation(tutti_comm *comm, struct operation *op, tutti_status status);
/* Continues all operations as far as they get without waiting. Returns true if one made progress. Otherwise `blocked`
   gets the words whose changes end the wait. */
bool driver_make_progress(tutti_comm *comm, struct wait_set *blocked);
/* Checks for failures if n, the number of turns without progress, is due for it (each 64th), in every 1024th turn of
   all, and after the bell has rung, as it does for a death. Returns true if an operation made progress or failed. */
bool driver_check_periodically(tutti_comm *comm, int64_t n);
/* Returns a number m > n, so that turn m + 1 checks for failures (driver_check_periodically). */
int64_t driver_turn_before_check(int64_t n);
/* Drives until the operation is over, or the thread's check for interrupts is due (NULL: never). Returns true if it is
   over. */
bool driver_drive(tutti_comm *comm, struct operation *op, struct interrupt_timer *timer);
/* Drives for at most `turns` turns. It stops earlier when a peer needs this core, or no operation is open. Returns true
   if an operation made progress. */
bool driver_drive_briefly(tutti_comm *comm, int turns);
/* If there is a reason to fail: continues the operations as far as they get, and fails those that are left if the
   reason still holds. Returns true if operations have failed or made progress. */
bool driver_fail_if_due(tutti_comm *comm);
/* Continues the operations as long as they make progress, for at most a second. */
void driver_continue_all(tutti_comm *comm);
/* Fails the communicator if it must stop (failure_request_stop), and ends its operations. Returns false if it has not
   failed yet, or some operations are still open because a peer may be using their tensors; the caller repeats it. */
bool driver_abandon_operations(tutti_comm *comm);
