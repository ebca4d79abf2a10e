/* Recording: the functions that an algorithm calls. The first error sticks to the schedule and all later calls are
 * ignored, so algorithms need no error handling. Consecutive steps that make one value are recorded as one step. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

const char schedule_no_memory[] = "out of memory";

void schedule_set_error(struct schedule *s, const char *error)
{
    if (s->error) return;
    s->error = error;
    s->error_rank = -1;
}
void plan_fail_out_of_memory(struct plan *p) { schedule_set_error(&p->ranks[0], schedule_no_memory); }
void schedule_free_arrays(struct schedule *s)
{
    free(s->steps);
    free(s->spans);
    free(s->waits);
}
struct schedule schedule_restart_recording(struct schedule *s)
{
    struct schedule old = *s;
    s->steps = NULL;
    s->spans = NULL;
    s->waits = NULL;
    s->step_count = s->step_room = s->span_count = s->span_room = s->wait_count = s->wait_room = 0;
    return old;
}

/* ---- collectives, teams ---- */
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
int collective_buffer_parts(enum collective collective, enum buffer buffer, int size)
{
    bool many = buffer == INPUT ? collective == REDUCE_SCATTER || collective == SCATTER || collective == ALL_TO_ALL
                                : collective == ALLGATHER || collective == GATHER || collective == ALL_TO_ALL;
    return many ? size : 1;
}
bool collective_is_reduction(enum collective collective)
{
    return collective == ALLREDUCE || collective == REDUCE || collective == REDUCE_SCATTER;
}

/* team.slice is the host of a TEAM_HOST, and the slice of the message that a TEAM_ACROSS works on. */
enum { TEAM_ALL, TEAM_HOST, TEAM_ACROSS };
struct team team_of_group(const struct schedule *s)
{
    return (struct team){
        .layout = s->layout, .kind = TEAM_ALL, .size = s->size, .me = s->rank, .pieces = s->cut, .source = INPUT
    };
}
struct team team_of_host(const struct schedule *s)
{
    int host = s->place.host;
    return (struct team){ .layout = s->layout,
        .kind = TEAM_HOST,
        .slice = host,
        .size = layout_host_size(s->layout, host),
        .me = s->place.index,
        .pieces = 1,
        .source = INPUT };
}
struct team team_across_hosts(const struct schedule *s, int slice)
{
    return (struct team){ .layout = s->layout,
        .kind = TEAM_ACROSS,
        .slice = slice,
        .size = s->layout->hosts,
        .me = s->place.host,
        .pieces = 1,
        .source = INPUT };
}
int team_rank(const struct team *t, int index)
{
    int i = (index % t->size + t->size) % t->size;
    if (t->kind == TEAM_HOST) return layout_rank(t->layout, t->slice, i);
    return t->kind == TEAM_ACROSS ? layout_rank(t->layout, i, t->slice % layout_host_size(t->layout, i)) : i;
}

/* ---- spans ---- */
struct span span_of_chunk(int rank, enum buffer buffer, int index) { return (struct span){ rank, buffer, index, 1 }; }
struct span span_of_buffer(const struct schedule *s, int rank, enum buffer buffer)
{
    return (struct span){ rank, buffer, 0, s->chunks[buffer] };
}
struct span span_new_scratch(struct schedule *s, int count)
{
    int first = s->chunks[SCRATCH];
    if (count < 0 || count > INT_MAX - first) schedule_set_error(s, "too much scratch");
    else s->chunks[SCRATCH] = first + count;
    return (struct span){ s->rank, SCRATCH, first, count };
}
void schedule_cut(struct schedule *s, int pieces)
{
    int most = s->chunks[INPUT] > s->chunks[OUTPUT] ? s->chunks[INPUT] : s->chunks[OUTPUT];
    if (s->error) return;
    if (s->step_count || s->cut != 1) schedule_set_error(s, "divides the message after the first step");
    else if (pieces < 1 || pieces > INT_MAX / 2 / most)
        schedule_set_error(s, "divides the message into no pieces, or too many");
    if (s->error) return;
    s->chunks[INPUT] *= pieces;
    s->chunks[OUTPUT] *= pieces;
    s->cut = pieces;
}
bool spans_are_equal(struct span a, struct span b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.first == b.first && a.count == b.count;
}
bool spans_overlap(struct span a, struct span b)
{
    return a.rank == b.rank && a.buffer == b.buffer && a.first < b.first + b.count && b.first < a.first + a.count;
}
static bool schedule_check_span(struct schedule *s, struct span a)
{
    if (s->error) return false;
    bool near = a.rank >= 0 && a.rank < s->size && layout_host(s->layout, a.rank) == s->place.host;
    if (!near) schedule_set_error(s, "touches the memory of another host");
    else if (a.first < 0 || a.count < 1 || a.count > INT_MAX - a.first) schedule_set_error(s, "span out of range");
    else if (a.buffer == SCRATCH && a.first + a.count > s->chunks[SCRATCH]) s->chunks[SCRATCH] = a.first + a.count;
    else if (a.first + a.count > s->chunks[a.buffer]) schedule_set_error(s, "span out of range");
    else if (!collective_has_buffer(s->collective, s->root, a.rank, a.buffer)) {
        schedule_set_error(s, "has no such buffer");
        s->error_rank = a.rank;
    }
    return !s->error;
}
static bool schedule_check_target(struct schedule *s, struct span to)
{
    if (schedule_check_span(s, to) && to.buffer == INPUT) schedule_set_error(s, "writes an input chunk");
    return !s->error;
}
static bool schedule_check_pair(struct schedule *s, struct span to, struct span from)
{
    if (!schedule_check_target(s, to) || !schedule_check_span(s, from)) return false;
    if (to.count != from.count) schedule_set_error(s, "spans differ in length");
    else if (!spans_are_equal(to, from) && spans_overlap(to, from))
        schedule_set_error(s, "moves a span onto a part of itself");
    return !s->error;
}

