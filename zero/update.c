/* Allocates the optimizer state of this rank's slices, and takes its steps. The factors of a step are computed in
 * float64 and then rounded, as in torch. */
#include "zero/update.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <math.h>
#include <stdlib.h>

static const enum update_rule kernel_of[] = { [TUTTI_ZERO_SGD] = UPDATE_SGD,
    [TUTTI_ZERO_MOMENTUM] = UPDATE_SGD,
    [TUTTI_ZERO_ADAM] = UPDATE_ADAM,
    [TUTTI_ZERO_ADAMW] = UPDATE_ADAMW };
static bool rule_has_first_moment(tutti_zero_rule rule) { return rule > TUTTI_ZERO_SGD; }
static bool rule_has_second_moment(tutti_zero_rule rule) { return rule > TUTTI_ZERO_MOMENTUM; }

/* ---- lifetime ---- */
/* Returns true if the optimizer has a float32 copy of the unit's slice. */
static bool unit_has_value_copy(const struct unit_partition *unit) { return unit->element == sizeof(uint16_t); }
/* Creates the file in `directory` with room for the state of all units. */
static tutti_status optimizer_open_file(struct optimizer *optimizer, const char *directory)
{
    int units = optimizer->partition->units;
    size_t *bytes = memory_alloc_zeroed((size_t)units, sizeof *bytes);
    if (!bytes) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %d units", units);
    for (int u = 0; u < units; u++) {
        const struct unit_partition *unit = &optimizer->partition->unit[u];
        int arrays = rule_has_first_moment(optimizer->rule) + rule_has_second_moment(optimizer->rule)
            + unit_has_value_copy(unit);
        bytes[u] = (size_t)arrays * unit->slice * sizeof(float);
    }
    tutti_status status = state_file_open(&optimizer->file, directory, bytes, units);
    free(bytes);
    return status;
}
tutti_status optimizer_init(struct optimizer *optimizer, const struct partition *partition,
    const tutti_zero_config *config)
{
    *optimizer = (struct optimizer){ .partition = partition, .rule = config->rule };
    optimizer->square_roots = config->square_roots;
    optimizer->square_roots_mode = config->square_roots_mode;
    optimizer->state = memory_alloc_zeroed((size_t)partition->units, sizeof *optimizer->state);
    optimizer->steps = memory_alloc_zeroed((size_t)partition->parameters, sizeof *optimizer->steps);
    optimizer->file.descriptor = -1;
    if (!optimizer->state || !optimizer->steps) return status_fail(TUTTI_NO_MEMORY, "zero: no memory for an optimizer");
    return optimizer_open_file(optimizer, config->state_directory);
}
void optimizer_finish(struct optimizer *optimizer)
{
    for (int u = 0; optimizer->state && !optimizer->file.memory && u < optimizer->partition->units; u++) {
        if (unit_has_value_copy(&optimizer->partition->unit[u])) free(optimizer->state[u].value);
        free(optimizer->state[u].first);
        free(optimizer->state[u].second);
    }
    state_file_close(&optimizer->file);
    free(optimizer->state);
    free(optimizer->steps);
}
/* Makes *array an array of one zero for each element of this rank's slice, in memory or in the file, if *array is NULL.
   `number` is how many arrays of the unit come before it in the file. */
static tutti_status optimizer_allocate_floats(struct optimizer *optimizer, int unit, int number, float **array)
{
    size_t bytes = optimizer->partition->unit[unit].slice * sizeof(float);
    if (*array) return TUTTI_OK;
    if (optimizer->file.memory) {
        *array = state_file_at(&optimizer->file, unit, (size_t)number * bytes);
        return TUTTI_OK;
    }
    *array = memory_alloc_aligned(bytes);
    if (!*array)
        return status_fail(TUTTI_NO_MEMORY, "zero: no memory for %zu bytes of optimizer state, unit %d", bytes, unit);
    optimizer->state_bytes += bytes;
    return TUTTI_OK;
}
tutti_status optimizer_set_slice(struct optimizer *optimizer, int unit, void *slice)
{
    const struct unit_partition *u = &optimizer->partition->unit[unit];
    struct optimizer_state *s = &optimizer->state[unit];
    int arrays = 0;
    s->slice = slice;
    if (rule_has_first_moment(optimizer->rule)) TRY(optimizer_allocate_floats(optimizer, unit, arrays++, &s->first));
    if (rule_has_second_moment(optimizer->rule)) TRY(optimizer_allocate_floats(optimizer, unit, arrays++, &s->second));
    if (!unit_has_value_copy(u)) {
        s->value = slice;
        return TUTTI_OK;
    }
    const uint16_t *narrow = slice;
    float *value = s->value;
    TRY(optimizer_allocate_floats(optimizer, unit, arrays, &value));
    s->value = value;
    /* A value of a checkpoint that rounds to the slice's number is more precise, and stays. */
    for (size_t i = 0; i < u->slice; i++)
        if (narrow_from_float(value[i], u->dtype) != narrow[i]) value[i] = narrow_to_float(narrow[i], u->dtype);
    return TUTTI_OK;
}

