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
void bind_cut_message(struct executor *executor, size_t chunk_bytes)
{
    const struct plan *plan = executor->launch.program->plan;
    const struct schedule *schedule = executor->launch.program->schedule;
    struct program_cut *cut = &executor->launch.program->cut;
    size_t chunks = (size_t)(schedule->chunks[INPUT] > schedule->chunks[OUTPUT] ? schedule->chunks[INPUT]
                                                                                : schedule->chunks[OUTPUT]);
    size_t scratch = (size_t)schedule->chunks[SCRATCH], tile = chunk_bytes, max_tile = SIZE_MAX;
    if (chunk_bytes * chunks > executor->launch.tile_bytes)
        tile = size_round_up((executor->launch.tile_bytes + chunks - 1) / chunks, cut->unit_bytes);
    if (scratch)
        max_tile = slots_max_bytes(executor) / (scratch * (size_t)plan->slots) / cut->unit_bytes * cut->unit_bytes;
    /* A tile of one unit fits, because a schedule has at most slots_max_chunks chunks. */
    assert(max_tile);
    tile = size_smaller(size_smaller(tile, max_tile), chunk_bytes);
    cut->chunk_bytes = chunk_bytes;
    cut->tile_bytes = tile ? tile : 1;
    cut->tiles = chunk_bytes ? (int)((chunk_bytes + cut->tile_bytes - 1) / cut->tile_bytes) : 1;
    cut->is_single_tile = cut->tiles == 1;
    bool fits = size_larger(scratch, 1) * chunk_bytes <= LINE_PAYLOAD;
    /* All members must compute the same value, so it depends on the plan of all of them. */
    cut->is_in_line = cut->is_single_tile && fits && !plan->has_messages;
    cut->slot_stride = cut->is_in_line ? chunk_bytes : size_round_up(cut->tile_bytes, CACHE_LINE);
    slots_lay_out(executor, cut);
}

/* ---- addresses ---- */
/* Returns the bytes of the chunk in the tile that begins at its byte `from`, in memory or in a message. If counts are
   uneven and known to all ranks, the chunk is as long as its block, if that is known. Otherwise it is as long as the
   longest chunk. */
static size_t chunk_length_in_tile(const struct executor *executor, const struct span *span, int index, size_t from)
{
    const struct launch *launch = &executor->launch;
    const struct program_cut *cut = executor->run.cut;
    size_t chunk_bytes = cut->chunk_bytes;
    if (launch->uneven && !uneven_is_equal_on_ranks(launch->uneven)) return cut->tile_bytes;
    if (launch->uneven && launch->program->chunk_blocks.block) {
        const struct chunk_blocks *blocks = &launch->program->chunk_blocks;
        int block = blocks->block[blocks->first[span - launch->program->schedule->spans] + index];
        assert(block != BLOCK_UNKNOWN);
        chunk_bytes = launch->uneven->lengths[launch->uneven->agreement][block];
    }
    return from < chunk_bytes ? size_smaller(cut->tile_bytes, chunk_bytes - from) : 0;
}
/* Returns the memory of a SCRATCH chunk in a tile of an operation in this track: in the payload of the owner's line if
   the operation fits there, else in the owner's slots. */
static struct piece bind_locate_scratch_chunk(const struct executor *executor, int track, const struct span *span,
    int index, int tile)
{
    const struct program_cut *cut = executor->run.cut;
    size_t at = (size_t)(span->first + index),
           length = chunk_length_in_tile(executor, span, index, (size_t)tile * cut->tile_bytes);
    int owner = site_index(&executor->site, span->rank);
    unsigned char *payload = segment_line(executor->site.segment, owner, track)->payload;
    if (cut->is_in_line) return (struct piece){ payload + at * cut->slot_stride, length, length };
    size_t place = cut->is_single_tile ? 0 : (uint32_t)tile % cut->tile_slots;
    unsigned char *slots = segment_slots(executor->site.segment, owner) + executor->run.slots_at;
    return (struct piece){ slots + place * cut->tile_slot_bytes + at * cut->slot_stride, length, length };
}
/* Returns the memory of a chunk of a tensor with uneven counts, in the tile that begins at its byte `from`. A peer's
   lengths and offsets lie in shared memory and may change, so they are read once, and checked against the bytes that
   were mapped for their first values. */
