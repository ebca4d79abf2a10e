/* Matches posted receives with arriving messages. A rank has one matching for all its messages in a communicator:
   transports pass arrivals to it, the router passes posted receives. */
#pragma once
#include "backend/transports/transfer_list.h"

struct transport;
enum { MATCHING_BUCKETS = 256, MATCHING_CLASSES = 22 };
/* A message that arrived before its receive was posted. */
struct arrival {
    struct arrival *next;
    struct message_name name;
    /* The sender chooses the id. */
    uint64_t bytes, id;
    /* The place that the sender gave for the bytes of an announced message. */
    struct remote place;
    int source;
    /* The transport that the message came by. NULL: the transport that leads to its source. */
    struct transport *by;
    /* true: the bytes are still at the sender. false: they are in `data`. */
    bool announced;
    unsigned char *data;
    /* The free list that the arrival returns to. */
    int class;
};
struct matching {
    struct bucket {
        struct transfer_list posted;
        struct arrival *first, *last;
    } bucket[MATCHING_BUCKETS];
    /* Free arrivals, indexed by the power of two of their room for data. */
    struct arrival *spare[MATCHING_CLASSES];
};
/* Frees all arrivals and forgets posted receives. Zeroed memory is an empty matching. */
void matching_finish(struct matching *matching);

/* Returns the first arrival that the posted receive takes; the caller now owns it. NULL: the matching keeps the
   receive. */
struct arrival *matching_post_receive(struct matching *matching, struct transfer *receive);
/* Removes and returns the first posted receive that takes the arrived message. NULL: the caller passes an arrival to
   matching_keep_arrival. */
struct transfer *matching_take_receive(struct matching *matching, int source, struct message_name name);
void matching_keep_arrival(struct matching *matching, struct arrival *arrival);

/* Removes a posted receive. true: the matching had it. */
bool matching_cancel_receive(struct matching *matching, const struct transfer *receive);
/* Removes and returns a posted receive that accepts only this peer. TRANSFER_ANY_PEER: any posted receive. NULL: the
   matching has no such receive. */
struct transfer *matching_pop_receive(struct matching *matching, int peer);
/* Removes and returns the announced arrival with this sender and id that came by `by`; the caller now owns it. NULL:
   the matching has no such arrival. */
struct arrival *matching_withdraw_arrival(struct matching *matching, const struct transport *by, int source,
    struct message_name name, uint64_t id);
/* Frees all announced arrivals of this sender. */
void matching_withdraw_all(struct matching *matching, int source);

/* Calls `call` for each kept arrival. */
void matching_visit_arrivals(const struct matching *matching,
    void (*call)(void *context, const struct arrival *arrival), void *context);

/* Returns an arrival with room for `bytes` (up to 2 MiB), taken from the free lists or allocated. NULL: out of
   memory. */
struct arrival *matching_arrival_new(struct matching *matching, size_t bytes);
void matching_arrival_free(struct matching *matching, struct arrival *arrival);
