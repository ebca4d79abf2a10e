/* A layout is made once, from the host of each rank, and never changes. It is one piece of memory. */
#include "backend/schedule/layout.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

/* A layout with writable pointers to its arrays. number: [ranks], for layout_number_hosts only. */
struct arrays { struct layout layout; struct place *place; int *first, *rank, *number; };

/* Allocates a zeroed layout and its arrays in one piece. NULL: out of memory. */
static struct arrays *layout_allocate_arrays(int ranks)
{
    size_t count = (size_t)ranks, bytes;
    bool fits = size_multiply(count + 1, sizeof(struct place) + 3 * sizeof(int), &bytes);
    struct arrays *a = fits ? memory_alloc_zeroed(1, sizeof *a + bytes) : NULL;
    if (!a) return NULL;
    a->place = (struct place *)(void *)(a + 1);
    a->first = (int *)(void *)(a->place + count);
    a->rank = a->first + count + 1;
    a->number = a->rank + count;
    return a;
}
/* Sets the place of each rank, the number of hosts, the largest host, and first[h + 1] = the number of ranks of host h.
   a->number[label] is 1 + the number of the host with this label, or 0 if the label is new. */
static tutti_status layout_number_hosts(struct arrays *a, const int *hosts, int ranks)
{
    for (int r = 0; r < ranks; r++) {
        int label = hosts ? hosts[r] : 0;
        if (label < 0 || label >= ranks)
            return status_fail(TUTTI_INVALID_ARGUMENT, "rank %d on host %d: hosts of %d ranks are 0 to %d", r, label,
                ranks, ranks - 1);
        if (!a->number[label]) a->number[label] = ++a->layout.hosts;
        int host = a->number[label] - 1, index = a->first[host + 1]++;
        a->place[r] = (struct place){ host, index };
        if (index >= a->layout.largest) a->layout.largest = index + 1;
    }
    return TUTTI_OK;
}
tutti_status layout_create(const int *hosts, int ranks, struct layout **out)
{
    if (ranks < 1) return status_fail(TUTTI_INVALID_ARGUMENT, "a group needs 1 rank or more, not %d", ranks);
    struct arrays *a = layout_allocate_arrays(ranks);
    if (!a) return status_fail(TUTTI_NO_MEMORY, "no memory for the places of %d ranks", ranks);
    tutti_status status = layout_number_hosts(a, hosts, ranks);
    if (status != TUTTI_OK) {
        free(a);
        return status;
    }
    for (int h = 0; h < a->layout.hosts; h++) a->first[h + 1] += a->first[h];
    for (int r = 0; r < ranks; r++) a->rank[a->first[a->place[r].host] + a->place[r].index] = r;
    a->layout.ranks = ranks;
    a->layout.place = a->place;
    a->layout.first = a->first;
    a->layout.rank = a->rank;
    *out = &a->layout;
    return TUTTI_OK;
}
/* The layout is the first member of the allocation that holds its arrays. */
void layout_destroy(struct layout *layout) { free(layout); }
