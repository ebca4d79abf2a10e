/* The prover: runs a plan of all ranks symbolically, several operations in a row, several tiles each. It proves:
 * no deadlock: positions only increase, and sends complete as late as they may (when the receive is posted), so if one
 *   order of running comes to the end, all do;
 * no race: a wait guarantees only what happened before the earliest publication that meets it, and the completion of a
 *   send guarantees no order;
 * right results: every OUTPUT holds each contribution once, of this operation and this tile, finished once, and
 *   multiplied once if needed; INPUT is unchanged; each caller rewrites its tensors as soon as its call returns. */
#include "backend/check/check.h"
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdio.h>
#include <stdlib.h>

/* ---- operations ---- */
/* Synchronizes the threads of a rank at the ends of an operation. */
static void checker_join_threads(struct checker *checker, int rank)
{
    int first = rank * checker->slots;
    for (int i = 1; i < checker->slots; i++) checker_merge_clock(checker, first, checker->thread[first + i].clock);
    for (int i = 1; i < checker->slots; i++) checker_merge_clock(checker, first + i, checker->thread[first].clock);
}
/* Ends the last call and makes the next one: its tensors are new, and the rank announces its arrival. */
static void checker_begin_call(struct checker *checker, int rank)
{
    const struct schedule *schedule = &checker->plan->ranks[rank];
    struct walker *w = &checker->walker[rank];
    if (w->operation) checker_judge_operation(checker, schedule, w->operation - 1);
    checker_rewrite_tensors(checker, schedule, w->operation);
    ++*checker_clock_now(checker, rank * checker->slots);
    checker_join_threads(checker, rank);
    w->called = true;
    if (w->operation == checker->operations) return;
    int *arrival = &w->arrival[(size_t)w->operation * (size_t)checker->threads];
    for (int i = 0; i < checker->threads; i++) arrival[i] = checker->thread[rank * checker->slots].clock[i];
    for (int i = 0; i < checker->slots; i++) {
        checker->thread[rank * checker->slots + i].tile = i;
        checker->thread[rank * checker->slots + i].step = 0;
    }
}
static bool walker_has_arrived(const struct walker *w, int operation)
{
    return w->operation > operation || (w->operation == operation && w->called);
}
/* True if all ranks of the host have arrived. The rank's threads then know their earlier accesses. */
static bool checker_poll_roll_call(struct checker *checker, int rank)
{
    const struct schedule *schedule = &checker->plan->ranks[rank];
    struct walker *w = &checker->walker[rank];
    if (w->arrived) return true;
    int host = schedule->place.host, size = layout_host_size(schedule->layout, host);
    for (int n = 0; n < size; n++)
        if (!walker_has_arrived(&checker->walker[layout_rank(schedule->layout, host, n)], w->operation)) return false;
    for (int n = 0; n < size; n++) {
        int q = layout_rank(schedule->layout, host, n);
        for (int i = 0; q != rank && i < checker->slots; i++)
            checker_merge_clock(checker, rank * checker->slots + i,
                &checker->walker[q].arrival[(size_t)w->operation * (size_t)checker->threads]);
    }
    return w->arrived = true;
}

