/* Turns an operation into a program that can run: it chooses the algorithm, finds the plan and the program, and binds
   the buffers. The choice of each collective is remembered, because most calls repeat the last one. An operation with
   late selection is launched in two steps: its tensors are described before the roll call, and its plan is chosen after
   it. */
#include "backend/base/dtype.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "backend/engine/tuner_run.h"
#include "backend/execute/slots.h"
#include <stdlib.h>
#include <string.h>

enum { LEAST_TILE_BYTES = 4096 };

/* ---- choosing ---- */
size_t operation_message_bytes(const tutti_comm *comm, const struct operation *op)
{
    /* Ranks may see different counts, and must make the same choice. */
    if (op->uneven) return 0;
    int inputs = collective_count_chunks((enum collective)op->collective, INPUT, comm->group.size);
    int outputs = collective_count_chunks((enum collective)op->collective, OUTPUT, comm->group.size);
    return op->part_bytes * (size_t)(inputs > outputs ? inputs : outputs);
}
/* Returns the bytes of the whole message as all ranks know them once they have arrived and agree. */
static size_t operation_agreed_bytes(const tutti_comm *comm, const struct operation *op)
{
    const struct uneven *uneven = op->uneven;
    size_t sum = 0;
    if (!uneven || !uneven_is_equal_on_ranks(uneven)) return operation_message_bytes(comm, op);
    for (int q = 0; q < comm->group.size; q++) sum += uneven->lengths[uneven->agreement][q];
    return sum;
}
/* Returns the bytes of the whole message as far as all ranks know them before others arrive; 0 if they do not. */
static size_t operation_early_bytes(const tutti_comm *comm, const struct operation *op)
{
    return group_has_several_hosts(&comm->group) ? operation_agreed_bytes(comm, op) : operation_message_bytes(comm, op);
}
/* Applies the settings, and the limits of several hosts, to the tiles and slots of a choice. */
static void choice_limit_cutting(const tutti_comm *comm, const struct uneven *uneven, struct choice *choice)
{
    if (comm->launcher.tile_setting) choice->tile_bytes = (size_t)comm->launcher.tile_setting;
    if (comm->launcher.slots_setting) choice->slots = (int)comm->launcher.slots_setting;
    if (!group_has_several_hosts(&comm->group)) return;
    /* All hosts must cut the message equally. If no rank knows the longest block, the message stays whole. Otherwise
       the scratch of a tile must fit into the slots of every host. */
    size_t most = BYTES_WITH_MESSAGES / (size_t)choice->slots;
    if (uneven && !uneven_is_equal_on_ranks(uneven)) choice->tile_bytes = SIZE_MAX;
    else if (choice->tile_bytes > most) choice->tile_bytes = most;
}
/* Reports the placement of this call's tensors to the tuner. If this call selects late or may read only because of the
   tuner's code, the placement does not restart the tuner; it may end the variant that the code stands for
   (tuner_report_placement). */
