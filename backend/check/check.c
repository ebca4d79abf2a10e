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
/* Merges the clocks of all threads of a rank, as at both ends of an operation. */
static void checker_join_threads(struct checker *checker, int rank)
{
    int first = rank * checker->slots;
    for (int i = 1; i < checker->slots; i++) checker_merge_clock(checker, first, checker->thread[first + i].clock);
    for (int i = 1; i < checker->slots; i++) checker_merge_clock(checker, first + i, checker->thread[first].clock);
}
/* Checks the results of the rank's last operation, and calls the next one: its tensors are new, and the rank announces
   its arrival. After the last operation it only checks. */
static void checker_begin_call(struct checker *checker, int rank)
{
    const struct schedule *schedule = &checker->plan->ranks[rank];
    struct walker *walker = &checker->walker[rank];
    if (walker->operation) checker_judge_operation(checker, schedule, walker->operation - 1);
    checker_rewrite_tensors(checker, schedule, walker->operation);
    ++*checker_clock_now(checker, rank * checker->slots);
    checker_join_threads(checker, rank);
    walker->called = true;
    if (walker->operation == checker->operations) return;
    int *arrival = &walker->arrival[(size_t)walker->operation * (size_t)checker->threads];
    for (int i = 0; i < checker->threads; i++) arrival[i] = checker->thread[rank * checker->slots].clock[i];
    for (int i = 0; i < checker->slots; i++) {
        checker->thread[rank * checker->slots + i].tile = i;
        checker->thread[rank * checker->slots + i].step = 0;
    }
}
/* True if the rank has called the operation, or a later one. */
static bool walker_has_arrived(const struct walker *walker, int operation)
{
    return walker->operation > operation || (walker->operation == operation && walker->called);
}
/* True if all ranks of this rank's host have arrived in its operation. Its threads then know what these ranks did
   before their calls. */
static bool checker_poll_roll_call(struct checker *checker, int rank)
{
    const struct schedule *schedule = &checker->plan->ranks[rank];
    struct walker *walker = &checker->walker[rank];
    if (walker->all_arrived) return true;
    int host = schedule->place.host, size = layout_host_size(schedule->layout, host);
    for (int n = 0; n < size; n++)
        if (!walker_has_arrived(&checker->walker[layout_rank(schedule->layout, host, n)], walker->operation))
            return false;
    for (int n = 0; n < size; n++) {
        int peer = layout_rank(schedule->layout, host, n);
        for (int i = 0; peer != rank && i < checker->slots; i++)
            checker_merge_clock(checker, rank * checker->slots + i,
                &checker->walker[peer].arrival[(size_t)walker->operation * (size_t)checker->threads]);
    }
    return walker->all_arrived = true;
}

