/* Declarations that the parts of the builder share. build.c runs the parts in the order in which they are listed here.
 * An error, also lack of memory, sticks to its schedule, and a failed schedule ignores further steps. So a part runs to
 * its end, and build.c checks for errors once after it. */
#pragma once
#include "backend/schedule/schedule.h"

/* The sticky error that means TUTTI_NO_MEMORY. */
extern const char schedule_no_memory[];

/* The rank that writes the cell of a chunk. first: its first step that destroys the previous content, or -1; last: the
   step that leaves the result; observed: another rank reads the result. */
struct writer { int rank, first, last; bool exists, observed; };
struct build {
    struct plan *plan;
    /* The number of cells of a rank (plan_home). */
    int cells;
    /* [member][cell] */
    struct writer *writers;
};
/* Step `step` of a member must have `wait`. */
struct edge { int member, step; struct wait wait; };
struct edges { struct edge *list; int count, room; bool failed; };

/* record.c */
void schedule_fail(struct schedule *s, const char *error);
void schedule_release(struct schedule *s);
/* Empties s, and returns its old steps so that the caller can record them again. The caller releases them. */
struct schedule schedule_restart(struct schedule *s);
bool span_equal(struct span a, struct span b);
bool span_overlaps(struct span a, struct span b);
/* Returns NULL if s has failed; the functions below accept that. Only the last step may get more spans. */
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
/* finish.c: marks the steps that leave a full sum in OUTPUT. */
void finish_mark(const struct build *b);
/* pull.c: turns writes into private tensors of peers into reads by their owners. */
void pull_private(struct plan *p);
/* stage.c: copies chunks into slots that peers may not read where they lie, and ends open ranks with LEAVE. */
void stage_private(struct build *b);
/* hoist.c: posts receives as early as possible. */
void hoist_receives(const struct build *b);
/* handles.c: awaits_insert inserts AWAIT steps. awaits_find then adds an edge for every message of the rank that a step
   awaits. completed[j] is the step by which message j is known to be complete, or -1. */
void awaits_insert(const struct build *b, struct schedule *s);
void awaits_find(const struct build *b, struct schedule *s, struct edges *edges, int *completed);
/* infer.c: infers all waits, the publishing steps and the preludes. */
void infer_waits(struct build *b);
void edge_add(struct edges *e, struct edge edge);
/* match.c: numbers the messages of each member. */
void messages_number(struct plan *p);
/* deadlock.c: runs one tile. False: a member stops at a step, or a message lacks its other end; p->error has it. */
bool deadlock_free(const struct build *b);
/* build.c: records lack of memory as the error of the first member. */
void plan_out_of_memory(struct plan *p);
