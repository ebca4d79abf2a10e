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
   - Bytes that the kernel reads from a peer (plan.can_read_private) are copied directly to their destination; terms
     of a sum go through this rank's cache. Each read costs a system call.
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
     hosts of two ranks, 1 MiB took 476 to 709 us in the tiles of least cost (128 and 256 KiB), and 237 to 367 us
     in one tile.

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
/* In bytes: the smallest tile, and the longest message that is sent without an announcement. */
enum { LEAST_TILE = 32 << 10, MOST_TILES_IN_FLIGHT = 3, MOST_AT_ONCE = 64 << 10 };
/* The computation of one plan's cost. Times are in ns. */
struct plan_cost {
    const struct plan *plan;
    const struct machine *machine;
    /* [member][step]: when the step ends; rows of `period`. */
    double *ends;
    /* [member]: its next step, which has no time yet. */
    int *at;
    /* The number of ranks of the plan's host, or of the largest host. */
    int ranks;
    /* round: as machine_cost_of_round; chunk_bytes: of a chunk in one tile; load: ranks per core, at least 1. */
    double round, chunk_bytes, load;
    /* The ns per byte of reading and writing what is in a peer's cache: the mean over peers on other cores and peers on
       this core. */
    double peer_read, peer_write;
    /* True: the message takes at most half of the second-level cache. */
    bool fits_cache;
    /* The fraction of a peer's tensor that is in the peer's cache. */
    double cached_fraction;
    /* NULL: the plan has no messages. */
    struct match *match;
    /* [host]: the chunks that its members send, and those that they receive. */
    double (*chunks_between_hosts)[2];
    /* [member]: the chunks of its host's messages divided by those of its own. */
    double *share;
};

/* ---- steps ---- */
/* Returns the ns per byte of a peer's tensor. `cached`: the ns per byte of what is in the peer's cache. */
static double cost_of_peer_byte(const struct plan_cost *costs, double cached)
{
    return costs->cached_fraction * cached + (1 - costs->cached_fraction) * costs->machine->far / 2;
}
/* True if the rank reads the span through the kernel: a tensor of a peer that is not shared. */
static bool span_is_read_by_kernel(const struct plan_cost *costs, int rank, struct span span)
{
    return span.rank != rank && span.buffer != SCRATCH && !plan_is_shared(costs->plan, span.rank);
}
/* Returns the ns per byte that the rank reads from a span. The machine's `near` and `far` are costs of copies within
   and beyond the second-level cache, and half of a copy is its read. */
static double cost_of_read_byte(const struct plan_cost *costs, int rank, struct span span)
{
    const struct machine *machine = costs->machine;
    if (span_is_read_by_kernel(costs, rank, span))
        return costs->cached_fraction * machine->fetch + (1 - costs->cached_fraction) * machine->lost_fetch;
    if (span.rank != rank && span.buffer == SCRATCH) return machine->lost_read;
    if (span.rank != rank) return cost_of_peer_byte(costs, costs->peer_read);
    return (span.buffer == SCRATCH || costs->fits_cache ? machine->near : machine->far) / 2;
}
/* Returns the ns per byte that the rank writes to a span. Half of a copy is its write. Slots rotate, so their lines
   have left every second-level cache. */
static double cost_of_written_byte(const struct plan_cost *costs, int rank, struct span span)
{
    const struct machine *machine = costs->machine;
    if (span.rank != rank) return cost_of_peer_byte(costs, costs->peer_write);
    if (span.buffer == SCRATCH) return machine->lost_write;
    return (costs->fits_cache ? machine->near : machine->far) / 2;
}
/* True if the copy stays in its cell, so that no bytes move. Only cells of shared tensors tell that, because plans
   treat private ones as in place even if they are not. */
