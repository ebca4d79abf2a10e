/* All messages of one rank in one communicator: the one matching, and above each peer's transport the way to it
 * (transport.h has the contract below, matching.h who receives what).
 *
 * The k-th send of a name to a peer meets the k-th receive of that name from it; names are independent of each other.
 * A receive from TRANSFER_ANY_PEER takes what comes first, over whichever transport. Posting always succeeds and never
 * blocks: the transfer is the caller's memory until its state is no longer TRANSFER_POSTED. Progress is made in
 * router_poll, by the one thread that calls the router at a time.
 *
 * A peer that is lost fails the transfers with it and later ones, except receives from any peer; a failed router fails
 * all.
 *
 * Several networks may lead to other hosts. A message takes the one by which it is there first, as far as is known; all
 * of a peer are heard in the order in which they left, by whichever. */
#pragma once
#include "backend/transports/matching.h"
#include "backend/transports/transport.h"

struct bell { /* wakes this rank; from any thread. ring NULL: there is none */
    void (*ring)(void *context);
    void *context;
};
/* What it takes to reach another host by a network: ns of a message beside its bytes, sent with them or announced, and
   of a byte. All zero: not known. */
struct link_cost { double message_ns, announced_ns, byte_ns; };
enum { EAGER_BYTES = 65536, NETWORKS_AT_MOST = 3 }; /* up to so many bytes a network sends a message with its bytes */
struct route {
    struct transport *transport;
    int member;           /* the peer's number there, and in those beside it */
    tutti_status status;  /* not OK: lost, or never reached */
    uint32_t sent, heard; /* of networks: messages to this peer that have left; of it, in their order */
};
struct router {
    int rank, size;
    uint64_t comm; /* the communicator, by a number that its members agree on; networks carry it */
    _Atomic int priority; /* of the operation that runs: where it is higher, what waits to leave leaves first */
    struct bell bell;
    tutti_status failure; /* OK, or why nothing goes any more */
    struct transport *transports; /* in the order of router_add */
    struct transport *polled; /* the same; after a failure `failed`, until it has ended all transfers, then NULL */
    struct route *routes;         /* [size] */
    struct transport *network;    /* the first that leads to other hosts, others beside it; NULL: there is none */
    struct link_cost link_costs[NETWORKS_AT_MOST]; /* by each of them */
    int only;                     /* this one alone is used; -1: any */
    int ahead;                    /* messages that have come before their turn */
    struct transport failed;      /* has always something to say, so that a poll looks at the failure */
    struct matching matching;
    /* Why the first transfer that was refused was, in words; empty: there is none. They stay here because the thread
       that finds the transfer failed may be another than the one that failed it. */
    char reason[STATUS_DETAIL_BYTES];
};

tutti_status router_create(int rank, int size, uint64_t comm, struct bell bell, struct router **out);
void router_destroy(struct router *router); /* with its transports; NULL is fine; open transfers are forgotten */
/* The transport is the router's from now on, and leads to those of these ranks (NULL: 0 to count - 1) that have none
   yet; member i is ranks[i]. Both ends of a pair must come to the same one. */
void router_add(struct router *router, struct transport *transport, const int *ranks, int count);
/* The same for a network: it leads to all ranks that nothing else leads to, by their ranks; if there is one already,
   beside it. */
void router_add_network(struct router *router, struct transport *network);
int router_networks(const struct router *router); /* how many */
const char *router_network_name(const struct router *router, int network); /* "network" of what stands for one */
/* What each takes, in the order in which they were added: it decides which is used. */
void router_take_link_costs(struct router *router, const struct link_cost link_costs[NETWORKS_AT_MOST]);
int router_network_for(const struct router *router, uint64_t bytes); /* when all are connected */
/* Sends by this one alone, which is measured; -1: by any again. */
void router_use_network(struct router *router, int network);

/* Of any thread. */
static inline int router_priority(const struct router *router)
{
    return atomic_load_explicit(&router->priority, memory_order_relaxed);
}
static inline void router_set_priority(struct router *router, int priority)
{
    atomic_store_explicit(&router->priority, priority, memory_order_relaxed);
}
void router_post(struct router *router, struct transfer *transfer);
bool router_end(struct router *router); /* after a failure: fails all transfers; true */
static inline bool router_poll_once(struct router *router)
{
    bool moved = false;
    for (struct transport *t = router->polled; t; t = t->next) moved |= t->operations->poll(t);
    return moved;
}
void router_poll_ahead(struct router *router); /* while that brings on what has come before its turn */
/* Moves what can be moved. true: something moved or is about to. */
static inline bool router_poll(struct router *router)
{
    bool moved = router_poll_once(router);
    if (moved && router->ahead) router_poll_ahead(router);
    return moved && router->failure ? router_end(router) : moved;
}
/* Forgets a posted transfer. false: not yet, or it is over by now; poll, and ask again if it is still posted. */
bool router_cancel(struct router *router, struct transfer *transfer);
/* Before sleeping on the bell, after a poll that said false: it rings for what comes from now on. false: poll
   instead. */
bool router_arm(struct router *router);
/* This peer is gone. Fails every transfer with it, with the words of status_fail. */
void router_lose(struct router *router, int rank, tutti_status status);

/* ---- for transports ---- */
/* Nothing goes any more; the first failure stays. Every transfer must be in a list of the transport or in the matching:
   they fail at the end of the poll that is under way, or in the next. */
void router_fail(struct router *router, tutti_status status);
void router_keep_reason(struct router *router); /* status_fail has said why transfers will be refused */
/* Fails one transfer, with the words of status_fail. */
void router_refuse(struct router *router, struct transfer *transfer, tutti_status status);