static void tuner_update_placement(const struct launcher *launcher, const struct question *question,
    const struct recent *recent, const struct choice *predicted)
{
    bool tries_late_selection = launcher->plans_late && !recent->selects_late,
         tries_to_read = choice_code_reads(launcher->code) && !recent->may_read;
    if (recent->tuner && (tries_late_selection || tries_to_read))
        tuner_report_placement(recent->tuner, question->placement);
    else if (recent->tuner) tuner_set_placement(recent->tuner, question, predicted);
}
/* Chooses the algorithm, unless one is requested (not NULL), and how the message of `bytes` bytes is cut. */
static tutti_status launch_choose_algorithm(tutti_comm *comm, const struct operation *op,
    const struct algorithm *requested, size_t bytes, enum placement_kind placement, const struct recent *recent,
    struct choice *out)
{
    struct question question = { (enum collective)op->collective, requested, bytes, placement, op->uneven != NULL,
        recent->must_read && recent->open };
    TRY(chooser_make_choice(&comm->launcher.chooser, &question, out));
    choice_limit_cutting(comm, op->uneven, out);
    tuner_update_placement(&comm->launcher, &question, recent, out);
    return TUTTI_OK;
}
tutti_status launch_predict_cost(tutti_comm *comm, const struct question *question, bool can_read, struct choice *out)
{
    struct chooser *chooser = &comm->launcher.chooser;
    struct question q = *question;
    struct choice made;
    TRY(chooser_make_choice(chooser, &q, &made));
    if (can_read && q.message_bytes && choice_selects_late(chooser, &made)) {
        q.placement = TENSORS_OPEN_IN_PLACE;
        q.must_read = comm->launcher.single_copy > 0;
        TRY(chooser_make_choice(chooser, &q, &made));
    }
    choice_limit_cutting(comm, NULL, &made);
    TRY(choice_compute_cost(chooser, &q, &made));
    *out = made;
    return TUTTI_OK;
}
/* Creates the program of a plan and keeps it in the cache. UNSUPPORTED if its slots do not fit. */
static tutti_status launch_make_program(tutti_comm *comm, const struct plan *plan, struct program **out)
{
    struct program *made;
    TRY(program_create(plan, comm->group.rank, &made));
    size_t chunks = (size_t)made->schedule->chunks[SCRATCH], most = slots_max_chunks(&comm->executor, plan->slots);
    if (chunks > most) {
        program_destroy(made);
        return status_fail(TUTTI_UNSUPPORTED,
            "%s by algorithm %s stages %zu chunks for %d ranks, but there is room for %zu: choose another "
            "algorithm, or none",
            collective_name(plan->algorithm->collective), plan->algorithm->name, chunks, comm->group.size, most);
    }
    plan_cache_attach_made(comm->launcher.cache, plan, made, made->bytes);
    *out = made;
    return TUTTI_OK;
}
/* Returns the program of a plan, from the cache or newly created. */
static tutti_status launch_get_program(tutti_comm *comm, const struct plan *plan, struct program **out)
{
    *out = plan_cache_get_made(plan);
    return *out ? TUTTI_OK : launch_make_program(comm, plan, out);
}
/* Frees the program of a plan that the cache is about to evict, and returns true. Returns false for the last program of
   each collective, which runs or which the next call repeats. */
static bool launch_evict_program(void *context, const struct plan *plan, void *made)
{
    const struct launcher *launcher = context;
    (void)plan;
    for (int f = 0; f < COLLECTIVE_COUNT && made; f++)
        if (launcher->recent[f].program == made) return false;
    program_destroy(made);
    return true;
}
/* Finds or makes the plan and the program for a choice and a placement of tensors, and stores them in `recent`. Private
   tensors count as in place, because a staged plan for tensors in place is also correct for others. */
static tutti_status launch_make_plan(tutti_comm *comm, const struct operation *op, const struct choice *choice,
    const struct placement *placement, struct recent *recent)
{
    const struct group *group = &comm->group;
    const struct algorithm *algorithm = choice->algorithm;
    bool touches = algorithm->host_memory || algorithm->hierarchical;
    struct plan key = {
        .algorithm = algorithm,
        .layout = group->layout,
        .root = op->root,
        .one_host = true,
        .host = group->host,
        .slots = choice->slots,
        .in_place = placement->in_place,
        .shared = touches ? placement->shared : NULL,
        .can_read_private = choice->reads_private,
        .stage_inputs = recent->stage_inputs,
        .hoists_receives = !algorithm->host_memory,
        .one_rank = true,
        .rank = group->rank,
    };
    LOG(DEBUG, "%s rank %d: %s of %zu bytes runs %s, %d slots of %zu bytes, shared %llx", group->name, group->rank,
        collective_name(algorithm->collective), operation_message_bytes(comm, op), algorithm->name, key.slots,
        choice->tile_bytes, (unsigned long long)mask_word(key.shared, 0, comm->launcher.ranks));
    const struct plan *plan;
    TRY(plan_cache_get(comm->launcher.cache, &key, &plan));
    recent->chosen = *choice;
    return launch_get_program(comm, plan, &recent->program);
}
/* Returns the size that the choice depends on. It is 0 for uneven counts that differ between ranks, so all such calls
   repeat one choice. */
static uint64_t operation_choice_bytes(const tutti_comm *comm, const struct operation *op)
{
    return op->uneven ? operation_agreed_bytes(comm, op) : op->part_bytes;
}
/* Sets recent->may_read: whether the call may read private tensors in place if all ranks can. To find out whether they
   can takes system calls, so this is true only where reading could be chosen. */
