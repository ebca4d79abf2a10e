/* Which ranks live on which hosts. A rank is a number in the group; its *place* is its host and its index there. Any
 * placement is legal: blocks, round robin, every second rank, hosts of unequal size. Ranks of a host are indexed in
 * their order, hosts numbered in the order of their first ranks. What belongs to one host's memory is indexed by an
 * index, never by a rank. */
#pragma once
#include "include/tutti.h"

struct place { int host, index; };
struct layout {                                         /* as large as the group; one for all its schedules */
    int hosts, ranks, largest;                          /* largest: how many ranks the largest host has */
    const struct place *place;                          /* of each rank */
    const int *first, *rank;                            /* host h has rank[first[h]] … rank[first[h + 1] - 1] */
};
/* hosts: for each rank a number below `ranks`; those with the same number share a host. NULL: all share one.
   INVALID_ARGUMENT when a number is out of range, NO_MEMORY; *out is then untouched. */
tutti_status layout_create(const int *hosts, int ranks, struct layout **out);
void layout_destroy(struct layout *layout);

static inline struct place place_of(const struct layout *l, int rank) { return l->place[rank]; }
static inline int host_of(const struct layout *l, int rank) { return l->place[rank].host; }
static inline int host_size(const struct layout *l, int host) { return l->first[host + 1] - l->first[host]; }
static inline int rank_at(const struct layout *l, int host, int index) { return l->rank[l->first[host] + index]; }
