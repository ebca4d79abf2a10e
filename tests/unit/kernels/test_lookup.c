/* The types and operations that have kernels, and the choice of the instruction set. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"

static bool floating(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT64
        || dtype == TUTTI_FLOAT8_E4M3 || dtype == TUTTI_FLOAT8_E5M2;
}

static bool makes_sense(tutti_dtype dtype, tutti_op op)
{
    switch (op) {
    case TUTTI_BAND:
    case TUTTI_BOR:
    case TUTTI_BXOR: return !floating(dtype);
    case TUTTI_AVG: return dtype != TUTTI_BOOL;
    case TUTTI_PREMUL_SUM: return floating(dtype);
    default: return true;
    }
}

static void test_each_pair_that_makes_sense_has_a_kernel(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            for (tutti_op op = 0; op < TUTTI_OP_COUNT; op++)
                assert_int_equal(reduce_find(dtype, op) != NULL, makes_sense(dtype, op));
            assert_int_equal(scale_find(dtype) != NULL, floating(dtype));
        }
    }
}

static void test_sums_of_the_usual_types_have_streamed_kernels(void **state)
{
    (void)state;
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            bool usual = dtype == TUTTI_FLOAT32 || dtype == TUTTI_FLOAT16 || dtype == TUTTI_BFLOAT16;
            assert_int_equal(reduce_streamed_find(dtype, TUTTI_SUM) != NULL, usual);
            assert_ptr_equal(reduce_streamed_find(dtype, TUTTI_AVG), reduce_streamed_find(dtype, TUTTI_SUM));
            assert_ptr_equal(reduce_streamed_find(dtype, TUTTI_PREMUL_SUM), reduce_streamed_find(dtype, TUTTI_SUM));
            assert_null(reduce_streamed_find(dtype, TUTTI_MAX));
        }
    }
    assert_null(reduce_streamed_find((tutti_dtype)TUTTI_DTYPE_COUNT, TUTTI_SUM));
}

static void test_average_and_premultiplied_sum_have_the_kernel_of_sums(void **state)
{
    (void)state;
    assert_ptr_equal(reduce_find(TUTTI_INT32, TUTTI_AVG), reduce_find(TUTTI_INT32, TUTTI_SUM));
    assert_ptr_equal(reduce_find(TUTTI_FLOAT16, TUTTI_AVG), reduce_find(TUTTI_FLOAT16, TUTTI_SUM));
    assert_ptr_equal(reduce_find(TUTTI_FLOAT16, TUTTI_PREMUL_SUM), reduce_find(TUTTI_FLOAT16, TUTTI_SUM));
}

static void test_invalid_dtype_or_op_has_no_kernel(void **state)
{
    (void)state;
    assert_null(reduce_find((tutti_dtype)TUTTI_DTYPE_COUNT, TUTTI_SUM));
    assert_null(reduce_find((tutti_dtype)-1, TUTTI_SUM));
    assert_null(reduce_find(TUTTI_FLOAT32, (tutti_op)TUTTI_OP_COUNT));
    assert_null(reduce_find(TUTTI_FLOAT32, (tutti_op)-1));
    assert_null(scale_find((tutti_dtype)TUTTI_DTYPE_COUNT));
}

/* This is the first test, before another one selects an instruction set. */
static void test_best_instruction_set_is_the_default(void **state)
{
    (void)state;
    int last = 0;
    while (kernels_isa_name(last + 1)) last++;
    assert_string_equal(kernels_isa(), kernels_isa_name(last));
}

static void test_selected_instruction_set_is_used(void **state)
{
    (void)state;
    assert_string_equal(kernels_isa_name(0), "scalar");
    assert_null(kernels_isa_name(-1));
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        assert_string_equal(kernels_isa(), kernels_isa_name(i));
    }
    assert_true(kernels_select_isa("scalar"));
    reduce_function *scalar = reduce_find(TUTTI_FLOAT32, TUTTI_SUM);
    assert_false(kernels_select_isa("abacus"));
    assert_string_equal(kernels_isa(), "scalar");
    if (!kernels_isa_name(1)) return;
    assert_true(kernels_select_isa(kernels_isa_name(1)));
    assert_ptr_not_equal(reduce_find(TUTTI_FLOAT32, TUTTI_SUM), scalar);
}

unit_function test_lookup;
int test_lookup(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_best_instruction_set_is_the_default),
        cmocka_unit_test(test_each_pair_that_makes_sense_has_a_kernel),
        cmocka_unit_test(test_sums_of_the_usual_types_have_streamed_kernels),
        cmocka_unit_test(test_average_and_premultiplied_sum_have_the_kernel_of_sums),
        cmocka_unit_test(test_invalid_dtype_or_op_has_no_kernel),
        cmocka_unit_test(test_selected_instruction_set_is_used),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
