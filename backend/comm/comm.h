/* Creates and destroys communicators. */
#pragma once
#include "backend/engine/comm.h"

/* Creates the communicator of config->rank, and joins its group. Ranks find each other by `id`, or by the store of the
   config if `id` is NULL. After an error *out is NULL. */
tutti_status comm_create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out);
/* Creates communicators of the ranks with equal color; see tutti_comm_split. All ranks of `parent` must call this. */
tutti_status comm_split(tutti_comm *parent, int color, int key, tutti_comm **out);
/* Allocates memory that the ranks of a host share; see tutti_mem_alloc_common. All ranks must call this. The caller
   frees the memory with shared_mapping_leave_at. */
tutti_status comm_allocate_common(tutti_comm *comm, size_t bytes, void **out);
/* Add and drop a reference. The creator has one, and only a holder of a reference may call these. The last release
   frees the communicator. comm_release accepts NULL. */
void comm_retain(tutti_comm *comm);
void comm_release(tutti_comm *comm);
/* Leaves the group, even if others hold references, and releases one reference. It accepts NULL and half-built
   communicators. It does not wait until other ranks leave, only for a limited time until they stop using this rank's
   memory. */
void comm_destroy(tutti_comm *comm);
/* Fails the communicator on all ranks with ABORTED, and ends its operations. */
void comm_abort(tutti_comm *comm);
/* Returns true in a forked child, whose copy of the communicator still belongs to its parent process. */
bool comm_is_inherited_by_fork(const tutti_comm *comm);
/* Looks for a failure of the group, even if no operation runs. Returns OK or the status of the failure. */
tutti_status comm_poll_failure(tutti_comm *comm);

/* ---- streams.c ---- */
/* Opens the communicator for operations on streams of a CUDA device; see tutti_comm_open_cuda. All ranks must call
   it. */
tutti_status comm_open_cuda(tutti_comm *comm, int device);

/* ---- window.c ---- */
/* Creates a window of `bytes` bytes at `memory` on each rank; see tutti_window_register. All ranks must call it. */
tutti_status comm_register_window(tutti_comm *comm, void *memory, size_t bytes, tutti_dtype dtype,
    struct tutti_window **out);
/* Waits for all puts of all ranks, and detaches the window; see tutti_window_deregister. All ranks must call it. The
   memory belongs to its caller again, also after an error. */
tutti_status comm_deregister_window(struct tutti_window *window);
/* Frees a detached window without references, once its last operation is over. */
void comm_release_window(struct tutti_window *window);

/* ---- create.c, for split.c, common.c and window.c ---- */
/* Allocates a communicator and initialises all but its members. After an error *out is unchanged or half-built. */
tutti_status comm_allocate_and_init(int rank, int size, const char *name, int64_t timeout_ms, tutti_comm **out);
/* If the status is an error, destroys the half-built communicator *out and sets *out to NULL. Returns the status. */
tutti_status comm_destroy_on_error(tutti_status status, tutti_comm **out);
/* Gathers `bytes` bytes from each rank into `all`, in rank order. All ranks must call it. */
tutti_status comm_gather(tutti_comm *comm, const void *mine, size_t bytes, void *all);
/* Gathers the report of each rank into `all`. A report has `bytes` bytes, and its first member is the status of its
   rank. Returns OK if all statuses are OK. A rank that failed keeps its own error text. The other ranks refuse the call
   with "<subject>rank <r> could not <action>". */
tutti_status comm_gather_reports(tutti_comm *comm, const int64_t *mine, size_t bytes, void *all, const char *subject,
    const char *action);
