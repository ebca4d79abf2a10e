/* The contract of a transport: one way to move messages between this rank and some others, its members. Above it is the
 * router of the communicator (router.h), which knows the transport of each peer and has the one matching for all; a
 * transport fills the table below, and numbers its members as it likes (on a host: by their index there). shm and
 * inproc are such transports, a network is the next.
 *
 * Names. A message is named by communicator (router->comm), operation and message. A transport carries all that is not
 * clear from the memory or connection it goes through: shared memory belongs to one communicator, a network's
 * connections to the process. What comes for another communicator, or for one that is not there yet, is kept until
 * that one polls.
 * Order. Messages of one name from one member arrive in the order of their sends. Others may overtake them, and none
 * is held up by one that nobody receives yet.
 * send. Never blocks or waits for room: what cannot leave stays in a list of this rank and leaves in a later poll.
 * A small message leaves with its bytes, and the send is over, while the member has credit; otherwise, and if it is
 * large, it is announced: its bytes stay, under an id, until the receiver asks.
 * Arrival. In poll. matching_arrive names the receive that takes it. Bytes that are there go into it at once;
 * for an announced message see accept. If there is none yet, matching_keep keeps an arrival: the announced, or a
 * copy of the bytes.
 * Credit. What a member has sent unasked, under way or kept, is bounded: from one a number of bytes (shm 64 KiB) or of
 * messages. It comes back when the bytes meet their receive: at arrival, or by release.
 * accept. The receive has met an announced message: its bytes are now moved, pulled from here or pushed from there.
 * Then both ends are DONE. transfer_meets decides whether the ends agree; if not both fail (MISMATCH) and know of the
 * other's bytes, but for a send that is over already.
 * cancel. true: the transfer is forgotten, and nobody touches its memory any more; what it met at the other end is
 * dropped there, or fails (ABORTED) if it still waits. false: a member may still be touching it; poll and ask again.
 * This ends TRANSPORT_CANCEL_MS after the first asking at the latest: a transport that cannot take the memory back by
 * then loses the member (router_lose), which breaks whatever reaches it.
 * lose. A member is gone: who noticed it called router_lose. All transfers with it fail, nothing of it is heard any
 * more, and nothing of it can reach memory of this rank, except shared memory, where may_share says what holds.
 * The transport calls router_lose itself when it notices (a connection that breaks), as the last thing it does in a
 * poll or cancel. Silence of a member that is stopped or unplugged is noticed by others (the control connection).
 * Beside another. Of networks that lead to the same members (router_add_network) each says by `readiness` what it would
 * do with a send. Messages are numbered as they leave (route->sent), and a network gives what arrives to the matching
 * in that order (route->heard), holding what is ahead of its turn. Arrivals say which transport they came by.
 * Sleeping. poll says true while something moves, is about to or has failed. After false a rank may arm, and when that
 * says true, sleep: then router->bell rings for whatever comes from there on. So a rank sleeps on words only, its bell
 * among them; a network that has a file descriptor has a thread wait for that and ring. arm NULL: it rings without
 * being asked (shm: the sender rings the bell of a peer that listens).
 * Reasons. Whatever fails for a reason of the transport says it in words: status_fail, then router_refuse (this
 * transfer), router_lose (this member) or router_fail (all: the transport is of no use any more).
 * Threads. All functions for one router are called by one thread at a time, and none of them blocks, allocates on the
 * path of small messages that are expected, or calls back but for the bell. What other ranks write is read once and
 * checked. */
#pragma once
#include "backend/transports/transfer.h"

enum { TRANSPORT_CANCEL_MS = 1000 };
struct arrival;
struct router;
struct transport;
enum readiness {
    CONNECTED,   /* it leaves at once */
    UNCONNECTED, /* it would have to wait for a connection, which is now asked for */
    SENDS_WAIT   /* others wait already, and it must not overtake them */
};
struct transport_operations {
    const char *name;
    void (*send)(struct transport *transport, int member, struct transfer *send);
    void (*accept)(struct transport *transport, int member, struct transfer *receive, const struct arrival *announced);
    void (*release)(struct transport *transport, int member, uint64_t bytes); /* of a message that was kept */
    bool (*poll)(struct transport *transport);
    bool (*cancel)(struct transport *transport, int member, struct transfer *transfer); /* not of one in the matching */
    void (*lose)(struct transport *transport, int member, tutti_status status);
    enum readiness (*readiness)(struct transport *transport, int member); /* of networks */
    bool (*arm)(struct transport *transport); /* or NULL; false: something is there, poll */
    void (*destroy)(struct transport *transport); /* open transfers are forgotten */
};
struct transport {
    const struct transport_operations *operations;
    struct router *router;
    struct transport *next;   /* of the router */
    struct transport *beside; /* the next network that leads to the same members */
    const char *network;      /* its name, if it is one */
};
