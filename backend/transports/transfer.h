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
    /* A message of a schedule has tile << 32 | message number. From bit MESSAGE_TYPE_SHIFT on, a message of the user
       has the type of its elements. The type travels with the name on all transports, but a message also meets a
       receive of another type, which refuses it. */
    uint64_t message;
};
enum { MESSAGE_TYPE_SHIFT = 56 };
/* Returns the name of a message of the user. */
static inline struct message_name message_name_of_user(uint32_t tag, tutti_dtype dtype)
{
    return (struct message_name){ OPERATION_OF_USER, (uint64_t)dtype << MESSAGE_TYPE_SHIFT | tag };
}
/* Returns the type in a name. A name that came from a peer may have any type. */
static inline tutti_dtype message_name_dtype(struct message_name name)
{
    return (tutti_dtype)(name.message >> MESSAGE_TYPE_SHIFT);
}
/* Returns whether two messages have the same name. Their types may differ. */
static inline bool message_names_equal(struct message_name a, struct message_name b)
{
    return ((a.operation ^ b.operation) | (a.message ^ b.message) << (64 - MESSAGE_TYPE_SHIFT)) == 0;
}
/* One run of bytes in memory, which begins at `at`. In the message it takes `wire` bytes. The first `length` of them
   are in memory, the rest is padding: the last chunk of a tensor is short, but the scratch chunk that it meets is
   not. */
struct piece {
    unsigned char *at;
    size_t length, wire;
};
/* A location in memory by which another rank can reach it: the number of a block of the rank that owns it, and an
   offset in the block. Only shm uses locations; pair.h lists special block numbers. */
struct remote { uint64_t block, offset; };
struct transfer {
    /* The caller sets the fields from here to `piece_count` before it posts the transfer. */
    struct message_name name;
    /* TRANSFER_ANY_PEER: a receive takes the first message from any rank. */
    int peer;
    bool is_send;
    /* The peer may read or write the one piece where it lies. After a failure the peer may access it a moment longer:
       a caller that sets this flag reuses the memory only after the peer has reported that it no longer uses it. */
    bool may_share;
    /* The pieces must stay valid until the transfer is over. */
    const struct piece *pieces;
    int piece_count;
    /* The transport and the router set the next four fields. */
    enum transfer_state state;
    /* The sender of the message that a receive has met, otherwise -1. */
    int source;
    /* The reason of TRANSFER_FAILED. MISMATCH: the ends differ in bytes or type, and the other end has `peer_bytes`
       bytes of type `peer_dtype`, which is below, where the struct has room. */
    tutti_status status;
    uint64_t peer_bytes;
    /* The router and the transport own all fields from here on. */
    /* The next transfer of the list that this one is in. */
    struct transfer *next;
    /* The bytes of the whole message, padding included. */
    uint64_t wire;
    /* The bytes that the cursor of pieces.h has passed. In share.c of shm, the parts that this end has copied. */
    uint64_t moved;
    /* The id of an announced message, which its sender chose. */
    uint64_t key;
    /* The cursor of pieces.h: a piece by its index, and an offset in it. */
    size_t offset;
    int piece;
    tutti_dtype peer_dtype;
    /* The location of the other end's piece. */
    struct remote peer_location;
    /* shm: the parts that the other end has copied.
       inproc: the time at which a receive reads next, or the deadline of a cancelled send. */
    uint64_t peer_parts;
};

/* Returns the rank of the other end: the receiver of a send, or the sender of a receive (-1: it has met no message). */
static inline int transfer_peer_rank(const struct transfer *transfer)
{
    return transfer->is_send ? transfer->peer : transfer->source;
}
/* A transfer ends with a call of one of the next three functions. */
/* Ends a transfer with success. */
static inline void transfer_complete(struct transfer *transfer) { transfer->state = TRANSFER_DONE; }
/* Ends a transfer with an error other than MISMATCH. */
static inline void transfer_fail(struct transfer *transfer, tutti_status status)
{
    transfer->status = status;
    transfer->state = TRANSFER_FAILED;
}
/* Ends a transfer with MISMATCH. The other end has this name and `bytes` bytes. */
static inline void transfer_fail_mismatch(struct transfer *transfer, struct message_name name, uint64_t bytes)
{
    transfer->peer_dtype = message_name_dtype(name);
    transfer->peer_bytes = bytes;
    transfer_fail(transfer, TUTTI_MISMATCH);
}
/* Records that a receive has met a message of this name and `bytes` bytes from the rank `source`. false: the receive
   has another type or size, and has failed with MISMATCH. */
static inline bool transfer_meet_message(struct transfer *transfer, int source, struct message_name name,
    uint64_t bytes)
{
    transfer->source = source;
    if (transfer->wire == bytes && message_name_dtype(transfer->name) == message_name_dtype(name)) return true;
    transfer_fail_mismatch(transfer, name, bytes);
    return false;
}
