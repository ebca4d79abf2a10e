/* An operation from its announcement to its end. This file runs one tile without messages, step by step; tiles.c runs
   all other operations. */
#include "backend/execute/execute.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/execute/bind.h"
#include "backend/execute/counters.h"
#include "backend/execute/counts.h"
#include "backend/execute/fetch.h"
#include "backend/execute/roll_call.h"
#include "backend/execute/slots.h"
#include "backend/execute/tiles.h"
#include "backend/execute/tracks.h"
#include <stdlib.h>
#include <string.h>

/* ---- one tile without messages: the steps run in order ---- */
/* True if the operation is one tile without messages, so that its steps run in order in this file. */
static bool executor_runs_straight(const struct executor *executor)
{
    return executor->run.cut->is_single_tile && executor->launch.program->schedule->first_message < 0;
}
/* True if the peers have passed all steps that this step waits for. */
static bool step_is_ready_straight(struct executor *executor, const struct step *step)
{
    const struct wait *wait = &executor->launch.program->schedule->waits[step->wait], *end = wait + step->wait_count;
    for (; wait < end; wait++)
        if (wait->lag != SLOT_REUSE
            && !counter_is_reached_within(executor, site_index(&executor->site, wait->rank), LINE_COUNTER,
                executor->base + 2 + (uint64_t)wait->step, executor_poll_limit(executor)))
            return false;
    return true;
}
/* Does a step and publishes its position if a peer awaits it. False: see bind_compute_step. */
static bool step_perform_straight(struct executor *executor, int step)
{
    const struct program *program = executor->launch.program;
    const struct step *performed = &program->schedule->steps[step];
    if (performed->kind == WORK && program->has_addresses) bind_compute_recorded_step(executor, step);
    else if (performed->kind == WORK && !bind_compute_step(executor, performed, 0)) return false;
    executor->steps_done++;
    if (performed->by_tile || performed->by_leave)
        executor_publish_counter(executor, LINE_COUNTER, executor->base + 2 + (uint64_t)step);
    return true;
}
/* Runs the steps of the prelude, as part of the announcement. All work that precedes the first poll of a peer then
   overlaps with the transfer of the line. */
static void executor_run_prelude(struct executor *executor)
{
    int end = executor->launch.program->schedule->prelude;
    for (int step = 0; step < end; step++) step_perform_straight(executor, step);
    executor->run.next_step[0] = end;
}
/* Runs an operation of one tile without messages up to an unmet wait (IN_PROGRESS) or its end. MISMATCH: the roll call
   has found a disagreement. */
static tutti_status executor_run_straight(struct executor *executor)
{
    const struct schedule *schedule = executor->launch.program->schedule;
    tutti_status status = TUTTI_IN_PROGRESS;
    if (!executor->run.arrived && !executor_poll_roll_call(executor, &status)) return status;
    for (int step = executor->run.next_step[0]; step < schedule->step_count; step++) {
        if (!step_is_ready_straight(executor, &schedule->steps[step])) return status;
        if (!step_perform_straight(executor, step)) return status;
        executor->run.next_step[0] = step + 1;
    }
    return TUTTI_OK;
}

/* ---- an operation ---- */
/* Publishes that this rank no longer reads or writes tensors of peers. */
static void executor_stop_touching_tensors(struct executor *executor)
{
    atomic_store(&executor->site.own_control->touching, 0);
}
/* Ends the operation: moves the base of the counters past all its positions, and frees its slots and its line. */
static void executor_end_operation(struct executor *executor)
{
    const struct plan *plan = executor->launch.program->plan;
    const struct program_cut *cut = executor->run.cut;
    uint64_t slots = (uint64_t)plan->slots,
             rounds = cut->is_single_tile ? 1 : ((uint64_t)cut->tiles + slots - 1) / slots;
    executor->base += executor->run.one_sided ? TRACK_POSITIONS : 2 + rounds * (uint64_t)plan->period;
    slots_end_operation(executor);
    tracks_end_operation(executor);
    executor->operation++;
    if (executor->launch.program->touch_count) executor_stop_touching_tensors(executor);
}
/* Makes the slots real memory and publishes the arrival. An operation of one tile without messages also runs its
   prelude, whose last position may announce the arrival. */
