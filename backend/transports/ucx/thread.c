/* The thread that makes progress while nobody else does. While ranks poll it looks in every few milliseconds whether
   they still do; when a rank sleeps, or nobody has polled since it last looked, it waits on UCX's file descriptor
   instead, hands what comes to the transports, and rings the bells of those that sleep. So what UCX has promised to
   send leaves, and peers are answered, while a rank only computes. */
#include "backend/transports/ucx/worker.h"
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { LOOK_MS = 5 };

void thread_wake(void)
{
    uint64_t one = 1;
    ssize_t ignored = write(worker.waker, &one, sizeof one); /* full: it is awake anyway */
    (void)ignored;
}
static void drain_waker(void)
{
    uint64_t ignored;
    ssize_t unused = read(worker.waker, &ignored, sizeof ignored);
    (void)unused;
}
/* Nothing is left to do, and the descriptor tells of what comes. */
static bool progress_and_arm(void)
{
    struct ucx_port *polling = worker.polling;
    worker.polling = NULL;
    while (ucx.ucp_worker_progress(worker.ucp)) {}
    if (worker.greets) endpoints_greet();
    ucs_status_t status = ucx.ucp_worker_arm(worker.ucp);
    worker.polling = polling;
    return status != UCS_ERR_BUSY;
}
static void wait_for_event(bool listens)
{
    struct pollfd both[] = { { worker.waker, POLLIN, 0 }, { worker.event, POLLIN, 0 } };
    int most_ms = listens && !worker.greets ? -1 : LOOK_MS;
    pthread_mutex_unlock(&worker.lock);
    poll(both, listens ? 2 : 1, most_ms);
    pthread_mutex_lock(&worker.lock);
    if (both[0].revents) drain_waker();
}
static void *thread_main(void *unused)
{
    unsigned touched = 0;
    pthread_mutex_lock(&worker.lock);
    while (!worker.stop) {
        bool idle = touched == worker.touched, listens = worker.armed || idle;
        touched = worker.touched;
        if (!listens || progress_and_arm()) wait_for_event(listens);
    }
    pthread_mutex_unlock(&worker.lock);
    return unused;
}
tutti_status thread_start(void)
{
    sigset_t all, before;
    worker.stop = false;
    worker.waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (worker.waker < 0) return status_fail(TUTTI_SYSTEM, "no descriptor to wake a thread by: %s", strerror(errno));
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the program's, not ours */
    int refused = pthread_create(&worker.thread, NULL, thread_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    worker.runs = !refused;
    if (refused) return status_fail(TUTTI_SYSTEM, "cannot start the thread of UCX: %s", strerror(refused));
    pthread_setname_np(worker.thread, "tutti-ucx");
    return TUTTI_OK;
}
void thread_stop(void)
{
    if (worker.runs) {
        worker.stop = true;
        thread_wake();
        pthread_mutex_unlock(&worker.lock);
        pthread_join(worker.thread, NULL);
        pthread_mutex_lock(&worker.lock);
        worker.runs = false;
    }
    if (worker.waker > 0) close(worker.waker);
    worker.waker = 0;
}