static tutti_status launch_find_may_read(tutti_comm *comm, const struct operation *op, size_t bytes,
    struct recent *recent)
{
    int64_t setting = comm->launcher.single_copy;
    struct question question = {
        .collective = (enum collective)op->collective, .message_bytes = bytes, .is_uneven = op->uneven
    };
    bool can_select = recent->selects_late && !group_has_several_hosts(&comm->group);
    recent->may_read = can_select && setting > 0;
    if (!can_select || setting >= 0) return TUTTI_OK;
    for (int kind = TENSORS_OPEN_IN_PLACE; kind <= TENSORS_OPEN_APART && !recent->may_read; kind++) {
        struct choice choice;
        question.placement = (enum placement_kind)kind;
        TRY(chooser_make_choice(&comm->launcher.chooser, &question, &choice));
        recent->may_read = choice.reads_private;
    }
    return TUTTI_OK;
}
/* Returns UNSUPPORTED if the call has own_rows and a row does not fit into the slots, else OK. */
static tutti_status launch_check_rows(const tutti_comm *comm, const struct operation *op, const struct program *program)
{
    const struct rows *rows = &op->sum.rows;
    if (!rows->function || !rows->own_rows_only || rows_fit_into_slots(&comm->executor, program, rows->row_bytes))
        return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "rows of %zu bytes are too long for own_rows on %d ranks: give residuals of all rows", rows->row_bytes,
        comm->group.size);
}
/* Makes the choice that is possible before other ranks arrive, as if all tensors were private, and stores it in *out
   with the tuner of the call. */
static tutti_status launch_choose_early(tutti_comm *comm, const struct operation *op, const struct algorithm *requested,
    bool stage_inputs, struct recent *out)
{
    size_t bytes = operation_early_bytes(comm, op);
    struct tuner *tuner;
    TRY(tuners_find_for_call(comm, op, requested, stage_inputs, operation_message_bytes(comm, op), &tuner));
    struct recent recent = { .bytes = operation_choice_bytes(comm, op),
        .uneven = op->uneven != NULL,
        .root = op->root,
        .stage_inputs = stage_inputs,
        .requested = requested,
        .shared = out->shared,
        .in_place = out->in_place };
    struct choice choice;
    bool is_usable = requested && !(op->uneven && !algorithm_takes_uneven(comm->group.layout, requested));
    TRY(launch_choose_algorithm(comm, op, is_usable ? requested : NULL, bytes, TENSORS_PRIVATE, &recent, &choice));
    recent.algorithm = choice.algorithm;
    recent.selects_late = op->uneven || (bytes && choice_selects_late(&comm->launcher.chooser, &choice));
    TRY(launch_find_may_read(comm, op, bytes, &recent));
    /* The tuner is set last, so that the calls above do not report TENSORS_PRIVATE to it as the placement of the
       call. */
    recent.tuner = tuner;
    *out = recent;
    return TUTTI_OK;
}
/* Returns the placement by which the call is planned. Before other ranks arrive, all tensors count as private and in
   place, except in an all-to-all. */
static struct placement launch_get_placement(tutti_comm *comm, const struct operation *op, bool reads)
{
    if (comm->launcher.plans_late) return tensors_get_placement(comm, op, reads);
    return (struct placement){ .in_place = op->collective == ALL_TO_ALL ? NULL : mask_all };
}
/* Plans the tuner's candidate, or the predicted choice if there is no candidate or it does not fit into the slots, with
   the same result on all ranks. `open`: all tensors can be read in place. */
static tutti_status launch_plan_candidate(tutti_comm *comm, const struct operation *op, const struct choice *predicted,
    bool open, struct recent *recent)
{
    struct choice candidate = *predicted;
    bool has_candidate = choice_take_candidate(comm->launcher.code, open, &candidate);
    struct placement p = launch_get_placement(comm, op, candidate.reads_private);
    recent->code = comm->launcher.code;
    recent->program = NULL;
    tutti_status status = launch_make_plan(comm, op, &candidate, &p, recent);
    if (!has_candidate || status != TUTTI_UNSUPPORTED) return status;
    p = launch_get_placement(comm, op, predicted->reads_private);
    return launch_make_plan(comm, op, predicted, &p, recent);
}
/* Chooses and plans before the roll call, from the arguments of the call alone. */
static tutti_status launch_plan_early(tutti_comm *comm, const struct operation *op, struct recent *recent)
{
    struct choice choice;
    size_t bytes = operation_early_bytes(comm, op);
    TRY(launch_choose_algorithm(comm, op, recent->requested ? recent->algorithm : NULL, bytes, TENSORS_PRIVATE, recent,
        &choice));
    return launch_plan_candidate(comm, op, &choice, false, recent);
}

