/* Parameters begin at multiples of 64 bytes for vector loads. Slices are whole pages, so each can lie near its rank,
   and two ranks never write to one cache line. */
#include "zero/partition.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <stdlib.h>

enum { LINE_BYTES = 64, SLICE_BYTES = 4096 };

/* ---- checks ---- */
static tutti_status config_check_parameter(const tutti_zero_config *c, int i)
{
    const tutti_zero_parameter *p = &c->parameter[i];
    int least = i ? c->parameter[i - 1].unit : 0;
    if (!p->count) return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: parameter %d has no elements", i);
    if (p->unit < least || p->unit >= c->units)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: parameter %d is of unit %d; parameters must come in the order of their units, of which there are %d",
            i, p->unit, c->units);
    if (p->group < 0 || p->group >= c->groups)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: parameter %d is of group %d, of which there are %d", i,
            p->group, c->groups);
    return TUTTI_OK;
}
static tutti_status config_check_model(const tutti_zero_config *c)
{
    if (c->parameters < 1 || c->units < 1 || c->groups < 1 || !c->parameter || !c->dtype)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "zero: a model must have at least one parameter, one unit and one group; given are %d, %d and %d",
            c->parameters, c->units, c->groups);
    for (int i = 0; i < c->parameters; i++) TRY(config_check_parameter(c, i));
    for (int u = 0; u < c->units; u++)
        if (c->dtype[u] != TUTTI_FLOAT32 && c->dtype[u] != TUTTI_BFLOAT16)
            return status_refuse(TUTTI_INVALID_ARGUMENT,
                "zero: unit %d has elements of type %s; use float32 or bfloat16", u,
                tutti_dtype_name(c->dtype[u]) ? tutti_dtype_name(c->dtype[u]) : "no known");
    return TUTTI_OK;
}

/* ---- cutting ---- */
static tutti_status unit_refuse_size(int unit)
{
    return status_refuse(TUTTI_INVALID_ARGUMENT, "zero: unit %d exceeds the address space", unit);
}
/* Places the parameters of a unit, from *next on, and advances *next. */
static tutti_status partition_cut_unit(struct partition *partition, const tutti_zero_config *c, int number, int *next)
{
    struct unit_partition *u = &partition->unit[number];
    size_t end = 0, line, slices = SLICE_BYTES * (size_t)partition->slices, bytes;
    *u = (struct unit_partition){ .dtype = c->dtype[number], .first_parameter = *next };
    u->element = tutti_dtype_bytes(u->dtype);
    line = LINE_BYTES / u->element;
    for (; *next < c->parameters && c->parameter[*next].unit == number; ++*next) {
        const tutti_zero_parameter *p = &c->parameter[*next];
        partition->parameter[*next] = (struct place_of_parameter){ p->count, end, number, p->group };
        if (p->count > PTRDIFF_MAX || !size_add(end, size_round_up(p->count, line), &end))
            return unit_refuse_size(number);
        u->parameters++;
    }
    if (!size_multiply(end, u->element, &bytes) || bytes > PTRDIFF_MAX - slices) return unit_refuse_size(number);
    /* A unit without parameters also has pages. */
    u->count = size_round_up(bytes ? bytes : 1, slices) / u->element;
    u->slice = u->count / (size_t)partition->slices;
    return TUTTI_OK;
}
struct slice_piece partition_piece(const struct partition *partition, int parameter, int rank)
{
    const struct place_of_parameter *p = &partition->parameter[parameter];
    size_t slice = partition->unit[p->unit].slice;
    size_t begin = slice * (size_t)partition_slice(partition, rank), end = begin + slice;
    size_t from = size_larger(p->offset, begin), to = size_smaller(p->offset + p->count, end);
    if (from >= to) return (struct slice_piece){ .parameter = parameter };
    return (struct slice_piece){ parameter, from - p->offset, from - begin, to - from };
}
static void partition_find_pieces(struct partition *partition)
{
    int next = 0;
    for (int n = 0; n < partition->units; n++) {
        struct unit_partition *u = &partition->unit[n];
        u->first_piece = next;
        for (int i = 0; i < u->parameters; i++) {
            struct slice_piece piece = partition_piece(partition, u->first_parameter + i, partition->rank);
            if (piece.count) partition->piece[next++] = piece;
        }
        u->pieces = next - u->first_piece;
    }
}
tutti_status partition_init(struct partition *partition, const tutti_zero_config *c, int rank, int ranks)
{
    int next = 0;
    *partition =
        (struct partition){ .rank = rank, .ranks = ranks, .slices = c->placement == TUTTI_ZERO_WHOLE ? 1 : ranks };
    TRY(config_check_model(c));
    partition->parameters = c->parameters;
    partition->units = c->units;
    partition->groups = c->groups;
    partition->parameter = memory_alloc_zeroed((size_t)c->parameters, sizeof *partition->parameter);
    partition->unit = memory_alloc_zeroed((size_t)c->units, sizeof *partition->unit);
    partition->piece = memory_alloc_zeroed((size_t)c->parameters, sizeof *partition->piece);
    if (!partition->parameter || !partition->unit || !partition->piece)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory to partition %d parameters", c->parameters);
    for (int n = 0; n < c->units; n++) TRY(partition_cut_unit(partition, c, n, &next));
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
static uint64_t digest_mix_number(uint64_t digest, uint64_t number)
{
    digest = (digest ^ number) * UINT64_C(0x9e3779b97f4a7c15);
    return digest ^ digest >> 29;
}
uint64_t partition_digest(const struct partition *partition, const tutti_zero_config *c)
{
    uint64_t digest = digest_mix_number(digest_mix_number(digest_mix_number(0, (uint64_t)partition->parameters),
                                            (uint64_t)c->placement),
        (uint64_t)c->rule);
    digest = digest_mix_number(digest, c->placement == TUTTI_ZERO_SHARDED ? (uint64_t)c->prefetch : (uint64_t)c->ahead);
    for (int i = 0; i < partition->parameters; i++) {
        const struct place_of_parameter *p = &partition->parameter[i];
        digest = digest_mix_number(digest_mix_number(digest_mix_number(digest_mix_number(digest, p->count), p->offset),
                                       (uint64_t)p->unit),
            (uint64_t)p->group);
    }
    for (int n = 0; n < partition->units; n++) digest = digest_mix_number(digest, (uint64_t)partition->unit[n].dtype);
    return digest;
}
