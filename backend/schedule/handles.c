/* Completion of a rank's own messages. A rank runs its steps in program order, but a message is posted at its step and
 * completes later. A step that reads or overwrites received chunks, or overwrites chunks that a send reads, must await
 * that message. If only a peer depends on a message, an AWAIT step awaits it. It stands before the next step that
 * touches a peer, because there the rank may start to wait for that peer. */
#include "backend/base/memory.h"
#include "backend/schedule/build.h"
#include <stdlib.h>
#include <string.h>

/* A send that reads a cell. `next` is 1 + the index of the previous reader. */
struct handle_reader { int step, next; };
/* `receive` is 1 + the step of the receive into the cell; `readers` is 1 + the index of the newest reader. */
struct handle_cell { int receive, readers; };
struct handles {
    const struct build *build;
    struct schedule *s;
    /* The cells of all ranks of the host. */
    struct handle_cell *cells;
    struct handle_reader *readers;
    /* The messages that the next step awaits; those that only peers depend on. */
    int *due, *open;
    bool *done;
    int reader_count, reader_room, due_count, open_count;
};

static void handles_finish(struct handles *h)
{
    free(h->cells);
    free(h->readers);
    free(h->due);
    free(h->open);
    free(h->done);
}
static bool handles_init(struct handles *h, const struct build *b, struct schedule *s)
{
    size_t steps = (size_t)s->step_count, cells;
    *h = (struct handles){ .build = b, .s = s };
    bool fits = size_multiply((size_t)layout_host_size(s->layout, s->place.host), (size_t)b->cells, &cells);
    h->cells = fits ? memory_alloc_zeroed(cells, sizeof *h->cells) : NULL;
    h->due = memory_alloc_zeroed(steps, sizeof *h->due);
    h->open = memory_alloc_zeroed(steps, sizeof *h->open);
    h->done = memory_alloc_zeroed(steps, sizeof *h->done);
    bool fine = h->cells && h->due && h->open && h->done;
    if (!fine) schedule_set_error(s, schedule_no_memory);
    return fine;
}
static struct handle_cell *handles_cell_at(const struct handles *h, struct span a, int index)
{
    size_t row = (size_t)layout_place(h->s->layout, a.rank).index * (size_t)h->build->cells;
    return &h->cells[row + (size_t)plan_cell_of_chunk(h->build->plan, a, index)];
}
static void handles_add_due(struct handles *h, int message)
{
    if (h->done[message]) return;
    h->done[message] = true;
    h->due[h->due_count++] = message;
}
/* Lists the messages that must be complete before the step, and marks them as done. */
static void handles_list_due(struct handles *h, const struct step *t)
{
    h->due_count = 0;
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; i < a.count; i++) {
            const struct handle_cell *c = handles_cell_at(h, a, i);
            if (c->receive) handles_add_due(h, c->receive - 1);
            for (int n = x < t->from_count ? 0 : c->readers; n; n = h->readers[n - 1].next)
                handles_add_due(h, h->readers[n - 1].step);
        }
    }
}
static void handles_add_reader(struct handles *h, struct handle_cell *c, int step)
{
    struct handle_reader *readers = memory_grow(h->readers, h->reader_count, &h->reader_room, sizeof *readers);
    if (!readers) {
        schedule_set_error(h->s, schedule_no_memory);
        return;
    }
    h->readers = readers;
    readers[h->reader_count++] = (struct handle_reader){ step, c->readers };
    c->readers = h->reader_count;
}
/* Records the cells that the step reads and writes. */
static void handles_record_accesses(struct handles *h, int step)
{
    const struct step *t = &h->s->steps[step];
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; i < a.count; i++) {
            struct handle_cell *c = handles_cell_at(h, a, i);
            if (x >= t->from_count) *c = (struct handle_cell){ t->kind == RECV ? step + 1 : 0, 0 };
            else if (t->kind == SEND) handles_add_reader(h, c, step);
        }
    }
}
/* True if a peer depends on the completion of this message. */
static bool message_is_observed(const struct build *b, const struct schedule *s, int step)
{
    const struct step *t = &s->steps[step];
    for (int d = 0; t->kind == RECV && d < t->to_count; d++)
        for (int i = 0; i < step_to(s, t)[d].count; i++) {
            const struct writer *w = build_writer_of_chunk(b, step_to(s, t)[d], i);
            if (w->observed && w->last == step) return true;
        }
    for (int f = 0; t->kind == SEND && f < t->from_count; f++)
        for (int i = 0; i < step_from(s, t)[f].count; i++) {
            const struct writer *w = build_writer_of_chunk(b, step_from(s, t)[f], i);
            if (step_from(s, t)[f].rank != s->rank || (w->exists && w->rank != s->rank)) return true;
        }
    return false;
}
static bool schedule_has_messages(const struct schedule *s)
{
    for (int j = 0; j < s->step_count; j++)
        if (step_is_message(&s->steps[j])) return true;
    return false;
}
static void handles_close_done(struct handles *h)
{
    int kept = 0;
    for (int i = 0; i < h->open_count; i++)
        if (!h->done[h->open[i]]) h->open[kept++] = h->open[i];
    h->open_count = kept;
}
/* Updates the messages for one step: it awaits some, and may be a message itself. */
static void handles_apply_step(struct handles *h, int step)
{
    handles_list_due(h, &h->s->steps[step]);
    if (h->due_count) handles_close_done(h);
    handles_record_accesses(h, step);
    if (message_is_observed(h->build, h->s, step)) h->open[h->open_count++] = step;
}
static void handles_close_all(struct handles *h)
{
    for (int i = 0; i < h->open_count; i++) h->done[h->open[i]] = true;
    h->open_count = 0;
}