static struct piece bind_locate_uneven_chunk(const struct executor *executor, const struct operand *operand,
    const struct span *span, int index, size_t from)
{
    size_t at = (size_t)(span->first + index);
    size_t chunk_bytes = *(const volatile size_t *)&operand->lengths[at],
           offset = *(const volatile size_t *)&operand->offsets[at];
    size_t length = from < chunk_bytes ? size_smaller(executor->run.cut->tile_bytes, chunk_bytes - from) : 0;
    if (length
        && (offset > operand->bytes || from > operand->bytes - offset || length > operand->bytes - offset - from))
        length = 0;
    size_t wire =
        uneven_is_equal_on_ranks(executor->launch.uneven) ? chunk_length_in_tile(executor, span, index, from) : length;
    return (struct piece){ length ? operand->base + offset + from : operand->base, size_smaller(length, wire), wire };
}
struct piece bind_locate_chunk(const struct executor *executor, const struct span *span, int index, int tile)
{
    if (span->buffer == SCRATCH) return bind_locate_scratch_chunk(executor, executor->run.track, span, index, tile);
    const struct operand *operand = span->rank == executor->site.rank
        ? &executor->run.operand[span->buffer]
        : &executor->peer_operands[site_index(&executor->site, span->rank)][span->buffer];
    const struct program_cut *program_cut = executor->run.cut;
    size_t at = (size_t)(span->first + index), from = (size_t)tile * program_cut->tile_bytes, part = 0;
    if (operand->lengths) return bind_locate_uneven_chunk(executor, operand, span, index, from);
    size_t cut = (size_t)executor->launch.program->schedule->cut;
    if (cut == 1) { part = at; at = 0; }
    else if (at >= cut) { part = at / cut; at %= cut; }
    size_t start = at * program_cut->piece_bytes + from,
           wire = size_smaller(program_cut->tile_bytes, program_cut->chunk_bytes - from);
    size_t length = start < program_cut->part_bytes ? size_smaller(wire, program_cut->part_bytes - start) : 0;
    return (struct piece){ length ? operand->base + part * program_cut->part_bytes + start : operand->base, length,
        wire };
}