/* ---- the launch ---- */
/* Writes the arguments of the last call into the declaration that peers compare. */
static void launch_fill_declaration(tutti_comm *comm)
{
    const struct launcher *launcher = &comm->launcher;
    const struct call *call = &launcher->last;
    struct declaration *out = comm->executor.run.declaration;
    out->operation = (uint32_t)call->collective;
    out->dtype = (uint32_t)call->dtype;
    out->op = (uint32_t)(call->rows ? (int)OP_OF_ROWS : (int)call->op);
    out->root = call->root;
    out->count = call->uneven ? UNEVEN_COUNT : call->count;
    out->bits = call->bits;
    out->tile_bytes = (uint64_t)launcher->tile_setting;
    out->slots = (uint64_t)launcher->slots_setting;
    out->algorithm = (uint64_t)(launcher->recent[call->collective].algorithm - collectives_table);
    out->tuner = launcher->code;
    out->extent = out->counts = 0;
    executor_hash_declaration(&comm->executor);
}
void launch_declare(tutti_comm *comm, uint64_t sequence)
{
    if (comm->launcher.declared_count < DECLARATIONS) {
        launch_fill_declaration(comm);
        comm->launcher.declared_count++;
    }
    comm->executor.run.declaration->sequence = sequence;
}
/* Sets the part of the executor's launch that all calls of the same kind share. Chooses early, unless the last choice
   of this collective still applies. */
static tutti_status launch_prepare_call(tutti_comm *comm, const struct operation *op, const struct algorithm *requested)
{
    struct launch *out = &comm->executor.launch;
    struct recent *recent = &comm->launcher.recent[op->collective];
    bool reduces = collective_is_reduction((enum collective)op->collective),
         premultiplies = reduces && op->op == TUTTI_PREMUL_SUM;
    if (!recent->algorithm || recent->bytes != operation_choice_bytes(comm, op)
        || recent->uneven != (op->uneven != NULL) || recent->root != op->root || recent->stage_inputs != premultiplies
        || recent->requested != requested)
        TRY(launch_choose_early(comm, op, requested, premultiplies, recent));
    out->part_bytes = op->part_bytes;
    out->element_bytes = op->collective == BARRIER ? 1 : dtype_bytes(op->dtype);
    out->reduce = op->sum.reduce;
    out->reduce_streamed = reduces ? reduce_streamed_find(op->dtype, op->op) : NULL;
    out->scale = premultiplies ? scale_find(op->dtype) : NULL;
    memcpy(&out->factor, &op->bits, sizeof out->factor);
    out->divisor = reduces && op->op == TUTTI_AVG ? comm->group.size : 1;
    out->uneven = op->uneven;
    return TUTTI_OK;
}
/* Makes the executor run the program in `recent`, with its tiles. */
static void launch_set_program(struct executor *executor, const struct recent *recent)
{
    executor->launch.program = recent->program;
    executor->launch.tile_bytes = recent->chosen.tile_bytes;
    executor->launch.ordinary_stores = recent->chosen.ordinary_stores;
    executor->launch.short_ring = recent->chosen.short_ring;
}
/* Prepares the executor for an operation: a call of the last kind reuses its program; any other is chosen again. An
   operation that selects late has no program until the roll call is over. */
