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
static bool executor_runs_straight(const struct executor *x)
{
    return x->run.cut->single && x->launch.program->schedule->first_message < 0;
}
static bool step_is_ready_straight(struct executor *x, const struct step *t)
{
    const struct wait *w = &x->launch.program->schedule->waits[t->wait], *end = w + t->wait_count;
    for (; w < end; w++)
        if (w->lag != SLOT_REUSE
            && !counter_is_reached_within(x, site_index(&x->site, w->rank), SEEN_COUNTER,
                x->base + 2 + (uint64_t)w->step, executor_poll_limit(x)))
            return false;
    return true;
}
/* False: see bind_compute_step. */
static bool step_perform_straight(struct executor *x, int step)
{
    const struct program *p = x->launch.program;
    const struct step *t = &p->schedule->steps[step];
    if (t->kind == WORK && p->is_fixed) bind_compute_fixed_step(x, step);
    else if (t->kind == WORK && !bind_compute_step(x, t, 0)) return false;
    x->moves++;
    if (t->by_tile || t->by_leave) executor_publish_counter(x, SEEN_COUNTER, x->base + 2 + (uint64_t)step);
    return true;
}
/* Runs the prelude as part of the announcement. All work that precedes the first poll of a peer then overlaps with the
   transfer of the line. */
static void executor_run_prelude(struct executor *x)
{
    int end = x->launch.program->schedule->prelude;
    for (int step = 0; step < end; step++) step_perform_straight(x, step);
    x->run.pc[0] = end;
}
static tutti_status executor_run_straight(struct executor *x)
{
    const struct schedule *s = x->launch.program->schedule;
    tutti_status status = TUTTI_IN_PROGRESS;
    if (!x->run.arrived && !executor_poll_roll_call(x, &status)) return status;
    for (int step = x->run.pc[0]; step < s->step_count; step++) {
        if (!step_is_ready_straight(x, &s->steps[step])) return status;
        if (!step_perform_straight(x, step)) return status;
        x->run.pc[0] = step + 1;
    }
    return TUTTI_OK;
}

/* ---- an operation ---- */
static void executor_stop_touching_tensors(struct executor *x) { atomic_store(&x->site.mine->touching, 0); }
static void executor_end_operation(struct executor *x)
{
    const struct plan *plan = x->launch.program->plan;
    const struct program_cut *c = x->run.cut;
    uint64_t slots = (uint64_t)plan->slots, rounds = c->single ? 1 : ((uint64_t)c->tiles + slots - 1) / slots;
    x->base += x->run.one_sided ? TRACK_POSITIONS : 2 + rounds * (uint64_t)plan->period;
    slots_end_operation(x);
    tracks_end_operation(x);
    x->operation++;
    if (x->launch.program->touch_count) executor_stop_touching_tensors(x);
}
/* Makes the slots real memory and announces the operation. With one tile, the position that the prelude's last step
   publishes also announces the arrival. */
static tutti_status executor_announce_operation(struct executor *x)
{
    TRY(slots_reserve(x));
    x->run.started = true;
    if (!executor_runs_straight(x)) { executor_publish_arrival(x); return TUTTI_OK; }
    x->run.first_poll_done = !x->run.cut->in_line;
    x->site.lines[x->run.track].fingerprint = x->run.fingerprint;
    if (!x->launch.program->prelude_announces) executor_publish_arrival(x);
    executor_run_prelude(x);
    return TUTTI_OK;
}
/* Sets `touching`, then reads the failure state; a rank that fails does both in the opposite order. So at least one of
   the two ranks sees the other. */
static bool executor_try_touching_tensors(struct executor *x)
{
    atomic_store(&x->site.mine->touching, 1);
    if (!(atomic_load(&x->site.segment->failure->state) & FAILURE_CERTAIN)) return true;
    atomic_store(&x->site.mine->touching, 0);
    return false;
}
tutti_status executor_start_program(struct executor *x)
{
    const struct uneven *u = x->launch.uneven;
    if (u && uneven_is_equal_on_ranks(u)) TRY(program_find_blocks(x->launch.program));
    bind_launch_operands(x);
    if (u) bind_cut_message(x, x->run.extent);
    TRY(slots_reserve(x));
    if (x->launch.program->touch_count && !executor_try_touching_tensors(x)) return TUTTI_IN_PROGRESS;
    x->run.started = true;
    return TUTTI_OK;
}
void executor_prepare_declaration(struct executor *x)
{
    tracks_enter_operation(x);
    x->run.declaration = executor_declaration(x, x->site.index, x->operation);
}
/* ---- other hosts ---- */
/* Adds this call to the history, which messages to other hosts carry in their names. */
static void executor_update_history(struct executor *x)
{
    if (!x->site.spread) return;
    x->run.history = (x->run.history ^ x->run.fingerprint ^ x->run.declaration->counts) * 0x9e3779b97f4a7c15u;
    x->run.history ^= x->run.history >> 32;
}
void executor_list_awaited_ranks(const struct executor *x, bool *out)
{
    const struct program *program = x->run.started ? x->launch.program : NULL;
    if (!program || !program->transfers) return;
    for (int i = 0; i < program->plan->slots * program->schedule->step_count; i++)
        if (program->transfers[i].state == TRANSFER_POSTED) out[program->transfers[i].peer] = true;
}

