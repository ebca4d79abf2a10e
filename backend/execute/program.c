/* Makes a program of a plan: finds the peers' tensors that its steps touch, and allocates its messages. A plan that
   touches only slots and this rank's tensors also gets memory for all addresses, which bind.c fills in. */
#include "backend/execute/program.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/execute/fetch.h"
#include <stdlib.h>

/* Adds a peer's tensor to the list of those that the program reads or writes, unless it is there. */
static void program_record_touch(struct program *program, struct span span)
{
    int known = 0;
    if (span.rank == program->schedule->rank || span.buffer == SCRATCH) return;
    while (known < program->touch_count
        && (program->touches[known].rank != span.rank || program->touches[known].buffer != span.buffer))
        known++;
    program->touches[known] = (struct touch){ span.rank, span.buffer };
    if (known == program->touch_count) program->touch_count++;
}
/* Lists all peers' tensors that the steps read or write. */
static void program_record_touches(struct program *program)
{
    const struct schedule *schedule = program->schedule;
    for (int step = 0; step < schedule->step_count; step++) {
        const struct step *visited = &schedule->steps[step];
        for (int i = 0; i < visited->from_count + visited->to_count; i++)
            program_record_touch(program, schedule->spans[visited->span + i]);
    }
}
/* Counts the pieces of all messages. `piece_at`, if given, gets each step's first piece. */
static int schedule_count_pieces(const struct schedule *schedule, int *piece_at)
{
    int total = 0;
    for (int step = 0; step < schedule->step_count; step++) {
        const struct step *visited = &schedule->steps[step];
        if (piece_at) piece_at[step] = total;
        if (step_is_message(visited)) total += step_count_chunks(schedule, visited);
    }
    return total;
}
/* Allocates a zeroed array and adds it to program->bytes. */
static void *program_allocate_array(struct program *program, size_t count, size_t bytes)
{
    program->bytes += count * bytes;
    return memory_alloc_zeroed(count, bytes);
}
/* Allocates the parts, addresses and pointers of all work steps, one set of pointers for each track. False: no
   memory. */
