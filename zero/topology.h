/* Finds the host of each rank, and its index among the ranks of that host. The result is constant. */
#pragma once
#include "include/tutti.h"

struct topology {
    /* `largest` is the number of ranks on the host that has most. */
    int ranks, hosts, largest;
    /* These are this rank's host and index, and the number of ranks on its host. */
    int host, index, here;
    /* True if all hosts have the same number of ranks. */
    bool even;
    int *rank_at;                                       /* [hosts][largest], owned */
};
/* The caller must call topology_finish in every case. */
tutti_status topology_init(struct topology *places, tutti_comm *comm);
void topology_finish(struct topology *places);
static inline int topology_rank(const struct topology *topology, int host, int index)
{
    return topology->rank_at[host * topology->largest + index];
}
