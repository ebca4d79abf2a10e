/* Sharded parameters are whole while they are used, and NaNs otherwise, in any order of uses that all ranks share.
   Units are gathered only when necessary, and ahead of their use if the uses before predict it. */
#include "include/tutti_zero.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include "zero/prefetcher.h"
#include <math.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
enum { UNITS = 6, EACH = 2000, PARTS = 2, STEPS = 12 };
static const tutti_zero_rates descent = { .rate = 1 };

static tutti_zero *make(struct rank *me, int prefetch)
{
    tutti_zero_parameter parameters[UNITS * PARTS];
    tutti_dtype types[UNITS];
    tutti_zero *zero;
    for (int p = 0; p < UNITS * PARTS; p++) parameters[p] = (tutti_zero_parameter){ EACH, p / PARTS, 0 };
    for (int u = 0; u < UNITS; u++) types[u] = TUTTI_FLOAT32;
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.parameters = UNITS * PARTS;
    c.units = UNITS;
    c.groups = 1;
    c.parameter = parameters;
    c.dtype = types;
    c.placement = TUTTI_ZERO_SHARDED;
    c.rule = TUTTI_ZERO_SGD;
    c.prefetch = prefetch;
    c.timeout_ms = 20000;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
    for (int p = 0; p < UNITS * PARTS && me->rank == 0; p++)
        for (int i = 0; i < EACH; i++) ((float *)tutti_zero_parameter_at(zero, p))[i] = (float)(100 * p);
    REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
    return zero;
}
static void require_whole(const tutti_zero *zero, int unit, int step)
{
    for (int p = unit * PARTS; p < (unit + 1) * PARTS; p++) {
        const float *at = tutti_zero_parameter_at(zero, p);
        for (int i = 0; i < EACH; i++) REQUIRE(at[i] == (float)(100 * p - step));
    }
}
static bool is_away(const tutti_zero *zero, int unit)
{
    const float *at = tutti_zero_parameter_at(zero, unit * PARTS);
    int i = 0;
    while (i < EACH && isnan(at[i])) i++;
    return i == EACH;
}
static void write_gradient(tutti_zero *zero, int p)
{
    float *at;
    bool adds;
    REQUIRE(tutti_zero_gradient(zero, p, (void **)&at, &adds) == TUTTI_OK);
    for (int i = 0; i < EACH; i++) at[i] = adds ? at[i] : 1;
    REQUIRE(tutti_zero_ready(zero, p) == TUTTI_OK);
}
static tutti_zero_report report_of(const tutti_zero *zero)
{
    tutti_zero_report report = { .struct_size = sizeof report };
    REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK);
    return report;
}
static void use_forward(tutti_zero *zero, int step)
{
    for (int u = 0; u < UNITS; u++) {
        REQUIRE(tutti_zero_use(zero, u) == TUTTI_OK);
        require_whole(zero, u, step);
        REQUIRE(tutti_zero_release(zero, u) == TUTTI_OK);
    }
}
static void use_backward(tutti_zero *zero, int step, int missing)
{
    for (int u = UNITS - 1; u >= 0; u--) {
        REQUIRE(tutti_zero_use_backward(zero, u) == TUTTI_OK);
        require_whole(zero, u, step);
        for (int p = u * PARTS; p < (u + 1) * PARTS; p++)
            if (p != missing) write_gradient(zero, p);
    }
}
/* Each step gathers all units for the forward pass. For the backward pass it gathers all but the last, which is still
   whole, and but the one before if prefetching keeps it. Beside the slices, the memory holds the unit that was used
   last, the one in use, and the prefetched ones. */
