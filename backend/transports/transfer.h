/* A message as both ends see it: its name, the memory it comes from or goes to, and its progress. The caller owns the
   memory of a transfer. While its state is TRANSFER_POSTED the transport may change the fields below `state`, and only
   the rank that posted the transfer changes `state`. */
#pragma once
#include "backend/base/status.h"
#include <stdatomic.h>

enum { TRANSFER_ANY_PEER = -1 };
/* Stands in place of an operation number for a message of the user, whose `message` is its tag. */
static const uint64_t OPERATION_OF_USER = UINT64_MAX;
/* Stands in place of an operation number for messages of the host barrier, which ends a join. */
static const uint64_t OPERATION_OF_JOIN = UINT64_MAX - 1;
/* Stands in place of an operation number for puts and signals of windows. */
static const uint64_t OPERATION_OF_WINDOW = UINT64_MAX - 2;
enum transfer_state { TRANSFER_IDLE, TRANSFER_POSTED, TRANSFER_DONE, TRANSFER_FAILED };
/* Names a message within a communicator. Networks also carry the number of the communicator (struct router). */
struct message_name {
    /* The communicator counts operations from 0 and uses each number once. */
    uint64_t operation;
    /* A message of a schedule has tile << 32 | message number. */
    uint64_t message;
};
static inline bool message_names_equal(struct message_name a, struct message_name b)
{
    return ((a.operation ^ b.operation) | (a.message ^ b.message)) == 0;
}
/* One run of bytes. On the wire it takes `wire` bytes; `length` <= wire of them are real, the rest is padding (the
   last chunk of a tensor is short, the scratch chunk it meets is not). */
struct piece {
    unsigned char *at;
    size_t length, wire;
};
/* A place in memory in the terms of the transport that moves the bytes. shm: the number of a block of the rank that
   owns it, and an offset in it. A network: a memory key and an address. */
struct remote { uint64_t block, offset; };
struct transfer {
    /* The caller sets the fields from here to `piece_count` before it posts the transfer. */
    struct message_name name;
    /* TRANSFER_ANY_PEER: a receive takes the first message from any rank. */
    int peer;
    bool is_send;
    /* The peer may read or write the one piece where it lies. After a failure the peer may access it a moment longer:
       a caller that sets this flag reuses the memory only after the peer has reported that it left. */
    bool may_share;
    /* The pieces must stay valid until the transfer is over. */
    const struct piece *pieces;
    int piece_count;
    /* The transport and the router set the next four fields. */
    enum transfer_state state;
    /* The sender of the message that a receive has met, otherwise -1. */
    int source;
    /* The reason of TRANSFER_FAILED. MISMATCH: the ends differ in bytes, and `theirs` is the other end's count. */
    tutti_status status;
    uint64_t theirs;
    /* The router and the transport own all fields from here on. */
    struct transfer *next;
    uint64_t wire, moved, key;
    size_t offset;
    int piece;
    /* The place of the other end's piece. */
    struct remote place;
    /* shm: the parts that the other end has copied, while `moved` counts those of this end.
       inproc: the time at which a receive reads next, or the deadline of a cancelled send. */
    uint64_t others;
};

/* The receiver of a send, or the sender of a receive. */
static inline int transfer_peer_rank(const struct transfer *transfer)
{
    return transfer->is_send ? transfer->peer : transfer->source;
}
/* A transfer ends with a call of one of these two functions. */
static inline void transfer_complete(struct transfer *transfer) { transfer->state = TRANSFER_DONE; }
static inline void transfer_fail(struct transfer *transfer, tutti_status status, uint64_t theirs)
{
    transfer->status = status;
    transfer->theirs = theirs;
    transfer->state = TRANSFER_FAILED;
}
/* Records that a receive has met a message of `bytes` bytes. false: the receive has another size, and has failed. */
static inline bool transfer_meet_message(struct transfer *transfer, int source, uint64_t bytes)
{
    transfer->source = source;
    if (transfer->wire != bytes) transfer_fail(transfer, TUTTI_MISMATCH, bytes);
    return transfer->wire == bytes;
}