static bool copy_stays_in_cell(const struct plan_cost *costs, const struct schedule *schedule, const struct step *step,
    struct span to)
{
    struct span from = *step_from(schedule, step);
    return step->from_count == 1 && plan_is_shared(costs->plan, schedule->rank) && from.rank == schedule->rank
        && to.rank == schedule->rank
        && plan_cell_index(costs->plan, schedule->rank, from.buffer, from.first)
        == plan_cell_index(costs->plan, schedule->rank, to.buffer, to.first);
}
/* Returns the time in ns that a work step spends on bytes of one tile. */
static double cost_of_step_bytes(const struct plan_cost *costs, const struct schedule *schedule,
    const struct step *step)
{
    const struct span *from = step_from(schedule, step), *to = step_to(schedule, step);
    double cost = 0;
    if (step->kind != WORK) return 0;
    if (step->to_count == 1 && copy_stays_in_cell(costs, schedule, step, to[0])) return 0;
    /* The kernel copies into the first destination. */
    bool copies = step->from_count == 1 && span_is_read_by_kernel(costs, schedule->rank, from[0]);
    for (int f = 0; f < step->from_count; f++)
        cost += from[f].count * cost_of_read_byte(costs, schedule->rank, from[f]);
    for (int f = 0; f < step->from_count && !copies; f++)
        if (span_is_read_by_kernel(costs, schedule->rank, from[f])) cost += from[f].count * costs->machine->near / 2;
    for (int d = copies && costs->fits_cache; d < step->to_count; d++)
        if (!copy_stays_in_cell(costs, schedule, step, to[d]))
            cost += to[d].count * cost_of_written_byte(costs, schedule->rank, to[d]);
    return (cost + (step->from_count - 1) * to->count * costs->machine->add) * costs->chunk_bytes * costs->load;
}
/* Returns how many waits of the step are for peers. */
static int step_count_peer_waits(const struct schedule *schedule, const struct step *step)
{
    int count = 0;
    for (int w = 0; w < step->wait_count; w++) count += schedule->waits[step->wait + w].rank != schedule->rank;
    return count;
}
/* Returns how many spans of a step have lines that a peer had last. The first line of each is a cache miss. */
static int step_count_peer_runs(const struct schedule *schedule, const struct step *step)
{
    const struct span *from = step_from(schedule, step), *to = step_to(schedule, step);
    int count = 0;
    if (step->kind != WORK) return 0;
    for (int f = 0; f < step->from_count; f++) count += from[f].rank != schedule->rank;
    for (int d = 0; d < step->to_count; d++) count += to[d].rank != schedule->rank || to[d].buffer == SCRATCH;
    return count;
}
/* Returns the ns of the system calls by which a step reads. A copy takes one read; terms of a sum are read in
   blocks. */
static double cost_of_kernel_reads(const struct plan_cost *costs, const struct schedule *schedule,
    const struct step *step)
{
    const struct span *from = step_from(schedule, step);
    int peers = 0;
    if (step->kind != WORK) return 0;
    for (int f = 0; f < step->from_count; f++) peers += span_is_read_by_kernel(costs, schedule->rank, from[f]);
    double blocks = step->from_count == 1 ? 1 : double_larger(1, peers * costs->chunk_bytes / READ_BLOCK);
    return peers * from->count * blocks * costs->machine->reading * costs->load;
}
/* Returns the ns of a step for lines of other cores: waits, a publication, and the first lines of spans. */
static double cost_of_step_lines(const struct plan_cost *costs, const struct schedule *schedule,
    const struct step *step)
{
    int lines = step_count_peer_waits(schedule, step) + (step->by_tile || step->by_reuse)
        + step_count_peer_runs(schedule, step);
    return lines * costs->machine->line * costs->load;
}
/* Returns the ns of work on a message: `thirds` thirds of its fixed cost. A short message is also copied through memory
   at each end; a long one is announced and goes from tensor to tensor. */
