/* Which ranks live on which hosts. A rank is a number in the group; its *place* is its host and its index there. Any
 * placement is legal: blocks, round robin, every second rank, hosts of unequal size. The ranks of a host are indexed in
 * ascending order, and hosts are numbered in the order of their first ranks. Arrays in one host's memory are indexed
 * by this index, never by a rank. */
#pragma once
#include "include/tutti.h"

struct place { int host, index; };
/* The hosts of the ranks of a group; all schedules of the group share it. */
struct layout {
    /* The numbers of hosts and of ranks; largest: the number of ranks of the largest host. */
    int hosts, ranks, largest;
    /* The place of each rank. */
    const struct place *place;
    /* Host h has the ranks rank[first[h]] … rank[first[h + 1] - 1]. */
    const int *first, *rank;
};
/* Makes a layout. `hosts` has for each rank a number from 0 to ranks - 1; ranks with the same number share a host.
   NULL: all ranks share one. INVALID_ARGUMENT if a number is out of range, NO_MEMORY; *out is then untouched. */
tutti_status layout_create(const int *hosts, int ranks, struct layout **out);
void layout_destroy(struct layout *layout);

static inline struct place layout_place(const struct layout *layout, int rank) { return layout->place[rank]; }
static inline int layout_host(const struct layout *layout, int rank) { return layout->place[rank].host; }
/* Returns the number of ranks of a host. */
static inline int layout_host_size(const struct layout *layout, int host)
{
    return layout->first[host + 1] - layout->first[host];
}
/* Returns the rank that has a local rank (`index`) on a host. */
static inline int layout_rank(const struct layout *layout, int host, int index)
{
    return layout->rank[layout->first[host] + index];
}
