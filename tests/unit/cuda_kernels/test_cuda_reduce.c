/* The twin of the kernels reduces and scales as kernels/cpu does, bit for bit: all dtypes, ops and numbers of sources,
   counts around the elements of a block, arrays that are aligned alike, differently, or to the element only, several
   destinations, and in place. Bytes outside the arrays do not change. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/cuda_kernels/twin.h"
#include "tests/unit/kernels/data.h"

enum { SOURCES = 8, DESTINATIONS = 2, GUARD = 64, ROOM = 2 * GUARD + 16 + 3 * CUDA_BLOCK * 16 };
static _Alignas(64) char sources[SOURCES][ROOM], destinations[DESTINATIONS][ROOM], expected[ROOM], kept[ROOM];

struct shape {
    tutti_dtype dtype;
    tutti_op op;
    int from_count, to_count, divisor;
    size_t count;
    /* The first array starts `shift` elements behind a boundary of 16 bytes, and each next one `skew` further. */
    size_t shift, skew;
};
static size_t offset_of(const struct shape *s, int array)
{
    return GUARD + (s->shift + s->skew * (size_t)array) * bytes_of(s->dtype) % 16;
}
static char *source_at(const struct shape *s, int k) { return sources[k] + offset_of(s, k + DESTINATIONS); }
static char *destination_at(const struct shape *s, int j) { return destinations[j] + offset_of(s, j); }

static void check_bytes(const struct shape *s, const char *is, const char *should, const char *what)
{
    size_t bytes = s->count * bytes_of(s->dtype);
    if (memcmp(is, should, bytes) == 0) return;
    for (size_t i = 0; i < s->count; i++) {
        uint64_t a = read_code(is, i, s->dtype), b = read_code(should, i, s->dtype);
        if (a != b)
            fail_msg("%s %s op %d, %d sources, divisor %d, element %zu of %zu: %#llx, expected %#llx", what,
                name_of(s->dtype), (int)s->op, s->from_count, s->divisor, i, s->count, (unsigned long long)a,
                (unsigned long long)b);
    }
}
static void check_guards(const struct shape *s, const char *begin)
{
    const char *end = begin + s->count * bytes_of(s->dtype);
    for (int i = 0; i < GUARD; i++) assert_true(begin[i - GUARD] == 0x5a && end[i] == 0x5a);
}
/* Sets the arrays of a reduction, with the result of kernels/cpu in `expected`. */
static struct cuda_reduce reduction_of(const struct shape *s)
{
    struct cuda_reduce r = {
        .count = s->count, .to_count = s->to_count, .from_count = s->from_count, .divisor = s->divisor
    };
    for (int k = 0; k < s->from_count; k++) r.from[k] = source_at(s, k);
    for (int j = 0; j < s->to_count; j++) r.to[j] = destination_at(s, j);
    void *to[] = { expected };
    reduce_find(s->dtype, s->op)(to, 1, r.from, s->from_count, s->count, s->divisor);
    return r;
}
static void check_reduction(const struct shape *s, unsigned blocks)
{
    struct cuda_reduce r = reduction_of(s);
    memset(destinations, 0x5a, sizeof destinations);
    assert_true(twin_run(cuda_reduce_name(s->dtype, s->op), &r, blocks, 1));
    for (int j = 0; j < s->to_count; j++) {
        check_bytes(s, r.to[j], expected, "reduce");
        check_guards(s, r.to[j]);
    }
}
static void check_in_place(const struct shape *s, int place)
{
    struct cuda_reduce r = reduction_of(s);
    r.to[0] = source_at(s, place);
    memcpy(kept, sources[place], ROOM);
    assert_true(twin_run(cuda_reduce_name(s->dtype, s->op), &r, 1, 1));
    check_bytes(s, r.to[0], expected, "reduce in place");
    memcpy(sources[place], kept, ROOM);
}
/* Counts around the elements that a block reads at once, with one, two and three vectors of each thread. */
static void check_pair(tutti_dtype dtype, tutti_op op, int divisor)
{
    const size_t block = CUDA_BLOCK * 16 / bytes_of(dtype);
    const size_t counts[] = { 0, 1, 15, 16, 17, 100, block - 1, block, block + 1, 2 * block + 3 };
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int from_count = 1; from_count <= SOURCES; from_count++) {
            struct shape s = { dtype, op, from_count, 1 + from_count % 2, divisor, counts[c], 0, 0 };
            for (int k = 0; k < from_count; k++) fill(sources[k] + GUARD, s.count + 16 / bytes_of(dtype), dtype);
            check_reduction(&s, 1 + from_count % 3);
            s.shift = 1 + (size_t)from_count % 7;
            check_reduction(&s, 1);
            check_in_place(&s, from_count / 2);
            s.skew = 1;
            check_reduction(&s, 2);
            check_in_place(&s, from_count - 1);
        }
    }
}
static void test_sums_are_those_of_the_host(void **state)
{
    (void)state;
    static const int divisors[] = { 2, 3, 300 };
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (tutti_op op = 0; op < TUTTI_OP_COUNT; op++) {
            assert_int_equal(cuda_reduce_name(dtype, op) != NULL, reduce_find(dtype, op) != NULL);
            if (!reduce_find(dtype, op) || op == TUTTI_PREMUL_SUM) continue;
            if (op != TUTTI_AVG) check_pair(dtype, op, 1);
            for (int i = 0; op == TUTTI_AVG && i < 3; i++) check_pair(dtype, op, divisors[i]);
        }
    }
}