static double cost_of_message(const struct plan_cost *costs, const struct schedule *schedule, const struct step *step,
    int thirds)
{
    double bytes = step_count_chunks(schedule, step) * costs->chunk_bytes, whole = costs->machine->announced, copy = 0;
    if (bytes <= MOST_AT_ONCE) whole = costs->machine->message, copy = bytes * costs->machine->far;
    return (whole * thirds / THIRDS + copy) * costs->load;
}
/* Returns the ns of work in a step, for one tile. A receive costs nothing when it is posted. */
static double cost_of_step(const struct plan_cost *costs, const struct schedule *schedule, const struct step *step)
{
    return cost_of_step_bytes(costs, schedule, step) + cost_of_kernel_reads(costs, schedule, step)
        + cost_of_step_lines(costs, schedule, step)
        + (step->kind == SEND ? cost_of_message(costs, schedule, step, OF_SENDER) : 0);
}

/* ---- messages ---- */
/* Returns the chunks of all messages of one kind (SEND or RECV) that the schedule posts. */
static double schedule_count_posted_chunks(const struct schedule *schedule, enum step_kind kind)
{
    double chunks = 0;
    for (int j = schedule->first_message; j >= 0 && j <= schedule->last_message; j++)
        if (schedule->steps[j].kind == kind) chunks += step_count_chunks(schedule, &schedule->steps[j]);
    return chunks;
}
/* True if a member sends or receives. It needs only the schedules. */
static bool plan_has_messages(const struct plan *plan)
{
    bool any = false;
    for (int m = 0; m < plan->count; m++) any |= plan->ranks[m].first_message >= 0;
    return any;
}
/* Sets match, chunks_between_hosts and share if the plan has messages. False: out of memory. */
static bool cost_find_messages(struct plan_cost *costs)
{
    const struct plan *plan = costs->plan;
    if (!plan_has_messages(plan)) return true;
    costs->match = match_create(plan);
    costs->chunks_between_hosts = memory_alloc_zeroed((size_t)plan->layout->hosts, sizeof *costs->chunks_between_hosts);
    costs->share = memory_alloc_zeroed((size_t)plan->count, sizeof *costs->share);
    if (!costs->match || !costs->chunks_between_hosts || !costs->share) return false;
    for (int m = 0; m < plan->count; m++) {
        const struct schedule *schedule = &plan->ranks[m];
        costs->chunks_between_hosts[schedule->place.host][0] += schedule_count_posted_chunks(schedule, SEND);
        costs->chunks_between_hosts[schedule->place.host][1] += schedule_count_posted_chunks(schedule, RECV);
    }
    for (int m = 0; m < plan->count; m++) {
        const struct schedule *schedule = &plan->ranks[m];
        const double *host = costs->chunks_between_hosts[schedule->place.host];
        costs->share[m] = (host[0] + host[1])
            / double_larger(1,
                schedule_count_posted_chunks(schedule, SEND) + schedule_count_posted_chunks(schedule, RECV));
    }
    return true;
}
/* Returns the ns that the bytes of a message take on their share of the host's link. */
static double message_time_on_link(const struct plan_cost *costs, const struct schedule *schedule,
    const struct step *step)
{
    return costs->machine->wire * step_count_chunks(schedule, step) * costs->chunk_bytes
        * costs->share[plan_member_of_rank(costs->plan, schedule->rank)];
}
/* Returns the ns per tile of the busiest host's link. A link has equal bandwidth in both directions. */
static double cost_of_busiest_link(const struct plan_cost *costs)
{
    double chunks = 0;
    for (int h = 0; costs->chunks_between_hosts && h < costs->plan->layout->hosts; h++)
        chunks =
            double_larger(chunks, double_larger(costs->chunks_between_hosts[h][0], costs->chunks_between_hosts[h][1]));
    return chunks * costs->chunk_bytes * costs->machine->wire;
}

/* True if the bytes of the tile's longest message take FILLED times its fixed cost, or if the plan has no messages. */
static bool messages_are_filled(const struct plan_cost *costs)
{
    double filled = 0;
    for (int m = 0; costs->match && m < costs->plan->count; m++) {
        const struct schedule *schedule = &costs->plan->ranks[m];
        for (int j = schedule->first_message; j >= 0 && j <= schedule->last_message; j++)
            if (schedule->steps[j].kind == SEND)
                filled = double_larger(filled,
                    message_time_on_link(costs, schedule, &schedule->steps[j])
                        / cost_of_message(costs, schedule, &schedule->steps[j], THIRDS));
    }
    return !costs->match || filled >= FILLED;
}

