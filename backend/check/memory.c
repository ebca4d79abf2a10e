/* The checker's memory. A cell holds a symbolic value and the accesses that must be ordered before a later conflicting
 * one. Vector clocks decide whether they are (Fidge 1988, Mattern 1989). A message in flight is an access that lasts
 * until its completion has been awaited. */
#include "backend/base/memory.h"
#include "backend/check/check.h"
#include "backend/schedule/build.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void checker_report_error(struct checker *checker, const char *what, int rank, int step, int tile)
{
    if (!checker->failed)
        snprintf(checker->why, checker->why_bytes, "%s: rank %d step %d tile %d", what, rank, step, tile);
    checker->failed = true;
}

/* ---- values ---- */
void value_reduce(struct checker *checker, struct value *into, const struct value *from)
{
    bool alike = into->chunk == from->chunk && into->tile == from->tile && into->operation == from->operation;
    bool again = false;
    for (int w = 0; w < CHECK_WORDS; w++) {
        again |= (into->have[w] & from->have[w]) != 0;
        into->have[w] |= from->have[w];
    }
    if (checker->plan->algorithm->collective == BARRIER) again = false;
    into->valid &= from->valid && alike && !again && into->premultiplied == from->premultiplied
        && into->premultiplied == checker->plan->stage_inputs;
    /* A quotient must not be summed. */
    into->valid &= !into->finished && !from->finished;
}

/* ---- clocks ---- */
void checker_merge_clock(struct checker *checker, int thread, const int *clock)
{
    int *mine = checker->thread[thread].clock;
    for (int i = 0; i < checker->threads; i++) mine[i] = clock[i] > mine[i] ? clock[i] : mine[i];
}
int *checker_copy_clock(struct checker *checker, int thread)
{
    int *clock = memory_alloc_zeroed((size_t)checker->threads, sizeof *clock);
    if (clock) memcpy(clock, checker->thread[thread].clock, (size_t)checker->threads * sizeof *clock);
    else checker_report_error(checker, "the checker is out of memory", thread / checker->slots, 0, 0);
    return clock;
}

/* ---- cells ---- */
struct check_cell *checker_cell(struct checker *checker, struct span span, int index, int tile, int operation)
{
    size_t rank = (size_t)span.rank, slots = (size_t)checker->slots;
    if (span.buffer == SCRATCH) {
        size_t half = (size_t)(operation % 2), slot = (size_t)(tile % checker->slots);
        size_t row = (rank * 2 + half) * slots + slot;
        return &checker->scratch[row * (size_t)checker->plan->ranks[0].chunks[SCRATCH] + (size_t)(span.first + index)];
    }
    size_t home = (size_t)plan_cell_index(checker->plan, span.rank, span.buffer, span.first + index);
    return &checker->tensors[(rank * (size_t)checker->tensor_cells + home) * (size_t)checker->tiles + (size_t)tile];
}
static bool access_is_over(const struct checker *checker, const struct access *a, int thread)
{
    int at = a->message ? a->message->done_at : a->at;
    return at > 0 && (a->thread == thread || checker->thread[thread].clock[a->thread] >= at);
}
void checker_record_access(struct checker *checker, struct check_cell *c, int thread, bool write,
    const struct check_message *m, int step, int tile)
{
    static const char *const races[2][2] = { { "", "race: written, then read" },
        { "race: read, then written", "race: written twice" } };
    int kept = 0;
    for (int i = 0; i < c->count; i++) {
        struct access a = c->list[i];
        bool over = access_is_over(checker, &a, thread),
             again = a.thread == thread && a.write == write && !a.message && !m;
        if ((a.write || write) && !over)
            checker_report_error(checker, races[write][a.write], thread / checker->slots, step, tile);
        if (!(write && over) && !again) c->list[kept++] = a;
    }
    c->count = kept;
    struct access *list = memory_grow(c->list, c->count, &c->room, sizeof *list);
    if (!list) {
        checker_report_error(checker, "the checker is out of memory", thread / checker->slots, step, tile);
        return;
    }
    c->list = list;
    list[c->count++] = (struct access){ m, thread, *checker_clock_now(checker, thread) + 1, write };
}
struct check_message **checker_message(struct checker *checker, int rank, int step, int tile, int operation)
{
    size_t row = (size_t)step * (size_t)checker->operations + (size_t)operation;
    return &checker->messages[checker->message_base[rank] + row * (size_t)checker->tiles + (size_t)tile];
}

