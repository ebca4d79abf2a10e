/* From an operation to something that can run: the algorithm, its plan, its program, and what is bound to it. The
   choice of each collective is remembered, because most calls repeat the last one. */
#include "backend/comm.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include <string.h>

enum { SLOTS_ON_HOST = 3, SLOTS_WITH_MESSAGES = 4 };

static bool reduces(int family) { return family == ALLREDUCE || family == REDUCE || family == REDUCE_SCATTER; }
static bool has_many_parts(int family) { return family != ALLREDUCE && family != REDUCE && family != BROADCAST
    && family != BARRIER; }

static tutti_status program_for(tutti_comm *comm, const struct plan *plan, struct program **out)
{
    for (struct program *p = comm->programs; p; p = p->next)
        if (p->plan == plan) { *out = p; return TUTTI_OK; }
    TRY(program_create(plan, comm->rank, out));
    (*out)->next = comm->programs;
    comm->programs = *out;
    return TUTTI_OK;
}
static tutti_status choose(tutti_comm *comm, const struct operation *op, const struct algorithm *asked,
    bool stage_inputs, struct program **out)
{
    size_t bytes = op->part_bytes * (has_many_parts(op->family) ? (size_t)comm->size : 1);
    const struct algorithm *algorithm = asked;
    if (!algorithm || (op->uneven && algorithm->equal_chunks))
        algorithm = collectives_select((enum family)op->family, comm->size, bytes, op->uneven != NULL);
    int64_t slots = settings_get()->slots;
    struct plan key = {
        .algorithm = algorithm, .layout = &comm->layout, .size = comm->size, .root = op->root, .count = comm->size,
        .slots = slots >= 1 && slots <= MAX_SLOTS ? (int)slots : algorithm->host_memory ? SLOTS_ON_HOST
            : SLOTS_WITH_MESSAGES,
        /* a staged plan for in place is right out of place too */
        .in_place = op->family == ALL_TO_ALL ? 0 : UINT64_MAX,
        .stage_inputs = stage_inputs, .hoist = !algorithm->host_memory,
    };
    LOG(DEBUG, "%s rank %d: %s of %zu bytes runs %s, %d slots", comm->name, comm->rank, family_name(algorithm->family),
        bytes, algorithm->name, key.slots);
    const struct plan *plan;
    TRY(cache_plan(comm->cache, &key, &plan));
    return program_for(comm, plan, out);
}
static void describe(const tutti_comm *comm, const struct operation *op, const struct program *program)
{
    struct descriptor *out = comm->executor.descriptor;
    out->operation = (uint32_t)op->family;
    out->dtype = (uint32_t)op->dtype;
    out->op = (uint32_t)op->op;
    out->root = op->root;
    out->count = op->uneven ? 0 : op->count;
    out->sequence = op->sequence;
    out->bits = op->uneven ? 1 : 0;
    out->tile_bytes = comm->executor.tile_target;
    out->slots = (uint64_t)program->plan->slots;
    out->algorithm = (uint64_t)(program->plan->algorithm - collectives_table);
    out->extent = 0;
    if (op->op == TUTTI_PREMUL_SUM) memcpy(&out->bits, &op->factor, sizeof op->factor);
}
tutti_status launch_prepare(tutti_comm *comm, struct operation *op)
{
    struct launch *out = &comm->executor.launch;
    struct recent *r = &comm->recent[op->family];
    bool premultiplies = reduces(op->family) && op->op == TUTTI_PREMUL_SUM;
    const struct algorithm *asked = op->algorithm ? op->algorithm : atomic_load_explicit(&comm->chosen[op->family],
        memory_order_relaxed);
    if (!r->program || r->bytes != op->part_bytes || r->root != op->root || r->stage_inputs != premultiplies
        || r->asked != asked || op->uneven) {
        struct program *program;
        TRY(choose(comm, op, asked, premultiplies, &program));
        *r = (struct recent){ op->part_bytes, op->root, premultiplies, asked, program };
        if (op->uneven) r->asked = (const struct algorithm *)r;        /* matches no later call */
    }
    out->program = r->program;
    out->input = op->input;
    out->output = op->output;
    out->part_bytes = op->part_bytes;
    out->element_bytes = op->family == BARRIER ? 1 : tutti_dtype_bytes(op->dtype);
    out->reduce = op->reduce;
    out->scale = premultiplies ? scale_find(op->dtype) : NULL;
    out->factor = op->factor;
    out->divisor = reduces(op->family) && op->op == TUTTI_AVG ? comm->size : 1;
    out->uneven = op->uneven;
    executor_prepare(&comm->executor);
    describe(comm, op, r->program);
    return TUTTI_OK;
}