/* ---- the critical path of one tile ---- */
/* Returns the entry for the end of a member's step. */
static double *step_end_at(const struct plan_cost *costs, int member, int step)
{
    return &costs->ends[(size_t)member * (size_t)costs->plan->period + (size_t)step];
}
/* Returns the end of a rank's step. NULL: it has no time yet, or the rank is not a member. */
static double *step_end_of_rank(const struct plan_cost *costs, int rank, int step)
{
    int member = plan_member_of_rank(costs->plan, rank);
    return member >= 0 && costs->at[member] > step ? step_end_at(costs, member, step) : NULL;
}
/* Sets *out to the time at which the message that the rank posts at the step is complete. False: its other end has no
   time yet. */
static bool message_find_end(const struct plan_cost *costs, const struct schedule *schedule, int step, double *out)
{
    struct position other = match_find_other_end(costs->match, schedule->rank, step);
    double posted = *step_end_of_rank(costs, schedule->rank, step), *other_end = NULL;
    if (other.rank >= 0 && !(other_end = step_end_of_rank(costs, other.rank, other.step))) return false;
    if (other_end && *other_end > posted) posted = *other_end;
    *out = posted + cost_of_message(costs, schedule, &schedule->steps[step], THIRDS - OF_SENDER)
        + message_time_on_link(costs, schedule, &schedule->steps[step]);
    return true;
}
/* Raises *begin to the time at which the step's waits end. False: a wait is for a step that has no time yet. */
static bool step_find_begin(const struct plan_cost *costs, const struct schedule *schedule, const struct step *step,
    double *begin)
{
    for (int w = 0; w < step->wait_count; w++) {
        const struct wait *wait = &schedule->waits[step->wait + w];
        int member = plan_member_of_rank(costs->plan, wait->rank);
        double end = 0;
        if (wait->lag == SLOT_REUSE) continue;
        if (costs->at[member] <= wait->step) return false;
        if (wait->rank != schedule->rank) end = *step_end_at(costs, member, wait->step) + costs->round;
        else if (!message_find_end(costs, schedule, wait->step, &end)) return false;
        if (end > *begin) *begin = end;
    }
    return true;
}
/* Computes the ends of the member's steps up to one whose waits have no time yet. True: it computed at least one. */
static bool member_time_steps(const struct plan_cost *costs, int member)
{
    const struct schedule *schedule = &costs->plan->ranks[member];
    int first = costs->at[member];
    for (; costs->at[member] < schedule->step_count; costs->at[member]++) {
        int step = costs->at[member];
        double begin = step ? *step_end_at(costs, member, step - 1) : 0;
        /* Behind the prelude a step also waits for the roll call. */
        if (step >= schedule->prelude && begin < costs->round && costs->ranks > 1) begin = costs->round;
        if (!step_find_begin(costs, schedule, &schedule->steps[step], &begin)) break;
        *step_end_at(costs, member, step) = begin + cost_of_step(costs, schedule, &schedule->steps[step]);
    }
    return costs->at[member] > first;
}
/* Returns the length in ns of the longest chain of steps and messages over one tile. */
static double cost_of_critical_path(const struct plan_cost *costs)
{
    double longest = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int m = 0; m < costs->plan->count; m++) moved |= member_time_steps(costs, m);
    }
    for (int m = 0; m < costs->plan->count; m++) {
        const struct schedule *schedule = &costs->plan->ranks[m];
        if (schedule->step_count) longest = double_larger(longest, *step_end_at(costs, m, schedule->step_count - 1));
        for (int j = schedule->first_message; j >= 0 && j <= schedule->last_message; j++) {
            double end = 0;
            if (step_is_message(&schedule->steps[j]) && message_find_end(costs, schedule, j, &end))
                longest = double_larger(longest, end);
        }
    }
    return longest;
}

