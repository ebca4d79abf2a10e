#include "zero/topology.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

tutti_status topology_init(struct topology *p, tutti_comm *comm)
{
    int host, index;
    *p = (struct topology){ .ranks = tutti_comm_count(comm) };
    TRY(tutti_comm_place(comm, tutti_comm_user_rank(comm), &p->host, &p->index));
    for (int r = 0; r < p->ranks; r++) {
        TRY(tutti_comm_place(comm, r, &host, &index));
        if (host >= p->hosts) p->hosts = host + 1;
        if (index >= p->largest) p->largest = index + 1;
        p->here += host == p->host;
    }
    p->even = p->hosts * p->largest == p->ranks;
    p->rank_at = memory_alloc_zeroed((size_t)p->hosts * (size_t)p->largest, sizeof *p->rank_at);
    if (!p->rank_at) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d ranks", p->ranks);
    for (int r = 0; r < p->ranks; r++) {
        TRY(tutti_comm_place(comm, r, &host, &index));
        p->rank_at[host * p->largest + index] = r;
    }
    return TUTTI_OK;
}
void topology_finish(struct topology *p) { free(p->rank_at); }
