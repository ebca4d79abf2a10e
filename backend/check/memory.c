/* The checker's memory. A cell holds a symbolic value and the accesses that must be ordered before a later conflicting
 * one. Vector clocks decide whether they are so ordered (Fidge 1988, Mattern 1989). A message in flight is an access
 * that lasts until its completion has been awaited. */
#include "backend/base/memory.h"
#include "backend/check/check.h"
#include "backend/schedule/build.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes the check fail, and describes the first error. `kind` is "step" or "chunk", and `number` its number. */
static void checker_fail(struct checker *checker, const char *what, int rank, const char *kind, int number, int tile)
{
    if (!checker->failed)
        snprintf(checker->why, checker->why_bytes, "%s: rank %d %s %d tile %d", what, rank, kind, number, tile);
    checker->failed = true;
}
void checker_report_error(struct checker *checker, const char *what, int rank, int step, int tile)
{
    checker_fail(checker, what, rank, "step", step, tile);
}
void checker_report_chunk(struct checker *checker, const char *what, int rank, int chunk, int tile)
{
    checker_fail(checker, what, rank, "chunk", chunk, tile);
}

/* ---- values ---- */
void value_reduce(struct checker *checker, struct value *into, const struct value *from)
{
    bool same_chunk = into->chunk == from->chunk && into->tile == from->tile && into->operation == from->operation;
    bool counted_twice = false;
    for (int w = 0; w < CHECK_WORDS; w++) {
        counted_twice |= (into->have[w] & from->have[w]) != 0;
        into->have[w] |= from->have[w];
    }
    if (checker->plan->algorithm->collective == BARRIER) counted_twice = false;
    into->valid &= from->valid && same_chunk && !counted_twice && into->premultiplied == from->premultiplied
        && into->premultiplied == checker->plan->stage_inputs;
    /* A quotient must not be summed. */
    into->valid &= !into->finished && !from->finished;
}

/* ---- clocks ---- */
void checker_merge_clock(struct checker *checker, int thread, const int *clock)
{
    int *own = checker->thread[thread].clock;
    for (int i = 0; i < checker->threads; i++) own[i] = clock[i] > own[i] ? clock[i] : own[i];
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
    size_t cell = (size_t)plan_cell_index(checker->plan, span.rank, span.buffer, span.first + index);
    return &checker->tensors[(rank * (size_t)checker->tensor_cells + cell) * (size_t)checker->tiles + (size_t)tile];
}
/* True if the thread knows that the access has ended: it has an end, and is the thread's own or before its clock. */
static bool access_is_over(const struct checker *checker, const struct access *access, int thread)
{
    int end = access->message ? access->message->done_at : access->at;
    return end > 0 && (access->thread == thread || checker->thread[thread].clock[access->thread] >= end);
}
void checker_record_access(struct checker *checker, struct check_cell *cell, int thread, bool is_write,
    const struct check_message *message, int step, int tile)
{
    static const char *const races[2][2] = { { "", "race: written, then read" },
        { "race: read, then written", "race: written twice" } };
    int kept = 0;
    for (int i = 0; i < cell->count; i++) {
        struct access earlier = cell->list[i];
        bool is_over = access_is_over(checker, &earlier, thread),
             is_repeated = earlier.thread == thread && earlier.is_write == is_write && !earlier.message && !message;
        if ((earlier.is_write || is_write) && !is_over)
            checker_report_error(checker, races[is_write][earlier.is_write], thread / checker->slots, step, tile);
        if (!(is_write && is_over) && !is_repeated) cell->list[kept++] = earlier;
    }
    cell->count = kept;
    struct access *list = memory_grow(cell->list, cell->count, &cell->room, sizeof *list);
    if (!list) {
        checker_report_error(checker, "the checker is out of memory", thread / checker->slots, step, tile);
        return;
    }
    cell->list = list;
    list[cell->count++] = (struct access){ message, thread, *checker_clock_now(checker, thread) + 1, is_write };
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
    bool has_memory = checker->thread && checker->walker;
    for (size_t i = 0; i < threads && has_memory; i++) {
        checker->thread[i].clock = memory_alloc_zeroed(threads, sizeof(int));
        has_memory = checker->thread[i].clock != NULL;
    }
    for (size_t r = 0; r < ranks && has_memory; r++) {
        checker->walker[r].arrival = memory_alloc_zeroed((size_t)checker->operations * threads, sizeof(int));
        has_memory = checker->walker[r].arrival != NULL;
    }
    return has_memory;
}
bool checker_init(struct checker *checker)
{
    checker->match = match_create(checker->plan);
    bool has_memory = checker->match && checker_init_memory(checker) && checker_init_threads(checker);
    if (!has_memory) checker_report_error(checker, "the checker is out of memory", 0, 0, 0);
    return has_memory;
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
