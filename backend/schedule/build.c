/* The builder makes a plan from an algorithm: it records all members, then runs the parts of build.h in order, each
 * over all members. A plan of one host's ranks has the same schedules as the plan of the whole group has for them. */
#include "backend/schedule/build.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Returns TUTTI_OK, or the status of the first member that has an error, whose text it writes into plan->error. */
static tutti_status plan_get_build_status(struct plan *plan)
{
    for (int m = 0; m < plan->count; m++) {
        const struct schedule *schedule = &plan->ranks[m];
        if (!schedule->error) continue;
        if (schedule->error_rank >= 0)
            snprintf(plan->error, sizeof plan->error, "rank %d: rank %d %s", schedule->rank, schedule->error_rank,
                schedule->error);
        else snprintf(plan->error, sizeof plan->error, "rank %d: %s", schedule->rank, schedule->error);
        return schedule->error == schedule_no_memory ? TUTTI_NO_MEMORY : TUTTI_INTERNAL;
    }
    return TUTTI_OK;
}

/* ---- recording ---- */
/* Empties the schedule of a rank and lets the algorithm record its steps. */
static void plan_record_schedule(const struct plan *plan, int rank, struct schedule *schedule)
{
    enum collective collective = plan->algorithm->collective;
    *schedule = (struct schedule){
        .collective = collective,
        .rank = rank,
        .size = plan->size,
        .root = plan->root,
        .layout = plan->layout,
        .cut = 1,
        .place = layout_place(plan->layout, rank),
        .error_rank = -1,
        .first_message = -1,
        .last_message = -1,
    };
    schedule->chunks[INPUT] = collective_count_chunks(collective, INPUT, plan->size);
    schedule->chunks[OUTPUT] = collective_count_chunks(collective, OUTPUT, plan->size);
    schedule->absent[INPUT] = !collective_has_buffer(collective, plan->root, rank, INPUT);
    schedule->absent[OUTPUT] = !collective_has_buffer(collective, plan->root, rank, OUTPUT);
    plan->algorithm->record(schedule);
}
/* All members must have the same cut, because a chunk of one number must be the same bytes on all of them. */
static void plan_check_cuts(struct plan *plan)
{
    for (int m = 1; m < plan->count; m++)
        if (plan->ranks[m].cut != plan->ranks[0].cut)
            schedule_set_error(&plan->ranks[m], "divides the message differently from its peers");
}

/* ---- building ---- */
/* Finds the writers of all cells again after schedules have changed. */
static tutti_status build_update_writers(struct build *build)
{
    build_find_writers(build);
    return plan_get_build_status(build->plan);
}
/* Records all schedules and rewrites them: finishing steps, pulls instead of private writes, staging, early receives.
   The writers of chunks are found again after each change. */
