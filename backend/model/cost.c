/* The cost of a plan is the length of its critical path over one tile, and for every further tile the work of the
   busiest rank, because tiles overlap.

   - A round: a wait ends when the peer has reached the position and its line has arrived here. With more ranks than
     cores, the peer first needs a core that another rank must hand over.
   - A line: every wait reads a line that a peer has written, and every publication writes one that peers have read. The
     first line of a run of bytes that a peer had last is not prefetched. The change from tile to tile disturbs
     prefetching, too. So each tile has these costs, however small it is.
   - Bytes: their cost depends on where they lie. A slot is read by a core that did not write it. So is the part of a
     peer's tensor that the peer's cache holds; the rest is equally far for both. Bytes in the cache of a core are near
     for all ranks on that core.
   - Slots rotate over so many bytes that no second-level cache holds them any more (execute/slots.c). Such lines cost
     less to write and to read than lines that a peer has just read.
   - Bytes that the kernel reads from a peer (plan.reads) are copied directly to their destination; terms of a sum go
     through this rank's cache. Each read costs a system call.
   - Displaced bytes: slots displace the message from the cache, and it must be fetched again.
   - A message: two thirds of its fixed cost are the sender's work and the rest is the receiver's, without travel time,
     because between near hosts the sender's core also delivers a socket's bytes. A message of up to 64 KiB is copied
     through memory of both ends; a longer one is announced first. When both ends are posted, the receiver's part
     follows, then the bytes at the rate of the host's link. A message gets a share of the link in proportion to its
     part of all bytes that the host sends. In a plan of one host the other end counts as posted together with this
     one, which is right if all hosts do the same, and too little in a tree. For further tiles these bytes are work of
     the rank, too, because cores copy the bytes of sockets and little overlaps.
   - So a message between hosts is cut only into tiles whose messages are long, or into the largest tiles. The bytes of
     the longest message must take four times its fixed cost on the link that all ranks of the host share. Between two
     hosts of two ranks, 1 MiB took 476 to 709 us in the tiles of least cost (128 and 256 KiB), and 237 to 367 in one.

   Further tiles cost time but displace fewer bytes, so the best tile grows with the square root of the message. */
#include "backend/model/cost.h"
#include "backend/base/memory.h"
#include "backend/base/sorted.h"
#include "backend/base/status.h"
#include "backend/schedule/match.h"
#include <limits.h>
#include <stdlib.h>

/* An eighth of the second-level cache counts as holding a peer's tensor, because the other tensor and the work between
   calls need the rest. Out of place, algorithms that touch more of peers' tensors to balance the work were slower from
   256 KiB to 1 MiB on. */
enum { HELD_OF_L2 = 8 };
/* The sender's share of a message's fixed cost is OF_SENDER / THIRDS. FILLED: see messages_are_filled. */
enum { THIRDS = 3, OF_SENDER = 2, FILLED = 4 };
/* On one host, the larger of two tiles is chosen if their costs differ by at most this factor, because a part of each
   tile's cost is not predicted. If ranks share cores, the lower cost counts: 8 ranks on two cores took 27.6 ms for an
   allgather of 64 MiB instead of 20.3. */
static const double LARGER_TILE_TOLERANCE = 1.06;
enum { LEAST_TILE = 32 << 10, MOST_TILES_IN_FLIGHT = 3, MOST_AT_ONCE = 64 << 10 };
struct plan_cost {
    const struct plan *plan;
    const struct machine *machine;
    /* [member][step]: when the step ends; rows of `period`. */
    double *ends;
    /* [member]: its next step. */
    int *at;
    /* The number of ranks of the largest host. */
    int ranks;
    /* load: ranks per core, at least 1. */
    double round, chunk_bytes, load;
    /* Costs per byte of a peer's memory; some peers share this core. */
    double peer_read, peer_write;
    /* The message takes at most half of the second-level cache. */
    bool fits;
    /* The fraction of a peer's tensor that is in the peer's cache. */
    double cached_fraction;
    /* NULL: the plan has no messages. */
    struct match *match;
    /* [host]: the chunks that it sends and receives. */
    double (*chunks_between_hosts)[2];
    /* [member]: the chunks of its host's messages divided by those of its own. */
    double *share;
};

