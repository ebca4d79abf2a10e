/* Who does the work. Each communicator has a driver: the one thread that may touch its queue and its executor. A
 * blocking call takes the role if it is free, so that on an idle group nothing stands between the caller and the
 * shared memory; otherwise, and for everything that is only started, there is one progress thread per process.
 * Whoever drives does all the work of the communicator, whoever's it is; when it leaves while something is left, it
 * hands the communicator to the progress thread.
 *
 * Submitting is a push on a list without locks. Nobody sleeps longer than MOST_MS without looking for reasons not
 * to. */
#include "backend/comm.h"
#include "backend/base/clock.h"
#include "backend/tensors.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_MS = 20, CHECK_EVERY = 64 };

/* ---- completion ---- */
static _Atomic uint32_t completions, completion_sleepers;  /* of the process: an operation's own memory may be gone */

void operation_complete(struct operation *op, tutti_status status)
{
    tutti_request *request = op->request;
    bool is_driven = op->comm->driven == op;
    if (op->uneven) free(op->uneven);
    op->uneven = NULL;
    op->status = status;
    if (status != TUTTI_OK) snprintf(op->detail, sizeof op->detail, "%.500s", op->comm->detail);
    if (!request) {
        atomic_store_explicit(&op->state, OPERATION_OVER, memory_order_release);
    } else {
        void (*done)(tutti_request *, void *) = request->done;
        void *context = request->context;
        request->source = op->family == POINT_TO_POINT ? op->transfer.source : -1;
        request->sequence = op->sequence;
        atomic_store_explicit(&op->state, OPERATION_OVER, memory_order_release);
        if (done) done(request, context);
    }
    if (is_driven) return;
    atomic_fetch_add(&completions, 1);
    if (atomic_load(&completion_sleepers)) word_wake(&completions, false);
}

