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
static void checker_join_threads(struct checker *k, int rank)
{
    int first = rank * k->slots;
    for (int i = 1; i < k->slots; i++) checker_merge_clock(k, first, k->thread[first + i].clock);
    for (int i = 1; i < k->slots; i++) checker_merge_clock(k, first + i, k->thread[first].clock);
}
/* Ends the last call and makes the next one: its tensors are new, and the rank announces its arrival. */
static void checker_begin_call(struct checker *k, int rank)
{
    const struct schedule *s = &k->plan->ranks[rank];
    struct walker *w = &k->walker[rank];
    if (w->operation) checker_judge_operation(k, s, w->operation - 1);
    checker_rewrite_tensors(k, s, w->operation);
    ++*checker_clock_now(k, rank * k->slots);
    checker_join_threads(k, rank);
    w->called = true;
    if (w->operation == k->operations) return;
    int *arrival = &w->arrival[(size_t)w->operation * (size_t)k->threads];
    for (int i = 0; i < k->threads; i++) arrival[i] = k->thread[rank * k->slots].clock[i];
    for (int i = 0; i < k->slots; i++) {
        k->thread[rank * k->slots + i].tile = i;
        k->thread[rank * k->slots + i].step = 0;
    }
}
static bool walker_has_arrived(const struct walker *w, int operation)
{
    return w->operation > operation || (w->operation == operation && w->called);
}
/* True if all ranks of the host have arrived. The rank's threads then know their earlier accesses. */
static bool checker_poll_roll_call(struct checker *k, int rank)
{
    const struct schedule *s = &k->plan->ranks[rank];
    struct walker *w = &k->walker[rank];
    if (w->arrived) return true;
    int host = s->place.host, size = layout_host_size(s->layout, host);
    for (int n = 0; n < size; n++)
        if (!walker_has_arrived(&k->walker[layout_rank(s->layout, host, n)], w->operation)) return false;
    for (int n = 0; n < size; n++) {
        int q = layout_rank(s->layout, host, n);
        for (int i = 0; q != rank && i < k->slots; i++)
            checker_merge_clock(k, rank * k->slots + i,
                &k->walker[q].arrival[(size_t)w->operation * (size_t)k->threads]);
    }
    return w->arrived = true;
}

/* ---- steps ---- */
static void checker_post_message(struct checker *k, int thread, int step, int tile, int operation)
{
    const struct schedule *s = &k->plan->ranks[thread / k->slots];
    const struct step *t = &s->steps[step];
    struct check_message *m = memory_alloc_zeroed(1, sizeof *m);
    int n = 0;
    *checker_message(k, s->rank, step, tile, operation) = m;
    if (m) m->value_count = step_count_chunks(s, t);
    if (m && t->kind == SEND) m->values = memory_alloc_zeroed((size_t)m->value_count, sizeof *m->values);
    if (!m || (t->kind == SEND && !m->values)) {
        checker_report_error(k, "the checker is out of memory", s->rank, step, tile);
        return;
    }
    for (int x = 0; x < t->from_count + t->to_count; x++)
        for (int i = 0; i < s->spans[t->span + x].count; i++) {
            struct check_cell *c = checker_cell(k, s->spans[t->span + x], i, tile, operation);
            checker_record_access(k, c, thread, t->kind == RECV, m, step, tile);
            if (t->kind == SEND) m->values[n++] = c->value;
        }
    ++*checker_clock_now(k, thread);
    m->clock = checker_copy_clock(k, thread);
}
static void checker_receive_message(struct checker *k, const struct schedule *s, int step,
    const struct check_message *sent, int tile, int operation)
{
    const struct step *t = &s->steps[step];
    int n = 0;
    for (int d = 0; d < t->to_count; d++)
        for (int i = 0; i < step_to(s, t)[d].count; i++) {
            struct value *v = &checker_cell(k, step_to(s, t)[d], i, tile, operation)->value;
            *v = sent->values[n++];
            v->valid &= v->tile == tile && v->operation == operation;
        }
}
/* True if the message that this rank posted at `step` is complete. Completes it if its other end is posted. */
static bool checker_complete_message(struct checker *k, int thread, int step, int tile, int operation)
{
    const struct schedule *s = &k->plan->ranks[thread / k->slots];
    struct check_message *m = *checker_message(k, s->rank, step, tile, operation), *other = NULL;
    struct position end = match_find_other_end(k->match, s->rank, step);
    if (!m) checker_report_error(k, "awaits a message before posting it", s->rank, step, tile);
    if (!m || m->done_at) return m != NULL;
    if (end.rank >= 0) other = *checker_message(k, end.rank, end.step, tile, operation);
    if (!other || !other->clock) return false;
    if (other->value_count != m->value_count) {
        checker_report_error(k, "the ends of a message differ in length", s->rank, step, tile);
        return false;
    }
    if (s->steps[step].kind == RECV) {
        checker_receive_message(k, s, step, other, tile, operation);
        checker_merge_clock(k, thread, other->clock);
    }
    m->done_at = ++*checker_clock_now(k, thread);
    return true;
}
static void checker_run_work(struct checker *k, int thread, int step, int tile, int operation)
{
    const struct schedule *s = &k->plan->ranks[thread / k->slots];
    const struct step *t = &s->steps[step];
    const struct span *from = step_from(s, t), *to = step_to(s, t);
    for (int i = 0; t->to_count && i < to->count; i++) {
        struct check_cell *first = checker_cell(k, *from, i, tile, operation);
        struct value sum = first->value;
        for (int f = 0; f < t->from_count; f++) {
            struct check_cell *c = checker_cell(k, from[f], i, tile, operation);
            checker_record_access(k, c, thread, false, NULL, step, tile);
            if (f) value_reduce(k, &sum, &c->value);
        }
        sum.valid &= sum.tile == tile && sum.operation == operation;
        if (t->finish && sum.finished) checker_report_error(k, "finishes a value twice", s->rank, step, tile);
        if (t->raw && (sum.raw || t->from_count > 1))
            checker_report_error(k, "multiplies a value twice", s->rank, step, tile);
        sum.finished |= t->finish;
        sum.raw |= t->raw;
        for (int d = 0; d < t->to_count; d++) {
            struct check_cell *c = checker_cell(k, to[d], i, tile, operation);
            if (c != first || t->from_count > 1) checker_record_access(k, c, thread, true, NULL, step, tile);
            c->value = sum;
        }
    }
    ++*checker_clock_now(k, thread);
}

