/* The executor's loop. Position (tile, step) is published as one number, base + 2 + (tile / slots) * period + step, in
   the counter of the tile's slot; base + 1 is the arrival. Several tiles are in flight, each is one integer, its next
   step. A tile waits only for its own tile on other ranks and for the tile that had its slot before, so no order of
   running them can deadlock (the builder ran it once to be sure). */
#include "backend/execute/execute.h"
#include "backend/base/memory.h"
#include "backend/base/pause.h"
#include "backend/base/status.h"
#include "backend/execute/bind.h"
#include "backend/execute/slots.h"
#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- counters ---- */
static struct control *control_of(const struct executor *x, int rank)
{
    return &x->segment->controls[rank - x->host_first];
}
static uint64_t arrival(const struct executor *x) { return x->base + 1; }
static uint64_t position(const struct executor *x, int tile, int step)
{
    unsigned round = x->cut->single ? 0 : (unsigned)tile / (unsigned)x->launch.program->plan->slots;
    return x->base + 2 + (uint64_t)round * (uint64_t)x->launch.program->plan->period + (uint64_t)step;
}
static int slot_of(const struct executor *x, int tile)
{
    return x->cut->single ? 0 : (int)((unsigned)tile % (unsigned)x->launch.program->plan->slots);
}
static _Atomic uint64_t *counter_at(const struct executor *x, struct control *c, int index)
{
    struct line *line = &c->line[x->parity];
    return index == SEEN_COUNTER ? &line->counter : &line->slots[index - SEEN_SLOTS];
}
static int counter_index(const struct executor *x, int tile)
{
    return x->cut->single ? SEEN_COUNTER : SEEN_SLOTS + slot_of(x, tile);
}
/* Looks once, and then `polls` times more, unless it has seen enough before. */
static bool look(struct executor *x, int peer, int index, uint64_t target, int polls)
{
    uint64_t *seen = &x->seen[peer - x->host_first][index];
    struct control *c = control_of(x, peer);
    _Atomic uint64_t *counter = counter_at(x, c, index);
    uint64_t now = atomic_load_explicit(counter, memory_order_acquire);
    for (int n = 0; n < polls && now < target; n++) {
        pause_briefly();
        now = atomic_load_explicit(counter, memory_order_acquire);
    }
    if (now >= target) { *seen = now; return true; }
    if (x->blocked_peer < 0) x->blocked_peer = peer;
    wait_add(&x->blocked, (_Atomic uint32_t *)(void *)counter, (uint32_t)now, &c->waiters, true);
    return false;
}
static bool reached_soon(struct executor *x, int peer, int index, uint64_t target, int polls)
{
    return x->seen[peer - x->host_first][index] >= target || look(x, peer, index, target, polls);
}
static int polls(const struct executor *x) { return x->crowded ? 0 : x->polls; }
static bool reached(struct executor *x, int peer, int index, uint64_t target)
{
    return reached_soon(x, peer, index, target, 0);
}
static void publish(struct executor *x, int index, uint64_t value)
{
    counter_publish(counter_at(x, x->mine, index), value, &x->mine->waiters);
}
static void arrive(struct executor *x)
{
    x->mine->line[x->parity].fingerprint = x->fingerprint;
    publish(x, SEEN_COUNTER, arrival(x));
}

/* ---- roll call ---- */
void executor_describe(struct executor *x)              /* odd factors: no single difference cancels */
{
    const struct descriptor *d = x->descriptor;
    uint64_t kind = (uint64_t)d->operation << 48 ^ (uint64_t)d->dtype << 40 ^ (uint64_t)d->op << 32 ^ (uint32_t)d->root;
    x->kind = d->count * 0xbf58476d1ce4e5b9u + kind * 0x94d049bb133111ebu + d->bits * 0xd6e8feb86659fd93u
        + (d->algorithm << 48 ^ d->slots << 40 ^ d->tile_bytes) * 0xff51afd7ed558ccdu;
}
static uint64_t fingerprint_of(const struct executor *x)
{
    uint64_t sum = x->descriptor->sequence * 0x9e3779b97f4a7c15u + x->kind;
    return sum ^ sum >> 29;
}
/* An operation that a rank has failed before all had arrived succeeds on none: that rank claims the failure and then
   looks for arrivals, the others arrive (with an exchange) and then look for a claim. */
