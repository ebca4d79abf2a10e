/* From a plan to something that can run: which tensors of peers its steps touch, room for its messages and, for plans
   of one tile that touch nobody's tensors, for all addresses (bind.c fills them in). */
#include "backend/execute/program.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

static void note_touch(struct program *p, struct span a)
{
    int known = 0;
    if (a.rank == p->schedule->rank || a.buffer == SCRATCH) return;
    while (known < p->touch_count && (p->touches[known].rank != a.rank || p->touches[known].buffer != a.buffer))
        known++;
    p->touches[known] = (struct touch){ a.rank, a.buffer };
    if (known == p->touch_count) p->touch_count++;
}
static void note_touches(struct program *p)
{
    const struct schedule *s = p->schedule;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        for (int i = 0; i < t->from_count + t->to_count; i++) note_touch(p, s->spans[t->span + i]);
    }
}
static int program_pieces(const struct schedule *s, int *piece_at)
{
    int total = 0;
    for (int step = 0; step < s->step_count; step++) {
        const struct step *t = &s->steps[step];
        if (piece_at) piece_at[step] = total;
        for (int span = 0; (t->kind == SEND || t->kind == RECV) && span < t->from_count + t->to_count; span++)
            total += s->spans[t->span + span].count;
    }
    return total;
}
static bool writes_slots(const struct schedule *s)
{
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++)
        for (int d = 0; d < t->to_count; d++)
            if (step_to(s, t)[d].buffer == SCRATCH) return true;
    return false;
}
static int count_slot_writers(const struct plan *plan)
{
    int writers = 0;
    for (int m = 0; m < plan->count; m++) writers += writes_slots(&plan->ranks[m]);
    return writers;
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
    p->parts = memory_zeroed(parts + 1, sizeof *p->parts);
    p->addresses = memory_zeroed(addresses + 1, sizeof *p->addresses);
    p->part_at = memory_zeroed((size_t)s->step_count + 1, sizeof *p->part_at);
    for (int parity = 0; parity < 2; parity++)
        p->pointers[parity] = memory_zeroed(addresses + 1, sizeof *p->pointers[parity]);
    return p->parts && p->addresses && p->part_at && p->pointers[0] && p->pointers[1];
}
tutti_status program_create(const struct plan *plan, int rank, struct program **out)
{
    struct program *p = memory_zeroed(1, sizeof *p);
    if (!p) return status_fail(TUTTI_NO_MEMORY, "no memory for a program");
    int widest = 1;
    p->plan = plan;
    p->schedule = plan_member(plan, rank);
    for (int step = 0; step < p->schedule->step_count; step++) {
        const struct step *t = &p->schedule->steps[step];
        if (t->from_count > widest) widest = t->from_count;
        if (t->to_count > widest) widest = t->to_count;
    }
    p->tells = p->schedule->prelude > 0 && p->schedule->first_message < 0
        && step_publishes(&p->schedule->steps[p->schedule->prelude - 1], 0, 1, plan->slots);
    p->alone = count_slot_writers(plan) == 1;
    for (int m = 0; m < plan->count; m++) p->any_message |= plan->ranks[m].first_message >= 0;
    p->to = memory_zeroed((size_t)widest, sizeof *p->to);
    p->from = memory_zeroed((size_t)widest, sizeof *p->from);
    p->touches = memory_zeroed(2 * (size_t)plan->count, sizeof *p->touches);
    bool fine = p->to && p->from && p->touches;
    if (fine && plan->shared) note_touches(p);
    if (fine && !p->touch_count && p->schedule->first_message < 0) fine = make_parts(p);
    if (fine && p->schedule->first_message >= 0) {
        size_t steps = (size_t)p->schedule->step_count, slots = (size_t)plan->slots;
        p->piece_at = memory_zeroed(steps, sizeof *p->piece_at);
        if (p->piece_at) p->piece_count = program_pieces(p->schedule, p->piece_at);
        p->transfers = memory_zeroed(slots * steps, sizeof *p->transfers);
        p->pieces = memory_zeroed(slots * (size_t)p->piece_count, sizeof *p->pieces);
        fine = p->piece_at && p->transfers && p->pieces;
    }
    if (!fine) { program_destroy(p); return status_fail(TUTTI_NO_MEMORY, "no memory for the messages of a program"); }
    *out = p;
    return TUTTI_OK;
}
tutti_status program_know_blocks(struct program *program)
{
    if (!program->any_message || program->blocks.of) return TUTTI_OK;
    return blocks_find(program->plan, program->schedule->rank, &program->blocks);
}
void program_destroy(struct program *program)
{
    if (!program) return;
    blocks_finish(&program->blocks);
    free(program->transfers);
    free(program->pieces);
    free(program->piece_at);
    free(program->to);
    free(program->from);
    free(program->touches);
    free(program->parts);
    free(program->addresses);
    free(program->part_at);
    free(program->pointers[0]);
    free(program->pointers[1]);
    free(program);
}
