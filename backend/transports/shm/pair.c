/* The two ends of a pair. A rank relies only on its own memory. The shared words only show that the other end has
   advanced, and the checks bound by how much. */
#include "backend/transports/shm/pair.h"
#include "backend/base/clock.h"
#include <assert.h>
#include <string.h>

static_assert(sizeof(struct cell) == 64, "an envelope with its payload is one cache line");
static_assert(offsetof(struct pair, cells) == PAIR_PAGE, "the doorbell and all counters fit one page");
static_assert(RING_CELLS % 2 == 0 && (1ull << 32) % RING_CELLS == 0, "32-bit counts of cells may wrap");

/* Returns the bytes that a payload of this size takes in the eager part. A core that reads a payload also prefetches
   the bytes behind it, so READ_AHEAD bytes separate it from the next payload. */
static uint64_t eager_payload_room(uint64_t bytes)
{
    return bytes <= INLINE_BYTES ? 0 : (bytes + 63) / 64 * 64 + READ_AHEAD;
}
/* Returns the credit that an eager message of this size takes: for its payload, and 64 bytes for the receiver's
   bookkeeping, which bound the number of tiny messages. */
static uint64_t eager_message_credit(uint64_t bytes) { return 64 + eager_payload_room(bytes); }

/* The one or two runs of memory of a payload; the eager part is circular. */
struct runs {
    unsigned char *at[2];
    size_t bytes[2];
};
/* Returns the runs of a payload of `bytes` bytes that begins at this position of the eager part. */
static struct runs pair_eager_runs(struct pair *pair, uint64_t position, size_t bytes)
{
    size_t offset = position % EAGER_CREDIT,
           first_bytes = bytes < EAGER_CREDIT - offset ? bytes : EAGER_CREDIT - offset;
    return (struct runs){ { pair->eager + offset, pair->eager }, { first_bytes, bytes - first_bytes } };
}

/* ---- claims ---- */
static const uint64_t CLAIM_MASK = ((uint64_t)1 << CLAIM_BITS) - 1;
/* The low bits of the word are 0, so no part is taken yet. */
void part_claims_open(struct pair *pair, uint64_t id)
{
    atomic_store_explicit(&pair->claims, id << CLAIM_BITS, memory_order_relaxed);
}
/* Returns whether a word of claims belongs to the message `id`, which has parts left. The word contains the id, so that
   a late rank takes no part of the next message. */
static bool claims_word_has_left(uint64_t word, uint64_t id, uint64_t parts)
{
    return (word & ~CLAIM_MASK) == id << CLAIM_BITS && (word & CLAIM_MASK) < parts;
}
bool part_claims_left(const struct pair *pair, uint64_t id, uint64_t parts)
{
    return claims_word_has_left(atomic_load_explicit(&pair->claims, memory_order_relaxed), id, parts);
}
bool part_claims_take(struct pair *pair, uint64_t id, uint64_t parts, uint64_t *out)
{
    uint64_t word = atomic_load_explicit(&pair->claims, memory_order_relaxed);
    do {
        if (!claims_word_has_left(word, id, parts)) return false;
    } while (!atomic_compare_exchange_weak_explicit(&pair->claims, &word, word + 1, memory_order_relaxed,
        memory_order_relaxed));
    *out = word & CLAIM_MASK;
    return true;
}

/* ---- long runs are written in the cheaper store mode (store_modes.h) ---- */
/* Returns the size class of an eager payload of 1 KiB or more. */
static enum filling eager_filling(uint64_t bytes)
{
    return bytes < 2048 ? FILLS_1K : bytes < 4096 ? FILLS_2K : FILLS_4K;
}
/* Returns the size class of the slot fillings of a message of `wire` bytes. */
static enum filling slot_filling(uint64_t wire)
{
    size_t bytes = slot_filling_bytes(wire);
    if (wire >= BEYOND_CACHE) return FILLS_BEYOND_CACHE;
    return bytes == 16384 ? FILLS_16K : bytes == 32768 ? FILLS_32K : FILLS_64K;
}
/* Copies the next bytes of a transfer into the runs, by `copy` (NULL: memcpy). */
static void runs_write(struct transfer *transfer, struct runs to, copy_function *copy)
{
    pieces_gather_with(copy, transfer, to.at[0], to.bytes[0]);
    pieces_gather_with(copy, transfer, to.at[1], to.bytes[1]);
}
/* Writes the runs, and returns the timing word of the filling with this number. The fence completes the stores, because
   otherwise ordinary stores would seem too fast. */
