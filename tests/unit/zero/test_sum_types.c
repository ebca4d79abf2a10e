/* Sums in float32 of gradients in 16 bits: averages that 16 bits cannot hold reach pieces, norm and step, in each
   placement. Invalid configurations are errors. */
#include "include/tutti_zero.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <math.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
enum { PARAMETERS = 3, UNITS = 2 };
static const tutti_zero_parameter three[PARAMETERS] = { { 5000, 0, 0 }, { 77, 0, 0 }, { 3000, 1, 0 } };
/* One, and 2^-8, whose sum needs 9 significant bits. */
static const uint16_t bits_of[2][2] = { { 0x3f80, 0x3b80 }, { 0x3c00, 0x1c00 } };
static const double average = (1 + 0x1p-8) / 2;
static tutti_zero_config config_of(struct rank *me, tutti_zero_placement placement, const tutti_dtype *types)
{
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.groups = 1;
    c.placement = placement;
    c.parameters = PARAMETERS;
    c.units = UNITS;
    c.parameter = three;
    c.dtype = types;
    c.rule = TUTTI_ZERO_SGD;
    c.buffers = 1;
    c.sums_in_float32 = true;
    return c;
}
/* Every second rank has gradients of one, and the others of 2^-8. Parameter 0 has none. The sum of unit 1 starts at
   once; a second pass doubles the gradients of unit 0. */
static void zero_add_gradients(struct rank *me, tutti_zero *zero, const uint16_t *bits)
{
    uint16_t *at, doubled = bits[0] == 0x3f80 ? 0x80 : 0x400;
    bool adds;
    for (int u = 0; u < UNITS; u++) REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK);
    for (int p = PARAMETERS - 1; p >= 1; p--) {
        REQUIRE(tutti_zero_gradient(zero, p, (void **)&at, &adds) == TUTTI_OK && (!adds || p == 1));
        for (size_t i = 0; i < three[p].count; i++) at[i] = adds ? at[i] + doubled : bits[me->rank % 2];
        REQUIRE(tutti_zero_ready(zero, p) == TUTTI_OK);
    }
}
/* The gradients of two passes are summed, those of unit 1 in two rounds. */
static void take_step(struct rank *me, tutti_zero *zero, const uint16_t *bits, double before)
{
    static const tutti_zero_rates rates = { .rate = 1 };
    tutti_zero_piece piece;
    double norm;
    zero_add_gradients(me, zero, bits);
    zero_add_gradients(me, zero, bits);
    REQUIRE(tutti_zero_norm(zero, &norm) == TUTTI_OK);
    REQUIRE(fabs(norm - 2 * average * sqrt(3077)) < 1e-9 * norm);
    for (int p = 0; p < PARAMETERS; p++) {
        REQUIRE(tutti_zero_get_piece(zero, p, &piece) == TUTTI_OK && piece.used == (p > 0));
        for (size_t i = 0; piece.used && i < piece.count; i++)
            REQUIRE(((const float *)piece.gradient)[i] == (float)(2 * average));
    }
    REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK);
    for (int p = 0; p < PARAMETERS; p++) {
        float value = (float)(p ? before - 2 * average : 0);
        REQUIRE(tutti_zero_get_piece(zero, p, &piece) == TUTTI_OK);
        for (size_t i = 0; i < piece.count; i++) REQUIRE(((const float *)piece.value)[i] == value);
    }
}
/* All ranks read the rounded values. */
static void zero_check_values(struct rank *me, tutti_zero *zero, tutti_dtype dtype)
{
    /* -(2 + 2^-7), which bfloat16 rounds to -2 */
    uint16_t rounded = dtype == TUTTI_BFLOAT16 ? 0xc000 : 0xc004;
    REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
    for (int p = 0; p < PARAMETERS; p++) {
        const uint16_t *at = tutti_zero_parameter_at(zero, p);
        for (size_t i = 0; i < three[p].count; i++) REQUIRE(at[i] == (p ? rounded : 0));
    }
    REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK && tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void train_with_float32_sums(struct rank *me)
{
    for (int n = 0; n < 2 * TUTTI_ZERO_PLACEMENTS; n++) {
        tutti_dtype dtype = n % 2 ? TUTTI_FLOAT16 : TUTTI_BFLOAT16;
        const tutti_dtype types[UNITS] = { dtype, dtype };
        tutti_zero_config c = config_of(me, n / 2, types);
        tutti_zero *zero;
        c.ahead = n / 2 == TUTTI_ZERO_REPLICATED;
        REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
        for (int p = 0; p < PARAMETERS && me->rank == 0; p++)
            memset(tutti_zero_parameter_at(zero, p), 0, three[p].count * sizeof(uint16_t));
        REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
        take_step(me, zero, bits_of[n % 2], 0);
        take_step(me, zero, bits_of[n % 2], -2 * average);
        zero_check_values(me, zero, dtype);
        REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
    }
}
static void test_float32_sums_are_not_rounded(void **state)
{
    (void)state;
    world_threads(2, NULL, train_with_float32_sums, NULL);
    world_threads_on("2", 4, NULL, train_with_float32_sums, NULL);
}
static void make_wrong_calls(struct rank *me)
{
    tutti_zero *zero = NULL;
    tutti_dtype types[UNITS] = { TUTTI_BFLOAT16, TUTTI_FLOAT64 };
    tutti_zero_config c = config_of(me, TUTTI_ZERO_REPLICATED, types);
    c.rule = TUTTI_ZERO_NONE;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("unit 1 is float64, and sums in float32 would round its gradients");
    types[1] = TUTTI_FLOAT32;
    c.compression = (tutti_compression){ .form = TUTTI_COMPRESS_INT8 };
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("unit 0) cannot be both compressed and summed in float32");
    c.compression.form = TUTTI_COMPRESS_NONE;
    c.sums_in_float32 = me->rank == 0;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_MISMATCH && !zero);
    REQUIRE_ERROR("the types of sums");
}
static void test_invalid_types_of_sums_are_errors(void **state)
{
    (void)state;
    world_threads(2, NULL, make_wrong_calls, NULL);
}
unit_function test_sum_types;
int test_sum_types(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float32_sums_are_not_rounded),
        cmocka_unit_test(test_invalid_types_of_sums_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
