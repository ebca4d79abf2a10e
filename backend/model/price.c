/* The price of a plan is the length of its critical path over one tile, and for every further tile the work of the
   busiest rank, because tiles overlap.

   - A round: a wait ends when the peer has reached the position and its line has arrived here. With more ranks than
     cores, the peer first needs a core that another rank must hand over.
   - A line: every wait reads a line that a peer has written, and every publication writes one that peers have read. The
     first line of a run of bytes that a peer had last is not prefetched. The change from tile to tile disturbs
     prefetching, too. So each tile has these costs, however small it is.
   - Bytes: their cost depends on where they lie. A slot is read by a core that did not write it. So is the part of a
     peer's tensor that the peer's cache holds; the rest is equally far for both. Bytes in the cache of a core are near
     for all ranks on that core.
   - Slots rotate over so many bytes that no second-level cache holds them any more (slots.c). Such lines cost less to
     write and to read than lines that a peer has just read.
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
     hosts of two ranks, 1 MiB took 476 to 709 us in the tiles of least price (128 and 256 KiB), and 237 to 367 in one.

   Further tiles cost time but displace fewer bytes, so the best tile grows with the square root of the message. */
#include "backend/model/price.h"
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
/* On one host, the larger of two tiles is chosen if their prices differ by at most this factor, because a part of each
   tile's cost is not priced. If ranks share cores, the lower price counts: 8 ranks on two cores took 27.6 ms for an
   allgather of 64 MiB instead of 20.3. */
static const double ALIKE = 1.06;
enum { LEAST_TILE = 32 << 10, MOST_TILES_IN_FLIGHT = 3, MOST_AT_ONCE = 64 << 10 };
struct pricing {
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
    /* The message fits in the cache. */
    bool fits;
    /* The fraction of a peer's tensor that is in the peer's cache. */
    double held;
    /* NULL: the plan has no messages. */
    struct match *match;
    /* [host]: the chunks that it sends and receives. */
    double (*crosses)[2];
    /* [member]: the chunks of its host's messages divided by those of its own. */
    double *share;
};

