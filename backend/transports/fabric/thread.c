/* The progress thread of a fabric, which makes progress while no rank polls. While ranks poll, it only checks every few
   milliseconds that they still do. When a rank sleeps, or no rank has polled since the last check, the thread waits for
   the fabric's file descriptor. It then passes arrivals to the transports and rings the bells of transports that sleep.
   So sends leave and peers get answers while a rank only computes. */
#include "backend/base/thread.h"
#include "backend/base/descriptor.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* How often the thread checks that ranks poll. */
enum { CHECK_MS = 5 };

void fabric_thread_wake(struct fabric *fabric)
{
    uint64_t one = 1;
    /* A write fails only if the counter is full, and then the thread is already awake. */
    ssize_t ignored = write(fabric->thread.waker, &one, sizeof one);
    (void)ignored;
}
/* Resets the eventfd that has woken the thread. */
static void fabric_thread_drain_waker(const struct fabric *fabric)
{
    uint64_t ignored;
    ssize_t unused = read(fabric->thread.waker, &ignored, sizeof ignored);
    (void)unused;
}
/* Makes progress and arms the network, while fabric->polling is NULL, so that messages which arrive in the call are
   saved. Then disconnects faulty endpoints. true: no work is left, so the thread may wait. */
static bool fabric_thread_arm(struct fabric *fabric)
{
    struct fabric_transport *polling = fabric->polling;
    fabric->polling = NULL;
    bool armed = fabric->operations->arm(fabric), ended = fabric->has_faulty && fabric_disconnect_faulty(fabric);
    fabric->polling = polling;
    return armed && !ended;
}
/* Sleeps without the lock until the thread is woken or, with waits_for_network, until the network has an event.
   waits_for_network false: leaves events to the ranks that poll. Then, and while fabric->needs_poll is set, it sleeps
   at most CHECK_MS. */
static void fabric_thread_wait(struct fabric *fabric, bool waits_for_network)
{
    struct pollfd both[] = { { fabric->thread.waker, POLLIN, 0 }, { fabric->event_descriptor, POLLIN, 0 } };
    int timeout_ms = waits_for_network && !fabric->needs_poll ? -1 : CHECK_MS;
    pthread_mutex_unlock(&fabric->lock);
    poll(both, waits_for_network ? 2 : 1, timeout_ms);
    pthread_mutex_lock(&fabric->lock);
    if (both[0].revents) fabric_thread_drain_waker(fabric);
}
/* Releases the lock for a moment after an arrival, because more may follow. It yields only if another thread waits for
   the lock: any other yield would give the core to another program, for some ms. */
static void fabric_thread_yield_lock(struct fabric *fabric)
{
    pthread_mutex_unlock(&fabric->lock);
    if (atomic_load(&fabric->thread.lock_waiters)) sched_yield();
    pthread_mutex_lock(&fabric->lock);
}
/* The main function of the progress thread; `argument` is the fabric. It progresses the network only while a rank
   sleeps or no rank polls. */
static void *fabric_thread_main(void *argument)
{
    struct fabric *fabric = argument;
    unsigned seen_poll_count = 0;
    pthread_mutex_lock(&fabric->lock);
    while (!fabric->thread.must_stop) {
        bool is_idle = seen_poll_count == fabric->poll_count, waits_for_network = fabric->armed_count || is_idle;
        seen_poll_count = fabric->poll_count;
        if (!waits_for_network || fabric_thread_arm(fabric)) fabric_thread_wait(fabric, waits_for_network);
        else fabric_thread_yield_lock(fabric);
    }
    pthread_mutex_unlock(&fabric->lock);
    return NULL;
}
tutti_status fabric_thread_start(struct fabric *fabric)
{
    fabric->thread.must_stop = false;
    fabric->thread.waker = descriptor_move_above_stderr(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fabric->thread.waker < 0)
        return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wake a thread: %s", strerror(errno));
    int error = thread_start_blocking_signals(&fabric->thread.thread, fabric_thread_main, fabric);
    fabric->thread.is_running = !error;
    if (error)
        return status_fail(TUTTI_SYSTEM, "cannot start the thread of %s: %s", fabric->operations->name,
            strerror(error));
    char name[16];
    snprintf(name, sizeof name, "tutti-%.9s", fabric->operations->name);
    pthread_setname_np(fabric->thread.thread, name);
    return TUTTI_OK;
}
void fabric_thread_stop(struct fabric *fabric)
{
    if (fabric->thread.is_running) {
        fabric->thread.must_stop = true;
        fabric_thread_wake(fabric);
        pthread_mutex_unlock(&fabric->lock);
        pthread_join(fabric->thread.thread, NULL);
        pthread_mutex_lock(&fabric->lock);
        fabric->thread.is_running = false;
    }
    if (fabric->thread.waker > 0) close(fabric->thread.waker);
    fabric->thread.waker = 0;
}
