#include "backend/engine/again.h"
#include "backend/engine/comm.h"

static bool is_again(const tutti_comm *comm, const struct call *call, const void *input, const void *output)
{
    const struct launch *bound = &comm->executor.launch;
    return atomic_load_explicit(&comm->gate.settled, memory_order_relaxed) && call_is_like(call, &comm->launcher.last)
        && bound->input == input && bound->output == output && !comm->launcher.pending.count && driver_is_idle(comm);
}
/* Continues the call as an operation, set up as if it had been one from the beginning. */
static tutti_status go_on(tutti_comm *comm, const struct call *call, tutti_status status)
{
    const struct launch *bound = &comm->executor.launch;
    struct operation op;
    operation_init(&op, comm, call->family, call->count, call->dtype, call->root);
    op.op = call->op;
    op.sum.reduce = bound->reduce;
    op.part_bytes = bound->part_bytes;
    op.input = bound->input;
    op.output = bound->output;
    op.sequence = comm->run_queue.sequence;
    return operation_go_on(&op, status);
}
bool again_run(tutti_comm *comm, struct call *call, const void *input, void *output, tutti_status *out)
{
    call->asked = atomic_load_explicit(&comm->chosen[call->family], memory_order_relaxed);
    if (!driver_try(comm)) return false;
    if (!is_again(comm, call, input, output)) {
        driver_leave(comm);
        return false;
    }
    executor_prepare(&comm->executor);
    launch_declare(comm, ++comm->run_queue.sequence);
    *out = executor_again(&comm->executor);
    if (*out == TUTTI_OK) driver_leave(comm);
    else *out = go_on(comm, call, *out);
    return true;
}