static tutti_status build_prepare_schedules(struct build *build)
{
    struct plan *plan = build->plan;
    for (int m = 0; m < plan->count; m++) plan_record_schedule(plan, plan_rank_of_member(plan, m), &plan->ranks[m]);
    plan_check_cuts(plan);
    TRY(plan_get_build_status(plan));
    TRY(build_update_writers(build));
    plan_mark_finishing_steps(build);
    plan_pull_private_writes(plan);
    TRY(plan_get_build_status(plan));
    TRY(build_update_writers(build));
    build_stage_private(build);
    TRY(plan_get_build_status(plan));
    if (!plan->hoists_receives) return TUTTI_OK;
    TRY(build_update_writers(build));
    plan_hoist_receives(build);
    return plan_get_build_status(plan);
}
/* Inserts awaits, infers all waits, and runs the plan once: it must not deadlock. */
static tutti_status build_infer_and_verify(struct build *build)
{
    struct plan *plan = build->plan;
    TRY(build_update_writers(build));
    for (int m = 0; m < plan->count; m++) schedule_insert_awaits(build, &plan->ranks[m]);
    TRY(plan_get_build_status(plan));
    TRY(build_update_writers(build));
    plan_number_messages(plan);
    build_infer_waits(build);
    TRY(plan_get_build_status(plan));
    bool ends = plan_verify_no_deadlock(build);
    TRY(plan_get_build_status(plan));
    return ends ? TUTTI_OK : TUTTI_INTERNAL;
}
/* Writes the error of lacking memory into the plan and returns TUTTI_NO_MEMORY. */
static tutti_status plan_set_no_memory(struct plan *plan)
{
    snprintf(plan->error, sizeof plan->error, "%s", schedule_no_memory);
    return TUTTI_NO_MEMORY;
}
/* ---- the kept schedules ---- */
/* Returns the length of plan->ranks. */
static int plan_count_kept_schedules(const struct plan *plan) { return plan->kept ? 1 : plan->count; }
/* True if any step writes SCRATCH, its own or a peer's. */
static bool schedule_writes_slots(const struct schedule *schedule)
{
    for (const struct step *step = schedule->steps; step < schedule->steps + schedule->step_count; step++)
        for (int d = 0; d < step->to_count; d++)
            if (step_to(schedule, step)[d].buffer == SCRATCH) return true;
    return false;
}
/* True if the rank waits only for memory that it reads: it writes its own memory only and has no LEAVE. */
static bool schedule_only_awaits_reads(const struct schedule *schedule)
{
    for (const struct step *step = schedule->steps; step < schedule->steps + schedule->step_count; step++)
        for (int d = 0; d < step->to_count || step->kind == LEAVE; d++)
            if (step->kind == LEAVE || step_to(schedule, step)[d].rank != schedule->rank) return false;
    return true;
}
/* Sets plan->one_sided from the schedules of all members. False: out of memory. */
static bool plan_find_one_sided(struct plan *plan)
{
    bool *needed = memory_alloc_zeroed((size_t)plan->size, sizeof *needed),
         allowed = !plan->has_messages && plan->count == plan->size;
    plan->one_sided = false;
    for (int m = 0; m < plan->count && allowed && needed; m++) {
        allowed = schedule_only_awaits_reads(&plan->ranks[m]);
        memset(needed, 0, (size_t)plan->size * sizeof *needed);
        plan->one_sided |= schedule_find_needed_peers(&plan->ranks[m], needed) < plan->size - 1;
    }
    plan->one_sided &= allowed;
    bool has_memory = needed != NULL;
    free(needed);
    return has_memory;
}
static void count_raise_to(int *count, int value)
{
    if (*count < value) *count = value;
}
/* Adds a schedule to the counts of a plan. */
static void plan_count_schedule(struct plan_counts *counts, const struct schedule *schedule)
{
    int computed = 0, copied = 0;
    for (int i = 0; i < schedule->step_count; i++) {
        const struct step *step = &schedule->steps[i];
        if (step->kind != WORK) continue;
        int chunks = step_to(schedule, step)->count;
        count_raise_to(&counts->sources, step->from_count);
        count_raise_to(&counts->destinations, step->to_count);
        if (step->premultiplies) computed += chunks * step->to_count;
        else if (step->from_count > 1 || step->finish) computed += chunks;
        else copied += chunks * step->to_count;
    }
    counts->slot_writers += schedule_writes_slots(schedule);
    count_raise_to(&counts->computed, computed);
    count_raise_to(&counts->copied, copied);
}
/* Sets counts, has_messages and one_sided of the plan. False: out of memory. */
static bool plan_summarize_members(struct plan *plan)
{
    plan->counts = (struct plan_counts){ 0 };
    plan->has_messages = false;
    for (int m = 0; m < plan->count; m++) {
        plan_count_schedule(&plan->counts, &plan->ranks[m]);
        plan->has_messages |= plan->ranks[m].first_message >= 0;
    }
    return plan_find_one_sided(plan);
}
/* Frees all schedules but that of plan->rank. To run a plan, a rank needs only its own schedule with its waits. */
static void plan_keep_one_schedule(struct plan *plan)
{
    int member = plan_member_of_rank(plan, plan->rank), room = plan->count;
    struct schedule mine = plan->ranks[member];
    plan->ranks[member] = plan->ranks[0];
    plan->ranks[0] = mine;
    for (int m = 1; m < plan->count; m++) schedule_free_arrays(&plan->ranks[m]);
    plan->ranks = memory_trim(plan->ranks, 1, &room, sizeof *plan->ranks);
    plan->kept = member + 1;
}
/* Sets what depends on all schedules. Then frees the schedules of other ranks if the plan is for one rank, and the
   spare room of the arrays. */
