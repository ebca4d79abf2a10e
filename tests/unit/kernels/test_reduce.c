/* Reductions have on every instruction set of this machine the bits of an independent reference, for all dtypes, ops,
   numbers of sources and destinations, counts around the vector sizes, and arrays that are aligned to the element
   only. */
#include "kernels/reduce.h"
#include "tests/support/unit.h"
#include "tests/unit/kernels/data.h"

enum { FROM_MAX = 9, TO_MAX = 3, COUNT_MAX = 1027, GUARD = 64, ARRAY_BYTES = (COUNT_MAX + 8) * 8 + 2 * GUARD };
static const size_t counts[] = { 0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 1027 };
enum { COUNTS = sizeof counts / sizeof counts[0] };

static _Alignas(64) char sources[FROM_MAX][ARRAY_BYTES], destinations[TO_MAX][ARRAY_BYTES], expected[ARRAY_BYTES];

struct shape {
    tutti_dtype dtype;
    tutti_op op;
    int from_count, to_count, divisor;
    /* Arrays start at least `shift` elements behind a cache line. */
    size_t count, shift;
    /* All destinations start exactly there. */
    bool alike;
    /* Destinations start so many bytes later. */
    size_t askew;
};

static char *source_at(const struct shape *shape, int k)
{
    return sources[k] + GUARD + ((size_t)k + shape->shift) % 8 * bytes_of(shape->dtype);
}

static char *destination_at(const struct shape *shape, int j)
{
    size_t elements = ((size_t)(shape->alike ? 0 : 3 * j) + shape->shift) % 8;
    return destinations[j] + GUARD + elements * bytes_of(shape->dtype) + shape->askew;
}

static void expect(const struct shape *shape)
{
    for (size_t i = 0; i < shape->count; i++) {
        uint64_t codes[FROM_MAX] = { 0 };
        for (int k = 0; k < shape->from_count; k++) codes[k] = read_code(source_at(shape, k), i, shape->dtype);
        write_code(expected, i, shape->dtype,
            reference(shape->dtype, shape->op, codes, shape->from_count, shape->divisor));
    }
}

static void check_result(const struct shape *shape, const char *result, const char *what)
{
    if (memcmp(result, expected, shape->count * bytes_of(shape->dtype)) == 0) return;
    for (size_t i = 0; i < shape->count; i++) {
        uint64_t is = read_code(result, i, shape->dtype), should = read_code(expected, i, shape->dtype);
        if (is == should) continue;
        for (int k = 0; k < shape->from_count; k++) {
            printf("source %d: %#llx\n", k, (unsigned long long)read_code(source_at(shape, k), i, shape->dtype));
        }
        fail_msg("%s %s op %d, %d to %d, element %zu of %zu, %s: %#llx, expected %#llx", kernels_isa(),
            name_of(shape->dtype), (int)shape->op, shape->from_count, shape->to_count, i, shape->count, what,
            (unsigned long long)is, (unsigned long long)should);
    }
}

/* The bytes directly before and behind the elements are guards, which must not change. */
static void set_guards(const struct shape *shape, char *begin)
{
    memset(begin - GUARD, 0x5a, GUARD);
    memset(begin, 0x77, shape->count * bytes_of(shape->dtype));
    memset(begin + shape->count * bytes_of(shape->dtype), 0x5a, GUARD);
}

static void check_guards(const struct shape *shape, const char *begin)
{
    const char *end = begin + shape->count * bytes_of(shape->dtype);
    for (int i = 0; i < GUARD; i++) {
        if (begin[i - GUARD] != 0x5a || end[i] != 0x5a) {
            fail_msg("%s %s op %d, count %zu: a byte outside the array is written", kernels_isa(),
                name_of(shape->dtype), (int)shape->op, shape->count);
        }
    }
}