/* ---- steps ---- */
/* Returns the cost per byte of a peer's tensor. `peer` is the cost of bytes in the peer's cache. */
static double cost_of_peer_byte(const struct plan_cost *x, double peer)
{
    return x->cached_fraction * peer + (1 - x->cached_fraction) * x->machine->far / 2;
}
static bool span_is_read_by_kernel(const struct plan_cost *x, int rank, struct span a)
{
    return a.rank != rank && a.buffer != SCRATCH && !plan_is_shared(x->plan, a.rank);
}
/* Returns the cost per byte that the rank reads from a span. The machine's `near` and `far` are costs of copies within
   and beyond the second-level cache, and half of a copy is its read. */
static double cost_of_read_byte(const struct plan_cost *x, int rank, struct span a)
{
    const struct machine *m = x->machine;
    if (span_is_read_by_kernel(x, rank, a))
        return x->cached_fraction * m->fetch + (1 - x->cached_fraction) * m->lost_fetch;
    if (a.rank != rank && a.buffer == SCRATCH) return m->lost_read;
    if (a.rank != rank) return cost_of_peer_byte(x, x->peer_read);
    return (a.buffer == SCRATCH || x->fits ? m->near : m->far) / 2;
}
/* Returns the cost per byte that the rank writes to a span. Half of a copy is its write. Slots rotate, so their lines
   have left every second-level cache. */
static double cost_of_written_byte(const struct plan_cost *x, int rank, struct span a)
{
    const struct machine *m = x->machine;
    if (a.rank != rank) return cost_of_peer_byte(x, x->peer_write);
    if (a.buffer == SCRATCH) return m->lost_write;
    return (x->fits ? m->near : m->far) / 2;
}
/* True if the copy stays in its cell, so that no bytes move. Private tensors always count as in place. */
static bool copy_stays_in_cell(const struct plan_cost *x, const struct schedule *s, const struct step *t,
    struct span to)
{
    struct span from = *step_from(s, t);
    return t->from_count == 1 && plan_is_shared(x->plan, s->rank) && from.rank == s->rank && to.rank == s->rank
        && plan_cell_index(x->plan, s->rank, from.buffer, from.first)
        == plan_cell_index(x->plan, s->rank, to.buffer, to.first);
}
static double cost_of_step_bytes(const struct plan_cost *x, const struct schedule *s, const struct step *t)
{
    const struct span *from = step_from(s, t), *to = step_to(s, t);
    double cost = 0;
    if (t->kind != WORK) return 0;
    if (t->to_count == 1 && copy_stays_in_cell(x, s, t, to[0])) return 0;
    /* The kernel copies into the first destination. */
    bool copies = t->from_count == 1 && span_is_read_by_kernel(x, s->rank, from[0]);
    for (int f = 0; f < t->from_count; f++) cost += from[f].count * cost_of_read_byte(x, s->rank, from[f]);
    for (int f = 0; f < t->from_count && !copies; f++)
        if (span_is_read_by_kernel(x, s->rank, from[f])) cost += from[f].count * x->machine->near / 2;
    for (int d = copies && x->fits; d < t->to_count; d++)
        if (!copy_stays_in_cell(x, s, t, to[d])) cost += to[d].count * cost_of_written_byte(x, s->rank, to[d]);
    return (cost + (t->from_count - 1) * to->count * x->machine->add) * x->chunk_bytes * x->load;
}
static int step_count_peer_waits(const struct schedule *s, const struct step *t)
{
    int count = 0;
    for (int w = 0; w < t->wait_count; w++) count += s->waits[t->wait + w].rank != s->rank;
    return count;
}
static int step_count_peer_runs(const struct schedule *s, const struct step *t)
{
    const struct span *from = step_from(s, t), *to = step_to(s, t);
    int count = 0;
    if (t->kind != WORK) return 0;
    for (int f = 0; f < t->from_count; f++) count += from[f].rank != s->rank;
    for (int d = 0; d < t->to_count; d++) count += to[d].rank != s->rank || to[d].buffer == SCRATCH;
    return count;
}
/* A copy takes one read; terms of a sum are read in blocks. */
static double cost_of_kernel_reads(const struct plan_cost *x, const struct schedule *s, const struct step *t)
{
    const struct span *from = step_from(s, t);
    int peers = 0;
    if (t->kind != WORK) return 0;
    for (int f = 0; f < t->from_count; f++) peers += span_is_read_by_kernel(x, s->rank, from[f]);
    double blocks = t->from_count == 1 ? 1 : double_larger(1, peers * x->chunk_bytes / READ_BLOCK);
    return peers * from->count * blocks * x->machine->reading * x->load;
}
static double cost_of_step_lines(const struct plan_cost *x, const struct schedule *s, const struct step *t)
{
    int lines = step_count_peer_waits(s, t) + (t->by_tile || t->by_reuse) + step_count_peer_runs(s, t);
    return lines * x->machine->line * x->load;
}
/* A short message is copied through memory of both ends; a long one is announced and goes from tensor to tensor. */
static double cost_of_message(const struct plan_cost *x, const struct schedule *s, const struct step *t, int thirds)
{
    double bytes = step_count_chunks(s, t) * x->chunk_bytes, whole = x->machine->announced, copy = 0;
    if (bytes <= MOST_AT_ONCE) whole = x->machine->message, copy = bytes * x->machine->far;
    return (whole * thirds / THIRDS + copy) * x->load;
}
static double cost_of_step(const struct plan_cost *x, const struct schedule *s, const struct step *t)
{
    return cost_of_step_bytes(x, s, t) + cost_of_kernel_reads(x, s, t) + cost_of_step_lines(x, s, t)
        + (t->kind == SEND ? cost_of_message(x, s, t, OF_SENDER) : 0);
}

