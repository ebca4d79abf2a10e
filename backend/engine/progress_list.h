/* The list of communicators that the progress thread drives, and the bells that wake a driver. Any thread may call the
 * functions, except those marked progress thread only. */
#pragma once
#include "backend/host/wait.h"
#include "include/tutti.h"
#include <stdatomic.h>

/* A communicator's entry in the list of the progress thread, which owns all fields but `requests`. */
struct progress_entry {
    /* Counts the requests to be driven; 0: the communicator is not in the list. Any thread. */
    _Atomic uint64_t requests;
    tutti_comm *next;
    /* The value of `requests` that the thread handled last, and the value at which it found another thread driving. */
    uint64_t handled, seen;
    /* Operations were open after the last visit. */
    bool was_open;
    /* An idle communicator stays in the list until then. */
    int64_t idle_until_ms;
};
/* Requests that the progress thread drives the communicator. Returns true if this adds it to the list. Returns false if
   it was in the list already: a sleeping progress thread then sleeps on the communicator's bell, too. */
bool progress_list_add(tutti_comm *comm);
/* Waits until the communicator has left the list. */
void progress_list_await_removal(tutti_comm *comm);
/* Wakes the progress thread. */
void progress_thread_wake(void);
/* Requests that the progress thread drives the communicator, and wakes the thread. */
void progress_thread_schedule(tutti_comm *comm);
/* Wakes a caller that drives the communicator and sleeps. */
void driver_wake(tutti_comm *comm);
/* Wakes the driver, be it a caller or the progress thread. */
void comm_wake_driver(tutti_comm *comm);

/* ---- progress thread only ---- */
/* Adds to `set` the word that changes whenever the thread is woken. */
void progress_list_await(struct wait_set *set);
/* Moves the communicators that have been added since the last call to the front of *list. Returns true if there are
   some. */
bool progress_list_take_added(tutti_comm **list);

/* Empties the list in the child of a fork. */
void progress_list_reset_after_fork(void);
