/* Splits a communicator: the ranks exchange their color and key in an all-gather of the parent, then join as usual. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/comm/comm.h"
#include "backend/join/join.h"
#include "backend/join/member_table.h"
#include <stdlib.h>

/* The data that each rank gathers: its record for the new group, its color and its key. */
struct split { struct member member; int32_t color, key; };
/* Returns a negative number if rank a comes before rank b in the new group: by key, then by rank. */
static int split_compare_ranks(const struct split *all, int a, int b)
{
    if (all[a].key != all[b].key) return all[a].key < all[b].key ? -1 : 1;
    return a - b;
}
/* A rank of the parent with its key, to sort the ranks of a color without a look at their records. */
struct split_place { int32_t key, rank; };
static int split_place_compare(const void *a, const void *b)
{
    const struct split_place *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->rank - y->rank;
}
/* Lists the records of the new group's ranks in the order of the group. `places` has room for each of them. */
static void split_sort_members(const tutti_comm *parent, const struct split *all, struct split_place *places,
    struct member *out)
{
    int count = 0, color = all[parent->group.rank].color;
    for (int r = 0; r < parent->group.size; r++)
        if (all[r].color == color) places[count++] = (struct split_place){ all[r].key, r };
    qsort(places, (size_t)count, sizeof *places, split_place_compare);
    for (int i = 0; i < count; i++) out[i] = all[places[i].rank].member;
}
/* Sets the members of the new group, whose table has only their records. */
static tutti_status split_set_members(const tutti_comm *parent, const struct split *all, struct group *group)
{
    struct shared_table *table;
    struct member *members = memory_alloc_zeroed((size_t)group->size, sizeof *members);
    struct split_place *places = memory_alloc_zeroed((size_t)group->size, sizeof *places);
    if (members && places) split_sort_members(parent, all, places, members);
    bool has_memory = members && places;
    free(places);
    if (!has_memory) {
        free(members);
        return status_fail(TUTTI_NO_MEMORY, "no memory for %d members", group->size);
    }
    TRY(member_table_keep(members, &table));
    group_set_table(group, table);
    return TUTTI_OK;
}
/* Returns the token of the first rank of this rank's new group, which names the group. */
static const unsigned char *split_token_of_group(const tutti_comm *parent, const struct split *all)
{
    int first = parent->group.rank;
    for (int q = 0; q < parent->group.size; q++)
        if (all[q].color == all[first].color && split_compare_ranks(all, q, first) < 0) first = q;
    return all[first].member.token;
}
/* Creates the communicator of this rank in its new group. A rank that cannot join reports this to the others. */
static tutti_status comm_create_split_group(tutti_comm *parent, const struct split *all, int rank, int size,
    tutti_comm **out)
{
    struct member mine;
    tutti_status status = comm_allocate_and_init(rank, size, parent->group.name, parent->timeout_ms, out);
    if (status == TUTTI_OK) status = join_init_member(*out, &mine);
    if (status == TUTTI_OK) status = split_set_members(parent, all, &(*out)->group);
    if (status != TUTTI_OK) { peers_abort_join(split_token_of_group(parent, all)); return status; }
    (*out)->group.key = parent->group.key;
    for (int f = 0; f < COLLECTIVE_COUNT; f++) atomic_store(&(*out)->chosen[f], atomic_load(&parent->chosen[f]));
    return join_members(*out, clock_deadline((*out)->timeout_ms));
}
tutti_status comm_split(tutti_comm *parent, int color, int key, tutti_comm **out)
{
    *out = NULL;
    const struct group *group = &parent->group;
    struct split *all = memory_alloc_zeroed((size_t)group->size, sizeof *all);
    if (!all) return status_fail(TUTTI_NO_MEMORY, "no memory to split %d ranks", group->size);
    struct split mine = { .member = group->members[group->rank], .color = color, .key = key };
    /* The token of the rank that becomes rank 0 names the group. */
    tutti_status status = random_fill(mine.member.token, sizeof mine.member.token);
    if (status == TUTTI_OK) status = comm_gather(parent, &mine, sizeof mine, all);
    int rank = 0, size = 0;
    for (int q = 0; q < group->size; q++) {
        size += all[q].color == color;
        rank += all[q].color == color && split_compare_ranks(all, q, group->rank) < 0;
    }
    if (status == TUTTI_OK && color >= 0)
        status = comm_destroy_on_error(comm_create_split_group(parent, all, rank, size, out), out);
    free(all);
    return status;
}