/* ---- counters ---- */
static uint64_t checker_step_position(const struct checker *k, int operation, int tile, int step)
{
    uint64_t rounds = (uint64_t)((k->tiles + k->slots - 1) / k->slots);
    uint64_t round = (uint64_t)operation * rounds + (uint64_t)(tile / k->slots);
    return round * (uint64_t)k->plan->period + (uint64_t)step + 1;
}
static void checker_publish_position(struct checker *k, int thread, uint64_t value)
{
    struct thread *t = &k->thread[thread];
    struct published *log = memory_grow(t->log, t->logged, &t->room, sizeof *log);
    int *clock = log ? checker_copy_clock(k, thread) : NULL;
    if (log) t->log = log;
    if (clock) log[t->logged++] = (struct published){ value, clock };
    else checker_report_error(k, "the checker is out of memory", thread / k->slots, 0, 0);
}
/* Merges the clock of the earliest publication that covers the position. False: it is not published yet. */
static bool checker_position_is_reached(struct checker *k, int thread, int peer, int tile, uint64_t target)
{
    const struct thread *q = &k->thread[peer * k->slots + tile % k->slots];
    int low = 0, high = q->logged;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (q->log[middle].position < target) low = middle + 1;
        else high = middle;
    }
    if (low < q->logged) checker_merge_clock(k, thread, q->log[low].clock);
    return low < q->logged;
}
static bool checker_wait_is_met(struct checker *k, int thread, const struct wait *w, int tile, int operation)
{
    int of = w->lag == SLOT_REUSE ? tile - k->slots : tile;
    if (w->rank == thread / k->slots) return checker_complete_message(k, thread, w->step, tile, operation);
    if (w->lag != EVERY_TILE)
        return of < 0
            || checker_position_is_reached(k, thread, w->rank, of, checker_step_position(k, operation, of, w->step));
    for (int t = k->tiles > k->slots ? k->tiles - k->slots : 0; t < k->tiles; t++)
        if (!checker_position_is_reached(k, thread, w->rank, t, checker_step_position(k, operation, t, w->step)))
            return false;
    return true;
}

