/* Members of a group, and the host of each. Constant once the communicator has joined. Objects in the memory of a host
 * are indexed by a rank's index on that host, never by the rank itself. */
#pragma once
#include "backend/engine/member.h"
#include "backend/host/segment.h"
#include "backend/host/wait.h"
#include "backend/memory/shared_table.h"
#include "backend/schedule/schedule.h"

enum { GROUP_NAME_BYTES = 32 };
struct group {
    int rank, size;
    char name[GROUP_NAME_BYTES];
    /* The process_generation of the process that joined. */
    unsigned generation;
    /* The id of the key that the group's processes prove to each other that they know. */
    struct key_id key;
    /* The records of all `size` ranks, which are the data of `table`. NULL until they are known. */
    const struct member *members;
    struct shared_table *table;                         /* owned */
    /* A rank of this process has a NULL entry. */
    struct peer **peers;                                /* [size], owned */
    /* The segment of this host. NULL until it is mapped. */
    const struct segment *segment;
    /* Bells and pairs between simulated hosts, or NULL. */
    const struct segment *network;
    /* The hosts of all ranks. NULL until they are known. */
    struct layout *layout;                              /* owned */
    /* This rank's host. */
    int host;
    /* The interface of the network that leads to the other hosts, or empty. */
    char interface[16];
    /* The value in tutti_config. */
    bool is_reconfigurable;
    /* Returns true if the caller has cancelled the join of this rank. NULL: the caller cannot cancel it, or the group
       has formed. */
    bool (*is_cancelled)(void *context);
    void *cancel_context;
    /* The backoff of a thread that drives. */
    struct backoff backoff;
};
/* Sets the rank, the size and the name (NULL: "the group"), and allocates the array of peers. The caller must call
   group_finish in every case. */
tutti_status group_init(struct group *group, int rank, int size, const char *name);
/* Sets the group's name in errors and logs. Longer names are cut. */
void group_set_name(struct group *group, const char *name);
/* Gives the group its table of members. */
void group_set_table(struct group *group, struct shared_table *table);
/* Releases the peers. The other fields stay readable until group_finish. */
void group_release_peers(struct group *group);
/* Leaves the table of members, and frees the layout. */
void group_finish(struct group *group);
/* Waits a moment after the n-th poll of a condition that was not met, and whose change wakes no sleeper. */
void group_back_off(const struct group *group, int64_t n);

static inline bool group_has_several_hosts(const struct group *group) { return group->layout->hosts > 1; }
/* Returns true if the group has several hosts that communicate by links and a network. `network` is then NULL. */
static inline bool group_uses_links(const struct group *group)
{
    uint32_t simulates = group->members[0].simulates;
    return group_has_several_hosts(group) && (!simulates || simulates & SIMULATES_LINKS);
}

/* ---- the ranks of this host ---- */
/* Returns true if the rank is on this host. */
static inline bool group_rank_is_here(const struct group *group, int rank)
{
    return layout_host(group->layout, rank) == group->host;
}
/* Returns the index of a rank on its host. */
static inline int group_index_of_rank(const struct group *group, int rank)
{
    return layout_place(group->layout, rank).index;
}
/* Returns the rank that has this index on this host. */
static inline int group_rank_at_index(const struct group *group, int index)
{
    return layout_rank(group->layout, group->host, index);
}
/* Returns the control block of the rank that has this index on this host. */
static inline struct control *group_control_at_index(const struct group *group, int index)
{
    return segment_control(group->segment, index);
}

/* Makes the ranks of this host check the shared failure record in their next roll call. Without an alert they skip that
   read. */
void group_alert(const struct group *group);

/* Returns the control block with a rank's bell and its `joined` flag. The rank is on this host, or on a simulated host
   that shares the network segment. */
static inline struct control *group_control_of_rank(const struct group *group, int rank)
{
    return group->network ? segment_control(group->network, rank)
                          : group_control_at_index(group, group_index_of_rank(group, rank));
}