static tutti_status launch_bind_call(tutti_comm *comm, struct operation *op)
{
    struct executor *executor = &comm->executor;
    struct recent *recent = &comm->launcher.recent[op->collective];
    const struct algorithm *requested =
        op->algorithm ? op->algorithm : atomic_load_explicit(&comm->chosen[op->collective], memory_order_relaxed);
    struct call call = { op->collective, op->root, op->dtype, op->op, op->count, op->bits, requested,
        op->uneven != NULL, op->sum.rows.function != NULL };
    bool repeated = comm->launcher.declared_count && call_is_same_kind(&call, &comm->launcher.last);
    if (!repeated) {
        comm->launcher.declared_count = 0;
        atomic_store_explicit(&comm->submission.fast_path_ready, false, memory_order_relaxed);
        TRY(launch_prepare_call(comm, op, requested));
        comm->launcher.last = call;
    }
    uint32_t code = tuner_run_begin(comm, op, recent->tuner);
    /* The declaration must contain the new code. */
    if (code != comm->launcher.code) comm->launcher.declared_count = 0;
    comm->launcher.code = code;
    bool plans_late = comm->launcher.plans_late = recent->selects_late || choice_code_selects_late(code);
    if (!plans_late && (!recent->program || recent->code != code)) TRY(launch_plan_early(comm, op, recent));
    if (!plans_late && !repeated) TRY(launch_check_rows(comm, op, recent->program));
    executor_prepare_declaration(executor);
    if (plans_late) executor->launch.program = NULL;
    else launch_set_program(executor, recent);
    executor->launch.input = op->input;
    executor->launch.output = op->output;
    executor->launch.rows = op->sum.rows.function ? &op->sum.rows : NULL;
    launch_declare(comm, op->sequence);
    if (!plans_late) tuner_run_stamp(comm);
    executor->run.tensors_declared = false;
    bool tries_to_read = choice_code_reads(code) && comm->launcher.single_copy;
    bool may_read = (recent->may_read || tries_to_read) && !op->sum.rows.function;
    if (plans_late) tensors_describe(comm, op, requested && requested == recent->algorithm, may_read);
    return TUTTI_OK;
}
/* Returns the kind of a placement of the tensors of `ranks` ranks. */
static enum placement_kind placement_get_kind(const struct placement *p, int ranks)
{
    bool shared = mask_is_full(p->shared, ranks), in_place = mask_is_full(p->in_place, ranks);
    if (shared) return in_place ? TENSORS_SHARED_IN_PLACE : TENSORS_SHARED_APART;
    return !p->open ? TENSORS_PRIVATE : in_place ? TENSORS_OPEN_IN_PLACE : TENSORS_OPEN_APART;
}
/* Chooses and plans after the roll call, from the placement of all tensors, unless the last program fits. If a rank
   insists on the algorithm that all would choose for private tensors, all ranks use it. A rank without input or output
   counts as in place, and so does not affect the others. */
static tutti_status launch_choose_late(tutti_comm *comm, const struct operation *op, struct recent *recent)
{
    struct placement p = tensors_get_placement(comm, op, recent->chosen.reads_private);
    int ranks = comm->launcher.ranks;
    bool repeated = recent->program && recent->is_required == p.is_required && recent->open == p.open
        && recent->must_read == p.must_read && recent->code == comm->launcher.code
        && mask_equal(recent->shared, p.shared, ranks) && mask_equal(recent->in_place, p.in_place, ranks);
    if (repeated) return TUTTI_OK;
    struct choice choice;
    p = tensors_get_placement(comm, op, true);
    recent->is_required = p.is_required;
    recent->open = p.open;
    recent->must_read = p.must_read;
    enum placement_kind kind = placement_get_kind(&p, ranks);
    TRY(launch_choose_algorithm(comm, op, p.is_required ? recent->algorithm : NULL, operation_agreed_bytes(comm, op),
        kind, recent, &choice));
    TRY(launch_plan_candidate(comm, op, &choice, placement_is_open(kind), recent));
    p = tensors_get_placement(comm, op, recent->chosen.reads_private);
    mask_copy(recent->shared, p.shared, ranks);
    mask_copy(recent->in_place, p.in_place, ranks);
    return TUTTI_OK;
}
/* Ends the roll call of an operation, chooses its program if it selects late, finds the tensors of peers, and starts
   the program. IN_PROGRESS: the caller repeats it. */
