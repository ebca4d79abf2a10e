/* Completion of a rank's own messages. A rank runs its steps in program order, but a message is posted at its step and
 * completes later. A step that reads or overwrites received chunks, or overwrites chunks that a send reads, must await
 * that message. If only a peer depends on a message, an AWAIT step awaits it. It stands before the next step that
 * touches a peer, because in that step the rank may wait for a peer that itself waits for the message. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>

/* A send, posted at `step`, that reads a cell. `next`: 1 + the index of the cell's next older reader in
   handles.readers, or 0. */
struct handle_reader { int step, next; };
/* The messages that use a cell. receive: 1 + the step of the receive into the cell, or 0; readers: 1 + the index of the
   newest send that reads the cell, or 0. */
struct handle_cell { int receive, readers; };
/* The messages of one rank while its steps are visited in order. A message is named by the step that posts it. */
struct handles {
    const struct build *build;
    struct schedule *schedule;
    /* The cells of all ranks of the host. */
    struct handle_cell *cells;
    struct handle_reader *readers;
    /* due: the messages that the visited step awaits; open: those on which peers depend and which no step has
       awaited. */
    int *due, *open;
    /* [step]: a step has awaited the message posted at this step. */
    bool *awaited;
    int reader_count, reader_room, due_count, open_count;
};

static void handles_finish(struct handles *handles)
{
    free(handles->cells);
    free(handles->readers);
    free(handles->due);
    free(handles->open);
    free(handles->awaited);
}
/* Allocates the tables for one schedule. False: no memory. */
static bool handles_init(struct handles *handles, const struct build *build, struct schedule *schedule)
{
    size_t steps = (size_t)schedule->step_count, cells;
    *handles = (struct handles){ .build = build, .schedule = schedule };
    bool fits =
        size_multiply((size_t)layout_host_size(schedule->layout, schedule->place.host), (size_t)build->cells, &cells);
    handles->cells = fits ? memory_alloc_zeroed(cells, sizeof *handles->cells) : NULL;
    handles->due = memory_alloc_zeroed(steps, sizeof *handles->due);
    handles->open = memory_alloc_zeroed(steps, sizeof *handles->open);
    handles->awaited = memory_alloc_zeroed(steps, sizeof *handles->awaited);
    bool has_memory = handles->cells && handles->due && handles->open && handles->awaited;
    if (!has_memory) schedule_set_error(schedule, schedule_no_memory);
    return has_memory;
}
/* Returns the entry of the cell that holds chunk `index` of a span. */
static struct handle_cell *handles_cell_at(const struct handles *handles, struct span span, int index)
{
    size_t row = (size_t)layout_place(handles->schedule->layout, span.rank).index * (size_t)handles->build->cells;
    return &handles->cells[row + (size_t)plan_cell_of_chunk(handles->build->plan, span, index)];
}
/* Adds a message to the list of those that the visited step awaits, unless it has been awaited. */
static void handles_add_due(struct handles *handles, int message)
{
    if (handles->awaited[message]) return;
    handles->awaited[message] = true;
    handles->due[handles->due_count++] = message;
}
/* Fills handles->due with the messages that must be complete before the step and have not been awaited: receives into
   what it reads or writes, and sends of what it writes. */
static void handles_list_due(struct handles *handles, const struct step *step)
{
    handles->due_count = 0;
    for (int x = 0; x < step->from_count + step->to_count; x++) {
        struct span span = handles->schedule->spans[step->span + x];
        for (int i = 0; i < span.count; i++) {
            const struct handle_cell *cell = handles_cell_at(handles, span, i);
            if (cell->receive) handles_add_due(handles, cell->receive - 1);
            for (int n = x < step->from_count ? 0 : cell->readers; n; n = handles->readers[n - 1].next)
                handles_add_due(handles, handles->readers[n - 1].step);
        }
    }
}
/* Records that the send posted at `step` reads the cell, so that a later writer must wait for it. */
static void handles_add_reader(struct handles *handles, struct handle_cell *cell, int step)
{
    struct handle_reader *readers =
        memory_grow(handles->readers, handles->reader_count, &handles->reader_room, sizeof *readers);
    if (!readers) {
        schedule_set_error(handles->schedule, schedule_no_memory);
        return;
    }
    handles->readers = readers;
    readers[handles->reader_count++] = (struct handle_reader){ step, cell->readers };
    cell->readers = handles->reader_count;
}
/* Records which cells the step receives into or sends. Any other write ends what earlier messages did with a cell. */
static void handles_record_accesses(struct handles *handles, int step)
{
    const struct step *accessing = &handles->schedule->steps[step];
    for (int x = 0; x < accessing->from_count + accessing->to_count; x++) {
        struct span span = handles->schedule->spans[accessing->span + x];
        for (int i = 0; i < span.count; i++) {
            struct handle_cell *cell = handles_cell_at(handles, span, i);
            if (x >= accessing->from_count) *cell = (struct handle_cell){ accessing->kind == RECV ? step + 1 : 0, 0 };
            else if (accessing->kind == SEND) handles_add_reader(handles, cell, step);
        }
    }
}
/* True if a peer depends on the completion of the message posted at `step`: it reads what is received, owns what is
   sent, or overwrites it. */