/* ---- messages ---- */
static double schedule_count_posted_chunks(const struct schedule *s, enum step_kind kind)
{
    double chunks = 0;
    for (int j = s->first_message; j >= 0 && j <= s->last_message; j++)
        if (s->steps[j].kind == kind) chunks += step_count_chunks(s, &s->steps[j]);
    return chunks;
}
static bool plan_has_messages(const struct plan *p)
{
    bool any = false;
    for (int m = 0; m < p->count; m++) any |= p->ranks[m].first_message >= 0;
    return any;
}
/* False: out of memory. */
static bool cost_find_messages(struct plan_cost *x)
{
    const struct plan *p = x->plan;
    if (!plan_has_messages(p)) return true;
    x->match = match_create(p);
    x->chunks_between_hosts = memory_alloc_zeroed((size_t)p->layout->hosts, sizeof *x->chunks_between_hosts);
    x->share = memory_alloc_zeroed((size_t)p->count, sizeof *x->share);
    if (!x->match || !x->chunks_between_hosts || !x->share) return false;
    for (int m = 0; m < p->count; m++) {
        const struct schedule *s = &p->ranks[m];
        x->chunks_between_hosts[s->place.host][0] += schedule_count_posted_chunks(s, SEND);
        x->chunks_between_hosts[s->place.host][1] += schedule_count_posted_chunks(s, RECV);
    }
    for (int m = 0; m < p->count; m++) {
        const struct schedule *s = &p->ranks[m];
        const double *host = x->chunks_between_hosts[s->place.host];
        x->share[m] = (host[0] + host[1])
            / double_larger(1, schedule_count_posted_chunks(s, SEND) + schedule_count_posted_chunks(s, RECV));
    }
    return true;
}
/* Returns the time that the bytes of a message take on their share of the host's link. */
static double message_time_on_link(const struct plan_cost *x, const struct schedule *s, const struct step *t)
{
    return x->machine->wire * step_count_chunks(s, t) * x->chunk_bytes
        * x->share[plan_member_of_rank(x->plan, s->rank)];
}
/* Returns the time of the busiest host's link. A link has equal bandwidth in both directions. */
static double cost_of_busiest_link(const struct plan_cost *x)
{
    double chunks = 0;
    for (int h = 0; x->chunks_between_hosts && h < x->plan->layout->hosts; h++)
        chunks = double_larger(chunks, double_larger(x->chunks_between_hosts[h][0], x->chunks_between_hosts[h][1]));
    return chunks * x->chunk_bytes * x->machine->wire;
}

