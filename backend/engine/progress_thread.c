/* One thread drives all communicators of the process that are in its list. */
#include "backend/engine/progress_thread.h"
#include "backend/base/clock.h"
#include "backend/base/thread.h"
#include "backend/engine/comm.h"
#include <pthread.h>

/* How long an idle communicator stays in the list, and how many may stay. */
enum { IDLE_MS = 1000, MOST_IDLE = 8 };

static struct progress_thread {
    /* Guards users and thread. */
    pthread_mutex_t lock;
    int users;
    pthread_t thread;
    /* The backoff of the thread. */
    struct backoff backoff;
    _Atomic bool stop;
} progress_thread = { .lock = PTHREAD_MUTEX_INITIALIZER };

void progress_thread_reset_after_fork(void)
{
    progress_thread = (struct progress_thread){ .lock = PTHREAD_MUTEX_INITIALIZER };
}
/* The result of one visit of the progress thread. OPEN: operations are open, so the thread keeps polling. IDLE: the
   thread has no work there, but keeps the communicator in the list and its bell among the words that it sleeps on. So a
   caller that leaves deferred operations need not wake the thread. GONE: the communicator has left the list and may be
   freed. */
enum visit { OPEN, IDLE, GONE };
/* Renews the time for which a communicator without open operations stays in the list, IDLE_MS, if it is active. Returns
   true if it stays: that time has not passed, and it need not stop. */
static bool comm_renew_listing(tutti_comm *comm, bool is_active)
{
    if (atomic_load_explicit(&comm->outcome.stop, memory_order_relaxed)) return false;
    int64_t now = clock_ms();
    if (is_active) comm->progress_entry.idle_until_ms = now + IDLE_MS;
    return now < comm->progress_entry.idle_until_ms;
}
/* Drives a communicator for one turn, unless another thread does. n: the turns of the thread without progress.
   may_stay: the communicator may stay in the list without work. `blocked` gets the words to sleep on, and *progressed
   becomes true if an operation made progress or a new request came. */
static enum visit progress_thread_visit(tutti_comm *comm, int64_t n, bool may_stay, struct wait_set *blocked,
    bool *progressed)
{
    uint64_t requests = atomic_load(&comm->progress_entry.requests);
    struct control *mine = comm->executor.site.contact;
    wait_set_add(blocked, &mine->bell, atomic_load(&mine->bell), &mine->bell_waiters, true);
    /* A caller drives, and schedules the thread if it leaves open operations. A request that came since the last visit
       counts as progress, so that the thread does not miss it. */
    if (!driver_try_acquire(comm)) {
        *progressed |= requests != comm->progress_entry.handled && requests != comm->progress_entry.seen;
        comm->progress_entry.seen = requests;
        return requests == comm->progress_entry.handled ? IDLE : OPEN;
    }
    bool is_active = requests != comm->progress_entry.handled || comm->progress_entry.was_open,
         progressed_here = driver_make_progress(comm, blocked);
    *progressed |= requests != comm->progress_entry.handled;
    comm->progress_entry.handled = requests;
    if (driver_is_needed(comm)) progressed_here |= driver_check_periodically(comm, n);
    bool open = comm->progress_entry.was_open = driver_is_needed(comm);
    /* Peers need not ring a communicator that is polled. If messages are open, messages_make_progress decides about the
       bell. */
    if (!open || atomic_load_explicit(&mine->listening, memory_order_relaxed) == DEFERRED) comm_stop_listening(comm);
    if (open && !progressed_here && backoff_wants_sleep(&progress_thread.backoff, n, blocked->core_is_wanted))
        progressed_here = comm_has_decision(comm) || !router_arm(comm->router);
    driver_set_deferred(comm, open && !progressed_here && n >= comm->group.backoff.pauses && driver_may_defer(comm));
    *progressed |= progressed_here;
    driver_release_role(comm);
    if (open) return OPEN;
    if (may_stay && comm_renew_listing(comm, is_active)) return IDLE;
    /* A request that came meanwhile keeps the communicator in the list. */
    return atomic_compare_exchange_strong(&comm->progress_entry.requests, &requests, 0) ? GONE : OPEN;
}
/* Visits all communicators of the list. Returns true if one of them has open operations. */
static bool progress_thread_visit_all(tutti_comm **list, int64_t n, struct wait_set *blocked, bool *progressed)
{
    tutti_comm *kept = NULL, *next;
    bool open = false;
    int idle = 0;
    for (tutti_comm *comm = *list; comm; comm = next) {
        int words = blocked->count;
        next = comm->progress_entry.next;
        enum visit found = progress_thread_visit(comm, n, idle < MOST_IDLE, blocked, progressed);
        if (found == GONE) {
            /* The words are dropped, because their memory may be unmapped from now on. */
            blocked->count = words;
            continue;
        }
        open |= found == OPEN;
        idle += found == IDLE;
        comm->progress_entry.next = kept;
        kept = comm;
    }
    *list = kept;
    return open;
}
/* Drives the communicators of the list, and sleeps when none makes progress, until `stop`. */
static void *progress_thread_main(void *unused)
{
    tutti_comm *list = NULL;
    for (int64_t n = 0; !atomic_load(&progress_thread.stop); n++) {
        struct wait_set blocked;
        wait_set_clear(&blocked);
        progress_list_await(&blocked);
        bool progressed = progress_list_take_added(&list);
        bool open = progress_thread_visit_all(&list, n, &blocked, &progressed), sleeps = !open && !progressed;
        if (!sleeps && !progressed) sleeps = !backoff_step(&progress_thread.backoff, n, blocked.core_is_wanted);
        blocked.idle = !open;
        if (sleeps) wait_set_sleep(&blocked, list ? atomic_load(&most_sleep_ms) : 1000);
        /* After a sleep the next visit checks for failures. */
        if (progressed || !list) n = -1;
        else if (sleeps) n = driver_turn_before_check(n);
    }
    return unused;
}
static tutti_status progress_thread_start(void)
{
    atomic_store(&progress_thread.stop, false);
    progress_thread.backoff = backoff_for_thread(false);
    int refused = thread_start_blocking_signals(&progress_thread.thread, progress_thread_main, NULL);
    if (refused)
        return status_fail(TUTTI_SYSTEM,
            "cannot start the progress thread: pthread_create returned error %d (limit on threads? see ulimit -u)",
            refused);
    pthread_setname_np(progress_thread.thread, "tutti-progress");
    return TUTTI_OK;
}
tutti_status progress_thread_acquire(void)
{
    pthread_mutex_lock(&progress_thread.lock);
    tutti_status status = progress_thread.users++ ? TUTTI_OK : progress_thread_start();
    if (status != TUTTI_OK) progress_thread.users--;
    pthread_mutex_unlock(&progress_thread.lock);
    return status;
}
void progress_thread_release(void)
{
    pthread_mutex_lock(&progress_thread.lock);
    if (--progress_thread.users == 0) {
        atomic_store(&progress_thread.stop, true);
        progress_thread_wake();
        pthread_join(progress_thread.thread, NULL);
    }
    pthread_mutex_unlock(&progress_thread.lock);
}
