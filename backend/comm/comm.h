/* Making and unmaking communicators. */
#pragma once
#include "backend/engine/comm.h"

enum { SPLIT_NONE = -1 };
/* By id, or, if that is NULL, by the store of the config. */
tutti_status comm_create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out);
tutti_status comm_split(tutti_comm *parent, int color, int key, tutti_comm **out);
/* Collective, see tutti_mem_alloc_common; freed with common_leave_at. */
tutti_status comm_allocate_common(tutti_comm *comm, size_t bytes, void **out);
/* Whoever holds one may call it; who makes it holds it once. */
void comm_retain(tutti_comm *comm);
void comm_release(tutti_comm *comm);                    /* NULL, too; the last one frees it */
/* Leaves the group, whoever else holds it, and releases it. NULL and half-built ones, too; never waits for a rank. */
void comm_destroy(tutti_comm *comm);
void comm_abort(tutti_comm *comm);
tutti_status comm_poll_failure(tutti_comm *comm);       /* looks for a reason to fail even when nothing runs */

/* ---- of create.c, for split.c and common.c ---- */
tutti_status comm_new(int rank, int size, const char *name, int64_t timeout_ms, tutti_comm **out);
/* A communicator that is half made is undone. */
tutti_status comm_or_nothing(tutti_status status, tutti_comm **out);
/* An all-gather: `bytes` from each rank, in `all` by rank. */
tutti_status comm_gather(tutti_comm *comm, const void *mine, size_t bytes, void *all);