static bool is_refused(const struct executor *x)
{
    if (!atomic_load(&x->mine->doubt)) return false;
    const struct failure *f = x->segment->failure;
    uint32_t state = atomic_load(&f->state);
    return state != FAILURE_NONE && (!(state & FAILURE_READY) || f->operation <= x->operation);
}
/* True: all have arrived. *status is MISMATCH when one of them does something else. Who has arrived will not look at my
   other line before I have written it for the next operation: time to fetch it. */
static bool roll_call(struct executor *x, tutti_status *status)
{
    for (; x->roll < x->host_ranks; x->roll++) {
        int peer = x->host_first + x->roll;
        if (peer == x->rank) continue;
        if (!reached_soon(x, peer, SEEN_COUNTER, arrival(x), polls(x))) return false;
        if (control_of(x, peer)->line[x->parity].fingerprint != x->fingerprint) {
            *status = TUTTI_MISMATCH;
            return false;
        }
    }
    if (is_refused(x)) return false;
    line_own(&x->mine->line[1 - x->parity]);
    return x->arrived = true;
}
bool executor_has_arrived(const struct executor *x, int rank)
{
    const struct line *line = &control_of(x, rank)->line[x->parity];
    return rank == x->rank || atomic_load(&line->counter) >= arrival(x);
}
bool executor_is_complete(const struct executor *x)
{
    for (int peer = x->host_first; peer < x->host_first + x->host_ranks; peer++)
        if (!executor_has_arrived(x, peer)) return false;
    return true;
}
int executor_disagreement(const struct executor *x)
{
    for (int peer = x->host_first; peer < x->host_first + x->host_ranks; peer++)
        if (executor_has_arrived(x, peer) && control_of(x, peer)->line[x->parity].fingerprint != x->fingerprint)
            return peer;
    return -1;
}

/* ---- who needs my core ---- */
/* Before all have arrived a neighbour has something to do if it is missing; afterwards, as far as I know, always. */
bool executor_is_in_the_way(struct executor *x)
{
    uint32_t core = wait_core();
    if (atomic_load_explicit(&x->mine->core, memory_order_relaxed) != core)
        atomic_store_explicit(&x->mine->core, core, memory_order_relaxed);
    x->crowded = false;
    for (int peer = x->host_first; core && peer < x->host_first + x->host_ranks; peer++) {
        if (peer == x->rank || atomic_load_explicit(&control_of(x, peer)->core, memory_order_relaxed) != core) continue;
        x->crowded = true;
        if (x->arrived || !executor_has_arrived(x, peer)) return true;
    }
    return false;
}

/* ---- uneven counts: everybody knows everybody's after the roll call ---- */
static void announce_counts(struct executor *x)
{
    const struct uneven *u = x->launch.uneven;
    uint64_t extent = 0;
    int me = x->rank - x->host_first;
    for (int direction = INPUT; direction <= OUTPUT; direction++)
        for (int q = 0; q < x->host_ranks; q++) {
            segment_counts(x->segment, me, x->parity, direction)[q] = u->lengths[direction][q];
            segment_counts(x->segment, me, x->parity, COUNTS_OFFSETS + direction)[q] = u->offsets[direction][q];
            if (u->lengths[direction][q] > extent) extent = u->lengths[direction][q];
        }
    x->descriptor->extent = extent;
}
static tutti_status agree_on_counts(struct executor *x)
{
    uint64_t extent = 0;
    for (int a = 0; a < x->host_ranks; a++) {
        const struct descriptor *d = &x->segment->controls[a].descriptor[x->parity];
        if (d->extent > extent) extent = d->extent;
        for (int b = 0; b < x->host_ranks; b++)
            if (segment_counts(x->segment, a, x->parity, INPUT)[b]
                != segment_counts(x->segment, b, x->parity, OUTPUT)[a])
                return TUTTI_MISMATCH;
    }
    x->extent = (size_t)extent;
    return TUTTI_OK;
}