/* ---- steps ---- */
/* Returns the cost per byte of a peer's tensor. `peer` is the cost of bytes in the peer's cache. */
static double pages_mixed(const struct pricing *x, double peer)
{
    return x->held * peer + (1 - x->held) * x->machine->far / 2;
}
static bool is_read_by_kernel(const struct pricing *x, int rank, struct span a)
{
    return a.rank != rank && a.buffer != SCRATCH && !plan_shared(x->plan, a.rank);
}
static double read_cost(const struct pricing *x, int rank, struct span a)
{
    const struct machine *m = x->machine;
    if (is_read_by_kernel(x, rank, a)) return x->held * m->fetch + (1 - x->held) * m->lost_fetch;
    if (a.rank != rank && a.buffer == SCRATCH) return m->lost_read;
    if (a.rank != rank) return pages_mixed(x, x->peer_read);
    return (a.buffer == SCRATCH || x->fits ? m->near : m->far) / 2;
}
static double write_cost(const struct pricing *x, int rank, struct span a)
{
    const struct machine *m = x->machine;
    if (a.rank != rank) return pages_mixed(x, x->peer_write);
    if (a.buffer == SCRATCH) return m->lost_write;
    return (x->fits ? m->near : m->far) / 2;
}
/* True if the copy stays in its cell, so that no bytes move. Private tensors always count as in place. */
static bool is_nothing(const struct pricing *x, const struct schedule *s, const struct step *t, struct span to)
{
    struct span from = *step_from(s, t);
    return t->from_count == 1 && plan_shared(x->plan, s->rank) && from.rank == s->rank && to.rank == s->rank
        && plan_home(x->plan, s->rank, from.buffer, from.first) == plan_home(x->plan, s->rank, to.buffer, to.first);
}
static double bytes_cost(const struct pricing *x, const struct schedule *s, const struct step *t)
{
    const struct span *from = step_from(s, t), *to = step_to(s, t);
    double cost = 0;
    if (t->kind != WORK) return 0;
    if (t->to_count == 1 && is_nothing(x, s, t, to[0])) return 0;
    /* The kernel copies into the first destination. */
    bool copies = t->from_count == 1 && is_read_by_kernel(x, s->rank, from[0]);
    for (int f = 0; f < t->from_count; f++) cost += from[f].count * read_cost(x, s->rank, from[f]);
    for (int f = 0; f < t->from_count && !copies; f++)
        if (is_read_by_kernel(x, s->rank, from[f])) cost += from[f].count * x->machine->near / 2;
    for (int d = copies && x->fits; d < t->to_count; d++)
        if (!is_nothing(x, s, t, to[d])) cost += to[d].count * write_cost(x, s->rank, to[d]);
    return (cost + (t->from_count - 1) * to->count * x->machine->add) * x->chunk_bytes * x->load;
}
static int waits_on_peers(const struct schedule *s, const struct step *t)
{
    int count = 0;
    for (int w = 0; w < t->wait_count; w++) count += s->waits[t->wait + w].rank != s->rank;
    return count;
}
static int runs_of_peers(const struct schedule *s, const struct step *t)
{
    const struct span *from = step_from(s, t), *to = step_to(s, t);
    int count = 0;
    if (t->kind != WORK) return 0;
    for (int f = 0; f < t->from_count; f++) count += from[f].rank != s->rank;
    for (int d = 0; d < t->to_count; d++) count += to[d].rank != s->rank || to[d].buffer == SCRATCH;
    return count;
}
/* A copy takes one read; terms of a sum are read in blocks. */
static double calls_cost(const struct pricing *x, const struct schedule *s, const struct step *t)
{
    const struct span *from = step_from(s, t);
    int peers = 0;
    if (t->kind != WORK) return 0;
    for (int f = 0; f < t->from_count; f++) peers += is_read_by_kernel(x, s->rank, from[f]);
    double blocks = t->from_count == 1 ? 1 : double_larger(1, peers * x->chunk_bytes / READ_BLOCK);
    return peers * from->count * blocks * x->machine->reading * x->load;
}
static double lines_cost(const struct pricing *x, const struct schedule *s, const struct step *t)
{
    int lines = waits_on_peers(s, t) + (t->by_tile || t->by_reuse) + runs_of_peers(s, t);
    return lines * x->machine->line * x->load;
}
static int chunks_of(const struct schedule *s, const struct step *t)
{
    int chunks = 0;
    for (int i = 0; i < t->from_count + t->to_count; i++) chunks += s->spans[t->span + i].count;
    return chunks;
}
/* A short message is copied through memory of both ends; a long one is announced and goes from tensor to tensor. */
static double message_cost(const struct pricing *x, const struct schedule *s, const struct step *t, int thirds)
{
    double bytes = chunks_of(s, t) * x->chunk_bytes, whole = x->machine->announced, copy = 0;
    if (bytes <= MOST_AT_ONCE) whole = x->machine->message, copy = bytes * x->machine->far;
    return (whole * thirds / THIRDS + copy) * x->load;
}
static double step_cost(const struct pricing *x, const struct schedule *s, const struct step *t)
{
    return bytes_cost(x, s, t) + calls_cost(x, s, t) + lines_cost(x, s, t)
        + (t->kind == SEND ? message_cost(x, s, t, OF_SENDER) : 0);
}