/* ---- steps ---- */
struct step *schedule_add_step(struct schedule *s, enum step_kind kind)
{
    if (s->error) return NULL;
    struct step *steps = memory_grow(s->steps, s->step_count, &s->step_room, sizeof *steps);
    if (!steps) {
        schedule_set_error(s, schedule_no_memory);
        return NULL;
    }
    s->steps = steps;
    steps[s->step_count] = (struct step){ .kind = kind, .peer = -1, .span = s->span_count };
    return &steps[s->step_count++];
}
static bool schedule_insert_span(struct schedule *s, int at, struct span a)
{
    struct span *spans = s->error ? NULL : memory_grow(s->spans, s->span_count, &s->span_room, sizeof *spans);
    if (!spans) {
        schedule_set_error(s, schedule_no_memory);
        return false;
    }
    s->spans = spans;
    if (at < s->span_count) memmove(spans + at + 1, spans + at, (size_t)(s->span_count - at) * sizeof a);
    spans[at] = a;
    s->span_count++;
    return true;
}
void step_add_from(struct schedule *s, struct step *t, struct span a)
{
    if (t && schedule_insert_span(s, t->span + t->from_count, a)) t->from_count++;
}
void step_add_to(struct schedule *s, struct step *t, struct span a)
{
    if (t && schedule_insert_span(s, t->span + t->from_count + t->to_count, a)) t->to_count++;
}
void schedule_append_step(struct schedule *s, const struct schedule *old, const struct step *t)
{
    struct step *copy = schedule_add_step(s, t->kind);
    if (!copy) return;
    copy->peer = t->peer;
    copy->finish = t->finish;
    copy->raw = t->raw;
    for (int f = 0; f < t->from_count; f++) step_add_from(s, copy, step_from(old, t)[f]);
    for (int d = 0; d < t->to_count; d++) step_add_to(s, copy, step_to(old, t)[d]);
}
bool step_touches_peer(const struct schedule *s, const struct step *t)
{
    for (int i = 0; i < t->from_count + t->to_count; i++)
        if (s->spans[t->span + i].rank != s->rank) return true;
    return t->kind == LEAVE;
}
static struct step *schedule_last_work(const struct schedule *s)
{
    struct step *t = s->step_count ? &s->steps[s->step_count - 1] : NULL;
    return t && t->kind == WORK ? t : NULL;
}
void step_copy(struct schedule *s, struct span to, struct span from)
{
    if (!schedule_check_pair(s, to, from)) return;
    struct step *t = schedule_last_work(s);
    bool hands_out = t && to.rank != s->rank && to.buffer == from.buffer && spans_are_equal(*step_to(s, t), from);
    if (!hands_out) {
        t = schedule_add_step(s, WORK);
        step_add_from(s, t, from);
    }
    step_add_to(s, t, to);
}
void step_reduce(struct schedule *s, struct span into, struct span from)
{
    if (!schedule_check_pair(s, into, from)) return;
    if (spans_are_equal(into, from)) {
        schedule_set_error(s, "reduces a span into itself");
        return;
    }
    struct step *t = schedule_last_work(s);
    if (!t || t->to_count > 1 || !spans_are_equal(*step_to(s, t), into)) {
        t = schedule_add_step(s, WORK);
        step_add_from(s, t, into);
        step_add_to(s, t, into);
    }
    step_add_from(s, t, from);
}
static struct step *schedule_add_message(struct schedule *s, enum step_kind kind, int peer)
{
    if (peer < 0 || peer >= s->size || peer == s->rank) schedule_set_error(s, "message without a receiver");
    struct step *t = schedule_add_step(s, kind);
    if (t) t->peer = peer;
    return t;
}
void step_send(struct schedule *s, struct span from, int peer)
{
    if (schedule_check_span(s, from)) step_add_from(s, schedule_add_message(s, SEND, peer), from);
}
static bool schedule_check_receive(struct schedule *s, struct span into)
{
    if (schedule_check_target(s, into) && into.rank != s->rank) schedule_set_error(s, "receives into a peer's memory");
    return !s->error;
}
void step_recv(struct schedule *s, struct span into, int peer)
{
    if (schedule_check_receive(s, into)) step_add_to(s, schedule_add_message(s, RECV, peer), into);
}
void step_add_span(struct schedule *s, struct span more)
{
    struct step *t = s->step_count ? &s->steps[s->step_count - 1] : NULL;
    if (t && t->kind == SEND && schedule_check_span(s, more)) step_add_from(s, t, more);
    else if (t && t->kind == RECV && schedule_check_receive(s, more)) step_add_to(s, t, more);
    else schedule_set_error(s, "continues a message that was not begun");
}
