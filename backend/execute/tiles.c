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
static struct transfer *tile_get_transfer(const struct executor *executor, int tile, int step)
{
    return &executor->launch.program
                ->transfers[executor_slot_of_tile(executor, tile) * executor->launch.program->schedule->step_count
                    + step];
}
static bool wait_is_reached(struct executor *executor, const struct wait *wait, int tile)
{
    return counter_is_reached(executor, site_index(&executor->site, wait->rank), counter_index_of_tile(executor, tile),
        counter_position(executor, tile, wait->step));
}
/* True if the peer has reached the position in the last tile of every slot. */
static bool wait_is_reached_in_slots(struct executor *executor, const struct wait *wait)
{
    int tiles = executor->run.cut->tiles, slots = executor->launch.program->plan->slots;
    for (int tile = tiles > slots ? tiles - slots : 0; tile < tiles; tile++)
        if (!wait_is_reached(executor, wait, tile)) return false;
    return true;
}
/* True if the message is complete. Records its failure in the run. */
static bool transfer_is_done(struct executor *executor, const struct transfer *transfer)
{
    if (transfer->state == TRANSFER_FAILED) {
        executor->run.message_status = transfer->status;
        executor->run.failed_message = transfer;
    }
    return transfer->state == TRANSFER_DONE;
}
/* True if one wait of a step is met for this tile: a message, or a peer's position. */
static bool wait_is_met(struct executor *executor, const struct wait *wait, int tile)
{
    int slots = executor->launch.program->plan->slots;
    if (wait->rank == executor->site.rank)
        return transfer_is_done(executor, tile_get_transfer(executor, tile, wait->step));
    if (wait->lag == EVERY_TILE) return wait_is_reached_in_slots(executor, wait);
    if (wait->lag == SAME_TILE) return wait_is_reached(executor, wait, tile);
    return tile < slots || wait_is_reached(executor, wait, tile - slots);
}
/* True if the step may run in this tile: past the prelude the roll call must be over. `status`: its error. */
static bool step_is_ready(struct executor *executor, int step, int tile, tutti_status *status)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    const struct step *t = &schedule->steps[step];
    if (step >= schedule->prelude && !executor->run.arrived && !executor_poll_roll_call(executor, status)) return false;
    for (int w = 0; w < t->wait_count; w++)
        if (!wait_is_met(executor, &schedule->waits[t->wait + w], tile)) return false;
    return true;
}
/* Posts the send or receive of a step in a tile to the router. */
static void step_post_message(struct executor *executor, int step, int tile)
{
    struct program *program = executor->launch.program;
    const struct schedule *schedule = program->schedule;
    const struct step *t = &schedule->steps[step];
    struct piece *pieces =
        &program->pieces[executor_slot_of_tile(executor, tile) * program->piece_count + program->piece_at[step]];
    int n = 0;
    for (int span = 0; span < t->from_count + t->to_count; span++)
        for (int i = 0; i < schedule->spans[t->span + span].count; i++)
            pieces[n++] = bind_locate_chunk(executor, &schedule->spans[t->span + span], i, tile);
    struct transfer *transfer = tile_get_transfer(executor, tile, step);
    *transfer =
        (struct transfer){ .name = { executor_message_name(executor), (uint64_t)tile << 32 | (uint32_t)t->number },
            .peer = t->peer,
            .is_send = t->kind == SEND,
            .pieces = pieces,
            .piece_count = n };
    router_post(executor->site.router, transfer);
}
/* False: see bind_compute_step. */
static bool step_perform_and_publish(struct executor *executor, int step, int tile)
{
    const struct step *t = &executor->launch.program->schedule->steps[step];
    if (t->kind == WORK && !bind_compute_step(executor, t, tile)) return false;
    executor->moves++;
    if (step_is_message(t)) step_post_message(executor, step, tile);
    if (step_publishes(t, tile, executor->run.cut->tiles, executor->launch.program->plan->slots))
        executor_publish_counter(executor, counter_index_of_tile(executor, tile),
            counter_position(executor, tile, step));
    return true;
}