/* ---- one step ---- */
static struct transfer *transfer_at(const struct executor *x, int tile, int step)
{
    return &x->launch.program->transfers[slot_of(x, tile) * x->launch.program->schedule->step_count + step];
}
static bool every_tile_reached(struct executor *x, const struct wait *w)
{
    int slots = x->launch.program->plan->slots;
    for (int tile = x->cut->tiles > slots ? x->cut->tiles - slots : 0; tile < x->cut->tiles; tile++)
        if (!reached(x, w->rank, counter_index(x, tile), position(x, tile, w->step))) return false;
    return true;
}
static bool is_done(struct executor *x, const struct transfer *transfer)
{
    if (transfer->state == TRANSFER_FAILED) x->broken = transfer->status;
    return transfer->state == TRANSFER_DONE;
}
static bool is_met(struct executor *x, const struct wait *w, int tile)
{
    int slots = x->launch.program->plan->slots;
    if (w->rank == x->rank) return is_done(x, transfer_at(x, tile, w->step));
    if (w->lag == EVERY_TILE) return every_tile_reached(x, w);
    if (w->lag == SAME_TILE) return reached(x, w->rank, counter_index(x, tile), position(x, tile, w->step));
    return tile < slots || reached(x, w->rank, counter_index(x, tile - slots), position(x, tile - slots, w->step));
}
static bool is_ready(struct executor *x, int step, int tile, tutti_status *status)
{
    const struct schedule *s = x->launch.program->schedule;
    const struct step *t = &s->steps[step];
    if (step >= s->prelude && !x->arrived && !roll_call(x, status)) return false;
    for (int w = 0; w < t->wait_count; w++)
        if (!is_met(x, &s->waits[t->wait + w], tile)) return false;
    return true;
}
static void post(struct executor *x, int step, int tile)
{
    struct program *program = x->launch.program;
    const struct schedule *s = program->schedule;
    const struct step *t = &s->steps[step];
    struct piece *pieces = &program->pieces[slot_of(x, tile) * program->piece_count + program->piece_at[step]];
    int n = 0;
    for (int span = 0; span < t->from_count + t->to_count; span++)
        for (int i = 0; i < s->spans[t->span + span].count; i++)
            pieces[n++] = bind_locate(x, s->spans[t->span + span], i, tile);
    struct transfer *transfer = transfer_at(x, tile, step);
    *transfer = (struct transfer){ .name = (x->operation & 0x3fffff) << 40 | (uint64_t)tile << 20 | (uint64_t)t->number,
        .peer = t->peer, .is_send = t->kind == SEND, .pieces = pieces, .piece_count = n };
    transport_post(x->transport, transfer);
}
static void perform(struct executor *x, int step, int tile)
{
    const struct step *t = &x->launch.program->schedule->steps[step];
    x->moves++;
    if (t->kind == WORK) bind_compute(x, t, tile);
    else if (t->kind == SEND || t->kind == RECV) post(x, step, tile);
    if (step_publishes(t, tile, x->cut->tiles, x->launch.program->plan->slots))
        publish(x, counter_index(x, tile), position(x, tile, step));
}

/* ---- one tile without messages: nothing to choose from ---- */
static bool is_straight(const struct executor *x)
{
    return x->cut->single && x->launch.program->schedule->first_message < 0;
}
static bool is_ready_straight(struct executor *x, const struct step *t)
{
    const struct wait *w = &x->launch.program->schedule->waits[t->wait], *end = w + t->wait_count;
    for (; w < end; w++)
        if (w->lag != SLOT_REUSE && !reached_soon(x, w->rank, SEEN_COUNTER, x->base + 2 + (uint64_t)w->step, polls(x)))
            return false;
    return true;
}
static void perform_straight(struct executor *x, int step)
{
    const struct program *p = x->launch.program;
    const struct step *t = &p->schedule->steps[step];
    x->moves++;
    if (t->kind == WORK && p->is_fixed) bind_compute_fixed(x, step);
    else if (t->kind == WORK) bind_compute(x, t, 0);
    if (t->by_tile || t->by_leave)
        counter_publish(&x->mine->line[x->parity].counter, x->base + 2 + (uint64_t)step, &x->mine->waiters);
}
/* Belongs to the announcement: whatever else is to be done before the first look at a peer is done while the line
   travels. */