/* ---- the queue; driver only ---- */
static bool has_open(const tutti_comm *comm) { return comm->head || comm->messages; }
static void accept(tutti_comm *comm, struct operation *op)
{
    op->next = NULL;
    if (atomic_load_explicit(&comm->failed, memory_order_relaxed)) { operation_complete(op, comm->status); return; }
    if (op->family == POINT_TO_POINT) { message_post(comm, op); return; }
    if (comm->tail) comm->tail->next = op;
    else comm->head = op;
    comm->tail = op;
}
static void take_intake(tutti_comm *comm)
{
    if (!atomic_load_explicit(&comm->intake, memory_order_relaxed)) return;
    struct operation *newest = atomic_exchange_explicit(&comm->intake, NULL, memory_order_acquire), *oldest = NULL;
    while (newest) {
        struct operation *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    while (oldest) {
        struct operation *next = oldest->next;
        accept(comm, oldest);
        oldest = next;
    }
}
static void leave_queue(tutti_comm *comm, tutti_status status)         /* the head is over */
{
    struct operation *op = comm->head;
    comm->head = op->next;
    if (!comm->head) comm->tail = NULL;
    comm->running = false;
    operation_complete(op, status);
}
/* The failed operation ends for its caller, and what is queued behind it, when no peer is at its tensors any more: this
   is called again until then. */
static void fail_all(tutti_comm *comm)
{
    take_intake(comm);
    messages_fail(comm, comm->status);
    if (comm->running) {
        executor_cancel(&comm->executor);
        if (comm->executor.exposed && !tensors_let_go(comm)) return;
    }
    while (comm->head) leave_queue(comm, comm->status);
}
static tutti_status begin(tutti_comm *comm)
{
    comm->head->sequence = ++comm->sequence;
    TRY(launch_prepare(comm, comm->head));
    TRY(executor_begin(&comm->executor));
    comm->running = true;
    return TUTTI_OK;
}
static tutti_status advance(tutti_comm *comm)                          /* the head, as far as it gets */
{
    if (!comm->running) TRY(begin(comm));
    if (!comm->executor.started) {
        tutti_status status = launch_decide(comm, comm->head);
        if (status != TUTTI_OK) return status;
    }
    return executor_step(&comm->executor);
}
static void fail(tutti_comm *comm, tutti_status status)                /* because of the head */
{
    if (status == TUTTI_MISMATCH) comm_mismatch(comm);
    else comm_fail(comm, status, "%s", status_detail());
    fail_all(comm);
}
/* As far as it gets without waiting. True: something moved. */
static bool progress(tutti_comm *comm, struct wait_set *blocked)
{
    take_intake(comm);
    bool moved = comm->messages && messages_progress(comm, blocked);
    if (comm->messages && !moved) blocked->in_the_way |= executor_is_in_the_way(&comm->executor);
    if (atomic_load_explicit(&comm->failed, memory_order_relaxed)) { fail_all(comm); return moved; }
    while (comm->head) {
        uint64_t moves = comm->executor.moves;
        tutti_status status = advance(comm);
        moved |= comm->executor.moves != moves;
        if (status == TUTTI_IN_PROGRESS) {
            const struct wait_set *b = &comm->executor.blocked;
            blocked->in_the_way |= b->in_the_way;
            for (int i = 0; i < b->count; i++) wait_add(blocked, b->item[i].word, b->item[i].seen, b->item[i].waiters,
                b->item[i].shared);
            break;
        }
        moved = true;
        if (status == TUTTI_OK) { leave_queue(comm, TUTTI_OK); continue; }
        fail(comm, status);
        break;
    }
    return moved;
}
/* Looks for a reason not to go on, in every 64th fruitless turn and every 1024th of any. True: there was one. */
static bool check(tutti_comm *comm, int n)
{
    bool due = n % CHECK_EVERY == CHECK_EVERY - 1 || ++comm->visits % 1024 == 0;
    if (!due || comm_check(comm) == TUTTI_OK) return false;
    fail_all(comm);
    return true;
}
static int soon(int n) { return (n | (CHECK_EVERY - 1)) + CHECK_EVERY - 1; }    /* the next turn looks */

bool operations_abandon(tutti_comm *comm)
{
    comm_check(comm);
    fail_all(comm);
    return !has_open(comm);
}

/* ---- the progress thread ---- */
static struct engine {
    pthread_mutex_t lock;                               /* of users, thread */
    int users;
    pthread_t thread;
    _Atomic bool stop;
    _Atomic uint32_t bell, sleepers;
    _Atomic(tutti_comm *) intake;
} engine = { .lock = PTHREAD_MUTEX_INITIALIZER };
static unsigned generation = 1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void after_fork(void)                                           /* in the child: no thread of ours lives here */
{
    generation++;
    engine = (struct engine){ .lock = PTHREAD_MUTEX_INITIALIZER };
}
static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }
unsigned process_generation(void) { return generation; }

static void ring(void)
{
    atomic_fetch_add(&engine.bell, 1);
    if (atomic_load(&engine.sleepers)) word_wake(&engine.bell, false);
}
static void schedule(tutti_comm *comm)
{
    if (atomic_fetch_add(&comm->scheduled, 1) == 0) {
        tutti_comm *first = atomic_load(&engine.intake);
        do comm->next_scheduled = first;
        while (!atomic_compare_exchange_weak(&engine.intake, &first, comm));
    }
    ring();
}
static void knock(tutti_comm *comm)
{
    atomic_fetch_add(&comm->knock, 1);
    if (atomic_load(&comm->knock_waiters)) word_wake(&comm->knock, false);
}
void comm_knock(tutti_comm *comm)
{
    knock(comm);
    ring();
}
bool driver_try(tutti_comm *comm)
{
    return !atomic_load_explicit(&comm->driver, memory_order_relaxed) && !atomic_exchange_explicit(&comm->driver, 1,
        memory_order_acquire);
}
void driver_acquire(tutti_comm *comm)
{
    for (int n = 0; !driver_try(comm); n++) comm_pause(comm, n);
}
/* What is submitted just now need not be looked for: whoever submits asks the progress thread, which tries again for
   much longer than a store takes to become visible. The communicator may be gone afterwards. */