static tutti_status plan_keep_schedules(struct plan *plan)
{
    if (!plan_summarize_members(plan)) return plan_set_no_memory(plan);
    if (plan->one_rank) plan_keep_one_schedule(plan);
    for (int m = 0; m < plan_count_kept_schedules(plan); m++) {
        struct schedule *schedule = &plan->ranks[m];
        schedule->steps =
            memory_trim(schedule->steps, schedule->step_count, &schedule->step_room, sizeof *schedule->steps);
        schedule->spans =
            memory_trim(schedule->spans, schedule->span_count, &schedule->span_room, sizeof *schedule->spans);
        schedule->waits =
            memory_trim(schedule->waits, schedule->wait_count, &schedule->wait_room, sizeof *schedule->waits);
    }
    return TUTTI_OK;
}
size_t plan_held_bytes(const struct plan *plan)
{
    size_t bytes = sizeof *plan + (plan->unshared ? (size_t)mask_words(plan->count) * sizeof *plan->unshared : 0);
    for (int m = 0; m < plan_count_kept_schedules(plan); m++) {
        const struct schedule *schedule = &plan->ranks[m];
        bytes += sizeof *schedule + (size_t)schedule->step_room * sizeof *schedule->steps
            + (size_t)schedule->span_room * sizeof *schedule->spans
            + (size_t)schedule->wait_room * sizeof *schedule->waits;
    }
    return bytes;
}

/* ---- all of it ---- */
tutti_status plan_build(struct plan *plan)
{
    struct build build = { .plan = plan };
    assert(plan->slots > 0 && (!plan->one_host || (plan->host >= 0 && plan->host < plan->layout->hosts)));
    assert(!plan->one_rank || plan_member_of_rank(plan, plan->rank) >= 0);
    plan->size = plan->layout->ranks;
    plan->count = plan_count_members(plan);
    plan->cycle_rank = -1;
    plan->kept = 0;
    plan->error[0] = 0;
    plan->stage_sends |= plan->algorithm->stage_in_place;
    plan->ranks = memory_alloc_zeroed((size_t)plan->count, sizeof *plan->ranks);
    if (!plan->ranks) return plan_set_no_memory(plan);
    tutti_status status = build_prepare_schedules(&build);
    if (status == TUTTI_OK) status = build_infer_and_verify(&build);
    if (status == TUTTI_OK) status = plan_keep_schedules(plan);
    free(build.writers);
    return status;
}
/* Frees the schedules, so that the plan can be built again. */
static void plan_release_schedules(struct plan *plan)
{
    for (int m = 0; plan->ranks && m < plan_count_kept_schedules(plan); m++) schedule_free_arrays(&plan->ranks[m]);
    free(plan->ranks);
    plan->ranks = NULL;
    plan->kept = 0;
}
/* Returns the member whose tensors are staged next: the one that waits for itself if its tensors are open, else the
   first with open tensors. -1: no tensors are open. */
static int plan_next_member_to_stage(const struct plan *plan)
{
    if (plan_is_open(plan, plan->cycle_rank)) return plan_member_of_rank(plan, plan->cycle_rank);
    for (int m = 0; m < plan->count; m++)
        if (plan_is_open(plan, plan_rank_of_member(plan, m))) return m;
    return -1;
}
/* Stages first the sent chunks that are overwritten, then the tensors of ranks that wait for themselves. */
tutti_status plan_build_staging(struct plan *plan)
{
    for (;;) {
        tutti_status status = plan_build(plan);
        if (status != TUTTI_INTERNAL || plan->cycle_rank < 0) return status;
        int member = plan->stage_sends ? plan_next_member_to_stage(plan) : -1;
        if (plan->stage_sends && member < 0) return status;
        if (member >= 0 && !plan->unshared)
            plan->unshared = memory_alloc_zeroed((size_t)mask_words(plan->count), sizeof(uint64_t));
        plan_release_schedules(plan);
        if (member < 0) plan->stage_sends = true;
        else if (plan->unshared) mask_add(plan->unshared, member);
        else return plan_set_no_memory(plan);
    }
}
void plan_finish(struct plan *plan)
{
    plan_release_schedules(plan);
    free(plan->unshared);
    plan->unshared = NULL;
}
