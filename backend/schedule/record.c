/* Recording: the functions that an algorithm calls. The first error sticks to the schedule and all later calls are
 * ignored, so algorithms need no error handling. Consecutive steps that make one value are recorded as one step. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

const char schedule_no_memory[] = "out of memory";

void schedule_set_error(struct schedule *schedule, const char *error)
{
    if (schedule->error) return;
    schedule->error = error;
    schedule->error_rank = -1;
}
void plan_fail_out_of_memory(struct plan *plan) { schedule_set_error(&plan->ranks[0], schedule_no_memory); }
void schedule_free_arrays(struct schedule *schedule)
{
    free(schedule->steps);
    free(schedule->spans);
    free(schedule->waits);
}
struct schedule schedule_restart_recording(struct schedule *schedule)
{
    struct schedule old = *schedule;
    schedule->steps = NULL;
    schedule->spans = NULL;
    schedule->waits = NULL;
    schedule->step_count = schedule->step_room = schedule->span_count = schedule->span_room = schedule->wait_count =
        schedule->wait_room = 0;
    return old;
}

/* ---- collectives, teams ---- */
/* Only the root has INPUT in BROADCAST and SCATTER, and OUTPUT in REDUCE and GATHER. */
bool collective_has_buffer(enum collective collective, int root, int rank, enum buffer buffer)
{
    bool input_on_root = collective == BROADCAST || collective == SCATTER,
         output_on_root = collective == REDUCE || collective == GATHER;
    return rank == root || !((buffer == INPUT && input_on_root) || (buffer == OUTPUT && output_on_root));
}
/* In a collective with a root (here rank 0) the other ranks (here rank 1) lack one of the two buffers. */
bool collective_has_root(enum collective collective)
{
    return !collective_has_buffer(collective, 0, 1, INPUT) || !collective_has_buffer(collective, 0, 1, OUTPUT);
}
/* `buffer` is INPUT or OUTPUT. It has one chunk for each of `size` ranks, or one chunk. */
int collective_count_chunks(enum collective collective, enum buffer buffer, int size)
{
    bool one_per_rank = buffer == INPUT
        ? collective == REDUCE_SCATTER || collective == SCATTER || collective == ALL_TO_ALL
        : collective == ALLGATHER || collective == GATHER || collective == ALL_TO_ALL;
    return one_per_rank ? size : 1;
}
bool collective_is_reduction(enum collective collective)
{
    return collective == ALLREDUCE || collective == REDUCE || collective == REDUCE_SCATTER;
}

/* The values of team.kind: all ranks of the group, the ranks of one host, or one rank of each host. team.slice is the
   host of a TEAM_HOST, and the slice of the message that a TEAM_ACROSS works on. */
enum { TEAM_ALL, TEAM_HOST, TEAM_ACROSS };
struct team team_of_group(const struct schedule *schedule)
{
    return (struct team){ .layout = schedule->layout,
        .kind = TEAM_ALL,
        .size = schedule->size,
        .me = schedule->rank,
        .pieces = schedule->cut,
        .source = INPUT };
}
struct team team_of_host(const struct schedule *schedule)
{
    int host = schedule->place.host;
    return (struct team){ .layout = schedule->layout,
        .kind = TEAM_HOST,
        .slice = host,
        .size = layout_host_size(schedule->layout, host),
        .me = schedule->place.index,
        .pieces = 1,
        .source = INPUT };
}
struct team team_across_hosts(const struct schedule *schedule, int slice)
{
    return (struct team){ .layout = schedule->layout,
        .kind = TEAM_ACROSS,
        .slice = slice,
        .size = schedule->layout->hosts,
        .me = schedule->place.host,
        .pieces = 1,
        .source = INPUT };
}
int team_rank(const struct team *team, int index)
{
    int i = (index % team->size + team->size) % team->size;
    if (team->kind == TEAM_HOST) return layout_rank(team->layout, team->slice, i);
    return team->kind == TEAM_ACROSS ? layout_rank(team->layout, i, team->slice % layout_host_size(team->layout, i))
                                     : i;
}

