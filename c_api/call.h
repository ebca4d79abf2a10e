/* Helpers of the public functions that start operations. Such a function prepares an operation on the stack, checks its
 * other arguments, and runs it. Each refusal has a text that names the cause. */
#pragma once
#include "backend/comm/comm.h"

/* Returns INVALID_ARGUMENT for a public struct of type `type` whose struct_size is `size`: 0, less than `least`, or
   more than `most`. `initial` is the macro that sets it. */
tutti_status call_refuse_struct_size(const char *type, const char *initial, size_t size, size_t least, size_t most);
/* Refuses NULL and a communicator of a parent process. Otherwise returns OK or the error that failed the
   communicator. */
tutti_status call_check_comm(tutti_comm *comm);
/* Sets out->op and out->sum.reduce, the function of the sum. Refuses an op that is not defined for the type. */
tutti_status call_set_op(tutti_dtype dtype, tutti_op op, struct operation *out);
/* Refuses a rank that is not in the group. `what` begins the error text, as in "root". */
tutti_status call_check_rank(const tutti_comm *comm, int rank, const char *what);
/* Refuses a NULL buffer of `bytes` bytes, unless bytes is 0. `what` names it in the error text, as in "send". */
tutti_status call_check_buffer(const void *buffer, size_t bytes, const char *what);
/* Returns true if two buffers have a byte in common. */
bool call_buffers_overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes);
/* Returns INVALID_ARGUMENT for buffers that overlap. `unless` continues the text, as in ", but not in place". */
tutti_status call_refuse_overlap(const struct operation *op, const char *unless);

/* Checks communicator, request, root and type of a call, and initialises its operation. The larger buffer has `parts`
   parts of `count` elements. */
tutti_status call_prepare_operation(tutti_comm *comm, int collective, size_t count, size_t parts, tutti_dtype dtype,
    int root, tutti_request *request, struct operation *out);
/* Applies the options of the request and runs the operation. Without a request it waits for the end, or adds the call
   to the group of this thread. Takes ownership of prepared->uneven. An error leaves the request unchanged. */
tutti_status call_run_operation(struct operation *prepared, tutti_request *request);
/* Returns true between tutti_group_start and tutti_group_end of this thread. */
bool call_is_grouped(void);
/* The number of threads between tutti_group_start and tutti_group_end. */
extern _Atomic int call_groups_open;
