/* Who is in a group, and where. Constant once the communicator has joined. What lies in the memory of one host is found
 * by a rank's index on that host, never by the rank itself. */
#pragma once
#include "backend/host/segment.h"
#include "backend/host/wait.h"
#include "backend/processes/member.h"
#include "backend/schedule/schedule.h"

struct group {
    int rank, size;
    char name[32];
    unsigned generation;                                /* of the process: changes with fork */
    struct member *members;                             /* [size] */
    struct peer **peers;                                /* [size]; NULL: this process */
    const struct segment *segment;                      /* of my host; NULL: not mapped yet */
    const struct segment *network;                      /* between pretended hosts: bells, pairs; or NULL */
    struct layout *layout;                              /* where the ranks are; owned; NULL: not known yet */
    int host;                                           /* mine */
    struct ladder ladder;                               /* of a thread that drives */
};
tutti_status group_init(struct group *group, int rank, int size, const char *name);
void group_leave(struct group *group);                  /* lets go of the peers; the rest stays readable */
void group_finish(struct group *group);

/* ---- the ranks of my host ---- */
static inline bool group_has_here(const struct group *g, int rank) { return host_of(g->layout, rank) == g->host; }
/* Of a rank of my host. */
static inline int group_index(const struct group *g, int rank) { return place_of(g->layout, rank).index; }
static inline int group_rank(const struct group *g, int index) { return rank_at(g->layout, g->host, index); }
static inline struct control *group_control(const struct group *g, int index)
{
    return segment_control(g->segment, index);
}

/* Whoever of them arrives from now on looks at the failure; so, as long as nothing has failed, that is one word less to
   read. */
void group_alert(const struct group *group);

/* ---- all ranks ---- */
/* The control block with the bell of any rank, of this host or another, and its word that it has joined. */
static inline struct control *group_contact(const struct group *g, int rank)
{
    return g->network ? segment_control(g->network, rank) : group_control(g, group_index(g, rank));
}
