/* Sums of rows with weights, and dot products of rows, have on every instruction set the bits of a reference that does
   what kernels/blend.h states, one element at a time. Rows may be missing. No byte outside the result is written. */
#include "kernels/blend.h"
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"
#include <math.h>

enum { ROWS = 4, COLUMNS = 520, GUARD = 64, SUMS = 64, ROOM = COLUMNS * 4 + 8 };
static char row[ROWS][ROOM], expected[ROOM], guarded[ROOM + 2 * GUARD];
static float weight[ROWS];

static float number_at(const void *array, size_t i, tutti_dtype dtype)
{
    return (float)decode(format_of(dtype), read_code(array, i, dtype));
}
static void expect(tutti_dtype dtype, const void *const *from, bool weighted, size_t columns)
{
    for (size_t i = 0; i < columns; i++) {
        float sum = 0;
        bool first = true;
        for (int k = 0; k < ROWS; k++) {
            if (!from[k]) continue;
            /* The product is rounded before it is added. */
            volatile float x = number_at(from[k], i, dtype) * (weighted ? weight[k] : 1);
            sum = first ? x : sum + x;
            first = false;
        }
        write_code(expected, i, dtype, encode(format_of(dtype), (double)sum));
    }
}
static float dot_product(tutti_dtype dtype, size_t columns)
{
    float sum[SUMS] = { 0 };
    for (size_t i = 0; i < columns; i++) {
        volatile float x = number_at(row[0], i, dtype) * number_at(row[1], i, dtype);
        sum[i % SUMS] = sum[i % SUMS] + x;
    }
    for (int distance = SUMS / 2; distance > 0; distance /= 2)
        for (int i = 0; i < distance; i++) sum[i] = sum[i] + sum[i + distance];
    return sum[0];
}
static void check(tutti_dtype dtype, const void *const *from, bool weighted, size_t columns)
{
    char *to = guarded + GUARD + bytes_of(dtype);
    size_t bytes = columns * bytes_of(dtype);
    memset(guarded, 0x5a, sizeof guarded);
    blend_find(dtype)(to, from, weighted ? weight : NULL, ROWS, columns);
    assert_memory_equal(to, expected, bytes);
    for (int i = 0; i < GUARD; i++) assert_true(to[i - GUARD] == 0x5a && to[bytes + (size_t)i] == 0x5a);
    float dot = dot_find(dtype)(row[0], row[1], columns), expected_dot = dot_product(dtype, columns);
    assert_true(memcmp(&dot, &expected_dot, sizeof dot) == 0 || (isnan(dot) && isnan(expected_dot)));
}
static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT16 };
static const size_t lengths[] = { 1, 2, 7, 63, 64, 65, 128, 200, 520 };

/* Bits of `form`: one for each row that is not missing, and above them whether rows have weights. */
static void compare(tutti_dtype dtype, size_t columns, int form)
{
    const void *from[ROWS];
    for (int k = 0; k < ROWS; k++) from[k] = form >> k & 1 ? row[k] : NULL;
    expect(dtype, from, form >> ROWS, columns);
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        check(dtype, from, form >> ROWS, columns);
    }
}
static void all_shapes(bool special)
{
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++)
        for (size_t c = 0; c < sizeof lengths / sizeof lengths[0]; c++)
            for (int form = 0; form < 2 << ROWS; form++) {
                for (int k = 0; k < ROWS; k++) {
                    for (size_t i = 0; i < lengths[c]; i++) write_code(row[k], i, dtypes[d], ordinary_code(dtypes[d]));
                    if (special) write_code(row[k], random_bits() % lengths[c], dtypes[d], special_code(dtypes[d]));
                    weight[k] = (float)(random_bits() % 1000) / 999;
                }
                compare(dtypes[d], lengths[c], form);
            }
}
static void test_blend_matches_the_reference(void **state)
{
    (void)state;
    all_shapes(false);
}
static void test_blend_matches_the_reference_for_special_numbers(void **state)
{
    (void)state;
    all_shapes(true);
}
static void test_other_types_have_no_blend(void **state)
{
    (void)state;
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        bool has = dtype == TUTTI_FLOAT32 || dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT16;
        assert_int_equal(blend_find(dtype) != NULL, has);
        assert_int_equal(dot_find(dtype) != NULL, has);
    }
    assert_true(!blend_find(TUTTI_DTYPE_COUNT) && !dot_find(TUTTI_DTYPE_COUNT));
}

unit_function test_blend;
int test_blend(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_blend_matches_the_reference),
        cmocka_unit_test(test_blend_matches_the_reference_for_special_numbers),
        cmocka_unit_test(test_other_types_have_no_blend) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
