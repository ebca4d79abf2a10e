/* The run queue of a communicator, and the role of its driver. A thread submits an operation by a push on a list
   without locks. */
#include "backend/base/clock.h"
#include "backend/base/pause.h"
#include "backend/engine/comm.h"
#include "backend/engine/mismatch.h"

/* Each CHECK_EVERY turns without progress the driver checks for failures. driver_continue_all lasts at most
   CONTINUE_MS. */
enum { CHECK_EVERY = 64, CONTINUE_MS = 1000 };
/* While a message of another host arrives, the driver neither yields nor sleeps in the first RECEIVING_TURNS turns
   without progress, some 0.1 ms. */
enum { RECEIVING_TURNS = 64 };
_Atomic int most_sleep_ms = 20;

/* ---- the run queue; driver only ---- */
bool driver_has_open_operations(const tutti_comm *comm)
{
    return comm->run_queue.head || comm->messages.open || comm->windows.open;
}
bool driver_is_needed(const tutti_comm *comm)
{
    return driver_has_open_operations(comm) || windows_are_listening(&comm->windows);
}
bool driver_is_idle(const tutti_comm *comm)
{
    return !driver_has_open_operations(comm) && !atomic_load_explicit(&comm->submission.submitted, memory_order_relaxed)
        && !comm_has_failed(comm);
}
void driver_accept_operation(tutti_comm *comm, struct operation *op)
{
    op->next = NULL;
    bool detaches = op->collective == WINDOW_OPERATION && op->message.window.kind >= WINDOW_DETACH;
    if (comm_has_failed(comm) && !detaches) { operation_complete(op, comm->outcome.status); return; }
    if (op->collective == POINT_TO_POINT) { message_post(comm, op); return; }
    if (op->collective == WINDOW_OPERATION) { windows_accept_operation(comm, op); return; }
    if (comm->run_queue.last) comm->run_queue.last->next = op;
    else comm->run_queue.head = op;
    comm->run_queue.last = op;
}
void driver_take_submitted(tutti_comm *comm)
{
    if (!atomic_load_explicit(&comm->submission.submitted, memory_order_relaxed)) return;
    struct operation *newest = atomic_exchange_explicit(&comm->submission.submitted, NULL, memory_order_acquire),
                     *oldest = NULL;
    while (newest) {
        struct operation *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct operation *next = oldest->next;
        driver_accept_operation(comm, oldest);
        oldest = next;
    }
}
/* Removes the head from the queue and ends it. */
static void run_queue_end_head(tutti_comm *comm, tutti_status status)
{
    struct operation *op = comm->run_queue.head;
    comm->run_queue.head = op->next;
    if (!comm->run_queue.head) comm->run_queue.last = NULL;
    comm->run_queue.head_has_begun = false;
    operation_complete(op, status);
}
/* Ends all operations of a failed communicator, each as soon as no peer touches its tensors. The driver calls it again
   until all have ended. */
static void driver_fail_operations(tutti_comm *comm)
{
    driver_take_submitted(comm);
    bool are_released = messages_cancel(comm) & windows_cancel(comm), running = comm->run_queue.head_has_begun;
    if (running && !launch_cancel(comm)) are_released = false;
    if (!are_released) { router_poll(comm->router); return; }
    messages_fail(comm, comm->outcome.status);
    windows_fail(comm, comm->outcome.status);
    if (running && comm->executor.run.tensors_declared && !tensors_poll_release(comm)) return;
    while (comm->run_queue.head) run_queue_end_head(comm, comm->outcome.status);
}
/* Begins the head of the queue if needed, and continues it as far as it gets. Returns IN_PROGRESS, OK when it is
   complete, or why it fails. */
static tutti_status driver_advance_head(tutti_comm *comm)
{
    struct run_queue *b = &comm->run_queue;
    if (!b->head_has_begun) {
        b->head->sequence = ++b->sequence;
        if (comm->agreement) agreement_hold_deaths(comm->agreement);
        TRY(launch_start(comm, b->head));
        b->head_has_begun = true;
        if (comm->agreement) agreement_begin_operation(comm);
    }
    return launch_step(comm, b->head);
}
/* Fails the communicator because the head has failed with `status`. With several hosts the head is stuck until they
   have agreed. */
static void driver_fail_head(tutti_comm *comm, tutti_status status)
{
    if (status == TUTTI_MISMATCH) comm_fail_mismatch(comm);
    else if (!failure_adopt_from_peer(comm, status)) comm_fail(comm, status, "%s", status_detail());
    if (comm_has_failed(comm)) driver_fail_operations(comm);
    else comm->run_queue.head_is_stuck = true;
}
/* Ends the head in the agreement, after which it must succeed here, and returns true. Returns false, and the head is
   stuck, if it or an operation before it is known to fail on another rank. */