static void check_scale(struct shape s, double factor)
{
    struct cuda_scale parameter = { destination_at(&s, 0), source_at(&s, 0), s.count, factor };
    fill(source_at(&s, 0), s.count, s.dtype);
    scale_find(s.dtype)(expected, parameter.from, s.count, factor);
    memset(destinations, 0x5a, sizeof destinations);
    assert_true(twin_run(cuda_scale_name(s.dtype), &parameter, 1, 1));
    check_bytes(&s, parameter.to, expected, "scale");
    check_guards(&s, parameter.to);
    parameter.to = source_at(&s, 0);
    assert_true(twin_run(cuda_scale_name(s.dtype), &parameter, 1, 1));
    check_bytes(&s, parameter.to, expected, "scale in place");
}
static void test_products_with_a_factor_are_those_of_the_host(void **state)
{
    (void)state;
    static const double factors[] = { 0.1, -3, 1e-30, 1e30 };
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        assert_int_equal(cuda_scale_name(dtype) != NULL, scale_find(dtype) != NULL);
        for (int i = 0; scale_find(dtype) && i < 64; i++) {
            struct shape s = { dtype, TUTTI_PREMUL_SUM, 1, 1, 1, (size_t)(2 * i * i) / bytes_of(dtype), (size_t)i % 5,
                (size_t)i % 2 };
            check_scale(s, factors[i / 2 % 4]);
        }
    }
}
static void test_other_types_and_ops_have_no_kernel(void **state)
{
    (void)state;
    assert_null(cuda_reduce_name(TUTTI_DTYPE_COUNT, TUTTI_SUM));
    assert_null(cuda_reduce_name(TUTTI_FLOAT32, TUTTI_OP_COUNT));
    assert_null(cuda_scale_name(TUTTI_DTYPE_COUNT));
    assert_null(cuda_norm_name(TUTTI_DTYPE_COUNT));
    assert_false(twin_run("tutti_reduce_BAND_FLOAT32", NULL, 1, 1));
}

unit_function test_cuda_reduce;
int test_cuda_reduce(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sums_are_those_of_the_host),
        cmocka_unit_test(test_products_with_a_factor_are_those_of_the_host),
        cmocka_unit_test(test_other_types_and_ops_have_no_kernel) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