/* ---- addresses, computed once for calls with the same cut; pointers, once for calls with the same tensors ---- */
/* Sets *out to the address of a chunk in the first tile, relative to its buffer. Returns the length in bytes. */
static size_t program_record_address(const struct executor *executor, const struct span *span, int index,
    struct program_address *out)
{
    out->buffer = span->buffer;
    if (span->buffer != SCRATCH) {
        struct piece p = bind_locate_chunk(executor, span, index, 0);
        out->at = (uintptr_t)p.at - (uintptr_t)executor->run.operand[span->buffer].base;
        return p.length;
    }
    struct piece p = bind_locate_scratch_chunk(executor, 0, span, index, 0);
    out->at = (uintptr_t)p.at - executor->run.slots_at;
    return p.length;
}
/* Returns the bases of the addresses of the running operation. */
static struct buffers launch_get_buffers(const struct executor *executor)
{
    return (struct buffers){ executor->launch.input, executor->launch.output, executor->run.slots_at };
}
/* Computes the pointers of all parts in a track from their addresses, for these buffers. */
static void program_compute_pointers(struct program *program, int track, struct buffers buffers)
{
    size_t line = program->cut.is_in_line ? (size_t)track * sizeof(struct line) : 0;
    const uintptr_t origin[] = {
        [INPUT] = (uintptr_t)buffers.input, [OUTPUT] = (uintptr_t)buffers.output, [SCRATCH] = buffers.slots_at + line
    };
    for (int i = 0; i < program->address_count; i++)
        program->pointers[track][i] = (void *)(origin[program->addresses[i].buffer] + program->addresses[i].at);
    program->pointers_for[track] = buffers;
}
/* Sets the number of elements of each part. */
static void program_count_elements(struct program *program, size_t element_bytes)
{
    for (int i = 0; i < program->part_at[program->schedule->step_count]; i++)
        program->parts[i].count = program->parts[i].bytes / element_bytes;
    program->element_bytes = element_bytes;
}
/* Returns how a part of a step can always be computed; 0: it depends on the call. */
static enum part_shortcut step_find_shortcut(const struct step *step, size_t bytes)
{
    if (!bytes || bytes >= STREAM_AT_LEAST) return 0;
    if (step->from_count > 1) return PART_MERE_SUM;
    return step->to_count == 1 && !step->premultiplies && !step->finish ? PART_MERE_COPY : 0;
}
/* Records the parts and addresses of all work steps, so that later calls with the same cut only add bases. */
static void program_record_addresses(struct executor *executor)
{
    struct program *program = executor->launch.program;
    const struct schedule *schedule = program->schedule;
    struct part *part = program->parts;
    int address = 0;
    for (int step = 0; step < schedule->step_count; step++) {
        const struct step *recorded = &schedule->steps[step];
        program->part_at[step] = (int)(part - program->parts);
        for (int i = 0; recorded->kind == WORK && i < step_to(schedule, recorded)->count; i++, part++) {
            *part = (struct part){ .bytes = SIZE_MAX, .first = address };
            for (int k = 0; k < recorded->from_count + recorded->to_count; k++)
                part->bytes = size_smaller(part->bytes,
                    program_record_address(executor, &schedule->spans[recorded->span + k], i,
                        &program->addresses[address++]));
            part->shortcut = step_find_shortcut(recorded, part->bytes);
        }
    }
    program->part_at[schedule->step_count] = (int)(part - program->parts);
    /* SIZE_MAX: the pointers of a track are not computed yet. */
    for (int track = 0; track < TRACKS; track++) program->pointers_for[track].slots_at = SIZE_MAX;
    program_compute_pointers(program, executor->run.track, launch_get_buffers(executor));
    program_count_elements(program, executor->launch.element_bytes);
    program->has_addresses = true;
}
/* Recomputes the pointers and element counts if the call differs from the last one. */
static void program_update_pointers(struct executor *executor)
{
    struct program *program = executor->launch.program;
    const struct launch *launch = &executor->launch;
    const struct buffers *last_buffers = &program->pointers_for[executor->run.track];
    if (last_buffers->input != launch->input || last_buffers->output != launch->output
        || last_buffers->slots_at != executor->run.slots_at)
        program_compute_pointers(program, executor->run.track, launch_get_buffers(executor));
    if (program->element_bytes != launch->element_bytes) program_count_elements(program, launch->element_bytes);
}
void bind_repeated_call(struct executor *executor)
{
    slots_choose_place(executor);
    program_update_pointers(executor);
}
/* Returns the bytes of this buffer on a rank that has it. For uneven counts it takes this rank's own. */
static size_t launch_buffer_bytes(const struct executor *executor, enum buffer buffer)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    size_t bytes = 0;
    if (!executor->launch.uneven)
        return executor->launch.part_bytes
            * (size_t)collective_count_chunks(schedule->collective, buffer, schedule->size);
    for (int q = 0; q < schedule->size; q++) bytes += executor->run.operand[buffer].lengths[q];
    return bytes;
}
/* True if all members of the plan read and write at least 1.5 times the last-level cache together. Then an output
   written through the cache would displace inputs, or be displaced itself. Below that the cache still holds enough of
   the output that stores around it cost more. */
