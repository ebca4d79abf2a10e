/* The end of an operation. Its memory belongs to the caller again once its state is OVER, so everything that is needed
   afterwards is read before. A waiter sleeps on a word of the process, not of the operation. */
#include "backend/engine/comm.h"
#include <stdio.h>
#include <stdlib.h>

/* `completions` changes whenever an operation has ended. `sleepers` counts the threads that sleep on it. */
static _Atomic uint32_t completions, sleepers;
/* The number of threads that check whether an operation is over. */
static _Atomic uint32_t entering;

/* Ends an operation: stores its result, sets its state to OVER last, calls `done`, and wakes waiters. is_driven: its
   own caller drives, so no waiter needs a wake-up. */
static void operation_end_and_wake(struct operation *op, tutti_status status, const char *detail, bool is_driven)
{
    tutti_request *request = op->request;
    if (op->uneven) free(op->uneven);
    op->uneven = NULL;
    op->status = status;
    if (status != TUTTI_OK) snprintf(op->detail, sizeof op->detail, "%.500s", detail);
    if (!request) {
        atomic_store_explicit(&op->state, OPERATION_OVER, memory_order_release);
    } else {
        void (*done)(tutti_request *, void *) = request->done;
        void *context = request->context;
        request->source = op->collective == POINT_TO_POINT ? op->message.transfer.source : -1;
        request->sequence = op->sequence;
        if (op->queued.queue) queue_finish_operation(op);
        else atomic_store_explicit(&op->state, OPERATION_OVER, memory_order_release);
        if (done) done(request, context);
    }
    if (is_driven) return;
    word_ring_bell(&completions, &sleepers, false);
}
/* Returns true if the operation is the blocking call of the driver itself. */
static bool operation_is_driven(const struct operation *op) { return op->comm->run_queue.driven == op; }
void operation_complete(struct operation *op, tutti_status status)
{
    operation_end_and_wake(op, status, op->comm->outcome.detail, operation_is_driven(op));
}
void operation_complete_on_stream(struct operation *op, tutti_status status)
{
    operation_end_and_wake(op, status, op->comm->outcome.detail, false);
}
void operation_reject_closed(struct operation *op)
{
    operation_end_and_wake(op, op->comm->outcome.status, op->comm->outcome.detail, false);
}
void operation_refuse(struct operation *op, tutti_status status)
{
    op->refused = true;
    if (op->request) op->request->refused = true;
    operation_end_and_wake(op, status, status_detail(), operation_is_driven(op));
}
tutti_status operation_get_result(const struct operation *op)
{
    if (op->status == TUTTI_OK) return TUTTI_OK;
    return op->refused ? status_repeat_refusal(op->status, op->detail) : status_repeat(op->status, op->detail);
}
bool operation_enter_comm(const struct operation *op)
{
    atomic_fetch_add(&entering, 1);
    bool open = !operation_is_over(op);
    if (open) atomic_fetch_add(&op->comm->submission.inside, 1);
    atomic_fetch_sub(&entering, 1);
    return open;
}
bool operations_are_entering(void) { return atomic_load(&entering); }
void operations_reset_after_fork(void) { atomic_store(&entering, 0); }
void completions_await(struct wait_set *set)
{
    wait_set_add(set, &completions, atomic_load(&completions), &sleepers, false);
}
