/* What the parts of the builder share. build.c leads; the parts run in the order in which they are listed here. Errors
 * stick to the schedule they concern, running out of memory included, and a schedule that has failed records nothing
 * more: so a part goes on to its end and build.c looks once, after it. */
#pragma once
#include "backend/schedule/schedule.h"

extern const char schedule_no_memory[];                     /* the sticky error that means TUTTI_NO_MEMORY */

/* Who writes the cell of a chunk. first: the first step that destroys what lay there (-1: none does); last: the step
   that leaves the result; observed: another rank reads the result. */
struct writer { int rank, first, last; bool exists, observed; };
struct build {
    struct plan *plan;
    int cells;                                              /* of a rank: see plan_home */
    struct writer *writers;                                 /* [member][cell] */
};
/* Step `step` of a member has `wait`. */
struct edge { int member, step; struct wait wait; };
struct edges { struct edge *list; int count, room; bool failed; };

/* record.c */
void schedule_fail(struct schedule *s, const char *error);
void schedule_release(struct schedule *s);
/* Empties s, to be recorded anew from what is returned, which the caller releases. */
struct schedule schedule_restart(struct schedule *s);
bool span_equal(struct span a, struct span b);
bool span_overlaps(struct span a, struct span b);
/* NULL when s has failed; the others accept that. Only the last step may get more spans. */
struct step *step_add(struct schedule *s, enum step_kind kind);
void step_add_from(struct schedule *s, struct step *t, struct span a);
void step_add_to(struct schedule *s, struct step *t, struct span a);
void step_append(struct schedule *s, const struct schedule *old, const struct step *t);
bool step_touches_peer(const struct schedule *s, const struct step *t);
/* writers.c: fills b->writers from the schedules as they are now. */
void writers_find(struct build *b);
struct writer *writer_of(const struct build *b, struct span a, int index);
static inline int cell_of(const struct plan *p, struct span a, int index)
{
    return plan_home(p, a.rank, a.buffer, a.first + index);
}
/* finish.c: marks the steps that leave a sum in OUTPUT. */
void finish_mark(const struct build *b);
/* pull.c: writes into private tensors of peers become reads by their owners. */
void pull_private(struct plan *p);
/* stage.c: what others may not touch, or not any more, is copied into slots; then LEAVE ends open ranks. */
void stage_private(struct build *b);
/* hoist.c: posts receives as early as possible. */
void hoist_receives(const struct build *b);
/* handles.c: inserts AWAIT steps; then adds an edge for every message of its own that a step awaits. completed[j]: the
   step by which message j is known to be complete, or -1. */
void awaits_insert(const struct build *b, struct schedule *s);
void awaits_find(const struct build *b, struct schedule *s, struct edges *edges, int *completed);
/* infer.c: all waits, who publishes, the prelude. */
void infer_waits(struct build *b);
void edge_add(struct edges *e, struct edge edge);
/* match.c */
void messages_number(struct plan *p);
/* deadlock.c: runs one tile; false: *member stands still at a step for ever, or a message has no other end. */
bool deadlock_free(const struct build *b);
/* build.c */
void plan_out_of_memory(struct plan *p);                    /* blames the first member */