static void count_gathers(struct rank *me)
{
    int prefetch = *(const int *)me->context;
    tutti_zero *zero = make(me, prefetch);
    uint64_t slice = 0, moved = 0;
    for (int step = 0; step < STEPS; step++) {
        uint64_t before = report_of(zero).unforeseen;
        use_forward(zero, step);
        use_backward(zero, step, -1);
        REQUIRE(tutti_zero_step(zero, &descent, 1) == TUTTI_OK);
        for (int u = 0; u < UNITS && prefetch == 0; u++) REQUIRE(is_away(zero, u));
        tutti_zero_report report = report_of(zero);
        slice = report.sum_bytes / (uint64_t)(UNITS * me->size * (step + 1));
        uint64_t each = slice * (uint64_t)(me->size - 1), back = (uint64_t)UNITS - (prefetch ? 2 : 1);
        if (step > 3 && prefetch) REQUIRE(report.unforeseen == before);
        if (step > 3) REQUIRE(report.moved_bytes - moved == each * (UNITS + back));
        moved = report.moved_bytes;
        REQUIRE(report.parameter_bytes <= UNITS * slice + (uint64_t)(prefetch + 2) * slice * (uint64_t)me->size);
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_units_are_gathered_only_when_necessary(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch <= 2; prefetch++)
        for (int size = 1; size <= 4; size++) world_threads(size, NULL, count_gathers, &prefetch);
    world_threads_on("0,1,0", 3, NULL, count_gathers, &(int){ 1 });
}
/* Random orders of uses, several passes, units that are all kept between steps, and gradients that only some ranks
   have: all ranks read the right values. */
static void use_in_random_order(struct rank *me)
{
    uint64_t seed = *(const uint64_t *)me->context, own = seed * 31 + (uint64_t)me->rank;
    tutti_zero *zero = make(me, (int)(random_next(&seed) % 4));
    for (int step = 0; step < STEPS; step++) {
        bool written[UNITS * PARTS] = { false };
        for (int n = 0, events = (int)(random_next(&seed) % 30); n < events; n++) {
            int u = (int)(random_next(&seed) % UNITS), kind = (int)(random_next(&seed) % 3);
            bool all = random_next(&seed) % 2;
            if (random_next(&own) % 8 == 0) sleep_us((int)(random_next(&own) % 200));
            REQUIRE((kind ? tutti_zero_use : tutti_zero_use_backward)(zero, u) == TUTTI_OK);
            for (int p = u * PARTS; p < (u + 1) * PARTS; p++) {
                const float *at = tutti_zero_parameter_at(zero, p);
                for (int i = 0; i < EACH; i++) REQUIRE(at[i] == (float)(100 * p));
                bool mine = !all && (p + me->rank + n) % 3 == 0 && me->rank > 0;
                if (!kind && !written[p] && !mine) write_gradient(zero, p);
                /* At least rank 0 has written this gradient. */
                written[p] |= !kind;
            }
            if (kind == 1) REQUIRE(tutti_zero_release(zero, u) == TUTTI_OK);
        }
        if (random_next(&seed) % 4 == 0) {
            REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
            for (int u = 0; u < UNITS; u++) require_whole(zero, u, 0);
            if (random_next(&seed) % 2) REQUIRE(tutti_zero_use(zero, 2) == TUTTI_OK);
            REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK);
        }
        tutti_zero_rates nothing = { .rate = 0 };
        REQUIRE(tutti_zero_step(zero, &nothing, 1) == TUTTI_OK);
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_values_are_right_in_any_order_of_uses(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        world_threads(2 + (int)(seed % 3), NULL, use_in_random_order, &seed);
        world_threads_on("0,1,1", 3, NULL, use_in_random_order, &(uint64_t){ seed + 100 });
    }
}

/* ---- errors ---- */
static void write_gradient_without_unit(struct rank *me)
{
    tutti_zero *zero = make(me, 1);
    void *at;
    bool adds;
    REQUIRE(tutti_zero_gradient(zero, 0, &at, &adds) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal());
    REQUIRE_ERROR("a gradient of unit 0 was computed while its parameters were not gathered");
    REQUIRE(tutti_zero_use_backward(zero, UNITS) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_zero_release(zero, -1) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_zero_use(zero, 0) == TUTTI_OK && tutti_zero_gradient(zero, 0, &at, &adds) == TUTTI_OK);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void use_different_units(struct rank *me)
{
    tutti_zero *zero = make(me, 1);
    REQUIRE(tutti_zero_use(zero, 2) == TUTTI_OK);
    tutti_status status = tutti_zero_use(zero, me->rank == 1 ? 4 : 3);
    /* ABORTED: another rank found the mismatch before. */
    REQUIRE(status == TUTTI_MISMATCH || status == TUTTI_ABORTED);
    REQUIRE_ERROR("all ranks must use the same units in the same order");
    if (status == TUTTI_MISMATCH) REQUIRE_ERROR("label");
    REQUIRE(tutti_zero_use(zero, 0) == status);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void use_after_rank_0_left(struct rank *me)
{
    tutti_zero *zero = make(me, 1);
    if (me->rank == 0) {
        tutti_zero_destroy(zero);
        zero = NULL;
    } else {
        REQUIRE(tutti_zero_use(zero, 2) != TUTTI_OK);
        REQUIRE_ERROR("unit 2 was not gathered");
    }
    world_meet(me);
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_wrong_uses_are_errors(void **state)
{
    (void)state;
    world_threads(2, NULL, write_gradient_without_unit, NULL);
    world_threads(2, NULL, use_different_units, NULL);
    world_threads(3, NULL, use_different_units, NULL);
    world_threads(2, NULL, use_after_rank_0_left, NULL);
}

/* ---- the prefetcher alone ---- */
static void test_prefetcher_predicts_repeated_steps(void **state)
{
    (void)state;
    struct prefetcher f;
    int next[8];
    assert_true(prefetcher_init(&f, 3));
    assert_int_equal(prefetcher_predict(&f, 8, next), 0);
    /* The prefetcher does not keep so many events. */
    for (int step = 0; step < 100; step++) {
        const int events[] = { 0, 1, 2, 1, 0, PREFETCH_STEP };
        for (int i = 0; i < 6; i++) {
            if (step > 1) {
                int count = prefetcher_predict(&f, 8, next);
                assert_int_equal(count, i < 5 ? 5 - i : 0);
                for (int k = 0; k < count; k++) assert_int_equal(next[k], events[i + k]);
            }
            prefetcher_record(&f, events[i]);
        }
    }
    assert_int_equal(prefetcher_predict(&f, 2, next), 2);
    /* This unit was never used after a step. */
    prefetcher_record(&f, 2);
    assert_int_equal(prefetcher_predict(&f, 2, next), 0);
    prefetcher_finish(&f);
}
unit_function test_gather;
int test_gather(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prefetcher_predicts_repeated_steps),
        cmocka_unit_test(test_units_are_gathered_only_when_necessary),
        cmocka_unit_test(test_values_are_right_in_any_order_of_uses),
        cmocka_unit_test(test_wrong_uses_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