/* True if the bytes of the tile's longest message take FILLED times its fixed cost, or if the plan has no messages. */
static bool messages_are_filled(const struct plan_cost *x)
{
    double filled = 0;
    for (int m = 0; x->match && m < x->plan->count; m++) {
        const struct schedule *s = &x->plan->ranks[m];
        for (int j = s->first_message; j >= 0 && j <= s->last_message; j++)
            if (s->steps[j].kind == SEND)
                filled = double_larger(filled,
                    message_time_on_link(x, s, &s->steps[j]) / cost_of_message(x, s, &s->steps[j], THIRDS));
    }
    return !x->match || filled >= FILLED;
}

/* ---- the critical path of one tile ---- */
static double *step_end_at(const struct plan_cost *x, int member, int step)
{
    return &x->ends[(size_t)member * (size_t)x->plan->period + (size_t)step];
}
/* NULL: the step has no time yet, or the rank is not a member. */
static double *step_end_of_rank(const struct plan_cost *x, int rank, int step)
{
    int member = plan_member_of_rank(x->plan, rank);
    return member >= 0 && x->at[member] > step ? step_end_at(x, member, step) : NULL;
}
/* Sets *out to the time at which the message that the rank posts at the step is complete. False: its other end has no
   time yet. */
static bool message_find_end(const struct plan_cost *x, const struct schedule *s, int step, double *out)
{
    struct position other = match_find_other_end(x->match, s->rank, step);
    double posted = *step_end_of_rank(x, s->rank, step), *there = NULL;
    if (other.rank >= 0 && !(there = step_end_of_rank(x, other.rank, other.step))) return false;
    if (there && *there > posted) posted = *there;
    *out = posted + cost_of_message(x, s, &s->steps[step], THIRDS - OF_SENDER)
        + message_time_on_link(x, s, &s->steps[step]);
    return true;
}
/* Raises *begin to the time at which the step's waits end. False: a wait is for a step that has no time yet. */
static bool step_find_begin(const struct plan_cost *x, const struct schedule *s, const struct step *t, double *begin)
{
    for (int w = 0; w < t->wait_count; w++) {
        const struct wait *wait = &s->waits[t->wait + w];
        int member = plan_member_of_rank(x->plan, wait->rank);
        double there = 0;
        if (wait->lag == SLOT_REUSE) continue;
        if (x->at[member] <= wait->step) return false;
        if (wait->rank != s->rank) there = *step_end_at(x, member, wait->step) + x->round;
        else if (!message_find_end(x, s, wait->step, &there)) return false;
        if (there > *begin) *begin = there;
    }
    return true;
}
/* Times the member's steps as far as it gets. True: it moved. */
static bool member_time_steps(const struct plan_cost *x, int member)
{
    const struct schedule *s = &x->plan->ranks[member];
    int from = x->at[member];
    for (; x->at[member] < s->step_count; x->at[member]++) {
        int step = x->at[member];
        double begin = step ? *step_end_at(x, member, step - 1) : 0;
        /* Behind the prelude a step also waits for the roll call. */
        if (step >= s->prelude && begin < x->round && x->ranks > 1) begin = x->round;
        if (!step_find_begin(x, s, &s->steps[step], &begin)) break;
        *step_end_at(x, member, step) = begin + cost_of_step(x, s, &s->steps[step]);
    }
    return x->at[member] > from;
}
static double cost_of_critical_path(const struct plan_cost *x)
{
    double longest = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int m = 0; m < x->plan->count; m++) moved |= member_time_steps(x, m);
    }
    for (int m = 0; m < x->plan->count; m++) {
        const struct schedule *s = &x->plan->ranks[m];
        if (s->step_count) longest = double_larger(longest, *step_end_at(x, m, s->step_count - 1));
        for (int j = s->first_message; j >= 0 && j <= s->last_message; j++) {
            double over = 0;
            if (step_is_message(&s->steps[j]) && message_find_end(x, s, j, &over))
                longest = double_larger(longest, over);
        }
    }
    return longest;
}

