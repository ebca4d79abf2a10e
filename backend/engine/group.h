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
    struct key_id key;                                  /* by which its processes know each other */
    struct member *members;                             /* [size] */
    struct peer **peers;                                /* [size]; NULL: this process */
    const struct segment *segment;                      /* of my host; NULL: not mapped yet */
    const struct segment *network; /* bells and pairs between hosts that are simulated; or NULL */
    struct layout *layout;                              /* where the ranks are; owned; NULL: not known yet */
    int host;                                           /* mine */
    char interface[16];                                 /* of the network that leads to the other hosts, or empty */
    struct backoff backoff;                               /* of a thread that drives */
};
tutti_status group_init(struct group *group, int rank, int size, const char *name);
void group_leave(struct group *group);                  /* lets go of the peers; the rest stays readable */
void group_finish(struct group *group);

static inline bool group_is_spread(const struct group *g) { return g->layout->hosts > 1; }
/* Several hosts, and all between them goes over links and a network; `network` is NULL. */
static inline bool group_is_linked(const struct group *g)
{
    uint32_t simulates = g->members[0].simulates;
    return group_is_spread(g) && (!simulates || simulates & SIMULATES_LINKS);
}

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

/* The control block with the bell of a rank of my host, and its word that it has joined; also of a rank of another host
   that is simulated and shares the network segment. */
static inline struct control *group_contact(const struct group *g, int rank)
{
    return g->network ? segment_control(g->network, rank) : group_control(g, group_index(g, rank));
}
