/* A message is cut twice. The algorithm cuts a rank's part into `cut` pieces, which are its chunks. The executor cuts
   into tiles: tile k begins at byte k * tile_bytes of every chunk. Cuts fall on cache lines, or on rows that are
   normalised. So the last chunks of a tensor may be short or empty although their scratch chunks are full; a step moves
   the length of its shortest span. */
#include "backend/execute/bind.h"
#include "backend/base/memory.h"
#include "backend/execute/fetch.h"
#include "backend/execute/pace.h"
#include "backend/execute/slots.h"
#include <assert.h>
#include <string.h>

enum { CACHE_LINE = 64 };
/* Least sizes for stores around the cache, in bytes; below them a fence costs as much as the stores save. */
enum { STREAM_AT_LEAST = 2 * 1024, OUTPUT_AT_LEAST = 4 * 1024 };

/* ---- cutting ---- */
void bind_cut_message(struct executor *x, size_t chunk_bytes)
{
    const struct plan *plan = x->launch.program->plan;
    const struct schedule *s = x->launch.program->schedule;
    struct program_cut *c = &x->launch.program->cut;
    size_t chunks = (size_t)(s->chunks[INPUT] > s->chunks[OUTPUT] ? s->chunks[INPUT] : s->chunks[OUTPUT]);
    size_t scratch = (size_t)s->chunks[SCRATCH], tile = chunk_bytes, most = SIZE_MAX;
    if (chunk_bytes * chunks > x->launch.tile_bytes)
        tile = size_round_up((x->launch.tile_bytes + chunks - 1) / chunks, c->unit_bytes);
    if (scratch) most = slots_most_bytes(x) / (scratch * (size_t)plan->slots) / c->unit_bytes * c->unit_bytes;
    /* It holds because a schedule has at most slots_most_chunks chunks. */
    assert(most);
    tile = size_smaller(size_smaller(tile, most), chunk_bytes);
    c->chunk_bytes = chunk_bytes;
    c->tile_bytes = tile ? tile : 1;
    c->tiles = chunk_bytes ? (int)((chunk_bytes + c->tile_bytes - 1) / c->tile_bytes) : 1;
    c->single = c->tiles == 1;
    bool fits = size_larger(scratch, 1) * chunk_bytes <= LINE_PAYLOAD;
    /* All members must compute the same value, so it depends on the plan of all of them. */
    c->in_line = c->single && fits && !plan->any_message;
    c->slot_stride = c->in_line ? chunk_bytes : size_round_up(c->tile_bytes, CACHE_LINE);
    slots_lay_out(x, c);
}

/* ---- addresses ---- */
/* Returns the bytes of the chunk in this tile, in memory or in a message. If counts are uneven and known to all ranks,
   the chunk is as long as its block, if that is known. Otherwise it is as long as the longest chunk. */
static size_t chunk_length_in_tile(const struct executor *x, const struct span *a, int index, size_t from)
{
    const struct launch *l = &x->launch;
    const struct program_cut *c = x->run.cut;
    size_t whole = c->chunk_bytes;
    if (l->uneven && !uneven_is_equal_on_ranks(l->uneven)) return c->tile_bytes;
    if (l->uneven && l->program->blocks.of) {
        const struct blocks *b = &l->program->blocks;
        int block = b->of[b->at[a - l->program->schedule->spans] + index];
        assert(block != BLOCK_UNKNOWN);
        whole = l->uneven->lengths[l->uneven->agreement][block];
    }
    return from < whole ? size_smaller(c->tile_bytes, whole - from) : 0;
}
static struct piece bind_locate_scratch_chunk(const struct executor *x, int track, const struct span *a, int index,
    int tile)
{
    const struct program_cut *c = x->run.cut;
    size_t at = (size_t)(a->first + index), length = chunk_length_in_tile(x, a, index, (size_t)tile * c->tile_bytes);
    int owner = site_index(&x->site, a->rank);
    unsigned char *payload = segment_line(x->site.segment, owner, track)->payload;
    if (c->in_line) return (struct piece){ payload + at * c->slot_stride, length, length };
    size_t place = c->single ? 0 : (uint32_t)tile % c->tile_slots;
    unsigned char *slots = segment_slots(x->site.segment, owner) + x->run.slots_at;
    return (struct piece){ slots + place * c->tile_slot_bytes + at * c->slot_stride, length, length };
}
/* A peer's lengths and offsets lie in shared memory and may change, so they are read once. They are checked against
   the bytes that were mapped for their first values. */
