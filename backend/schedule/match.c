/* Numbers the messages of each rank, which needs only its own schedule, and finds the two ends of each message, which
 * needs the schedules of both ranks. */
#include "backend/schedule/match.h"
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* The end of message `number` from one rank to another at a step. number -1: the entry of the table is free. */
struct end {
    int from, to, number;
    enum step_kind kind;
    struct position at;
};
struct match {
    const struct plan *plan;
    /* [begin[member] + step]: the other end of the message that the step posts, or rank -1. */
    struct position *other;
    size_t *begin;
};

/* ---- numbers ---- */
/* Numbers the messages of one schedule. count[peer] has its receives and sends so far; all of it is zero before and
   after the call. */
static void schedule_number_messages(struct schedule *schedule, int (*count)[2])
{
    schedule->first_message = schedule->last_message = -1;
    for (int j = 0; j < schedule->step_count; j++) {
        struct step *step = &schedule->steps[j];
        if (!step_is_message(step)) continue;
        if (schedule->first_message < 0) schedule->first_message = j;
        schedule->last_message = j;
        step->number = count[step->peer][step->kind == SEND]++;
    }
    for (int j = schedule->first_message; j >= 0 && j <= schedule->last_message; j++)
        if (step_is_message(&schedule->steps[j])) count[schedule->steps[j].peer][schedule->steps[j].kind == SEND] = 0;
}
void plan_number_messages(struct plan *plan)
{
    int (*count)[2] = memory_alloc_zeroed((size_t)plan->size, sizeof *count);
    if (!count) plan_fail_out_of_memory(plan);
    for (int m = 0; count && m < plan->count; m++) schedule_number_messages(&plan->ranks[m], count);
    free(count);
}

/* ---- ends: a temporary hash table ---- */
/* An open hash table of mask + 1 entries. */
struct table {
    struct end *ends;
    size_t mask;
};
/* Hashes a number. */
static uint64_t number_mix_bits(uint64_t x)
{
    /* The factor is 2^64 / golden ratio (Knuth: multiplicative hashing). */
    x = (x ^ x >> 31) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}
/* Returns the entry of the hash table that has this end (the same from, to, number and kind), or the free entry for
   it. */
static struct end *end_table_find(const struct table *table, struct end end)
{
    uint64_t name =
        number_mix_bits((uint64_t)end.from << 32 ^ (uint64_t)end.to) + (uint64_t)end.number * 2 + (end.kind == SEND);
    size_t at = number_mix_bits(name) & table->mask;
    for (; table->ends[at].number >= 0; at = (at + 1) & table->mask) {
        const struct end *entry = &table->ends[at];
        if (entry->from == end.from && entry->to == end.to && entry->number == end.number && entry->kind == end.kind)
            break;
    }
    return &table->ends[at];
}
/* Returns the end that a SEND or RECV step of a rank is. */
static struct end message_end_of_step(int rank, int step, const struct step *message)
{
    bool sends = message->kind == SEND;
    return (struct end){ sends ? rank : message->peer, sends ? message->peer : rank, message->number, message->kind,
        { rank, step } };
}
/* Adds all sends and receives of all members to the table, and sets their other ends to unknown. */
static void end_table_fill(struct match *match, struct table *t)
{
    const struct plan *plan = match->plan;
    for (int i = 0; i < plan->count; i++)
        for (int j = 0; j < plan->ranks[i].step_count; j++) {
            match->other[match->begin[i] + (size_t)j] = (struct position){ -1, -1 };
            if (!step_is_message(&plan->ranks[i].steps[j])) continue;
            struct end e = message_end_of_step(plan->ranks[i].rank, j, &plan->ranks[i].steps[j]);
            *end_table_find(t, e) = e;
        }
}
/* Sets the other end of each message for which the table has both ends. */
static void match_pair_ends(struct match *match, const struct table *t)
{
    for (size_t i = 0; i <= t->mask; i++) {
        struct end e = t->ends[i];
        if (e.number < 0) continue;
        e.kind = e.kind == SEND ? RECV : SEND;
        const struct end *other = end_table_find(t, e);
        if (other->number >= 0)
            match->other[match->begin[plan_member_of_rank(match->plan, e.at.rank)] + (size_t)e.at.step] = other->at;
    }
}
/* Allocates an empty table for this many ends. False: out of memory. */
static bool end_table_init(struct table *t, size_t ends)
{
    for (t->mask = 15; t->mask < 2 * ends;) t->mask = 2 * t->mask + 1;
    t->ends = memory_alloc_zeroed(t->mask + 1, sizeof *t->ends);
    for (size_t i = 0; t->ends && i <= t->mask; i++) t->ends[i].number = -1;
    return t->ends != NULL;
}

/* ---- pairs ---- */
struct match *match_create(const struct plan *plan)
{
    struct match *match = memory_alloc_zeroed(1, sizeof *match);
    struct table table = { NULL, 0 };
    size_t steps = 0, messages = 0;
    if (!match) return NULL;
    match->plan = plan;
    match->begin = memory_alloc_zeroed((size_t)plan->count, sizeof *match->begin);
    for (int i = 0; match->begin && i < plan->count; steps += (size_t)plan->ranks[i++].step_count) {
        match->begin[i] = steps;
        for (int j = 0; j < plan->ranks[i].step_count; j++) messages += step_is_message(&plan->ranks[i].steps[j]);
    }
    match->other = memory_alloc_zeroed(steps, sizeof *match->other);
    bool fine = match->begin && match->other && end_table_init(&table, messages);
    if (fine) {
        end_table_fill(match, &table);
        match_pair_ends(match, &table);
    } else {
        match_destroy(match);
        match = NULL;
    }
    free(table.ends);
    return match;
}
void match_destroy(struct match *match)
{
    if (!match) return;
    free(match->begin);
    free(match->other);
    free(match);
}
struct position match_find_other_end(const struct match *match, int rank, int step)
{
    return match->other[match->begin[plan_member_of_rank(match->plan, rank)] + (size_t)step];
}
bool match_is_complete(const struct match *match)
{
    const struct plan *plan = match->plan;
    for (int i = 0; i < plan->count; i++)
        for (int j = 0; j < plan->ranks[i].step_count; j++) {
            const struct step *step = &plan->ranks[i].steps[j];
            if (!step_is_message(step) || !plan_schedule_of_rank(plan, step->peer)) continue;
            struct position o = match_find_other_end(match, plan->ranks[i].rank, j);
            const struct schedule *schedule = o.rank < 0 ? NULL : plan_schedule_of_rank(plan, o.rank);
            if (!schedule
                || step_count_chunks(&plan->ranks[i], step) != step_count_chunks(schedule, &schedule->steps[o.step]))
                return false;
        }
    return true;
}