static tutti_status executor_announce_operation(struct executor *executor)
{
    TRY(slots_reserve(executor));
    executor->run.started = true;
    if (!executor_runs_straight(executor)) { executor_publish_arrival(executor); return TUTTI_OK; }
    executor->run.first_poll_done = !executor->run.cut->is_in_line;
    executor->site.lines[executor->run.track].fingerprint = executor->run.fingerprint;
    if (!executor->launch.program->prelude_announces_arrival) executor_publish_arrival(executor);
    executor_run_prelude(executor);
    return TUTTI_OK;
}
/* Publishes that this rank reads or writes tensors of peers. False: the group has failed, so this rank must not. This
   rank sets `touching`, then reads the failure state; a rank that fails the group sets the failure state, then reads
   `touching`. So at least one of the two ranks sees the other. */
static bool executor_try_touching_tensors(struct executor *executor)
{
    atomic_store(&executor->site.own_control->touching, 1);
    if (!(atomic_load(&executor->site.segment->failure->state) & FAILURE_CERTAIN)) return true;
    atomic_store(&executor->site.own_control->touching, 0);
    return false;
}
tutti_status executor_start_program(struct executor *executor)
{
    const struct uneven *uneven = executor->launch.uneven;
    if (uneven && uneven_is_equal_on_ranks(uneven)) TRY(program_find_chunk_blocks(executor->launch.program));
    bind_launch_operands(executor);
    if (uneven) bind_cut_message(executor, executor->run.extent);
    TRY(slots_reserve(executor));
    if (executor->launch.program->touch_count && !executor_try_touching_tensors(executor)) return TUTTI_IN_PROGRESS;
    executor->run.started = true;
    return TUTTI_OK;
}
void executor_prepare_declaration(struct executor *executor)
{
    tracks_enter_operation(executor);
    executor->run.declaration = executor_declaration(executor, executor->site.index, executor->operation);
}
/* ---- other hosts ---- */
/* Adds this call to run.history, the hash of all calls, which is in the names of messages to other hosts. */
static void executor_update_history(struct executor *executor)
{
    if (!executor->site.has_several_hosts) return;
    executor->run.history =
        (executor->run.history ^ executor->run.fingerprint ^ executor->run.declaration->counts) * 0x9e3779b97f4a7c15u;
    executor->run.history ^= executor->run.history >> 32;
}
void executor_list_awaited_ranks(const struct executor *executor, bool *out)
{
    const struct program *program = executor->run.started ? executor->launch.program : NULL;
    if (!program || !program->transfers) return;
    for (int i = 0; i < program->plan->slots * program->schedule->step_count; i++)
        if (program->transfers[i].state == TRANSFER_POSTED) out[program->transfers[i].peer] = true;
}