static struct piece bind_locate_uneven_chunk(const struct executor *x, const struct operand *o, const struct span *a,
    int index, size_t from)
{
    size_t at = (size_t)(a->first + index);
    size_t whole = *(const volatile size_t *)&o->lengths[at], offset = *(const volatile size_t *)&o->offsets[at];
    size_t length = from < whole ? size_smaller(x->run.cut->tile_bytes, whole - from) : 0;
    if (length && (offset > o->bytes || from > o->bytes - offset || length > o->bytes - offset - from)) length = 0;
    size_t wire = uneven_is_equal_on_ranks(x->launch.uneven) ? chunk_length_in_tile(x, a, index, from) : length;
    return (struct piece){ length ? o->base + offset + from : o->base, size_smaller(length, wire), wire };
}
struct piece bind_locate_chunk(const struct executor *x, const struct span *a, int index, int tile)
{
    if (a->buffer == SCRATCH) return bind_locate_scratch_chunk(x, x->run.track, a, index, tile);
    const struct operand *o =
        a->rank == x->site.rank ? &x->run.operand[a->buffer] : &x->theirs[site_index(&x->site, a->rank)][a->buffer];
    const struct program_cut *c = x->run.cut;
    size_t at = (size_t)(a->first + index), from = (size_t)tile * c->tile_bytes, part = 0;
    if (o->lengths) return bind_locate_uneven_chunk(x, o, a, index, from);
    size_t cut = (size_t)x->launch.program->schedule->cut;
    if (cut == 1) { part = at; at = 0; }
    else if (at >= cut) { part = at / cut; at %= cut; }
    size_t start = at * c->piece_bytes + from, wire = size_smaller(c->tile_bytes, c->chunk_bytes - from);
    size_t length = start < c->part_bytes ? size_smaller(wire, c->part_bytes - start) : 0;
    return (struct piece){ length ? o->base + part * c->part_bytes + start : o->base, length, wire };
}