/* ---- steps ---- */
/* Simulates the post of a message by a thread: a send reads its chunks, and a receive will write its chunks. */
static void checker_post_message(struct checker *checker, int thread, int step, int tile, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    const struct step *posted = &schedule->steps[step];
    struct check_message *message = memory_alloc_zeroed(1, sizeof *message);
    int n = 0;
    *checker_message(checker, schedule->rank, step, tile, operation) = message;
    if (message) message->value_count = step_count_chunks(schedule, posted);
    if (message && posted->kind == SEND)
        message->values = memory_alloc_zeroed((size_t)message->value_count, sizeof *message->values);
    if (!message || (posted->kind == SEND && !message->values)) {
        checker_report_error(checker, "the checker is out of memory", schedule->rank, step, tile);
        return;
    }
    for (int x = 0; x < posted->from_count + posted->to_count; x++)
        for (int i = 0; i < schedule->spans[posted->span + x].count; i++) {
            struct check_cell *cell = checker_cell(checker, schedule->spans[posted->span + x], i, tile, operation);
            checker_record_access(checker, cell, thread, posted->kind == RECV, message, step, tile);
            if (posted->kind == SEND) message->values[n++] = cell->value;
        }
    ++*checker_clock_now(checker, thread);
    message->clock = checker_copy_clock(checker, thread);
}
/* Simulates the arrival of a message: writes the values of `sent` to the targets of the receive step. */
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
/* True if the message that the thread posted at `step` is complete. Completes it if its other end is posted. */
static bool checker_complete_message(struct checker *checker, int thread, int step, int tile, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    struct check_message *message = *checker_message(checker, schedule->rank, step, tile, operation), *other = NULL;
    struct position end = match_find_other_end(checker->match, schedule->rank, step);
    if (!message) checker_report_error(checker, "awaits a message before posting it", schedule->rank, step, tile);
    if (!message || message->done_at) return message != NULL;
    if (end.rank >= 0) other = *checker_message(checker, end.rank, end.step, tile, operation);
    if (!other || !other->clock) return false;
    if (other->value_count != message->value_count) {
        checker_report_error(checker, "the ends of a message differ in length", schedule->rank, step, tile);
        return false;
    }
    if (schedule->steps[step].kind == RECV) {
        checker_receive_message(checker, schedule, step, other, tile, operation);
        checker_merge_clock(checker, thread, other->clock);
    }
    message->done_at = ++*checker_clock_now(checker, thread);
    return true;
}
/* Simulates a copy or sum of symbolic values by a thread, with its accesses. */
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
/* Returns the number that a slot publishes after a step of a tile: it grows over all tiles and operations. */
static uint64_t checker_step_position(const struct checker *checker, int operation, int tile, int step)
{
    uint64_t rounds = (uint64_t)((checker->tiles + checker->slots - 1) / checker->slots);
    uint64_t round = (uint64_t)operation * rounds + (uint64_t)(tile / checker->slots);
    return round * (uint64_t)checker->plan->period + (uint64_t)step + 1;
}
/* Records that a thread publishes a position, with the clock that its readers learn. */
static void checker_publish_position(struct checker *checker, int thread, uint64_t position)
{
    struct thread *publisher = &checker->thread[thread];
    struct published *log = memory_grow(publisher->log, publisher->logged, &publisher->room, sizeof *log);
    int *clock = log ? checker_copy_clock(checker, thread) : NULL;
    if (log) publisher->log = log;
    if (clock) log[publisher->logged++] = (struct published){ position, clock };
    else checker_report_error(checker, "the checker is out of memory", thread / checker->slots, 0, 0);
}
/* Polls the positions that the peer's slot of the tile has published. Returns true if one is `position` or more; the
   thread then learns the clock of the earliest such publication. */
static bool checker_poll_position(struct checker *checker, int thread, int peer, int tile, uint64_t position)
{
    const struct thread *publisher = &checker->thread[peer * checker->slots + tile % checker->slots];
    int low = 0, high = publisher->logged;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (publisher->log[middle].position < position) low = middle + 1;
        else high = middle;
    }
    if (low < publisher->logged) checker_merge_clock(checker, thread, publisher->log[low].clock);
    return low < publisher->logged;
}
/* Polls a wait of a thread in a tile of an operation. Returns true if it is met; the thread then has the clock of the
   awaited position, or its message is complete. */
static bool checker_poll_wait(struct checker *checker, int thread, const struct wait *wait, int tile, int operation)
{
    int awaited_tile = wait->lag == SLOT_REUSE ? tile - checker->slots : tile;
    if (wait->rank == thread / checker->slots)
        return checker_complete_message(checker, thread, wait->step, tile, operation);
    if (wait->lag != EVERY_TILE)
        return awaited_tile < 0
            || checker_poll_position(checker, thread, wait->rank, awaited_tile,
                checker_step_position(checker, operation, awaited_tile, wait->step));
    for (int t = checker->tiles > checker->slots ? checker->tiles - checker->slots : 0; t < checker->tiles; t++)
        if (!checker_poll_position(checker, thread, wait->rank, t,
                checker_step_position(checker, operation, t, wait->step)))
            return false;
    return true;
}

