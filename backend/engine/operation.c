/* Callers run an operation, wait for it and test it. A caller that gets the role of the driver drives the operation
   itself. */
#include "backend/base/clock.h"
#include "backend/engine/comm.h"

/* This many polls take about as long as waking the progress thread. */
enum { POLLS_BEFORE_WAKING = 50 };
/* Tests without progress, after which this rank rings its peers. Few suffice, because tests are far apart. */
enum { IDLE_TESTS = 8 };
/* A thread that waits without sleeping looks for interrupts once in so many turns. */
enum { LOOK_EVERY = 64 };

void operation_init(struct operation *out, tutti_comm *comm, int collective, uint64_t count, tutti_dtype dtype,
    int root)
{
    out->comm = comm;
    out->collective = collective;
    out->count = count;
    out->dtype = dtype;
    out->root = root;
    out->generation = process_generation();
    out->request = NULL;
    out->algorithm = NULL;
    out->sum.rows.function = NULL;
    out->uneven = NULL;
    out->sum.reduce = NULL;
    out->op = TUTTI_SUM;
    out->bits = 0;
    out->sequence = 0;
    out->queued.queue = NULL;
    out->message.tag = 0;
    atomic_init(&out->limit.deadline_ms, 0);
    out->limit.checked_ms = out->limit.alone_ms = 0;
    out->limit.was_stopped = false;
    atomic_init(&out->detached, false);
    out->refused = false;
}
/* Pushes an operation onto the submission list, and wakes the driver or the progress thread. */
static void operation_submit(tutti_comm *comm, struct operation *op)
{
    struct operation *newest = atomic_load_explicit(&comm->submission.submitted, memory_order_relaxed);
    atomic_fetch_add(&comm->submission.inside, 1);
    if (atomic_load(&comm->submission.closed)) {
        atomic_fetch_sub(&comm->submission.inside, 1);
        operation_reject_closed(op);
        return;
    }
    do op->next = newest;
    while (!atomic_compare_exchange_weak_explicit(&comm->submission.submitted, &newest, op, memory_order_release,
        memory_order_relaxed));
    progress_thread_schedule(comm);
    driver_wake(comm);
    atomic_fetch_sub(&comm->submission.inside, 1);
}
/* Waits until the operation is over, by driving it if this thread can get the role, or until the thread's check for
   interrupts is due. Returns true if it is over. The caller is inside the communicator, and is outside afterwards. */
static bool operation_await(struct operation *op, struct interrupt_timer *timer)
{
    tutti_comm *comm = op->comm;
    bool is_due = false;
    for (int64_t n = 0; !is_due; n++) {
        struct wait_set set;
        wait_set_clear(&set);
        /* This thread must yield the core if the driver last waited on the same core. */
        set.core_is_wanted = atomic_load(&comm->executor.site.own_control->core) == wait_core();
        completions_await(&set);
        if (operation_is_over(op)) break;
        if (driver_try_acquire(comm)) {
            bool is_over = driver_drive(comm, op, timer);
            /* The role now keeps the communicator from being destroyed. */
            atomic_fetch_sub(&comm->submission.inside, 1);
            driver_hand_over_role(comm);
            return is_over;
        }
        bool sleeps = !backoff_step(&comm->group.backoff, n, set.core_is_wanted);
        if (sleeps) wait_set_sleep(&set, atomic_load(&most_sleep_ms));
        if (!sleeps && n % LOOK_EVERY != LOOK_EVERY - 1) continue;
        activity_begin(comm, op);
        is_due = interrupt_is_due(timer);
    }
    if (!is_due) activity_end(comm, op);
    atomic_fetch_sub(&comm->submission.inside, 1);
    return !is_due;
}
/* Fails the communicator because this rank was interrupted, waits until the operation is over, and returns an error in
   any case. */
static tutti_status operation_end_interrupted(struct operation *op)
{
    if (operation_enter_comm(op)) {
        failure_request_interrupt(op->comm);
        operation_await(op, NULL);
    }
    TRY(operation_get_result(op));
    return status_repeat(TUTTI_ABORTED, "this thread was interrupted while it waited");
}
/* Runs the check for interrupts, which is due, and goes on to wait for the operation. */
static tutti_status operation_check_and_wait(struct operation *op, struct interrupt_timer *timer)
{
    do {
        if (interrupt_run_check()) return operation_end_interrupted(op);
    } while (operation_enter_comm(op) && !operation_await(op, timer));
    return operation_get_result(op);
}
/* Drives the operation to its end, hands over the role of the driver, and returns the result. */
static tutti_status operation_end_as_driver(tutti_comm *comm, struct operation *op)
{
    struct interrupt_timer timer = { 0 };
    bool is_over = operation_is_over(op) || driver_drive(comm, op, &timer);
    comm->run_queue.driven = NULL;
    driver_hand_over_role(comm);
    return is_over ? operation_get_result(op) : operation_check_and_wait(op, &timer);
}
/* Runs a blocking call as the driver. On an idle communicator with quick peers, no queue and no polling stand between
   the call and the shared memory. */
static tutti_status operation_run_as_driver(tutti_comm *comm, struct operation *op)
{
    comm->run_queue.driven = op;
    if (driver_is_idle(comm) && op->collective < POINT_TO_POINT) {
        driver_begin(comm, op);
    } else {
        driver_take_submitted(comm);
        driver_accept_operation(comm, op);
    }
    return operation_end_as_driver(comm, op);
}
tutti_status operation_continue(struct operation *op, tutti_status status)
{
    atomic_init(&op->state, OPERATION_PENDING);
    atomic_init(&op->limit.timeout_ms, op->comm->timeout_ms);
    op->comm->run_queue.driven = op;
    driver_continue_operation(op->comm, op, status);
    return operation_end_as_driver(op->comm, op);
}
/* Starts a small asynchronous operation on the calling thread, and drives it for one turn: the thread publishes this
   rank's part, and if all other parts are there already, the operation is over. Returns false if the operation is
   large, another thread drives, or operations are open that are not deferred. */
