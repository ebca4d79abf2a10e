/* The twin of the kernels converts and combines all codes of the short types as kernels/cpu does: all pairs of codes of
   8 bits, and each code of 16 bits with the numbers at which arithmetic goes wrong; and it rounds their products with
   factors, among which are ties. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/cuda_kernels/twin.h"
#include "tests/unit/kernels/data.h"

enum { CODES = 1 << 16, ROUNDS = 24, BLOCKS = 4 };
static _Alignas(16) char left[CODES * 2], right[CODES * 2], result[CODES * 2], expected[CODES * 2];

static void codes_compare(tutti_dtype dtype, const char *what, int number)
{
    if (memcmp(result, expected, CODES * bytes_of(dtype)) == 0) return;
    for (size_t i = 0; i < CODES; i++) {
        if (read_code(result, i, dtype) == read_code(expected, i, dtype)) continue;
        fail_msg("%s %s %d of %#llx and %#llx: %#llx, expected %#llx", name_of(dtype), what, number,
            (unsigned long long)read_code(left, i, dtype), (unsigned long long)read_code(right, i, dtype),
            (unsigned long long)read_code(result, i, dtype), (unsigned long long)read_code(expected, i, dtype));
    }
}
static void compare_ops(tutti_dtype dtype)
{
    for (tutti_op op = 0; op < TUTTI_OP_COUNT; op++) {
        if (!reduce_find(dtype, op)) continue;
        struct cuda_reduce r = { { result }, { left, right }, CODES, 1, 2, op == TUTTI_AVG ? 3 : 1 };
        void *to[] = { expected };
        reduce_find(dtype, op)(to, 1, r.from, 2, CODES, r.divisor);
        assert_true(twin_run(cuda_reduce_name(dtype, op), &r, BLOCKS, 1));
        codes_compare(dtype, "op", (int)op);
    }
}
static void test_all_pairs_of_8_bits(void **state)
{
    (void)state;
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        if (bytes_of(dtype) != 1) continue;
        for (size_t i = 0; i < CODES; i++) {
            write_code(left, i, dtype, i & 0xff);
            write_code(right, i, dtype, i >> 8);
        }
        compare_ops(dtype);
    }
}
static void test_all_codes_of_16_bits(void **state)
{
    (void)state;
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        if (bytes_of(dtype) != 2) continue;
        for (int round = 0; round < ROUNDS; round++) {
            uint64_t other = special_code(dtype);
            for (size_t i = 0; i < CODES; i++) {
                write_code(left, i, dtype, i);
                write_code(right, i, dtype, round % 2 ? other : any_code(dtype));
            }
            compare_ops(dtype);
        }
    }
}
static void test_all_roundings(void **state)
{
    (void)state;
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        if (!scale_find(dtype) || bytes_of(dtype) > 2) continue;
        for (size_t i = 0; i < CODES; i++) write_code(left, i, dtype, i);
        for (int round = 0; round < 4 * ROUNDS; round++) {
            /* Products with few bits are often halfway between two numbers of the type. */
            double factor =
                ldexp((double)(random_bits() % (round % 2 ? 64 : 1u << 24)), (int)(random_bits() % 48) - 40);
            struct cuda_scale s = { result, left, CODES, factor };
            scale_find(dtype)(expected, left, CODES, factor);
            assert_true(twin_run(cuda_scale_name(dtype), &s, BLOCKS, 1));
            codes_compare(dtype, "factor of round", round);
        }
    }
}

unit_function test_cuda_codes;
int test_cuda_codes(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_all_pairs_of_8_bits),
        cmocka_unit_test(test_all_codes_of_16_bits), cmocka_unit_test(test_all_roundings) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
