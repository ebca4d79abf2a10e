/* The progress thread of a fabric, which makes progress while no rank polls. While ranks poll, it only checks every few
   milliseconds that they still do. When a rank sleeps, or no rank has polled since the last check, the thread waits for
   the fabric's file descriptor. It then passes arrivals to the transports and rings the bells of transports that sleep.
   So sends leave and peers get answers while a rank only computes. */
#include "backend/base/descriptor.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 5 };

void fabric_thread_wake(struct fabric *fabric)
{
    uint64_t one = 1;
    /* A write fails only if the counter is full, and then the thread is already awake. */
    ssize_t ignored = write(fabric->thread.waker, &one, sizeof one);
    (void)ignored;
}
static void fabric_thread_drain_waker(const struct fabric *fabric)
{
    uint64_t ignored;
    ssize_t unused = read(fabric->thread.waker, &ignored, sizeof ignored);
    (void)unused;
}
static bool fabric_thread_arm(struct fabric *fabric)
{
    struct fabric_transport *polling = fabric->polling;
    fabric->polling = NULL;
    bool armed = fabric->operations->arm(fabric), ended = fabric->faults && fabric_disconnect_faulty(fabric);
    fabric->polling = polling;
    return armed && !ended;
}
/* Sleeps until the network has an event or the thread is woken. `listens`: false leaves events to ranks that poll. */
static void fabric_thread_wait(struct fabric *fabric, bool listens)
{
    struct pollfd both[] = { { fabric->thread.waker, POLLIN, 0 }, { fabric->event, POLLIN, 0 } };
    int most_ms = listens && !fabric->needs_poll ? -1 : LOOK_MS;
    pthread_mutex_unlock(&fabric->lock);
    poll(both, listens ? 2 : 1, most_ms);
    pthread_mutex_lock(&fabric->lock);
    if (both[0].revents) fabric_thread_drain_waker(fabric);
}
/* Releases the lock for a moment after an arrival, because more may follow. */
static void fabric_thread_yield_lock(struct fabric *fabric)
{
    pthread_mutex_unlock(&fabric->lock);
    sched_yield();
    pthread_mutex_lock(&fabric->lock);
}
/* The thread of a network. It progresses the network only while no rank polls it. */
static void *fabric_thread_main(void *of)
{
    struct fabric *fabric = of;
    unsigned touched = 0;
    pthread_mutex_lock(&fabric->lock);
    while (!fabric->thread.stop) {
        bool idle = touched == fabric->touched, listens = fabric->armed || idle;
        touched = fabric->touched;
        if (!listens || fabric_thread_arm(fabric)) fabric_thread_wait(fabric, listens);
        else fabric_thread_yield_lock(fabric);
    }
    pthread_mutex_unlock(&fabric->lock);
    return NULL;
}
tutti_status fabric_thread_start(struct fabric *fabric)
{
    sigset_t all, before;
    fabric->thread.stop = false;
    fabric->thread.waker = descriptor_move_above_stderr(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (fabric->thread.waker < 0)
        return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wake a thread: %s", strerror(errno));
    sigfillset(&all);
    /* The new thread blocks all signals, because they belong to the program. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int refused = pthread_create(&fabric->thread.thread, NULL, fabric_thread_main, fabric);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    fabric->thread.runs = !refused;
    if (refused)
        return status_fail(TUTTI_SYSTEM, "cannot start the thread of %s: %s", fabric->operations->name,
            strerror(refused));
    char name[16];
    snprintf(name, sizeof name, "tutti-%.9s", fabric->operations->name);
    pthread_setname_np(fabric->thread.thread, name);
    return TUTTI_OK;
}
void fabric_thread_stop(struct fabric *fabric)
{
    if (fabric->thread.runs) {
        fabric->thread.stop = true;
        fabric_thread_wake(fabric);
        pthread_mutex_unlock(&fabric->lock);
        pthread_join(fabric->thread.thread, NULL);
        pthread_mutex_lock(&fabric->lock);
        fabric->thread.runs = false;
    }
    if (fabric->thread.waker > 0) close(fabric->thread.waker);
    fabric->thread.waker = 0;
}
