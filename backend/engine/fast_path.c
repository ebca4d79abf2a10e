/* The caller becomes the driver, or takes the ordinary path. `submission.settled` is set if a repetition of the last
   call needs only a sequence number; fast_path_applies compares the call and its buffers with the last one. */
#include "backend/engine/fast_path.h"
#include "backend/engine/comm.h"

static bool fast_path_applies(const tutti_comm *comm, const struct call *call, const void *input, const void *output)
{
    const struct launch *bound = &comm->executor.launch;
    return atomic_load_explicit(&comm->submission.settled, memory_order_relaxed)
        && call_is_same_kind(call, &comm->launcher.last) && bound->input == input && bound->output == output
        && !comm->launcher.pending.count && driver_is_idle(comm) && !windows_are_listening(&comm->windows);
}
/* Continues the call as an operation, set up as if it had been one from the beginning. */
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
    call->asked = atomic_load_explicit(&comm->chosen[call->collective], memory_order_relaxed);
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