static tutti_status launch_finish_late(tutti_comm *comm, const struct operation *op)
{
    struct executor *executor = &comm->executor;
    struct recent *recent = &comm->launcher.recent[op->collective];
    tutti_status status = executor_finish_roll_call(executor);
    if (status != TUTTI_OK) return status;
    if (!executor->launch.program) {
        TRY(launch_choose_late(comm, op, recent));
        TRY(launch_check_rows(comm, op, recent->program));
        launch_set_program(executor, recent);
        tuner_run_stamp(comm);
    }
    status = tensors_find_operands(comm, op);
    return status == TUTTI_OK ? executor_start_program(executor) : status;
}

/* ---- start, step, cancel ---- */
/* Returns true if later calls of this kind need no choice, no tuner, no look-up and no new binding. */
static bool launch_is_repeatable(const tutti_comm *comm)
{
    const struct launcher *launcher = &comm->launcher;
    const struct recent *recent = &launcher->recent[launcher->last.collective];
    bool plain = !launcher->last.rows && !launcher->last.uneven && !launcher->plans_late && !recent->tuner
        && !group_has_several_hosts(&comm->group);
    return plain && recent->program->has_addresses && recent->program->schedule->first_message < 0;
}
tutti_status launch_start(tutti_comm *comm, struct operation *op)
{
    TRY(launch_bind_call(comm, op));
    router_set_priority(comm->router, atomic_load_explicit(&comm->priority, memory_order_relaxed));
    TRY(executor_begin(&comm->executor));
    atomic_store_explicit(&comm->submission.fast_path_ready, launch_is_repeatable(comm), memory_order_relaxed);
    return TUTTI_OK;
}
tutti_status launch_step(tutti_comm *comm, struct operation *op)
{
    if (!comm->executor.run.started) {
        tutti_status status = launch_finish_late(comm, op);
        if (status != TUTTI_OK) return status;
    }
    tutti_status status = executor_run_steps(&comm->executor);
    const struct launcher *launcher = &comm->launcher;
    bool ends = status == TUTTI_OK && (launcher->timed || launcher->watched || launcher->pending.count);
    if (ends) tuner_run_end(comm, comm->launcher.recent[op->collective].tuner);
    return status;
}
bool launch_cancel(tutti_comm *comm) { return executor_cancel(&comm->executor); }

/* ---- lifetime ---- */
tutti_status launcher_init(struct launcher *launcher, int ranks)
{
    size_t words = (size_t)mask_words(ranks);
    int64_t tile = settings_get()->tile_bytes, slots = settings_get()->slots;
    launcher->tile_setting = tile <= 0 ? 0 : tile > LEAST_TILE_BYTES ? tile : LEAST_TILE_BYTES;
    launcher->slots_setting = slots >= 1 && slots <= MAX_SLOTS ? slots : 0;
    launcher->single_copy = settings_get()->single_copy;
    launcher->ranks = ranks;
    launcher->cache = plan_cache_create(KEPT_BYTES, launch_evict_program, launcher);
    launcher->plans_to_predict = plan_cache_create(PREDICTED_BYTES, NULL, NULL);
    launcher->masks = memory_alloc_zeroed(2 * COLLECTIVE_COUNT * words, sizeof *launcher->masks);
    if (!launcher->cache || !launcher->plans_to_predict || !launcher->masks)
        return status_fail(TUTTI_NO_MEMORY, "no memory for the plans of a communicator");
    for (int f = 0; f < COLLECTIVE_COUNT; f++) {
        launcher->recent[f].shared = launcher->masks + 2 * (size_t)f * words;
        launcher->recent[f].in_place = launcher->recent[f].shared + words;
    }
    return TUTTI_OK;
}
void launcher_set_machine(struct launcher *launcher, const struct layout *layout, int cores,
    const struct machine *machine, struct tuning *tuning)
{
    tuners_init(&launcher->tuners, tuning, layout->largest > cores);
    launcher->chooser =
        (struct chooser){ .layout = layout, .cache = launcher->plans_to_predict, .cores = cores, .machine = *machine };
}
void launcher_finish(struct launcher *launcher)
{
    for (int f = 0; f < COLLECTIVE_COUNT; f++) launcher->recent[f].program = NULL;
    chooser_finish(&launcher->chooser);
    tuners_finish(&launcher->tuners);
    plan_cache_destroy(launcher->cache);
    plan_cache_destroy(launcher->plans_to_predict);
    free(launcher->masks);
}