/* ---- the operation ---- */
/* Clears `blocked` and blocked_peer. */
static void executor_clear_waits(struct executor *executor)
{
    wait_set_clear(&executor->blocked);
    executor->blocked_peer = -1;
}
/* Sets a run back to its beginning: no rank has arrived, and no step is done. `ranks`: of this host. */
static void run_reset_progress(struct run *run, int ranks)
{
    run->oldest_tile = run->next_awaited = 0;
    run->arrived = ranks == 1;
    run->started = run->agreed = false;
    run->first_poll_done = true;
    memset(run->next_step, 0, sizeof run->next_step);
}
tutti_status executor_begin(struct executor *executor)
{
    run_reset_progress(&executor->run, executor->site.ranks);
    executor->run.message_status = TUTTI_OK;
    executor->run.failed_message = NULL;
    executor->run.failed_read.error = 0;
    if (executor->launch.uneven) TRY(counts_publish_own(executor));
    executor_make_fingerprint(executor);
    tracks_record_arrival(executor);
    executor_update_history(executor);
    executor->run.one_sided = false;
    executor->run.deferred = !executor->launch.program;
    if (executor->launch.program) {
        bind_launch_operands(executor);
        executor->run.one_sided = executor->run.cut->one_sided;
        if (executor->run.one_sided) executor->run.declaration->fingerprint = executor->run.fingerprint;
        return executor_announce_operation(executor);
    }
    executor_publish_arrival(executor);
    return TUTTI_OK;
}
tutti_status executor_finish_roll_call(struct executor *executor)
{
    tutti_status status = TUTTI_IN_PROGRESS;
    executor_clear_waits(executor);
    if (!executor->run.arrived && !executor_poll_roll_call(executor, &status)) {
        executor->blocked.core_is_wanted = executor_publish_core(executor);
        return status;
    }
    if (executor->launch.uneven && !executor->run.agreed) TRY(counts_compare_all(executor));
    executor->run.agreed = true;
    return TUTTI_OK;
}
tutti_status executor_run_steps(struct executor *executor)
{
    tutti_status status = TUTTI_IN_PROGRESS;
    executor_clear_waits(executor);
    bool has_messages = executor->launch.program->schedule->first_message >= 0;
    /* The bell's value before the first poll. */
    uint32_t bell = 0;
    if (has_messages) {
        bell_listen(executor->site.contact);
        bell = atomic_load_explicit(&executor->site.contact->bell, memory_order_acquire);
    }
    status = executor_runs_straight(executor) ? executor_run_straight(executor) : executor_run_tiles(executor);
    if (executor->run.message_status != TUTTI_OK)
        return status_fail(executor->run.message_status, "a message of the schedule failed: %s",
            status_message(executor->run.message_status));
    if (executor->run.failed_read.error) return fetch_handle_failure(executor);
    if (status == TUTTI_OK) {
        if (executor->launch.rows && !executor->launch.rows_are_early) rows_normalise_output(executor);
        executor_end_operation(executor);
        return TUTTI_OK;
    }
    executor->blocked.core_is_wanted = executor_publish_core(executor);
    if (has_messages)
        wait_set_add(&executor->blocked, &executor->site.contact->bell, bell, &executor->site.contact->bell_waiters,
            true);
    return status;
}
tutti_status executor_repeat_operation(struct executor *executor)
{
    run_reset_progress(&executor->run, executor->site.ranks);
    executor_make_fingerprint(executor);
    tracks_record_arrival(executor);
    if (executor->run.one_sided) executor->run.declaration->fingerprint = executor->run.fingerprint;
    bind_repeated_call(executor);
    TRY(executor_announce_operation(executor));
    executor_clear_waits(executor);
    tutti_status status = executor_run_straight(executor);
    if (status == TUTTI_OK) executor_end_operation(executor);
    else if (status == TUTTI_IN_PROGRESS) executor->blocked.core_is_wanted = executor_publish_core(executor);
    return status;
}
bool executor_cancel(struct executor *executor)
{
    const struct program *program = executor->launch.program;
    bool all_cancelled = true;
    if (!program) return true;
    for (int i = 0; program->transfers && i < program->plan->slots * program->schedule->step_count; i++) {
        struct transfer *transfer = &program->transfers[i];
        if (transfer->state == TRANSFER_POSTED && !router_cancel(executor->site.router, transfer))
            all_cancelled = false;
    }
    /* Until now a transport may have read a message from a peer's tensor. */
    if (all_cancelled && program->touch_count) executor_stop_touching_tensors(executor);
    return all_cancelled;
}

/* ---- lifetime ---- */
tutti_status executor_init(struct executor *executor, const struct segment *segment, const struct layout *layout,
    int rank, stream_function *stream, bool is_paced)
{
    struct place mine = layout_place(layout, rank);
    *executor = (struct executor){ .site = { .segment = segment,
                                       .rank = rank,
                                       .index = mine.index,
                                       .ranks = segment->ranks,
                                       .has_several_hosts = layout->hosts > 1,
                                       .places = layout->place,
                                       .rank_at = layout->rank + layout->first[mine.host],
                                       .stream = stream,
                                       .is_paced = is_paced && stream,
                                       .own_control = segment_control(segment, mine.index),
                                       .lines = segment_line(segment, mine.index, 0) },
        .tracks = { .other = 1, .newest = 1 } };
    executor->seen = memory_alloc_aligned((size_t)segment->ranks * sizeof *executor->seen);
    executor->peer_operands = memory_alloc_zeroed((size_t)segment->ranks, sizeof *executor->peer_operands);
    if (executor->seen && executor->peer_operands) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY, "no memory for the counters of %d ranks", segment->ranks);
}
void executor_set_contact(struct executor *executor, struct control *contact) { executor->site.contact = contact; }
void executor_set_router(struct executor *executor, struct router *router) { executor->site.router = router; }
void executor_set_tuning(struct executor *executor, int polls, size_t cache_bytes, size_t ring_bytes,
    bool may_be_unfenced)
{
    executor->publisher.may_be_unfenced = may_be_unfenced;
    executor->site.polls = polls;
    executor->site.cache_bytes = cache_bytes;
    executor->site.ring_bytes = ring_bytes;
}
void executor_finish(struct executor *executor)
{
    free(executor->seen);
    free(executor->peer_operands);
    executor->seen = NULL;
    executor->peer_operands = NULL;
}
