/* Asks the communicator where each rank is, once. */
#include "zero/topology.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

tutti_status topology_init(struct topology *topology, tutti_comm *comm)
{
    int host, index;
    *topology = (struct topology){ .ranks = tutti_comm_count(comm) };
    TRY(tutti_comm_place(comm, tutti_comm_user_rank(comm), &topology->host, &topology->index));
    for (int r = 0; r < topology->ranks; r++) {
        TRY(tutti_comm_place(comm, r, &host, &index));
        if (host >= topology->hosts) topology->hosts = host + 1;
        if (index >= topology->largest) topology->largest = index + 1;
        topology->local_ranks += host == topology->host;
    }
    topology->even = topology->hosts * topology->largest == topology->ranks;
    topology->rank_at =
        memory_alloc_zeroed((size_t)topology->hosts * (size_t)topology->largest, sizeof *topology->rank_at);
    if (!topology->rank_at) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d ranks", topology->ranks);
    for (int r = 0; r < topology->ranks; r++) {
        TRY(tutti_comm_place(comm, r, &host, &index));
        topology->rank_at[host * topology->largest + index] = r;
    }
    return TUTTI_OK;
}
void topology_finish(struct topology *topology) { free(topology->rank_at); }
