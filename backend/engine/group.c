/* Allocates and frees the arrays of a group, which are empty until the ranks have found each other. Waits with the
   backoff of the group, and alerts the ranks of this host. */
#include "backend/engine/group.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdio.h>
#include <stdlib.h>

void group_set_name(struct group *group, const char *name) { snprintf(group->name, sizeof group->name, "%.31s", name); }
tutti_status group_init(struct group *group, int rank, int size, const char *name)
{
    group->rank = rank;
    group->size = size;
    group_set_name(group, name ? name : "the group");
    group->backoff = backoff_for_thread(true);
    group->peers = memory_alloc_zeroed((size_t)size, sizeof *group->peers);
    return group->peers ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for %d members", size);
}
void group_set_table(struct group *group, struct shared_table *table)
{
    group->table = table;
    group->members = shared_table_data(table);
}
void group_release_peers(struct group *group)
{
    for (int r = 0; group->peers && r < group->size; r++) peer_release(group->peers[r]);
    free(group->peers);
    group->peers = NULL;
}
void group_finish(struct group *group)
{
    shared_table_leave(group->table);
    layout_destroy(group->layout);
    group->members = NULL;
    group->table = NULL;
    group->layout = NULL;
}
void group_back_off(const struct group *group, int64_t n)
{
    static const struct wait_set none;
    backoff_wait(&group->backoff, n, &none, 1);
}
void group_alert(const struct group *group)
{
    for (int i = 0; i < group->segment->ranks; i++) atomic_store(&group_control_at_index(group, i)->alert, 1);
}