/* ---- many tiles ---- */
/* Returns the ns that the busiest rank works in one tile, with its messages. */
static double cost_of_busiest_rank(const struct plan_cost *costs)
{
    double busiest_rank = 0;
    for (int m = 0; m < costs->plan->count; m++) {
        const struct schedule *schedule = &costs->plan->ranks[m];
        double busy = 0;
        for (int j = 0; j < schedule->step_count; j++)
            busy += cost_of_step(costs, schedule, &schedule->steps[j])
                + (schedule->steps[j].kind == RECV
                        ? cost_of_message(costs, schedule, &schedule->steps[j], THIRDS - OF_SENDER)
                        : 0);
        busy +=
            double_larger(schedule_count_posted_chunks(schedule, SEND), schedule_count_posted_chunks(schedule, RECV))
            * costs->chunk_bytes * costs->machine->wire;
        busiest_rank = double_larger(busiest_rank, busy);
    }
    return busiest_rank;
}
/* Returns how many SCRATCH chunks, the rank's own and those of peers that it reads, pass through its cache. */
static double schedule_count_slot_chunks(const struct schedule *schedule)
{
    int chunks = schedule->chunks[SCRATCH];
    for (int j = 0; j < schedule->step_count; j++)
        for (int f = 0; f < schedule->steps[j].from_count; f++) {
            struct span span = step_from(schedule, &schedule->steps[j])[f];
            if (span.rank != schedule->rank && span.buffer == SCRATCH) chunks += span.count;
        }
    return chunks;
}
/* Returns the ns for bytes of the message that slots displace from the cache. Lines fall into a cache at random, so a
   fuller cache is more likely to lose some. A lost byte costs the extra time to fetch it from beyond the cache. */
static double cost_of_displaced_bytes(const struct plan_cost *costs, const struct cutting *cutting, int in_flight)
{
    double slot_bytes = 0, message_bytes = (double)cutting->message_bytes;
    double longer = costs->machine->far - costs->machine->near, least_longer = costs->machine->near / 8;
    for (int m = 0; m < costs->plan->count; m++) {
        double bytes = schedule_count_slot_chunks(&costs->plan->ranks[m]) * costs->chunk_bytes * in_flight;
        slot_bytes = double_larger(slot_bytes, bytes);
    }
    if (longer < least_longer) longer = least_longer;
    return double_smaller(slot_bytes, message_bytes)
        * double_smaller(1, (slot_bytes + message_bytes) / costs->machine->l2) * longer * costs->load;
}
/* Returns the ns of the whole message: the first tile takes its critical path, and each further one the time of the
   busiest rank or link. */
static double cost_of_all_tiles(struct plan_cost *costs, const struct cutting *cutting)
{
    const struct schedule *schedule = &costs->plan->ranks[0];
    int chunks =
        schedule->chunks[INPUT] > schedule->chunks[OUTPUT] ? schedule->chunks[INPUT] : schedule->chunks[OUTPUT];
    double tile = double_smaller((double)cutting->tile_bytes, (double)cutting->message_bytes);
    double further = tile > 0 ? (double)cutting->message_bytes / tile - 1 : 0;
    double in_flight = double_smaller(cutting->slots, further + 1);
    costs->chunk_bytes = tile / chunks;
    double busy = double_larger(cost_of_busiest_rank(costs), cost_of_busiest_link(costs)),
           one = double_larger(cost_of_critical_path(costs), busy), each = double_larger(one / cutting->slots, busy);
    each += costs->machine->tile * costs->load;
    return one + further * each + cost_of_displaced_bytes(costs, cutting, (int)in_flight);
}
/* Computes the cost in ns of a plan with one cutting. *filled: as messages_are_filled; if false, the tiles are too
   small. */