/* ---- steps ---- */
/* Returns the factors that the kernel applies to each element, computed from the caller's rates `r`. `step` counts the
   steps of the parameter from 1. */
static struct update_factors rule_compute_factors(tutti_zero_rule rule, const tutti_zero_rates *r, double step,
    double scale)
{
    struct update_factors f = { .scale = (float)scale, .rate = (float)r->rate, .decay = (float)r->decay };
    f.momentum = (float)r->momentum;
    f.is_first_step = step <= 1;
    if (!rule_has_second_moment(rule)) return f;
    f.take1 = (float)(1 - r->beta1);
    f.keep2 = (float)r->beta2;
    f.take2 = (float)(1 - r->beta2);
    f.rate = (float)(r->rate / (1 - pow(r->beta1, step)));
    f.root = (float)sqrt(1 - pow(r->beta2, step));
    f.epsilon = (float)r->epsilon;
    if (rule == TUTTI_ZERO_ADAMW) f.decay = (float)(1 - r->rate * r->decay);
    return f;
}
/* Updates one piece (the part of a parameter in this rank's slice) by the rule. `gradient` is that of the slice. */
static void optimizer_update_piece(const struct optimizer *optimizer, int unit, const struct slice_piece *piece,
    const void *gradient, const struct update_factors *f)
{
    const struct unit_partition *u = &optimizer->partition->unit[unit];
    const struct optimizer_state *s = &optimizer->state[unit];
    size_t from = piece->from;
    struct update_arrays a = { .value = (float *)s->value + from,
        .gradient = (const char *)gradient + from * u->sum_element };
    if (s->first) a.first = s->first + from;
    if (s->second) a.second = s->second + from;
    if (unit_has_value_copy(u)) a.narrow = (uint16_t *)s->slice + from;
    update_find(kernel_of[optimizer->rule], u->sum_dtype)(&a, piece->count, f);
    if (a.narrow && u->sum_dtype == TUTTI_FLOAT32) narrow_from_floats(a.narrow, a.value, piece->count, u->dtype);
}
void optimizer_update_unit(struct optimizer *optimizer, int unit, const void *gradient, const uint8_t *used,
    const tutti_zero_rates *rates, double scale)
{
    const struct unit_partition *u = &optimizer->partition->unit[unit];
    const struct slice_piece *piece = &optimizer->partition->piece[u->first_piece];
    for (int i = u->first_parameter; i < u->first_parameter + u->parameters; i++) optimizer->steps[i] += used[i];
    for (int i = 0; i < u->pieces; i++) {
        int parameter = piece[i].parameter;
        if (!used[parameter]) continue;
        const tutti_zero_rates *r = &rates[optimizer->partition->parameter[parameter].group];
        struct update_factors f = rule_compute_factors(optimizer->rule, r, (double)optimizer->steps[parameter], scale);
        f.square_roots = optimizer->square_roots;
        f.square_roots_mode = optimizer->square_roots_mode;
        optimizer_update_piece(optimizer, unit, &piece[i], gradient, &f);
    }
}
void optimizer_copy_to_slice(struct optimizer *optimizer, int unit)
{
    const struct unit_partition *u = &optimizer->partition->unit[unit];
    const struct optimizer_state *s = &optimizer->state[unit];
    if (!unit_has_value_copy(u)) return;
    narrow_from_floats(s->slice, s->value, u->slice, u->dtype);
}
double optimizer_sum_squares(const struct optimizer *optimizer, int unit, const void *gradient)
{
    const struct unit_partition *u = &optimizer->partition->unit[unit];
    const struct slice_piece *piece = &optimizer->partition->piece[u->first_piece];
    double sum = 0;
    for (int i = 0; i < u->pieces; i++)
        sum += squares_find(u->sum_dtype)((const char *)gradient + piece[i].from * u->sum_element, piece[i].count);
    return sum;
}
