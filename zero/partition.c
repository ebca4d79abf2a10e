/* Parameters begin at multiples of 64 bytes for vector loads. Slices are whole pages, so each can lie near its rank,
   and two ranks never write to one cache line. */
#include "zero/partition.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

enum { LINE_BYTES = 64, SLICE_BYTES = 4096 };

/* ---- checks ---- */
/* Refuses parameter `i` if it is empty, out of the order of units, or of an unknown group. */
static tutti_status config_check_parameter(const tutti_zero_config *config, int i)
{
    const tutti_zero_parameter *p = &config->parameter[i];
    int least = i ? config->parameter[i - 1].unit : 0;
    if (!p->count) return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: parameter %d has no elements", i);
    if (p->unit < least || p->unit >= config->units)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d is of unit %d; parameters must come in the order of their units, of which there are %d",
            i, p->unit, config->units);
    if (p->group < 0 || p->group >= config->groups)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: parameter %d is of group %d, of which there are %d", i,
            p->group, config->groups);
    return TUTTI_OK;
}
/* Refuses a unit of a type that the library, or the rule, compression or type of sums of the config, does not
   support. */
static tutti_status config_check_unit(const tutti_zero_config *config, int unit)
{
    tutti_dtype dtype = config->dtype[unit];
    bool is_compressible = dtype == TUTTI_FLOAT32 || dtype == TUTTI_BFLOAT16;
    if (!is_compressible && dtype != TUTTI_FLOAT16 && dtype != TUTTI_FLOAT64)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: unit %d has elements of type %s; use float32, bfloat16, float16 or float64", unit,
            tutti_dtype_name(dtype));
    if (dtype == TUTTI_FLOAT64 && config->rule != TUTTI_ZERO_NONE)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: unit %d is float64, and the update rules compute in float32; use the rule NONE", unit);
    if (dtype == TUTTI_FLOAT64 && config->sums_in_float32)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: unit %d is float64, and sums in float32 would round its gradients; sum in the types of parameters",
            unit);
    if (dtype == TUTTI_BFLOAT16 && config->sums_in_float32 && config->compression.form != TUTTI_COMPRESS_NONE)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: gradients of type bfloat16 (unit %d) cannot be both compressed and summed in float32; choose one",
            unit);
    if (!is_compressible && config->compression.form != TUTTI_COMPRESS_NONE)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: gradients of type %s (unit %d) cannot be compressed; use float32 or bfloat16",
            tutti_dtype_name(dtype), unit);
    return TUTTI_OK;
}
/* Refuses a config without parameters, units or groups, with invalid parameters or types. */
static tutti_status config_check_model(const tutti_zero_config *config)
{
    if (config->parameters < 1 || config->units < 1 || config->groups < 1 || !config->parameter || !config->dtype)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a model must have at least one parameter, one unit and one group; given are %d, %d and %d",
            config->parameters, config->units, config->groups);
    for (int i = 0; i < config->parameters; i++) TRY(config_check_parameter(config, i));
    for (int u = 0; u < config->units; u++) TRY(config_check_unit(config, u));
    return TUTTI_OK;
}

/* ---- cutting ---- */
/* Returns INVALID_ARGUMENT for a unit that is too large. */
static tutti_status unit_refuse_size(int unit)
{
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: unit %d exceeds the address space", unit);
}
/* Lays out unit `number`: its parameters, which begin at parameter *next, and its slices. Advances *next past the
   unit. */