/* ---- messages ---- */
static double chunks_posted(const struct schedule *s, enum step_kind kind)
{
    double chunks = 0;
    for (int j = s->first_message; j >= 0 && j <= s->last_message; j++)
        if (s->steps[j].kind == kind) chunks += chunks_of(s, &s->steps[j]);
    return chunks;
}
static bool has_messages(const struct plan *p)
{
    bool any = false;
    for (int m = 0; m < p->count; m++) any |= p->ranks[m].first_message >= 0;
    return any;
}
/* False: out of memory. */
static bool find_messages(struct pricing *x)
{
    const struct plan *p = x->plan;
    if (!has_messages(p)) return true;
    x->match = match_create(p);
    x->crosses = memory_zeroed((size_t)p->layout->hosts, sizeof *x->crosses);
    x->share = memory_zeroed((size_t)p->count, sizeof *x->share);
    if (!x->match || !x->crosses || !x->share) return false;
    for (int m = 0; m < p->count; m++) {
        const struct schedule *s = &p->ranks[m];
        x->crosses[s->place.host][0] += chunks_posted(s, SEND);
        x->crosses[s->place.host][1] += chunks_posted(s, RECV);
    }
    for (int m = 0; m < p->count; m++) {
        const struct schedule *s = &p->ranks[m];
        const double *host = x->crosses[s->place.host];
        x->share[m] = (host[0] + host[1]) / double_larger(1, chunks_posted(s, SEND) + chunks_posted(s, RECV));
    }
    return true;
}
/* Returns the time that the bytes of a message take on their share of the host's link. */
static double step_way(const struct pricing *x, const struct schedule *s, const struct step *t)
{
    return x->machine->wire * chunks_of(s, t) * x->chunk_bytes * x->share[plan_index(x->plan, s->rank)];
}
/* Returns the time of the busiest host's link. A link has equal bandwidth in both directions. */
static double busiest_link(const struct pricing *x)
{
    double chunks = 0;
    for (int h = 0; x->crosses && h < x->plan->layout->hosts; h++)
        chunks = double_larger(chunks, double_larger(x->crosses[h][0], x->crosses[h][1]));
    return chunks * x->chunk_bytes * x->machine->wire;
}

/* True if the bytes of the tile's longest message take FILLED times its fixed cost, or if the plan has no messages. */
static bool messages_are_filled(const struct pricing *x)
{
    double filled = 0;
    for (int m = 0; x->match && m < x->plan->count; m++) {
        const struct schedule *s = &x->plan->ranks[m];
        for (int j = s->first_message; j >= 0 && j <= s->last_message; j++)
            if (s->steps[j].kind == SEND)
                filled = double_larger(filled, step_way(x, s, &s->steps[j]) / message_cost(x, s, &s->steps[j], THIRDS));
    }
    return !x->match || filled >= FILLED;
}

/* ---- the critical path of one tile ---- */
static double *ends_at(const struct pricing *x, int member, int step)
{
    return &x->ends[(size_t)member * (size_t)x->plan->period + (size_t)step];
}
/* NULL: the step has no time yet, or the rank is not a member. */
static double *ends_of_rank(const struct pricing *x, int rank, int step)
{
    int member = plan_index(x->plan, rank);
    return member >= 0 && x->at[member] > step ? ends_at(x, member, step) : NULL;
}
/* Sets *out to the time at which the message that the rank posts at the step is complete. False: its other end has no
   time yet. */
static bool message_over(const struct pricing *x, const struct schedule *s, int step, double *out)
{
    struct position other = match_of(x->match, s->rank, step);
    double posted = *ends_of_rank(x, s->rank, step), *there = NULL;
    if (other.rank >= 0 && !(there = ends_of_rank(x, other.rank, other.step))) return false;
    if (there && *there > posted) posted = *there;
    *out = posted + message_cost(x, s, &s->steps[step], THIRDS - OF_SENDER) + step_way(x, s, &s->steps[step]);
    return true;
}
/* Raises *begin to the time at which the step's waits end. False: a wait is for a step that has no time yet. */
static bool begin_of(const struct pricing *x, const struct schedule *s, const struct step *t, double *begin)
{
    for (int w = 0; w < t->wait_count; w++) {
        const struct wait *wait = &s->waits[t->wait + w];
        int member = plan_index(x->plan, wait->rank);
        double there = 0;
        if (wait->lag == SLOT_REUSE) continue;
        if (x->at[member] <= wait->step) return false;
        if (wait->rank != s->rank) there = *ends_at(x, member, wait->step) + x->round;
        else if (!message_over(x, s, wait->step, &there)) return false;
        if (there > *begin) *begin = there;
    }
    return true;
}
/* Times the member's steps as far as it gets. True: it moved. */
static bool run_member(const struct pricing *x, int member)
{
    const struct schedule *s = &x->plan->ranks[member];
    int from = x->at[member];
    for (; x->at[member] < s->step_count; x->at[member]++) {
        int step = x->at[member];
        double begin = step ? *ends_at(x, member, step - 1) : 0;
        /* Behind the prelude a step also waits for the roll call. */
        if (step >= s->prelude && begin < x->round && x->ranks > 1) begin = x->round;
        if (!begin_of(x, s, &s->steps[step], &begin)) break;
        *ends_at(x, member, step) = begin + step_cost(x, s, &s->steps[step]);
    }
    return x->at[member] > from;
}
static double plan_path(const struct pricing *x)
{
    double longest = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int m = 0; m < x->plan->count; m++) moved |= run_member(x, m);
    }
    for (int m = 0; m < x->plan->count; m++) {
        const struct schedule *s = &x->plan->ranks[m];
        if (s->step_count) longest = double_larger(longest, *ends_at(x, m, s->step_count - 1));
        for (int j = s->first_message; j >= 0 && j <= s->last_message; j++) {
            double over = 0;
            if (step_is_message(&s->steps[j]) && message_over(x, s, j, &over)) longest = double_larger(longest, over);
        }
    }
    return longest;
}