void driver_release(tutti_comm *comm)
{
    if (has_open(comm)) schedule(comm);
    atomic_store_explicit(&comm->driver, 0, memory_order_release);
}
/* One visit of the progress thread: false when there is nothing left and it has let go; then the communicator may be
   gone. */
static bool visit(tutti_comm *comm, int n, struct wait_set *blocked, bool *moved)
{
    uint32_t asked = atomic_load(&comm->scheduled);
    if (!driver_try(comm)) return true;                 /* a caller drives, and will schedule what it leaves */
    *moved |= progress(comm, blocked);
    if (has_open(comm)) *moved |= check(comm, n);
    bool open = has_open(comm);
    atomic_store_explicit(&comm->driver, 0, memory_order_release);
    if (open) return true;
    return !atomic_compare_exchange_strong(&comm->scheduled, &asked, 0);      /* asked again meanwhile: stay */
}
static tutti_comm *visit_all(tutti_comm *list, int n, struct wait_set *blocked, bool *moved)
{
    tutti_comm *kept = NULL, *next;
    for (tutti_comm *comm = list; comm; comm = next) {
        int words = blocked->count;
        next = comm->next_scheduled;
        if (!visit(comm, n, blocked, moved)) {
            blocked->count = words;                     /* its memory may be unmapped from now on */
            continue;
        }
        comm->next_scheduled = kept;
        kept = comm;
    }
    return kept;
}
static void *progress_main(void *unused)
{
    struct ladder ladder = ladder_for(false);
    tutti_comm *list = NULL;
    for (int n = 0; !atomic_load(&engine.stop); n++) {
        struct wait_set blocked;
        bool moved = false;
        blocked.count = 0;
        blocked.in_the_way = false;
        wait_add(&blocked, &engine.bell, atomic_load(&engine.bell), &engine.sleepers, false);
        tutti_comm *arrived = atomic_exchange(&engine.intake, NULL), *next;
        for (; arrived; arrived = next) {
            next = arrived->next_scheduled;
            arrived->next_scheduled = list;
            list = arrived;
            moved = true;
        }
        list = visit_all(list, n, &blocked, &moved);
        if (moved) n = -1;
        else if (!list) wait_sleep(&blocked, 1000);
        /* time has passed: check at the next visit */
        else if (ladder_climb(&ladder, n, &blocked, MOST_MS)) n = soon(n);
    }
    return unused;
}
static tutti_status start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    atomic_store(&engine.stop, false);
    pthread_sigmask(SIG_SETMASK, &all, &before);        /* signals are the program's, not ours */
    int refused = pthread_create(&engine.thread, NULL, progress_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (refused) return status_fail(TUTTI_SYSTEM,
        "cannot start the progress thread: pthread_create gave error %d (limit on threads? see ulimit -u)", refused);
    pthread_setname_np(engine.thread, "tutti-progress");
    return TUTTI_OK;
}
tutti_status engine_acquire(void)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&engine.lock);
    tutti_status status = engine.users++ ? TUTTI_OK : start_thread();
    if (status != TUTTI_OK) engine.users--;
    pthread_mutex_unlock(&engine.lock);
    return status;
}
void engine_release(void)
{
    pthread_mutex_lock(&engine.lock);
    if (--engine.users == 0) {
        atomic_store(&engine.stop, true);
        ring();
        pthread_join(engine.thread, NULL);
    }
    pthread_mutex_unlock(&engine.lock);
}
void engine_forget(tutti_comm *comm)
{
    for (int n = 0; atomic_load(&comm->scheduled); n++) {
        ring();
        comm_pause(comm, n);
    }
}