/* ---- many tiles ---- */
static double cost_of_busiest_rank(const struct plan_cost *x)
{
    double busiest_rank = 0;
    for (int m = 0; m < x->plan->count; m++) {
        const struct schedule *s = &x->plan->ranks[m];
        double busy = 0;
        for (int j = 0; j < s->step_count; j++)
            busy += cost_of_step(x, s, &s->steps[j])
                + (s->steps[j].kind == RECV ? cost_of_message(x, s, &s->steps[j], THIRDS - OF_SENDER) : 0);
        busy += double_larger(schedule_count_posted_chunks(s, SEND), schedule_count_posted_chunks(s, RECV))
            * x->chunk_bytes * x->machine->wire;
        busiest_rank = double_larger(busiest_rank, busy);
    }
    return busiest_rank;
}
/* Returns the chunks of slots, its own and its peers', that pass through a rank's cache. */
static double schedule_count_slot_chunks(const struct schedule *s)
{
    int chunks = s->chunks[SCRATCH];
    for (int j = 0; j < s->step_count; j++)
        for (int f = 0; f < s->steps[j].from_count; f++) {
            struct span a = step_from(s, &s->steps[j])[f];
            if (a.rank != s->rank && a.buffer == SCRATCH) chunks += a.count;
        }
    return chunks;
}
/* Lines fall into a cache at random, so a fuller cache is more likely to lose some. A lost byte costs the extra time to
   fetch it from beyond the cache. */
static double cost_of_displaced_bytes(const struct plan_cost *x, const struct cutting *c, int in_flight)
{
    double passing = 0, message = (double)c->message_bytes;
    double longer = x->machine->far - x->machine->near, least_longer = x->machine->near / 8;
    for (int m = 0; m < x->plan->count; m++) {
        double bytes = schedule_count_slot_chunks(&x->plan->ranks[m]) * x->chunk_bytes * in_flight;
        passing = double_larger(passing, bytes);
    }
    if (longer < least_longer) longer = least_longer;
    return double_smaller(passing, message) * double_smaller(1, (passing + message) / x->machine->l2) * longer
        * x->load;
}
static double cost_of_all_tiles(struct plan_cost *x, const struct cutting *c)
{
    const struct schedule *s = &x->plan->ranks[0];
    int chunks = s->chunks[INPUT] > s->chunks[OUTPUT] ? s->chunks[INPUT] : s->chunks[OUTPUT];
    double tile = double_smaller((double)c->tile_bytes, (double)c->message_bytes);
    double further = tile > 0 ? (double)c->message_bytes / tile - 1 : 0;
    double in_flight = double_smaller(c->slots, further + 1);
    x->chunk_bytes = tile / chunks;
    double busy = double_larger(cost_of_busiest_rank(x), cost_of_busiest_link(x)),
           one = double_larger(cost_of_critical_path(x), busy), each = double_larger(one / c->slots, busy);
    each += x->machine->tile * x->load;
    return one + further * each + cost_of_displaced_bytes(x, c, (int)in_flight);
}
static tutti_status plan_evaluate_cost(const struct plan *plan, const struct machine *machine, const struct cutting *c,
    double *out, bool *filled)
{
    struct plan_cost x = { .plan = plan, .machine = machine, .fits = (double)c->message_bytes <= machine->l2 / 2 };
    x.ranks = plan->one_host ? plan->count : plan->layout->largest;
    x.round = machine_cost_of_round(machine, x.ranks, c->cores);
    x.cached_fraction = double_smaller(1, machine->l2 / HELD_OF_L2 / (double)(c->message_bytes ? c->message_bytes : 1));
    x.load = x.ranks > c->cores ? (double)x.ranks / c->cores : 1;
    x.peer_read = (machine->slot_read + (x.load - 1) * machine->near / 2) / x.load;
    x.peer_write = (machine->slot_write + (x.load - 1) * machine->near / 2) / x.load;
    x.ends = memory_alloc_zeroed((size_t)plan->count * (size_t)plan->period + 1, sizeof *x.ends);
    x.at = memory_alloc_zeroed((size_t)plan->count, sizeof *x.at);
    bool fine = x.ends && x.at && cost_find_messages(&x);
    if (fine) {
        *out = cost_of_all_tiles(&x, c);
        *filled = messages_are_filled(&x);
    }
    match_destroy(x.match);
    free(x.chunks_between_hosts);
    free(x.share);
    free(x.ends);
    free(x.at);
    return fine ? TUTTI_OK
                : status_fail(TUTTI_NO_MEMORY, "no memory to predict the cost of a plan of %d ranks", plan->size);
}
tutti_status plan_compute_cost(const struct plan *plan, const struct machine *machine, const struct cutting *c,
    double *out)
{
    bool filled;
    return plan_evaluate_cost(plan, machine, c, out, &filled);
}

