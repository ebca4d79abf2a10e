/* The run queue of a communicator, and the role of its driver. A thread submits an operation by a push on a list
   without locks. */
#include "backend/base/clock.h"
#include "backend/base/pause.h"
#include "backend/engine/comm.h"

enum { CHECK_EVERY = 64, GO_ON_MS = 1000 };
_Atomic int most_sleep_ms = 20;

/* ---- the run queue; driver only ---- */
bool driver_has_open(const tutti_comm *comm) { return comm->run_queue.head || comm->messages.open; }
bool driver_is_idle(const tutti_comm *comm)
{
    return !driver_has_open(comm) && !atomic_load_explicit(&comm->gate.intake, memory_order_relaxed)
        && !comm_has_failed(comm);
}
void driver_accept(tutti_comm *comm, struct operation *op)
{
    op->next = NULL;
    if (comm_has_failed(comm)) { operation_complete(op, comm->outcome.status); return; }
    if (op->family == POINT_TO_POINT) { message_post(comm, op); return; }
    if (comm->run_queue.last) comm->run_queue.last->next = op;
    else comm->run_queue.head = op;
    comm->run_queue.last = op;
}
void driver_take_intake(tutti_comm *comm)
{
    if (!atomic_load_explicit(&comm->gate.intake, memory_order_relaxed)) return;
    struct operation *newest = atomic_exchange_explicit(&comm->gate.intake, NULL, memory_order_acquire), *oldest = NULL;
    while (newest) {
        struct operation *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct operation *next = oldest->next;
        driver_accept(comm, oldest);
        oldest = next;
    }
}
/* Removes the head from the queue and ends it. */
static void leave_queue(tutti_comm *comm, tutti_status status)
{
    struct operation *op = comm->run_queue.head;
    comm->run_queue.head = op->next;
    if (!comm->run_queue.head) comm->run_queue.last = NULL;
    comm->run_queue.running = false;
    operation_complete(op, status);
}
/* Ends the failed operation and those queued behind it, once no peer touches its tensors. The driver calls it again
   until then. */
static void fail_all(tutti_comm *comm)
{
    driver_take_intake(comm);
    bool back = messages_cancel(comm), running = comm->run_queue.running;
    if (running && !launch_cancel(comm)) back = false;
    if (!back) { router_poll(comm->router); return; }
    messages_fail(comm, comm->outcome.status);
    if (running && comm->executor.run.exposed && !tensors_are_released(comm)) return;
    while (comm->run_queue.head) leave_queue(comm, comm->outcome.status);
}
/* Continues the head as far as it gets. */
static tutti_status driver_advance(tutti_comm *comm)
{
    struct run_queue *b = &comm->run_queue;
    if (!b->running) {
        b->head->sequence = ++b->sequence;
        if (comm->agreement) agreement_announce(comm->agreement);
        TRY(launch_start(comm, b->head));
        b->running = true;
        if (comm->agreement) agreement_begin(comm);
    }
    return launch_step(comm, b->head);
}
/* Fails the communicator because the head has failed. */
static void driver_fail(tutti_comm *comm, tutti_status status)
{
    if (status == TUTTI_MISMATCH) comm_mismatch(comm);
    else if (!failure_is_told(comm, status)) comm_fail(comm, status, "%s", status_detail());
    if (comm_has_failed(comm)) fail_all(comm);
    else comm->run_queue.stuck = true;
}
/* The last check before the head succeeds. False: it, or an operation before it, is known to fail on another rank. */
static bool may_end(tutti_comm *comm)
{
    if (!comm->agreement || agreement_may_end(comm->agreement, comm->run_queue.head->sequence)) return true;
    comm->run_queue.stuck = true;
    return false;
}
/* Handles the status of the last step of the head. */
static void driver_settle(tutti_comm *comm, tutti_status status)
{
    if (status == TUTTI_IN_PROGRESS) return;
    if (status != TUTTI_OK) driver_fail(comm, status);
    else if (may_end(comm)) leave_queue(comm, TUTTI_OK);
}
void driver_begin(tutti_comm *comm, struct operation *op)
{
    op->next = NULL;
    comm->run_queue.head = comm->run_queue.last = op;
    driver_settle(comm, driver_advance(comm));
}
void driver_go_on(tutti_comm *comm, struct operation *op, tutti_status status)
{
    op->next = NULL;
    comm->run_queue.head = comm->run_queue.last = op;
    comm->run_queue.running = true;
    driver_settle(comm, status);
}
bool driver_progress(tutti_comm *comm, struct wait_set *blocked)
{
    driver_take_intake(comm);
    bool moved = comm->messages.open && messages_progress(comm, blocked);
    if (comm->messages.open && !moved) blocked->core_is_wanted |= executor_core_is_wanted(&comm->executor);
    if (comm_has_failed(comm)) { fail_all(comm); return moved; }
    while (comm->run_queue.head && !comm->run_queue.stuck) {
        uint64_t moves = comm->executor.moves;
        tutti_status status = driver_advance(comm);
        moved |= comm->executor.moves != moves;
        if (status == TUTTI_IN_PROGRESS) {
            const struct wait_set *b = &comm->executor.blocked;
            blocked->core_is_wanted |= b->core_is_wanted;
            blocked->soon |= b->soon;
            for (int i = 0; i < b->count; i++)
                wait_add(blocked, b->item[i].word, b->item[i].seen, b->item[i].waiters, b->item[i].shared);
            break;
        }
        moved = true;
        if (status != TUTTI_OK) { driver_fail(comm, status); break; }
        if (may_end(comm)) leave_queue(comm, TUTTI_OK);
    }
    return moved;
}
/* A rank may have lost its core for a long time. An operation that its peers completed before the reason to fail came
   must not fail because of that reason. So the driver first continues as far as it gets. */