/* ---- addresses, computed once for calls with the same cut; pointers, once for calls with the same tensors ---- */
static size_t program_fix_address(const struct executor *x, const struct span *a, int index,
    struct program_address *out)
{
    out->buffer = a->buffer;
    if (a->buffer != SCRATCH) {
        struct piece p = bind_locate_chunk(x, a, index, 0);
        out->at = (uintptr_t)p.at - (uintptr_t)x->run.operand[a->buffer].base;
        return p.length;
    }
    struct piece p = bind_locate_scratch_chunk(x, 0, a, index, 0);
    out->at = (uintptr_t)p.at - x->run.slots_at;
    return p.length;
}
static struct buffers launch_get_buffers(const struct executor *x)
{
    return (struct buffers){ x->launch.input, x->launch.output, x->run.slots_at };
}
static void program_aim_track(struct program *p, int track, struct buffers at)
{
    size_t line = p->cut.in_line ? (size_t)track * sizeof(struct line) : 0;
    const uintptr_t origin[] = {
        [INPUT] = (uintptr_t)at.input, [OUTPUT] = (uintptr_t)at.output, [SCRATCH] = at.slots_at + line
    };
    for (int i = 0; i < p->address_count; i++)
        p->pointers[track][i] = (void *)(origin[p->addresses[i].buffer] + p->addresses[i].at);
    p->aimed[track] = at;
}
static void program_count_elements(struct program *p, size_t element_bytes)
{
    for (int i = 0; i < p->part_at[p->schedule->step_count]; i++) p->parts[i].count = p->parts[i].bytes / element_bytes;
    p->element_bytes = element_bytes;
}
static enum part_shortcut step_find_shortcut(const struct step *t, size_t bytes)
{
    if (!bytes || bytes >= STREAM_AT_LEAST) return 0;
    if (t->from_count > 1) return PART_MERE_SUM;
    return t->to_count == 1 && !t->raw && !t->finish ? PART_MERE_COPY : 0;
}
static void program_fix_addresses(struct executor *x)
{
    struct program *p = x->launch.program;
    const struct schedule *s = p->schedule;
    struct part *part = p->parts;
    int address = 0;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        p->part_at[step] = (int)(part - p->parts);
        for (int i = 0; t->kind == WORK && i < step_to(s, t)->count; i++, part++) {
            *part = (struct part){ .bytes = SIZE_MAX, .first = address };
            for (int k = 0; k < t->from_count + t->to_count; k++)
                part->bytes = size_smaller(part->bytes,
                    program_fix_address(x, &s->spans[t->span + k], i, &p->addresses[address++]));
            part->shortcut = step_find_shortcut(t, part->bytes);
        }
    }
    p->part_at[s->step_count] = (int)(part - p->parts);
    /* SIZE_MAX means that the pointers of a track are not computed yet. */
    for (int track = 0; track < TRACKS; track++) p->aimed[track].slots_at = SIZE_MAX;
    program_aim_track(p, x->run.track, launch_get_buffers(x));
    program_count_elements(p, x->launch.element_bytes);
    p->is_fixed = true;
}
/* Recomputes the pointers and element counts if the call differs from the last one. */
static void program_update_pointers(struct executor *x)
{
    struct program *p = x->launch.program;
    const struct launch *l = &x->launch;
    const struct buffers *aimed = &p->aimed[x->run.track];
    if (aimed->input != l->input || aimed->output != l->output || aimed->slots_at != x->run.slots_at)
        program_aim_track(p, x->run.track, launch_get_buffers(x));
    if (p->element_bytes != l->element_bytes) program_count_elements(p, l->element_bytes);
}
void bind_repeated_call(struct executor *x)
{
    slots_choose_place(x);
    program_update_pointers(x);
}
/* Returns the size of this buffer on a rank that has it. For uneven counts it takes this rank's own. */
static size_t launch_buffer_bytes(const struct executor *x, enum buffer buffer)
{
    const struct schedule *s = x->launch.program->schedule;
    size_t bytes = 0;
    if (!x->launch.uneven)
        return x->launch.part_bytes * (size_t)collective_buffer_parts(s->collective, buffer, s->size);
    for (int q = 0; q < s->size; q++) bytes += x->run.operand[buffer].lengths[q];
    return bytes;
}
/* Compares the bytes that all members of the plan read and write with the cache. If they are clearly more, an output
   written through the cache would displace inputs, or be displaced itself. Up to 1.5 times the cache, it still holds
   enough of the output that stores around it cost more. */
