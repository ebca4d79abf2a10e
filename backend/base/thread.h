/* Threads of the library. */
#pragma once
#include <pthread.h>
#include <signal.h>

/* Starts a thread that blocks all signals, because they belong to the program's own threads. Returns 0 or the error
   number of pthread_create. */
static inline int thread_start_blocking_signals(pthread_t *out, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(out, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}
