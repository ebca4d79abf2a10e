/* The checker's memory. A cell holds a symbolic value and the accesses that must be ordered before a later conflicting
 * one. Vector clocks decide whether they are (Fidge 1988, Mattern 1989). A message in flight is an access that lasts
 * until its completion has been awaited. */
#include "backend/base/memory.h"
#include "backend/check/check.h"
#include "backend/schedule/build.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void checker_report_error(struct checker *k, const char *what, int rank, int step, int tile)
{
    if (!k->failed) snprintf(k->why, k->why_bytes, "%s: rank %d step %d tile %d", what, rank, step, tile);
    k->failed = true;
}

/* ---- values ---- */
void value_reduce(struct checker *k, struct value *into, const struct value *from)
{
    bool alike = into->chunk == from->chunk && into->tile == from->tile && into->operation == from->operation;
    bool again = false;
    for (int w = 0; w < CHECK_WORDS; w++) {
        again |= (into->have[w] & from->have[w]) != 0;
        into->have[w] |= from->have[w];
    }
    if (k->plan->algorithm->collective == BARRIER) again = false;
    into->valid &= from->valid && alike && !again && into->raw == from->raw && into->raw == k->plan->stage_inputs;
    /* A quotient must not be summed. */
    into->valid &= !into->finished && !from->finished;
}

/* ---- clocks ---- */
void checker_merge_clock(struct checker *k, int thread, const int *clock)
{
    int *mine = k->thread[thread].clock;
    for (int i = 0; i < k->threads; i++) mine[i] = clock[i] > mine[i] ? clock[i] : mine[i];
}
int *checker_copy_clock(struct checker *k, int thread)
{
    int *clock = memory_alloc_zeroed((size_t)k->threads, sizeof *clock);
    if (clock) memcpy(clock, k->thread[thread].clock, (size_t)k->threads * sizeof *clock);
    else checker_report_error(k, "the checker is out of memory", thread / k->slots, 0, 0);
    return clock;
}

/* ---- cells ---- */
struct check_cell *checker_cell(struct checker *k, struct span a, int index, int tile, int operation)
{
    size_t rank = (size_t)a.rank, slots = (size_t)k->slots;
    if (a.buffer == SCRATCH) {
        size_t half = (size_t)(operation % 2), slot = (size_t)(tile % k->slots);
        size_t row = (rank * 2 + half) * slots + slot;
        return &k->scratch[row * (size_t)k->plan->ranks[0].chunks[SCRATCH] + (size_t)(a.first + index)];
    }
    size_t home = (size_t)plan_cell_index(k->plan, a.rank, a.buffer, a.first + index);
    return &k->tensors[(rank * (size_t)k->tensor_cells + home) * (size_t)k->tiles + (size_t)tile];
}
static bool access_is_over(const struct checker *k, const struct access *a, int thread)
{
    int at = a->message ? a->message->done_at : a->at;
    return at > 0 && (a->thread == thread || k->thread[thread].clock[a->thread] >= at);
}
void checker_record_access(struct checker *k, struct check_cell *c, int thread, bool write,
    const struct check_message *m, int step, int tile)
{
    static const char *const races[2][2] = { { "", "race: written, then read" },
        { "race: read, then written", "race: written twice" } };
    int kept = 0;
    for (int i = 0; i < c->count; i++) {
        struct access a = c->list[i];
        bool over = access_is_over(k, &a, thread), again = a.thread == thread && a.write == write && !a.message && !m;
        if ((a.write || write) && !over) checker_report_error(k, races[write][a.write], thread / k->slots, step, tile);
        if (!(write && over) && !again) c->list[kept++] = a;
    }
    c->count = kept;
    struct access *list = memory_grow(c->list, c->count, &c->room, sizeof *list);
    if (!list) {
        checker_report_error(k, "the checker is out of memory", thread / k->slots, step, tile);
        return;
    }
    c->list = list;
    list[c->count++] = (struct access){ m, thread, *checker_clock_now(k, thread) + 1, write };
}
struct check_message **checker_message(struct checker *k, int rank, int step, int tile, int operation)
{
    size_t row = (size_t)step * (size_t)k->operations + (size_t)operation;
    return &k->messages[k->message_base[rank] + row * (size_t)k->tiles + (size_t)tile];
}

/* ---- lifetime ---- */
static bool checker_init_memory(struct checker *k)
{
    const struct plan *p = k->plan;
    size_t size = (size_t)p->size, chunks = (size_t)p->ranks[0].chunks[SCRATCH];
    k->tensor_total = size * (size_t)k->tensor_cells * (size_t)k->tiles;
    k->scratch_total = size * 2 * (size_t)k->slots * chunks;
    k->message_base = memory_alloc_zeroed(size, sizeof *k->message_base);
    for (int r = 0; k->message_base && r < p->size; r++) {
        k->message_base[r] = k->message_total;
        if (p->ranks[r].first_message < 0) continue;
        k->message_total += (size_t)p->ranks[r].step_count * (size_t)k->operations * (size_t)k->tiles;
    }
    k->tensors = memory_alloc_zeroed(k->tensor_total, sizeof *k->tensors);
    k->scratch = memory_alloc_zeroed(k->scratch_total, sizeof *k->scratch);
    k->messages = memory_alloc_zeroed(k->message_total, sizeof *k->messages);
    return k->message_base && k->tensors && k->scratch && k->messages;
}
static bool checker_init_threads(struct checker *k)
{
    size_t threads = (size_t)k->threads, ranks = (size_t)k->plan->size;
    k->thread = memory_alloc_zeroed(threads, sizeof *k->thread);
    k->walker = memory_alloc_zeroed(ranks, sizeof *k->walker);
    bool fine = k->thread && k->walker;
    for (size_t i = 0; i < threads && fine; i++) {
        k->thread[i].clock = memory_alloc_zeroed(threads, sizeof(int));
        fine = k->thread[i].clock != NULL;
    }
    for (size_t r = 0; r < ranks && fine; r++) {
        k->walker[r].arrival = memory_alloc_zeroed((size_t)k->operations * threads, sizeof(int));
        fine = k->walker[r].arrival != NULL;
    }
    return fine;
}
bool checker_init(struct checker *k)
{
    k->match = match_create(k->plan);
    bool fine = k->match && checker_init_memory(k) && checker_init_threads(k);
    if (!fine) checker_report_error(k, "the checker is out of memory", 0, 0, 0);
    return fine;
}
void checker_finish(struct checker *k)
{
    for (size_t i = 0; k->tensors && i < k->tensor_total; i++) free(k->tensors[i].list);
    for (size_t i = 0; k->scratch && i < k->scratch_total; i++) free(k->scratch[i].list);
    for (size_t i = 0; k->messages && i < k->message_total; i++) {
        if (!k->messages[i]) continue;
        free(k->messages[i]->values);
        free(k->messages[i]->clock);
        free(k->messages[i]);
    }
    for (int i = 0; k->thread && i < k->threads; i++) {
        for (int l = 0; l < k->thread[i].logged; l++) free(k->thread[i].log[l].clock);
        free(k->thread[i].log);
        free(k->thread[i].clock);
    }
    for (int r = 0; k->walker && r < k->plan->size; r++) free(k->walker[r].arrival);
    free(k->tensors);
    free(k->scratch);
    free(k->messages);
    free(k->message_base);
    free(k->thread);
    free(k->walker);
    match_destroy(k->match);
}