/* ---- lifetime ---- */
/* Allocates the symbolic tensors, slots and messages of all ranks. False: no memory. */
static bool checker_init_memory(struct checker *checker)
{
    const struct plan *plan = checker->plan;
    size_t size = (size_t)plan->size, chunks = (size_t)plan->ranks[0].chunks[SCRATCH];
    checker->tensor_total = size * (size_t)checker->tensor_cells * (size_t)checker->tiles;
    checker->scratch_total = size * 2 * (size_t)checker->slots * chunks;
    checker->message_base = memory_alloc_zeroed(size, sizeof *checker->message_base);
    for (int r = 0; checker->message_base && r < plan->size; r++) {
        checker->message_base[r] = checker->message_total;
        if (plan->ranks[r].first_message < 0) continue;
        checker->message_total +=
            (size_t)plan->ranks[r].step_count * (size_t)checker->operations * (size_t)checker->tiles;
    }
    checker->tensors = memory_alloc_zeroed(checker->tensor_total, sizeof *checker->tensors);
    checker->scratch = memory_alloc_zeroed(checker->scratch_total, sizeof *checker->scratch);
    checker->messages = memory_alloc_zeroed(checker->message_total, sizeof *checker->messages);
    return checker->message_base && checker->tensors && checker->scratch && checker->messages;
}
/* Allocates a simulated thread with a vector clock for each slot of each rank. False: no memory. */
static bool checker_init_threads(struct checker *checker)
{
    size_t threads = (size_t)checker->threads, ranks = (size_t)checker->plan->size;
    checker->thread = memory_alloc_zeroed(threads, sizeof *checker->thread);
    checker->walker = memory_alloc_zeroed(ranks, sizeof *checker->walker);
    bool fine = checker->thread && checker->walker;
    for (size_t i = 0; i < threads && fine; i++) {
        checker->thread[i].clock = memory_alloc_zeroed(threads, sizeof(int));
        fine = checker->thread[i].clock != NULL;
    }
    for (size_t r = 0; r < ranks && fine; r++) {
        checker->walker[r].arrival = memory_alloc_zeroed((size_t)checker->operations * threads, sizeof(int));
        fine = checker->walker[r].arrival != NULL;
    }
    return fine;
}
bool checker_init(struct checker *checker)
{
    checker->match = match_create(checker->plan);
    bool fine = checker->match && checker_init_memory(checker) && checker_init_threads(checker);
    if (!fine) checker_report_error(checker, "the checker is out of memory", 0, 0, 0);
    return fine;
}
void checker_finish(struct checker *checker)
{
    for (size_t i = 0; checker->tensors && i < checker->tensor_total; i++) free(checker->tensors[i].list);
    for (size_t i = 0; checker->scratch && i < checker->scratch_total; i++) free(checker->scratch[i].list);
    for (size_t i = 0; checker->messages && i < checker->message_total; i++) {
        if (!checker->messages[i]) continue;
        free(checker->messages[i]->values);
        free(checker->messages[i]->clock);
        free(checker->messages[i]);
    }
    for (int i = 0; checker->thread && i < checker->threads; i++) {
        for (int l = 0; l < checker->thread[i].logged; l++) free(checker->thread[i].log[l].clock);
        free(checker->thread[i].log);
        free(checker->thread[i].clock);
    }
    for (int r = 0; checker->walker && r < checker->plan->size; r++) free(checker->walker[r].arrival);
    free(checker->tensors);
    free(checker->scratch);
    free(checker->messages);
    free(checker->message_base);
    free(checker->thread);
    free(checker->walker);
    match_destroy(checker->match);
}
