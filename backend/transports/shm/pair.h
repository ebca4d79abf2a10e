/* The shared memory for messages from rank s to rank d of one host, and its two ends. It has one writer, one reader
   and no locks. It has three parts:
       ring     envelopes in cells of one cache line; a few bytes of payload fit inside
       eager    payload of small messages that do not fit a cell
       pipe     slots through which large messages stream
   and one word, `claims`, for a message that both ranks copy together from tensor to tensor.
   A cell or slot becomes visible by its sequence number, which is stored last, so an envelope and its payload travel
   in one line. Shared memory may contain any values: each word is read once, and the ends reject impossible ones
   (is_corrupt, which stays). Words about store modes (store_modes.h) may also have any value; they affect only speed.

   Credit: the eager messages of a rank that are under way or unexpected at the receiver take at most EAGER_CREDIT
   bytes. The eager part has that size, so it cannot overflow. */
#pragma once
#include "backend/transports/pieces.h"
#include "backend/transports/shm/store_modes.h"

enum {
    RING_CELLS = 64,
    KIND_BITS = 8,
    /* The bytes of the largest message whose payload is in its cell, and of the largest eager message. */
    INLINE_BYTES = 40,
    EAGER_LIMIT = 8192,
    EAGER_CREDIT = 65536,
    /* The space between payloads of the eager part, in bytes. */
    READ_AHEAD = 256,
    /* With so many slots a slot has left its reader's cache before it is filled again. */
    PIPE_SLOTS = 16,
    SLOT_BYTES = 65536,
    DOORBELL_RANKS = 7680,
    PAIR_PAGE = 4096,
    /* The bits of `claims` that count parts; the others have the id of the message. */
    CLAIM_BITS = 24,
    /* A receive of this size in bytes evicts its own beginning from the cache. */
    BEYOND_CACHE = 8 << 20,
};
enum envelope_kind {
    /* The message carries its bytes. */
    ENVELOPE_EAGER = 1,
    /* The message is announced; its bytes stay until it is cleared. */
    ENVELOPE_ANNOUNCE,
    /* The receive of `id` is posted, and the sender may stream. */
    ENVELOPE_CLEAR,
    /* The receive of `id` wants `bytes` bytes of the type in `name`, which differ from those of the send. */
    ENVELOPE_MISMATCH,
    /* The sender has cancelled the send `id`. */
    ENVELOPE_WITHDRAW,
    /* The receive of `id` lies at `location`, and the sender may copy parts into it. */
    ENVELOPE_SHARE,
    /* The sender of `id` has copied `bytes` parts, and no part is left. */
    ENVELOPE_COPIED,
    /* All parts of `id` have been copied. */
    ENVELOPE_FINISHED,
};
/* These values stand in place of a block number. NONE: the end has several pieces, or may not be shared. PRIVATE: it
   has one piece, but the peer cannot reach it. OPEN: the peer can only read it, at the address in the offset. */
enum { REMOTE_NONE = 0 };
static const uint64_t REMOTE_PRIVATE = UINT64_MAX, REMOTE_OPEN = UINT64_MAX - 1;
struct envelope {
    struct message_name name;
    uint64_t bytes, id;
    enum envelope_kind kind;
    /* The location of the tensor at the rank that sends the envelope. */
    struct remote location;
};

