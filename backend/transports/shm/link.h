/* The common state of the shm transport's parts: shm.c has the contract and the lifetime, link.c the protocol with one
   peer, share.c messages from tensor to tensor. After a failure of the whole transport every transfer is in one of the
   lists, and the router ends it (router_fail). */
#pragma once
#include "backend/transports/shm/pair.h"
#include "backend/transports/shm/shm.h"

enum { OPEN_BUCKETS = 256 };
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
    /* The send that this rank helps to copy into its receiver's tensor, or NULL. */
    struct transfer *helped;
    /* These envelopes leave before the outbox. */
    struct queued_envelope *queued, *last_queued;
    /* The number of receives that are cleared and not complete. */
    int expecting;
    /* The peer's index on the host, and its rank for the router. */
    int peer;
    int rank;
    /* Slots may arrive for receives that were cancelled. */
    bool dropping;
    /* These parts of the outgoing pair are reserved. */
    bool eager_ready, pipe_ready;
    /* A receive could not reach its message. The group has failed, so no other shared receive begins. */
    bool refused;
    /* The peer's bell must ring. */
    bool must_ring;
    /* The link has work besides the ring. */
    bool busy;
    /* The link is in shm->active. */
    bool active;
    /* The link is no longer polled. */
    bool lost;
    /* The state of `out` and `in` that small messages do not need, kept apart from their cache lines. */
    struct store_modes modes;
    struct store_judge judge;
};
struct shm {
    struct transport base;
    struct shm_callbacks callbacks;
    struct doorbell *doorbell;
    /* The value of doorbell->opened at the last poll. */
    uint32_t rings_seen;
    /* The index of this rank, and the number of members. */
    int me, count;
    /* The links that have an open pair. */
    int active_count;
    struct shm_link **active;
    uint64_t last_id;
    /* Announced sends and cleared receives, by id. */
    struct transfer_list open[OPEN_BUCKETS];
    struct queued_envelope *spare_envelopes;
    /* The matching of the router. */
    struct matching *matching;
    /* One link for each member. */
    struct shm_link *links;
};
static inline bool shm_has_failed(const struct shm *shm) { return shm->base.router->failure != TUTTI_OK; }

/* Opens the incoming side after the peer has opened its pair. */
void shm_link_open_incoming(struct shm *shm, struct shm_link *link);
void shm_link_send(struct shm *shm, struct shm_link *link, struct transfer *send);
/* Starts a receive that has met a message which this peer announced. */
void shm_link_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *receive,
    const struct envelope *announced);
/* Returns whether a poll would find no work, by a read of one word of the ring. */
static inline bool shm_link_is_quiet(const struct shm_link *link) { return !link->busy && !reader_has_cell(&link->in); }
bool shm_link_poll(struct shm *shm, struct shm_link *link);
/* Ends each use of a link: rings the peer's bell if that is due, and updates `busy`. */
void shm_link_settle(struct shm *shm, struct shm_link *link);
/* Cancels a transfer of this link. */
void shm_link_cancel_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer);
/* Fails every transfer of this link and stops polling it. */
void shm_link_lose_peer(struct shm *shm, struct shm_link *link, tutti_status status);

/* ---- the protocol, for share.c ---- */
/* Sends an envelope at once, or queues it until the ring has room. */
void shm_link_send_envelope(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
/* Returns whether an envelope would leave at once. */
bool shm_link_can_send_envelope(struct shm_link *link);
/* These functions file announced sends by their id, and cleared receives by the id of their sender. */
void open_transfers_add(struct shm *shm, struct transfer *transfer);
bool open_transfers_remove(struct shm *shm, const struct transfer *transfer);
struct transfer *open_transfers_find(struct shm *shm, int rank, uint64_t id, bool is_send);

/* ---- messages from tensor to tensor, in share.c ---- */
struct remote share_own_place(const struct shm *shm, const struct transfer *transfer);
/* Handles a receive that has met a message. true: at least one end is reachable, so the message is copied from tensor
   to tensor after the receives that wait already. */
bool share_accept_receive(struct shm *shm, struct shm_link *link, struct transfer *receive);
bool share_poll(struct shm *shm, struct shm_link *link);
void share_handle_request(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
void share_handle_copied(struct shm_link *link, const struct envelope *envelope);
void share_handle_finished(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
/* Drops a transfer and notifies the other end. false: the transfer is not a shared one. */
bool share_remove_transfer(struct shm *shm, struct shm_link *link, struct transfer *transfer);
/* Returns the shared receive of this id, or NULL. */
struct transfer *share_find_receive(const struct shm_link *link, uint64_t id);