/* ---- many tiles ---- */
static double plan_busiest(const struct pricing *x)
{
    double busiest_rank = 0;
    for (int m = 0; m < x->plan->count; m++) {
        const struct schedule *s = &x->plan->ranks[m];
        double busy = 0;
        for (int j = 0; j < s->step_count; j++)
            busy += step_cost(x, s, &s->steps[j])
                + (s->steps[j].kind == RECV ? message_cost(x, s, &s->steps[j], THIRDS - OF_SENDER) : 0);
        busy += double_larger(chunks_posted(s, SEND), chunks_posted(s, RECV)) * x->chunk_bytes * x->machine->wire;
        busiest_rank = double_larger(busiest_rank, busy);
    }
    return busiest_rank;
}
/* Returns the chunks of slots, its own and its peers', that pass through a rank's cache. */
static double slot_chunks(const struct schedule *s)
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
static double displaced_cost(const struct pricing *x, const struct cutting *c, int in_flight)
{
    double passing = 0, message = (double)c->message_bytes;
    double longer = x->machine->far - x->machine->near, least_longer = x->machine->near / 8;
    for (int m = 0; m < x->plan->count; m++) {
        double bytes = slot_chunks(&x->plan->ranks[m]) * x->chunk_bytes * in_flight;
        passing = double_larger(passing, bytes);
    }
    if (longer < least_longer) longer = least_longer;
    return double_smaller(passing, message) * double_smaller(1, (passing + message) / x->machine->l2) * longer
        * x->load;
}
static double plan_total(struct pricing *x, const struct cutting *c)
{
    const struct schedule *s = &x->plan->ranks[0];
    int chunks = s->chunks[INPUT] > s->chunks[OUTPUT] ? s->chunks[INPUT] : s->chunks[OUTPUT];
    double tile = double_smaller((double)c->tile_bytes, (double)c->message_bytes);
    double further = tile > 0 ? (double)c->message_bytes / tile - 1 : 0;
    double in_flight = double_smaller(c->slots, further + 1);
    x->chunk_bytes = tile / chunks;
    double busy = double_larger(plan_busiest(x), busiest_link(x)), one = double_larger(plan_path(x), busy),
           each = double_larger(one / c->slots, busy);
    each += x->machine->tile * x->load;
    return one + further * each + displaced_cost(x, c, (int)in_flight);
}
static tutti_status plan_evaluate(const struct plan *plan, const struct machine *machine, const struct cutting *c,
    double *out, bool *filled)
{
    struct pricing x = { .plan = plan, .machine = machine, .fits = (double)c->message_bytes <= machine->l2 / 2 };
    x.ranks = plan->one_host ? plan->count : plan->layout->largest;
    x.round = price_round(machine, x.ranks, c->cores);
    x.held = double_smaller(1, machine->l2 / HELD_OF_L2 / (double)(c->message_bytes ? c->message_bytes : 1));
    x.load = x.ranks > c->cores ? (double)x.ranks / c->cores : 1;
    x.peer_read = (machine->slot_read + (x.load - 1) * machine->near / 2) / x.load;
    x.peer_write = (machine->slot_write + (x.load - 1) * machine->near / 2) / x.load;
    x.ends = memory_zeroed((size_t)plan->count * (size_t)plan->period + 1, sizeof *x.ends);
    x.at = memory_zeroed((size_t)plan->count, sizeof *x.at);
    bool fine = x.ends && x.at && find_messages(&x);
    if (fine) {
        *out = plan_total(&x, c);
        *filled = messages_are_filled(&x);
    }
    match_destroy(x.match);
    free(x.crosses);
    free(x.share);
    free(x.ends);
    free(x.at);
    return fine ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory to price a plan of %d ranks", plan->size);
}
tutti_status price_plan(const struct plan *plan, const struct machine *machine, const struct cutting *c, double *out)
{
    bool filled;
    return plan_evaluate(plan, machine, c, out, &filled);
}