/* One envelope in the ring, with the payload if it is small. */
struct cell {
    /* The number of the envelope, counted from 1, once the cell is complete. */
    _Atomic uint32_t sequence;
    /* The kind in the low 8 bits, and above them the bytes of an eager message. */
    _Atomic uint32_t head;
    _Atomic uint64_t operation, message;
    union {
        /* The fields of an envelope that is not eager. */
        struct { _Atomic uint64_t id, bytes, block, offset; } about;
        /* The timing of an eager payload of 1 KiB and more (store_modes.h), or 0. */
        _Atomic uint64_t timed;
        unsigned char payload[INLINE_BYTES];
    } body;
};
/* Describes the bytes in one slot of the pipe: the message's id, their number, and the timing of the filling or 0. */
struct slot {
    _Alignas(128) _Atomic uint64_t sequence;
    _Atomic uint64_t id, bytes, timed;
};
/* Records which ranks have opened a pair to this rank. Only the doorbell in the pair of a rank with itself is used. */
struct doorbell {
    /* The number of pairs that were opened so far, and a bit for each rank that has opened one, by its index. */
    _Atomic uint32_t open_count;
    _Atomic uint32_t opened_by[DOORBELL_RANKS / 32];
};
struct pair {
    struct doorbell doorbell;
    /* The number of cells that the reader has read, and the credit that it has returned. */
    _Alignas(128) _Atomic uint32_t taken;
    _Atomic uint64_t returned;
    /* The number of slots that the reader has read. */
    _Alignas(128) _Atomic uint64_t emptied;
    /* The id of a message, and in the low CLAIM_BITS the number of its parts that are taken. */
    _Alignas(128) _Atomic uint64_t claims;
    /* The store modes that the reader has chosen (store_modes.h). */
    _Alignas(128) _Atomic uint64_t chosen_modes;
    struct slot slots[PIPE_SLOTS];
    _Alignas(PAIR_PAGE) struct cell cells[RING_CELLS];
    _Alignas(PAIR_PAGE) unsigned char eager[EAGER_CREDIT];
    _Alignas(PAIR_PAGE) unsigned char pipe[PIPE_SLOTS][SLOT_BYTES];
};

/* A message with an end that the other rank can reach is copied in parts. A rank that has time takes the next part, so
   that two ranks copy twice as fast, and a busy rank does not delay the other. */
/* Returns the size of each part but the last of a message of `bytes` bytes. */
static inline size_t part_bytes(uint64_t bytes)
{
    size_t part = 32768;
    while (part < 262144 ? part < bytes / 8 : part < bytes >> (CLAIM_BITS - 1)) part *= 2;
    return part;
}
/* Returns the number of parts of a message of `bytes` bytes. */
static inline uint64_t part_count(uint64_t bytes) { return (bytes + part_bytes(bytes) - 1) / part_bytes(bytes); }
/* Makes `claims` count the parts of the message `id`, so that no further part of the previous message is taken. id 0:
   no message. The reader of the pair calls it. */
void part_claims_open(struct pair *pair, uint64_t id);
/* Returns whether `claims` counts the parts of the message `id`, and not all of its `parts` parts are taken. */
bool part_claims_left(const struct pair *pair, uint64_t id, uint64_t parts);
/* Takes the next part of the message, and sets *out to its number. false: all parts are taken, or `claims` counts those
   of another message. */
bool part_claims_take(struct pair *pair, uint64_t id, uint64_t parts, uint64_t *out);

/* ---- the writer's end ---- */
struct pair_writer {
    struct pair *pair;
    /* The cells written, and the reader's count of cells when it was last read. */
    uint32_t written, taken;
    /* The position in the eager part, and the credit spent and returned. */
    uint64_t position, spent, returned;
    /* The slots filled, and the reader's count of emptied slots when it was last read. */
    uint64_t filled, emptied;
    /* The reader has written an impossible value. */
    bool is_corrupt;
    struct store_modes *modes;
};
/* Says how the writer copies long runs: with `copy`, or by memcpy if `copy` is NULL. is_paced: by the cheaper of the
   two. */
struct copy_policy { copy_function *copy; bool is_paced; };
/* Each of the next three reads the peer's counter if the last known value does not suffice, and marks the writer
   corrupt if the value is impossible. */
/* Returns whether the ring has room for one envelope. */
bool writer_has_room(struct pair_writer *writer);
/* Returns whether the writer has credit for an eager message of this size. false also if it exceeds EAGER_LIMIT. */
bool writer_has_credit(struct pair_writer *writer, uint64_t bytes);
/* Returns whether the pipe has an empty slot. */
bool writer_has_slot(struct pair_writer *writer);
/* Returns the bytes of each filling but the last, for a message of `wire` bytes. Several fillings keep both ends at
   work, and small ones arrive early. */