/* ---- many tiles ---- */
/* Steps that feed the network come first (0), then steps that a peer of this host waits for, then all others. */
static int step_urgency(const struct schedule *schedule, int step)
{
    if (schedule->first_message >= 0 && step >= schedule->first_message && step <= schedule->last_message + 1) return 0;
    return schedule->steps[step].by_tile ? 1 : 2;
}
/* Returns the number of steps without LEAVE, which belongs to the operation and not to a tile. */
static int schedule_count_tile_steps(const struct schedule *schedule)
{
    return schedule->step_count && schedule->steps[schedule->step_count - 1].kind == LEAVE ? schedule->step_count - 1
                                                                                           : schedule->step_count;
}
/* Small operations end before others could defer to them. */
static bool operation_is_large(const struct executor *executor)
{
    return executor->run.cut->tiles > 1 || executor->launch.part_bytes >= LARGE_BYTES;
}
/* True if a more urgent operation moves, so that one tile at a time is enough here. The end of that operation rings no
   bell, so `soon` keeps the next sleep short. */
static bool operation_defers_tiles(struct executor *executor)
{
    bool deferred = operation_is_large(executor) && precedence_must_defer(router_priority(executor->site.router));
    executor->blocked.soon |= deferred;
    return deferred;
}
/* Runs the most urgent step that can run, and among equals the oldest tile's. NULL: all tiles are blocked. */
static const struct step *tiles_run_urgent_step(struct executor *executor, tutti_status *status)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    int end = schedule_count_tile_steps(schedule), window = executor->run.low + executor->launch.program->plan->slots;
    for (int wanted = schedule->first_message >= 0 ? 0 : 1; wanted <= 2; wanted++)
        for (int tile = executor->run.low; tile < executor->run.cut->tiles && tile < window; tile++) {
            int *pc = &executor->run.pc[executor_slot_of_tile(executor, tile)];
            if (*pc == end || step_urgency(schedule, *pc) != wanted || !step_is_ready(executor, *pc, tile, status))
                continue;
            if (*pc == 0 && tile > executor->run.low && operation_defers_tiles(executor)) continue;
            if (!step_perform_and_publish(executor, *pc, tile)) return NULL;
            return &schedule->steps[(*pc)++];
        }
    return NULL;
}
/* True if all steps of the tile have run and its messages are complete. */
static bool tile_is_over(struct executor *executor, int tile)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    if (executor->run.pc[executor_slot_of_tile(executor, tile)] < schedule_count_tile_steps(schedule)) return false;
    for (int step = schedule->first_message; step >= 0 && step <= schedule->last_message; step++)
        if (step_is_message(&schedule->steps[step])
            && !transfer_is_done(executor, tile_get_transfer(executor, tile, step)))
            return false;
    return true;
}
/* Posts all possible messages before it polls the network, so that peers receive them while bytes arrive. It is not
   inlined, because it would slow down the path of one tile. */
__attribute__((noinline)) tutti_status executor_run_tiles(struct executor *executor)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    int priority = operation_is_large(executor) ? router_priority(executor->site.router) : 0;
    tutti_status status = TUTTI_IN_PROGRESS;
    while (executor->run.low < executor->run.cut->tiles) {
        const struct step *done = tiles_run_urgent_step(executor, &status);
        bool moved = done, counter_polls = !done || (!step_is_message(done) && executor->run.cut->tiles > 1),
             came = false;
        if (counter_polls && schedule->first_message >= 0) came = router_poll(executor->site.router);
        for (; executor->run.low < executor->run.cut->tiles && tile_is_over(executor, executor->run.low);
            executor->run.low++, moved = true)
            executor->run.pc[executor_slot_of_tile(executor, executor->run.low)] = 0;
        /* `came` does not count here, because the bytes may be another communicator's. */
        if (moved && priority) precedence_record_progress(priority, false);
        if (!(moved | came) || status != TUTTI_IN_PROGRESS) return status;
    }
    if (priority) precedence_record_progress(priority, true);
    if (!executor->run.arrived && !executor_poll_roll_call(executor, &status)) return status;
    return schedule_count_tile_steps(schedule) == schedule->step_count
            || step_is_ready(executor, schedule->step_count - 1, executor->run.cut->tiles - 1, &status)
        ? TUTTI_OK
        : status;
}
