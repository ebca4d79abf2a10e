/* The steps of an operation, in the order of a stream. Tile after tile runs: a tile waits only for the same tile on
   other ranks and for earlier tiles, so all ranks come to the end. The prelude of a tile, which fills slots, runs
   before the rest of the tile before, so that peers find it done when they come to it.

   If parts are uneven, ranks may have different numbers of tiles. A rank that awaits a tile which its peer does not
   have goes on when the peer has ended the operation, because the end is written as a position beyond all tiles.

   Positions count as on the CPU: base + 1 is the arrival, base + 2 + round * period + step a step. An operation of one
   tile has WORD_ARRIVAL only. The other words have a base of their own, and each operation of several tiles ends by
   writing its end into all of them. So a word is never behind its base by more than one operation, and signed
   differences of 32 bits order all values that can meet. */
#include "backend/streams/enqueue.h"
#include "backend/base/clock.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/streams/commands.h"
#include "backend/streams/release.h"
#include <string.h>
#include <time.h>

/* STREAM_OPERATIONS operations of the most positions are less than half of the way to POSITION_RELEASED. They bound how
   far a word is behind a value that a rank awaits. */
enum { POSITIONS_MOST = 1 << 20 };
/* How long a call sleeps before it looks again whether its stream has run earlier tiles. */
enum { TILES_PAUSE_NS = 100000 };
struct stream_run {
    struct stream_commands commands;
    struct stream_cut cut;
    /* The number of the operation. */
    uint64_t number;
    /* The stream awaits the arrivals of all ranks. */
    bool arrived;
    /* The operation before is on another stream. */
    bool follows_other_stream;
};

/* ---- checks ---- */
/* Refuses plans that do not run on streams. It looks only at what is the same on all ranks, so that all refuse. */
static tutti_status operation_check_plan_support(const struct stream_operation *operation)
{
    const struct plan *plan = operation->plan;
    const char *name = plan->algorithm->name;
    if (plan->has_messages || plan->slots > STREAM_SLOTS)
        return status_refuse(TUTTI_UNSUPPORTED, "%s: plans with messages or more than %d slots do not run on streams",
            name, STREAM_SLOTS);
    if (plan->can_read_private || mask_any(plan->shared, plan->count))
        return status_refuse(TUTTI_UNSUPPORTED,
            "%s: on streams, peers reach slots only, but in this plan they access tensors", name);
    if (operation->op == TUTTI_PREMUL_SUM && collective_is_reduction(plan->algorithm->collective)
        && !plan->stage_inputs)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "%s: PREMUL_SUM needs a plan with stage_inputs, which multiplies inputs when it copies them", name);
    if (operation->part_bytes && (plan->counts.sources > CUDA_SOURCES || plan->counts.destinations > CUDA_DESTINATIONS))
        return status_refuse(TUTTI_UNSUPPORTED,
            "%s: a step of a rank has %d sources and %d destinations, but kernels have at most %d and %d", name,
            plan->counts.sources, plan->counts.destinations, CUDA_SOURCES, CUDA_DESTINATIONS);
    return TUTTI_OK;
}
/* Finds the id of a stream, which no other stream of the program ever has. A handle may stand for a stream of each
   thread, or for a later stream than the one that it stood for. Refuses a stream that cannot take the operation. */
static tutti_status stream_find_id(const struct stream_site *site, CUstream stream, uint64_t *id)
{
    CUstreamCaptureStatus capture;
    CUcontext context;
    unsigned long long found;
    TRY(cuda_check(cuda.cuStreamIsCapturing(stream, &capture), "cuStreamIsCapturing of the operation's stream"));
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return status_fail(TUTTI_UNSUPPORTED,
            "the stream is being captured, and operations on streams cannot be captured into a graph");
    TRY(cuda_check(cuda.cuStreamGetCtx(stream, &context), "cuStreamGetCtx of the operation's stream"));
    if (context != site->context)
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "the stream is not of the primary context of device %d, which rank %d of this host uses", site->device,
            site->rank);
    TRY(cuda_check(cuda.cuStreamGetId(stream, &found), "cuStreamGetId of the operation's stream"));
    *id = found;
    return TUTTI_OK;
}
static tutti_status operation_check_support(const struct stream_site *site, const struct stream_cut *cut)
{
    const struct stream_operation *operation = cut->operation;
    if (!dtype_bytes(operation->dtype))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "unknown type %d", (int)operation->dtype);
    if (collective_is_reduction(cut->schedule->collective))
        TRY(status_mark_refusal(stream_kernels_check_operation(site->kernels, operation->dtype, operation->op)));
    if ((uint64_t)cut->tiles * (uint64_t)operation->plan->period <= POSITIONS_MOST) return TUTTI_OK;
    tutti_status status = status_fail(TUTTI_UNSUPPORTED,
        "%d tiles are too many for %d steps: use larger tiles or slots", cut->tiles, operation->plan->period);
    /* A rank alone may have too many tiles of uneven parts. */
    return operation->uneven ? status : status_mark_refusal(status);
}