__attribute__((noinline)) static uint64_t runs_write_timed(struct transfer *transfer, const struct runs *to,
    copy_function *copy, unsigned number)
{
    int64_t start_ns = clock_ns();
    runs_write(transfer, *to, copy);
    atomic_thread_fence(memory_order_seq_cst);
    return store_mode_timing_word(number, clock_ns() - start_ns);
}
/* Writes the next bytes of a transfer as a filling of 1 KiB or more. Returns its timing word, or 0 if it is not timed.
   may_test: the filling may be one of an A/B test. */
static inline uint64_t writer_write_long(struct pair_writer *writer, struct transfer *transfer, enum filling filling,
    const struct runs *to, struct copy_policy policy, bool may_test)
{
    struct store_mode mode = { .is_around = true };
    uint64_t chosen = policy.is_paced ? atomic_load_explicit(&writer->pair->chosen_modes, memory_order_relaxed) : 0;
    if (policy.is_paced && may_test) mode = store_modes_next(writer->modes, filling, chosen);
    else if (policy.is_paced) mode.is_around = store_mode_is_around(filling, chosen);
    copy_function *copy = mode.is_around ? policy.copy : NULL;
    if (mode.number) return runs_write_timed(transfer, to, copy, mode.number);
    runs_write(transfer, *to, copy);
    return 0;
}
/* Returns the time at which reading begins, or 0 if the writer has not timed the filling (timed is 0). */
static int64_t reading_start_ns(uint64_t timed) { return timed ? clock_ns() : 0; }
/* Adds the sample of a timed filling, which was read from start_ns until now, and publishes the chosen modes if the
   sample has changed them. timed 0: does nothing. */
static void reader_record_filling(struct reader *reader, enum filling filling, uint64_t timed, int64_t start_ns,
    uint64_t bytes)
{
    if (!timed || !store_judge_add_sample(reader->judge, filling, timed, clock_ns() - start_ns, bytes)) return;
    atomic_store_explicit(&reader->pair->chosen_modes, reader->judge->chosen, memory_order_relaxed);
}

/* ---- writer ---- */
bool writer_has_room(struct pair_writer *writer)
{
    if (writer->written - writer->taken < RING_CELLS) return true;
    uint32_t taken = atomic_load_explicit(&writer->pair->taken, memory_order_acquire);
    if (writer->written - taken > RING_CELLS) writer->is_corrupt = true;
    if (!writer->is_corrupt) writer->taken = taken;
    return writer->written - writer->taken < RING_CELLS;
}
bool writer_has_credit(struct pair_writer *writer, uint64_t bytes)
{
    if (bytes > EAGER_LIMIT) return false;
    if (writer->spent - writer->returned + eager_message_credit(bytes) <= EAGER_CREDIT) return true;
    uint64_t returned = atomic_load_explicit(&writer->pair->returned, memory_order_acquire);
    if (writer->spent - returned > EAGER_CREDIT) writer->is_corrupt = true;
    if (!writer->is_corrupt) writer->returned = returned;
    return writer->spent - writer->returned + eager_message_credit(bytes) <= EAGER_CREDIT;
}
bool writer_has_slot(struct pair_writer *writer)
{
    if (writer->filled - writer->emptied < PIPE_SLOTS) return true;
    uint64_t emptied = atomic_load_explicit(&writer->pair->emptied, memory_order_acquire);
    if (writer->filled - emptied > PIPE_SLOTS) writer->is_corrupt = true;
    if (!writer->is_corrupt) writer->emptied = emptied;
    return writer->filled - writer->emptied < PIPE_SLOTS;
}
/* Writes the head and name of an envelope into the next cell. The caller writes the body and then the sequence
   number. */
