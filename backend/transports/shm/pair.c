/* The two ends of a pair. Everything a rank relies on is in its own memory; the shared words only ever tell it that
   the other end has moved on, and by how much at most. */
#include "backend/transports/shm/pair.h"
#include <assert.h>
#include <string.h>

static_assert(sizeof(struct cell) == 64, "an envelope with its payload is one cache line");
static_assert(offsetof(struct pair, cells) == PAIR_PAGE, "the doorbell and all counters fit one page");
static_assert(RING_CELLS % 2 == 0 && (1ull << 32) % RING_CELLS == 0, "32-bit counts of cells may wrap");

/* What a message of so many bytes takes from the credit: its payload in the eager part, and a line for whatever keeps
   it. Who reads a payload fetches what lies behind it, too; it had better not be what is written next. */
static uint64_t payload_room(uint64_t bytes) { return bytes <= INLINE_BYTES ? 0 : (bytes + 63) / 64 * 64 + READ_AHEAD; }
static uint64_t credit_of(uint64_t bytes) { return 64 + payload_room(bytes); }

/* The eager part is circular: a payload lies in one run, or in two. */
struct runs {
    unsigned char *at[2];
    size_t bytes[2];
};
static struct runs eager_runs(struct pair *pair, uint64_t position, size_t bytes)
{
    size_t start = position % EAGER_CREDIT, first = bytes < EAGER_CREDIT - start ? bytes : EAGER_CREDIT - start;
    return (struct runs){ { pair->eager + start, pair->eager }, { first, bytes - first } };
}

/* ---- claims ---- */
static const uint64_t CLAIM_MASK = ((uint64_t)1 << CLAIM_BITS) - 1;
void claims_open(struct pair *pair, uint64_t id)
{
    atomic_store_explicit(&pair->claims, id << CLAIM_BITS, memory_order_relaxed);
}
/* The word has the id in it, so who comes late takes nothing of the next message. */
static bool has_claims(uint64_t word, uint64_t id, uint64_t parts)
{
    return (word & ~CLAIM_MASK) == id << CLAIM_BITS && (word & CLAIM_MASK) < parts;
}
bool claims_left(const struct pair *pair, uint64_t id, uint64_t parts)
{
    return has_claims(atomic_load_explicit(&pair->claims, memory_order_relaxed), id, parts);
}
bool claims_take(struct pair *pair, uint64_t id, uint64_t parts, uint64_t *out)
{
    uint64_t word = atomic_load_explicit(&pair->claims, memory_order_relaxed);
    do {
        if (!has_claims(word, id, parts)) return false;
    } while (!atomic_compare_exchange_weak_explicit(&pair->claims, &word, word + 1, memory_order_relaxed,
        memory_order_relaxed));
    *out = word & CLAIM_MASK;
    return true;
}

/* ---- writer ---- */
bool writer_has_room(struct writer *w)
{
    if (w->told - w->taken < RING_CELLS) return true;
    uint32_t taken = atomic_load_explicit(&w->pair->taken, memory_order_acquire);
    if (w->told - taken > RING_CELLS) w->corrupt = true;
    if (!w->corrupt) w->taken = taken;
    return w->told - w->taken < RING_CELLS;
}
bool writer_has_credit(struct writer *w, uint64_t bytes)
{
    if (bytes > EAGER_LIMIT) return false;
    if (w->spent - w->returned + credit_of(bytes) <= EAGER_CREDIT) return true;
    uint64_t returned = atomic_load_explicit(&w->pair->returned, memory_order_acquire);
    if (w->spent - returned > EAGER_CREDIT) w->corrupt = true;
    if (!w->corrupt) w->returned = returned;
    return w->spent - w->returned + credit_of(bytes) <= EAGER_CREDIT;
}
bool writer_has_slot(struct writer *w)
{
    if (w->filled - w->emptied < PIPE_SLOTS) return true;
    uint64_t emptied = atomic_load_explicit(&w->pair->emptied, memory_order_acquire);
    if (w->filled - emptied > PIPE_SLOTS) w->corrupt = true;
    if (!w->corrupt) w->emptied = emptied;
    return w->filled - w->emptied < PIPE_SLOTS;
}
static struct cell *fill_cell(struct writer *w, enum envelope_kind kind, struct message_name name, uint64_t eager_bytes)
{
    struct cell *cell = &w->pair->cells[w->told % RING_CELLS];
    assert(w->told - w->taken < RING_CELLS);
    atomic_store_explicit(&cell->head, (uint32_t)eager_bytes << KIND_BITS | kind, memory_order_relaxed);
    atomic_store_explicit(&cell->operation, name.operation, memory_order_relaxed);
    atomic_store_explicit(&cell->message, name.message, memory_order_relaxed);
    return cell;
}
static void publish_cell(struct writer *w, struct cell *cell)
{
    atomic_store_explicit(&cell->sequence, ++w->told, memory_order_release);
}
void writer_tell(struct writer *w, const struct envelope *e)
{
    struct cell *cell = fill_cell(w, e->kind, e->name, 0);
    atomic_store_explicit(&cell->body.about.id, e->id, memory_order_relaxed);
    atomic_store_explicit(&cell->body.about.bytes, e->bytes, memory_order_relaxed);
    atomic_store_explicit(&cell->body.about.block, e->place.block, memory_order_relaxed);
    atomic_store_explicit(&cell->body.about.offset, e->place.offset, memory_order_relaxed);
    publish_cell(w, cell);
}
void writer_send_small(struct writer *w, const struct transfer *x)
{
    struct cell *cell = fill_cell(w, ENVELOPE_EAGER, x->name, x->wire);
    if (x->wire) memcpy(cell->body.payload, x->pieces->at, (size_t)x->wire);
    w->spent += credit_of(x->wire);
    publish_cell(w, cell);
}
void writer_send(struct writer *w, struct transfer *x, copy_function *copy)
{
    struct cell *cell = fill_cell(w, ENVELOPE_EAGER, x->name, x->wire);
    size_t bytes = (size_t)x->wire;
    if (bytes <= INLINE_BYTES) pieces_gather(x, cell->body.payload, bytes);
    else {
        struct runs runs = eager_runs(w->pair, w->position, bytes);
        pieces_gather_with(copy, x, runs.at[0], runs.bytes[0]);
        pieces_gather_with(copy, x, runs.at[1], runs.bytes[1]);
        w->position += payload_room(bytes);
    }
    w->spent += credit_of(bytes);
    publish_cell(w, cell);
}
void writer_stream(struct writer *w, struct transfer *x, copy_function *copy)
{
    size_t index = w->filled % PIPE_SLOTS, bytes = slot_bytes(x->wire);
    struct slot *slot = &w->pair->slots[index];
    assert(w->filled - w->emptied < PIPE_SLOTS);
    if (bytes > x->wire - x->moved) bytes = (size_t)(x->wire - x->moved);
    pieces_gather_with(copy, x, w->pair->pipe[index] + slot_offset(w->filled, x->wire), bytes);
    atomic_store_explicit(&slot->id, x->key, memory_order_relaxed);
    atomic_store_explicit(&slot->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&slot->sequence, ++w->filled, memory_order_release);
}

