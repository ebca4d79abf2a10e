/* Records the host of each rank of a communicator, and its index (local rank) on that host. The result is constant. */
#pragma once
#include "include/tutti.h"

struct topology {
    /* `largest` is the number of ranks on the host that has most. */
    int ranks, hosts, largest;
    /* `host` and `index` are this rank's place, and local_ranks is the number of ranks on its host. */
    int host, index, local_ranks;
    /* True if all hosts have the same number of ranks. */
    bool even;
    int *rank_at;                                       /* [hosts][largest], owned */
};
/* Reads the places of all ranks from `comm`. The caller must call topology_finish in every case. */
tutti_status topology_init(struct topology *topology, tutti_comm *comm);
void topology_finish(struct topology *topology);
/* Returns the rank that has this index on this host. */
static inline int topology_rank_at(const struct topology *topology, int host, int index)
{
    return topology->rank_at[host * topology->largest + index];
}
