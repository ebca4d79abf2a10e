/* Helpers of the public functions that start operations. Such a function prepares an operation on the stack, checks its
 * other arguments, and runs it. Each refusal has a text that names the cause. */
#pragma once
#include "backend/comm/comm.h"

/* Refuses a public struct whose `size` is 0, less than `least`, or more than `most`. */
tutti_status call_refuse_struct_size(const char *type, const char *initial, size_t size, size_t least, size_t most);
/* Returns OK or the error that failed the communicator. */
tutti_status call_check_comm(tutti_comm *comm);
tutti_status call_check_op(tutti_dtype dtype, tutti_op op, struct operation *out);
tutti_status call_check_rank(const tutti_comm *comm, int rank, const char *what);
tutti_status call_check_buffer(const void *buffer, size_t bytes, const char *what);
bool call_buffers_overlap(const void *one, size_t one_bytes, const void *other, size_t other_bytes);
tutti_status call_refuse_overlap(const struct operation *op, const char *unless);

/* Starts a call: checks communicator, request, root and type. The buffers have `parts` parts of `count` elements. */
tutti_status call_prepare_operation(tutti_comm *comm, int collective, size_t count, size_t parts, tutti_dtype dtype,
    int root, tutti_request *request, struct operation *out);
/* Ends a call: runs the operation. Takes ownership of prepared->uneven. An error leaves the request unchanged. */
tutti_status call_run_operation(struct operation *prepared, tutti_request *request);
/* Returns true between tutti_group_start and tutti_group_end of this thread. */
bool call_is_grouped(void);
/* Counts the threads between tutti_group_start and tutti_group_end. */
extern _Atomic int call_groups_open;
