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
    /* The size of the message, and the id that its sender chose. */
    uint64_t bytes, id;
    /* The location that the sender gave for the bytes of an announced message. */
    struct remote location;
    /* The rank that sent the message. */
    int source;
    /* The transport that the message came by. NULL: the transport that leads to its source. */
    struct transport *transport;
    /* true: the bytes are still at the sender. false: they are in `data`. */
    bool is_announced;
    unsigned char *data;
    /* The index of the free list that the arrival returns to. */
    int size_class;
};
struct matching {
    /* A hash of a name chooses its bucket. */
    struct bucket {
        /* The posted receives that have met no message, oldest first. */
        struct transfer_list posted;
        /* The kept arrivals, oldest first. */
        struct arrival *first, *last;
    } bucket[MATCHING_BUCKETS];
    /* Lists of free arrivals. Those of list k have room for 2^k bytes of data. */
    struct arrival *free_arrivals[MATCHING_CLASSES];
};
/* Frees all arrivals and forgets posted receives. Zeroed memory is an empty matching. */
void matching_finish(struct matching *matching);

/* Removes and returns the first kept arrival that the receive takes; the caller now owns it. NULL: no arrival fits, and
   the matching keeps the receive until one does. */
struct arrival *matching_post_receive(struct matching *matching, struct transfer *receive);
/* Removes and returns the first posted receive that takes a message of this name from the rank `source`. NULL: no
   receive fits, and the caller passes an arrival to matching_keep_arrival. */
struct transfer *matching_take_receive(struct matching *matching, int source, struct message_name name);
/* Keeps an arrival until a receive takes it. */
void matching_keep_arrival(struct matching *matching, struct arrival *arrival);

/* Removes a posted receive. false: the matching does not have it. */
bool matching_cancel_receive(struct matching *matching, const struct transfer *receive);
/* Removes and returns a posted receive that accepts only this peer. TRANSFER_ANY_PEER: any posted receive. NULL: the
   matching has no such receive. */
struct transfer *matching_pop_receive(struct matching *matching, int peer);
/* Removes and returns the announced arrival with this sender, name and id that came by this transport; the caller now
   owns it. NULL: the matching has no such arrival. */
struct arrival *matching_withdraw_arrival(struct matching *matching, const struct transport *transport, int source,
    struct message_name name, uint64_t id);
/* Frees all announced arrivals of this sender. */
void matching_withdraw_all(struct matching *matching, int source);

/* Calls `visit` for each kept arrival. */
void matching_visit_arrivals(const struct matching *matching,
    void (*visit)(void *context, const struct arrival *arrival), void *context);

/* Returns an arrival with room for `bytes` (up to 2 MiB), taken from the free lists or allocated. NULL: out of
   memory. */
struct arrival *matching_arrival_new(struct matching *matching, size_t bytes);
/* Gives an arrival that is in no list back to the free lists. */
void matching_arrival_free(struct matching *matching, struct arrival *arrival);
