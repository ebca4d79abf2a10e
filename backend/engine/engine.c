/* Who does the work. Each communicator has a driver: the one thread that may touch its queue and its executor. A
 * blocking call takes the role if it is free, so that on an idle group nothing stands between the caller and the
 * shared memory; otherwise, and for everything that is only started, there is one progress thread per process.
 * Whoever drives does all the work of the communicator, whoever's it is; when it leaves while something is left, it
 * hands the communicator to the progress thread, and wakes that unless what is left can rest (README.md): whoever
 * waits for it next will do it.
 *
 * Submitting is a push on a list without locks. Nobody sleeps longer than MOST_MS without looking for reasons not
 * to. */
#include "backend/comm/comm.h"
#include "backend/base/clock.h"
#include "backend/base/pause.h"
#include "backend/engine/tensors.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_MS = 20, CHECK_EVERY = 64, GO_ON_MS = 1000 };
enum { LINGER_MS = 1000, MOST_LINGERING = 8 };          /* the progress thread, with communicators that are idle */
enum { SMALL_BYTES = 131072, MOST_RESTING = 64 };       /* what may rest: operations of so many bytes on all ranks */
enum { POLLS_BEFORE_WAKING = 50 };                      /* about what it costs to wake the progress thread */
enum { VAIN_LOOKS = 8 };                                /* of callers that only test: they are far apart */

/* ---- completion ---- */
static _Atomic uint32_t completions, completion_sleepers;  /* of the process: an operation's own memory may be gone */

static void complete(struct operation *op, tutti_status status, const char *detail)
{
    tutti_request *request = op->request;
    bool is_driven = op->comm->driven == op;
    if (op->uneven) free(op->uneven);
    op->uneven = NULL;
    op->status = status;
    if (status != TUTTI_OK) snprintf(op->detail, sizeof op->detail, "%.500s", detail);
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
    word_ring(&completions, &completion_sleepers, false);
}
void operation_complete(struct operation *op, tutti_status status) { complete(op, status, op->comm->detail); }
void operation_refuse(struct operation *op, tutti_status status)
{
    if (op->request) op->request->refused = true;
    complete(op, status, status_detail());
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
            for (int i = 0; i < b->count; i++)
                wait_add(blocked, b->item[i].word, b->item[i].seen, b->item[i].waiters, b->item[i].shared);
            break;
        }
        moved = true;
        if (status == TUTTI_OK) { leave_queue(comm, TUTTI_OK); continue; }
        fail(comm, status);
        break;
    }
    return moved;
}
void comm_awake(tutti_comm *comm)
{
    _Atomic uint32_t *listening = &comm->executor.mine->listening;
    if (atomic_load_explicit(listening, memory_order_relaxed) != LISTENS_NOT)
        atomic_store_explicit(listening, LISTENS_NOT, memory_order_relaxed);
}
/* Somebody waits: peers whose part rests are to do it now. */
static void rouse_peers(const tutti_comm *comm)
{
    struct control *controls = comm_segment(comm)->controls;
    for (int r = 0; r < comm->size; r++)
        if (r != comm->rank && atomic_load_explicit(&controls[r].listening, memory_order_relaxed) == RESTS)
            word_ring(&controls[r].bell, &controls[r].bell_waiters, true);
}
/* A rank may have lost its core for long since it last looked at its peers, and what they had done when a reason to
   fail came does not fail because of it: so it goes on once more, as far as it gets. */
