/* The conversions of float16, bfloat16 and float8, on every instruction set. They are reached through scale: from[i]
 * * factor with all codes as from and factor 1 must give the codes back; 1 * factor with any float32 as factor must
 * give its rounding. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"

static const tutti_dtype small[] = { TUTTI_FLOAT16, TUTTI_BFLOAT16, TUTTI_FLOAT8_E4M3, TUTTI_FLOAT8_E5M2 };
enum { SMALL = sizeof small / sizeof small[0], CODES = 1 << 16 };
static uint16_t codes[CODES], results[CODES];

static void check(tutti_dtype dtype, uint64_t code, double factor, uint64_t is, uint64_t should)
{
    if (is == should) return;
    fail_msg("%s %s: %#llx times %a gives %#llx, expected %#llx", kernels_isa(), name_of(dtype),
        (unsigned long long)code, factor, (unsigned long long)is, (unsigned long long)should);
}

static size_t codes_of(tutti_dtype dtype) { return (size_t)1 << (8 * bytes_of(dtype)); }

static void all_codes(tutti_dtype dtype)
{
    for (size_t i = 0; i < codes_of(dtype); i++) write_code(codes, i, dtype, i);
}

static void test_every_code_times_1_stays_the_same(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (int d = 0; d < SMALL; d++) {
            struct format format = format_of(small[d]);
            all_codes(small[d]);
            scale_find(small[d])(results, codes, codes_of(small[d]), 1.0);
            for (uint64_t code = 0; code < codes_of(small[d]); code++) {
                uint64_t should = isnan(decode(format, code)) ? format.nan : code;
                check(small[d], code, 1.0, read_code(results, code, small[d]), should);
            }
        }
    }
}

/* Multiplies every number of a format by some factors, so that a wrong decoding is found. */
static void test_every_code_is_decoded(void **state)
{
    (void)state;
    static const double factors[] = { -1.0, 0.5, 1.5, 0x1p-20, 0x1p+20, 0x1.5555p-3, 3.3e38, 1e-40, -0.0, INFINITY,
        NAN };
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (int d = 0; d < SMALL; d++) {
            all_codes(small[d]);
            for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
                scale_find(small[d])(results, codes, codes_of(small[d]), factors[f]);
                for (uint64_t code = 0; code < codes_of(small[d]); code++) {
                    float product = (float)decode(format_of(small[d]), code) * (float)factors[f];
                    uint64_t should = encode(format_of(small[d]), product);
                    check(small[d], code, factors[f], read_code(results, code, small[d]), should);
                }
            }
        }
    }
}

static void check_rounding(tutti_dtype dtype, float number)
{
    struct format format = format_of(dtype);
    uint64_t one = encode(format, 1.0), should = encode(format, number);
    for (size_t i = 0; i < 64 / bytes_of(dtype); i++) write_code(codes, i, dtype, one);
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        scale_find(dtype)(results, codes, 64 / bytes_of(dtype), number);
        for (size_t k = 0; k < 64 / bytes_of(dtype); k++)
            check(dtype, one, number, read_code(results, k, dtype), should);
    }
}

static float float_of(uint32_t bits)
{
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static void test_random_numbers_are_rounded(void **state)
{
    (void)state;
    for (int d = 0; d < SMALL; d++) {
        for (int i = 0; i < 100000; i++) check_rounding(small[d], float_of((uint32_t)random_bits()));
    }
}

/* Tests numbers of the format, the middle between each and the next one, and the float32 numbers on both sides of the
   middle, where the direction of rounding changes. */
static void test_ties_are_rounded_to_even(void **state)
{
    (void)state;
    for (int d = 0; d < SMALL; d++) {
        struct format format = format_of(small[d]);
        for (uint64_t code = 0; code + 1 < codes_of(small[d]); code += bytes_of(small[d]) == 1 ? 1 : 7) {
            double low = decode(format, code), high = decode(format, code + 1);
            if (isinf(high)) high = copysign(ldexp(1.0, format.bias + 1), low);
            if (isnan(low) || isnan(high) || isinf(low)) continue;
            float middle = (float)(low / 2 + high / 2);
            check_rounding(small[d], (float)low);
            check_rounding(small[d], middle);
            check_rounding(small[d], nextafterf(middle, (float)INFINITY));
            check_rounding(small[d], nextafterf(middle, (float)-INFINITY));
        }
    }
}

static uint64_t rounded(tutti_dtype dtype, float number)
{
    write_code(codes, 0, dtype, encode(format_of(dtype), 1.0));
    scale_find(dtype)(results, codes, 1, number);
    return read_code(results, 0, dtype);
}

/* These results are written out, so that they also test the reference. torch 2.13 has the same. */
static void test_rounding_has_the_limits_of_torch(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        assert_int_equal(rounded(TUTTI_FLOAT16, 65519.0f), 0x7bff);
        assert_int_equal(rounded(TUTTI_FLOAT16, 65520.0f), 0x7c00);
        assert_int_equal(rounded(TUTTI_FLOAT16, 0x1p-24f), 0x0001);
        assert_int_equal(rounded(TUTTI_FLOAT16, 0x1p-25f), 0x0000);
        assert_int_equal(rounded(TUTTI_BFLOAT16, 3.4e38f), 0x7f80);
        assert_int_equal(rounded(TUTTI_BFLOAT16, 0x1p-133f), 0x0001);
        assert_int_equal(rounded(TUTTI_BFLOAT16, 1.00390625f), 0x3f80);
        assert_int_equal(rounded(TUTTI_FLOAT8_E4M3, 448.0f), 0x7e);
        assert_int_equal(rounded(TUTTI_FLOAT8_E4M3, 1e9f), 0x7e);
        assert_int_equal(rounded(TUTTI_FLOAT8_E4M3, (float)-INFINITY), 0xfe);
        assert_int_equal(rounded(TUTTI_FLOAT8_E4M3, 0x1p-9f), 0x01);
        assert_int_equal(rounded(TUTTI_FLOAT8_E4M3, 0x1p-10f), 0x00);
        assert_int_equal(rounded(TUTTI_FLOAT8_E4M3, (float)NAN), 0x7f);
        assert_int_equal(rounded(TUTTI_FLOAT8_E5M2, 61439.0f), 0x7b);
        assert_int_equal(rounded(TUTTI_FLOAT8_E5M2, 61440.0f), 0x7c);
        assert_int_equal(rounded(TUTTI_FLOAT8_E5M2, -1e9f), 0xfc);
        assert_int_equal(rounded(TUTTI_FLOAT8_E5M2, 0x1p-16f), 0x01);
        assert_int_equal(rounded(TUTTI_FLOAT8_E5M2, (float)NAN), 0x7f);
    }
}

unit_function test_rounding;
int test_rounding(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_code_times_1_stays_the_same),
        cmocka_unit_test(test_every_code_is_decoded),
        cmocka_unit_test(test_random_numbers_are_rounded),
        cmocka_unit_test(test_ties_are_rounded_to_even),
        cmocka_unit_test(test_rounding_has_the_limits_of_torch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
