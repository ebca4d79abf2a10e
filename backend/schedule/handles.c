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
    bool fits = size_multiply((size_t)host_size(s->layout, s->place.host), (size_t)b->cells, &cells);
    h->cells = fits ? memory_zeroed(cells, sizeof *h->cells) : NULL;
    h->due = memory_zeroed(steps, sizeof *h->due);
    h->open = memory_zeroed(steps, sizeof *h->open);
    h->done = memory_zeroed(steps, sizeof *h->done);
    bool fine = h->cells && h->due && h->open && h->done;
    if (!fine) schedule_fail(s, schedule_no_memory);
    return fine;
}
static struct handle_cell *cell_at(const struct handles *h, struct span a, int index)
{
    size_t row = (size_t)place_of(h->s->layout, a.rank).index * (size_t)h->build->cells;
    return &h->cells[row + (size_t)cell_of(h->build->plan, a, index)];
}
static void add_due(struct handles *h, int message)
{
    if (h->done[message]) return;
    h->done[message] = true;
    h->due[h->due_count++] = message;
}
/* Lists the messages that must be complete before the step, and marks them as done. */
static void handles_due(struct handles *h, const struct step *t)
{
    h->due_count = 0;
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; i < a.count; i++) {
            const struct handle_cell *c = cell_at(h, a, i);
            if (c->receive) add_due(h, c->receive - 1);
            for (int n = x < t->from_count ? 0 : c->readers; n; n = h->readers[n - 1].next)
                add_due(h, h->readers[n - 1].step);
        }
    }
}
static void add_reader(struct handles *h, struct handle_cell *c, int step)
{
    struct handle_reader *readers = memory_grow(h->readers, h->reader_count, &h->reader_room, sizeof *readers);
    if (!readers) {
        schedule_fail(h->s, schedule_no_memory);
        return;
    }
    h->readers = readers;
    readers[h->reader_count++] = (struct handle_reader){ step, c->readers };
    c->readers = h->reader_count;
}
/* Records the cells that the step reads and writes. */
static void handles_start(struct handles *h, int step)
{
    const struct step *t = &h->s->steps[step];
    for (int x = 0; x < t->from_count + t->to_count; x++) {
        struct span a = h->s->spans[t->span + x];
        for (int i = 0; i < a.count; i++) {
            struct handle_cell *c = cell_at(h, a, i);
            if (x >= t->from_count) *c = (struct handle_cell){ t->kind == RECV ? step + 1 : 0, 0 };
            else if (t->kind == SEND) add_reader(h, c, step);
        }
    }
}
/* True if a peer depends on the completion of this message. */
static bool is_observed(const struct build *b, const struct schedule *s, int step)
{
    const struct step *t = &s->steps[step];
    for (int d = 0; t->kind == RECV && d < t->to_count; d++)
        for (int i = 0; i < step_to(s, t)[d].count; i++) {
            const struct writer *w = writer_of(b, step_to(s, t)[d], i);
            if (w->observed && w->last == step) return true;
        }
    for (int f = 0; t->kind == SEND && f < t->from_count; f++)
        for (int i = 0; i < step_from(s, t)[f].count; i++) {
            const struct writer *w = writer_of(b, step_from(s, t)[f], i);
            if (step_from(s, t)[f].rank != s->rank || (w->exists && w->rank != s->rank)) return true;
        }
    return false;
}
static bool has_messages(const struct schedule *s)
{
    for (int j = 0; j < s->step_count; j++)
        if (step_is_message(&s->steps[j])) return true;
    return false;
}
static void close_done(struct handles *h)
{
    int kept = 0;
    for (int i = 0; i < h->open_count; i++)
        if (!h->done[h->open[i]]) h->open[kept++] = h->open[i];
    h->open_count = kept;
}
/* Updates the messages for one step: it awaits some, and may be a message itself. */
static void handles_pass(struct handles *h, int step)
{
    handles_due(h, &h->s->steps[step]);
    if (h->due_count) close_done(h);
    handles_start(h, step);
    if (is_observed(h->build, h->s, step)) h->open[h->open_count++] = step;
}
static void close_all(struct handles *h)
{
    for (int i = 0; i < h->open_count; i++) h->done[h->open[i]] = true;
    h->open_count = 0;
}

/* ---- AWAIT steps ---- */
static void insert_step(struct schedule *s, int at)
{
    if (!step_add(s, AWAIT)) return;
    struct step added = s->steps[s->step_count - 1];
    memmove(&s->steps[at + 1], &s->steps[at], (size_t)(s->step_count - 1 - at) * sizeof added);
    s->steps[at] = added;
}
void awaits_insert(const struct build *b, struct schedule *s)
{
    struct handles h = { .build = b };
    bool *before = memory_zeroed((size_t)s->step_count + 1, sizeof *before);
    int total = s->step_count;
    if (!before) schedule_fail(s, schedule_no_memory);
    if (before && has_messages(s) && handles_init(&h, b, s)) {
        for (int j = 0; j <= total; j++) {
            if (h.open_count && (j == total || step_touches_peer(s, &s->steps[j]))) {
                before[j] = true;
                close_all(&h);
            }
            if (j < total) handles_pass(&h, j);
        }
        for (int j = total; j >= 0; j--)
            if (before[j]) insert_step(s, j);
    }
    handles_finish(&h);
    free(before);
}
static void wait_message(struct handles *h, struct edges *edges, int step, int message, int *completed)
{
    struct wait wait = { h->s->rank, message, SAME_TILE };
    edge_add(edges, (struct edge){ plan_index(h->build->plan, h->s->rank), step, wait });
    completed[message] = step;
}
void awaits_find(const struct build *b, struct schedule *s, struct edges *edges, int *completed)
{
    struct handles h = { .build = b };
    for (int j = 0; j < s->step_count; j++) completed[j] = -1;
    if (has_messages(s) && handles_init(&h, b, s)) {
        for (int j = 0; j < s->step_count; j++) {
            for (int i = 0; s->steps[j].kind == AWAIT && i < h.open_count; i++)
                wait_message(&h, edges, j, h.open[i], completed);
            if (s->steps[j].kind == AWAIT) close_all(&h);
            handles_pass(&h, j);
            for (int i = 0; i < h.due_count; i++) wait_message(&h, edges, j, h.due[i], completed);
        }
    }
    handles_finish(&h);
}