static struct cell *writer_fill_cell(struct pair_writer *writer, enum envelope_kind kind, struct message_name name,
    uint64_t eager_bytes)
{
    struct cell *cell = &writer->pair->cells[writer->written % RING_CELLS];
    assert(writer->written - writer->taken < RING_CELLS);
    atomic_store_explicit(&cell->head, (uint32_t)eager_bytes << KIND_BITS | kind, memory_order_relaxed);
    atomic_store_explicit(&cell->operation, name.operation, memory_order_relaxed);
    atomic_store_explicit(&cell->message, name.message, memory_order_relaxed);
    return cell;
}
/* Makes the written cell visible to the reader. */
static void writer_publish_cell(struct pair_writer *writer, struct cell *cell)
{
    atomic_store_explicit(&cell->sequence, ++writer->written, memory_order_release);
}
void writer_write_envelope(struct pair_writer *writer, const struct envelope *envelope)
{
    struct cell *cell = writer_fill_cell(writer, envelope->kind, envelope->name, 0);
    atomic_store_explicit(&cell->body.about.id, envelope->id, memory_order_relaxed);
    atomic_store_explicit(&cell->body.about.bytes, envelope->bytes, memory_order_relaxed);
    atomic_store_explicit(&cell->body.about.block, envelope->location.block, memory_order_relaxed);
    atomic_store_explicit(&cell->body.about.offset, envelope->location.offset, memory_order_relaxed);
    writer_publish_cell(writer, cell);
}
void writer_send_inline(struct pair_writer *writer, const struct transfer *transfer)
{
    struct cell *cell = writer_fill_cell(writer, ENVELOPE_EAGER, transfer->name, transfer->wire);
    if (transfer->wire) memcpy(cell->body.payload, transfer->pieces->at, (size_t)transfer->wire);
    writer->spent += eager_message_credit(transfer->wire);
    writer_publish_cell(writer, cell);
}
void writer_send_eager(struct pair_writer *writer, struct transfer *transfer, struct copy_policy policy)
{
    struct cell *cell = writer_fill_cell(writer, ENVELOPE_EAGER, transfer->name, transfer->wire);
    size_t bytes = (size_t)transfer->wire;
    if (bytes <= INLINE_BYTES) pieces_gather(transfer, cell->body.payload, bytes);
    else {
        struct runs runs = pair_eager_runs(writer->pair, writer->position, bytes);
        if (bytes < FILLING_AT_LEAST) runs_write(transfer, runs, NULL);
        else
            atomic_store_explicit(&cell->body.timed,
                writer_write_long(writer, transfer, eager_filling(bytes), &runs, policy, true), memory_order_relaxed);
        writer->position += eager_payload_room(bytes);
    }
    writer->spent += eager_message_credit(bytes);
    writer_publish_cell(writer, cell);
}
void writer_stream_slot(struct pair_writer *writer, struct transfer *transfer, struct copy_policy policy)
{
    size_t index = writer->filled % PIPE_SLOTS, bytes = slot_filling_bytes(transfer->wire);
    struct slot *slot = &writer->pair->slots[index];
    assert(writer->filled - writer->emptied < PIPE_SLOTS);
    if (bytes > transfer->wire - transfer->moved) bytes = (size_t)(transfer->wire - transfer->moved);
    struct runs to = { { writer->pair->pipe[index] + slot_filling_offset(writer->filled, transfer->wire), NULL },
        { bytes, 0 } };
    /* The last filling of a message may be too short for an A/B test. */
    bool may_test = bytes >= slot_filling_bytes(transfer->wire) / 2;
    uint64_t timed = writer_write_long(writer, transfer, slot_filling(transfer->wire), &to, policy, may_test);
    atomic_store_explicit(&slot->id, transfer->key, memory_order_relaxed);
    atomic_store_explicit(&slot->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&slot->timed, timed, memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, ++writer->filled, memory_order_release);
}

