/* Sums of float16 and bfloat16 in long arrays, where whole groups of vectors are added, searched for NaN and rounded
   together. Every code is added to partners that give ties, overflow, denormals and NaN. A single NaN in an array must
   become the canonical NaN and change no other element. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"

static const tutti_dtype widened[] = { TUTTI_FLOAT16, TUTTI_BFLOAT16 };
enum { DTYPES = sizeof widened / sizeof widened[0], CODES = 1 << 16, SOURCES = 3, LANES = 512 };
static uint16_t source[SOURCES][CODES], result[2][CODES], expected[CODES];

static void expect(tutti_dtype dtype, int sources, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t codes[SOURCES] = { source[0][i], source[1][i], source[2][i] };
        expected[i] = (uint16_t)reference(dtype, TUTTI_SUM, codes, sources, 1);
    }
}

static void check(tutti_dtype dtype, int sources, int results, size_t count)
{
    const void *from[SOURCES] = { source[0], source[1], source[2] };
    void *to[2] = { result[0], result[1] };
    reduce_find(dtype, TUTTI_SUM)(to, results, from, sources, count, 1);
    for (int k = 0; k < results; k++) {
        for (size_t i = 0; i < count; i++) {
            if (result[k][i] == expected[i]) continue;
            fail_msg("%s %s, %d to %d, element %zu of %zu: %#x + %#x (+ %#x) gives %#x, expected %#x", kernels_isa(),
                name_of(dtype), sources, results, i, count, source[0][i], source[1][i], source[2][i], result[k][i],
                expected[i]);
        }
    }
}

/* Checks every instruction set, with 2 and 3 sources and 1 and 2 results. */
static void check_all(tutti_dtype dtype, size_t count)
{
    for (int sources = 2; sources <= SOURCES; sources++) {
        expect(dtype, sources, count);
        for (int i = 0; kernels_isa_name(i); i++) {
            assert_true(kernels_select_isa(kernels_isa_name(i)));
            for (int results = 1; results <= 2; results++) check(dtype, sources, results, count);
        }
    }
}

/* Returns the partner of a code in a row. A row has one kind of partner, so some rows have no NaN but that of the code
   itself. Row 2 has the smallest denormal, and row 7 a signalling NaN. In row 10 the partner is half or twice as large,
   so that ties arise, and in the last rows it is a few powers of two away. */
static uint16_t partner(struct format f, int row, uint16_t code)
{
    uint64_t one = UINT64_C(1) << f.mantissa, infinity = (UINT64_C(1) << (f.bits - 1)) - one, sign = 1u << 15;
    switch (row) {
    case 0: return 0;
    case 1: return (uint16_t)sign;
    case 2: return 1;
    case 3: return (uint16_t)(one - 1);
    case 4: return (uint16_t)((uint64_t)f.bias << f.mantissa);
    case 5: return (uint16_t)(infinity - 1);
    case 6: return (uint16_t)(infinity | sign);
    case 7: return (uint16_t)(infinity + 1);
    case 8: return code;
    case 9: return (uint16_t)(code ^ sign);
    case 10: return (uint16_t)(code ^ one);
    case 11: return (uint16_t)(code ^ (one | 3));
    default: return (uint16_t)(code ^ random_bits() % (8 * one));
    }
}

static void test_every_code_is_added(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        for (int row = 0; row < 14; row++) {
            for (size_t i = 0; i < CODES; i++) {
                source[0][i] = (uint16_t)i;
                source[1][i] = partner(format_of(widened[d]), row, (uint16_t)i);
                source[2][i] = partner(format_of(widened[d]), 13 - row, (uint16_t)i);
            }
            check_all(widened[d], CODES);
        }
    }
}

/* The only NaN is in each lane in turn. It is in either source, or the sum of infinity and minus infinity. */
static void test_single_nan_changes_no_other_element(void **state)
{
    (void)state;
    for (int d = 0; d < DTYPES; d++) {
        struct format f = format_of(widened[d]);
        uint64_t infinity = (UINT64_C(1) << 15) - (UINT64_C(1) << f.mantissa);
        for (int k = 0; k < SOURCES; k++) {
            for (size_t i = 0; i < LANES; i++) source[k][i] = (uint16_t)ordinary_code(widened[d]);
        }
        check_all(widened[d], LANES);
        for (size_t lane = 0; lane < LANES; lane++) {
            uint64_t payload = 1 + random_bits() % ((UINT64_C(1) << f.mantissa) - 1), sign = (random_bits() & 1) << 15;
            uint16_t first = source[0][lane], second = source[1][lane];
            if (lane % 3 == 0) source[0][lane] = (uint16_t)(infinity + payload + sign);
            if (lane % 3 == 1) source[1][lane] = (uint16_t)(infinity + payload + sign);
            if (lane % 3 == 2) {
                source[0][lane] = (uint16_t)infinity;
                source[1][lane] = (uint16_t)(infinity | 1u << 15);
            }
            check_all(widened[d], LANES);
            source[0][lane] = first;
            source[1][lane] = second;
        }
    }
}

unit_function test_widened;
int test_widened(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_is_added),
        cmocka_unit_test(test_single_nan_changes_no_other_element),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