static void run_prelude(struct executor *x)
{
    int end = x->launch.program->schedule->prelude;
    for (int step = 0; step < end; step++) perform_straight(x, step);
    x->pc[0] = end;
}
static tutti_status run_straight(struct executor *x)
{
    const struct schedule *s = x->launch.program->schedule;
    tutti_status status = TUTTI_IN_PROGRESS;
    if (!x->arrived && !roll_call(x, &status)) return status;
    for (int step = x->pc[0]; step < s->step_count; step++) {
        if (!is_ready_straight(x, &s->steps[step])) return status;
        perform_straight(x, step);
        x->pc[0] = step + 1;
    }
    return TUTTI_OK;
}

/* ---- many tiles ---- */
/* First what feeds the network, then what a peer of this host waits for, then the rest. */
static int urgency(const struct schedule *s, int step)
{
    if (s->first_message >= 0 && step >= s->first_message && step <= s->last_message + 1) return 0;
    return s->steps[step].by_tile ? 1 : 2;
}
static int program_end(const struct schedule *s)        /* LEAVE belongs to the operation, not to a tile */
{
    return s->step_count && s->steps[s->step_count - 1].kind == LEAVE ? s->step_count - 1 : s->step_count;
}
/* Runs the most urgent step that can run; among equals the oldest tile's. */
static bool advance(struct executor *x, tutti_status *status)
{
    const struct schedule *s = x->launch.program->schedule;
    int end = program_end(s), window = x->low + x->launch.program->plan->slots;
    for (int wanted = s->first_message >= 0 ? 0 : 1; wanted <= 2; wanted++)
        for (int tile = x->low; tile < x->cut->tiles && tile < window; tile++) {
            int *pc = &x->pc[slot_of(x, tile)];
            if (*pc == end || urgency(s, *pc) != wanted || !is_ready(x, *pc, tile, status)) continue;
            perform(x, *pc, tile);
            ++*pc;
            return true;
        }
    return false;
}
static bool is_over(struct executor *x, int tile)
{
    const struct schedule *s = x->launch.program->schedule;
    if (x->pc[slot_of(x, tile)] < program_end(s)) return false;
    for (int step = s->first_message; step >= 0 && step <= s->last_message; step++) {
        bool message = s->steps[step].kind == SEND || s->steps[step].kind == RECV;
        if (message && !is_done(x, transfer_at(x, tile, step))) return false;
    }
    return true;
}
/* Not inlined: between the steps of one tile it would only be in the way. */
__attribute__((noinline)) static tutti_status run_tiles(struct executor *x)
{
    const struct schedule *s = x->launch.program->schedule;
    tutti_status status = TUTTI_IN_PROGRESS;
    while (x->low < x->cut->tiles) {
        bool moved = advance(x, &status);
        if (s->first_message >= 0) moved |= transport_poll(x->transport);
        for (; x->low < x->cut->tiles && is_over(x, x->low); x->low++, moved = true) x->pc[slot_of(x, x->low)] = 0;
        if (!moved || status != TUTTI_IN_PROGRESS) return status;
    }
    if (!x->arrived && !roll_call(x, &status)) return status;
    return program_end(s) == s->step_count || is_ready(x, s->step_count - 1, x->cut->tiles - 1, &status) ? TUTTI_OK
        : status;
}

/* ---- an operation ---- */
static void let_go(struct executor *x) { atomic_store(&x->mine->touching, 0); }
static void end(struct executor *x)
{
    const struct plan *plan = x->launch.program->plan;
    uint64_t slots = (uint64_t)plan->slots, rounds = x->cut->single ? 1 : ((uint64_t)x->cut->tiles + slots - 1) / slots;
    x->base += 2 + rounds * (uint64_t)plan->period;
    x->operation++;
    slots_leave(x);
    if (x->launch.program->touch_count) let_go(x);
}
/* Makes the slots real and announces. With one tile the prelude's last step tells of the arrival too, if it is
   published at all. */
static tutti_status announce(struct executor *x)
{
    TRY(slots_reserve(x));
    x->started = true;
    if (!is_straight(x)) { arrive(x); return TUTTI_OK; }
    x->mine->line[x->parity].fingerprint = x->fingerprint;
    if (!x->launch.program->tells) arrive(x);
    run_prelude(x);
    return TUTTI_OK;
}
/* Says that it is going to touch, then looks for a failure; who fails does it the other way round. So one of the two
   sees the other. */
