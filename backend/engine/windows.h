/* The operations of windows: puts, signals and waits for signals. They run beside the collectives and messages of their
   communicator, in the order of their calls. While a window takes messages of other ranks, the progress thread drives
   its communicator, although no call is open. Driver only. */
#pragma once
#include "backend/engine/operation.h"
#include "backend/window/window.h"

/* The windows of a communicator and their operations. The driver owns these fields. */
struct windows {
    /* The open operations in the order of their calls. */
    struct operation *open, **end;
    /* The list of windows. */
    struct tutti_window *first;
    /* The windows that this rank has freed alone, and whose revocations are not over. The list holds a reference to
       each. */
    struct tutti_window *freed;
    /* The number of the last window; equal on all ranks. Only the thread that registers a window uses it. */
    uint32_t last_number;
};
void windows_init(struct windows *windows);
/* Appends an operation to the open ones. It holds a reference to its window. */
void windows_accept_operation(tutti_comm *comm, struct operation *op);
/* Handles messages of peers and continues the open operations. Returns true if something made progress. The caller
   calls it after messages_make_progress, which adds the bell that rings for later events. */
bool windows_make_progress(tutti_comm *comm);
/* Returns true if windows or operations exist. */
static inline bool windows_exist(const struct windows *all) { return all->first || all->open || all->freed; }
/* Returns true if peers may send messages to a window, or a revocation to a peer has not left yet. */
static inline bool windows_are_listening(const struct windows *all)
{
    const struct tutti_window *w = all->first, *freed = all->freed;
    while (w && !w->listening) w = w->next;
    while (freed && !window_is_sending_revocations(freed)) freed = freed->next;
    return w || freed;
}
/* Returns true if operations are open, or windows are listening. */
static inline bool windows_are_active(const struct windows *all) { return all->open || windows_are_listening(all); }
/* Takes a window out of the communicator and its memory from direct writers. Returns false if a transport still uses
   the memory; the caller polls the router and calls again. */
bool windows_take_out(tutti_comm *comm, struct tutti_window *window);
/* Cancels the revocations of the windows that this rank has freed alone, and releases these windows. Returns false as
   windows_take_out. */
bool windows_forget_freed(tutti_comm *comm);
/* windows_cancel cancels the operations after a failure, and stops the messages of peers. It returns false if a
   transport still uses memory; the caller polls and calls again. Then windows_fail ends the operations with
   `status`. */
bool windows_cancel(tutti_comm *comm);
void windows_fail(tutti_comm *comm, tutti_status status);
