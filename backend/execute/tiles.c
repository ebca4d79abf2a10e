/* Runs operations of many tiles. Several tiles are in flight; the state of each is one integer, its next step. A tile
   waits only for its own tile on other ranks and for the tile that had its slot before, so it can run in any order
   without deadlock. The builder has run one tile to be sure. */
#include "backend/execute/tiles.h"
#include "backend/execute/bind.h"
#include "backend/execute/counters.h"
#include "backend/execute/precedence.h"
#include "backend/execute/roll_call.h"

/* An operation with at least this many bytes per rank defers to more urgent ones, and makes less urgent ones defer. */
enum { LARGE_BYTES = 64 << 10 };

/* ---- one step ---- */
static struct transfer *tile_get_transfer(const struct executor *x, int tile, int step)
{
    return &x->launch.program
                ->transfers[executor_slot_of_tile(x, tile) * x->launch.program->schedule->step_count + step];
}
static bool wait_is_reached(struct executor *x, const struct wait *w, int tile)
{
    return counter_is_reached(x, site_index(&x->site, w->rank), counter_index_of_tile(x, tile),
        counter_position(x, tile, w->step));
}
/* True if the peer has reached the position in the last tile of every slot. */
static bool wait_is_reached_in_slots(struct executor *x, const struct wait *w)
{
    int tiles = x->run.cut->tiles, slots = x->launch.program->plan->slots;
    for (int tile = tiles > slots ? tiles - slots : 0; tile < tiles; tile++)
        if (!wait_is_reached(x, w, tile)) return false;
    return true;
}
static bool transfer_is_done(struct executor *x, const struct transfer *transfer)
{
    if (transfer->state == TRANSFER_FAILED) {
        x->run.message_status = transfer->status;
        x->run.failed_message = transfer;
    }
    return transfer->state == TRANSFER_DONE;
}
static bool wait_is_met(struct executor *x, const struct wait *w, int tile)
{
    int slots = x->launch.program->plan->slots;
    if (w->rank == x->site.rank) return transfer_is_done(x, tile_get_transfer(x, tile, w->step));
    if (w->lag == EVERY_TILE) return wait_is_reached_in_slots(x, w);
    if (w->lag == SAME_TILE) return wait_is_reached(x, w, tile);
    return tile < slots || wait_is_reached(x, w, tile - slots);
}
static bool step_is_ready(struct executor *x, int step, int tile, tutti_status *status)
{
    const struct schedule *s = x->launch.program->schedule;
    const struct step *t = &s->steps[step];
    if (step >= s->prelude && !x->run.arrived && !executor_poll_roll_call(x, status)) return false;
    for (int w = 0; w < t->wait_count; w++)
        if (!wait_is_met(x, &s->waits[t->wait + w], tile)) return false;
    return true;
}
static void step_post_message(struct executor *x, int step, int tile)
{
    struct program *program = x->launch.program;
    const struct schedule *s = program->schedule;
    const struct step *t = &s->steps[step];
    struct piece *pieces =
        &program->pieces[executor_slot_of_tile(x, tile) * program->piece_count + program->piece_at[step]];
    int n = 0;
    for (int span = 0; span < t->from_count + t->to_count; span++)
        for (int i = 0; i < s->spans[t->span + span].count; i++)
            pieces[n++] = bind_locate_chunk(x, &s->spans[t->span + span], i, tile);
    struct transfer *transfer = tile_get_transfer(x, tile, step);
    *transfer = (struct transfer){ .name = { executor_message_name(x), (uint64_t)tile << 32 | (uint32_t)t->number },
        .peer = t->peer,
        .is_send = t->kind == SEND,
        .pieces = pieces,
        .piece_count = n };
    router_post(x->site.router, transfer);
}
/* False: see bind_compute_step. */
static bool step_perform_and_publish(struct executor *x, int step, int tile)
{
    const struct step *t = &x->launch.program->schedule->steps[step];
    if (t->kind == WORK && !bind_compute_step(x, t, tile)) return false;
    x->moves++;
    if (step_is_message(t)) step_post_message(x, step, tile);
    if (step_publishes(t, tile, x->run.cut->tiles, x->launch.program->plan->slots))
        executor_publish_counter(x, counter_index_of_tile(x, tile), counter_position(x, tile, step));
    return true;
}

