/* The common state of the shm transport's parts: shm.c has the contract and the lifetime, link.c the protocol with one
   peer, opening.c the memory of the pairs, share.c messages from tensor to tensor. After a failure of the whole
   transport every transfer is in one of the lists, and the router ends it (router_fail). */
#pragma once
#include "backend/transports/shm/pair.h"
#include "backend/transports/shm/shm.h"

/* The number of idle pipes that a rank keeps at first. */
enum { OPEN_BUCKETS = 256, PIPES_KEPT = 16 };
/* An envelope that waits for room in the ring. */
struct queued_envelope {
    struct queued_envelope *next;
    struct envelope envelope;
};
/* This rank and one peer, which may be itself. */
struct shm_link {
    /* in.pair is NULL until the peer has opened its pair, out.pair until this rank has opened its own. */
    struct reader in;
    struct pair_writer out;
    /* Sends to write or announce and receives to clear, in order. */
    struct transfer_list outbox;
    /* Sends that are cleared, in the order of the clearances. */
    struct transfer_list streams;
    /* Receives that are copied from tensor to tensor, one after the other. */
    struct transfer_list shares;
    /* The send that this rank helps to copy into the receiver's tensor, or NULL. */
    struct transfer *helped_send;
    /* These envelopes leave before the outbox. */
    struct queued_envelope *queued, *last_queued;
    /* The number of receives that are cleared and not complete. */
    int expected_count;
    /* The peer's index on the host, and its rank for the router. The fields are set before the link opens
       (shm_link_prepare). */
    int peer;
    int rank;
    /* A receive was cancelled or withdrawn, so slots without a receive may arrive, which are dropped. Never reset. */
    bool is_dropping;
    /* These parts of the outgoing pair are reserved. */
    bool eager_ready, pipe_ready;
    /* The pipe has been given back at some time. */
    bool pipe_was_given_back;
    /* The link whose pipe was reserved next after this one's. */
    struct shm_link *next_pipe;
    /* A receive of `shares` has failed. From then on none begins, because the sender may still copy parts of the failed
       one. */
    bool shares_refused;
    /* The peer's bell must ring. */
    bool must_ring;
    /* The link has work besides the ring, so each poll visits it. */
    bool is_busy;
    /* The link is in shm->active. */
    bool is_active;
    /* The peer was lost, and the link is no longer polled. */
    bool is_lost;
    /* The state of `out` and `in` that small messages do not need, kept apart from their cache lines. */
    struct store_modes modes;
    struct store_judge judge;
};
struct shm {
    struct transport base;
    struct shm_callbacks callbacks;
    /* The doorbell of this rank. */
    struct doorbell *doorbell;
    /* The value of doorbell->open_count at the last poll. */
    uint32_t opens_seen;
    /* The index of this rank, and the number of members. */
    int me, count;
    /* The rank of each member; NULL: member i is rank i. */
    const int *ranks;
    /* The links that have an open pair. */
    int active_count;
    struct shm_link **active;
    /* The id of the last message that this rank announced. */
    uint64_t last_id;
    /* Announced sends and cleared receives; the id of a message chooses the bucket. */
    struct transfer_list open_transfers[OPEN_BUCKETS];
    struct queued_envelope *free_envelopes;
    /* The matching of the router. */
    struct matching *matching;
    /* One link for each member. A link that was never opened is zeroed and takes no memory. */
    struct shm_link *links;
    /* The links whose pipe is reserved, oldest first, and their number. */
    struct shm_link *first_pipe, *last_pipe;
    int pipe_count;
    /* The number of pipes that stay although they are idle. */
    int pipes_kept;
};
/* Returns whether the router has failed. */
static inline bool shm_has_failed(const struct shm *shm) { return shm->base.router->failure != TUTTI_OK; }

/* ---- opening, in opening.c ---- */
/* Sets the constant fields of a link before its first use. The other links of a large group stay untouched. */
void shm_link_prepare(struct shm *shm, struct shm_link *link);
/* Opens the pair to the peer if it is not open, and announces that by the peer's doorbell. The next three fail if the
   host has no memory left. */
