/* The builder makes a plan from an algorithm: it records all members, then runs the parts of build.h in order, each
 * over all members. A plan of one host's ranks has the same schedules as the plan of the whole group has for them. */
#include "backend/schedule/build.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Formats the first sticky error into p->error. */
static tutti_status plan_get_build_status(struct plan *p)
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
static void plan_record_schedule(const struct plan *p, int rank, struct schedule *s)
{
    enum collective collective = p->algorithm->collective;
    *s = (struct schedule){
        .collective = collective,
        .rank = rank,
        .size = p->size,
        .root = p->root,
        .layout = p->layout,
        .cut = 1,
        .place = layout_place(p->layout, rank),
        .error_rank = -1,
        .first_message = -1,
        .last_message = -1,
    };
    s->chunks[INPUT] = collective_buffer_parts(collective, INPUT, p->size);
    s->chunks[OUTPUT] = collective_buffer_parts(collective, OUTPUT, p->size);
    s->absent[INPUT] = !collective_has_buffer(collective, p->root, rank, INPUT);
    s->absent[OUTPUT] = !collective_has_buffer(collective, p->root, rank, OUTPUT);
    p->algorithm->record(s);
}
/* All members must have the same cut, because equal chunks must be the same bytes. */
static void plan_check_cuts(struct plan *p)
{
    for (int m = 1; m < p->count; m++)
        if (p->ranks[m].cut != p->ranks[0].cut)
            schedule_set_error(&p->ranks[m], "divides the message differently from its peers");
}

/* ---- building ---- */
static tutti_status build_update_writers(struct build *b)
{
    build_find_writers(b);
    return plan_get_build_status(b->plan);
}
static tutti_status build_prepare_schedules(struct build *b)
{
    struct plan *p = b->plan;
    for (int m = 0; m < p->count; m++) plan_record_schedule(p, plan_rank_of_member(p, m), &p->ranks[m]);
    plan_check_cuts(p);
    TRY(plan_get_build_status(p));
    TRY(build_update_writers(b));
    plan_mark_finishing_steps(b);
    plan_pull_private_writes(p);
    TRY(plan_get_build_status(p));
    TRY(build_update_writers(b));
    build_stage_private(b);
    TRY(plan_get_build_status(p));
    if (!p->hoist) return TUTTI_OK;
    TRY(build_update_writers(b));
    plan_hoist_receives(b);
    return plan_get_build_status(p);
}
static tutti_status build_infer_and_verify(struct build *b)
{
    struct plan *p = b->plan;
    TRY(build_update_writers(b));
    for (int m = 0; m < p->count; m++) schedule_insert_awaits(b, &p->ranks[m]);
    TRY(plan_get_build_status(p));
    TRY(build_update_writers(b));
    plan_number_messages(p);
    build_infer_waits(b);
    TRY(plan_get_build_status(p));
    bool fine = plan_is_deadlock_free(b);
    TRY(plan_get_build_status(p));
    return fine ? TUTTI_OK : TUTTI_INTERNAL;
}
static tutti_status plan_set_no_memory(struct plan *p)
{
    snprintf(p->error, sizeof p->error, "%s", schedule_no_memory);
    return TUTTI_NO_MEMORY;
}
/* ---- the kept schedules ---- */
static int plan_count_kept_schedules(const struct plan *p) { return p->kept ? 1 : p->count; }
static bool schedule_writes_slots(const struct schedule *s)
{
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++)
        for (int d = 0; d < t->to_count; d++)
            if (step_to(s, t)[d].buffer == SCRATCH) return true;
    return false;
}
/* True if the rank waits only for memory that it reads: it writes its own memory only and has no LEAVE. */
static bool schedule_only_awaits_reads(const struct schedule *s)
{
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++)
        for (int d = 0; d < t->to_count || t->kind == LEAVE; d++)
            if (t->kind == LEAVE || step_to(s, t)[d].rank != s->rank) return false;
    return true;
}
/* Sets p->one_sided. False: out of memory. */
static bool plan_find_one_sided(struct plan *p)
{
    bool *needed = memory_alloc_zeroed((size_t)p->size, sizeof *needed), fine = !p->any_message && p->count == p->size;
    p->one_sided = false;
    for (int m = 0; m < p->count && fine && needed; m++) {
        fine = schedule_only_awaits_reads(&p->ranks[m]);
        memset(needed, 0, (size_t)p->size * sizeof *needed);
        p->one_sided |= schedule_find_needed_peers(&p->ranks[m], needed) < p->size - 1;
    }
    p->one_sided &= fine;
    bool known = needed != NULL;
    free(needed);
    return known;
}
static bool plan_summarize_members(struct plan *p)
{
    p->slot_writers = 0;
    p->any_message = false;
    for (int m = 0; m < p->count; m++) {
        p->slot_writers += schedule_writes_slots(&p->ranks[m]);
        p->any_message |= p->ranks[m].first_message >= 0;
    }
    return plan_find_one_sided(p);
}
/* Keeps the schedule of p->rank only: to run it, a rank needs the waits of its own schedule and no other schedules. */
static void plan_keep_one_schedule(struct plan *p)
{
    int member = plan_member_of_rank(p, p->rank), room = p->count;
    struct schedule mine = p->ranks[member];
    p->ranks[member] = p->ranks[0];
    p->ranks[0] = mine;
    for (int m = 1; m < p->count; m++) schedule_free_arrays(&p->ranks[m]);
    p->ranks = memory_trim(p->ranks, 1, &room, sizeof *p->ranks);
    p->kept = member + 1;
}
static tutti_status plan_keep_schedules(struct plan *p)
{
    if (!plan_summarize_members(p)) return plan_set_no_memory(p);
    if (p->one_rank) plan_keep_one_schedule(p);
    for (int m = 0; m < plan_count_kept_schedules(p); m++) {
        struct schedule *s = &p->ranks[m];
        s->steps = memory_trim(s->steps, s->step_count, &s->step_room, sizeof *s->steps);
        s->spans = memory_trim(s->spans, s->span_count, &s->span_room, sizeof *s->spans);
        s->waits = memory_trim(s->waits, s->wait_count, &s->wait_room, sizeof *s->waits);
    }
    return TUTTI_OK;
}
size_t plan_held_bytes(const struct plan *p)
{
    size_t bytes = sizeof *p + (p->unshared ? (size_t)mask_words(p->count) * sizeof *p->unshared : 0);
    for (int m = 0; m < plan_count_kept_schedules(p); m++) {
        const struct schedule *s = &p->ranks[m];
        bytes += sizeof *s + (size_t)s->step_room * sizeof *s->steps + (size_t)s->span_room * sizeof *s->spans
            + (size_t)s->wait_room * sizeof *s->waits;
    }
    return bytes;
}