/* ---- many tiles ---- */
/* Steps that feed the network come first (0), then steps that a peer of this host waits for, then all others. */
static int step_urgency(const struct schedule *s, int step)
{
    if (s->first_message >= 0 && step >= s->first_message && step <= s->last_message + 1) return 0;
    return s->steps[step].by_tile ? 1 : 2;
}
/* Returns the number of steps without LEAVE, which belongs to the operation and not to a tile. */
static int schedule_count_tile_steps(const struct schedule *s)
{
    return s->step_count && s->steps[s->step_count - 1].kind == LEAVE ? s->step_count - 1 : s->step_count;
}
/* Small operations end before others could defer to them. */
static bool operation_is_large(const struct executor *x)
{
    return x->run.cut->tiles > 1 || x->launch.part_bytes >= LARGE_BYTES;
}
/* True if a more urgent operation moves, so that one tile at a time is enough here. The end of that operation rings no
   bell, so `soon` keeps the next sleep short. */
static bool operation_defers_tiles(struct executor *x)
{
    bool deferred = operation_is_large(x) && precedence_must_defer(router_priority(x->site.router));
    x->blocked.soon |= deferred;
    return deferred;
}
/* Runs the most urgent step that can run, and among equals the oldest tile's. NULL: all tiles are blocked. */
static const struct step *tiles_run_urgent_step(struct executor *x, tutti_status *status)
{
    const struct schedule *s = x->launch.program->schedule;
    int end = schedule_count_tile_steps(s), window = x->run.low + x->launch.program->plan->slots;
    for (int wanted = s->first_message >= 0 ? 0 : 1; wanted <= 2; wanted++)
        for (int tile = x->run.low; tile < x->run.cut->tiles && tile < window; tile++) {
            int *pc = &x->run.pc[executor_slot_of_tile(x, tile)];
            if (*pc == end || step_urgency(s, *pc) != wanted || !step_is_ready(x, *pc, tile, status)) continue;
            if (*pc == 0 && tile > x->run.low && operation_defers_tiles(x)) continue;
            if (!step_perform_and_publish(x, *pc, tile)) return NULL;
            return &s->steps[(*pc)++];
        }
    return NULL;
}
static bool tile_is_over(struct executor *x, int tile)
{
    const struct schedule *s = x->launch.program->schedule;
    if (x->run.pc[executor_slot_of_tile(x, tile)] < schedule_count_tile_steps(s)) return false;
    for (int step = s->first_message; step >= 0 && step <= s->last_message; step++)
        if (step_is_message(&s->steps[step]) && !transfer_is_done(x, tile_get_transfer(x, tile, step))) return false;
    return true;
}
/* Posts all possible messages before it polls the network, so that peers receive them while bytes arrive. It is not
   inlined, because it would slow down the path of one tile. */
__attribute__((noinline)) tutti_status executor_run_tiles(struct executor *x)
{
    const struct schedule *s = x->launch.program->schedule;
    int priority = operation_is_large(x) ? router_priority(x->site.router) : 0;
    tutti_status status = TUTTI_IN_PROGRESS;
    while (x->run.low < x->run.cut->tiles) {
        const struct step *done = tiles_run_urgent_step(x, &status);
        bool moved = done, counter_polls = !done || (!step_is_message(done) && x->run.cut->tiles > 1), came = false;
        if (counter_polls && s->first_message >= 0) came = router_poll(x->site.router);
        for (; x->run.low < x->run.cut->tiles && tile_is_over(x, x->run.low); x->run.low++, moved = true)
            x->run.pc[executor_slot_of_tile(x, x->run.low)] = 0;
        /* `came` does not count here, because the bytes may be another communicator's. */
        if (moved && priority) precedence_record_progress(priority, false);
        if (!(moved | came) || status != TUTTI_IN_PROGRESS) return status;
    }
    if (priority) precedence_record_progress(priority, true);
    if (!x->run.arrived && !executor_poll_roll_call(x, &status)) return status;
    return schedule_count_tile_steps(s) == s->step_count
            || step_is_ready(x, s->step_count - 1, x->run.cut->tiles - 1, &status)
        ? TUTTI_OK
        : status;
}
