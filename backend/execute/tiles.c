/* Many tiles. Several are in flight, each is one integer, its next step. A tile waits only for its own tile on other
   ranks and for the tile that had its slot before, so no order of running them can deadlock (the builder ran it once to
   be sure). */
#include "backend/execute/tiles.h"
#include "backend/execute/bind.h"
#include "backend/execute/counters.h"
#include "backend/execute/precedence.h"
#include "backend/execute/roll_call.h"

enum { LARGE_BYTES = 64 << 10 }; /* of one rank's part: it makes others rest, or rests itself */

/* ---- one step ---- */
static struct transfer *transfer_at(const struct executor *x, int tile, int step)
{
    return &x->launch.program->transfers[slot_of(x, tile) * x->launch.program->schedule->step_count + step];
}
static bool is_reached(struct executor *x, const struct wait *w, int tile)
{
    return counter_reached(x, site_index(&x->site, w->rank), counter_index(x, tile),
        counter_position(x, tile, w->step));
}
static bool is_reached_by_all(struct executor *x, const struct wait *w)         /* tiles that nobody follows */
{
    int tiles = x->run.cut->tiles, slots = x->launch.program->plan->slots;
    for (int tile = tiles > slots ? tiles - slots : 0; tile < tiles; tile++)
        if (!is_reached(x, w, tile)) return false;
    return true;
}
static bool is_done(struct executor *x, const struct transfer *transfer)
{
    if (transfer->state == TRANSFER_FAILED) {
        x->run.message_status = transfer->status;
        x->run.failed_message = transfer;
    }
    return transfer->state == TRANSFER_DONE;
}
static bool is_met(struct executor *x, const struct wait *w, int tile)
{
    int slots = x->launch.program->plan->slots;
    if (w->rank == x->site.rank) return is_done(x, transfer_at(x, tile, w->step));
    if (w->lag == EVERY_TILE) return is_reached_by_all(x, w);
    if (w->lag == SAME_TILE) return is_reached(x, w, tile);
    return tile < slots || is_reached(x, w, tile - slots);
}
static bool is_ready(struct executor *x, int step, int tile, tutti_status *status)
{
    const struct schedule *s = x->launch.program->schedule;
    const struct step *t = &s->steps[step];
    if (step >= s->prelude && !x->run.arrived && !roll_call(x, status)) return false;
    for (int w = 0; w < t->wait_count; w++)
        if (!is_met(x, &s->waits[t->wait + w], tile)) return false;
    return true;
}
static void step_post(struct executor *x, int step, int tile)
{
    struct program *program = x->launch.program;
    const struct schedule *s = program->schedule;
    const struct step *t = &s->steps[step];
    struct piece *pieces = &program->pieces[slot_of(x, tile) * program->piece_count + program->piece_at[step]];
    int n = 0;
    for (int span = 0; span < t->from_count + t->to_count; span++)
        for (int i = 0; i < s->spans[t->span + span].count; i++)
            pieces[n++] = bind_locate(x, &s->spans[t->span + span], i, tile);
    struct transfer *transfer = transfer_at(x, tile, step);
    *transfer = (struct transfer){ .name = { executor_name(x), (uint64_t)tile << 32 | (uint32_t)t->number },
        .peer = t->peer,
        .is_send = t->kind == SEND,
        .pieces = pieces,
        .piece_count = n };
    router_post(x->site.router, transfer);
}
static bool step_perform(struct executor *x, int step, int tile)            /* false: see bind_compute */
{
    const struct step *t = &x->launch.program->schedule->steps[step];
    if (t->kind == WORK && !bind_compute(x, t, tile)) return false;
    x->moves++;
    if (step_is_message(t)) step_post(x, step, tile);
    if (step_publishes(t, tile, x->run.cut->tiles, x->launch.program->plan->slots))
        own_counter_publish(x, counter_index(x, tile), counter_position(x, tile, step));
    return true;
}

/* ---- many tiles ---- */
/* First what feeds the network, then what a peer of this host waits for, then the rest. */
static int step_urgency(const struct schedule *s, int step)
{
    if (s->first_message >= 0 && step >= s->first_message && step <= s->last_message + 1) return 0;
    return s->steps[step].by_tile ? 1 : 2;
}
static int program_end(const struct schedule *s)        /* LEAVE belongs to the operation, not to a tile */
{
    return s->step_count && s->steps[s->step_count - 1].kind == LEAVE ? s->step_count - 1 : s->step_count;
}
/* What is small is over before others would notice. */
static bool is_large(const struct executor *x) { return x->run.cut->tiles > 1 || x->launch.part_bytes >= LARGE_BYTES; }
/* Something more urgent moves: one tile at a time is enough. Nobody rings when it has ended. */
static bool tiles_are_deferred(struct executor *x)
{
    bool deferred = is_large(x) && precedence_is_deferred(router_priority(x->site.router));
    x->blocked.soon |= deferred;
    return deferred;
}
/* Runs the most urgent step that can run; among equals the oldest tile's. */
static const struct step *tiles_advance(struct executor *x, tutti_status *status)            /* NULL: none could */
{
    const struct schedule *s = x->launch.program->schedule;
    int end = program_end(s), window = x->run.low + x->launch.program->plan->slots;
    for (int wanted = s->first_message >= 0 ? 0 : 1; wanted <= 2; wanted++)
        for (int tile = x->run.low; tile < x->run.cut->tiles && tile < window; tile++) {
            int *pc = &x->run.pc[slot_of(x, tile)];
            if (*pc == end || step_urgency(s, *pc) != wanted || !is_ready(x, *pc, tile, status)) continue;
            if (*pc == 0 && tile > x->run.low && tiles_are_deferred(x)) continue;
            if (!step_perform(x, *pc, tile)) return NULL;
            return &s->steps[(*pc)++];
        }
    return NULL;
}
static bool is_over(struct executor *x, int tile)
{
    const struct schedule *s = x->launch.program->schedule;
    if (x->run.pc[slot_of(x, tile)] < program_end(s)) return false;
    for (int step = s->first_message; step >= 0 && step <= s->last_message; step++)
        if (step_is_message(&s->steps[step]) && !is_done(x, transfer_at(x, tile, step))) return false;
    return true;
}
/* What can be posted is, before the network is looked at, so that the other end hears of it while bytes come. Not
   inlined: between the steps of one tile it would only be in the way. */
__attribute__((noinline)) tutti_status tiles_run(struct executor *x)
{
    const struct schedule *s = x->launch.program->schedule;
    int priority = is_large(x) ? router_priority(x->site.router) : 0;
    tutti_status status = TUTTI_IN_PROGRESS;
    while (x->run.low < x->run.cut->tiles) {
        const struct step *done = tiles_advance(x, &status);
        bool moved = done, counter_polls = !done || (!step_is_message(done) && x->run.cut->tiles > 1), came = false;
        if (counter_polls && s->first_message >= 0) came = router_poll(x->site.router);
        for (; x->run.low < x->run.cut->tiles && is_over(x, x->run.low); x->run.low++, moved = true)
            x->run.pc[slot_of(x, x->run.low)] = 0;
        if (moved && priority) precedence_record(priority, false);       /* what has come may be for others */
        if (!(moved | came) || status != TUTTI_IN_PROGRESS) return status;
    }
    if (priority) precedence_record(priority, true);
    if (!x->run.arrived && !roll_call(x, &status)) return status;
    return program_end(s) == s->step_count || is_ready(x, s->step_count - 1, x->run.cut->tiles - 1, &status) ? TUTTI_OK
                                                                                                             : status;
}
