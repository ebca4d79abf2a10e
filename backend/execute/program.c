/* Makes a program of a plan: finds the peers' tensors that its steps touch, and allocates its messages. A plan that
   touches only slots and this rank's tensors also gets memory for all addresses, which bind.c fills in. */
#include "backend/execute/program.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/execute/fetch.h"
#include <stdlib.h>

static void touch_record(struct program *p, struct span a)
{
    int known = 0;
    if (a.rank == p->schedule->rank || a.buffer == SCRATCH) return;
    while (known < p->touch_count && (p->touches[known].rank != a.rank || p->touches[known].buffer != a.buffer))
        known++;
    p->touches[known] = (struct touch){ a.rank, a.buffer };
    if (known == p->touch_count) p->touch_count++;
}
static void touches_record(struct program *p)
{
    const struct schedule *s = p->schedule;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        for (int i = 0; i < t->from_count + t->to_count; i++) touch_record(p, s->spans[t->span + i]);
    }
}
static int program_pieces(const struct schedule *s, int *piece_at)
{
    int total = 0;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        if (piece_at) piece_at[step] = total;
        for (int span = 0; step_is_message(t) && span < t->from_count + t->to_count; span++)
            total += s->spans[t->span + span].count;
    }
    return total;
}
static void *room_for(struct program *p, size_t count, size_t bytes)
{
    p->bytes += count * bytes;
    return memory_zeroed(count, bytes);
}
static bool make_parts(struct program *p)
{
    const struct schedule *s = p->schedule;
    size_t parts = 0, addresses = 0;
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++) {
        if (t->kind != WORK) continue;
        parts += (size_t)step_to(s, t)->count;
        addresses += (size_t)step_to(s, t)->count * (size_t)(t->from_count + t->to_count);
    }
    p->address_count = (int)addresses;
    p->parts = room_for(p, parts + 1, sizeof *p->parts);
    p->addresses = room_for(p, addresses + 1, sizeof *p->addresses);
    p->part_at = room_for(p, (size_t)s->step_count + 1, sizeof *p->part_at);
    p->pointers[0] = room_for(p, TRACKS * (addresses + 1), sizeof *p->pointers[0]);
    for (int track = 1; track < TRACKS && p->pointers[0]; track++)
        p->pointers[track] = p->pointers[track - 1] + addresses + 1;
    return p->parts && p->addresses && p->part_at && p->pointers[0];
}
static bool make_messages(struct program *p)
{
    size_t steps = (size_t)p->schedule->step_count, slots = (size_t)p->plan->slots;
    p->piece_at = room_for(p, steps, sizeof *p->piece_at);
    if (p->piece_at) p->piece_count = program_pieces(p->schedule, p->piece_at);
    p->transfers = room_for(p, slots * steps, sizeof *p->transfers);
    p->pieces = room_for(p, slots * (size_t)p->piece_count, sizeof *p->pieces);
    return p->piece_at && p->transfers && p->pieces;
}
static bool make_fetched(struct program *p, size_t widest)
{
    p->bytes += fetch_room(widest);
    return (p->fetched = memory_aligned(fetch_room(widest))) != NULL;
}
static bool make_needed(struct program *p)
{
    bool *needed = memory_zeroed((size_t)p->plan->size, sizeof *needed);
    p->needed.ranks = room_for(p, (size_t)p->plan->size, sizeof *p->needed.ranks);
    if (needed && p->needed.ranks) {
        schedule_needs(p->schedule, needed);
        for (int r = 0; r < p->plan->size; r++)
            if (needed[r]) p->needed.ranks[p->needed.count++] = r;
    }
    free(needed);
    return needed && p->needed.ranks;
}
static bool make_room(struct program *p)
{
    size_t widest = 1;
    for (int step = 0; step < p->schedule->step_count; step++) {
        const struct step *t = &p->schedule->steps[step];
        widest = size_larger(widest, (size_t)(t->from_count > t->to_count ? t->from_count : t->to_count));
    }
    p->piece.to = room_for(p, 2 * widest, sizeof *p->piece.to);
    p->piece.from = room_for(p, 2 * widest, sizeof *p->piece.from);
    p->touches = room_for(p, 2 * (size_t)p->plan->count, sizeof *p->touches);
    if (!p->piece.to || !p->piece.from || !p->touches) return false;
    if (p->plan->one_sided && !make_needed(p)) return false;
    p->block = (struct pointers){ p->piece.to + widest, p->piece.from + widest };
    if (p->plan->reads && !make_fetched(p, widest)) return false;
    if (p->plan->shared || p->plan->reads) touches_record(p);
    if (p->schedule->first_message >= 0) return make_messages(p);
    return p->touch_count || make_parts(p);
}
tutti_status program_create(const struct plan *plan, int rank, struct program **out)
{
    struct program *p = memory_zeroed(1, sizeof *p);
    if (!p) return status_fail(TUTTI_NO_MEMORY, "no memory for a program");
    p->plan = plan;
    p->schedule = plan_member(plan, rank);
    p->bytes = sizeof *p;
    p->tells = p->schedule->prelude > 0 && p->schedule->first_message < 0
        && step_publishes(&p->schedule->steps[p->schedule->prelude - 1], 0, 1, plan->slots);
    if (!make_room(p)) {
        program_destroy(p);
        return status_fail(TUTTI_NO_MEMORY, "no memory for the messages of a program");
    }
    *out = p;
    return TUTTI_OK;
}
tutti_status program_know_blocks(struct program *program)
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