/* ---- reader ---- */
bool reader_look(struct reader *r, struct envelope *out)
{
    struct cell *cell = &r->pair->cells[r->taken % RING_CELLS];
    out->name.operation = atomic_load_explicit(&cell->operation, memory_order_relaxed);
    out->name.message = atomic_load_explicit(&cell->message, memory_order_relaxed);
    uint32_t head = atomic_load_explicit(&cell->head, memory_order_relaxed), kind = head & ((1u << KIND_BITS) - 1);
    out->bytes = head >> KIND_BITS;
    bool fits = out->bytes <= EAGER_LIMIT && r->received - r->returned + credit_of(out->bytes) <= EAGER_CREDIT;
    if (kind < ENVELOPE_EAGER || kind > ENVELOPE_FINISHED || (kind == ENVELOPE_EAGER && !fits)) {
        r->corrupt = true;
        return false;
    }
    out->kind = (enum envelope_kind)kind;
    if (kind == ENVELOPE_EAGER) return true;
    out->bytes = atomic_load_explicit(&cell->body.about.bytes, memory_order_relaxed);
    out->id = atomic_load_explicit(&cell->body.about.id, memory_order_relaxed);
    out->place.block = atomic_load_explicit(&cell->body.about.block, memory_order_relaxed);
    out->place.offset = atomic_load_explicit(&cell->body.about.offset, memory_order_relaxed);
    return true;
}
static struct runs payload_runs(const struct reader *r, const struct envelope *e)
{
    if (e->bytes > INLINE_BYTES) return eager_runs(r->pair, r->position, (size_t)e->bytes);
    return (struct runs){ { r->pair->cells[r->taken % RING_CELLS].body.payload, NULL }, { (size_t)e->bytes, 0 } };
}
void reader_scatter(const struct reader *r, const struct envelope *e, struct transfer *to)
{
    if (e->bytes && e->bytes <= INLINE_BYTES && to->piece_count == 1 && to->pieces->length == e->bytes) {
        memcpy(to->pieces->at, r->pair->cells[r->taken % RING_CELLS].body.payload, (size_t)e->bytes);
        return;
    }
    struct runs runs = payload_runs(r, e);
    pieces_scatter(to, runs.at[0], runs.bytes[0]);
    pieces_scatter(to, runs.at[1], runs.bytes[1]);
}
void reader_copy(const struct reader *r, const struct envelope *e, unsigned char *to)
{
    struct runs runs = payload_runs(r, e);
    memcpy(to, runs.at[0], runs.bytes[0]);
    if (runs.bytes[1]) memcpy(to + runs.bytes[0], runs.at[1], runs.bytes[1]);
}
/* A writer that found the ring full knows of `taken` cells, and waits at taken + RING_CELLS: on its way there the
   reader passes a multiple of half the ring after that writer last looked. So ringing there only is enough. */
bool reader_take(struct reader *r, const struct envelope *e)
{
    if (e->kind == ENVELOPE_EAGER) {
        r->position += payload_room(e->bytes);
        r->received += credit_of(e->bytes);
    }
    atomic_store_explicit(&r->pair->taken, ++r->taken, memory_order_release);
    return r->taken % (RING_CELLS / 2) == 0;
}
void reader_return(struct reader *r, uint64_t bytes)
{
    r->returned += credit_of(bytes);
    atomic_store_explicit(&r->pair->returned, r->returned, memory_order_release);
}
struct filled reader_look_slot(const struct reader *r)
{
    size_t index = r->emptied % PIPE_SLOTS;
    struct slot *slot = &r->pair->slots[index];
    return (struct filled){ atomic_load_explicit(&slot->id, memory_order_relaxed),
        atomic_load_explicit(&slot->bytes, memory_order_relaxed), r->pair->pipe[index] };
}
void reader_take_slot(struct reader *r)
{
    atomic_store_explicit(&r->pair->emptied, ++r->emptied, memory_order_release);
}
