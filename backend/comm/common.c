/* Allocates memory that the ranks of a host share. The first of them makes a memfd and sends it to the other processes.
   Each rank makes its part of the pages real, on its own NUMA node, and each process maps the memfd once. All ranks of
   the group report their status twice, so the allocation succeeds on all ranks or fails on all, and the group
   continues. */
#include "backend/memory/common.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/comm/comm.h"
#include "backend/join/shm_group.h"
#include "backend/memory/available.h"
#include "backend/memory/memfd.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number that differs from those of all hosts and segments. */
enum { MEMORY_IN_COMMON = -2 };
/* The report of one rank to all ranks. */
struct report {
    uint64_t bytes;
    int64_t status;
    /* The first rank of a host sends the memfd under this token. */
    unsigned char token[16];
};
struct sharing {
    tutti_comm *comm;
    struct shm_group shm_group;
    /* The requested bytes, and the same in whole pages. */
    size_t bytes, mapped_bytes;
    int descriptor;
    /* NULL: this process has not entered it yet. */
    struct shared_mapping *common;
    /* The reports of all ranks of the group. */
    struct report *all;
};
static bool sharing_rank_is_maker(const struct sharing *s)
{
    return shm_group_is_maker(&s->shm_group, s->comm->group.rank);
}
static bool sharing_is_own_process(const struct sharing *s, int index)
{
    const struct group *g = &s->comm->group;
    return member_shares_process(&g->members[s->shm_group.ranks[index]], &g->members[g->rank]);
}

static const unsigned char *sharing_get_token(const struct sharing *s) { return s->all[s->shm_group.ranks[0]].token; }

/* ---- reports of all ranks ---- */
static tutti_status sharing_check_bytes(const struct sharing *s)
{
    for (int r = 1; r < s->comm->group.size; r++)
        if (s->all[r].bytes != s->all[0].bytes)
            return status_refuse(TUTTI_MISMATCH,
                "common memory: rank 0 asks for %llu bytes and rank %d for %llu; all ranks must ask for the same "
                "number",
                (unsigned long long)s->all[0].bytes, r, (unsigned long long)s->all[r].bytes);
    return TUTTI_OK;
}
/* A rank that failed keeps its own error text; the other ranks report which rank failed. */
static tutti_status sharing_exchange_reports(struct sharing *s, struct report *mine)
{
    char detail[STATUS_DETAIL_BYTES] = "";
    if (mine->status != TUTTI_OK) strcpy(detail, status_detail());
    TRY(comm_gather(s->comm, mine, sizeof *mine, s->all));
    if (mine->status != TUTTI_OK) return status_repeat_refusal((tutti_status)mine->status, detail);
    for (int r = 0; r < s->comm->group.size; r++)
        if (s->all[r].status != TUTTI_OK)
            return status_refuse((tutti_status)s->all[r].status,
                "common memory of %zu bytes: rank %d could not allocate it; its own error says why", s->bytes, r);
    return TUTTI_OK;
}

/* ---- one host ---- */
static tutti_status sharing_make_memfd(struct sharing *s, struct report *mine)
{
    TRY(memory_check(s->mapped_bytes, "common memory"));
    TRY(random_fill(mine->token, sizeof mine->token));
    TRY(shared_mapping_enter(mine->token, &s->common));
    return memfd_create_sealed(s->mapped_bytes, &s->descriptor);
}
static tutti_status sharing_pass_memfd(struct sharing *s)
{
    const struct group *g = &s->comm->group;
    if (sharing_rank_is_maker(s))
        return shm_group_send_descriptor(g, &s->shm_group, sharing_get_token(s), s->descriptor);
    int64_t deadline_ms = clock_deadline(s->comm->timeout_ms);
    TRY(shm_group_receive_descriptor(g, &s->shm_group, sharing_get_token(s), deadline_ms, "common memory",
        &s->descriptor));
    return memfd_check(s->descriptor, s->mapped_bytes, "the group's");
}
/* Makes the parts of all ranks of this process real. */
static tutti_status sharing_allocate_pages(const struct sharing *s)
{
    size_t pages = s->mapped_bytes / page_bytes(), ranks = (size_t)s->shm_group.count;
    for (int i = 0; i < s->shm_group.count; i++) {
        size_t from = pages * (size_t)i / ranks * page_bytes(), to = pages * ((size_t)i + 1) / ranks * page_bytes();
        if (sharing_is_own_process(s, i)) TRY(memfd_allocate(s->descriptor, from, to - from, "common memory"));
    }
    return TUTTI_OK;
}
static tutti_status sharing_map_memory(struct sharing *s)
{
    if (!s->common) TRY(shared_mapping_enter(sharing_get_token(s), &s->common));
    if (!shm_group_is_first_of_process(&s->comm->group, &s->shm_group, s->comm->group.rank)) return TUTTI_OK;
    TRY(sharing_pass_memfd(s));
    TRY(sharing_allocate_pages(s));
    return shared_mapping_map(s->common, s->descriptor, s->mapped_bytes);
}

/* ---- all of it ---- */
/* In the first round sizes are compared and each host makes a memfd. In the second each process has mapped it. */
static tutti_status sharing_allocate_and_map(struct sharing *s, void **out)
{
    struct report mine = { .bytes = s->bytes };
    if (sharing_rank_is_maker(s)) mine.status = sharing_make_memfd(s, &mine);
    TRY(sharing_exchange_reports(s, &mine));
    TRY(sharing_check_bytes(s));
    mine.status = sharing_map_memory(s);
    TRY(sharing_exchange_reports(s, &mine));
    *out = shared_mapping_base(s->common);
    return TUTTI_OK;
}
tutti_status comm_allocate_common(tutti_comm *comm, size_t bytes, void **out)
{
    const struct group *g = &comm->group;
    int first = g->layout->first[g->host];
    size_t page = page_bytes(), most = PTRDIFF_MAX - page;
    if (!bytes || bytes > most)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "common memory of %zu bytes: allowed are 1 to %zu", bytes, most);
    struct sharing s = { .comm = comm, .bytes = bytes, .mapped_bytes = size_round_up(bytes, page), .descriptor = -1 };
    s.shm_group = (struct shm_group){ g->layout->rank + first, layout_host_size(g->layout, g->host), MEMORY_IN_COMMON };
    s.all = memory_alloc_zeroed((size_t)g->size, sizeof *s.all);
    if (!s.all) return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory to agree on common memory", g->rank);
    tutti_status status = sharing_allocate_and_map(&s, out);
    if (status != TUTTI_OK) shared_mapping_leave(s.common);
    if (s.descriptor >= 0) close(s.descriptor);
    free(s.all);
    return status;
}
