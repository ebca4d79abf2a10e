/* Declarations that the parts of the builder share. build.c runs the parts in the order in which they are listed here,
 * and finds the writers again after each change. An error, also lack of memory, sticks to its schedule, and a failed
 * schedule ignores further steps. So a part runs to its end, and build.c checks for errors between the parts. */
#pragma once
#include "backend/schedule/schedule.h"

/* The sticky error that means TUTTI_NO_MEMORY. */
extern const char schedule_no_memory[];

/* The rank that writes a cell. first: its first step that changes the content, or -1; last: the step that leaves the
   result. exists: some rank writes the cell; is_observed: another rank reads the result. */
struct writer { int rank, first, last; bool exists, is_observed; };
/* The plan that is being built, with the writers of its cells. */
struct build {
    struct plan *plan;
    /* The number of cells of a rank (plan_cell_index). */
    int cells;
    /* [member][cell]; the owner of the cell is the member. */
    struct writer *writers;
};
/* An edge: step `step` of a member must have `wait`. */
struct edge { int member, step; struct wait wait; };
/* A growing list of edges; failed: memory was lacking. */
struct edges { struct edge *list; int count, room; bool failed; };

/* Records an error (a constant text), unless the schedule has one. */
void schedule_set_error(struct schedule *schedule, const char *error);
/* Records lack of memory as the error of the first member. */
void plan_fail_out_of_memory(struct plan *plan);
/* Frees the steps, spans and waits, but not the schedule. */
void schedule_free_arrays(struct schedule *schedule);
/* Empties the schedule and returns its old steps, so that the caller can record them again. The caller frees the arrays
   of the old ones. */
struct schedule schedule_restart_recording(struct schedule *schedule);
/* True if the spans have a chunk of one buffer in common. */
bool spans_overlap(struct span a, struct span b);
/* Appends a step without spans. Returns NULL if the schedule has failed; the functions below accept NULL. Only the last
   step may get more spans. */
struct step *schedule_add_step(struct schedule *schedule, enum step_kind kind);
/* Adds a span that the step reads, or one that it writes. */
void step_add_from(struct schedule *schedule, struct step *step, struct span span);
void step_add_to(struct schedule *schedule, struct step *step, struct span span);
/* Appends a copy of a step of `old`, without its waits. */
void schedule_append_step(struct schedule *schedule, const struct schedule *old, const struct step *step);
/* True if the step reads or writes memory of another rank, or is a LEAVE. */
bool step_touches_peer(const struct schedule *schedule, const struct step *step);
/* writers.c: build_find_writers fills build->writers from the schedules as they are now. build_writer_of_chunk returns
   the writer of the chunk `index` of a span. */
void build_find_writers(struct build *build);
struct writer *build_writer_of_chunk(const struct build *build, struct span span, int index);
/* Returns the number of the cell that holds chunk `index` of a span, among the cells of its rank. */
static inline int plan_cell_of_chunk(const struct plan *plan, struct span span, int index)
{
    return plan_cell_index(plan, span.rank, span.buffer, span.first + index);
}
/* edges.c: edges_add_edge adds an edge, unless it equals the last one. plan_attach_waits gives every step the waits of
   its edges. */
void edges_add_edge(struct edges *edges, struct edge edge);
void plan_attach_waits(struct plan *plan, const struct edges *edges);
/* finish.c: marks the steps that make full sums for OUTPUT. */
void plan_mark_finishing_steps(const struct build *build);
/* pull.c: turns writes into private tensors of peers into reads by their owners. */
void plan_pull_private_writes(struct plan *plan);
/* stage.c: copies the chunks that peers may not read where they lie into slots, and adds a LEAVE step to the schedules
   of open ranks. */
void build_stage_private(struct build *build);
/* hoist.c: moves every receive to the earliest place at which it may be posted. */
void plan_hoist_receives(const struct build *build);
/* handles.c: schedule_insert_awaits inserts AWAIT steps. schedule_find_message_waits then adds an edge for every
   message of the rank that a step awaits. It sets completed[j] to the step by which the message posted at step j is
   known to be complete, or to -1. */
void schedule_insert_awaits(const struct build *build, struct schedule *schedule);
void schedule_find_message_waits(const struct build *build, struct schedule *schedule, struct edges *edges,
    int *completed);
/* match.c: sets step.number, first_message and last_message of each member. */
void plan_number_messages(struct plan *plan);
/* infer.c: infers all waits, the publishing steps and the preludes. */
void build_infer_waits(struct build *build);
/* deadlock.c: simulates one tile. Returns true if all members end. Otherwise sets plan->error: a member, cycle_rank,
   never passes a step, or a message lacks its other end. Without memory it sets a schedule's error. */
bool plan_verify_no_deadlock(const struct build *build);