static bool may_touch(struct executor *x)
{
    atomic_store(&x->mine->touching, 1);
    if (!(atomic_load(&x->segment->failure->state) & FAILURE_CERTAIN)) return true;
    atomic_store(&x->mine->touching, 0);
    return false;
}
tutti_status executor_start(struct executor *x)
{
    bind_operands(x);
    if (x->launch.uneven) bind_cut(x, x->extent);
    TRY(slots_reserve(x));
    if (x->launch.program->touch_count && !may_touch(x)) return TUTTI_IN_PROGRESS;
    x->started = true;
    return TUTTI_OK;
}
void executor_prepare(struct executor *x)
{
    x->parity = (int)(x->operation & 1);
    x->descriptor = &x->mine->descriptor[x->parity];
}
tutti_status executor_begin(struct executor *x)
{
    x->low = x->roll = 0;
    x->arrived = x->host_ranks == 1;
    x->started = x->agreed = false;
    x->broken = TUTTI_OK;
    memset(x->pc, 0, sizeof x->pc);
    if (x->launch.uneven) announce_counts(x);
    x->fingerprint = fingerprint_of(x);
    if (x->launch.program) {
        bind_operands(x);
        return announce(x);
    }
    arrive(x);
    return TUTTI_OK;
}
tutti_status executor_roll_call(struct executor *x)
{
    tutti_status status = TUTTI_IN_PROGRESS;
    x->blocked.count = 0;
    x->blocked_peer = -1;
    if (!x->arrived && !roll_call(x, &status)) {
        x->blocked.in_the_way = executor_is_in_the_way(x);
        return status;
    }
    if (x->launch.uneven && !x->agreed) TRY(agree_on_counts(x));
    x->agreed = true;
    return TUTTI_OK;
}
tutti_status executor_step(struct executor *x)
{
    tutti_status status = TUTTI_IN_PROGRESS;
    x->blocked.count = 0;
    x->blocked_peer = -1;
    bool messages = x->launch.program->schedule->first_message >= 0;
    uint32_t bell = 0;                                  /* as it was before the poll */
    if (messages) {
        bell_listen(x->mine);
        bell = atomic_load_explicit(&x->mine->bell, memory_order_acquire);
        transport_poll(x->transport);
    }
    status = is_straight(x) ? run_straight(x) : run_tiles(x);
    if (x->broken != TUTTI_OK)
        return status_fail(x->broken == TUTTI_MISMATCH ? TUTTI_INTERNAL : x->broken,
            "a message of the schedule failed: %s", status_message(x->broken));
    if (status == TUTTI_OK) { end(x); return TUTTI_OK; }
    x->blocked.in_the_way = executor_is_in_the_way(x);
    if (messages) wait_add(&x->blocked, &x->mine->bell, bell, &x->mine->bell_waiters, true);
    return status;
}
void executor_cancel(struct executor *x)
{
    const struct program *program = x->launch.program;
    if (!program) return;
    for (int i = 0; program->transfers && i < program->plan->slots * program->schedule->step_count; i++) {
        struct transfer *transfer = &program->transfers[i];
        while (transfer->state == TRANSFER_POSTED && !transport_cancel(x->transport, transfer))
            transport_poll(x->transport);
    }
    if (program->touch_count) let_go(x);
}

/* ---- lifetime ---- */
tutti_status executor_init(struct executor *x, const struct segment *segment, int rank, int host_first, int host_ranks)
{
    *x = (struct executor){ .segment = segment, .rank = rank, .host_first = host_first,
        .host_ranks = host_ranks };
    x->mine = control_of(x, rank);
    x->seen = memory_aligned((size_t)host_ranks * sizeof *x->seen);
    x->theirs = memory_zeroed((size_t)host_ranks, sizeof *x->theirs);
    if (x->seen && x->theirs) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY, "no memory for the counters of %d ranks", host_ranks);
}
void executor_finish(struct executor *x)
{
    free(x->seen);
    free(x->theirs);
    x->seen = NULL;
    x->theirs = NULL;
}
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
        for (int span = 0; (t->kind == SEND || t->kind == RECV) && span < t->from_count + t->to_count; span++) total +=
            s->spans[t->span + span].count;
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
void program_destroy(struct program *program)
{
    if (!program) return;
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
