/* The kernels of kernels/norm.h (RMSNorm and LayerNorm of rows) have on every instruction set the bits of a reference
   that computes one element at a time: for numbers of columns around a block, with and without a residual, a
   weight and a bias. No byte outside the result is written. */
#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"

enum { ROWS = 3, COLUMNS = 700, GUARD = 64, SUMS = 64, ROOM = ROWS * COLUMNS * 4 + 8 };
enum { ROW, RESIDUAL, ARRAYS };
static char given[ARRAYS][ROOM], expected[ARRAYS][ROOM], guarded[ARRAYS][ROOM + 2 * GUARD];
static char weight[COLUMNS * 4], bias[COLUMNS * 4];

static float number_at(const void *array, size_t i, tutti_dtype dtype)
{
    return (float)decode(format_of(dtype), read_code(array, i, dtype));
}
static void write_number(void *array, size_t i, tutti_dtype dtype, float number)
{
    write_code(array, i, dtype, encode(format_of(dtype), (double)number));
}

/* ---- the reference ---- */
static float sum_of(const float *x, size_t count)
{
    float sum[SUMS] = { 0 };
    for (size_t i = 0; i < count; i++) sum[i % SUMS] = (float)(sum[i % SUMS] + x[i]);
    for (int apart = SUMS / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++) sum[i] = (float)(sum[i] + sum[i + apart]);
    return sum[0];
}
static void normalise(const struct norm *n, tutti_dtype dtype, const float *x, char *out)
{
    float mean = n->centred ? sum_of(x, n->columns) / (float)n->columns : 0, away[COLUMNS], squares[COLUMNS];
    for (size_t i = 0; i < n->columns; i++) {
        away[i] = x[i] - mean;
        squares[i] = away[i] * away[i];
    }
    float mean_square = sum_of(squares, n->columns) / (float)n->columns;
    float scale = 1.0f / sqrtf(mean_square + n->epsilon);
    for (size_t i = 0; i < n->columns; i++) {
        float y = away[i] * scale;
        if (n->weight) y = y * number_at(n->weight, i, dtype);
        if (n->bias) y = y + number_at(n->bias, i, dtype);
        write_number(out, i, dtype, y);
    }
}
static void expect(const struct norm *n, tutti_dtype dtype, bool has_residual)
{
    for (size_t r = 0; r < ROWS; r++) {
        float x[COLUMNS];
        size_t at = r * n->columns * bytes_of(dtype);
        for (size_t i = 0; i < n->columns; i++) {
            x[i] = number_at(given[ROW] + at, i, dtype);
            if (!has_residual) continue;
            write_number(expected[RESIDUAL] + at, i, dtype, x[i] + number_at(given[RESIDUAL] + at, i, dtype));
            x[i] = number_at(expected[RESIDUAL] + at, i, dtype);
        }
        normalise(n, dtype, x, expected[ROW] + at);
    }
}

/* ---- the comparison: arrays start one element behind a cache line ---- */
static void check(const struct norm *n, tutti_dtype dtype, bool has_residual)
{
    size_t bytes = ROWS * n->columns * bytes_of(dtype);
    char *at[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) {
        at[a] = guarded[a] + GUARD + bytes_of(dtype);
        memset(guarded[a], 0x5a, sizeof guarded[a]);
        memcpy(at[a], given[a], bytes);
    }
    norm_find(dtype)(n, at[ROW], has_residual ? at[RESIDUAL] : NULL, ROWS);
    for (int a = 0; a < ARRAYS; a++) {
        assert_memory_equal(at[a], a == ROW || has_residual ? expected[a] : given[a], bytes);
        for (int i = 0; i < GUARD; i++) assert_true(at[a][i - GUARD] == 0x5a && at[a][bytes + (size_t)i] == 0x5a);
    }
}
static void compare(const struct norm *n, tutti_dtype dtype, bool has_residual)
{
    expect(n, dtype, has_residual);
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        check(n, dtype, has_residual);
    }
}
static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT16 };
static const size_t columns[] = { 1, 2, 7, 63, 64, 65, 100, 128, 129, 191, 512, 700 };

static void all_shapes(void (*fill_one)(void *, size_t, tutti_dtype))
{
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t c = 0; c < sizeof columns / sizeof columns[0]; c++) {
            for (int form = 0; form < 16; form++) {
                struct norm n = { form & 1, 1e-5f, columns[c], form & 2 ? weight : NULL, form & 4 ? bias : NULL };
                for (int a = 0; a < ARRAYS; a++) fill_one(given[a], ROWS * columns[c], dtypes[d]);
                fill_one(weight, columns[c], dtypes[d]);
                fill_one(bias, columns[c], dtypes[d]);
                compare(&n, dtypes[d], form & 8);
            }
        }
    }
}
static void fill_ordinary(void *array, size_t count, tutti_dtype dtype)
{
    for (size_t i = 0; i < count; i++) write_code(array, i, dtype, ordinary_code(dtype));
}
static void test_norm_matches_the_reference(void **state)
{
    (void)state;
    all_shapes(fill_ordinary);
}
/* One number of each array is one at which arithmetic may go wrong. */
static void fill_special(void *array, size_t count, tutti_dtype dtype)
{
    fill_ordinary(array, count, dtype);
    write_code(array, random_bits() % count, dtype, special_code(dtype));
}
static void test_norm_matches_the_reference_for_special_numbers(void **state)
{
    (void)state;
    all_shapes(fill_special);
}
static void test_other_types_have_no_norm(void **state)
{
    (void)state;
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        bool has = dtype == TUTTI_FLOAT32 || dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT16;
        assert_int_equal(norm_find(dtype) != NULL, has);
    }
    assert_null(norm_find(TUTTI_DTYPE_COUNT));
}

unit_function test_norm;
int test_norm(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_norm_matches_the_reference),
        cmocka_unit_test(test_norm_matches_the_reference_for_special_numbers),
        cmocka_unit_test(test_other_types_have_no_norm) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
