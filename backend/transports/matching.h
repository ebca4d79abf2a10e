/* Who receives what: the receives that are posted and the messages that have arrived before theirs was. For one rank;
   any transport may use it, and what an arrival holds is the transport's affair. */
#pragma once
#include "backend/transports/queue.h"

enum { MATCHING_BUCKETS = 256, MATCHING_CLASSES = 22 };
struct arrival { /* a message that nobody has asked for yet */
    struct arrival *next;
    uint64_t name, bytes, id; /* id: of the sender's choice */
    struct shm_place place;   /* announced: where the sender says that it lies */
    int source;
    bool announced; /* the bytes are still with the sender; else they are data */
    unsigned char *data;
    int class; /* which free list it returns to; 0: made elsewhere, with memory_zeroed */
};
struct matching {
    struct bucket {
        struct queue posted;
        struct arrival *first, *last;
    } bucket[MATCHING_BUCKETS];
    struct arrival *spare[MATCHING_CLASSES]; /* by power of two of the room for data */
};
/* Zeroed memory is an empty matching. finish frees all arrivals; posted receives are forgotten. */
void matching_finish(struct matching *matching);

/* A receive is posted: the first arrival that it takes, which now belongs to the caller; or NULL, and the receive is
   kept. */
struct arrival *matching_post(struct matching *matching, struct transfer *receive);
/* A message has arrived: the first posted receive that takes it, no longer kept; or NULL, then the caller keeps an
   arrival. */
struct transfer *matching_arrive(struct matching *matching, int source, uint64_t name);
void matching_keep(struct matching *matching, struct arrival *arrival);

bool matching_cancel(struct matching *matching, const struct transfer *receive); /* true: it was kept */
struct transfer *matching_pop(struct matching *matching); /* any kept receive, no longer kept; NULL: there is none */
/* The announced arrival of this sender and id, now the caller's; NULL: there is none. */
struct arrival *matching_withdraw(struct matching *matching, int source, uint64_t name, uint64_t id);
void matching_withdraw_all(struct matching *matching, int source); /* frees all that this sender has announced */

/* An arrival with room for `bytes` (up to 2 MiB), from the free lists if there is one; NULL: out of memory. */
struct arrival *matching_arrival(struct matching *matching, size_t bytes);
void matching_free(struct matching *matching, struct arrival *arrival);
