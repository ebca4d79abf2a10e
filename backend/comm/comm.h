/* Creates and destroys communicators. */
#pragma once
#include "backend/engine/comm.h"

enum { SPLIT_NONE = -1 };
/* Ranks find each other by `id`, or by the store of the config if `id` is NULL. */
tutti_status comm_create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out);
tutti_status comm_split(tutti_comm *parent, int color, int key, tutti_comm **out);
/* All ranks must call this; see tutti_mem_alloc_common. The caller frees the memory with shared_mapping_leave_at. */
tutti_status comm_allocate_common(tutti_comm *comm, size_t bytes, void **out);
/* The creator has one reference; only a holder of a reference may call these. The last release frees the communicator.
   comm_release accepts NULL. */
void comm_retain(tutti_comm *comm);
void comm_release(tutti_comm *comm);
/* Leaves the group, also if others hold references, and releases one reference. It accepts NULL and half-built
   communicators, and never waits for another rank. */
void comm_destroy(tutti_comm *comm);
void comm_abort(tutti_comm *comm);
/* True in a forked child, whose copy of the communicator still belongs to its parent. */
bool comm_is_inherited(const tutti_comm *comm);
/* Checks the group for a failure, also if no operation runs. */
tutti_status comm_poll_failure(tutti_comm *comm);

/* ---- window.c ---- */
/* All ranks must call these two; see tutti_window_register and tutti_window_deregister. */
tutti_status comm_register_window(tutti_comm *comm, void *memory, size_t bytes, tutti_dtype dtype,
    struct tutti_window **out);
/* The memory belongs to its caller again, also after an error. */
tutti_status comm_deregister_window(struct tutti_window *window);
/* Frees a detached window without references, once its last operation is over. */
void comm_release_window(struct tutti_window *window);

/* ---- create.c, for split.c, common.c and window.c ---- */
tutti_status comm_allocate_and_init(int rank, int size, const char *name, int64_t timeout_ms, tutti_comm **out);
/* If the status is an error, destroys the half-built communicator and sets *out to NULL. */
tutti_status comm_destroy_on_error(tutti_status status, tutti_comm **out);
/* Gathers `bytes` from each rank into `all`, in rank order. */
tutti_status comm_gather(tutti_comm *comm, const void *mine, size_t bytes, void *all);
/* Gathers reports, whose first member is the status of their rank. Returns OK if all statuses are. A rank that failed
   keeps its own error text. The other ranks report "<subject>rank <r> could not <action>". */
tutti_status comm_gather_reports(tutti_comm *comm, const int64_t *mine, size_t bytes, void *all, const char *subject,
    const char *action);