static bool message_is_observed(const struct build *build, const struct schedule *schedule, int step)
{
    const struct step *t = &schedule->steps[step];
    for (int d = 0; t->kind == RECV && d < t->to_count; d++)
        for (int i = 0; i < step_to(schedule, t)[d].count; i++) {
            const struct writer *writer = build_writer_of_chunk(build, step_to(schedule, t)[d], i);
            if (writer->is_observed && writer->last == step) return true;
        }
    for (int f = 0; t->kind == SEND && f < t->from_count; f++)
        for (int i = 0; i < step_from(schedule, t)[f].count; i++) {
            const struct writer *writer = build_writer_of_chunk(build, step_from(schedule, t)[f], i);
            if (step_from(schedule, t)[f].rank != schedule->rank || (writer->exists && writer->rank != schedule->rank))
                return true;
        }
    return false;
}
static bool schedule_has_messages(const struct schedule *schedule)
{
    for (int j = 0; j < schedule->step_count; j++)
        if (step_is_message(&schedule->steps[j])) return true;
    return false;
}
/* Removes the awaited messages from handles->open. */
static void handles_close_awaited(struct handles *handles)
{
    int kept = 0;
    for (int i = 0; i < handles->open_count; i++)
        if (!handles->awaited[handles->open[i]]) handles->open[kept++] = handles->open[i];
    handles->open_count = kept;
}
/* Visits one step: fills handles->due, and updates the open messages and the cells. */
static void handles_apply_step(struct handles *handles, int step)
{
    handles_list_due(handles, &handles->schedule->steps[step]);
    if (handles->due_count) handles_close_awaited(handles);
    handles_record_accesses(handles, step);
    if (message_is_observed(handles->build, handles->schedule, step)) handles->open[handles->open_count++] = step;
}
/* Treats all open messages as awaited. */
static void handles_close_all(struct handles *handles)
{
    for (int i = 0; i < handles->open_count; i++) handles->awaited[handles->open[i]] = true;
    handles->open_count = 0;
}

/* ---- AWAIT steps ---- */
/* Inserts an AWAIT step before each step j with needs_await[j]; j may be the number of steps. One pass moves all steps,
   because in a large group every second step may need one. */
static void schedule_insert_awaits_before(struct schedule *schedule, const bool *needs_await)
{
    int total = schedule->step_count, end;
    for (int j = 0; j <= total; j++)
        if (needs_await[j] && !schedule_add_step(schedule, AWAIT)) return;
    end = schedule->step_count;
    if (end == total) return;
    struct step added = schedule->steps[total];
    for (int j = total; j >= 0; j--) {
        if (j < total) schedule->steps[--end] = schedule->steps[j];
        if (needs_await[j]) schedule->steps[--end] = added;
    }
}
void schedule_insert_awaits(const struct build *build, struct schedule *schedule)
{
    struct handles handles = { .build = build };
    bool *needs_await = memory_alloc_zeroed((size_t)schedule->step_count + 1, sizeof *needs_await);
    int total = schedule->step_count;
    if (!needs_await) schedule_set_error(schedule, schedule_no_memory);
    if (needs_await && schedule_has_messages(schedule) && handles_init(&handles, build, schedule)) {
        for (int j = 0; j <= total; j++) {
            if (handles.open_count && (j == total || step_touches_peer(schedule, &schedule->steps[j]))) {
                needs_await[j] = true;
                handles_close_all(&handles);
            }
            if (j < total) handles_apply_step(&handles, j);
        }
        schedule_insert_awaits_before(schedule, needs_await);
    }
    handles_finish(&handles);
    free(needs_await);
}
/* Adds the edge by which `step` awaits a message, and records that the message is complete by then. */
static void handles_add_wait(struct handles *handles, struct edges *edges, int step, int message, int *completed)
{
    struct wait wait = { handles->schedule->rank, message, SAME_TILE };
    edges_add_edge(edges,
        (struct edge){ plan_member_of_rank(handles->build->plan, handles->schedule->rank), step, wait });
    completed[message] = step;
}
/* Finds for each step the messages of this rank that it must wait for: receives that fill what it reads, and sends that
   still read what it overwrites. */
void schedule_find_message_waits(const struct build *build, struct schedule *schedule, struct edges *edges,
    int *completed)
{
    struct handles handles = { .build = build };
    for (int j = 0; j < schedule->step_count; j++) completed[j] = -1;
    if (schedule_has_messages(schedule) && handles_init(&handles, build, schedule)) {
        for (int j = 0; j < schedule->step_count; j++) {
            for (int i = 0; schedule->steps[j].kind == AWAIT && i < handles.open_count; i++)
                handles_add_wait(&handles, edges, j, handles.open[i], completed);
            if (schedule->steps[j].kind == AWAIT) handles_close_all(&handles);
            handles_apply_step(&handles, j);
            for (int i = 0; i < handles.due_count; i++) handles_add_wait(&handles, edges, j, handles.due[i], completed);
        }
    }
    handles_finish(&handles);
}
