/* The thread alone removes entries from its list, and ends when the list is empty. Others add entries with the lock. */
#include "backend/engine/stream_thread.h"
#include "backend/base/thread.h"
#include "backend/engine/comm.h"
#include "backend/engine/stream_close.h"
#include "backend/engine/stream_progress.h"
#include "backend/host/wait.h"
#include <time.h>

/* The thread polls open operations after 50 us, and after pauses that grow to 1 ms. Idle streams are polled every
   20 ms, because a rank that enqueues nothing must still release others after a failure. */
enum { SHORTEST_PAUSE_NS = 50000, LONGEST_PAUSE_NS = 1000000, IDLE_POLL_MS = 20 };
static struct stream_thread {
    pthread_mutex_t lock;
    bool is_running;
    struct stream_comm *list;
    _Atomic uint32_t bell, sleepers;
} stream_thread = { .lock = PTHREAD_MUTEX_INITIALIZER };

void stream_thread_reset_after_fork(void)
{
    stream_thread = (struct stream_thread){ .lock = PTHREAD_MUTEX_INITIALIZER };
}
void stream_thread_wake(void) { word_ring_bell(&stream_thread.bell, &stream_thread.sleepers, false); }

/* Takes an entry out of the list, and lets another thread free it. */
static void stream_thread_remove(struct stream_comm *streams)
{
    pthread_mutex_lock(&stream_thread.lock);
    struct stream_comm **at = &stream_thread.list;
    while (*at != streams) at = &(*at)->next;
    *at = streams->next;
    pthread_mutex_unlock(&stream_thread.lock);
    stream_comm_start_close(streams);
}
/* Returns the first entry. NULL: the list is empty, and the thread ends. */
static struct stream_comm *stream_thread_get_list(void)
{
    pthread_mutex_lock(&stream_thread.lock);
    struct stream_comm *first = stream_thread.list;
    if (!first) stream_thread.is_running = false;
    pthread_mutex_unlock(&stream_thread.lock);
    return first;
}
/* Visits all entries. Returns true if one of them has open operations. */
static bool stream_thread_visit_all(struct stream_comm *first, bool *progressed)
{
    bool open = false;
    for (struct stream_comm *streams = first, *next; streams; streams = next) {
        next = streams->next;
        enum stream_visit found = stream_comm_visit(streams, progressed);
        if (found == STREAM_VISIT_OVER) stream_thread_remove(streams);
        open |= found == STREAM_VISIT_OPEN;
    }
    return open;
}
static void *stream_thread_main(void *unused)
{
    long pause_ns = SHORTEST_PAUSE_NS;
    uint32_t bell_seen = 0;
    for (struct stream_comm *first; (first = stream_thread_get_list()) != NULL;) {
        struct wait_set set;
        uint32_t bell = atomic_load(&stream_thread.bell);
        bool progressed = bell != bell_seen;
        bell_seen = bell;
        wait_set_clear(&set);
        set.idle = true;
        wait_set_add(&set, &stream_thread.bell, bell, &stream_thread.sleepers, false);
        bool open = stream_thread_visit_all(first, &progressed);
        pause_ns = progressed ? SHORTEST_PAUSE_NS : pause_ns < LONGEST_PAUSE_NS ? 2 * pause_ns : LONGEST_PAUSE_NS;
        if (open) nanosleep(&(struct timespec){ 0, pause_ns }, NULL);
        else wait_set_sleep(&set, IDLE_POLL_MS);
    }
    return unused;
}
static tutti_status stream_thread_start(void)
{
    pthread_t thread;
    int refused = thread_start_blocking_signals(&thread, stream_thread_main, NULL);
    if (refused)
        return status_fail(TUTTI_SYSTEM,
            "cannot start the stream thread: pthread_create returned error %d (limit on threads? see ulimit -u)",
            refused);
    pthread_setname_np(thread, "tutti-streams");
    pthread_detach(thread);
    return TUTTI_OK;
}
tutti_status stream_thread_add(struct stream_comm *streams)
{
    tutti_status status = TUTTI_OK;
    pthread_mutex_lock(&stream_thread.lock);
    streams->next = stream_thread.list;
    stream_thread.list = streams;
    if (!stream_thread.is_running) status = stream_thread_start();
    if (status == TUTTI_OK) {
        stream_thread.is_running = true;
        atomic_fetch_add(&streams->holders, 1);
    } else {
        stream_thread.list = streams->next;
    }
    pthread_mutex_unlock(&stream_thread.lock);
    return status;
}
void stream_thread_leave(struct stream_comm *streams)
{
    int opening = STREAMS_OPENING, open = STREAMS_OPEN;
    /* If the other thread that opens it has not finished, it finds that here. */
    if (!streams || atomic_compare_exchange_strong(&streams->state, &opening, STREAMS_LEFT)) return;
    atomic_compare_exchange_strong(&streams->state, &open, STREAMS_LEAVING);
    for (int64_t n = 0; atomic_load(&streams->state) != STREAMS_LEFT; n++) {
        stream_thread_wake();
        group_back_off(&streams->comm->group, n);
    }
}
bool stream_thread_finish_opening(struct stream_comm *streams)
{
    int opening = STREAMS_OPENING;
    return atomic_compare_exchange_strong(&streams->state, &opening, STREAMS_OPEN);
}
void stream_thread_discard(struct stream_comm *streams)
{
    atomic_store(&streams->state, STREAMS_LEFT);
    stream_thread_wake();
}
