/* What the parts of the shm transport share: shm.c, the contract and its lifetime, link.c, the protocol with one
   peer, and share.c, messages from tensor to tensor. A failure of all leaves every transfer in one of the lists: the
   router ends them (router_fail). */
#pragma once
#include "backend/transports/shm/pair.h"
#include "backend/transports/shm/shm.h"

enum { OPEN_BUCKETS = 256 };
struct queued_envelope { /* an envelope that waits for room in the ring */
    struct queued_envelope *next;
    struct envelope envelope;
};
struct shm_link {                       /* this rank and one peer, which may be itself */
    struct reader in;               /* pair NULL: the peer has not opened its pair yet */
    struct pair_writer out;              /* pair NULL: not opened yet */
    struct queue outbox;            /* sends to announce or send, receives to clear, in order */
    struct queue streams;           /* sends that are cleared, in the order of the clearances */
    struct queue shares;            /* receives copied from tensor to tensor, one after the other */
    struct transfer *helped;        /* a send whose receiver has asked for help with that, or NULL */
    struct queued_envelope *queued, *last_queued; /* these go before the outbox */
    int expecting;                  /* receives that are cleared and not yet complete */
    int peer; /* its index on the host, and what it is to the router: */
    int rank;
    bool dropping;                /* slots may come for receives that are gone */
    bool eager_ready, pipe_ready; /* these parts of the outgoing pair are reserved */
    bool refused;                 /* a receive could not reach its message: no other begins, the group has failed */
    bool spoke;                   /* the peer's bell is due */
    bool busy;                    /* there is something to do besides looking into the ring */
    bool active;                  /* in shm->active */
    bool lost;                    /* nothing is heard of it any more */
    struct ways ways;             /* of out, and of in: out of the way of what each message needs */
    struct judge judge;
};
struct shm {
    struct transport base;
    struct shm_callbacks callbacks;
    struct doorbell *doorbell;
    uint32_t rings_seen; /* doorbell->opened as last seen */
    int me, count;   /* members */
    int active_count;
    struct shm_link **active; /* [count]: those with a pair open */
    uint64_t last_id;
    struct queue open[OPEN_BUCKETS]; /* announced sends and cleared receives, by id */
    struct queued_envelope *spare_envelopes;
    struct matching *matching; /* the router's */
    struct shm_link *links;        /* [count] */
};
static inline bool shm_has_failed(const struct shm *shm) { return shm->base.router->failure != TUTTI_OK; }

void link_meet(struct shm *shm, struct shm_link *link);  /* the peer has opened its pair */
void link_send(struct shm *shm, struct shm_link *link, struct transfer *send);
/* A receive has met a message that this peer announced. */
void link_accept(struct shm *shm, struct shm_link *link, struct transfer *receive, const struct envelope *announced);
/* A poll would find nothing: one look at the ring. */
static inline bool link_is_quiet(const struct shm_link *l) { return !l->busy && !reader_is_ready(&l->in); }
bool link_poll(struct shm *shm, struct shm_link *link);
/* After everything that was done with a link: rings the peer's bell if that is due, and sees what is left to do. */
void link_settle(struct shm *shm, struct shm_link *link);
/* Of a transfer that is with this link. */
void link_cancel(struct shm *shm, struct shm_link *link, struct transfer *transfer);
/* Fails every transfer that is with this link, and looks at it no more. */
void link_lose(struct shm *shm, struct shm_link *link, tutti_status status);

/* ---- of the protocol, for share.c ---- */
/* At once, or when there is room. */
void link_tell(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
bool link_can_tell(struct shm_link *link); /* at once */
/* Announced sends by their id, and cleared receives by their sender's. */
void open_add(struct shm *shm, struct transfer *transfer);
bool open_remove(struct shm *shm, const struct transfer *transfer);
struct transfer *open_find(struct shm *shm, int rank, uint64_t id, bool is_send);

/* ---- messages from tensor to tensor, in share.c ---- */
struct remote share_remote(const struct shm *shm, const struct transfer *transfer);
/* A receive has met a message. true: one end at least can be reached, it will be copied after those that wait. */
bool share_accept(struct shm *shm, struct shm_link *link, struct transfer *receive);
bool share_poll(struct shm *shm, struct shm_link *link);
void share_hear_offer(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
void share_hear_copied(struct shm_link *link, const struct envelope *envelope);
void share_hear_finished(struct shm *shm, struct shm_link *link, const struct envelope *envelope);
/* Gives a transfer up and tells the other end. false: it was not one of these. */
bool share_remove(struct shm *shm, struct shm_link *link, struct transfer *transfer);
struct transfer *share_find(const struct shm_link *link, uint64_t id); /* a receive */
