/* Runs operations of many tiles. Several tiles are in flight; the state of each is one integer, its next step. A tile
   waits only for its own tile on other ranks and for the tile that had its slot before, so it can run in any order
   without deadlock. When a plan is built, a simulation of one tile shows that it ends (schedule/deadlock.c). */
#include "backend/execute/tiles.h"
#include "backend/execute/bind.h"
#include "backend/execute/counters.h"
#include "backend/execute/precedence.h"
#include "backend/execute/roll_call.h"

/* An operation with at least this many bytes per rank defers to more urgent ones, and makes less urgent ones defer. */
enum { LARGE_BYTES = 64 << 10 };

/* ---- one step ---- */
/* Returns the transfer of a step that is a message, in the slot of a tile. */
static struct transfer *tile_get_transfer(const struct executor *executor, int tile, int step)
{
    return &executor->launch.program
                ->transfers[executor_slot_of_tile(executor, tile) * executor->launch.program->schedule->step_count
                    + step];
}
/* True if rank wait->rank, a peer of this host, has published that it has done step wait->step of a tile. */
static bool wait_is_reached_in_tile(struct executor *executor, const struct wait *wait, int tile)
{
    return counter_is_reached(executor, site_index(&executor->site, wait->rank), counter_index_of_tile(executor, tile),
        counter_position(executor, tile, wait->step));
}
/* True if the peer has done step wait->step of the last tile of every slot, and so of all tiles. */
static bool wait_is_reached_in_slots(struct executor *executor, const struct wait *wait)
{
    int tiles = executor->run.cut->tiles, slots = executor->launch.program->plan->slots;
    for (int tile = tiles > slots ? tiles - slots : 0; tile < tiles; tile++)
        if (!wait_is_reached_in_tile(executor, wait, tile)) return false;
    return true;
}
/* True if the message is complete. A failed message is not; its failure is recorded in the run. */
static bool transfer_is_complete(struct executor *executor, const struct transfer *transfer)
{
    if (transfer->state == TRANSFER_FAILED) {
        executor->run.message_status = transfer->status;
        executor->run.failed_message = transfer;
    }
    return transfer->state == TRANSFER_DONE;
}
/* True if one wait of a step is met for this tile. A wait for this rank itself waits for the message that it posted at
   step wait->step; any other waits until the peer has done that step, of the tile that wait->lag names. */
static bool wait_is_met(struct executor *executor, const struct wait *wait, int tile)
{
    int slots = executor->launch.program->plan->slots;
    if (wait->rank == executor->site.rank)
        return transfer_is_complete(executor, tile_get_transfer(executor, tile, wait->step));
    if (wait->lag == EVERY_TILE) return wait_is_reached_in_slots(executor, wait);
    if (wait->lag == SAME_TILE) return wait_is_reached_in_tile(executor, wait, tile);
    return tile < slots || wait_is_reached_in_tile(executor, wait, tile - slots);
}
/* True if the step may run in this tile: its waits are met and, past the prelude, the roll call is over. *status: as
   executor_poll_roll_call. */
static bool step_is_ready(struct executor *executor, int step, int tile, tutti_status *status)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    const struct step *checked = &schedule->steps[step];
    if (step >= schedule->prelude && !executor->run.arrived && !executor_poll_roll_call(executor, status)) return false;
    for (int w = 0; w < checked->wait_count; w++)
        if (!wait_is_met(executor, &schedule->waits[checked->wait + w], tile)) return false;
    return true;
}
/* Posts the send or receive of a step in a tile to the router. */
static void step_post_message(struct executor *executor, int step, int tile)
{
    struct program *program = executor->launch.program;
    const struct schedule *schedule = program->schedule;
    const struct step *message = &schedule->steps[step];
    struct piece *pieces =
        &program->pieces[executor_slot_of_tile(executor, tile) * program->piece_count + program->piece_at[step]];
    int count = 0;
    for (int span = 0; span < message->from_count + message->to_count; span++)
        for (int i = 0; i < schedule->spans[message->span + span].count; i++)
            pieces[count++] = bind_locate_chunk(executor, &schedule->spans[message->span + span], i, tile);
    struct transfer *transfer = tile_get_transfer(executor, tile, step);
    *transfer = (struct transfer){ .name = { executor_message_name(executor),
                                       (uint64_t)tile << 32 | (uint32_t)message->number },
        .peer = message->peer,
        .is_send = message->kind == SEND,
        .pieces = pieces,
        .piece_count = count };
    router_post(executor->site.router, transfer);
}
/* Does a step of a tile, and publishes its position if a peer awaits it. False: see bind_compute_step. */
static bool step_perform_and_publish(struct executor *executor, int step, int tile)
{
    const struct step *performed = &executor->launch.program->schedule->steps[step];
    if (performed->kind == WORK && !bind_compute_step(executor, performed, tile)) return false;
    executor->steps_done++;
    if (step_is_message(performed)) step_post_message(executor, step, tile);
    if (step_publishes(performed, tile, executor->run.cut->tiles, executor->launch.program->plan->slots))
        executor_publish_counter(executor, counter_index_of_tile(executor, tile),
            counter_position(executor, tile, step));
    return true;
}

