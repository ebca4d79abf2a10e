/* Prints a plan as text, a line for each step:
 *
 *   1:2   out[1] = slot[0] + r0.slot[1] + r2.slot[1]      after 0:0, 2:0; finish; published
 *
 * is step 2 of rank 1. It waits until ranks 0 and 2 have done their step 0 for the same tile; it leaves a full sum; a
 * peer waits for it. Buffers without a rank are the rank's own; slot is SCRATCH. "after message 3" awaits the message
 * that the rank posted at its step 3. "slot free after" refers to the tile that had the slot before. A "prelude" step
 * may run before the peers have arrived, and a "raw" step reads INPUT that PREMUL_SUM multiplies. */
#include "backend/base/text_buffer.h"
#include "backend/schedule/schedule.h"
#include <stdio.h>

enum { REMARKS_COLUMN = 56 };

/* Appends a span, for example "r2.slot[0..3]"; a span of the schedule's own rank has no rank. */
static void text_append_span(struct text_buffer *text, const struct schedule *schedule, struct span span)
{
    static const char *const names[] = { "in", "out", "slot" };
    if (span.rank != schedule->rank) text_append(text, "r%d.", span.rank);
    text_append(text, span.count > 1 ? "%s[%d..%d]" : "%s[%d]", names[span.buffer], span.first,
        span.first + span.count - 1);
}
/* Appends `count` spans with the text `between` between them. */
static void text_append_spans(struct text_buffer *text, const struct schedule *schedule, const struct span *span,
    int count, const char *between)
{
    for (int i = 0; i < count; i++) {
        text_append(text, "%s", i ? between : "");
        text_append_span(text, schedule, span[i]);
    }
}
/* Appends a step as an assignment, a send or a receive. */
static void text_append_action(struct text_buffer *text, const struct schedule *schedule, const struct step *step)
{
    const struct span *from = step_from(schedule, step), *to = step_to(schedule, step);
    if (step->kind == AWAIT) text_append(text, "await");
    if (step->kind == LEAVE) text_append(text, "leave");
    if (step->kind == SEND) text_append(text, "send ");
    if (step->kind == RECV) text_append(text, "recv ");
    text_append_spans(text, schedule, to, step->to_count, step->kind == RECV ? ", " : " = ");
    if (step->kind == WORK) text_append(text, " = ");
    text_append_spans(text, schedule, from, step->from_count, step->kind == SEND ? ", " : " + ");
    if (step->kind == SEND) text_append(text, " -> %d", step->peer);
    if (step->kind == RECV) text_append(text, " <- %d", step->peer);
}
/* Appends a remark to the line that began at offset `line`; *remarks counts those of the line. The first one begins at
   REMARKS_COLUMN, unless the line is longer. */
static void text_append_remark(struct text_buffer *text, size_t line, int *remarks, const char *remark)
{
    size_t written = text->length - line;
    int space = written < REMARKS_COLUMN ? (int)(REMARKS_COLUMN - written) : 2;
    if (*remarks) text_append(text, "; %s", remark);
    else text_append(text, "%*s%s", space, "", remark);
    ++*remarks;
}
/* Appends the waits of one kind (`lag`) as one remark. `line` and `remarks` as in text_append_remark. */
static void text_append_waits(struct text_buffer *text, const struct schedule *schedule, const struct step *step,
    enum lag lag, size_t line, int *remarks)
{
    static const char *const words[] = { "after ", "slot free after ", "every tile after " };
    int waits = 0;
    for (int i = 0; i < step->wait_count; i++) {
        const struct wait *wait = &schedule->waits[step->wait + i];
        if (wait->lag != lag) continue;
        if (waits++) text_append(text, ", ");
        else text_append_remark(text, line, remarks, words[lag]);
        if (wait->rank == schedule->rank) text_append(text, "message %d", wait->step);
        else text_append(text, "%d:%d", wait->rank, wait->step);
    }
}
/* Appends the remarks of a step: its waits and flags. */
static void text_append_remarks(struct text_buffer *text, const struct schedule *schedule, int step, size_t line)
{
    const struct step *printed = &schedule->steps[step];
    int remarks = 0;
    for (int lag = SAME_TILE; lag <= EVERY_TILE; lag++)
        text_append_waits(text, schedule, printed, (enum lag)lag, line, &remarks);
    if (step < schedule->prelude) text_append_remark(text, line, &remarks, "prelude");
    if (printed->premultiplies) text_append_remark(text, line, &remarks, "raw");
    if (printed->finish) text_append_remark(text, line, &remarks, "finish");
    if (printed->by_tile || printed->by_reuse || printed->by_leave)
        text_append_remark(text, line, &remarks, "published");
}
/* Appends the line of a step. */
static void text_append_step(struct text_buffer *text, const struct schedule *schedule, int step)
{
    size_t line = text->length;
    text_append(text, "%3d:%-3d ", schedule->rank, step);
    text_append_action(text, schedule, &schedule->steps[step]);
    text_append_remarks(text, schedule, step, line);
    text_append(text, "\n");
}
/* Returns the ending of a noun after this count. */
static const char *text_plural(int count) { return count == 1 ? "" : "s"; }
size_t plan_print(const struct plan *plan, char *buffer, size_t capacity)
{
    struct text_buffer text = { buffer, capacity, 0 };
    int scratch = plan->ranks[0].chunks[SCRATCH];
    if (capacity) buffer[0] = '\0';
    text_append(&text, "%s: %d rank%s on %d host%s, message cut in %d, %d slot%s of scratch\n", plan->algorithm->name,
        plan->size, text_plural(plan->size), plan->layout->hosts, text_plural(plan->layout->hosts), plan->ranks[0].cut,
        scratch, text_plural(scratch));
    for (int m = 0; m < plan->count; m++)
        for (int j = 0; j < plan->ranks[m].step_count; j++) text_append_step(&text, &plan->ranks[m], j);
    return text.length;
}