/* ---- the operation ---- */
static void executor_clear_waits(struct executor *x)
{
    wait_set_clear(&x->blocked);
    x->blocked_peer = -1;
}
static void run_reset_progress(struct run *run, int ranks)
{
    run->low = run->roll = 0;
    run->arrived = ranks == 1;
    run->started = run->agreed = false;
    run->first_poll_done = true;
    memset(run->pc, 0, sizeof run->pc);
}
tutti_status executor_begin(struct executor *x)
{
    run_reset_progress(&x->run, x->site.ranks);
    x->run.message_status = TUTTI_OK;
    x->run.failed_message = NULL;
    x->run.failed_read.error = 0;
    if (x->launch.uneven) TRY(counts_publish_own(x));
    executor_make_fingerprint(x);
    tracks_record_arrival(x);
    executor_update_history(x);
    x->run.one_sided = false;
    x->run.deferred = !x->launch.program;
    if (x->launch.program) {
        bind_launch_operands(x);
        x->run.one_sided = x->run.cut->one_sided;
        if (x->run.one_sided) x->run.declaration->fingerprint = x->run.fingerprint;
        return executor_announce_operation(x);
    }
    executor_publish_arrival(x);
    return TUTTI_OK;
}
tutti_status executor_finish_roll_call(struct executor *x)
{
    tutti_status status = TUTTI_IN_PROGRESS;
    executor_clear_waits(x);
    if (!x->run.arrived && !executor_poll_roll_call(x, &status)) {
        x->blocked.core_is_wanted = executor_core_is_wanted(x);
        return status;
    }
    if (x->launch.uneven && !x->run.agreed) TRY(counts_compare_all(x));
    x->run.agreed = true;
    return TUTTI_OK;
}
tutti_status executor_run_steps(struct executor *x)
{
    tutti_status status = TUTTI_IN_PROGRESS;
    executor_clear_waits(x);
    bool messages = x->launch.program->schedule->first_message >= 0;
    /* The bell's value before the first poll. */
    uint32_t bell = 0;
    if (messages) {
        bell_listen(x->site.contact);
        bell = atomic_load_explicit(&x->site.contact->bell, memory_order_acquire);
    }
    status = executor_runs_straight(x) ? executor_run_straight(x) : executor_run_tiles(x);
    if (x->run.message_status != TUTTI_OK)
        return status_fail(x->run.message_status, "a message of the schedule failed: %s",
            status_message(x->run.message_status));
    if (x->run.failed_read.error) return fetch_handle_failure(x);
    if (status == TUTTI_OK) {
        if (x->launch.rows && !x->launch.rows_early) rows_normalise_output(x);
        executor_end_operation(x);
        return TUTTI_OK;
    }
    x->blocked.core_is_wanted = executor_core_is_wanted(x);
    if (messages) wait_set_add(&x->blocked, &x->site.contact->bell, bell, &x->site.contact->bell_waiters, true);
    return status;
}
tutti_status executor_repeat_operation(struct executor *x)
{
    run_reset_progress(&x->run, x->site.ranks);
    executor_make_fingerprint(x);
    tracks_record_arrival(x);
    if (x->run.one_sided) x->run.declaration->fingerprint = x->run.fingerprint;
    bind_repeated_call(x);
    TRY(executor_announce_operation(x));
    executor_clear_waits(x);
    tutti_status status = executor_run_straight(x);
    if (status == TUTTI_OK) executor_end_operation(x);
    else if (status == TUTTI_IN_PROGRESS) x->blocked.core_is_wanted = executor_core_is_wanted(x);
    return status;
}
bool executor_cancel(struct executor *x)
{
    const struct program *program = x->launch.program;
    bool all = true;
    if (!program) return true;
    for (int i = 0; program->transfers && i < program->plan->slots * program->schedule->step_count; i++) {
        struct transfer *transfer = &program->transfers[i];
        if (transfer->state == TRANSFER_POSTED && !router_cancel(x->site.router, transfer)) all = false;
    }
    /* Until now a transport may have read a message from a peer's tensor. */
    if (all && program->touch_count) executor_stop_touching_tensors(x);
    return all;
}

/* ---- lifetime ---- */
tutti_status executor_init(struct executor *x, const struct segment *segment, const struct layout *layout, int rank,
    stream_function *stream, bool paced)
{
    struct place mine = layout_place(layout, rank);
    *x = (struct executor){ .site = { .segment = segment,
                                .rank = rank,
                                .index = mine.index,
                                .ranks = segment->ranks,
                                .spread = layout->hosts > 1,
                                .places = layout->place,
                                .rank_at = layout->rank + layout->first[mine.host],
                                .stream = stream,
                                .paced = paced && stream,
                                .mine = segment_control(segment, mine.index),
                                .lines = segment_line(segment, mine.index, 0) },
        .tracks = { .other = 1, .newest = 1 } };
    x->seen = memory_alloc_aligned((size_t)segment->ranks * sizeof *x->seen);
    x->theirs = memory_alloc_zeroed((size_t)segment->ranks, sizeof *x->theirs);
    if (x->seen && x->theirs) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY, "no memory for the counters of %d ranks", segment->ranks);
}
void executor_set_contact(struct executor *x, struct control *contact) { x->site.contact = contact; }
void executor_set_router(struct executor *x, struct router *router) { x->site.router = router; }
void executor_set_tuning(struct executor *x, int counter_polls, size_t cache_bytes, size_t ring_bytes,
    bool may_be_unfenced)
{
    x->publisher.may_be_unfenced = may_be_unfenced;
    x->site.polls = counter_polls;
    x->site.cache_bytes = cache_bytes;
    x->site.ring_bytes = ring_bytes;
}
void executor_finish(struct executor *x)
{
    free(x->seen);
    free(x->theirs);
    x->seen = NULL;
    x->theirs = NULL;
}