/* ---- tiles ---- */
double price_round(const struct machine *machine, int ranks, int cores)
{
    if (ranks <= cores) return machine->line;
    return machine->hand_over * ((ranks + cores - 1) / cores);
}
int price_slots(const struct machine *machine, size_t tile_bytes, bool oversubscribed)
{
    if (oversubscribed) return MOST_TILES_IN_FLIGHT;
    int slots = (int)double_smaller(machine->l2 / (double)tile_bytes, MOST_TILES_IN_FLIGHT);
    return slots > 2 ? slots : 2;
}
size_t price_largest_tile(const struct machine *machine)
{
    size_t tile = LEAST_TILE;
    while ((double)tile * 2 * 2 <= machine->l2) tile *= 2;
    return tile;
}
tutti_status price_tile(const struct plan *plan, const struct machine *machine, size_t message_bytes, int cores,
    struct cutting *best, double *out)
{
    bool oversubscribed = (plan->one_host ? plan->count : plan->layout->largest) > cores;
    bool found = false, sends = has_messages(plan);
    double least_price = 0, alike = sends || oversubscribed ? 1 : ALIKE;
    size_t largest = sends ? BYTES_WITH_MESSAGES / TILES_WITH_MESSAGES : price_largest_tile(machine);
    for (size_t tile = LEAST_TILE; tile <= largest && (!found || tile < 2 * message_bytes); tile *= 2) {
        int slots = sends ? TILES_WITH_MESSAGES : price_slots(machine, tile, oversubscribed);
        struct cutting c = { message_bytes, tile, slots, cores };
        double price = 0;
        bool filled, last = 2 * tile > largest || tile >= message_bytes;
        TRY(plan_evaluate(plan, machine, &c, &price, &filled));
        if ((!filled && !last) || (found && price >= alike * least_price)) continue;
        least_price = found ? double_smaller(price, least_price) : price;
        *best = c;
        *out = price;
        found = true;
    }
    /* The caller has rounded message_bytes down, so a somewhat longer message must not be cut either. */
    if (sends && best->tile_bytes >= message_bytes && 2 * best->tile_bytes <= largest) best->tile_bytes *= 2;
    return TUTTI_OK;
}

/* ---- waiting ---- */
/* Competitive spinning: a thread that polls for as long as a sleep costs takes at most twice the best time. Pauses keep
   the core from others, so they take a quarter of that time. Yields give the core away, so they may take much longer:
   ranks that compute arrive 0.1 to 0.5 ms apart, and each sleep would cost them 30 us (bench_decode.py). */
enum { PAUSES_OF_SLEEP = 4, SLEEPS_OF_YIELDS = 40 };
static int time_rounds(double time, double each)
{
    return time / each < INT_MAX / 4 ? (int)(time / each) + 1 : INT_MAX / 4;
}
struct spin_budget price_spin_budget(const struct machine *machine, double look)
{
    return (struct spin_budget){ time_rounds(machine->sleep / PAUSES_OF_SLEEP, machine->pause + look),
        time_rounds(SLEEPS_OF_YIELDS * machine->sleep, machine->yield + look) };
}