/* ---- the declaration ---- */
/* True if each rank knows only its own counts. */
static bool operation_has_pairs(const struct stream_operation *operation)
{
    return operation->uneven && !uneven_is_equal_on_ranks(operation->uneven);
}
static uint64_t hash_add_value(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}
/* Returns a hash of all on which ranks must agree. */
static uint64_t operation_make_fingerprint(const struct stream_operation *operation)
{
    uint64_t factor, hash = 0;
    memcpy(&factor, &operation->factor, sizeof factor);
    const struct plan *plan = operation->plan;
    const struct algorithm *algorithm = plan->algorithm;
    for (const char *at = algorithm->name; *at; at++) hash = hash_add_value(hash, (unsigned char)*at);
    for (int word = 0; word < mask_words(plan->count); word++)
        hash = hash_add_value(hash, mask_word(plan->in_place, word, plan->count));
    const struct uneven *uneven = operation->uneven;
    const uint64_t values[] = { algorithm->collective, (uint64_t)plan->root, (uint64_t)plan->slots, plan->stage_inputs,
        plan->stage_sends, operation->tile_bytes, operation->dtype, operation->op, operation->label,
        operation->op == TUTTI_PREMUL_SUM ? factor : 0, uneven != NULL, uneven ? 0 : operation->part_bytes };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) hash = hash_add_value(hash, values[i]);
    for (int q = 0; uneven && uneven_is_equal_on_ranks(uneven) && q < plan->size; q++)
        hash = hash_add_value(hash, uneven->lengths[uneven->agreement][q]);
    return hash;
}
/* Publishes what this rank sends to each peer and expects from it. */
static void operation_publish_counts(struct stream_site *site, const struct uneven *uneven, uint64_t number)
{
    struct stream_counts *counts = stream_words_counts(site->words, site->ranks, site->rank, number);
    /* A peer that reads the old number and new counts reads the number again (release.c). */
    atomic_store_explicit(&counts->number, 0, memory_order_relaxed);
    for (int q = 0; q < site->ranks; q++) {
        atomic_store_explicit(&counts->with[q].sent, uneven->lengths[INPUT][q], memory_order_release);
        atomic_store_explicit(&counts->with[q].expected, uneven->lengths[OUTPUT][q], memory_order_release);
    }
    atomic_store_explicit(&counts->number, number, memory_order_release);
}
/* Publishes the declaration, and then the number, from which on the rank is not idle. */
static void operation_publish_declaration(struct stream_site *site, const struct stream_operation *operation,
    uint64_t number)
{
    struct stream_line *line = stream_site_line_of_rank(site, site->rank);
    struct stream_declaration *declared = &line->declared[number % STREAM_OPERATIONS];
    if (operation_has_pairs(operation)) operation_publish_counts(site, operation->uneven, number);
    /* A peer that reads the old number and the new fingerprint reads the number again (release.c). */
    atomic_store_explicit(&declared->number, 0, memory_order_relaxed);
    atomic_store_explicit(&declared->fingerprint, operation_make_fingerprint(operation), memory_order_release);
    atomic_store_explicit(&declared->number, number, memory_order_release);
    atomic_store(&line->enqueued, (uint32_t)number);
    atomic_store(&site->enqueued, number);
}