bool operations_check(tutti_comm *comm)
{
    struct wait_set unused = { .count = 0 };
    if (comm->agreement) agreement_poll(comm);
    if (!comm_is_alerted(comm)) return false;
    bool moved = driver_progress(comm, &unused);
    /* No open operation is left to fail. */
    if (moved && !driver_has_open(comm)) return true;
    if (comm_check(comm) == TUTTI_OK) return moved;
    fail_all(comm);
    return true;
}
void operations_go_on(tutti_comm *comm)
{
    struct wait_set unused = { .count = 0 };
    int64_t until_ms = clock_ms() + GO_ON_MS;
    while (driver_has_open(comm) && clock_ms() < until_ms && driver_progress(comm, &unused)) unused.count = 0;
}
bool driver_check(tutti_comm *comm, int64_t n)
{
    bool fruitless = n % CHECK_EVERY == CHECK_EVERY - 1;
    if (fruitless) peers_rouse(comm);
    return (fruitless || ++comm->run_queue.visits % 1024 == 0) && operations_check(comm);
}
int64_t driver_soon(int64_t n) { return (n | (CHECK_EVERY - 1)) + CHECK_EVERY - 1; }
bool operations_abandon(tutti_comm *comm)
{
    comm_check(comm);
    if (!comm_has_failed(comm)) return false;
    fail_all(comm);
    return !driver_has_open(comm);
}

/* ---- the role ---- */
void driver_call(tutti_comm *comm) { word_ring(&comm->gate.bell, &comm->gate.bell_waiters, false); }
void comm_call(tutti_comm *comm)
{
    driver_call(comm);
    engine_ring();
}
bool driver_try(tutti_comm *comm)
{
    _Atomic uint32_t *driver = &comm->gate.driver;
    return !atomic_load_explicit(driver, memory_order_relaxed)
        && !atomic_exchange_explicit(driver, 1, memory_order_acquire);
}
void driver_leave(tutti_comm *comm) { atomic_store_explicit(&comm->gate.driver, 0, memory_order_release); }
void driver_acquire(tutti_comm *comm)
{
    for (int64_t n = 0; !driver_try(comm); n++) comm_pause(comm, n);
}
/* An operation that is submitted at this moment may be missed here. Its thread schedules the progress thread, which
   restarts its backoff for every request and so polls much longer than a store takes to become visible. The
   communicator may be freed after this call. */
void driver_release(tutti_comm *comm)
{
    bool open = driver_has_open(comm), deferred = open && rest_is_possible(comm), rested = comm->gate.resting;
    rest_record(comm, deferred);
    /* A deferred operation is not timed, because its time depends on when its caller comes back. */
    if (deferred) comm->launcher.timed = false;
    if (deferred) atomic_store_explicit(&comm->executor.site.contact->listening, DEFERRED, memory_order_relaxed);
    else if (!open || rested) comm_awake(comm);
    /* Operations that were deferred before are in the progress list already. */
    bool asks = open && !(deferred && rested) && (engine_list_add(comm) || !deferred);
    driver_leave(comm);
    /* Wakes the thread only when the role is free. Otherwise it would find the role taken and sleep again. */
    if (asks) engine_ring();
}

/* ---- driving ---- */
void driver_drive(tutti_comm *comm, struct operation *op)
{
    comm_awake(comm);
    for (int64_t n = 0; !operation_is_over(op); n++) {
        struct wait_set blocked;
        wait_clear(&blocked);
        uint32_t bell = atomic_load_explicit(&comm->gate.bell, memory_order_acquire);
        if (driver_progress(comm, &blocked) || driver_check(comm, n)) { n = -1; continue; }
        bool alone = op->family == POINT_TO_POINT && message_is_alone(comm, op);
        if (alone && message_take_back(comm, op)) return;
        wait_add(&blocked, &comm->gate.bell, bell, &comm->gate.bell_waiters, false);
        if (backoff_step(&comm->group.backoff, n, blocked.core_is_wanted)) continue;
        /* A message may be over as soon as it is accepted, which does not count as progress. */
        bool sleeps = !operation_is_over(op) && !comm_has_decision(comm) && router_arm(comm->router);
        if (sleeps) wait_sleep(&blocked, atomic_load(&most_sleep_ms));
        n = driver_soon(n);
    }
}
bool driver_drive_briefly(tutti_comm *comm, int turns)
{
    bool moved = false;
    for (int n = 0; n < turns && driver_has_open(comm); n++) {
        struct wait_set blocked;
        wait_clear(&blocked);
        if (driver_progress(comm, &blocked)) { moved = true; continue; }
        if (blocked.core_is_wanted || n == turns - 1) break;
        pause_briefly();
    }
    return moved;
}
