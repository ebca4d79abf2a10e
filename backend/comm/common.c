/* Allocates memory that the ranks of a host share. The first of them makes a memfd and sends it to the other processes.
   Each process allocates the pages of its ranks' parts, on its own NUMA node, and maps the memfd once. All ranks of the
   group report their status twice, so the allocation succeeds on all ranks or fails on all, and the group continues. */
#include "backend/memory/common.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/comm/comm.h"
#include "backend/join/shm_group.h"
#include "backend/memory/available.h"
#include "backend/memory/memfd.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The shm_group.number of common memory, which no segment has. */
enum { MEMORY_IN_COMMON = -2 };
/* The report of one rank to all ranks. */
struct report {
    int64_t status;
    uint64_t bytes;
    /* The first rank of a host sends the memfd under this token. */
    unsigned char token[16];
};
/* One allocation of common memory, on one rank. */
struct sharing {
    tutti_comm *comm;
    struct shm_group shm_group;
    /* The requested bytes, and the same in whole pages. */
    size_t bytes, mapped_bytes;
    /* The memfd, or -1. */
    int descriptor;
    /* The mapping of this process. NULL: this rank has not entered it yet. */
    struct shared_mapping *common;
    /* The reports of all ranks of the group. */
    struct report *all;
};
/* Returns true if this rank makes the memfd of its host. */
static bool sharing_rank_is_maker(const struct sharing *sharing)
{
    return shm_group_is_maker(&sharing->shm_group, sharing->comm->group.rank);
}
/* Returns true if the rank with this index on this host is a thread of this process. */
static bool sharing_is_own_process(const struct sharing *sharing, int index)
{
    const struct group *group = &sharing->comm->group;
    return member_shares_process(&group->members[sharing->shm_group.ranks[index]], &group->members[group->rank]);
}
/* Returns the token under which this host's memfd is sent. */
static const unsigned char *sharing_get_token(const struct sharing *sharing)
{
    return sharing->all[sharing->shm_group.ranks[0]].token;
}

/* ---- reports of all ranks ---- */
/* Refuses the call if ranks ask for different sizes. */
static tutti_status sharing_check_bytes(const struct sharing *sharing)
{
    for (int r = 1; r < sharing->comm->group.size; r++)
        if (sharing->all[r].bytes != sharing->all[0].bytes)
            return status_refuse(TUTTI_MISMATCH,
                "common memory: rank 0 asks for %llu bytes and rank %d for %llu; all ranks must ask for the same "
                "number",
                (unsigned long long)sharing->all[0].bytes, r, (unsigned long long)sharing->all[r].bytes);
    return TUTTI_OK;
}
/* Gathers the reports of all ranks. Fails if one of them has failed. */
static tutti_status sharing_exchange_reports(struct sharing *sharing, const struct report *mine)
{
    char subject[64];
    snprintf(subject, sizeof subject, "common memory of %zu bytes: ", sharing->bytes);
    return comm_gather_reports(sharing->comm, &mine->status, sizeof *mine, sharing->all, subject, "allocate it");
}

/* ---- one host ---- */
/* Makes the memfd of this host, and the token under which it is sent. */
static tutti_status sharing_make_memfd(struct sharing *sharing, struct report *mine)
{
    TRY(memory_check(sharing->mapped_bytes, "common memory"));
    TRY(random_fill(mine->token, sizeof mine->token));
    TRY(shared_mapping_enter(mine->token, &sharing->common));
    return memfd_create_sealed(sharing->mapped_bytes, &sharing->descriptor);
}
/* Sends the memfd to the other ranks of the host, or receives it. */
static tutti_status sharing_pass_memfd(struct sharing *sharing)
{
    const struct group *group = &sharing->comm->group;
    if (sharing_rank_is_maker(sharing))
        return shm_group_send_descriptor(group, &sharing->shm_group, sharing_get_token(sharing), sharing->descriptor);
    int64_t deadline_ms = clock_deadline(sharing->comm->timeout_ms);
    TRY(shm_group_receive_descriptor(group, &sharing->shm_group, sharing_get_token(sharing), deadline_ms,
        "common memory", &sharing->descriptor));
    return memfd_check(sharing->descriptor, sharing->mapped_bytes, "the group's");
}
/* Allocates the pages of the parts of all ranks of this process. */
static tutti_status sharing_allocate_pages(const struct sharing *sharing)
{
    size_t pages = sharing->mapped_bytes / page_bytes(), ranks = (size_t)sharing->shm_group.count;
    for (int i = 0; i < sharing->shm_group.count; i++) {
        size_t from = pages * (size_t)i / ranks * page_bytes(), to = pages * ((size_t)i + 1) / ranks * page_bytes();
        if (sharing_is_own_process(sharing, i))
            TRY(memfd_allocate(sharing->descriptor, from, to - from, "common memory"));
    }
    return TUTTI_OK;
}
/* Maps the common memory, once in each process. */
static tutti_status sharing_map_memory(struct sharing *sharing)
{
    if (!sharing->common) TRY(shared_mapping_enter(sharing_get_token(sharing), &sharing->common));
    if (!shm_group_is_first_of_process(&sharing->comm->group, &sharing->shm_group, sharing->comm->group.rank))
        return TUTTI_OK;
    TRY(sharing_pass_memfd(sharing));
    TRY(sharing_allocate_pages(sharing));
    return shared_mapping_map(sharing->common, sharing->descriptor, sharing->mapped_bytes);
}

/* ---- all of it ---- */
/* Allocates the memory in two rounds of reports: in the first, sizes are compared and each host has made a memfd; in
   the second, each process has mapped it. */
static tutti_status sharing_allocate_and_map(struct sharing *sharing, void **out)
{
    struct report mine = { .bytes = sharing->bytes };
    if (sharing_rank_is_maker(sharing)) mine.status = sharing_make_memfd(sharing, &mine);
    TRY(sharing_exchange_reports(sharing, &mine));
    TRY(sharing_check_bytes(sharing));
    mine.status = sharing_map_memory(sharing);
    TRY(sharing_exchange_reports(sharing, &mine));
    *out = shared_mapping_base(sharing->common);
    return TUTTI_OK;
}
tutti_status comm_allocate_common(tutti_comm *comm, size_t bytes, void **out)
{
    const struct group *group = &comm->group;
    int first = group->layout->first[group->host];
    size_t page = page_bytes(), limit = PTRDIFF_MAX - page;
    if (!bytes || bytes > limit)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "common memory of %zu bytes: allowed are 1 to %zu", bytes, limit);
    struct sharing sharing = {
        .comm = comm, .bytes = bytes, .mapped_bytes = size_round_up(bytes, page), .descriptor = -1
    };
    sharing.shm_group = (struct shm_group){ group->layout->rank + first, layout_host_size(group->layout, group->host),
        MEMORY_IN_COMMON };
    sharing.all = memory_alloc_zeroed((size_t)group->size, sizeof *sharing.all);
    if (!sharing.all)
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory to agree on common memory", group->rank);
    tutti_status status = sharing_allocate_and_map(&sharing, out);
    if (status != TUTTI_OK) shared_mapping_leave(sharing.common);
    if (sharing.descriptor >= 0) close(sharing.descriptor);
    free(sharing.all);
    return status;
}