/* ---- positions ---- */
static int run_word_of_tile(const struct stream_run *run, int tile)
{
    return run->cut.has_tile_positions ? WORD_SLOTS + tile % run->cut.operation->plan->slots : WORD_ARRIVAL;
}
static uint32_t run_position_in_tile(const struct stream_run *run, int tile, int step)
{
    const struct plan *plan = run->cut.operation->plan;
    if (!run->cut.has_tile_positions) return run->cut.site->base + 2 + (uint32_t)step;
    return run->cut.site->slots_base + 2 + (uint32_t)(tile / plan->slots * plan->period + step);
}
/* Returns how far an operation moves the base of its positions, which is equal on all ranks. */
static uint32_t run_count_positions(const struct stream_run *run)
{
    const struct plan *plan = run->cut.operation->plan;
    if (run->cut.operation->uneven) return 2 + POSITIONS_MOST;
    int rounds = run->cut.tiles == 1 ? 1 : (run->cut.tiles + plan->slots - 1) / plan->slots;
    return (uint32_t)(2 + rounds * plan->period);
}
/* Makes the stream wait until all ranks have arrived, unless it has waited. This comes with the first wait for a
   position, or at the end of the operation. */
static void run_await_all_arrivals(struct stream_run *run)
{
    const struct stream_site *site = run->cut.site;
    for (int rank = 0; rank < site->ranks && !run->arrived; rank++)
        if (rank != site->rank) stream_commands_await_word(&run->commands, rank, WORD_ARRIVAL, site->base + 1);
    run->arrived = true;
}

static void run_await_position_of_tile(struct stream_run *run, const struct wait *wait, int tile)
{
    run_await_all_arrivals(run);
    stream_commands_await_word(&run->commands, plan_member_of_rank(run->cut.operation->plan, wait->rank),
        run_word_of_tile(run, tile), run_position_in_tile(run, tile, wait->step));
}
static void run_await_position(struct stream_run *run, const struct wait *wait, int tile)
{
    int slots = run->cut.operation->plan->slots;
    if (wait->lag == SAME_TILE) run_await_position_of_tile(run, wait, tile);
    if (wait->lag == SLOT_REUSE && tile >= slots) run_await_position_of_tile(run, wait, tile - slots);
}

/* Raises the awaited values of slots to the base. No later wait is for less, and an operation's values are below the
   next base, so a value that no operation has awaited for long never seems to be ahead. */
static void site_raise_awaited_slots(struct stream_site *site)
{
    for (int rank = 0; rank < site->ranks; rank++)
        for (int slot = 0; slot < STREAM_SLOTS; slot++) site->awaited[rank][WORD_SLOTS + slot] = site->slots_base;
}