tutti_status shm_link_open_outgoing(struct shm *shm, struct shm_link *link);
/* Allocates the eager part of the outgoing pair, unless that is done. */
tutti_status shm_link_reserve_eager(struct shm *shm, struct shm_link *link);
/* Allocates the pipe of the outgoing pair, unless that is done. It stays at least until all messages that are announced
   now are over. */
tutti_status shm_link_reserve_pipe(struct shm *shm, struct shm_link *link);
/* Finds the incoming pair after the peer has opened it. Returns false if it is known already, or the peer is lost. */
bool shm_link_find_incoming(struct shm *shm, struct shm_link *link);

/* ---- the protocol, in link.c ---- */
/* Opens the incoming side after the peer has opened its pair. */
void shm_link_open_incoming(struct shm *shm, struct shm_link *link);
/* Sends a message, or keeps it in a list until a later poll. */
void shm_link_send(struct shm *shm, struct shm_link *link, struct transfer *send);
/* Handles a receive that has met a message which this peer announced: asks for its bytes, or fails if the sizes
   differ. */
void shm_link_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *receive,
    const struct envelope *announced);
/* Returns whether a poll of the link would find no work. It reads one word of the ring. */
static inline bool shm_link_is_quiet(const struct shm_link *link)
{
    return !link->is_busy && !reader_has_cell(&link->in);
}
/* Makes progress with the peer. true: something moved or has failed. */
bool shm_link_poll(struct shm *shm, struct shm_link *link);
/* Ends each use of a link: rings the peer's bell if must_ring is set, and updates is_busy. */
void shm_link_settle(struct shm *shm, struct shm_link *link);
/* Forgets a transfer of this link, and notifies the peer if it knows the transfer. */
void shm_link_cancel_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer);
/* Fails every transfer of this link with this status, and stops polling the link. */
void shm_link_lose_peer(struct shm *shm, struct shm_link *link, tutti_status status);

/* ---- the protocol, for share.c ---- */
/* Sends an envelope at once, or queues it until the ring has room. */
void shm_link_send_envelope(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
/* Returns whether an envelope would leave at once. */
bool shm_link_can_send_envelope(struct shm_link *link);
/* The next three store announced sends and cleared receives by id: a send by its own id, a receive by the id that its
   sender chose (transfer->key). */
void open_transfers_add(struct shm *shm, struct transfer *transfer);
/* false: the transfer is not stored. */
bool open_transfers_remove(struct shm *shm, const struct transfer *transfer);
/* Returns the send to the rank, or the receive from it, with this id, or NULL. */
struct transfer *open_transfers_find(struct shm *shm, int rank, uint64_t id, bool is_send);

/* ---- messages from tensor to tensor, in share.c ---- */
/* Returns the location at which the peer finds this end of the transfer, or one of the REMOTE values. */
struct remote share_own_location(const struct shm *shm, const struct transfer *transfer);
/* Takes a receive that has met a message. true: one rank can reach or read the other's tensor, so the message is copied
   from tensor to tensor, after the receives that wait already. false: the message must be streamed. */
bool share_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *receive);
/* Copies the next part of the first shared receive, and of the send that this rank helps to copy. true: something
   moved. */
bool share_poll(struct shm *shm, struct shm_link *link);
/* Handles SHARE: begins to help with an announced send, at the location of its receiver's tensor. */
void share_handle_request(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
/* Handles COPIED: records how many parts the sender has copied. */
void share_handle_copied(struct shm_link *link, const struct envelope *envelope);
/* Handles FINISHED: completes a send whose receiver has all parts. */
void share_handle_finished(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
/* Drops a shared transfer and notifies the other end. false: the transfer is not a shared one. */
bool share_remove_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer);
/* Returns the shared receive of this id, or NULL. */
struct transfer *share_find_receive(const struct shm_link *link, uint64_t id);
