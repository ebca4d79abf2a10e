/* scale has on every instruction set the bits of the reference, also in place, for counts around the vector sizes. No
   byte outside the result is written. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"

enum { COUNT_MAX = 1027, GUARD = 64 };
static _Alignas(64) char source[COUNT_MAX * 8 + 8], expected[COUNT_MAX * 8], guarded[COUNT_MAX * 8 + 8 + 2 * GUARD];

static uint64_t reference_scale(tutti_dtype dtype, uint64_t code, double factor)
{
    double number = decode(format_of(dtype), code);
    return encode(format_of(dtype), dtype == TUTTI_FLOAT64 ? number * factor : (double)((float)number * (float)factor));
}

/* `to` starts one element behind a cache line. */
static void check_scale(tutti_dtype dtype, size_t count, double factor)
{
    size_t bytes = count * bytes_of(dtype);
    char *to = guarded + GUARD + bytes_of(dtype);
    memset(guarded, 0x5a, sizeof guarded);
    scale_find(dtype)(to, source, count, factor);
    assert_memory_equal(to, expected, bytes);
    for (int i = 0; i < GUARD; i++) assert_true(to[i - GUARD] == 0x5a && to[bytes + (size_t)i] == 0x5a);
    memcpy(to, source, bytes);
    scale_find(dtype)(to, to, count, factor);
    assert_memory_equal(to, expected, bytes);
}

static void test_scale_matches_the_reference(void **state)
{
    (void)state;
    static const size_t counts[] = { 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 1027 };
    static const double factors[] = { 1.0, 0.25, -3.0, 1.0 / 3, 0.1, 1e-300, 1e300, INFINITY, 0.0 };
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (size_t c = 0; scale_find(dtype) && c < sizeof counts / sizeof counts[0]; c++) {
            for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
                fill(source, counts[c], dtype);
                for (size_t i = 0; i < counts[c]; i++) {
                    write_code(expected, i, dtype, reference_scale(dtype, read_code(source, i, dtype), factors[f]));
                }
                for (int i = 0; kernels_isa_name(i); i++) {
                    assert_true(kernels_select_isa(kernels_isa_name(i)));
                    check_scale(dtype, counts[c], factors[f]);
                }
            }
        }
    }
}

unit_function test_scale;
int test_scale(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_scale_matches_the_reference) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
