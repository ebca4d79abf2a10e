/* The communicators of this process, for the watch thread, which writes snapshots of them (snapshot.h). */
#pragma once
#include "include/tutti.h"
#include <stdatomic.h>

/* The communicator's entry in the list. `has_joined` is set once its group, except the outcome, is constant. */
struct comm_entry {
    tutti_comm *next, *previous;
    bool is_listed;
    _Atomic bool has_joined;
    /* The clock_ms() at which it was added. */
    int64_t added_ms;
};
/* Adds a communicator that has its name, rank and size. */
void comm_list_add(tutti_comm *comm);
/* Reports that the communicator has joined its group. */
void comm_list_mark_joined(tutti_comm *comm);
/* Removes the communicator, if it is there. Waits while comm_list_visit runs. */
void comm_list_remove(tutti_comm *comm);
/* Calls `visit` for each communicator, oldest first. None of them is removed meanwhile. */
void comm_list_visit(void (*visit)(const tutti_comm *comm, void *context), void *context);
/* Empties the list in the child of a fork. */
void comm_list_reset_after_fork(void);
