/* The memory that the ranks s and d of one host share for what s sends to d, and the two ends of it. One writer and
   one reader each way, no locks. Three parts:
       ring     envelopes in cells of one cache line; a few bytes of payload ride inside
       eager    payload of small messages that do not fit a cell
       pipe     slots through which large messages stream
   and one word, `claims`, for a message that both copy together from tensor to tensor, past all three.
   A cell or slot becomes visible by its sequence number, stored last, so an envelope and its payload travel in one
   line. What is read from here may be anything: each word is read once, and the ends refuse what they could not have
   meant (`corrupt`, which stays). What is said of ways of writing may be anything and is used only for that.

   Credit: a rank never has more than EAGER_CREDIT bytes of eager messages under way or waiting, unexpected, with the
   receiver. The eager part is as large as that, so it cannot overflow. */
#pragma once
#include "backend/transports/pieces.h"
#include "backend/transports/shm/ways.h"

enum {
    RING_CELLS = 64,
    KIND_BITS = 8,
    INLINE_BYTES = 40,
    EAGER_LIMIT = 8192,
    EAGER_CREDIT = 65536,
    READ_AHEAD = 256, /* between payloads */
    PIPE_SLOTS = 16, /* as much as a reader's cache: README.md */
    SLOT_BYTES = 65536,
    DOORBELL_RANKS = 7680,
    PAIR_PAGE = 4096,
    CLAIM_BITS = 24,
    BEYOND_CACHE = 8 << 20, /* a receive of so many bytes pushes its own beginning out of the cache anyway */
};
enum envelope_kind {
    ENVELOPE_EAGER = 1, /* a message, with its bytes */
    ENVELOPE_ANNOUNCE,  /* a message; the bytes stay until it is cleared */
    ENVELOPE_CLEAR,     /* the receive of `id` is there: stream it */
    ENVELOPE_MISMATCH,  /* the receive of `id` wants `bytes`, not what you have */
    ENVELOPE_WITHDRAW,  /* the send `id` is not coming any more */
    ENVELOPE_SHARE,     /* the receive of `id` lies at `place`: copy parts of it there */
    ENVELOPE_COPIED,    /* of the send `id`: that I have copied `bytes` parts, and there are none left */
    ENVELOPE_FINISHED,  /* all of `id` has been copied */
};
/* Instead of the number of a block: the end of the message is in pieces, or may not be shared; or it is in one piece,
   but the peer cannot reach it; or all it can do is read it, at the address that is the offset. */
enum { REMOTE_NONE = 0 };
static const uint64_t REMOTE_PRIVATE = UINT64_MAX, REMOTE_OPEN = UINT64_MAX - 1;
struct envelope {
    struct message_name name;
    uint64_t bytes, id;
    enum envelope_kind kind;
    struct remote place; /* of the tensor of who says it */
};

struct cell {
    _Atomic uint32_t sequence;
    _Atomic uint32_t head; /* the kind, and above 8 bits of it how many bytes are with an eager message */
    _Atomic uint64_t operation, message;
    union {
        struct { _Atomic uint64_t id, bytes, block, offset; } about; /* of what is not eager */
        _Atomic uint64_t timed; /* of an eager payload of 1 KiB and more: ways.h, or 0 */
        unsigned char payload[INLINE_BYTES];
    } body;
};
struct slot {
    _Alignas(128) _Atomic uint64_t sequence;
    _Atomic uint64_t id, bytes, timed;
};
/* Only the one in the pair of a rank with itself is used: who has opened a pair to this rank. */
struct doorbell {
    _Atomic uint32_t opened;
    _Atomic uint32_t who[DOORBELL_RANKS / 32];
};
struct pair {
    struct doorbell doorbell;
    _Alignas(128) _Atomic uint32_t taken;   /* cells read */
    _Atomic uint64_t returned;              /* credit given back */
    _Alignas(128) _Atomic uint64_t emptied; /* slots read */
    _Alignas(128) _Atomic uint64_t claims;  /* the id of a message, and how many of its parts are taken */
    _Alignas(128) _Atomic uint64_t ways;    /* what the reader says of them: ways.h */
    struct slot slots[PIPE_SLOTS];
    _Alignas(PAIR_PAGE) struct cell cells[RING_CELLS];
    _Alignas(PAIR_PAGE) unsigned char eager[EAGER_CREDIT];
    _Alignas(PAIR_PAGE) unsigned char pipe[PIPE_SLOTS][SLOT_BYTES];
};