/* ---- ranks ---- */
static bool checker_run_step(struct checker *k, int thread, int operation)
{
    struct thread *me = &k->thread[thread];
    const struct schedule *s = &k->plan->ranks[thread / k->slots];
    const struct step *t = &s->steps[me->step];
    /* LEAVE belongs to the operation, not to a tile. */
    if (t->kind == LEAVE) return true;
    if (me->step >= s->prelude && !checker_poll_roll_call(k, s->rank)) return false;
    for (int i = 0; i < t->wait_count; i++)
        if (!checker_wait_is_met(k, thread, &s->waits[t->wait + i], me->tile, operation)) return false;
    if (step_is_message(t)) checker_post_message(k, thread, me->step, me->tile, operation);
    else checker_run_work(k, thread, me->step, me->tile, operation);
    if (step_publishes(t, me->tile, k->tiles, k->slots))
        checker_publish_position(k, thread, checker_step_position(k, operation, me->tile, me->step));
    return true;
}
static bool checker_messages_are_complete(struct checker *k, int thread, int operation)
{
    const struct schedule *s = &k->plan->ranks[thread / k->slots];
    for (int j = s->first_message; j >= 0 && j <= s->last_message; j++)
        if (step_is_message(&s->steps[j]) && !checker_complete_message(k, thread, j, k->thread[thread].tile, operation))
            return false;
    return true;
}
/* Runs up to `most` steps of one slot. True: it moved. */
static bool checker_walk_slot(struct checker *k, int thread, int most)
{
    struct thread *me = &k->thread[thread];
    const struct schedule *s = &k->plan->ranks[thread / k->slots];
    int operation = k->walker[s->rank].operation;
    bool moved = false;
    for (; me->tile < k->tiles && most > 0 && !k->failed; most--, moved = true) {
        if (me->step < s->step_count) {
            if (!checker_run_step(k, thread, operation)) break;
            me->step++;
        } else {
            if (!checker_messages_are_complete(k, thread, operation)) break;
            me->tile += k->slots;
            me->step = 0;
        }
    }
    return moved;
}
static int checker_draw_number(struct checker *k, int n)
{
    /* Knuth's MMIX generator. */
    k->random = k->random * 6364136223846793005u + 1442695040888963407u;
    return (int)((k->random >> 33) % (uint64_t)n);
}
static bool checker_operation_is_over(struct checker *k, int rank)
{
    const struct schedule *s = &k->plan->ranks[rank];
    for (int i = 0; i < k->slots; i++)
        if (k->thread[rank * k->slots + i].tile < k->tiles) return false;
    if (!checker_poll_roll_call(k, rank)) return false;
    checker_join_threads(k, rank);
    const struct step *leave = s->step_count ? &s->steps[s->step_count - 1] : NULL;
    for (int i = 0; leave && leave->kind == LEAVE && i < leave->wait_count; i++)
        if (!checker_wait_is_met(k, rank * k->slots, &s->waits[leave->wait + i], k->tiles - 1,
                k->walker[rank].operation))
            return false;
    return true;
}
/* Runs the rank as far as it gets, or a few steps if the order is random. */
static bool checker_walk_rank(struct checker *k, int rank)
{
    struct walker *w = &k->walker[rank];
    int start = k->random ? checker_draw_number(k, k->slots) : 0;
    bool moved = false;
    if (!w->called) {
        checker_begin_call(k, rank);
        moved = true;
    }
    if (w->operation == k->operations) return moved;
    for (int i = 0; i < k->slots; i++) {
        int most = k->random ? checker_draw_number(k, 4) + 1 : INT32_MAX;
        moved |= checker_walk_slot(k, rank * k->slots + (start + i) % k->slots, most);
    }
    if (k->failed || !checker_operation_is_over(k, rank)) return moved;
    w->operation++;
    w->called = w->arrived = false;
    return true;
}
static void checker_run_plan(struct checker *k)
{
    int size = k->plan->size;
    for (bool moved = true; moved && !k->failed;) {
        int start = k->random ? checker_draw_number(k, size) : 0,
            way = k->random && checker_draw_number(k, 2) ? size - 1 : 1;
        moved = false;
        for (int i = 0; i < size && !k->failed; i++) moved |= checker_walk_rank(k, (start + i * way) % size);
    }
    for (int r = 0; r < size; r++) {
        const struct thread *t = &k->thread[r * k->slots];
        if (k->walker[r].operation < k->operations) checker_report_error(k, "deadlock", r, t->step, t->tile);
    }
}
bool plan_check(const struct plan *p, int tiles, int operations, unsigned seed, char *why, size_t why_bytes)
{
    const int *chunks = p->ranks[0].chunks;
    struct checker k = {
        .plan = p,
        .tiles = tiles,
        .operations = operations,
        .slots = p->slots,
        .threads = p->size * p->slots,
        .tensor_cells = chunks[INPUT] + chunks[OUTPUT],
        .random = seed,
        .why = why,
        .why_bytes = why_bytes,
    };
    if (p->count < p->size || p->size > CHECK_RANKS) {
        snprintf(why, why_bytes, "the checker takes plans of all ranks, %d at most", CHECK_RANKS);
        return false;
    }
    if (checker_init(&k)) checker_run_plan(&k);
    checker_finish(&k);
    return !k.failed;
}
