/* The progress thread: one per process, from the first communicator to the last. It drives the communicators in its
 * list and sleeps on all their words at once. It keeps an idle communicator for a second after its last work. */
#pragma once
#include "backend/engine/driver.h"

/* A communicator's entry in the list of the progress thread, which owns all fields but `scheduled`. */
struct progress_entry {
    /* Counts the requests to be driven; 0: the communicator is not in the list. Any thread. */
    _Atomic uint64_t scheduled;
    tutti_comm *next;
    /* The count of requests that the thread handled last, and the count at which it found another driver at work. */
    uint64_t answered, noticed;
    /* Operations were open after the last visit. */
    bool was_open;
    /* An idle communicator stays in the list until then. */
    int64_t idle_until_ms;
};
/* Starts the progress thread when first called. progress_thread_release ends it after the last user. */
tutti_status progress_thread_acquire(void);
void progress_thread_release(void);
/* Wakes the progress thread. */
void progress_thread_wake(void);
/* Adds the communicator to the list. False: it was in the list already, so the thread sleeps on its bell, too. */
bool progress_list_add(tutti_comm *comm);
/* Adds the communicator to the list and wakes the thread. */
void progress_thread_schedule(tutti_comm *comm);
/* Returns when the communicator has left the list. */
void progress_list_await_removal(tutti_comm *comm);
/* Returns a number that changes in the child of a fork. */
unsigned process_generation(void);
/* Makes process_generation follow forks from now on; progress_thread_acquire calls it. */
void process_watch_forks(void);