/* ---- what callers do ---- */
static bool is_over(const struct operation *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) == OPERATION_OVER;
}
static void drive(tutti_comm *comm, struct operation *op)              /* until the operation is over */
{
    for (int n = 0; !is_over(op); n++) {
        struct wait_set blocked;
        blocked.count = 0;
        blocked.in_the_way = false;
        uint32_t knock = atomic_load_explicit(&comm->knock, memory_order_acquire);
        if (progress(comm, &blocked) || check(comm, n)) { n = -1; continue; }
        wait_add(&blocked, &comm->knock, knock, &comm->knock_waiters, false);
        if (ladder_climb(&comm->ladder, n, &blocked, MOST_MS)) n = soon(n);
    }
}
tutti_status operation_result(const struct operation *op)
{
    return op->status == TUTTI_OK ? TUTTI_OK : status_repeat(op->status, op->detail);
}
static void submit(tutti_comm *comm, struct operation *op)
{
    struct operation *newest = atomic_load_explicit(&comm->intake, memory_order_relaxed);
    atomic_fetch_add(&comm->inside, 1);
    do op->next = newest;
    while (!atomic_compare_exchange_weak_explicit(&comm->intake, &newest, op, memory_order_release,
        memory_order_relaxed));
    schedule(comm);
    knock(comm);
    atomic_fetch_sub(&comm->inside, 1);
}
static bool is_idle(const tutti_comm *comm)
{
    return !has_open(comm) && !atomic_load_explicit(&comm->intake, memory_order_relaxed)
        && !atomic_load_explicit(&comm->failed, memory_order_relaxed);
}
/* A blocking call, by whoever has become the driver. If nothing else is to be done and the peers are quick, there is no
   queue and no polling between the call and the shared memory. */
static tutti_status run_as_driver(tutti_comm *comm, struct operation *op)
{
    comm->driven = op;
    if (is_idle(comm) && op->family != POINT_TO_POINT) {
        op->next = NULL;
        comm->head = comm->tail = op;
        tutti_status status = advance(comm);
        if (status == TUTTI_OK) leave_queue(comm, TUTTI_OK);
        else if (status != TUTTI_IN_PROGRESS) fail(comm, status);
    } else {
        take_intake(comm);
        accept(comm, op);
    }
    if (!is_over(op)) drive(comm, op);
    comm->driven = NULL;
    driver_release(comm);
    return operation_result(op);
}
tutti_status operation_run(struct operation *op, bool blocking)
{
    tutti_comm *comm = op->comm;
    atomic_store_explicit(&op->state, OPERATION_PENDING, memory_order_relaxed);
    if (blocking && driver_try(comm)) return run_as_driver(comm, op);
    submit(comm, op);
    return blocking ? operation_wait(op, 0) : TUTTI_OK;
}
static void shorten_deadline(struct operation *op, int64_t timeout_ms)
{
    int64_t wanted = clock_deadline(timeout_ms), now = atomic_load(&op->deadline_ms);
    while (!now || wanted < now)
        if (atomic_compare_exchange_weak(&op->deadline_ms, &now, wanted)) {
            atomic_store(&op->timeout_ms, timeout_ms);
            return;
        }
}
tutti_status operation_wait(struct operation *op, int64_t timeout_ms)
{
    if (is_over(op)) return operation_result(op);                      /* its communicator may be gone */
    tutti_comm *comm = op->comm;
    atomic_fetch_add(&comm->inside, 1);
    if (timeout_ms > 0) shorten_deadline(op, timeout_ms);
    for (int n = 0;; n++) {
        struct wait_set set;
        set.count = 0;
        set.in_the_way = atomic_load(&comm->executor.mine->core) == wait_core();       /* the driver's */
        wait_add(&set, &completions, atomic_load(&completions), &completion_sleepers, false);
        if (is_over(op)) break;
        if (driver_try(comm)) {
            drive(comm, op);
            driver_release(comm);
            break;
        }
        ladder_climb(&comm->ladder, n, &set, MOST_MS);
    }
    atomic_fetch_sub(&comm->inside, 1);
    return operation_result(op);
}