/* ---- AWAIT steps ---- */
static void schedule_insert_await(struct schedule *s, int at)
{
    if (!schedule_add_step(s, AWAIT)) return;
    struct step added = s->steps[s->step_count - 1];
    memmove(&s->steps[at + 1], &s->steps[at], (size_t)(s->step_count - 1 - at) * sizeof added);
    s->steps[at] = added;
}
void schedule_insert_awaits(const struct build *b, struct schedule *s)
{
    struct handles h = { .build = b };
    bool *before = memory_alloc_zeroed((size_t)s->step_count + 1, sizeof *before);
    int total = s->step_count;
    if (!before) schedule_set_error(s, schedule_no_memory);
    if (before && schedule_has_messages(s) && handles_init(&h, b, s)) {
        for (int j = 0; j <= total; j++) {
            if (h.open_count && (j == total || step_touches_peer(s, &s->steps[j]))) {
                before[j] = true;
                handles_close_all(&h);
            }
            if (j < total) handles_apply_step(&h, j);
        }
        for (int j = total; j >= 0; j--)
            if (before[j]) schedule_insert_await(s, j);
    }
    handles_finish(&h);
    free(before);
}
static void handles_add_wait(struct handles *h, struct edges *edges, int step, int message, int *completed)
{
    struct wait wait = { h->s->rank, message, SAME_TILE };
    edges_add_edge(edges, (struct edge){ plan_member_of_rank(h->build->plan, h->s->rank), step, wait });
    completed[message] = step;
}
void schedule_find_message_waits(const struct build *b, struct schedule *s, struct edges *edges, int *completed)
{
    struct handles h = { .build = b };
    for (int j = 0; j < s->step_count; j++) completed[j] = -1;
    if (schedule_has_messages(s) && handles_init(&h, b, s)) {
        for (int j = 0; j < s->step_count; j++) {
            for (int i = 0; s->steps[j].kind == AWAIT && i < h.open_count; i++)
                handles_add_wait(&h, edges, j, h.open[i], completed);
            if (s->steps[j].kind == AWAIT) handles_close_all(&h);
            handles_apply_step(&h, j);
            for (int i = 0; i < h.due_count; i++) handles_add_wait(&h, edges, j, h.due[i], completed);
        }
    }
    handles_finish(&h);
}
