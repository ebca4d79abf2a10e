/* Prints a plan as text, a line for each step:
 *
 *   1:2   out[1] = slot[0] + r0.slot[1] + r2.slot[1]      after 0:0, 2:0; finish; published
 *
 * is step 2 of rank 1. It waits until ranks 0 and 2 have done their step 0 for the same tile; it leaves a full sum; a
 * peer waits for it. Buffers without a rank are the rank's own; slot is SCRATCH. "after message 3" awaits the message
 * that the rank posted at its step 3. "slot free after" refers to the tile that had the slot before. A "prelude" step
 * may run before the peers have arrived. */
#include "backend/schedule/schedule.h"
#include <stdarg.h>
#include <stdio.h>

enum { REMARKS_COLUMN = 56 };
struct text {
    char *buffer;
    size_t capacity, length;
};

static void text_append(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void text_append(struct text *t, const char *format, ...)
{
    size_t room = t->length < t->capacity ? t->capacity - t->length : 0;
    va_list arguments;
    va_start(arguments, format);
    int written = vsnprintf(room ? t->buffer + t->length : NULL, room, format, arguments);
    va_end(arguments);
    if (written > 0) t->length += (size_t)written;
}
static void text_append_span(struct text *t, const struct schedule *s, struct span a)
{
    static const char *const names[] = { "in", "out", "slot" };
    if (a.rank != s->rank) text_append(t, "r%d.", a.rank);
    text_append(t, a.count > 1 ? "%s[%d..%d]" : "%s[%d]", names[a.buffer], a.first, a.first + a.count - 1);
}
static void text_append_spans(struct text *t, const struct schedule *s, const struct span *a, int count,
    const char *between)
{
    for (int i = 0; i < count; i++) {
        text_append(t, "%s", i ? between : "");
        text_append_span(t, s, a[i]);
    }
}
static void text_append_action(struct text *t, const struct schedule *s, const struct step *step)
{
    const struct span *from = step_from(s, step), *to = step_to(s, step);
    if (step->kind == AWAIT) text_append(t, "await");
    if (step->kind == LEAVE) text_append(t, "leave");
    if (step->kind == SEND) text_append(t, "send ");
    if (step->kind == RECV) text_append(t, "recv ");
    text_append_spans(t, s, to, step->to_count, step->kind == RECV ? ", " : " = ");
    if (step->kind == WORK) text_append(t, " = ");
    text_append_spans(t, s, from, step->from_count, step->kind == SEND ? ", " : " + ");
    if (step->kind == SEND) text_append(t, " -> %d", step->peer);
    if (step->kind == RECV) text_append(t, " <- %d", step->peer);
}
/* The first remark of a line begins at REMARKS_COLUMN if it can. */
static void text_append_remark(struct text *t, size_t line, int *remarks, const char *remark)
{
    size_t written = t->length - line;
    int space = written < REMARKS_COLUMN ? (int)(REMARKS_COLUMN - written) : 2;
    if (*remarks) text_append(t, "; %s", remark);
    else text_append(t, "%*s%s", space, "", remark);
    ++*remarks;
}
static void text_append_waits(struct text *t, const struct schedule *s, const struct step *step, enum lag lag,
    size_t line, int *remarks)
{
    static const char *const words[] = { "after ", "slot free after ", "every tile after " };
    int waits = 0;
    for (int i = 0; i < step->wait_count; i++) {
        const struct wait *w = &s->waits[step->wait + i];
        if (w->lag != lag) continue;
        if (waits++) text_append(t, ", ");
        else text_append_remark(t, line, remarks, words[lag]);
        if (w->rank == s->rank) text_append(t, "message %d", w->step);
        else text_append(t, "%d:%d", w->rank, w->step);
    }
}
static void text_append_remarks(struct text *t, const struct schedule *s, int step, size_t line)
{
    const struct step *x = &s->steps[step];
    int remarks = 0;
    for (int lag = SAME_TILE; lag <= EVERY_TILE; lag++) text_append_waits(t, s, x, (enum lag)lag, line, &remarks);
    if (step < s->prelude) text_append_remark(t, line, &remarks, "prelude");
    if (x->raw) text_append_remark(t, line, &remarks, "raw");
    if (x->finish) text_append_remark(t, line, &remarks, "finish");
    if (x->by_tile || x->by_reuse || x->by_leave) text_append_remark(t, line, &remarks, "published");
}
static void text_append_step(struct text *t, const struct schedule *s, int step)
{
    size_t line = t->length;
    text_append(t, "%3d:%-3d ", s->rank, step);
    text_append_action(t, s, &s->steps[step]);
    text_append_remarks(t, s, step, line);
    text_append(t, "\n");
}
static const char *text_plural(int n) { return n == 1 ? "" : "s"; }
size_t plan_print(const struct plan *p, char *buffer, size_t capacity)
{
    struct text t = { buffer, capacity, 0 };
    int scratch = p->ranks[0].chunks[SCRATCH];
    if (capacity) buffer[0] = '\0';
    text_append(&t, "%s: %d rank%s on %d host%s, message cut in %d, %d slot%s of scratch\n", p->algorithm->name,
        p->size, text_plural(p->size), p->layout->hosts, text_plural(p->layout->hosts), p->ranks[0].cut, scratch,
        text_plural(scratch));
    for (int m = 0; m < p->count; m++)
        for (int j = 0; j < p->ranks[m].step_count; j++) text_append_step(&t, &p->ranks[m], j);
    return t.length;
}