static void check_function(const struct shape *shape, reduce_function *reduce, const char *what)
{
    void *to[TO_MAX];
    const void *from[FROM_MAX];
    for (int k = 0; k < shape->from_count; k++) from[k] = source_at(shape, k);
    for (int j = 0; j < shape->to_count; j++) to[j] = destination_at(shape, j);
    for (int j = 0; j < shape->to_count; j++) set_guards(shape, to[j]);
    reduce(to, shape->to_count, from, shape->from_count, shape->count, shape->divisor);
    for (int j = 0; j < shape->to_count; j++) {
        check_result(shape, to[j], what);
        check_guards(shape, to[j]);
    }
}

static void check_shape(const struct shape *shape)
{
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        check_function(shape, reduce_find(shape->dtype, shape->op), "out of place");
        reduce_streamed_function *streamed = reduce_streamed_find(shape->dtype, shape->op);
        struct shape other = *shape;
        other.alike = true;
        if (streamed) check_function(shape, streamed, "streamed");
        if (streamed) check_function(&other, streamed, "streamed to destinations alike");
        other.askew = 1;
        if (streamed) check_function(&other, streamed, "streamed to destinations that are not aligned");
    }
}

static void check_pair(tutti_dtype dtype, tutti_op op, int divisor)
{
    for (size_t c = 0; c < COUNTS; c++) {
        for (int from_count = 1; from_count <= FROM_MAX; from_count++) {
            struct shape shape = { dtype, op, from_count, 1, divisor, counts[c], c % 3, false, 0 };
            for (int k = 0; k < from_count; k++) fill(source_at(&shape, k), shape.count, dtype);
            expect(&shape);
            for (shape.to_count = 1; shape.to_count <= TO_MAX; shape.to_count++) check_shape(&shape);
        }
    }
}

static void test_reduce_matches_the_reference(void **state)
{
    (void)state;
    static const int divisors[] = { 2, 3, 300 };
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (tutti_op op = 0; op < TUTTI_OP_COUNT; op++) {
            if (!reduce_find(dtype, op) || op == TUTTI_PREMUL_SUM) continue;
            if (op != TUTTI_AVG) check_pair(dtype, op, 1);
            for (int i = 0; op == TUTTI_AVG && i < 3; i++) check_pair(dtype, op, divisors[i]);
        }
    }
}

/* The destination is source number `place`. A second destination, if there is one, is in other memory. */
static void check_in_place(struct shape *shape, int place)
{
    void *to[2] = { source_at(shape, place), destination_at(shape, 0) };
    const void *from[FROM_MAX];
    char kept[ARRAY_BYTES];
    memcpy(kept, sources[place], ARRAY_BYTES);
    for (int k = 0; k < shape->from_count; k++) from[k] = source_at(shape, k);
    for (int i = 0; kernels_isa_name(i); i++) {
        assert_true(kernels_select_isa(kernels_isa_name(i)));
        for (shape->to_count = 1; shape->to_count <= 2; shape->to_count++) {
            reduce_find(shape->dtype, shape->op)(to, shape->to_count, from, shape->from_count, shape->count,
                shape->divisor);
            check_result(shape, to[0], "in place");
            if (shape->to_count == 2) check_result(shape, to[1], "beside in place");
            memcpy(sources[place], kept, ARRAY_BYTES);
        }
    }
}

static void test_reduce_works_in_place(void **state)
{
    (void)state;
    static const size_t some[] = { 1, 2, 17, 65, 1027 };
    for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
        for (tutti_op op = 0; op < TUTTI_OP_COUNT; op++) {
            for (int round = 0; reduce_find(dtype, op) && round < 20; round++) {
                struct shape shape = { dtype, op, round % 4 + 1, 1, op == TUTTI_AVG ? 3 : 1, some[round / 4], 1, 0, 0 };
                for (int k = 0; k < shape.from_count; k++) fill(source_at(&shape, k), shape.count, dtype);
                expect(&shape);
                check_in_place(&shape, 0);
                check_in_place(&shape, shape.from_count / 2);
                check_in_place(&shape, shape.from_count - 1);
            }
        }
    }
}

unit_function test_reduce;
int test_reduce(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_reduce_matches_the_reference),
        cmocka_unit_test(test_reduce_works_in_place) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
