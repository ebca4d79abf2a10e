/* Makes a program of a plan: finds the peers' tensors that its steps touch, and allocates its messages. A plan that
   touches only slots and this rank's tensors also gets memory for all addresses, which bind.c fills in. */
#include "backend/execute/program.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/execute/fetch.h"
#include <stdlib.h>

static void program_record_touch(struct program *p, struct span a)
{
    int known = 0;
    if (a.rank == p->schedule->rank || a.buffer == SCRATCH) return;
    while (known < p->touch_count && (p->touches[known].rank != a.rank || p->touches[known].buffer != a.buffer))
        known++;
    p->touches[known] = (struct touch){ a.rank, a.buffer };
    if (known == p->touch_count) p->touch_count++;
}
static void program_record_touches(struct program *p)
{
    const struct schedule *s = p->schedule;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        for (int i = 0; i < t->from_count + t->to_count; i++) program_record_touch(p, s->spans[t->span + i]);
    }
}
static int schedule_count_pieces(const struct schedule *s, int *piece_at)
{
    int total = 0;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        if (piece_at) piece_at[step] = total;
        if (step_is_message(t)) total += step_count_chunks(s, t);
    }
    return total;
}
static void *program_allocate_array(struct program *p, size_t count, size_t bytes)
{
    p->bytes += count * bytes;
    return memory_alloc_zeroed(count, bytes);
}
static bool program_allocate_parts(struct program *p)
{
    const struct schedule *s = p->schedule;
    size_t parts = 0, addresses = 0;
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++) {
        if (t->kind != WORK) continue;
        parts += (size_t)step_to(s, t)->count;
        addresses += (size_t)step_to(s, t)->count * (size_t)(t->from_count + t->to_count);
    }
    p->address_count = (int)addresses;
    p->parts = program_allocate_array(p, parts + 1, sizeof *p->parts);
    p->addresses = program_allocate_array(p, addresses + 1, sizeof *p->addresses);
    p->part_at = program_allocate_array(p, (size_t)s->step_count + 1, sizeof *p->part_at);
    p->pointers[0] = program_allocate_array(p, TRACKS * (addresses + 1), sizeof *p->pointers[0]);
    for (int track = 1; track < TRACKS && p->pointers[0]; track++)
        p->pointers[track] = p->pointers[track - 1] + addresses + 1;
    return p->parts && p->addresses && p->part_at && p->pointers[0];
}
static bool program_allocate_messages(struct program *p)
{
    size_t steps = (size_t)p->schedule->step_count, slots = (size_t)p->plan->slots;
    p->piece_at = program_allocate_array(p, steps, sizeof *p->piece_at);
    if (p->piece_at) p->piece_count = schedule_count_pieces(p->schedule, p->piece_at);
    p->transfers = program_allocate_array(p, slots * steps, sizeof *p->transfers);
    p->pieces = program_allocate_array(p, slots * (size_t)p->piece_count, sizeof *p->pieces);
    return p->piece_at && p->transfers && p->pieces;
}
static bool program_allocate_fetch_buffer(struct program *p, size_t widest)
{
    p->bytes += fetch_buffer_bytes(widest);
    return (p->fetched = memory_alloc_aligned(fetch_buffer_bytes(widest))) != NULL;
}
static bool program_list_needed_peers(struct program *p)
{
    bool *needed = memory_alloc_zeroed((size_t)p->plan->size, sizeof *needed);
    p->needed.ranks = program_allocate_array(p, (size_t)p->plan->size, sizeof *p->needed.ranks);
    if (needed && p->needed.ranks) {
        schedule_find_needed_peers(p->schedule, needed);
        for (int r = 0; r < p->plan->size; r++)
            if (needed[r]) p->needed.ranks[p->needed.count++] = r;
    }
    free(needed);
    return needed && p->needed.ranks;
}
static bool program_allocate_all(struct program *p)
{
    size_t widest = 1;
    for (int step = 0; step < p->schedule->step_count; step++) {
        const struct step *t = &p->schedule->steps[step];
        widest = size_larger(widest, (size_t)(t->from_count > t->to_count ? t->from_count : t->to_count));
    }
    p->piece.to = program_allocate_array(p, 2 * widest, sizeof *p->piece.to);
    p->piece.from = program_allocate_array(p, 2 * widest, sizeof *p->piece.from);
    p->touches = program_allocate_array(p, 2 * (size_t)p->plan->count, sizeof *p->touches);
    if (!p->piece.to || !p->piece.from || !p->touches) return false;
    if (p->plan->one_sided && !program_list_needed_peers(p)) return false;
    p->block = (struct pointers){ p->piece.to + widest, p->piece.from + widest };
    if (p->plan->reads && !program_allocate_fetch_buffer(p, widest)) return false;
    if (p->plan->shared || p->plan->reads) program_record_touches(p);
    if (p->schedule->first_message >= 0) return program_allocate_messages(p);
    return p->touch_count || program_allocate_parts(p);
}
tutti_status program_create(const struct plan *plan, int rank, struct program **out)
{
    struct program *p = memory_alloc_zeroed(1, sizeof *p);
    if (!p) return status_fail(TUTTI_NO_MEMORY, "no memory for a program");
    p->plan = plan;
    p->schedule = plan_schedule_of_rank(plan, rank);
    p->bytes = sizeof *p;
    p->prelude_announces = p->schedule->prelude > 0 && p->schedule->first_message < 0
        && step_publishes(&p->schedule->steps[p->schedule->prelude - 1], 0, 1, plan->slots);
    if (!program_allocate_all(p)) {
        program_destroy(p);
        return status_fail(TUTTI_NO_MEMORY, "no memory for the messages of a program");
    }
    *out = p;
    return TUTTI_OK;
}
tutti_status program_find_blocks(struct program *program)
{
    if (!program->plan->any_message || program->blocks.of) return TUTTI_OK;
    return blocks_find(program->plan, program->schedule->rank, &program->blocks);
}
void program_destroy(struct program *program)
{
    if (!program) return;
    blocks_finish(&program->blocks);
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