/* ---- tiles ---- */
double machine_cost_of_round(const struct machine *machine, int ranks, int cores)
{
    if (ranks <= cores) return machine->line;
    return machine->hand_over * ((ranks + cores - 1) / cores);
}
int machine_tiles_in_flight(const struct machine *machine, size_t tile_bytes, bool oversubscribed)
{
    if (oversubscribed) return MOST_TILES_IN_FLIGHT;
    int slots = (int)double_smaller(machine->l2 / (double)tile_bytes, MOST_TILES_IN_FLIGHT);
    return slots > 2 ? slots : 2;
}
size_t machine_largest_tile(const struct machine *machine)
{
    size_t tile = LEAST_TILE;
    while ((double)tile * 2 * 2 <= machine->l2) tile *= 2;
    return tile;
}
tutti_status plan_choose_tile(const struct plan *plan, const struct machine *machine, size_t message_bytes, int cores,
    struct cutting *best, double *out)
{
    bool oversubscribed = (plan->one_host ? plan->count : plan->layout->largest) > cores;
    bool found = false, sends = plan_has_messages(plan);
    double least_cost = 0, alike = sends || oversubscribed ? 1 : LARGER_TILE_TOLERANCE;
    size_t largest = sends ? BYTES_WITH_MESSAGES / TILES_WITH_MESSAGES : machine_largest_tile(machine);
    for (size_t tile = LEAST_TILE; tile <= largest && (!found || tile < 2 * message_bytes); tile *= 2) {
        int slots = sends ? TILES_WITH_MESSAGES : machine_tiles_in_flight(machine, tile, oversubscribed);
        struct cutting c = { message_bytes, tile, slots, cores };
        double cost = 0;
        bool filled, last = 2 * tile > largest || tile >= message_bytes;
        TRY(plan_evaluate_cost(plan, machine, &c, &cost, &filled));
        if ((!filled && !last) || (found && cost >= alike * least_cost)) continue;
        least_cost = found ? double_smaller(cost, least_cost) : cost;
        *best = c;
        *out = cost;
        found = true;
    }
    /* The caller has rounded message_bytes down, so a somewhat longer message must not be cut either. */
    if (sends && best->tile_bytes >= message_bytes && 2 * best->tile_bytes <= largest) best->tile_bytes *= 2;
    return TUTTI_OK;
}

/* ---- waiting ---- */
/* Competitive spinning: a thread that polls for as long as a sleep costs takes at most twice the best time. Pauses keep
   the core from others, so they take a quarter of that time. Yields give the core away, so they may take much longer:
   ranks that compute arrive 0.1 to 0.5 ms apart, and each sleep would cost them 30 us (tests/bench/bench_decode.py). */
enum { PAUSES_OF_SLEEP = 4, SLEEPS_OF_YIELDS = 40 };
static int time_count_rounds(double time, double each)
{
    return time / each < INT_MAX / 4 ? (int)(time / each) + 1 : INT_MAX / 4;
}
struct spin_budget machine_spin_budget(const struct machine *machine, double look)
{
    return (struct spin_budget){ time_count_rounds(machine->sleep / PAUSES_OF_SLEEP, machine->pause + look),
        time_count_rounds(SLEEPS_OF_YIELDS * machine->sleep, machine->yield + look) };
}