static tutti_status partition_cut_unit(struct partition *partition, const tutti_zero_config *config, int number,
    int *next)
{
    struct unit_partition *unit = &partition->unit[number];
    size_t end = 0, line, slices = SLICE_BYTES * (size_t)partition->slices, bytes;
    *unit = (struct unit_partition){ .dtype = config->dtype[number], .first_parameter = *next };
    unit->element = tutti_dtype_bytes(unit->dtype);
    unit->sum_dtype = config->sums_in_float32 ? TUTTI_FLOAT32 : unit->dtype;
    unit->sum_element = tutti_dtype_bytes(unit->sum_dtype);
    line = LINE_BYTES / unit->element;
    for (; *next < config->parameters && config->parameter[*next].unit == number; ++*next) {
        const tutti_zero_parameter *p = &config->parameter[*next];
        partition->parameter[*next] = (struct place_of_parameter){ p->count, end, number, p->group };
        if (p->count > PTRDIFF_MAX || !size_add(end, size_round_up(p->count, line), &end))
            return unit_refuse_size(number);
        unit->parameters++;
    }
    if (!size_multiply(end, unit->element, &bytes) || bytes > PTRDIFF_MAX - slices) return unit_refuse_size(number);
    /* A unit without parameters also has pages. */
    unit->count = size_round_up(bytes ? bytes : 1, slices) / unit->element;
    unit->slice = unit->count / (size_t)partition->slices;
    return TUTTI_OK;
}
struct slice_piece partition_find_piece(const struct partition *partition, int parameter, int rank)
{
    const struct place_of_parameter *p = &partition->parameter[parameter];
    size_t slice = partition->unit[p->unit].slice;
    size_t begin = slice * (size_t)partition_find_slice(partition, rank), end = begin + slice;
    size_t from = size_larger(p->offset, begin), to = size_smaller(p->offset + p->count, end);
    if (from >= to) return (struct slice_piece){ .parameter = parameter };
    return (struct slice_piece){ parameter, from - p->offset, from - begin, to - from };
}
/* Fills partition->piece: for each unit, the nonempty parts of its parameters in this rank's slice. */
static void partition_find_pieces(struct partition *partition)
{
    int next = 0;
    for (int n = 0; n < partition->units; n++) {
        struct unit_partition *unit = &partition->unit[n];
        unit->first_piece = next;
        for (int i = 0; i < unit->parameters; i++) {
            struct slice_piece piece = partition_find_piece(partition, unit->first_parameter + i, partition->rank);
            if (piece.count) partition->piece[next++] = piece;
        }
        unit->pieces = next - unit->first_piece;
    }
}
tutti_status partition_init(struct partition *partition, const tutti_zero_config *config, int rank, int ranks)
{
    int next = 0;
    *partition =
        (struct partition){ .rank = rank, .ranks = ranks, .slices = config->placement == TUTTI_ZERO_WHOLE ? 1 : ranks };
    TRY(config_check_model(config));
    partition->parameters = config->parameters;
    partition->units = config->units;
    partition->groups = config->groups;
    partition->parameter = memory_alloc_zeroed((size_t)config->parameters, sizeof *partition->parameter);
    partition->unit = memory_alloc_zeroed((size_t)config->units, sizeof *partition->unit);
    partition->piece = memory_alloc_zeroed((size_t)config->parameters, sizeof *partition->piece);
    if (!partition->parameter || !partition->unit || !partition->piece)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to partition %d parameters", config->parameters);
    for (int n = 0; n < config->units; n++) TRY(partition_cut_unit(partition, config, n, &next));
    partition_find_pieces(partition);
    return TUTTI_OK;
}
void partition_finish(struct partition *partition)
{
    free(partition->parameter);
    free(partition->unit);
    free(partition->piece);
}

/* ---- comparing ---- */
/* Returns the hash of `digest` followed by `number`. */
static uint64_t digest_mix_number(uint64_t digest, uint64_t number)
{
    digest = (digest ^ number) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}
uint64_t partition_digest(const struct partition *partition, const tutti_zero_config *config)
{
    uint64_t digest = digest_mix_number(digest_mix_number(digest_mix_number(0, (uint64_t)partition->parameters),
                                            (uint64_t)config->placement),
        (uint64_t)config->rule * 2 + (config->square_roots != NULL));
    digest = digest_mix_number(digest,
        config->placement == TUTTI_ZERO_SHARDED ? (uint64_t)config->prefetch : (uint64_t)config->ahead);
    for (int i = 0; i < partition->parameters; i++) {
        const struct place_of_parameter *p = &partition->parameter[i];
        digest = digest_mix_number(digest_mix_number(digest_mix_number(digest_mix_number(digest, p->count), p->offset),
                                       (uint64_t)p->unit),
            (uint64_t)p->group);
    }
    for (int n = 0; n < partition->units; n++)
        digest = digest_mix_number(digest_mix_number(digest, (uint64_t)partition->unit[n].dtype),
            (uint64_t)partition->unit[n].sum_dtype);
    return digest;
}