static bool operation_is_beyond_cache(const struct executor *x)
{
    const struct plan *plan = x->launch.program->plan;
    enum collective collective = plan->algorithm->collective;
    size_t inputs = launch_buffer_bytes(x, INPUT), outputs = launch_buffer_bytes(x, OUTPUT), bytes = 0;
    for (int m = 0; m < plan->count; m++) {
        int r = plan_rank_of_member(plan, m);
        size_t input = collective_has_buffer(collective, plan->root, r, INPUT) ? inputs : 0;
        size_t output = collective_has_buffer(collective, plan->root, r, OUTPUT) ? outputs : 0;
        bytes += plan_is_in_place(plan, r) ? size_larger(input, output) : input + output;
    }
    return bytes >= x->site.cache_bytes + x->site.cache_bytes / 2;
}
void bind_launch_operands(struct executor *x)
{
    const struct launch *l = &x->launch;
    const struct uneven *u = l->uneven;
    struct program *program = l->program;
    size_t cut = (size_t)program->schedule->cut;
    x->launch.rows_early = rows_are_normalised_early(x);
    size_t unit = l->rows_early ? l->rows->row_bytes : CACHE_LINE;
    bool again = !u && program->is_cut && program->cut.part_bytes == l->part_bytes && program->cut.unit_bytes == unit
        && program->cut.wanted_bytes == l->tile_bytes && program->cut.short_laps == l->short_laps;
    assert(!u || cut == 1);
    x->run.cut = &program->cut;
    if (again && program->is_fixed) { bind_repeated_call(x); return; }
    if (again) slots_choose_place(x);
    for (int b = INPUT; b <= OUTPUT; b++) {
        x->run.operand[b].base = b == INPUT ? (unsigned char *)(uintptr_t)l->input : l->output;
        x->run.operand[b].lengths = u ? u->lengths[b] : NULL;
        x->run.operand[b].offsets = u ? u->offsets[b] : NULL;
        x->run.operand[b].bytes = SIZE_MAX;
    }
    if (again) {
        /* The second call with this cut makes a third one likely. */
        if (program->cut.single && program->parts) program_fix_addresses(x);
        return;
    }
    program->is_fixed = false;
    program->cut.part_bytes = l->part_bytes;
    program->cut.unit_bytes = unit;
    program->cut.wanted_bytes = l->tile_bytes;
    program->cut.short_laps = l->short_laps;
    program->cut.piece_bytes = cut == 1 ? l->part_bytes : size_round_up((l->part_bytes + cut - 1) / cut, unit);
    program->is_cut = !u;
    program->cut.beyond_cache = operation_is_beyond_cache(x);
    bind_cut_message(x, program->cut.piece_bytes);
}

/* ---- arithmetic ---- */
/* True if peers wait for this slot and it is better written around the cache. */
static bool slot_is_streamed(const struct executor *x, const struct step *t, struct span span, void *to, size_t bytes)
{
    bool waited_for = span.buffer == SCRATCH && t->by_tile && !x->run.cut->in_line;
    bool around = waited_for && bytes >= STREAM_AT_LEAST && x->site.stream && !(x->launch.ordinary && x->site.paced);
    return around && (!x->site.paced || pace_prefers_streaming(to));
}
/* True if the output replaces input that this rank has just read. The cache holds that input, so stores around the
   cache would first have to evict it. */
static bool span_replaces_input(const struct executor *x, struct span span)
{
    enum collective collective = x->launch.program->schedule->collective;
    bool alike = collective == ALLREDUCE || collective == REDUCE;
    return alike && span.rank == x->site.rank && x->launch.input == x->launch.output;
}
/* True for outputs that no cache will hold. Stores around the cache write them without reading them first. */
static bool output_goes_around_cache(const struct executor *x, struct span span, size_t bytes)
{
    bool around = bytes >= OUTPUT_AT_LEAST && x->run.cut->beyond_cache && span.buffer == OUTPUT && x->site.stream;
    return around && !span_replaces_input(x, span);
}
/* The usual sizes of a line's payload take one move, where a call of memcpy takes 20 instructions. */
static void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes == 8) memcpy(to, from, 8);
    else if (bytes == 4) memcpy(to, from, 4);
    else memcpy(to, from, bytes);
}
static void span_copy(const struct executor *x, const struct step *t, struct span span, void *to, const void *from,
    size_t bytes)
{
    const struct launch *l = &x->launch;
    if (t->raw && l->scale) l->scale(to, from, bytes / l->element_bytes, l->factor);
    else if (to == from || !bytes) return;
    else if (slot_is_streamed(x, t, span, to, bytes) || output_goes_around_cache(x, span, bytes))
        x->site.stream(to, from, bytes);
    else copy_bytes(to, from, bytes);
}
/* True if the reduction itself stores its sum around the cache. It must not replace a source that was just read. */
static bool sum_is_streamed(const struct executor *x, const struct step *t, void *const *to, int to_count,
    const void *const *from, size_t bytes)
{
    const struct span *spans = step_to(x->launch.program->schedule, t);
    if (!x->launch.reduce_streamed) return false;
    for (int d = 0; d < to_count; d++) {
        bool alone = to_count == 1 && slot_is_streamed(x, t, spans[d], to[d], bytes);
        if (!alone && !output_goes_around_cache(x, spans[d], bytes)) return false;
        for (int f = 0; f < t->from_count; f++)
            if (to[d] == from[f]) return false;
    }
    return true;
}
/* True if all destinations have the same offset within a cache line, so that whole vectors can go to all at once. */
static bool pointers_have_equal_alignment(void *const *to, int to_count)
{
    for (int d = 1; d < to_count; d++)
        if (((uintptr_t)to[d] ^ (uintptr_t)to[0]) % CACHE_LINE) return false;
    return true;
}
/* Streamed slots come last among the destinations. They are copied from the first destination, unless the reduction
   streams to all of them. */