static bool operation_start_as_driver(tutti_comm *comm, struct operation *op)
{
    if (!operation_is_small(comm, op) || !driver_try_acquire(comm)) return false;
    if (!driver_is_idle(comm) && !comm->submission.deferred) {
        driver_release_role(comm);
        return false;
    }
    driver_take_submitted(comm);
    driver_accept_operation(comm, op);
    driver_drive_briefly(comm, 1);
    driver_hand_over_role(comm);
    return true;
}
tutti_status operation_run(struct operation *op, bool blocking)
{
    tutti_comm *comm = op->comm;
    atomic_store_explicit(&op->state, OPERATION_PENDING, memory_order_relaxed);
    if (blocking && driver_try_acquire(comm)) return operation_run_as_driver(comm, op);
    if (!blocking && operation_start_as_driver(comm, op)) return TUTTI_OK;
    operation_submit(comm, op);
    return blocking ? operation_wait(op, 0) : TUTTI_OK;
}
/* Lowers the deadline of an operation to `timeout_ms` from now, if that is earlier. */
static void operation_shorten_deadline(struct operation *op, int64_t timeout_ms)
{
    int64_t wanted = clock_deadline(timeout_ms), now = atomic_load(&op->limit.deadline_ms);
    while (wanted < (now ? now : clock_deadline(atomic_load(&op->limit.timeout_ms))))
        if (atomic_compare_exchange_weak(&op->limit.deadline_ms, &now, wanted)) {
            atomic_store(&op->limit.timeout_ms, timeout_ms);
            return;
        }
}
/* Waits until no thread is inside an operation of the communicator. A thread that has found its operation open is
   entering until it is inside. */
static void comm_await_callers(const tutti_comm *comm)
{
    for (int64_t n = 0; operations_are_entering(); n++) group_back_off(&comm->group, n);
    for (int64_t n = 0; atomic_load(&comm->submission.inside); n++) group_back_off(&comm->group, n);
}
/* A thread that calls from now on takes the role and finds the failure, or submits and finds `closed`, or is counted in
   `inside` and awaited. A thread that submitted just before is not counted again until it waits for its operation. So
   this function ends all operations and then awaits threads once more. Afterwards other threads can only take the role
   for a moment, until this function has it for good. */
void operations_close_comm(tutti_comm *comm)
{
    atomic_store(&comm->submission.closed, true);
    comm_await_callers(comm);
    driver_acquire_role(comm);
    driver_take_submitted(comm);
    driver_hand_over_role(comm);
    comm_await_callers(comm);
    progress_list_await_removal(comm);
    driver_acquire_role(comm);
}
/* Sleeps until the stream thread has ended the operation. The communicator may be destroyed meanwhile. */
static tutti_status operation_wait_for_stream(struct operation *op, int64_t timeout_ms)
{
    if (timeout_ms > 0) operation_shorten_deadline(op, timeout_ms);
    for (;;) {
        struct wait_set set;
        wait_set_clear(&set);
        completions_await(&set);
        if (operation_is_over(op)) return operation_get_result(op);
        wait_set_sleep(&set, atomic_load(&most_sleep_ms));
    }
}
tutti_status operation_wait(struct operation *op, int64_t timeout_ms)
{
    if (operation_is_on_stream(op)) return operation_wait_for_stream(op, timeout_ms);
    struct interrupt_timer timer = { 0 };
    if (!operation_enter_comm(op)) return operation_get_result(op);
    if (timeout_ms > 0) operation_shorten_deadline(op, timeout_ms);
    return operation_await(op, &timer) ? operation_get_result(op) : operation_check_and_wait(op, &timer);
}
/* Drives the communicator for at most `turns` turns if its operations are deferred, because no other thread drives them
   then. After each IDLE_TESTS calls without progress it rings peers that have deferred their part. */
static void operation_drive_briefly(struct operation *op, int turns)
{
    tutti_comm *comm = op->comm;
    if (!operation_enter_comm(op)) return;
    bool drives = atomic_load_explicit(&comm->submission.deferred, memory_order_relaxed) && driver_try_acquire(comm);
    if (drives && driver_drive_briefly(comm, turns)) comm->run_queue.idle_tests = 0;
    else if (drives && ++comm->run_queue.idle_tests % IDLE_TESTS == 0) peers_ring_deferred(comm);
    /* If this thread drives, the role now keeps the communicator from being destroyed. */
    atomic_fetch_sub(&comm->submission.inside, 1);
    if (drives) driver_hand_over_role(comm);
}
tutti_status operation_test(struct operation *op)
{
    if (!operation_is_over(op) && !operation_is_on_stream(op)) operation_drive_briefly(op, 1);
    return operation_is_over(op) ? operation_get_result(op) : TUTTI_IN_PROGRESS;
}
void operation_detach(struct operation *op)
{
    if (operation_is_on_stream(op)) return;
    if (!operation_is_over(op)) operation_drive_briefly(op, POLLS_BEFORE_WAKING);
    if (!operation_enter_comm(op)) return;
    atomic_store_explicit(&op->detached, true, memory_order_relaxed);
    progress_thread_schedule(op->comm);
    atomic_fetch_sub(&op->comm->submission.inside, 1);
}