static tutti_status plan_evaluate_cost(const struct plan *plan, const struct machine *machine,
    const struct cutting *cutting, double *out, bool *filled)
{
    struct plan_cost costs = {
        .plan = plan, .machine = machine, .fits_cache = (double)cutting->message_bytes <= machine->l2 / 2
    };
    costs.ranks = plan->one_host ? plan->count : plan->layout->largest;
    costs.round = machine_cost_of_round(machine, costs.ranks, cutting->cores);
    costs.cached_fraction =
        double_smaller(1, machine->l2 / HELD_OF_L2 / (double)(cutting->message_bytes ? cutting->message_bytes : 1));
    costs.load = costs.ranks > cutting->cores ? (double)costs.ranks / cutting->cores : 1;
    costs.peer_read = (machine->slot_read + (costs.load - 1) * machine->near / 2) / costs.load;
    costs.peer_write = (machine->slot_write + (costs.load - 1) * machine->near / 2) / costs.load;
    costs.ends = memory_alloc_zeroed((size_t)plan->count * (size_t)plan->period + 1, sizeof *costs.ends);
    costs.at = memory_alloc_zeroed((size_t)plan->count, sizeof *costs.at);
    bool has_memory = costs.ends && costs.at && cost_find_messages(&costs);
    if (has_memory) {
        *out = cost_of_all_tiles(&costs, cutting);
        *filled = messages_are_filled(&costs);
    }
    match_destroy(costs.match);
    free(costs.chunks_between_hosts);
    free(costs.share);
    free(costs.ends);
    free(costs.at);
    return has_memory ? TUTTI_OK
                      : status_fail(TUTTI_NO_MEMORY, "no memory to predict the cost of a plan of %d ranks", plan->size);
}
tutti_status plan_compute_cost(const struct plan *plan, const struct machine *machine, const struct cutting *cutting,
    double *out)
{
    bool filled;
    return plan_evaluate_cost(plan, machine, cutting, out, &filled);
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
    bool found = false, has_messages = plan_has_messages(plan);
    double least_cost = 0, tolerance = has_messages || oversubscribed ? 1 : LARGER_TILE_TOLERANCE;
    size_t largest = has_messages ? BYTES_WITH_MESSAGES / TILES_WITH_MESSAGES : machine_largest_tile(machine);
    for (size_t tile = LEAST_TILE; tile <= largest && (!found || tile < 2 * message_bytes); tile *= 2) {
        int slots = has_messages ? TILES_WITH_MESSAGES : machine_tiles_in_flight(machine, tile, oversubscribed);
        struct cutting cutting = { message_bytes, tile, slots, cores };
        double cost = 0;
        bool filled, is_last = 2 * tile > largest || tile >= message_bytes;
        TRY(plan_evaluate_cost(plan, machine, &cutting, &cost, &filled));
        if ((!filled && !is_last) || (found && cost >= tolerance * least_cost)) continue;
        least_cost = found ? double_smaller(cost, least_cost) : cost;
        *best = cutting;
        *out = cost;
        found = true;
    }
    /* The caller has rounded message_bytes down, so a somewhat longer message must not be cut either. */
    if (has_messages && best->tile_bytes >= message_bytes && 2 * best->tile_bytes <= largest) best->tile_bytes *= 2;
    return TUTTI_OK;
}

/* ---- waiting ---- */
/* Competitive spinning: a thread that polls for as long as a sleep costs takes at most twice the best time. Pauses keep
   the core from others, so they take a quarter of that time. Yields give the core away, so they may take much longer:
   ranks that compute arrive 0.1 to 0.5 ms apart, and should not sleep each time (tests/bench/bench_decode.py). A thread
   pauses, and then yields, for these multiples of the time of a sleep. */
static const double SLEEPS_OF_PAUSES = 0.25, SLEEPS_OF_YIELDS = 40;
/* Returns how many rounds of `each` ns take `time` ns, at least one. */
static int time_count_rounds(double time, double each)
{
    return time / each < INT_MAX / 4 ? (int)(time / each) + 1 : INT_MAX / 4;
}
struct spin_budget machine_spin_budget(const struct machine *machine, double poll_ns)
{
    return (struct spin_budget){ time_count_rounds(SLEEPS_OF_PAUSES * machine->sleep, machine->pause + poll_ns),
        time_count_rounds(SLEEPS_OF_YIELDS * machine->sleep, machine->yield + poll_ns) };
}
