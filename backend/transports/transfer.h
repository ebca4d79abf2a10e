/* A message as both ends see it: its name, the memory it comes from or goes to, and how far it is. The memory of a
   transfer is its caller's; from the moment it is posted until its state is no longer TRANSFER_POSTED, whoever moves it
   may change the fields below `state`, and only the rank that posted it does. */
#pragma once
#include "backend/base/status.h"
#include <stdatomic.h>

enum { TRANSFER_ANY_PEER = -1 };
/* Instead of the number of an operation: a message of the user, whose `message` is its tag. */
static const uint64_t OPERATION_OF_USER = UINT64_MAX;
/* The same: of hosts that tell each other that their ranks have joined. */
static const uint64_t OPERATION_OF_JOIN = UINT64_MAX - 1;
enum transfer_state { TRANSFER_IDLE, TRANSFER_POSTED, TRANSFER_DONE, TRANSFER_FAILED };
/* Within a communicator. The communicator itself has a number (struct router) that networks carry beside this. */
struct message_name {
    uint64_t operation; /* counted by the communicator from 0, never used again */
    uint64_t message;   /* of a schedule: its tile << 32 | the number of the message */
};
static inline bool name_is(struct message_name a, struct message_name b)
{
    return ((a.operation ^ b.operation) | (a.message ^ b.message)) == 0;
}
/* One run of bytes. On the wire it takes `wire` bytes; `length` <= wire of them are real, the rest is padding (the
   last chunk of a tensor is short, the scratch chunk it meets is not). */
struct piece {
    unsigned char *at;
    size_t length, wire;
};
/* Where bytes lie, in the words of the transport that moves them. shm: the number of a block of the rank that owns it
   and an offset in it; a network: a key of memory and an address. */
struct remote { uint64_t block, offset; };
struct transfer {
    /* set by the caller before post */
    struct message_name name;
    int peer; /* TRANSFER_ANY_PEER: a receive from whoever comes first */
    bool is_send;
    /* The peer may read or write the one piece where it lies. After a failure it may still be there for a moment: who
       sets this waits, before using the memory again, until the peer says that it is not. */
    bool may_share;
    const struct piece *pieces; /* must stay until the transfer is over */
    int piece_count;
    /* set until it is over */
    enum transfer_state state;
    int source;          /* the sender, of a receive that has met a message; else -1 */
    tutti_status status; /* of TRANSFER_FAILED; MISMATCH: the ends differ in bytes */
    uint64_t theirs;     /* then: the bytes of the other end */
    /* of the router and the transport */
    struct transfer *next;
    uint64_t wire, moved, key;
    size_t offset;
    int piece;
    struct remote place; /* where the other end's piece lies */
    uint64_t others;       /* shm: parts that the other end has copied, and `moved` are mine */
};

/* How a transfer ends, always one of these. */
static inline void transfer_done(struct transfer *x) { x->state = TRANSFER_DONE; }
static inline void transfer_fail(struct transfer *x, tutti_status status, uint64_t theirs)
{
    x->status = status;
    x->theirs = theirs;
    x->state = TRANSFER_FAILED;
}
/* A receive has met a message of so many bytes. false: it wants another number, and has failed. */
static inline bool transfer_meets(struct transfer *x, int source, uint64_t bytes)
{
    x->source = source;
    if (x->wire != bytes) transfer_fail(x, TUTTI_MISMATCH, bytes);
    return x->wire == bytes;
}
