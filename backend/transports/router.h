/* The router carries all messages of one rank in one communicator. It has the one matching of the rank (matching.h) and
 * knows the transport that leads to each peer (transport.h).
 *
 * The k-th send of a name to a peer meets the k-th receive of that name from it; names are independent of each other. A
 * receive from TRANSFER_ANY_PEER takes the first message that arrives over any transport. Posting always succeeds and
 * never blocks. The caller keeps the transfer valid while its state is TRANSFER_POSTED. router_poll makes progress; one
 * thread at a time calls the router.
 *
 * When a peer is lost, present and later transfers with it fail, except receives from any peer. When the router fails,
 * all transfers fail.
 *
 * Several networks may lead to other hosts. A message takes the network with the least expected time. The router
 * matches the messages of a peer in the order of their sends, whichever network they took. */
#pragma once
#include "backend/transports/matching.h"
#include "backend/transports/transport.h"

/* Wakes the rank that owns it; any thread may ring. ring NULL: the rank has no bell. */
struct bell {
    void (*ring)(void *context);
    void *context;
};
/* The link cost of another host by a network: ns for each message that is sent with its bytes, ns for each message that
   is announced, and ns for each byte. All zero: unknown. */
struct link_cost { double message_ns, announced_ns, byte_ns; };
/* EAGER_BYTES is the size up to which a network may send a message with its bytes. */
enum { EAGER_BYTES = 65536, NETWORKS_AT_MOST = 3 };
struct route {
    struct transport *transport;
    /* The peer's number in this transport and in the networks beside it. */
    int member;
    /* OK, or the reason why the peer is unreachable: it is lost, or no transport leads to it. */
    tutti_status status;
    /* The number of messages that have left for this peer by networks, and the number of messages from it by networks
       that were handled in their order. */
    uint32_t sent, handled;
};
struct router {
    int rank, size;
    /* The number of the communicator, on which its members agree. Networks carry it. */
    uint64_t comm;
    /* The priority of the running operation: waiting sends of a higher priority leave first. */
    _Atomic int priority;
    struct bell bell;
    /* OK, or the status with which all transfers fail. */
    tutti_status failure;
    /* The transports in the order of router_add_transport. */
    struct transport *transports;
    /* The list to poll: `transports`, or after a failure `failed_transport`, or NULL once router_fail_all_transfers has
       failed all transfers. */
    struct transport *polled;
    /* One route for each rank. */
    struct route *routes;
    /* The first network that leads to other hosts; further networks follow in `next_network`. */
    struct transport *first_network;
    /* One entry for each network. */
    struct link_cost link_costs[NETWORKS_AT_MOST];
    /* The number of the one network that sends use, or -1 for any network. */
    int only_network;
    /* The number of saved messages that wait for earlier messages of the same rank, which come by another network. */
    int ahead_count;
    /* A transport whose poll always reports progress, so that router_poll checks for a failure. */
    struct transport failed_transport;
    struct matching matching;
    /* The text of the first failure, or empty. The router stores it because another thread than the one that failed the
       transfer may find it failed. */
    char reason[STATUS_DETAIL_BYTES];
};

/* Creates the router of a rank among `size` ranks, without transports. NO_MEMORY: memory is exhausted. */
tutti_status router_create(int rank, int size, uint64_t comm, struct bell bell, struct router **out);
/* Destroys the router with its transports and forgets open transfers. `router` may be NULL. */
void router_destroy(struct router *router);
/* Gives the transport to the router. It leads to those of the ranks (NULL: 0 to count - 1) that have no transport yet;
   member i is ranks[i]. Both ends of a message must use the same transport. */
void router_add_transport(struct router *router, struct transport *transport, const int *ranks, int count);
/* Gives a network to the router. It leads to all ranks without another transport, and its members are numbered by rank.
   A further network leads to the same ranks as the first. */
void router_add_network(struct router *router, struct transport *network);
/* Returns the number of networks. */
int router_network_count(const struct router *router);
/* Returns the name of network number `network`, in the order in which they were added; "network" if no network has that
   number. */
const char *router_network_name(const struct router *router, int network);
/* Sets the link cost of each network, in the order in which they were added. The costs decide which one is used. */
void router_set_link_costs(struct router *router, const struct link_cost link_costs[NETWORKS_AT_MOST]);
/* Returns the number of the network with the least expected time for a message of `bytes` bytes. */
int router_cheapest_network(const struct router *router, uint64_t bytes);
/* Restricts sends to the network of this number, while it is measured. -1 allows all networks again. */
void router_use_network(struct router *router, int network);

/* Any thread may call the next two functions. */
static inline int router_priority(const struct router *router)
{
    return atomic_load_explicit(&router->priority, memory_order_relaxed);
}
static inline void router_set_priority(struct router *router, int priority)
{
    atomic_store_explicit(&router->priority, priority, memory_order_relaxed);
}
/* Posts a send or a receive. It may be over at once. */
void router_post(struct router *router, struct transfer *transfer);
/* Fails all transfers with router->failure, which is set. Returns true. */
bool router_fail_all_transfers(struct router *router);
/* Polls each transport once. true: something moved or is about to. */
static inline bool router_poll_once(struct router *router)
{
    bool moved = false;
    for (struct transport *transport = router->polled; transport; transport = transport->next)
        moved |= transport->operations->poll(transport);
    return moved;
}
/* Polls in rounds until the number of messages that wait for earlier ones stops changing. */
void router_poll_ahead(struct router *router);
/* Makes progress on all transfers. true: something moved or is about to. */
static inline bool router_poll(struct router *router)
{
    bool moved = router_poll_once(router);
    if (moved && router->ahead_count) router_poll_ahead(router);
    return moved && router->failure ? router_fail_all_transfers(router) : moved;
}
/* Returns whether a transport receives an announced message (transport.is_receiving). */
static inline bool router_is_receiving(const struct router *router)
{
    const struct transport *transport = router->transports;
    while (transport && !transport->is_receiving) transport = transport->next;
    return transport;
}
/* Forgets a posted transfer. false: the transfer is over, or a transport still uses its memory. The caller polls, and
   cancels again if the transfer is still posted. */
bool router_cancel(struct router *router, struct transfer *transfer);
/* Prepares for sleep after a poll that returned false: the bell rings for every later event. false: the caller must
   poll instead. */
bool router_arm(struct router *router);
/* Marks the peer `rank` as lost, and fails every transfer with it. The reason is the text of status_fail. */
void router_lose_peer(struct router *router, int rank, tutti_status status);

/* ---- for transports ---- */
/* Fails the router with this status and the text of status_fail; the first failure stays. Every transfer must be in a
   list of the transport or in the matching. All of them fail at the end of the current poll or in the next one. */
void router_fail(struct router *router, tutti_status status);
/* Stores the text of status_fail as the reason of failures, unless a reason is stored. */
void router_keep_reason(struct router *router);
/* Fails one transfer, which is in no list. The reason is the text of status_fail. */
void router_fail_transfer(struct router *router, struct transfer *transfer, tutti_status status);
