/* The builder, from an algorithm to a plan: record, then the parts of build.h in their order, each over all members.
 * What is built for the ranks of one host is what is built for them in the plan of the whole group. */
#include "backend/schedule/build.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

void plan_out_of_memory(struct plan *p) { schedule_fail(&p->ranks[0], schedule_no_memory); }
/* The first sticky error, in words. */
static tutti_status plan_status(struct plan *p)
{
    for (int m = 0; m < p->count; m++) {
        const struct schedule *s = &p->ranks[m];
        if (!s->error) continue;
        if (s->error_rank >= 0)
            snprintf(p->error, sizeof p->error, "rank %d: rank %d %s", s->rank, s->error_rank, s->error);
        else snprintf(p->error, sizeof p->error, "rank %d: %s", s->rank, s->error);
        return s->error == schedule_no_memory ? TUTTI_NO_MEMORY : TUTTI_INTERNAL;
    }
    return TUTTI_OK;
}

/* ---- recording ---- */
static void record(const struct plan *p, int rank, int host, struct schedule *s)
{
    enum family family = p->algorithm->family;
    *s = (struct schedule){
        .family = family,
        .rank = rank,
        .size = p->size,
        .root = p->root,
        .layout = p->layout,
        .cut = 1,
        .host = host,
        .host_first = p->layout->first[host],
        .host_end = p->layout->first[host + 1],
        .error_rank = -1,
        .first_message = -1,
        .last_message = -1,
    };
    s->chunks[INPUT] = family_parts(family, INPUT, p->size);
    s->chunks[OUTPUT] = family_parts(family, OUTPUT, p->size);
    s->absent[INPUT] = !family_has(family, p->root, rank, INPUT);
    s->absent[OUTPUT] = !family_has(family, p->root, rank, OUTPUT);
    p->algorithm->record(s);
}
static void record_all(struct plan *p)
{
    int host = host_of(p->layout, p->first);
    for (int m = 0; m < p->count; m++) {
        while (p->first + m >= p->layout->first[host + 1]) host++;
        record(p, p->first + m, host, &p->ranks[m]);
    }
}
/* All members are cut alike, else their chunks would not be the same bytes. */
static void check_cuts(struct plan *p)
{
    for (int m = 1; m < p->count; m++)
        if (p->ranks[m].cut != p->ranks[0].cut) schedule_fail(&p->ranks[m], "cuts the message unlike its peers");
}

/* ---- building ---- */
static tutti_status prepare(struct build *b)
{
    struct plan *p = b->plan;
    record_all(p);
    check_cuts(p);
    TRY(plan_status(p));
    writers_find(b);
    TRY(plan_status(p));
    finish_mark(b);
    pull_private(p);
    TRY(plan_status(p));
    writers_find(b);
    TRY(plan_status(p));
    stage_private(b);
    TRY(plan_status(p));
    if (!p->hoist) return TUTTI_OK;
    writers_find(b);
    TRY(plan_status(p));
    hoist_receives(b);
    return plan_status(p);
}
static tutti_status infer(struct build *b)
{
    struct plan *p = b->plan;
    writers_find(b);
    TRY(plan_status(p));
    for (int m = 0; m < p->count; m++) awaits_insert(b, &p->ranks[m]);
    TRY(plan_status(p));
    writers_find(b);
    TRY(plan_status(p));
    messages_number(p);
    infer_waits(b);
    TRY(plan_status(p));
    bool fine = deadlock_free(b);
    TRY(plan_status(p));
    return fine ? TUTTI_OK : TUTTI_INTERNAL;
}
tutti_status plan_build(struct plan *p)
{
    struct build b = { .plan = p };
    assert(p->size > 0 && p->count > 0 && p->slots > 0 && p->first >= 0 && p->first + p->count <= p->size);
    assert(p->layout->first[p->layout->hosts] == p->size);
    p->cycle_rank = -1;
    p->error[0] = 0;
    p->stage_sends |= p->algorithm->stage_in_place;
    p->ranks = memory_zeroed((size_t)p->count, sizeof *p->ranks);
    if (!p->ranks) {
        snprintf(p->error, sizeof p->error, "%s", schedule_no_memory);
        return TUTTI_NO_MEMORY;
    }
    tutti_status status = prepare(&b);
    if (status == TUTTI_OK) status = infer(&b);
    free(b.writers);
    return status;
}
/* First the sent chunks that are overwritten are staged, then the tensors of the ranks found waiting for themselves. */
tutti_status plan_build_staging(struct plan *p)
{
    for (;;) {
        tutti_status status = plan_build(p);
        bool curable = status == TUTTI_INTERNAL && p->cycle_rank >= 0 && (!p->stage_sends || p->shared);
        if (!curable) return status;
        plan_finish(p);
        if (!p->stage_sends) p->stage_sends = true;
        else if (plan_shared(p, p->cycle_rank)) p->shared &= ~((uint64_t)1 << (p->cycle_rank % 64));
        else p->shared &= p->shared - 1;
    }
}
void plan_finish(struct plan *p)
{
    for (int m = 0; p->ranks && m < p->count; m++) schedule_release(&p->ranks[m]);
    free(p->ranks);
    p->ranks = NULL;
}
