/* What the two halves of the shm transport share: shm.c, the contract and its lifetime, and shm_link.c, the protocol
   with one peer. */
#pragma once
#include "backend/transports/matching.h"
#include "backend/transports/shm_pair.h"

enum { OPEN_BUCKETS = 256 };
struct note { /* an envelope that waits for room in the ring */
    struct note *next;
    struct envelope envelope;
};
struct link {                       /* this rank and one peer, which may be itself */
    struct reader in;               /* pair NULL: the peer has not opened its pair yet */
    struct writer out;              /* pair NULL: not opened yet */
    struct queue outbox;            /* sends to announce or send, receives to clear, in order */
    struct queue streams;           /* sends that are cleared, in the order of the clearances */
    struct note *notes, *last_note; /* these go before the outbox */
    int expecting;                  /* receives that are cleared and not yet complete */
    int peer;
    bool dropping;                /* slots may come for receives that are gone */
    bool eager_ready, pipe_ready; /* these parts of the outgoing pair are reserved */
    bool spoke;                   /* the peer's bell is due */
    bool busy;                    /* there is something to do besides looking into the ring */
    bool active;                  /* in shm->active */
};
struct shm {
    struct transport base;
    struct shm_ground ground;
    struct door *door;
    uint32_t knocks; /* door->opened as last seen */
    int active_count;
    struct link **active; /* [size]: those with a pair open */
    tutti_status failure; /* OK, or why the transport is of no use any more */
    uint64_t last_id;
    struct queue open[OPEN_BUCKETS]; /* announced sends and cleared receives, by id */
    struct note *spare_notes;
    struct matching matching;
    struct link *links; /* [size] */
};
/* The first failure stays. Whoever calls it leaves every transfer in one of the lists; shm.c ends them all. */
static inline void shm_fail(struct shm *shm, tutti_status status)
{ shm->failure = shm->failure ? shm->failure : status; }

void link_knock(struct shm *shm, struct link *link); /* the peer has opened its pair */
void link_send(struct shm *shm, struct link *link, struct transfer *send);
/* A receive has met a message that this peer announced. */
void link_accept(struct shm *shm, struct link *link, struct transfer *receive, uint64_t id, uint64_t bytes);
/* A poll would find nothing: one look at the ring. */
static inline bool link_is_quiet(const struct link *l) { return !l->busy && !reader_is_ready(&l->in); }
bool link_poll(struct shm *shm, struct link *link);
/* After everything that was done with a link: rings the peer's bell if that is due, and sees what is left to do. */
void link_settle(struct shm *shm, struct link *link);
/* Of a transfer that is with this link. */
void link_cancel(struct shm *shm, struct link *link, struct transfer *transfer);