/* ---- ranks ---- */
/* Runs the thread's next step. False: its waits, or for a step behind the prelude the roll call, are not met. */
static bool checker_run_step(struct checker *checker, int thread, int operation)
{
    struct thread *me = &checker->thread[thread];
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    const struct step *step = &schedule->steps[me->step];
    /* LEAVE belongs to the operation, not to a tile. */
    if (step->kind == LEAVE) return true;
    if (me->step >= schedule->prelude && !checker_poll_roll_call(checker, schedule->rank)) return false;
    for (int i = 0; i < step->wait_count; i++)
        if (!checker_poll_wait(checker, thread, &schedule->waits[step->wait + i], me->tile, operation)) return false;
    if (step_is_message(step)) checker_post_message(checker, thread, me->step, me->tile, operation);
    else checker_run_work(checker, thread, me->step, me->tile, operation);
    if (step_publishes(step, me->tile, checker->tiles, checker->slots))
        checker_publish_position(checker, thread, checker_step_position(checker, operation, me->tile, me->step));
    return true;
}
/* Completes the messages of the thread's tile whose other ends have come. Returns true if all are complete. */
static bool checker_complete_messages(struct checker *checker, int thread, int operation)
{
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    for (int j = schedule->first_message; j >= 0 && j <= schedule->last_message; j++)
        if (step_is_message(&schedule->steps[j])
            && !checker_complete_message(checker, thread, j, checker->thread[thread].tile, operation))
            return false;
    return true;
}
/* Runs up to `max_steps` steps of one thread, up to an unmet wait. True: it moved. */
static bool checker_walk_slot(struct checker *checker, int thread, int max_steps)
{
    struct thread *me = &checker->thread[thread];
    const struct schedule *schedule = &checker->plan->ranks[thread / checker->slots];
    int operation = checker->walker[schedule->rank].operation;
    bool moved = false;
    for (; me->tile < checker->tiles && max_steps > 0 && !checker->failed; max_steps--, moved = true) {
        if (me->step < schedule->step_count) {
            if (!checker_run_step(checker, thread, operation)) break;
            me->step++;
        } else {
            if (!checker_complete_messages(checker, thread, operation)) break;
            me->tile += checker->slots;
            me->step = 0;
        }
    }
    return moved;
}
/* Returns a random number from 0 to bound - 1. */
static int checker_draw_number(struct checker *checker, int bound)
{
    /* Knuth's MMIX generator. */
    checker->random = checker->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((checker->random >> 33) % (uint64_t)bound);
}
/* Returns true if a rank can leave its operation: it has run all tiles, and the waits of its LEAVE are met. Its threads
   then know what each of them did. */
static bool checker_try_leave_operation(struct checker *checker, int rank)
{
    const struct schedule *schedule = &checker->plan->ranks[rank];
    for (int i = 0; i < checker->slots; i++)
        if (checker->thread[rank * checker->slots + i].tile < checker->tiles) return false;
    if (!checker_poll_roll_call(checker, rank)) return false;
    checker_join_threads(checker, rank);
    const struct step *leave = schedule->step_count ? &schedule->steps[schedule->step_count - 1] : NULL;
    for (int i = 0; leave && leave->kind == LEAVE && i < leave->wait_count; i++)
        if (!checker_poll_wait(checker, rank * checker->slots, &schedule->waits[leave->wait + i], checker->tiles - 1,
                checker->walker[rank].operation))
            return false;
    return true;
}
/* Runs the rank up to unmet waits, or a few steps if the order is random. True: it moved. */
static bool checker_walk_rank(struct checker *checker, int rank)
{
    struct walker *walker = &checker->walker[rank];
    int start = checker->random ? checker_draw_number(checker, checker->slots) : 0;
    bool moved = false;
    if (!walker->called) {
        checker_begin_call(checker, rank);
        moved = true;
    }
    if (walker->operation == checker->operations) return moved;
    for (int i = 0; i < checker->slots; i++) {
        int max_steps = checker->random ? checker_draw_number(checker, 4) + 1 : INT32_MAX;
        moved |= checker_walk_slot(checker, rank * checker->slots + (start + i) % checker->slots, max_steps);
    }
    if (checker->failed || !checker_try_leave_operation(checker, rank)) return moved;
    walker->operation++;
    walker->called = walker->all_arrived = false;
    return true;
}
/* Runs all ranks until they have done all operations, or none can move, which is a deadlock, or an error is found. */
static void checker_run_plan(struct checker *checker)
{
    int size = checker->plan->size;
    for (bool moved = true; moved && !checker->failed;) {
        int start = checker->random ? checker_draw_number(checker, size) : 0,
            stride = checker->random && checker_draw_number(checker, 2) ? size - 1 : 1;
        moved = false;
        for (int i = 0; i < size && !checker->failed; i++)
            moved |= checker_walk_rank(checker, (start + i * stride) % size);
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
