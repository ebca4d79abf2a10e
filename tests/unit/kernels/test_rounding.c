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

static void every_code_comes_back(void **state)
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

/* Every number of the format times some factors: reads every code, also where the result is not what was read. */
static void every_code_is_read(void **state)
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

static void random_numbers_are_rounded(void **state)
{
    (void)state;
    for (int d = 0; d < SMALL; d++) {
        for (int i = 0; i < 100000; i++) check_rounding(small[d], float_of((uint32_t)random_bits()));
    }
}

/* Every number of the format, halfway to the next, and the float32 on either side: where rounding is decided. */
static void ties_go_to_even(void **state)
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

/* Spelled out, so that the reference above is held to something too. These are also torch's (2.13). */
static void the_edges_are_where_torch_has_them(void **state)
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
        cmocka_unit_test(every_code_comes_back),
        cmocka_unit_test(every_code_is_read),
        cmocka_unit_test(random_numbers_are_rounded),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(the_edges_are_where_torch_has_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
