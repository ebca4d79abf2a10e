/* The steps of optimizers have on every instruction set the bits of the papers' formulas, in which each operation
   rounds, for numbers of all sizes and counts around the vector sizes. No byte outside the arrays is written. */
#include "kernels/reduce.h"
#include "kernels/update.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"
#include <math.h>

enum { COUNT_MAX = 4099, GUARD = 16, ARRAYS = 4 };
static const size_t counts[] = { 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, COUNT_MAX };
enum { COUNTS = sizeof counts / sizeof counts[0] };
struct numbers { float value[COUNT_MAX + 2 * GUARD], first[COUNT_MAX + 2 * GUARD], second[COUNT_MAX + 2 * GUARD]; };
static struct numbers before, after, expected;
static uint16_t narrow[COUNT_MAX + 2 * GUARD];
static char gradient[COUNT_MAX * 8 + 8];

static float number_at(tutti_dtype dtype, size_t i)
{
    return (float)decode(format_of(dtype), read_code(gradient, i, dtype));
}
static bool same(float a, float b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

/* ---- the reference ---- */
/* Returns a square root that is one unit in the last place too large, to show that the given function is used. */
static float larger_root(float number) { return nextafterf(sqrtf(number), INFINITY); }
static void write_larger_roots(int count, const float *from, float *to, int64_t mode)
{
    assert_int_equal(mode, 77);
    for (int i = 0; i < count; i++) to[i] = larger_root(from[i]);
}
static void step_adam(const struct update_factors *f, bool decoupled, float g, float *value, float *first,
    float *second)
{
    if (decoupled) *value = *value * f->decay;
    else g = fmaf(f->decay, *value, g);
    float way = g - *first;
    if (f->take1 < 0.5f) *first = fmaf(f->take1, way, *first);
    else *first = fmaf(f->take1 - 1, way, g);
    float kept = f->keep2 * *second, taken = f->take2 * g;
    *second = fmaf(taken, g, kept);
    float spread = (f->square_roots ? larger_root(*second) : sqrtf(*second)) / f->root, step = f->rate * *first;
    spread = spread + f->epsilon;
    step = step / spread;
    *value = *value - step;
}
static void step_sgd(const struct update_factors *f, bool moves, float g, float *value, float *first)
{
    g = fmaf(f->decay, *value, g);
    if (moves && f->is_first_step) *first = g;
    if (moves && !f->is_first_step) {
        float kept = *first * f->momentum;
        *first = kept + g;
    }
    *value = fmaf(-f->rate, moves ? *first : g, *value);
}
static void expect(enum update_rule rule, tutti_dtype dtype, bool moves, size_t count, const struct update_factors *f)
{
    expected = before;
    for (size_t i = 0; i < count; i++) {
        size_t at = GUARD + i;
        float g = number_at(dtype, i) * f->scale;
        if (rule == UPDATE_SGD) step_sgd(f, moves, g, &expected.value[at], &expected.first[at]);
        else step_adam(f, rule == UPDATE_ADAMW, g, &expected.value[at], &expected.first[at], &expected.second[at]);
    }
}
static void compare(tutti_dtype dtype, size_t count)
{
    const struct format f = format_of(dtype);
    uint64_t quiet_nan = dtype == TUTTI_BFLOAT16 ? 0x7fc0 : 0x7e00;
    for (size_t at = 0; at < COUNT_MAX + 2 * GUARD; at++) {
        assert_true(same(after.value[at], expected.value[at]));
        assert_true(same(after.first[at], expected.first[at]));
        assert_true(same(after.second[at], expected.second[at]));
        bool written = dtype != TUTTI_FLOAT32 && at >= GUARD && at < GUARD + count;
        float value = expected.value[at];
        uint64_t code = !written ? 0x5a5a : isnan(value) ? quiet_nan : encode(f, (double)value);
        assert_int_equal(narrow[at], code);
    }
}
static void check(enum update_rule rule, tutti_dtype dtype, bool moves, size_t count, const struct update_factors *f)
{
    struct update_arrays a = { .value = after.value + GUARD, .gradient = gradient };
    if (moves) a.first = after.first + GUARD;
    if (rule != UPDATE_SGD) a.second = after.second + GUARD;
    if (dtype != TUTTI_FLOAT32) a.narrow = narrow + GUARD;
    expect(rule, dtype, moves, count, f);
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        after = before;
        memset(narrow, 0x5a, sizeof narrow);
        update_find(rule, dtype)(&a, count, f);
        compare(dtype, count);
    }
}
static void fill_numbers(void)
{
    fill(gradient, COUNT_MAX, TUTTI_FLOAT32);
    fill(&before, sizeof before / sizeof(float), TUTTI_FLOAT32);
    for (size_t at = 0; at < COUNT_MAX + 2 * GUARD; at++) before.second[at] = fabsf(before.second[at]);
}
static struct update_factors any_factors(int turn)
{
    float beta1 = turn % 3 == 2 ? 0.3f : 0.9f;
    struct update_factors f = { .scale = turn % 2 ? 1.0f : 0.37f, .rate = 0.01f, .decay = 0.99f, .momentum = 0.9f };
    f.take1 = 1 - beta1;
    f.keep2 = 0.999f;
    f.take2 = 1 - f.keep2;
    f.root = 0.7f;
    f.epsilon = 1e-8f;
    f.is_first_step = turn % 4 == 0;
    if (turn % 5 == 1) f.square_roots = write_larger_roots;
    f.square_roots_mode = 77;
    return f;
}
static void test_steps_have_the_bits_of_the_formulas(void **state)
{
    (void)state;
    static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT16 };
    for (int c = 0; c < COUNTS; c++)
        for (int turn = 0; turn < 12; turn++) {
            struct update_factors f = any_factors(turn);
            fill_numbers();
            for (enum update_rule rule = 0; rule < UPDATE_RULES; rule++)
                for (int d = 0; d < 3; d++) check(rule, dtypes[d], rule != UPDATE_SGD || turn % 3, counts[c], &f);
        }
}
static void test_sums_of_squares_are_accurate_and_equal_everywhere(void **state)
{
    (void)state;
    static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT16, TUTTI_FLOAT64 };
    for (int c = 0; c < COUNTS; c++)
        for (int d = 0; d < 4; d++) {
            tutti_dtype dtype = dtypes[d];
            double sum = 0, first = 0;
            for (size_t i = 0; i < counts[c]; i++) {
                write_code(gradient, i, dtype, ordinary_code(dtype));
                double number = decode(format_of(dtype), read_code(gradient, i, dtype));
                sum += number * number;
            }
            for (int i = 0; kernels_isa_name(i); i++) {
                assert_true(kernels_select_isa(kernels_isa_name(i)));
                double found = squares_find(dtype)(gradient, counts[c]);
                if (i == 0) first = found;
                assert_true(found == first && fabs(found - sum) <= 1e-12 * sum);
            }
        }
}
static void test_other_types_have_no_update(void **state)
{
    (void)state;
    assert_null(update_find(UPDATE_ADAM, TUTTI_FLOAT64));
    assert_null(update_find(UPDATE_RULES, TUTTI_FLOAT32));
    assert_null(update_find(UPDATE_SGD, TUTTI_DTYPE_COUNT));
    assert_null(squares_find(TUTTI_INT32));
}
unit_function test_update;
int test_update(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_have_the_bits_of_the_formulas),
        cmocka_unit_test(test_sums_of_squares_are_accurate_and_equal_everywhere),
        cmocka_unit_test(test_other_types_have_no_update),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