/* ---- spans ---- */
struct span span_of_chunk(int rank, enum buffer buffer, int index) { return (struct span){ rank, buffer, index, 1 }; }
struct span span_of_buffer(const struct schedule *schedule, int rank, enum buffer buffer)
{
    return (struct span){ rank, buffer, 0, schedule->chunks[buffer] };
}
struct span span_new_scratch(struct schedule *schedule, int count)
{
    int first = schedule->chunks[SCRATCH];
    if (count < 0 || count > INT_MAX - first) schedule_set_error(schedule, "too much scratch");
    else schedule->chunks[SCRATCH] = first + count;
    return (struct span){ schedule->rank, SCRATCH, first, count };
}
void schedule_cut(struct schedule *schedule, int pieces)
{
    int chunks =
        schedule->chunks[INPUT] > schedule->chunks[OUTPUT] ? schedule->chunks[INPUT] : schedule->chunks[OUTPUT];
    if (schedule->error) return;
    if (schedule->step_count || schedule->cut != 1)
        schedule_set_error(schedule, "divides the message after the first step");
    else if (pieces < 1 || pieces > INT_MAX / 2 / chunks)
        schedule_set_error(schedule, "divides the message into no pieces, or too many");
    if (schedule->error) return;
    schedule->chunks[INPUT] *= pieces;
    schedule->chunks[OUTPUT] *= pieces;
    schedule->cut = pieces;
}
bool spans_are_equal(struct span a, struct span b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.first == b.first && a.count == b.count;
}
bool spans_overlap(struct span a, struct span b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.first < b.first + b.count && b.first < a.first + a.count;
}
/* True if this rank may access the span. Otherwise sets the schedule's error: the span is on another host, out of
   range, or in an absent buffer. SCRATCH grows to hold the span. */
static bool schedule_check_span(struct schedule *schedule, struct span span)
{
    if (schedule->error) return false;
    bool same_host = span.rank >= 0 && span.rank < schedule->size
        && layout_host(schedule->layout, span.rank) == schedule->place.host;
    if (!same_host) schedule_set_error(schedule, "touches the memory of another host");
    else if (span.first < 0 || span.count < 1 || span.count > INT_MAX - span.first)
        schedule_set_error(schedule, "span out of range");
    else if (span.buffer == SCRATCH && span.first + span.count > schedule->chunks[SCRATCH])
        schedule->chunks[SCRATCH] = span.first + span.count;
    else if (span.first + span.count > schedule->chunks[span.buffer]) schedule_set_error(schedule, "span out of range");
    else if (!collective_has_buffer(schedule->collective, schedule->root, span.rank, span.buffer)) {
        schedule_set_error(schedule, "has no such buffer");
        schedule->error_rank = span.rank;
    }
    return !schedule->error;
}
/* True if this rank may write the span; otherwise sets the error. */
static bool schedule_check_target(struct schedule *schedule, struct span to)
{
    if (schedule_check_span(schedule, to) && to.buffer == INPUT) schedule_set_error(schedule, "writes an input chunk");
    return !schedule->error;
}
/* True if one span may be copied or added to the other. Sets the error if their lengths differ or they overlap in
   part. */
static bool schedule_check_pair(struct schedule *schedule, struct span to, struct span from)
{
    if (!schedule_check_target(schedule, to) || !schedule_check_span(schedule, from)) return false;
    if (to.count != from.count) schedule_set_error(schedule, "spans differ in length");
    else if (!spans_are_equal(to, from) && spans_overlap(to, from))
        schedule_set_error(schedule, "moves a span onto a part of itself");
    return !schedule->error;
}