/* ---- steps ---- */
/* Simulates the post of a message: a send reads its chunks, a receive will write its chunks. */
static void checker_post_message(struct checker *checker, int thread, int step, int tile, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    const struct step *t = &schedule->steps[step];
    struct check_message *m = memory_alloc_zeroed(1, sizeof *m);
    int n = 0;
    *checker_message(checker, schedule->rank, step, tile, operation) = m;
    if (m) m->value_count = step_count_chunks(schedule, t);
    if (m && t->kind == SEND) m->values = memory_alloc_zeroed((size_t)m->value_count, sizeof *m->values);
    if (!m || (t->kind == SEND && !m->values)) {
        checker_report_error(checker, "the checker is out of memory", schedule->rank, step, tile);
        return;
    }
    for (int x = 0; x < t->from_count + t->to_count; x++)
        for (int i = 0; i < schedule->spans[t->span + x].count; i++) {
            struct check_cell *c = checker_cell(checker, schedule->spans[t->span + x], i, tile, operation);
            checker_record_access(checker, c, thread, t->kind == RECV, m, step, tile);
            if (t->kind == SEND) m->values[n++] = c->value;
        }
    ++*checker_clock_now(checker, thread);
    m->clock = checker_copy_clock(checker, thread);
}
/* Simulates the arrival of a message: writes the values that were sent. */
static void checker_receive_message(struct checker *checker, const struct schedule *schedule, int step,
    const struct check_message *sent, int tile, int operation)
{
    const struct step *t = &schedule->steps[step];
    int n = 0;
    for (int d = 0; d < t->to_count; d++)
        for (int i = 0; i < step_to(schedule, t)[d].count; i++) {
            struct value *value = &checker_cell(checker, step_to(schedule, t)[d], i, tile, operation)->value;
            *value = sent->values[n++];
            value->valid &= value->tile == tile && value->operation == operation;
        }
}
/* True if the message that this rank posted at `step` is complete. Completes it if its other end is posted. */
static bool checker_complete_message(struct checker *checker, int thread, int step, int tile, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    struct check_message *m = *checker_message(checker, schedule->rank, step, tile, operation), *other = NULL;
    struct position end = match_find_other_end(checker->match, schedule->rank, step);
    if (!m) checker_report_error(checker, "awaits a message before posting it", schedule->rank, step, tile);
    if (!m || m->done_at) return m != NULL;
    if (end.rank >= 0) other = *checker_message(checker, end.rank, end.step, tile, operation);
    if (!other || !other->clock) return false;
    if (other->value_count != m->value_count) {
        checker_report_error(checker, "the ends of a message differ in length", schedule->rank, step, tile);
        return false;
    }
    if (schedule->steps[step].kind == RECV) {
        checker_receive_message(checker, schedule, step, other, tile, operation);
        checker_merge_clock(checker, thread, other->clock);
    }
    m->done_at = ++*checker_clock_now(checker, thread);
    return true;
}
/* Simulates a copy or sum over symbolic values, and records its accesses for the race check. */
static void checker_run_work(struct checker *checker, int thread, int step, int tile, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    const struct step *t = &schedule->steps[step];
    const struct span *from = step_from(schedule, t), *to = step_to(schedule, t);
    for (int i = 0; t->to_count && i < to->count; i++) {
        struct check_cell *first = checker_cell(checker, *from, i, tile, operation);
        struct value sum = first->value;
        for (int f = 0; f < t->from_count; f++) {
            struct check_cell *c = checker_cell(checker, from[f], i, tile, operation);
            checker_record_access(checker, c, thread, false, NULL, step, tile);
            if (f) value_reduce(checker, &sum, &c->value);
        }
        sum.valid &= sum.tile == tile && sum.operation == operation;
        if (t->finish && sum.finished)
            checker_report_error(checker, "finishes a value twice", schedule->rank, step, tile);
        if (t->premultiplies && (sum.premultiplied || t->from_count > 1))
            checker_report_error(checker, "multiplies a value twice", schedule->rank, step, tile);
        sum.finished |= t->finish;
        sum.premultiplied |= t->premultiplies;
        for (int d = 0; d < t->to_count; d++) {
            struct check_cell *c = checker_cell(checker, to[d], i, tile, operation);
            if (c != first || t->from_count > 1) checker_record_access(checker, c, thread, true, NULL, step, tile);
            c->value = sum;
        }
    }
    ++*checker_clock_now(checker, thread);
}

/* ---- counters ---- */
static uint64_t checker_step_position(const struct checker *checker, int operation, int tile, int step)
{
    uint64_t rounds = (uint64_t)((checker->tiles + checker->slots - 1) / checker->slots);
    uint64_t round = (uint64_t)operation * rounds + (uint64_t)(tile / checker->slots);
    return round * (uint64_t)checker->plan->period + (uint64_t)step + 1;
}
/* Simulates the publication of a counter, with the vector clock that a reader learns. */
static void checker_publish_position(struct checker *checker, int thread, uint64_t value)
{
    struct thread *t = &checker->thread[thread];
    struct published *log = memory_grow(t->log, t->logged, &t->room, sizeof *log);
    int *clock = log ? checker_copy_clock(checker, thread) : NULL;
    if (log) t->log = log;
    if (clock) log[t->logged++] = (struct published){ value, clock };
    else checker_report_error(checker, "the checker is out of memory", thread / checker->slots, 0, 0);
}
/* Merges the clock of the earliest publication that covers the position. False: it is not published yet. */
static bool checker_position_is_reached(struct checker *checker, int thread, int peer, int tile, uint64_t target)
{
    const struct thread *q = &checker->thread[peer * checker->slots + tile % checker->slots];
    int low = 0, high = q->logged;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (q->log[middle].position < target) low = middle + 1;
        else high = middle;
    }
    if (low < q->logged) checker_merge_clock(checker, thread, q->log[low].clock);
    return low < q->logged;
}
/* True if a simulated thread may pass a wait. */
static bool checker_wait_is_met(struct checker *checker, int thread, const struct wait *wait, int tile, int operation)
{
    int of = wait->lag == SLOT_REUSE ? tile - checker->slots : tile;
    if (wait->rank == thread / checker->slots)
        return checker_complete_message(checker, thread, wait->step, tile, operation);
    if (wait->lag != EVERY_TILE)
        return of < 0
            || checker_position_is_reached(checker, thread, wait->rank, of,
                checker_step_position(checker, operation, of, wait->step));
    for (int t = checker->tiles > checker->slots ? checker->tiles - checker->slots : 0; t < checker->tiles; t++)
        if (!checker_position_is_reached(checker, thread, wait->rank, t,
                checker_step_position(checker, operation, t, wait->step)))
            return false;
    return true;
}

