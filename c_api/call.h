/* What the public functions share that start operations. They prepare one on the stack, check the rest of their
 * arguments, and run it. All refuse with a text that says what is wrong. */
#pragma once
#include "backend/comm/comm.h"

/* Of a public struct: `size` is 0, less than any version had, or more than this one knows. */
tutti_status call_refuse_size(const char *type, const char *initial, size_t size, size_t least, size_t most);
tutti_status call_check_comm(tutti_comm *comm);        /* or why it failed */
tutti_status call_check_op(tutti_dtype dtype, tutti_op op, struct operation *out);
tutti_status call_check_rank(const tutti_comm *comm, int rank, const char *what);
tutti_status call_check_buffer(const void *buffer, size_t bytes, const char *what);
bool call_overlaps(const void *one, size_t one_bytes, const void *other, size_t other_bytes);
tutti_status call_refuse_overlap(const struct operation *op, const char *unless);

/* The first step: communicator, request, root and type are right; parts: that count elements are meant for. */
tutti_status call_prepare(tutti_comm *comm, int family, size_t count, size_t parts, tutti_dtype dtype, int root,
    tutti_request *request, struct operation *out);
/* The last step. Takes over prepared->uneven. An error of it leaves the request as it was. */
tutti_status call_run(struct operation *prepared, tutti_request *request);
bool call_is_grouped(void);                             /* between tutti_group_start and tutti_group_end */
extern _Atomic int call_groups_open;                    /* of threads that are */