/* A message that lies, or goes, where the other end can reach it is copied in parts. Whoever has time takes the next
   one, so that two ranks copy twice as fast, and one that is busy elsewhere holds up nothing. */
static inline size_t part_bytes(uint64_t bytes)
{
    size_t part = 32768;
    while (part < 262144 ? part < bytes / 8 : part < bytes >> (CLAIM_BITS - 1)) part *= 2;
    return part;
}
static inline uint64_t part_count(uint64_t bytes) { return (bytes + part_bytes(bytes) - 1) / part_bytes(bytes); }
void claims_open(struct pair *pair, uint64_t id); /* the reader's: of the next message, which ends those of the last */
bool claims_left(const struct pair *pair, uint64_t id, uint64_t parts);
bool claims_take(struct pair *pair, uint64_t id, uint64_t parts, uint64_t *out); /* false: there are none left */

/* ---- the writer's end ---- */
struct pair_writer {
    struct pair *pair;
    uint32_t told, taken;               /* cells written; the reader's count as last seen */
    uint64_t position, spent, returned; /* in the eager part; credit */
    uint64_t filled, emptied;           /* slots */
    bool corrupt;
    struct ways *ways;
};
/* How it may write what is long: with this function, or by memcpy (NULL); paced: by whichever costs less. */
struct pen { copy_function *copy; bool paced; };
bool writer_has_room(struct pair_writer *writer);                   /* for one envelope */
bool writer_has_credit(struct pair_writer *writer, uint64_t bytes); /* false as well when it is too much for eager */
bool writer_has_slot(struct pair_writer *writer);
/* Bytes of each filling but the last: both ends are at work, and small ones are soon there. */
static inline size_t slot_bytes(uint64_t wire) { return wire <= 32768 ? 16384 : wire < 4 << 20 ? 32768 : SLOT_BYTES; }
/* Where in its slot the n-th filling lies: small ones go round in it, so that they come back as late as large ones. */
static inline size_t slot_offset(uint64_t n, uint64_t wire)
{
    return n / PIPE_SLOTS % (SLOT_BYTES / slot_bytes(wire)) * slot_bytes(wire);
}
/* Each needs the room asked for above. */
void writer_tell(struct pair_writer *writer, const struct envelope *envelope);
void writer_send_small(struct pair_writer *writer, const struct transfer *transfer); /* one piece that fits the cell */
void writer_send(struct pair_writer *writer, struct transfer *transfer, struct pen pen);   /* the whole of it, eager */
void writer_stream(struct pair_writer *writer, struct transfer *transfer, struct pen pen); /* the next slot of it */

/* ---- the reader's end ---- */
struct reader {
    struct pair *pair;
    uint32_t taken;                                 /* cells */
    uint64_t position, received, returned, emptied; /* received, returned: credit */
    bool corrupt;
    struct judge *judge;
};
static inline bool reader_is_ready(const struct reader *r)
{
    const struct cell *cell = &r->pair->cells[r->taken % RING_CELLS];
    return atomic_load_explicit(&cell->sequence, memory_order_acquire) == r->taken + 1;
}
static inline bool reader_has_slot(const struct reader *r)
{
    const struct slot *slot = &r->pair->slots[r->emptied % PIPE_SLOTS];
    return atomic_load_explicit(&slot->sequence, memory_order_acquire) == r->emptied + 1;
}
/* The envelope of a ready cell; false (and corrupt): it makes no sense. */
bool reader_look(struct reader *reader, struct envelope *out);
/* The payload of an eager envelope, into a transfer or into memory. */
void reader_scatter(struct reader *reader, const struct envelope *envelope, struct transfer *to);
void reader_copy(struct reader *reader, const struct envelope *envelope, unsigned char *to);
/* Gives the cell and its payload back. true: the writer may have been waiting for that, ring its bell. */
bool reader_take(struct reader *reader, const struct envelope *envelope);
/* The bytes of an eager message have found their receive. */
void reader_return(struct reader *reader, uint64_t bytes);
struct filled {
    uint64_t id, bytes, timed;
    const unsigned char *at;
};
/* What a slot that is there says of itself, and where it begins: the caller knows the message, and so whether that can
   be and its offset. */
struct filled reader_look_slot(const struct reader *reader);
/* Its bytes go on where the transfer stands. */
void reader_scatter_slot(struct reader *reader, const struct filled *slot, struct transfer *to, copy_function *copy);
void reader_take_slot(struct reader *reader);
