/* The contract of a transport: messages between pairs of ranks of one group.
 *
 * A message has a name, 64 bits that both ends choose: the k-th send of a name to a peer meets the k-th receive of
 * that name from it; names are independent of each other, so a message that nobody receives yet never holds up
 * another. Posting always succeeds and never blocks: the transfer is the caller's memory until its state is no longer
 * TRANSFER_POSTED. Small messages may complete before the receive is posted, within a bounded budget per peer; large
 * ones are announced, and move once the receive is posted.
 *
 * All functions of one transport are called by one thread at a time (the engine sees to it), and none of them blocks,
 * allocates on the path of small messages that are expected, or calls back. */
#pragma once
#include "backend/base/status.h"
#include <stdatomic.h>

enum { TRANSFER_ANY_PEER = -1 };
enum transfer_state { TRANSFER_IDLE, TRANSFER_POSTED, TRANSFER_DONE, TRANSFER_FAILED };
/* One run of bytes. On the wire it takes `wire` bytes; `length` <= wire of them are real, the rest is padding (the
   last chunk of a tensor is short, the scratch chunk it meets is not). */
struct piece {
    unsigned char *at;
    size_t length, wire;
};
/* A place in memory that ranks may map: the number of a block of the rank that owns it, and an offset. */
struct shm_place {
    uint64_t block, offset;
};
struct transfer {
    /* set by the caller before post */
    uint64_t name;
    int peer; /* TRANSFER_ANY_PEER: a receive from whoever comes first */
    bool is_send;
    const struct piece *pieces; /* must stay until the transfer is over */
    int piece_count;
    /* The peer may read or write the one piece where it lies. After a failure it may still be there for a moment: who
       sets this waits, before using the memory again, until the peer says that it is not. */
    bool may_share;
    /* set by the transport */
    enum transfer_state state;
    int source;          /* the sender, of a receive that is done */
    tutti_status status; /* of TRANSFER_FAILED; MISMATCH: the ends differ in bytes */
    uint64_t theirs;     /* then: the bytes of the other end */
    /* the transport's own */
    struct transfer *next;
    uint64_t wire, moved, key;
    int piece;
    size_t offset;
    struct shm_place place; /* where the other end's piece lies */
    uint64_t others;        /* parts that the other end has copied; `moved` are mine */
};
struct transport;
struct transport_operations {
    const char *name;
    void (*post)(struct transport *transport, struct transfer *transfer);
    bool (*poll)(struct transport *transport); /* moves what can be moved; true: something moved */
    /* Forgets a posted transfer when its peer cannot be touching it any more; false: not yet, poll on. */
    bool (*cancel)(struct transport *transport, struct transfer *transfer);
    void (*destroy)(struct transport *transport); /* NULL is fine; open transfers are forgotten */
};
struct transport {
    const struct transport_operations *operations;
    int rank, size;
    /* Why it first refused a transfer for a reason of its own, in words; empty: it never has, or there were none. They
       stay here because the thread that finds the transfer failed may be another than the one that failed it. */
    char reason[STATUS_DETAIL_BYTES];
};

static inline void transport_post(struct transport *t, struct transfer *x) { t->operations->post(t, x); }
static inline bool transport_poll(struct transport *t) { return t->operations->poll(t); }
static inline bool transport_cancel(struct transport *t, struct transfer *x) { return t->operations->cancel(t, x); }
static inline void transport_destroy(struct transport *t)
{
    if (t) t->operations->destroy(t);
}

/* ---- inproc: ranks that are threads of one process, for tests ---- */
/* Delays and reorders messages at random, from a seed; a rank holds at most `budget` small messages of each other. */
struct inproc_world;
struct inproc_world *inproc_create(int size, unsigned seed, int delay, int budget);
tutti_status inproc_connect(struct inproc_world *world, int rank, struct transport **out);
uint64_t inproc_bytes_sent(const struct inproc_world *world, int rank);
void inproc_destroy(struct inproc_world *world);

/* ---- shm: ranks of one host, through the pair regions of their segment ---- */
struct shm_ground { /* the parts of a segment it needs */
    void *context;
    unsigned char *(*pair)(void *context, int from, int to);        /* pair_bytes of shared memory, zeroed at first */
    tutti_status (*reserve)(void *context, void *at, size_t bytes); /* makes memory real before it is touched */
    void (*ring)(void *context, int rank);                          /* rings that rank's bell */
    /* How large runs are copied into memory that a peer reads next; and into tensors beyond caches. NULL: memcpy. */
    void (*stream)(void *to, const void *from, size_t bytes);
    void (*stream_far)(void *to, const void *from, size_t bytes);
    /* Tensors where peers can reach them. All four, or NULL: there are none. */
    bool (*find)(void *context, const void *at, size_t bytes, struct shm_place *out); /* false: not reachable */
    /* The address here of a rank's place, which is sent to or received from, until the next call for that rank and
       direction. IN_PROGRESS: being mapped, ask again. */
    tutti_status (*reach)(void *context, int rank, bool sends, struct shm_place place, size_t bytes,
        unsigned char **out);
    bool (*enter)(void *context); /* before memory that was reached is touched; false: it must not be any more */
    void (*leave)(void *context); /* after it */
};
size_t shm_pair_bytes(void); /* what it needs for each ordered pair */
tutti_status shm_connect(const struct shm_ground *ground, int rank, int size, struct transport **out);