/* ---- many tiles ---- */
/* Returns how urgent a step is, where 0 comes first. 0: the steps from the first message to the one after the last
   message; 1: a peer of this host waits for it; 2: all others. */
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
/* True if the operation is large enough to take part in precedence. Small ones end before others could defer to
   them. */
static bool operation_is_large(const struct executor *executor)
{
    return executor->run.cut->tiles > 1 || executor->launch.part_bytes >= LARGE_BYTES;
}
/* True if an operation of a higher priority moves, so that this one must have only one tile in flight. The end of that
   operation rings no bell, so `soon` keeps the next sleep short. */
static bool operation_defers_tiles(struct executor *executor)
{
    bool deferred = operation_is_large(executor) && precedence_must_defer(router_priority(executor->site.router));
    executor->blocked.soon |= deferred;
    return deferred;
}
/* Runs the most urgent step that is ready, and among equals the oldest tile's. Returns the step; NULL: no step is
   ready, or a tensor of a peer could not be read. */
static const struct step *tiles_run_urgent_step(struct executor *executor, tutti_status *status)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    int end = schedule_count_tile_steps(schedule),
        window = executor->run.oldest_tile + executor->launch.program->plan->slots;
    for (int urgency = schedule->first_message >= 0 ? 0 : 1; urgency <= 2; urgency++)
        for (int tile = executor->run.oldest_tile; tile < executor->run.cut->tiles && tile < window; tile++) {
            int *next = &executor->run.next_step[executor_slot_of_tile(executor, tile)];
            if (*next == end || step_urgency(schedule, *next) != urgency
                || !step_is_ready(executor, *next, tile, status))
                continue;
            if (*next == 0 && tile > executor->run.oldest_tile && operation_defers_tiles(executor)) continue;
            if (!step_perform_and_publish(executor, *next, tile)) return NULL;
            return &schedule->steps[(*next)++];
        }
    return NULL;
}
/* True if all steps of the tile have run and its messages are complete. */
static bool tile_is_over(struct executor *executor, int tile)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    if (executor->run.next_step[executor_slot_of_tile(executor, tile)] < schedule_count_tile_steps(schedule))
        return false;
    for (int step = schedule->first_message; step >= 0 && step <= schedule->last_message; step++)
        if (step_is_message(&schedule->steps[step])
            && !transfer_is_complete(executor, tile_get_transfer(executor, tile, step)))
            return false;
    return true;
}
/* Runs steps and polls the network until nothing moves. Posts all possible messages before it polls the network, so
   that peers receive them while bytes arrive. It is not inlined, because it would slow down the path of one tile. */
__attribute__((noinline)) tutti_status executor_run_tiles(struct executor *executor)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    int priority = operation_is_large(executor) ? router_priority(executor->site.router) : 0;
    tutti_status status = TUTTI_IN_PROGRESS;
    while (executor->run.oldest_tile < executor->run.cut->tiles) {
        const struct step *done = tiles_run_urgent_step(executor, &status);
        bool moved = done, polls_network = !done || (!step_is_message(done) && executor->run.cut->tiles > 1),
             has_received = false;
        if (polls_network && schedule->first_message >= 0) has_received = router_poll(executor->site.router);
        for (;
            executor->run.oldest_tile < executor->run.cut->tiles && tile_is_over(executor, executor->run.oldest_tile);
            executor->run.oldest_tile++, moved = true)
            executor->run.next_step[executor_slot_of_tile(executor, executor->run.oldest_tile)] = 0;
        /* has_received does not count here, because the bytes may be another communicator's. */
        if (moved && priority) precedence_record_progress(priority, false);
        if (!(moved | has_received) || status != TUTTI_IN_PROGRESS) return status;
    }
    if (priority) precedence_record_progress(priority, true);
    if (!executor->run.arrived && !executor_poll_roll_call(executor, &status)) return status;
    return schedule_count_tile_steps(schedule) == schedule->step_count
            || step_is_ready(executor, schedule->step_count - 1, executor->run.cut->tiles - 1, &status)
        ? TUTTI_OK
        : status;
}
