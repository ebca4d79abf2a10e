/* The contract of a transport, which moves messages between this rank and some other ranks, its members. The router of
 * the communicator (router.h) knows the transport of each peer and has the one matching for all of them. A transport
 * fills the table below and numbers its members as it likes (on a host, by their index there). shm and fabric are
 * transports; tests/support has a third, inproc.
 *
 * Names. A message is named by communicator (router->comm), operation and message. A transport carries the parts of
 * the name that its memory or connection does not imply: shared memory belongs to one communicator, a network's
 * connections belong to the process. A network saves a message for another communicator, or for one that does not
 * exist yet, until that communicator polls.
 *
 * Order. Messages of one name from one member arrive in the order of their sends. Other messages may overtake them,
 * and a message that has no receive yet delays no other.
 *
 * send. Never blocks. A message that cannot leave at once stays in a list of this rank and leaves in a later poll.
 * While the member has credit, a small message leaves with its bytes and the send is done. Any other message is
 * announced: its bytes stay, under an id, until the receiver asks for them.
 *
 * Arrival. Messages arrive within poll. matching_take_receive returns the receive that takes the message. Bytes that
 * are present go into that receive at once; those of an announced message are moved as by accept. If no receive is
 * posted, matching_keep_arrival keeps an arrival: the announcement, or a copy of the bytes.
 *
 * Credit. The messages of a member that travel with their bytes, under way or kept, are bounded: in bytes (shm: 64 KiB,
 * fabric: 256 KiB) or in number (inproc). Credit returns when the bytes meet their receive: at arrival, or by release.
 *
 * accept. The receive has met an announced message. The transport now moves its bytes, pulled from here or pushed from
 * there, and then both ends are DONE. transfer_meet_message decides whether the ends agree. If they differ, both ends
 * fail with MISMATCH and learn the byte count and type of the other, except a send that is already done.
 *
 * cancel. true: the transfer is forgotten, and its memory is no longer in use, except by a peer that
 * transfer.may_share lets read or write it. The receiver drops the message of a cancelled send; a receive that has met
 * it and still waits fails with ABORTED. The send of a cancelled receive completes. false: a member may still use the
 * memory; the caller polls and cancels again. This ends at most TRANSPORT_CANCEL_MS after the first cancel: a transport
 * that cannot take the memory back by then loses the member (router_lose_peer), which closes every path to that memory.
 *
 * lose. A member is lost; the code that noticed it called router_lose_peer. All transfers with the member fail, and
 * later messages from it are ignored. It can no longer reach memory of this rank, except shared memory (see
 * may_share). A transport that notices a loss itself (a broken connection) calls router_lose_peer as the last action
 * of a poll or cancel. The control connection detects members that are stopped or unplugged.
 *
 * Several networks. Networks that lead to the same members (router_add_network) each report in `readiness` how they
 * would handle a send. They number the messages to a member in one sequence, as they leave (route->sent). At the
 * receiver, networks pass arrivals to the matching in that order (route->handled) and save those that are early. Each
 * arrival names its transport.
 *
 * Sleeping. poll returns true while something moves, is about to move or has failed. After false a rank may arm, and
 * if arm returns true, sleep: router->bell then rings for later events. So a rank sleeps only on words in shared
 * memory, its bell among them. A network with a file descriptor has a thread that waits for it and rings. arm NULL:
 * the transport rings without being armed (shm: the sender rings the bell of a peer that listens).
 *
 * Reasons. A transport that fails something formats the reason with status_fail. Then it calls router_fail_transfer
 * (for one transfer), router_lose_peer (for one member) or router_fail (for all: the transport no longer works).
 *
 * Threads. One thread at a time calls the functions of one router. They do not block, except that lose and destroy of a
 * network may wait up to TRANSPORT_CANCEL_MS for memory of a transfer. They allocate nothing for small messages that
 * are expected, and end a transfer only by its state. They read each word of shared memory once, and check it. */
#pragma once
#include "backend/transports/transfer.h"

enum { TRANSPORT_CANCEL_MS = 1000 };
struct arrival;
struct router;
struct transport;
enum readiness {
    /* The message leaves at once. */
    CONNECTED,
    /* The message would have to wait for a connection, which the network requests unless it was refused. */
    UNCONNECTED,
    /* Earlier sends wait on this network, or its link is broken. The message must take this network, too. */
    SENDS_WAIT
};
struct transport_operations {
    const char *name;
    /* Sends a message to the member, or keeps it in a list until a later poll can send it. */
    void (*send)(struct transport *transport, int member, struct transfer *send);
    /* Moves the bytes of an announced message of the member into the receive that has met it. */
    void (*accept)(struct transport *transport, int member, struct transfer *receive, const struct arrival *arrival);
    /* Returns the credit of a kept message of `bytes` bytes to the member, because its bytes have met their receive. */
    void (*release)(struct transport *transport, int member, uint64_t bytes);
    /* Makes progress. true: something moves, is about to move, or has failed. */
    bool (*poll)(struct transport *transport);
    /* Forgets a transfer with the member. false: its memory is still in use; the caller polls and cancels again. The
       router cancels transfers that are still in the matching itself. */
    bool (*cancel)(struct transport *transport, int member, struct transfer *transfer);
    /* Fails all transfers with the member, with this status, and ignores its later messages. */
    void (*lose)(struct transport *transport, int member, tutti_status status);
    /* Returns how the network would handle a send to the member. Only networks have this function. */
    enum readiness (*readiness)(struct transport *transport, int member);
    /* Makes later events ring the router's bell. false: something has arrived, and the caller must poll. The function
       may be NULL. */
    bool (*arm)(struct transport *transport);
    /* Frees the transport and forgets open transfers. */
    void (*destroy)(struct transport *transport);
};
struct transport {
    const struct transport_operations *operations;
    struct router *router;
    /* The next transport of the router. */
    struct transport *next;
    /* The next network that leads to the same members. */
    struct transport *next_network;
    /* The name of the network; NULL for other transports. */
    const char *network_name;
    /* The network receives an announced message, so its next bytes come soon. Set by the polls of networks. */
    bool is_receiving;
};