/* ---- ranks ---- */
/* Runs one step if its waits are met. False: they are not. */
static bool checker_run_step(struct checker *checker, int thread, int operation)
{
    struct thread *me = &checker->thread[thread];
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    const struct step *step = &schedule->steps[me->step];
    /* LEAVE belongs to the operation, not to a tile. */
    if (step->kind == LEAVE) return true;
    if (me->step >= schedule->prelude && !checker_poll_roll_call(checker, schedule->rank)) return false;
    for (int i = 0; i < step->wait_count; i++)
        if (!checker_wait_is_met(checker, thread, &schedule->waits[step->wait + i], me->tile, operation)) return false;
    if (step_is_message(step)) checker_post_message(checker, thread, me->step, me->tile, operation);
    else checker_run_work(checker, thread, me->step, me->tile, operation);
    if (step_publishes(step, me->tile, checker->tiles, checker->slots))
        checker_publish_position(checker, thread, checker_step_position(checker, operation, me->tile, me->step));
    return true;
}
/* True if all messages of the thread's tile are complete. */
static bool checker_messages_are_complete(struct checker *checker, int thread, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    for (int j = schedule->first_message; j >= 0 && j <= schedule->last_message; j++)
        if (step_is_message(&schedule->steps[j])
            && !checker_complete_message(checker, thread, j, checker->thread[thread].tile, operation))
            return false;
    return true;
}
/* Runs up to `most` steps of one slot. True: it moved. */
static bool checker_walk_slot(struct checker *checker, int thread, int most)
{
    struct thread *me = &checker->thread[thread];
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    int operation = checker->walker[schedule->rank].operation;
    bool moved = false;
    for (; me->tile < checker->tiles && most > 0 && !checker->failed; most--, moved = true) {
        if (me->step < schedule->step_count) {
            if (!checker_run_step(checker, thread, operation)) break;
            me->step++;
        } else {
            if (!checker_messages_are_complete(checker, thread, operation)) break;
            me->tile += checker->slots;
            me->step = 0;
        }
    }
    return moved;
}
static int checker_draw_number(struct checker *checker, int n)
{
    /* Knuth's MMIX generator. */
    checker->random = checker->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((checker->random >> 33) % (uint64_t)n);
}
/* True if a rank has run all tiles of the operation and may leave it. */
static bool checker_operation_is_over(struct checker *checker, int rank)
{
    const struct schedule *schedule = &checker->plan->ranks[rank];
    for (int i = 0; i < checker->slots; i++)
        if (checker->thread[rank * checker->slots + i].tile < checker->tiles) return false;
    if (!checker_poll_roll_call(checker, rank)) return false;
    checker_join_threads(checker, rank);
    const struct step *leave = schedule->step_count ? &schedule->steps[schedule->step_count - 1] : NULL;
    for (int i = 0; leave && leave->kind == LEAVE && i < leave->wait_count; i++)
        if (!checker_wait_is_met(checker, rank * checker->slots, &schedule->waits[leave->wait + i], checker->tiles - 1,
                checker->walker[rank].operation))
            return false;
    return true;
}
/* Runs the rank as far as it gets, or a few steps if the order is random. */
static bool checker_walk_rank(struct checker *checker, int rank)
{
    struct walker *w = &checker->walker[rank];
    int start = checker->random ? checker_draw_number(checker, checker->slots) : 0;
    bool moved = false;
    if (!w->called) {
        checker_begin_call(checker, rank);
        moved = true;
    }
    if (w->operation == checker->operations) return moved;
    for (int i = 0; i < checker->slots; i++) {
        int most = checker->random ? checker_draw_number(checker, 4) + 1 : INT32_MAX;
        moved |= checker_walk_slot(checker, rank * checker->slots + (start + i) % checker->slots, most);
    }
    if (checker->failed || !checker_operation_is_over(checker, rank)) return moved;
    w->operation++;
    w->called = w->arrived = false;
    return true;
}
/* Runs all ranks until they end or none can move, which is a deadlock. */
static void checker_run_plan(struct checker *checker)
{
    int size = checker->plan->size;
    for (bool moved = true; moved && !checker->failed;) {
        int start = checker->random ? checker_draw_number(checker, size) : 0,
            way = checker->random && checker_draw_number(checker, 2) ? size - 1 : 1;
        moved = false;
        for (int i = 0; i < size && !checker->failed; i++)
            moved |= checker_walk_rank(checker, (start + i * way) % size);
    }
    for (int r = 0; r < size; r++) {
        const struct thread *t = &checker->thread[r * checker->slots];
        if (checker->walker[r].operation < checker->operations)
            checker_report_error(checker, "deadlock", r, t->step, t->tile);
    }
}
bool plan_check(const struct plan *plan, int tiles, int operations, unsigned seed, char *why, size_t why_bytes)
{
    const int *chunks = plan->ranks[0].chunks;
    struct checker checker = {
        .plan = plan,
        .tiles = tiles,
        .operations = operations,
        .slots = plan->slots,
        .threads = plan->size * plan->slots,
        .tensor_cells = chunks[INPUT] + chunks[OUTPUT],
        .random = seed,
        .why = why,
        .why_bytes = why_bytes,
    };
    if (plan->count < plan->size || plan->size > CHECK_RANKS) {
        snprintf(why, why_bytes, "the checker takes plans of all ranks, %d at most", CHECK_RANKS);
        return false;
    }
    if (checker_init(&checker)) checker_run_plan(&checker);
    checker_finish(&checker);
    return !checker.failed;
}