static inline size_t slot_filling_bytes(uint64_t wire)
{
    return wire <= 32768 ? 16384 : wire < 4 << 20 ? 32768 : SLOT_BYTES;
}
/* Returns the offset in its slot of the n-th filling of the pipe, for a message of `wire` bytes. Small fillings rotate
   within the slot, so that they reuse memory as late as large ones. */
static inline size_t slot_filling_offset(uint64_t n, uint64_t wire)
{
    return n / PIPE_SLOTS % (SLOT_BYTES / slot_filling_bytes(wire)) * slot_filling_bytes(wire);
}
/* The caller of the next four first checks room, credit or slot with the functions above. */
/* Writes an envelope that is not eager into the next cell. */
void writer_write_envelope(struct pair_writer *writer, const struct envelope *envelope);
/* Sends a message of one piece that fits the cell. */
void writer_send_inline(struct pair_writer *writer, const struct transfer *transfer);
/* Sends the whole message eagerly: writes its payload and its envelope. */
void writer_send_eager(struct pair_writer *writer, struct transfer *transfer, struct copy_policy policy);
/* Fills one slot with the next bytes of the message. */
void writer_stream_slot(struct pair_writer *writer, struct transfer *transfer, struct copy_policy policy);

/* ---- the reader's end ---- */
struct reader {
    struct pair *pair;
    /* The number of cells read. */
    uint32_t taken;
    /* The position in the eager part, the credit that the messages read so far have taken, the part of it that was
       returned, and the number of slots emptied. */
    uint64_t position, received, returned, emptied;
    /* The writer has written an impossible value. */
    bool is_corrupt;
    struct store_judge *judge;
};
/* Returns whether the ring has an envelope to read. */
static inline bool reader_has_cell(const struct reader *reader)
{
    const struct cell *cell = &reader->pair->cells[reader->taken % RING_CELLS];
    return atomic_load_explicit(&cell->sequence, memory_order_acquire) == reader->taken + 1;
}
/* Returns whether the pipe has a filled slot. */
static inline bool reader_has_slot(const struct reader *reader)
{
    const struct slot *slot = &reader->pair->slots[reader->emptied % PIPE_SLOTS];
    return atomic_load_explicit(&slot->sequence, memory_order_acquire) == reader->emptied + 1;
}
/* Reads the envelope of the next cell, which must be there. false: it is invalid, and is_corrupt is set. */
bool reader_read_envelope(struct reader *reader, struct envelope *out);
/* Copies the payload of the eager envelope in the next cell into the pieces of a transfer. */
void reader_scatter_eager(struct reader *reader, const struct envelope *envelope, struct transfer *to);
/* Copies the payload of the eager envelope in the next cell to `to`. */
void reader_copy_eager(struct reader *reader, const struct envelope *envelope, unsigned char *to);
/* Frees the next cell and its payload, whose envelope was read. true: the writer may wait for room, so the caller must
   ring the writer's bell. */
bool reader_free_cell(struct reader *reader, const struct envelope *envelope);
/* Gives back the credit of an eager message that has met its receive. */
void reader_return_credit(struct reader *reader, uint64_t bytes);
/* The fields of a slot as they were read once, and the address of the slot. */
struct filled_slot {
    uint64_t id, bytes, timed;
    const unsigned char *at;
};
/* Reads the fields of the next filled slot, and returns them with its address. The caller knows the message, so it
   checks the fields; reader_scatter_slot adds the offset of the filling. */
struct filled_slot reader_read_slot(const struct reader *reader);
/* Copies the bytes of the next slot to the cursor of the transfer, by `copy` (NULL: memcpy). */
void reader_scatter_slot(struct reader *reader, const struct filled_slot *slot, struct transfer *to,
    copy_function *copy);
/* Frees the next slot for the writer. */
void reader_free_slot(struct reader *reader);