static bool operation_is_beyond_cache(const struct executor *executor)
{
    const struct plan *plan = executor->launch.program->plan;
    enum collective collective = plan->algorithm->collective;
    size_t inputs = launch_buffer_bytes(executor, INPUT), outputs = launch_buffer_bytes(executor, OUTPUT), bytes = 0;
    for (int m = 0; m < plan->count; m++) {
        int r = plan_rank_of_member(plan, m);
        size_t input = collective_has_buffer(collective, plan->root, r, INPUT) ? inputs : 0;
        size_t output = collective_has_buffer(collective, plan->root, r, OUTPUT) ? outputs : 0;
        bytes += plan_is_in_place(plan, r) ? size_larger(input, output) : input + output;
    }
    return bytes >= executor->site.cache_bytes + executor->site.cache_bytes / 2;
}
void bind_launch_operands(struct executor *executor)
{
    const struct launch *launch = &executor->launch;
    const struct uneven *uneven = launch->uneven;
    struct program *program = launch->program;
    size_t cut = (size_t)program->schedule->cut;
    executor->launch.rows_are_early = rows_are_normalised_early(executor);
    size_t unit = launch->rows_are_early ? launch->rows->row_bytes : CACHE_LINE;
    bool same_cut = !uneven && program->is_cut && program->cut.part_bytes == launch->part_bytes
        && program->cut.unit_bytes == unit && program->cut.wanted_bytes == launch->tile_bytes
        && program->cut.short_ring == launch->short_ring;
    assert(!uneven || cut == 1);
    executor->run.cut = &program->cut;
    if (same_cut && program->has_addresses) { bind_repeated_call(executor); return; }
    if (same_cut) slots_choose_place(executor);
    for (int b = INPUT; b <= OUTPUT; b++) {
        executor->run.operand[b].base = b == INPUT ? (unsigned char *)(uintptr_t)launch->input : launch->output;
        executor->run.operand[b].lengths = uneven ? uneven->lengths[b] : NULL;
        executor->run.operand[b].offsets = uneven ? uneven->offsets[b] : NULL;
        executor->run.operand[b].bytes = SIZE_MAX;
    }
    if (same_cut) {
        /* The second call with this cut makes a third one likely. */
        if (program->cut.is_single_tile && program->parts) program_record_addresses(executor);
        return;
    }
    program->has_addresses = false;
    program->cut.part_bytes = launch->part_bytes;
    program->cut.unit_bytes = unit;
    program->cut.wanted_bytes = launch->tile_bytes;
    program->cut.short_ring = launch->short_ring;
    program->cut.piece_bytes =
        cut == 1 ? launch->part_bytes : size_round_up((launch->part_bytes + cut - 1) / cut, unit);
    program->is_cut = !uneven;
    program->cut.beyond_cache = operation_is_beyond_cache(executor);
    bind_cut_message(executor, program->cut.piece_bytes);
}

/* ---- arithmetic ---- */
/* True if the span is a slot that a peer awaits and that is better written around the cache, at `to`. */
static bool slot_is_streamed(const struct executor *executor, const struct step *step, struct span span, void *to,
    size_t bytes)
{
    bool is_awaited = span.buffer == SCRATCH && step->by_tile && !executor->run.cut->is_in_line;
    bool may_stream = is_awaited && bytes >= STREAM_AT_LEAST && executor->site.stream
        && !(executor->launch.ordinary_stores && executor->site.is_paced);
    return may_stream && (!executor->site.is_paced || pace_prefers_streaming(to));
}
/* True if the output replaces input that this rank has just read. The cache holds that input, so stores around the
   cache would first have to evict it. */
static bool span_replaces_input(const struct executor *executor, struct span span)
{
    enum collective collective = executor->launch.program->schedule->collective;
    bool same_shape = collective == ALLREDUCE || collective == REDUCE;
    return same_shape && span.rank == executor->site.rank && executor->launch.input == executor->launch.output;
}
/* True for outputs that no cache will hold. Stores around the cache write them without reading them first. */
static bool output_goes_around_cache(const struct executor *executor, struct span span, size_t bytes)
{
    bool may_stream =
        bytes >= OUTPUT_AT_LEAST && executor->run.cut->beyond_cache && span.buffer == OUTPUT && executor->site.stream;
    return may_stream && !span_replaces_input(executor, span);
}
/* Copies bytes. The usual sizes of a line's payload take one move, where a call of memcpy takes 20 instructions. */
static void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes == 8) memcpy(to, from, 8);
    else if (bytes == 4) memcpy(to, from, 4);
    else memcpy(to, from, bytes);
}
/* Copies one chunk to a target (span, at `to`), multiplied if the step premultiplies, around the cache if that pays
   off. */
static void span_copy(const struct executor *executor, const struct step *step, struct span span, void *to,
    const void *from, size_t bytes)
{
    const struct launch *launch = &executor->launch;
    if (step->premultiplies && launch->scale) launch->scale(to, from, bytes / launch->element_bytes, launch->factor);
    else if (to == from || !bytes) return;
    else if (slot_is_streamed(executor, step, span, to, bytes) || output_goes_around_cache(executor, span, bytes))
        executor->site.stream(to, from, bytes);
    else copy_bytes(to, from, bytes);
}
/* True if the reduction itself stores its sum around the cache into the first to_count targets. It must not replace a
   source that was just read. */