/* ---- steps ---- */
/* Computes chunk `index` of a work step. */
static void step_enqueue_work_on_chunk(struct stream_run *run, const struct step *step, int index, int tile)
{
    const struct stream_operation *operation = run->cut.operation;
    const struct span *spans = step_from(run->cut.schedule, step);
    CUdeviceptr at[CUDA_SOURCES + CUDA_DESTINATIONS], *to = at + step->from_count;
    size_t bytes = SIZE_MAX;
    for (int k = 0; k < step->from_count + step->to_count; k++) {
        struct stream_piece piece = stream_cut_locate_chunk(&run->cut, &spans[k], index, tile);
        at[k] = piece.at;
        bytes = size_smaller(bytes, piece.bytes);
    }
    if (!bytes) return;
    size_t count = bytes / dtype_bytes(operation->dtype);
    int divisor = step->finish && operation->op == TUTTI_AVG ? run->cut.schedule->size : 1;
    if (step->from_count > 1 || divisor > 1) {
        struct stream_reduce reduce = { to, at, step->to_count, step->from_count, divisor, count, operation->dtype,
            operation->op };
        stream_commands_reduce(&run->commands, &reduce);
        return;
    }
    for (int k = 0; k < step->to_count; k++) {
        struct stream_scale scale = { to[k], at[0], count, operation->dtype, operation->factor };
        if (step->premultiplies && operation->op == TUTTI_PREMUL_SUM) stream_commands_scale(&run->commands, &scale);
        else stream_commands_copy_bytes(&run->commands, to[k], at[0], bytes);
    }
}
static void run_enqueue_step_of_tile(struct stream_run *run, int number, int tile)
{
    const struct schedule *schedule = run->cut.schedule;
    const struct step *step = &schedule->steps[number];
    for (int w = 0; w < step->wait_count; w++) run_await_position(run, &schedule->waits[step->wait + w], tile);
    bool works = step->kind == WORK && run->cut.operation->part_bytes > 0;
    for (int i = 0; works && i < step_to(schedule, step)->count; i++) step_enqueue_work_on_chunk(run, step, i, tile);
    if (step_publishes(step, tile, run->cut.tiles, run->cut.operation->plan->slots))
        stream_commands_write_word(&run->commands, run_word_of_tile(run, tile),
            run_position_in_tile(run, tile, number));
}
/* Fills the slots of a tile, and in the first tile publishes the arrival, unless the last position announces it. */
static void run_enqueue_prelude_of_tile(struct stream_run *run, int tile)
{
    const struct schedule *schedule = run->cut.schedule;
    int last = schedule->prelude - 1;
    for (int step = 0; step <= last; step++) run_enqueue_step_of_tile(run, step, tile);
    if (tile > 0) return;
    bool announces = !run->cut.has_tile_positions && last >= 0
        && step_publishes(&schedule->steps[last], 0, 1, run->cut.operation->plan->slots);
    if (!announces) stream_commands_write_word(&run->commands, WORD_ARRIVAL, run->cut.site->base + 1);
}
static void run_enqueue_rest_of_tile(struct stream_run *run, int tile)
{
    for (int step = run->cut.schedule->prelude; step < run->cut.schedule->step_count; step++)
        run_enqueue_step_of_tile(run, step, tile);
}
/* True if the stream has come to the end of the prelude of a tile, or the group has failed. */
static bool run_prelude_is_over(const struct stream_run *run, int tile)
{
    const struct stream_line *line = stream_site_line_of_rank(run->cut.site, run->cut.site->rank);
    uint32_t position = atomic_load(&line->position[run_word_of_tile(run, tile)]);
    return (int32_t)(position - run_position_in_tile(run, tile, run->cut.schedule->prelude - 1)) >= 0
        || atomic_load(&run->cut.site->words->failure);
}
/* Waits until the stream has come near a tile of uneven parts, so that the queue of the driver has room for it. Even
   parts need no wait, because all ranks cut a large message into several operations. */
static void run_await_room_for_tile(struct stream_run *run, int tile)
{
    const struct schedule *schedule = run->cut.schedule;
    struct stream_site *site = run->commands.site;
    int awaited = tile - run->cut.tiles_in_queue;
    if (awaited < 0 || !schedule->prelude || !schedule->steps[schedule->prelude - 1].by_tile) return;
    stream_commands_finish(&run->commands);
    while (!run->commands.status && !run_prelude_is_over(run, awaited)) {
        if (clock_ms() >= run->cut.operation->deadline_ms) {
            run->commands.status = status_fail(TUTTI_TIMEOUT, "the stream has not run tile %d in time", awaited);
            return;
        }
        /* Polls may ask the driver meanwhile whether the device has failed. */
        pthread_mutex_unlock(&site->driver_lock);
        nanosleep(&(struct timespec){ 0, TILES_PAUSE_NS }, NULL);
        pthread_mutex_lock(&site->driver_lock);
    }
    if (run->commands.status) return;
    run->commands.status = stream_site_check_group(site);
    site->found_failure = run->commands.status != TUTTI_OK;
}
static void run_enqueue_all_tiles(struct stream_run *run)
{
    /* With one slot, the prelude of the next tile waits for the peers' rest of this one. */
    int ahead = run->cut.operation->plan->slots > 1 ? 1 : 0;
    for (int tile = 0; tile < run->cut.tiles + ahead && !run->commands.status; tile++) {
        run_await_room_for_tile(run, tile);
        if (tile < run->cut.tiles) run_enqueue_prelude_of_tile(run, tile);
        if (tile >= ahead) run_enqueue_rest_of_tile(run, tile - ahead);
    }
}
/* Publishes the end: in all words of slots if tiles have used them, and for the host. */
static void run_publish_end(struct stream_run *run, struct stream_site *site)
{
    uint32_t positions = run_count_positions(run);
    bool has_tiles = run->cut.has_tile_positions;
    run_await_all_arrivals(run);
    for (int slot = 0; has_tiles && slot < STREAM_SLOTS; slot++)
        stream_commands_write_word(&run->commands, WORD_SLOTS + slot, site->slots_base + positions);
    stream_commands_write_word(&run->commands, WORD_DONE, (uint32_t)run->number);
    site->base += has_tiles ? 2 : positions;
    site->slots_base += has_tiles ? positions : 0;
}
/* Fails the group after an operation of which only a part was enqueued. The stream still writes that it has ended. If
   the driver refuses this too, either the stream has no work of the operation, and the host writes the end once the
   operations before have ended, or the device has failed, which polls notice. */