static bool driver_claim_end_of_head(tutti_comm *comm)
{
    if (!comm->agreement || agreement_try_end_operation(comm->agreement, comm->run_queue.head->sequence)) return true;
    comm->run_queue.head_is_stuck = true;
    return false;
}
/* Handles the status of the last step of the head. */
static void driver_handle_head_status(tutti_comm *comm, tutti_status status)
{
    if (status == TUTTI_IN_PROGRESS) return;
    if (status != TUTTI_OK) driver_fail_head(comm, status);
    else if (driver_claim_end_of_head(comm)) run_queue_end_head(comm, TUTTI_OK);
}
void driver_begin(tutti_comm *comm, struct operation *op)
{
    op->next = NULL;
    comm->run_queue.head = comm->run_queue.last = op;
    driver_handle_head_status(comm, driver_advance_head(comm));
}
void driver_continue_operation(tutti_comm *comm, struct operation *op, tutti_status status)
{
    op->next = NULL;
    comm->run_queue.head = comm->run_queue.last = op;
    comm->run_queue.head_has_begun = true;
    driver_handle_head_status(comm, status);
}
bool driver_make_progress(tutti_comm *comm, struct wait_set *blocked)
{
    driver_take_submitted(comm);
    bool has_messages = comm->messages.open || windows_are_active(&comm->windows);
    bool progressed = has_messages && messages_make_progress(comm, blocked);
    if (windows_exist(&comm->windows)) progressed |= windows_make_progress(comm);
    if (has_messages && !progressed) blocked->core_is_wanted |= executor_publish_core(&comm->executor);
    if (comm_has_failed(comm)) { driver_fail_operations(comm); return progressed; }
    while (comm->run_queue.head && !comm->run_queue.head_is_stuck) {
        uint64_t moves = comm->executor.steps_done;
        tutti_status status = driver_advance_head(comm);
        progressed |= comm->executor.steps_done != moves;
        if (status == TUTTI_IN_PROGRESS) {
            const struct wait_set *b = &comm->executor.blocked;
            blocked->core_is_wanted |= b->core_is_wanted;
            blocked->soon |= b->soon;
            for (int i = 0; i < b->count; i++)
                wait_set_add(blocked, b->item[i].word, b->item[i].seen, b->item[i].waiters, b->item[i].shared);
            break;
        }
        progressed = true;
        if (status != TUTTI_OK) { driver_fail_head(comm, status); break; }
        if (driver_claim_end_of_head(comm)) run_queue_end_head(comm, TUTTI_OK);
    }
    return progressed;
}
/* A rank may have lost its core for a long time. An operation that its peers completed before the reason to fail came
   must not fail because of that reason. So the driver first continues as far as it gets. */
bool driver_fail_if_due(tutti_comm *comm)
{
    struct wait_set unused = { .count = 0 };
    if (comm->agreement) agreement_poll(comm);
    if (!comm_poll_reason_to_fail(comm)) {
        lateness_check(comm);
        return false;
    }
    bool progressed = driver_make_progress(comm, &unused);
    /* No open operation is left to fail. */
    if (progressed && !driver_has_open_operations(comm)) return true;
    if (comm_fail_if_due(comm) == TUTTI_OK) return progressed;
    driver_fail_operations(comm);
    return true;
}
void driver_continue_all(tutti_comm *comm)
{
    struct wait_set unused = { .count = 0 };
    int64_t until_ms = clock_ms() + CONTINUE_MS;
    while (driver_has_open_operations(comm) && clock_ms() < until_ms && driver_make_progress(comm, &unused))
        unused.count = 0;
}
bool driver_check_periodically(tutti_comm *comm, int64_t n)
{
    /* A turn that yields takes milliseconds where other programs want the core, and 64 turns take too long. So every
       turn looks whether the bell has rung. */
    uint32_t bell = atomic_load_explicit(&comm->submission.bell, memory_order_acquire);
    bool is_due = n % CHECK_EVERY == CHECK_EVERY - 1, is_called = bell != comm->run_queue.bell_seen;
    comm->run_queue.bell_seen = bell;
    if (is_due) peers_ring_deferred(comm);
    return (is_due || is_called || ++comm->run_queue.visits % 1024 == 0) && driver_fail_if_due(comm);
}
int64_t driver_turn_before_check(int64_t n) { return (n | (CHECK_EVERY - 1)) + CHECK_EVERY - 1; }
bool driver_abandon_operations(tutti_comm *comm)
{
    comm_fail_if_stopped(comm);
    if (!comm_has_failed(comm)) return false;
    driver_fail_operations(comm);
    return !driver_has_open_operations(comm);
}