bool operations_check(tutti_comm *comm)
{
    struct wait_set unused = { .count = 0 };
    if (!comm_is_in_doubt(comm)) return false;
    bool moved = progress(comm, &unused);
    if (moved && !has_open(comm)) return true;          /* nothing is left that would have to fail */
    if (comm_check(comm) == TUTTI_OK) return moved;
    fail_all(comm);
    return true;
}
void operations_go_on(tutti_comm *comm)
{
    struct wait_set unused = { .count = 0 };
    int64_t until_ms = clock_ms() + GO_ON_MS;
    while (has_open(comm) && clock_ms() < until_ms && progress(comm, &unused)) unused.count = 0;
}
/* In every 64th fruitless turn and every 1024th of any. */
static bool check(tutti_comm *comm, int n)
{
    bool in_vain = n % CHECK_EVERY == CHECK_EVERY - 1;
    if (in_vain) rouse_peers(comm);
    return (in_vain || ++comm->visits % 1024 == 0) && operations_check(comm);
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
static _Atomic uint32_t entering;                       /* threads that look whether an operation is over */
static unsigned generation = 1;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void after_fork(void)                                           /* in the child: no thread of ours lives here */
{
    generation++;
    engine = (struct engine){ .lock = PTHREAD_MUTEX_INITIALIZER };
    atomic_store(&entering, 0);
}
static void prepare(void) { pthread_atfork(NULL, NULL, after_fork); }
unsigned process_generation(void) { return generation; }

static void ring(void) { word_ring(&engine.bell, &engine.sleepers, false); }
/* Into the progress thread's hands. False: it was there already, and so its bell is among what that thread sleeps
   on. */
static bool enlist(tutti_comm *comm)
{
    if (atomic_fetch_add(&comm->scheduled, 1)) return false;
    tutti_comm *first = atomic_load(&engine.intake);
    do comm->next_scheduled = first;
    while (!atomic_compare_exchange_weak(&engine.intake, &first, comm));
    return true;
}
static void schedule(tutti_comm *comm)
{
    enlist(comm);
    ring();
}
static void knock(tutti_comm *comm) { word_ring(&comm->knock, &comm->knock_waiters, false); }
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
static void driver_leave(tutti_comm *comm) { atomic_store_explicit(&comm->driver, 0, memory_order_release); }
void driver_acquire(tutti_comm *comm)
{
    for (int n = 0; !driver_try(comm); n++) comm_pause(comm, n);
}
/* What is open is so little that it can wait until somebody needs it, here or on another rank (README.md). */
static bool is_small(const tutti_comm *comm, const struct operation *op)
{
    return op->part_bytes <= SMALL_BYTES / (size_t)comm->size;
}
static bool is_urgent(const struct operation *op)
{
    const tutti_request *request = op->request;
    return !request || (request->done && !request->on_demand)
        || atomic_load_explicit(&op->hastened, memory_order_relaxed);
}
static bool all_may_rest(const tutti_comm *comm, const struct operation *op)
{
    for (int n = 0; op; op = op->next)
        if (++n > MOST_RESTING || !is_small(comm, op) || is_urgent(op)) return false;
    return true;
}
static bool may_rest(tutti_comm *comm)
{
    return !comm->reaching && !atomic_load_explicit(&comm->failed, memory_order_relaxed)
        && !atomic_load(&comm->inside) && all_may_rest(comm, comm->head) && all_may_rest(comm, comm->messages);
}
static void note_rest(tutti_comm *comm, bool rests)
{
    if (atomic_load_explicit(&comm->resting, memory_order_relaxed) == rests) return;
    atomic_store_explicit(&comm->resting, rests, memory_order_relaxed);
}
/* What is submitted just now need not be looked for: whoever submits asks the progress thread, which begins its ladder
   anew for every asking, much longer than a store takes to become visible. The communicator may be gone afterwards. */
void driver_release(tutti_comm *comm)
{
    bool open = has_open(comm), rests = open && may_rest(comm), rested = comm->resting;
    note_rest(comm, rests);
    if (rests) atomic_store_explicit(&comm->executor.mine->listening, RESTS, memory_order_relaxed);
    else if (!open || rested) comm_awake(comm);
    bool asks = open && !(rests && rested) && (enlist(comm) || !rests);      /* what rested has been enlisted before */
    driver_leave(comm);
    if (asks) ring();                                   /* only now, or the thread finds the role taken and sleeps */
}
/* One visit of the progress thread. OPEN: there is something to wait for awake. LINGERS: not, but it stays in the list,
   and the bell among what is slept on, so that whoever leaves something to rest there need not wake this thread. GONE:
   it has let go; then the communicator may be gone. */
enum visit { OPEN, LINGERS, GONE };
static bool lingers(tutti_comm *comm, bool active)
{
    if (atomic_load_explicit(&comm->stop, memory_order_relaxed)) return false;
    int64_t now = clock_ms();
    if (active) comm->lingers_until_ms = now + LINGER_MS;
    return now < comm->lingers_until_ms;
}
static enum visit visit(tutti_comm *comm, int n, bool may_linger, struct wait_set *blocked, bool *moved)
{
    uint64_t asked = atomic_load(&comm->scheduled);
    struct control *mine = comm->executor.mine;
    wait_add(blocked, &mine->bell, atomic_load(&mine->bell), &mine->bell_waiters, true);
    /* a caller drives, and will say so when it leaves something; who has asked before that is not to be missed */
    if (!driver_try(comm)) {
        *moved |= asked != comm->heard && asked != comm->noticed;
        comm->noticed = asked;
        return asked == comm->heard ? LINGERS : OPEN;
    }
    bool active = asked != comm->heard || comm->was_open, went = progress(comm, blocked);
    *moved |= asked != comm->heard;
    comm->heard = asked;
    if (has_open(comm)) went |= check(comm, n);
    bool open = comm->was_open = has_open(comm);
    /* a thread that sees to messages listens for them */
    if (!open || atomic_load_explicit(&mine->listening, memory_order_relaxed) == RESTS) comm_awake(comm);
    note_rest(comm, open && !went && n >= comm->ladder.pauses && may_rest(comm));
    *moved |= went;
    driver_leave(comm);
    if (open) return OPEN;
    if (may_linger && lingers(comm, active)) return LINGERS;
    return atomic_compare_exchange_strong(&comm->scheduled, &asked, 0) ? GONE : OPEN;     /* asked again meanwhile */
}
/* True: one of them is open. */
static bool visit_all(tutti_comm **list, int n, struct wait_set *blocked, bool *moved)
{
    tutti_comm *kept = NULL, *next;
    bool open = false;
    int lingering = 0;
    for (tutti_comm *comm = *list; comm; comm = next) {
        int words = blocked->count;
        next = comm->next_scheduled;
        enum visit found = visit(comm, n, lingering < MOST_LINGERING, blocked, moved);
        if (found == GONE) {
            blocked->count = words;                     /* its memory may be unmapped from now on */
            continue;
        }
        open |= found == OPEN;
        lingering += found == LINGERS;
        comm->next_scheduled = kept;
        kept = comm;
    }
    *list = kept;
    return open;
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
        bool open = visit_all(&list, n, &blocked, &moved), sleeps = !open && !moved;
        if (sleeps) wait_sleep(&blocked, list ? MOST_MS : 1000);
        else if (!moved) sleeps = ladder_climb(&ladder, n, &blocked, MOST_MS);
        if (moved || !list) n = -1;
        else if (sleeps) n = soon(n);                   /* time has passed: check at the next visit */
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
    comm_awake(comm);
    for (int n = 0; !is_over(op); n++) {
        struct wait_set blocked;
        blocked.count = 0;
        blocked.in_the_way = false;
        uint32_t knock = atomic_load_explicit(&comm->knock, memory_order_acquire);
        if (progress(comm, &blocked) || check(comm, n)) { n = -1; continue; }
        bool alone = op->family == POINT_TO_POINT && message_is_alone(comm, op);
        if (alone && message_take_back(comm, op)) return;
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
/* No longer than it takes to wake another thread, and not while a peer needs this core. */
static bool drive_briefly(tutti_comm *comm, int turns)  /* true: something moved */
{
    bool moved = false;
    for (int n = 0; n < turns && has_open(comm); n++) {
        struct wait_set blocked;
        blocked.count = 0;
        blocked.in_the_way = false;
        if (progress(comm, &blocked)) { moved = true; continue; }
        if (blocked.in_the_way || n == turns - 1) break;
        pause_briefly();
    }
    return moved;
}
/* One that is only started, by the thread that starts it, if it is small and nothing large is under way: it says its
   part to the other ranks, and if theirs is there already, it is over. */
static bool start_as_driver(tutti_comm *comm, struct operation *op)
{
    if (!is_small(comm, op) || !driver_try(comm)) return false;
    if (!is_idle(comm) && !comm->resting) {
        driver_leave(comm);
        return false;
    }
    take_intake(comm);
    accept(comm, op);
    drive_briefly(comm, 1);
    driver_release(comm);
    return true;
}
tutti_status operation_run(struct operation *op, bool blocking)
{
    tutti_comm *comm = op->comm;
    atomic_store_explicit(&op->state, OPERATION_PENDING, memory_order_relaxed);
    if (blocking && driver_try(comm)) return run_as_driver(comm, op);
    if (!blocking && start_as_driver(comm, op)) return TUTTI_OK;
    submit(comm, op);
    return blocking ? operation_wait(op, 0) : TUTTI_OK;
}
static void shorten_deadline(struct operation *op, int64_t timeout_ms)
{
    int64_t wanted = clock_deadline(timeout_ms), now = atomic_load(&op->deadline_ms);
    while (wanted < (now ? now : clock_deadline(atomic_load(&op->timeout_ms))))
        if (atomic_compare_exchange_weak(&op->deadline_ms, &now, wanted)) {
            atomic_store(&op->timeout_ms, timeout_ms);
            return;
        }
}
/* The communicator of an operation that is over may be gone. Whoever destroys it ends its operations, waits until
   nobody is entering, and then until nobody is inside. */
static bool enter(const struct operation *op)           /* false: it is over */
{
    atomic_fetch_add(&entering, 1);
    bool open = !is_over(op);
    if (open) atomic_fetch_add(&op->comm->inside, 1);
    atomic_fetch_sub(&entering, 1);
    return open;
}
void engine_await_leaving(tutti_comm *comm)
{
    for (int n = 0; atomic_load(&entering); n++) comm_pause(comm, n);
    for (int n = 0; atomic_load(&comm->inside) || atomic_load(&comm->driver); n++) comm_pause(comm, n);
}
tutti_status operation_wait(struct operation *op, int64_t timeout_ms)
{
    if (!enter(op)) return operation_result(op);
    tutti_comm *comm = op->comm;
    if (timeout_ms > 0) shorten_deadline(op, timeout_ms);
    for (int n = 0;; n++) {
        struct wait_set set;
        set.count = 0;
        set.in_the_way = atomic_load(&comm->executor.mine->core) == wait_core();       /* the driver's */
        wait_add(&set, &completions, atomic_load(&completions), &completion_sleepers, false);
        if (is_over(op)) break;
        if (driver_try(comm)) {
            drive(comm, op);
            atomic_fetch_sub(&comm->inside, 1);         /* now the driver is what keeps it from being destroyed */
            driver_release(comm);
            return operation_result(op);
        }
        ladder_climb(&comm->ladder, n, &set, MOST_MS);
    }
    atomic_fetch_sub(&comm->inside, 1);
    return operation_result(op);
}
/* If nobody else is to see to it, this thread does, for a moment. */
static void look_after(struct operation *op, int turns)
{
    tutti_comm *comm = op->comm;
    if (!enter(op)) return;
    bool drives = atomic_load_explicit(&comm->resting, memory_order_relaxed) && driver_try(comm);
    if (drives && drive_briefly(comm, turns)) comm->vain = 0;
    else if (drives && ++comm->vain % VAIN_LOOKS == 0) rouse_peers(comm);
    atomic_fetch_sub(&comm->inside, 1);                 /* now the driver is what keeps it from being destroyed */
    if (drives) driver_release(comm);
}
tutti_status operation_test(struct operation *op)
{
    if (!is_over(op)) look_after(op, 1);
    return is_over(op) ? operation_result(op) : TUTTI_IN_PROGRESS;
}
void operation_hasten(struct operation *op)
{
    if (!is_over(op)) look_after(op, POLLS_BEFORE_WAKING);
    if (!enter(op)) return;
    atomic_store_explicit(&op->hastened, true, memory_order_relaxed);
    schedule(op->comm);
    atomic_fetch_sub(&op->comm->inside, 1);
}