/* ---- steps ---- */
struct step *schedule_add_step(struct schedule *schedule, enum step_kind kind)
{
    if (schedule->error) return NULL;
    struct step *steps = memory_grow(schedule->steps, schedule->step_count, &schedule->step_room, sizeof *steps);
    if (!steps) {
        schedule_set_error(schedule, schedule_no_memory);
        return NULL;
    }
    schedule->steps = steps;
    steps[schedule->step_count] = (struct step){ .kind = kind, .peer = -1, .span = schedule->span_count };
    return &steps[schedule->step_count++];
}
/* Inserts a span at index `at` of the array. False: no memory, or an earlier error. */
static bool schedule_insert_span(struct schedule *schedule, int at, struct span span)
{
    struct span *spans = schedule->error
        ? NULL
        : memory_grow(schedule->spans, schedule->span_count, &schedule->span_room, sizeof *spans);
    if (!spans) {
        schedule_set_error(schedule, schedule_no_memory);
        return false;
    }
    schedule->spans = spans;
    if (at < schedule->span_count)
        memmove(spans + at + 1, spans + at, (size_t)(schedule->span_count - at) * sizeof span);
    spans[at] = span;
    schedule->span_count++;
    return true;
}
void step_add_from(struct schedule *schedule, struct step *step, struct span span)
{
    if (step && schedule_insert_span(schedule, step->span + step->from_count, span)) step->from_count++;
}
void step_add_to(struct schedule *schedule, struct step *step, struct span span)
{
    if (step && schedule_insert_span(schedule, step->span + step->from_count + step->to_count, span)) step->to_count++;
}
void schedule_append_step(struct schedule *schedule, const struct schedule *old, const struct step *step)
{
    struct step *copy = schedule_add_step(schedule, step->kind);
    if (!copy) return;
    copy->peer = step->peer;
    copy->finish = step->finish;
    copy->premultiplies = step->premultiplies;
    for (int f = 0; f < step->from_count; f++) step_add_from(schedule, copy, step_from(old, step)[f]);
    for (int d = 0; d < step->to_count; d++) step_add_to(schedule, copy, step_to(old, step)[d]);
}
bool step_touches_peer(const struct schedule *schedule, const struct step *step)
{
    for (int i = 0; i < step->from_count + step->to_count; i++)
        if (schedule->spans[step->span + i].rank != schedule->rank) return true;
    return step->kind == LEAVE;
}
/* Returns the last step if it is a copy or a sum, else NULL. */
static struct step *schedule_last_work(const struct schedule *schedule)
{
    struct step *step = schedule->step_count ? &schedule->steps[schedule->step_count - 1] : NULL;
    return step && step->kind == WORK ? step : NULL;
}
/* Appends a copy step. If the last step has just made `from`, a copy to the same buffer of a peer becomes one more
   target of that step. */
void step_copy(struct schedule *schedule, struct span to, struct span from)
{
    if (!schedule_check_pair(schedule, to, from)) return;
    struct step *step = schedule_last_work(schedule);
    bool extends_last = step && to.rank != schedule->rank && to.buffer == from.buffer
        && spans_are_equal(*step_to(schedule, step), from);
    if (!extends_last) {
        step = schedule_add_step(schedule, WORK);
        step_add_from(schedule, step, from);
    }
    step_add_to(schedule, step, to);
}
/* Appends a sum step. If the last step has just written `into` alone, this adds a source to that step. */
void step_reduce(struct schedule *schedule, struct span into, struct span from)
{
    if (!schedule_check_pair(schedule, into, from)) return;
    if (spans_are_equal(into, from)) {
        schedule_set_error(schedule, "reduces a span into itself");
        return;
    }
    struct step *step = schedule_last_work(schedule);
    if (!step || step->to_count > 1 || !spans_are_equal(*step_to(schedule, step), into)) {
        step = schedule_add_step(schedule, WORK);
        step_add_from(schedule, step, into);
        step_add_to(schedule, step, into);
    }
    step_add_from(schedule, step, from);
}
/* Appends a SEND or RECV step without spans. NULL after an error. */
static struct step *schedule_add_message(struct schedule *schedule, enum step_kind kind, int peer)
{
    if (peer < 0 || peer >= schedule->size || peer == schedule->rank)
        schedule_set_error(schedule, "message without a receiver");
    struct step *step = schedule_add_step(schedule, kind);
    if (step) step->peer = peer;
    return step;
}
void step_send(struct schedule *schedule, struct span from, int peer)
{
    if (schedule_check_span(schedule, from)) step_add_from(schedule, schedule_add_message(schedule, SEND, peer), from);
}
/* True if this rank may receive into the span; otherwise sets the error. */
static bool schedule_check_receive(struct schedule *schedule, struct span into)
{
    if (schedule_check_target(schedule, into) && into.rank != schedule->rank)
        schedule_set_error(schedule, "receives into a peer's memory");
    return !schedule->error;
}
void step_recv(struct schedule *schedule, struct span into, int peer)
{
    if (schedule_check_receive(schedule, into)) step_add_to(schedule, schedule_add_message(schedule, RECV, peer), into);
}
void step_add_span(struct schedule *schedule, struct span more)
{
    struct step *step = schedule->step_count ? &schedule->steps[schedule->step_count - 1] : NULL;
    if (step && step->kind == SEND && schedule_check_span(schedule, more)) step_add_from(schedule, step, more);
    else if (step && step->kind == RECV && schedule_check_receive(schedule, more)) step_add_to(schedule, step, more);
    else schedule_set_error(schedule, "continues a message that was not begun");
}