static bool program_allocate_parts(struct program *program)
{
    const struct schedule *schedule = program->schedule;
    size_t parts = 0, addresses = 0;
    for (const struct step *step = schedule->steps; step < schedule->steps + schedule->step_count; step++) {
        if (step->kind != WORK) continue;
        parts += (size_t)step_to(schedule, step)->count;
        addresses += (size_t)step_to(schedule, step)->count * (size_t)(step->from_count + step->to_count);
    }
    program->address_count = (int)addresses;
    program->parts = program_allocate_array(program, parts + 1, sizeof *program->parts);
    program->addresses = program_allocate_array(program, addresses + 1, sizeof *program->addresses);
    program->part_at = program_allocate_array(program, (size_t)schedule->step_count + 1, sizeof *program->part_at);
    program->pointers[0] = program_allocate_array(program, TRACKS * (addresses + 1), sizeof *program->pointers[0]);
    for (int track = 1; track < TRACKS && program->pointers[0]; track++)
        program->pointers[track] = program->pointers[track - 1] + addresses + 1;
    return program->parts && program->addresses && program->part_at && program->pointers[0];
}
/* Allocates a transfer for each step in each slot, and the pieces of the messages. False: no memory. */
static bool program_allocate_messages(struct program *program)
{
    size_t steps = (size_t)program->schedule->step_count, slots = (size_t)program->plan->slots;
    program->piece_at = program_allocate_array(program, steps, sizeof *program->piece_at);
    if (program->piece_at) program->piece_count = schedule_count_pieces(program->schedule, program->piece_at);
    program->transfers = program_allocate_array(program, slots * steps, sizeof *program->transfers);
    program->pieces = program_allocate_array(program, slots * (size_t)program->piece_count, sizeof *program->pieces);
    return program->piece_at && program->transfers && program->pieces;
}
/* Allocates the buffer for bytes read from up to `widest` peers in a step. False: no memory. */
static bool program_allocate_fetch_buffer(struct program *program, size_t widest)
{
    program->bytes += fetch_buffer_bytes(widest);
    return (program->fetched = memory_alloc_aligned(fetch_buffer_bytes(widest))) != NULL;
}
/* Fills program->needed: the peers whose data this rank needs in a one-sided operation. False: no memory. */
static bool program_list_needed_peers(struct program *program)
{
    bool *needed = memory_alloc_zeroed((size_t)program->plan->size, sizeof *needed);
    program->needed.ranks = program_allocate_array(program, (size_t)program->plan->size, sizeof *program->needed.ranks);
    if (needed && program->needed.ranks) {
        schedule_find_needed_peers(program->schedule, needed);
        for (int r = 0; r < program->plan->size; r++)
            if (needed[r]) program->needed.ranks[program->needed.count++] = r;
    }
    free(needed);
    return needed && program->needed.ranks;
}
/* Allocates all arrays of a program. False: no memory. */
static bool program_allocate_all(struct program *program)
{
    size_t widest = 1;
    for (int step = 0; step < program->schedule->step_count; step++) {
        const struct step *visited = &program->schedule->steps[step];
        widest = size_larger(widest,
            (size_t)(visited->from_count > visited->to_count ? visited->from_count : visited->to_count));
    }
    program->piece.to = program_allocate_array(program, 2 * widest, sizeof *program->piece.to);
    program->piece.from = program_allocate_array(program, 2 * widest, sizeof *program->piece.from);
    program->touches = program_allocate_array(program, 2 * (size_t)program->plan->count, sizeof *program->touches);
    if (!program->piece.to || !program->piece.from || !program->touches) return false;
    if (program->plan->one_sided && !program_list_needed_peers(program)) return false;
    program->block = (struct pointers){ program->piece.to + widest, program->piece.from + widest };
    if (program->plan->can_read_private && !program_allocate_fetch_buffer(program, widest)) return false;
    if (program->plan->shared || program->plan->can_read_private) program_record_touches(program);
    if (program->schedule->first_message >= 0) return program_allocate_messages(program);
    return program->touch_count || program_allocate_parts(program);
}
tutti_status program_create(const struct plan *plan, int rank, struct program **out)
{
    struct program *program = memory_alloc_zeroed(1, sizeof *program);
    if (!program) return status_fail(TUTTI_NO_MEMORY, "no memory for a program");
    program->plan = plan;
    program->schedule = plan_schedule_of_rank(plan, rank);
    program->bytes = sizeof *program;
    program->prelude_announces_arrival = program->schedule->prelude > 0 && program->schedule->first_message < 0
        && step_publishes(&program->schedule->steps[program->schedule->prelude - 1], 0, 1, plan->slots);
    if (!program_allocate_all(program)) {
        program_destroy(program);
        return status_fail(TUTTI_NO_MEMORY, "no memory for the messages of a program");
    }
    *out = program;
    return TUTTI_OK;
}
/* Finds, for uneven counts, which rank's block of the message each chunk of this rank's schedule holds. Does nothing if
   that is known, or if the plan has no messages. */
tutti_status program_find_chunk_blocks(struct program *program)
{
    if (!program->plan->has_messages || program->chunk_blocks.block) return TUTTI_OK;
    return chunk_blocks_find(program->plan, program->schedule->rank, &program->chunk_blocks);
}
void program_destroy(struct program *program)
{
    if (!program) return;
    chunk_blocks_finish(&program->chunk_blocks);
    free(program->transfers);
    free(program->pieces);
    free(program->piece_at);
    free(program->piece.to);
    free(program->fetched);
    free(program->piece.from);
    free(program->touches);
    free(program->parts);
    free(program->addresses);
    free(program->part_at);
    free(program->pointers[0]);
    free(program->needed.ranks);
    free(program);
}
