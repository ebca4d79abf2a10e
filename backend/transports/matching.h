/* Who receives what: the receives that are posted and the messages that have arrived before theirs was. One for all
   messages of a rank in a communicator: transports say what arrives, the router what is posted. */
#pragma once
#include "backend/transports/queue.h"

struct transport;
enum { MATCHING_BUCKETS = 256, MATCHING_CLASSES = 22 };
struct arrival { /* a message that nobody has asked for yet */
    struct arrival *next;
    struct message_name name;
    uint64_t bytes, id;    /* id: of the sender's choice */
    struct remote place; /* announced: where the sender says that it lies */
    int source;
    struct transport *by; /* NULL: the one that leads to its source */
    bool announced;       /* the bytes are still with the sender; else they are data */
    unsigned char *data;
    int class; /* which free list it returns to */
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
struct transfer *matching_arrive(struct matching *matching, int source, struct message_name name);
void matching_keep(struct matching *matching, struct arrival *arrival);

bool matching_cancel(struct matching *matching, const struct transfer *receive); /* true: it was kept */
/* A kept receive from this rank alone, no longer kept; TRANSFER_ANY_PEER: any at all. NULL: there is none. */
struct transfer *matching_pop(struct matching *matching, int peer);
/* The announced arrival of this sender and id, by that transport, now the caller's; NULL: there is none. */
struct arrival *matching_withdraw(struct matching *matching, const struct transport *by, int source,
    struct message_name name, uint64_t id);
void matching_withdraw_all(struct matching *matching, int source); /* frees all that this sender has announced */

void matching_each(const struct matching *matching, void (*call)(void *context, const struct arrival *arrival),
    void *context);                                     /* of all that are kept */

/* An arrival with room for `bytes` (up to 2 MiB), from the free lists if there is one; NULL: out of memory. */
struct arrival *matching_arrival(struct matching *matching, size_t bytes);
void matching_free(struct matching *matching, struct arrival *arrival);