/* ---- reader ---- */
bool reader_read_envelope(struct reader *reader, struct envelope *out)
{
    struct cell *cell = &reader->pair->cells[reader->taken % RING_CELLS];
    out->name.operation = atomic_load_explicit(&cell->operation, memory_order_relaxed);
    out->name.message = atomic_load_explicit(&cell->message, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&cell->head, memory_order_relaxed), kind = head & ((1u << KIND_BITS) - 1);
    out->bytes = head >> KIND_BITS;
    bool fits = out->bytes <= EAGER_LIMIT
        && reader->received - reader->returned + eager_message_credit(out->bytes) <= EAGER_CREDIT;
    if (kind < ENVELOPE_EAGER || kind > ENVELOPE_FINISHED || (kind == ENVELOPE_EAGER && !fits)) {
        reader->is_corrupt = true;
        return false;
    }
    out->kind = (enum envelope_kind)kind;
    if (kind == ENVELOPE_EAGER) return true;
    out->bytes = atomic_load_explicit(&cell->body.about.bytes, memory_order_relaxed);
    out->id = atomic_load_explicit(&cell->body.about.id, memory_order_relaxed);
    out->location.block = atomic_load_explicit(&cell->body.about.block, memory_order_relaxed);
    out->location.offset = atomic_load_explicit(&cell->body.about.offset, memory_order_relaxed);
    return true;
}
/* Returns the next cell to read. */
static const struct cell *reader_current_cell(const struct reader *reader)
{
    return &reader->pair->cells[reader->taken % RING_CELLS];
}
/* Returns the writer's timing of an eager payload, or 0 for a payload that is too short to have one. */
static uint64_t cell_timing_word(const struct cell *cell, const struct envelope *envelope)
{
    return envelope->bytes < FILLING_AT_LEAST ? 0 : atomic_load_explicit(&cell->body.timed, memory_order_relaxed);
}
void reader_scatter_eager(struct reader *reader, const struct envelope *envelope, struct transfer *to)
{
    const struct cell *cell = reader_current_cell(reader);
    if (envelope->bytes <= INLINE_BYTES) {
        bool is_one_piece = envelope->bytes && to->piece_count == 1 && to->pieces->length == envelope->bytes;
        if (is_one_piece) memcpy(to->pieces->at, cell->body.payload, (size_t)envelope->bytes);
        else pieces_scatter(to, cell->body.payload, (size_t)envelope->bytes);
        return;
    }
    struct runs runs = pair_eager_runs(reader->pair, reader->position, (size_t)envelope->bytes);
    uint64_t timed = cell_timing_word(cell, envelope);
    int64_t start_ns = reading_start_ns(timed);
    pieces_scatter(to, runs.at[0], runs.bytes[0]);
    pieces_scatter(to, runs.at[1], runs.bytes[1]);
    reader_record_filling(reader, eager_filling(envelope->bytes), timed, start_ns, envelope->bytes);
}
void reader_copy_eager(struct reader *reader, const struct envelope *envelope, unsigned char *to)
{
    const struct cell *cell = reader_current_cell(reader);
    if (envelope->bytes <= INLINE_BYTES) {
        memcpy(to, cell->body.payload, (size_t)envelope->bytes);
        return;
    }
    struct runs runs = pair_eager_runs(reader->pair, reader->position, (size_t)envelope->bytes);
    uint64_t timed = cell_timing_word(cell, envelope);
    int64_t start_ns = reading_start_ns(timed);
    memcpy(to, runs.at[0], runs.bytes[0]);
    if (runs.bytes[1]) memcpy(to + runs.bytes[0], runs.at[1], runs.bytes[1]);
    reader_record_filling(reader, eager_filling(envelope->bytes), timed, start_ns, envelope->bytes);
}
/* Returns true at multiples of half the ring. A writer that found the ring full has seen some count `taken`, and waits
   at taken + RING_CELLS. Before the reader gets there, it passes a multiple of half the ring that the writer has not
   seen. So one bell at each multiple is enough. */
bool reader_free_cell(struct reader *reader, const struct envelope *envelope)
{
    if (envelope->kind == ENVELOPE_EAGER) {
        reader->position += eager_payload_room(envelope->bytes);
        reader->received += eager_message_credit(envelope->bytes);
    }
    atomic_store_explicit(&reader->pair->taken, ++reader->taken, memory_order_release);
    return reader->taken % (RING_CELLS / 2) == 0;
}
void reader_return_credit(struct reader *reader, uint64_t bytes)
{
    reader->returned += eager_message_credit(bytes);
    atomic_store_explicit(&reader->pair->returned, reader->returned, memory_order_release);
}
struct filled_slot reader_read_slot(const struct reader *reader)
{
    size_t index = reader->emptied % PIPE_SLOTS;
    struct slot *slot = &reader->pair->slots[index];
    return (struct filled_slot){ atomic_load_explicit(&slot->id, memory_order_relaxed),
        atomic_load_explicit(&slot->bytes, memory_order_relaxed),
        atomic_load_explicit(&slot->timed, memory_order_relaxed), reader->pair->pipe[index] };
}
void reader_scatter_slot(struct reader *reader, const struct filled_slot *slot, struct transfer *to,
    copy_function *copy)
{
    enum filling filling = slot_filling(to->wire);
    int64_t start_ns = reading_start_ns(slot->timed);
    pieces_scatter_with(copy, to, slot->at + slot_filling_offset(reader->emptied, to->wire), (size_t)slot->bytes);
    reader_record_filling(reader, filling, slot->timed, start_ns, slot->bytes);
}
void reader_free_slot(struct reader *reader)
{
    atomic_store_explicit(&reader->pair->emptied, ++reader->emptied, memory_order_release);
}