/* ---- all of it ---- */
tutti_status plan_build(struct plan *p)
{
    struct build b = { .plan = p };
    assert(p->slots > 0 && (!p->one_host || (p->host >= 0 && p->host < p->layout->hosts)));
    assert(!p->one_rank || plan_member_of_rank(p, p->rank) >= 0);
    p->size = p->layout->ranks;
    p->count = plan_count_members(p);
    p->cycle_rank = -1;
    p->kept = 0;
    p->error[0] = 0;
    p->stage_sends |= p->algorithm->stage_in_place;
    p->ranks = memory_alloc_zeroed((size_t)p->count, sizeof *p->ranks);
    if (!p->ranks) return plan_set_no_memory(p);
    tutti_status status = build_prepare_schedules(&b);
    if (status == TUTTI_OK) status = build_infer_and_verify(&b);
    if (status == TUTTI_OK) status = plan_keep_schedules(p);
    free(b.writers);
    return status;
}
static void plan_release_schedules(struct plan *p)
{
    for (int m = 0; p->ranks && m < plan_count_kept_schedules(p); m++) schedule_free_arrays(&p->ranks[m]);
    free(p->ranks);
    p->ranks = NULL;
    p->kept = 0;
}
/* Returns the next member to treat as private: the one that waits for itself if it is open, else the first open one;
   -1: all are private. */
static int plan_next_member_to_stage(const struct plan *p)
{
    if (plan_is_open(p, p->cycle_rank)) return plan_member_of_rank(p, p->cycle_rank);
    for (int m = 0; m < p->count; m++)
        if (plan_is_open(p, plan_rank_of_member(p, m))) return m;
    return -1;
}
/* Stages first the sent chunks that are overwritten, then the tensors of ranks that wait for themselves. */
tutti_status plan_build_staging(struct plan *p)
{
    for (;;) {
        tutti_status status = plan_build(p);
        if (status != TUTTI_INTERNAL || p->cycle_rank < 0) return status;
        int member = p->stage_sends ? plan_next_member_to_stage(p) : -1;
        if (p->stage_sends && member < 0) return status;
        if (member >= 0 && !p->unshared)
            p->unshared = memory_alloc_zeroed((size_t)mask_words(p->count), sizeof(uint64_t));
        plan_release_schedules(p);
        if (member < 0) p->stage_sends = true;
        else if (p->unshared) mask_add(p->unshared, member);
        else return plan_set_no_memory(p);
    }
}
void plan_finish(struct plan *p)
{
    plan_release_schedules(p);
    free(p->unshared);
    p->unshared = NULL;
}