static void step_reduce_pieces(const struct executor *x, const struct step *t, void *const *to, const void *const *from,
    const struct part *part)
{
    const struct launch *l = &x->launch;
    const struct span *spans = step_to(l->program->schedule, t);
    int direct = t->to_count;
    if (l->rows_early && t->finish) { rows_normalise_sum(x, t, to, from, part); return; }
    while (direct > 1 && slot_is_streamed(x, t, spans[direct - 1], to[direct - 1], part->bytes)) direct--;
    bool around = sum_is_streamed(x, t, to, direct, from, part->bytes);
    if (around && pointers_have_equal_alignment(to, t->to_count)) direct = t->to_count;
    (around ? l->reduce_streamed : l->reduce)(to, direct, from, t->from_count, part->count, t->finish ? l->divisor : 1);
    for (int k = direct; k < t->to_count; k++) x->site.stream(to[k], to[0], part->bytes);
}
static inline void step_compute_piece(const struct executor *x, const struct step *t, void *const *to,
    const void *const *from, const struct part *part)
{
    const struct span *spans = step_to(x->launch.program->schedule, t);
    if (t->from_count > 1 || (t->finish && x->launch.divisor > 1)) step_reduce_pieces(x, t, to, from, part);
    else
        for (int k = 0; k < t->to_count; k++) span_copy(x, t, spans[k], to[k], from[0], part->bytes);
}
void bind_compute_piece(const struct executor *x, const struct step *t, void *const *to, const void *const *from,
    const struct part *part)
{
    step_compute_piece(x, t, to, from, part);
}
void bind_compute_fixed_step(const struct executor *x, int step)
{
    const struct launch *l = &x->launch;
    const struct program *p = l->program;
    const struct step *t = &p->schedule->steps[step];
    for (int i = p->part_at[step]; i < p->part_at[step + 1]; i++) {
        const struct part *part = &p->parts[i];
        void *const *at = p->pointers[x->run.track] + part->first, *const *to = at + t->from_count;
        const void *const *from = (const void *const *)at;
        if (part->shortcut == PART_MERE_COPY && from[0] != to[0]) copy_bytes(to[0], from[0], part->bytes);
        else if (part->shortcut == PART_MERE_SUM && !l->rows_early)
            l->reduce(to, t->to_count, from, t->from_count, part->count, t->finish ? l->divisor : 1);
        else step_compute_piece(x, t, to, from, part);
    }
}
bool bind_compute_step(struct executor *x, const struct step *t, int tile)
{
    const struct launch *l = &x->launch;
    const struct schedule *s = l->program->schedule;
    const struct span *from = step_from(s, t), *to = step_to(s, t);
    for (int i = 0; i < to->count; i++) {
        size_t bytes = SIZE_MAX;
        for (int k = 0; k < t->from_count; k++) {
            struct piece p = bind_locate_chunk(x, &from[k], i, tile);
            l->program->piece.from[k] = p.at;
            bytes = size_smaller(bytes, p.length);
        }
        for (int k = 0; k < t->to_count; k++) {
            struct piece p = bind_locate_chunk(x, &to[k], i, tile);
            l->program->piece.to[k] = p.at;
            bytes = size_smaller(bytes, p.length);
        }
        struct part part = { .bytes = bytes, .count = bytes / l->element_bytes };
        if (!l->program->fetched) step_compute_piece(x, t, l->program->piece.to, l->program->piece.from, &part);
        else if (!fetch_compute_step(x, t, &part)) return false;
    }
    return true;
}