static bool sum_is_streamed(const struct executor *executor, const struct step *step, void *const *to, int to_count,
    const void *const *from, size_t bytes)
{
    const struct span *spans = step_to(executor->launch.program->schedule, step);
    if (!executor->launch.reduce_streamed) return false;
    for (int d = 0; d < to_count; d++) {
        bool is_streamed_slot = to_count == 1 && slot_is_streamed(executor, step, spans[d], to[d], bytes);
        if (!is_streamed_slot && !output_goes_around_cache(executor, spans[d], bytes)) return false;
        for (int f = 0; f < step->from_count; f++)
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
/* Sums one part of a step into all targets. Streamed slots come last among these. They are copied from the first
   target, unless the reduction streams to all of them. */
static void step_reduce_pieces(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part)
{
    const struct launch *launch = &executor->launch;
    const struct span *spans = step_to(launch->program->schedule, step);
    int summed_count = step->to_count;
    if (launch->rows_are_early && step->finish) { rows_normalise_sum(executor, step, to, from, part); return; }
    while (summed_count > 1
        && slot_is_streamed(executor, step, spans[summed_count - 1], to[summed_count - 1], part->bytes))
        summed_count--;
    bool streams = sum_is_streamed(executor, step, to, summed_count, from, part->bytes);
    if (streams && pointers_have_equal_alignment(to, step->to_count)) summed_count = step->to_count;
    (streams ? launch->reduce_streamed : launch->reduce)(to, summed_count, from, step->from_count, part->count,
        step->finish ? launch->divisor : 1);
    for (int k = summed_count; k < step->to_count; k++) executor->site.stream(to[k], to[0], part->bytes);
}
/* Computes one part of a work step: a sum of several sources, or a copy to each target. */
static inline void step_compute_piece(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part)
{
    const struct span *spans = step_to(executor->launch.program->schedule, step);
    if (step->from_count > 1 || (step->finish && executor->launch.divisor > 1))
        step_reduce_pieces(executor, step, to, from, part);
    else
        for (int k = 0; k < step->to_count; k++) span_copy(executor, step, spans[k], to[k], from[0], part->bytes);
}
void bind_compute_piece(const struct executor *executor, const struct step *step, void *const *to,
    const void *const *from, const struct part *part)
{
    step_compute_piece(executor, step, to, from, part);
}
void bind_compute_recorded_step(const struct executor *executor, int step)
{
    const struct launch *launch = &executor->launch;
    const struct program *program = launch->program;
    const struct step *computed = &program->schedule->steps[step];
    for (int i = program->part_at[step]; i < program->part_at[step + 1]; i++) {
        const struct part *part = &program->parts[i];
        void *const *at = program->pointers[executor->run.track] + part->first, *const *to = at + computed->from_count;
        const void *const *from = (const void *const *)at;
        if (part->shortcut == PART_MERE_COPY && from[0] != to[0]) copy_bytes(to[0], from[0], part->bytes);
        else if (part->shortcut == PART_MERE_SUM && !launch->rows_are_early)
            launch->reduce(to, computed->to_count, from, computed->from_count, part->count,
                computed->finish ? launch->divisor : 1);
        else step_compute_piece(executor, computed, to, from, part);
    }
}
bool bind_compute_step(struct executor *executor, const struct step *step, int tile)
{
    const struct launch *launch = &executor->launch;
    const struct schedule *schedule = launch->program->schedule;
    const struct span *from = step_from(schedule, step), *to = step_to(schedule, step);
    for (int i = 0; i < to->count; i++) {
        size_t bytes = SIZE_MAX;
        for (int k = 0; k < step->from_count; k++) {
            struct piece p = bind_locate_chunk(executor, &from[k], i, tile);
            launch->program->piece.from[k] = p.at;
            bytes = size_smaller(bytes, p.length);
        }
        for (int k = 0; k < step->to_count; k++) {
            struct piece p = bind_locate_chunk(executor, &to[k], i, tile);
            launch->program->piece.to[k] = p.at;
            bytes = size_smaller(bytes, p.length);
        }
        struct part part = { .bytes = bytes, .count = bytes / launch->element_bytes };
        if (!launch->program->fetched)
            step_compute_piece(executor, step, launch->program->piece.to, launch->program->piece.from, &part);
        else if (!fetch_compute_step(executor, step, &part)) return false;
    }
    return true;
}
