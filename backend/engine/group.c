/* Allocates and frees the tables of a group, which are empty until the ranks have found each other. Waits with the
   backoff of the group, and alerts the ranks of this host. */
#include "backend/engine/group.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdio.h>
#include <stdlib.h>

tutti_status group_init(struct group *g, int rank, int size, const char *name)
{
    g->rank = rank;
    g->size = size;
    snprintf(g->name, sizeof g->name, "%.31s", name ? name : "the group");
    g->backoff = backoff_for_thread(true);
    g->members = memory_alloc_zeroed((size_t)size, sizeof *g->members);
    g->peers = memory_alloc_zeroed((size_t)size, sizeof *g->peers);
    return g->members && g->peers ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for %d members", size);
}
void group_release_peers(struct group *g)
{
    for (int r = 0; g->peers && r < g->size; r++) peer_release(g->peers[r]);
    free(g->peers);
    g->peers = NULL;
}
void group_finish(struct group *g)
{
    free(g->members);
    layout_destroy(g->layout);
    g->members = NULL;
    g->layout = NULL;
}
void group_back_off(const struct group *g, int64_t n)
{
    static const struct wait_set none;
    backoff_wait(&g->backoff, n, &none, 1);
}
void group_alert(const struct group *g)
{
    for (int i = 0; i < g->segment->ranks; i++) atomic_store(&group_control_at_index(g, i)->alert, 1);
}