/* ---- the role ---- */
bool driver_try_acquire(tutti_comm *comm)
{
    _Atomic uint32_t *driver = &comm->submission.driver;
    return !atomic_load_explicit(driver, memory_order_relaxed)
        && !atomic_exchange_explicit(driver, 1, memory_order_acquire);
}
void driver_release_role(tutti_comm *comm) { atomic_store_explicit(&comm->submission.driver, 0, memory_order_release); }
void driver_acquire_role(tutti_comm *comm)
{
    for (int64_t n = 0; !driver_try_acquire(comm); n++) group_back_off(&comm->group, n);
}
/* An operation that is submitted at this moment may be missed here. Its thread schedules the progress thread, which
   restarts its backoff for every request and so polls much longer than a store takes to become visible. The
   communicator may be freed after this call. */
void driver_hand_over_role(tutti_comm *comm)
{
    bool needed = driver_is_needed(comm), deferred = needed && driver_may_defer(comm);
    bool was_deferred = comm->submission.deferred;
    driver_set_deferred(comm, deferred);
    /* A deferred operation is not timed, because its time depends on when its caller comes back. */
    if (deferred) comm->launcher.timed = false;
    if (deferred) atomic_store_explicit(&comm->executor.site.contact->listening, DEFERRED, memory_order_relaxed);
    else if (!needed || was_deferred) comm_stop_listening(comm);
    /* Operations that were deferred before are in the progress list already. */
    bool asks = needed && !(deferred && was_deferred) && (progress_list_add(comm) || !deferred);
    driver_release_role(comm);
    /* Wakes the thread only when the role is free. Otherwise it would find the role taken and sleep again. */
    if (asks) progress_thread_wake();
}

/* ---- driving ---- */
/* Returns whether the driver should only pause after the n-th turn without progress, because the next bytes of a
   message come soon and no other rank wants the core. A yield may give the core to another program for some ms, and
   while the driver sleeps the thread of the network receives the message. */
static bool driver_awaits_bytes(const tutti_comm *comm, int64_t n, const struct wait_set *blocked)
{
    return n < RECEIVING_TURNS && !blocked->core_is_wanted && router_is_receiving(comm->router);
}
bool driver_drive(tutti_comm *comm, struct operation *op, struct interrupt_timer *timer)
{
    comm_stop_listening(comm);
    for (int64_t n = 0; !operation_is_over(op); n++) {
        struct wait_set blocked;
        wait_set_clear(&blocked);
        uint32_t bell = atomic_load_explicit(&comm->submission.bell, memory_order_acquire);
        if (driver_make_progress(comm, &blocked) || driver_check_periodically(comm, n)) { n = -1; continue; }
        if (n % CHECK_EVERY == CHECK_EVERY - 1) {
            activity_begin(comm, op);
            if (interrupt_is_due(timer)) return operation_is_over(op);
        }
        bool is_alone = op->collective == POINT_TO_POINT && message_waits_for_itself(comm, op);
        if (is_alone && message_withdraw(comm, op)) return true;
        if (driver_awaits_bytes(comm, n, &blocked)) {
            cpu_pause_briefly();
            continue;
        }
        wait_set_add(&blocked, &comm->submission.bell, bell, &comm->submission.bell_waiters, false);
        if (backoff_step(&comm->group.backoff, n, blocked.core_is_wanted)) continue;
        /* A message may be over as soon as it is accepted, which does not count as progress. */
        bool sleeps = !operation_is_over(op) && !comm_has_decision(comm) && router_arm(comm->router);
        if (sleeps) wait_set_sleep(&blocked, atomic_load(&most_sleep_ms));
        n = driver_turn_before_check(n);
    }
    activity_end(comm, op);
    return true;
}
bool driver_drive_briefly(tutti_comm *comm, int turns)
{
    bool progressed = false;
    for (int n = 0; n < turns && driver_has_open_operations(comm); n++) {
        struct wait_set blocked;
        wait_set_clear(&blocked);
        if (driver_make_progress(comm, &blocked)) { progressed = true; continue; }
        if (blocked.core_is_wanted || n == turns - 1) break;
        cpu_pause_briefly();
    }
    return progressed;
}
