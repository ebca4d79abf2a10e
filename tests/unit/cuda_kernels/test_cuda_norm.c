/* The twin of the kernels normalizes rows as kernels/cpu does, bit for bit: columns around the 64 sums, with and
   without a residual, a weight and a bias, ordinary and special numbers. */
#include "kernels/norm.h"
#include "tests/support/unit.h"
#include "tests/unit/cuda_kernels/twin.h"
#include "tests/unit/kernels/data.h"

enum { ROWS = 11, COLUMNS = 700, GUARD = 64, ROOM = ROWS * COLUMNS * 4 + 2 * GUARD };
enum { ROW, RESIDUAL, ARRAYS };
static char expected[ARRAYS][ROOM], result[ARRAYS][ROOM], weight[COLUMNS * 4], bias[COLUMNS * 4];

/* A quarter of the rows has special numbers. */
static void row_fill(char *row, size_t columns, tutti_dtype dtype)
{
    for (size_t i = 0; i < columns; i++) write_code(row, i, dtype, ordinary_code(dtype));
    if (random_bits() % 4 == 0) write_code(row, random_bits() % columns, dtype, special_code(dtype));
}
static void norms_compare(tutti_dtype dtype, const struct norm *n, bool has_residual, unsigned blocks)
{
    const size_t row = n->columns * bytes_of(dtype);
    char *at[ARRAYS], *should[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) {
        memset(expected[a], 0x5a, ROOM);
        at[a] = result[a] + GUARD + bytes_of(dtype);
        should[a] = expected[a] + GUARD + bytes_of(dtype);
        for (size_t r = 0; r < ROWS; r++) row_fill(should[a] + r * row, n->columns, dtype);
        memcpy(result[a], expected[a], ROOM);
    }
    norm_find(dtype)(n, should[ROW], has_residual ? should[RESIDUAL] : NULL, ROWS);
    struct cuda_norm parameter = { at[ROW], has_residual ? at[RESIDUAL] : NULL, n->weight, n->bias, ROWS, n->columns,
        n->epsilon, n->centred };
    assert_true(twin_run(cuda_norm_name(dtype), &parameter, blocks, 1));
    for (int a = 0; a < ARRAYS; a++) assert_memory_equal(result[a], expected[a], ROOM);
}
static void test_rows_are_those_of_the_host(void **state)
{
    (void)state;
    static const size_t columns[] = { 1, 2, 7, 31, 32, 33, 63, 64, 65, 127, 128, 129, 512, 699, 700 };
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        assert_int_equal(cuda_norm_name(dtype) != NULL, norm_find(dtype) != NULL);
        for (size_t c = 0; norm_find(dtype) && c < sizeof columns / sizeof columns[0]; c++) {
            for (int form = 0; form < 32; form++) {
                struct norm n = { form & 1, 1e-5f, columns[c], form & 2 ? weight : NULL, form & 4 ? bias : NULL };
                row_fill(weight, columns[c], dtype);
                row_fill(bias, columns[c], dtype);
                norms_compare(dtype, &n, form & 8, form & 16 ? 1 : 3);
            }
        }
    }
}

unit_function test_cuda_norm;
int test_cuda_norm(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows_are_those_of_the_host) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
