/* The caller becomes the driver, or takes the ordinary path. `submission.fast_path_ready` is set if a repetition of the
   last call needs only a sequence number; fast_path_applies compares the call and its buffers with the last one. */
#include "backend/engine/fast_path.h"
#include "backend/engine/comm.h"

/* Returns true if the call and its buffers equal those of the last call, and the communicator is idle. */
static bool fast_path_applies(const tutti_comm *comm, const struct call *call, const void *input, const void *output)
{
    const struct launch *bound = &comm->executor.launch;
    return atomic_load_explicit(&comm->submission.fast_path_ready, memory_order_relaxed)
        && call_is_same_kind(call, &comm->launcher.last) && bound->input == input && bound->output == output
        && !comm->launcher.pending.count && driver_is_idle(comm) && !windows_are_listening(&comm->windows);
}
/* Makes an operation of a call that has begun; `status` is what executor_repeat_operation returned, not OK. Drives it
   to its end, releases the driver role, and returns its result. */
static tutti_status fast_path_continue(tutti_comm *comm, const struct call *call, tutti_status status)
{
    const struct launch *bound = &comm->executor.launch;
    struct operation op;
    operation_init(&op, comm, call->collective, call->count, call->dtype, call->root);
    op.op = call->op;
    op.sum.reduce = bound->reduce;
    op.part_bytes = bound->part_bytes;
    op.input = bound->input;
    op.output = bound->output;
    op.sequence = comm->run_queue.sequence;
    return operation_continue(&op, status);
}
bool fast_path_run(tutti_comm *comm, struct call *call, const void *input, void *output, tutti_status *out)
{
    call->requested = atomic_load_explicit(&comm->chosen[call->collective], memory_order_relaxed);
    if (!driver_try_acquire(comm)) return false;
    if (!fast_path_applies(comm, call, input, output)) {
        driver_release_role(comm);
        return false;
    }
    executor_prepare_declaration(&comm->executor);
    launch_declare(comm, ++comm->run_queue.sequence);
    *out = executor_repeat_operation(&comm->executor);
    if (*out == TUTTI_OK) driver_release_role(comm);
    else *out = fast_path_continue(comm, call, *out);
    return true;
}