static void run_fail_group(struct stream_run *run, struct stream_site *site, tutti_status status)
{
    bool has_work = run->commands.calls > 0;
    stream_site_fail_group(site, status, site->rank);
    if (!stream_commands_end_failed_operation(&run->commands, (uint32_t)run->number, run->follows_other_stream)
        && !has_work)
        atomic_store(&site->host_end, run->number);
}
/* Enqueues an operation that was cut and checked. */
static tutti_status run_enqueue_operation(struct stream_run *run, struct stream_site *site, CUstream stream,
    uint64_t stream_id)
{
    run->arrived = false;
    run->number = site->enqueued + 1;
    run->follows_other_stream = site->enqueued && stream_id != site->stream_id;
    stream_commands_begin(&run->commands, site, stream);
    operation_publish_declaration(site, run->cut.operation, run->number);
    if (run->follows_other_stream)
        stream_commands_await_word(&run->commands, site->rank, WORD_DONE, (uint32_t)(run->number - 1));
    if (run->cut.has_tile_positions) site_raise_awaited_slots(site);
    run_enqueue_all_tiles(run);
    run_publish_end(run, site);
    tutti_status status = stream_commands_finish(&run->commands);
    if (status) run_fail_group(run, site, status);
    site->stream_id = stream_id;
    site->calls += run->commands.calls;
    site->calls_before[run->number % STREAM_OPERATIONS] = site->calls;
    return status;
}
/* True if the operation must wait, because too many run or their calls may fill the queue of the driver. */
static bool site_is_full(const struct stream_site *site, const struct stream_cut *cut)
{
    uint64_t done = stream_site_read_done_number(site), enqueued = site->enqueued;
    if (operation_has_pairs(cut->operation) && enqueued - site->compared >= STREAM_PAIRED) return true;
    if (enqueued - (done < site->compared ? done : site->compared) >= STREAM_OPERATIONS) return true;
    return done < enqueued
        && site->calls - site->calls_before[done % STREAM_OPERATIONS] + cut->most_calls > STREAM_CALLS;
}
/* Checks and enqueues an operation in the context of the site. */
static tutti_status site_enqueue_operation_in_context(struct stream_site *site,
    const struct stream_operation *operation, CUstream stream, uint64_t *number)
{
    struct stream_run run;
    uint64_t stream_id = 0;
    TRY(operation_check_plan_support(operation));
    TRY(stream_cut_message(site, operation, &run.cut));
    TRY(operation_check_support(site, &run.cut));
    if (site_is_full(site, &run.cut)) return TUTTI_IN_PROGRESS;
    TRY(status_mark_refusal(stream_find_id(site, stream, &stream_id)));
    tutti_status status = run_enqueue_operation(&run, site, stream, stream_id);
    *number = run.number;
    return status;
}
tutti_status stream_site_enqueue_operation(struct stream_site *site, const struct stream_operation *operation,
    CUstream stream, uint64_t *number)
{
    bool entered;
    tutti_status status = stream_site_check_group(site);
    site->found_failure = status != TUTTI_OK;
    TRY(status);
    TRY(status_mark_refusal(stream_site_enter_context(site, &entered)));
    pthread_mutex_lock(&site->driver_lock);
    status = site_enqueue_operation_in_context(site, operation, stream, number);
    pthread_mutex_unlock(&site->driver_lock);
    stream_site_leave_context(entered);
    return status;
}
