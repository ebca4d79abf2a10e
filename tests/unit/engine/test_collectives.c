/* Results of every collective by every algorithm and with many sizes, compared with its definition. The values are
   exact in every type. */
#include "backend/base/settings.h"
#include "backend/collectives/collectives.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <math.h>

/* Returns element i of a rank's input: a small whole number, so that sums of five ranks are exact even in float8. */
static int value(int rank, size_t i) { return (int)((i + (size_t)rank * 3) % 4); }
/* Converts normal numbers and zero. */
static float half_to_float(uint16_t h)
{
    int exponent = (h >> 10 & 31) - 15;
    if (!(h & 0x7fff)) return 0;
    float mantissa = 1 + (float)(h & 1023) / 1024;
    for (; exponent > 0; exponent--) mantissa *= 2;
    for (; exponent < 0; exponent++) mantissa /= 2;
    return h & 0x8000 ? -mantissa : mantissa;
}
static uint16_t float_to_half(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return f == 0 ? 0 : (uint16_t)((bits >> 16 & 0x8000) | (((bits >> 23 & 255) - 112) << 10) | (bits >> 13 & 1023));
}
static void put(void *at, tutti_dtype dtype, size_t i, double v)
{
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    switch (dtype) {
    case TUTTI_INT32: ((int32_t *)at)[i] = (int32_t)v; break;
    case TUTTI_INT64: ((int64_t *)at)[i] = (int64_t)v; break;
    case TUTTI_UINT8: ((uint8_t *)at)[i] = (uint8_t)v; break;
    case TUTTI_FLOAT16: ((uint16_t *)at)[i] = float_to_half(f); break;
    case TUTTI_BFLOAT16: ((uint16_t *)at)[i] = (uint16_t)(bits >> 16); break;
    case TUTTI_FLOAT64: ((double *)at)[i] = v; break;
    default: ((float *)at)[i] = f; break;
    }
}
static double get(const void *at, tutti_dtype dtype, size_t i)
{
    uint32_t bits;
    float f;
    switch (dtype) {
    case TUTTI_INT32: return ((const int32_t *)at)[i];
    case TUTTI_INT64: return (double)((const int64_t *)at)[i];
    case TUTTI_UINT8: return ((const uint8_t *)at)[i];
    case TUTTI_FLOAT16: return half_to_float(((const uint16_t *)at)[i]);
    case TUTTI_BFLOAT16:
        bits = (uint32_t)((const uint16_t *)at)[i] << 16;
        memcpy(&f, &bits, sizeof f);
        return f;
    case TUTTI_FLOAT64: return ((const double *)at)[i];
    default: return ((const float *)at)[i];
    }
}
static double combined(int size, size_t i, tutti_op op)
{
    double sum = value(0, i);
    for (int q = 1; q < size; q++) {
        double v = value(q, i);
        if (op == TUTTI_MAX) sum = v > sum ? v : sum;
        else if (op == TUTTI_MIN) sum = v < sum ? v : sum;
        else if (op == TUTTI_PROD) sum *= v;
        else sum += v;
    }
    return op == TUTTI_PREMUL_SUM ? sum * 0.5 : op == TUTTI_AVG ? sum / size : sum;
}

struct test {
    const char *collective, *algorithm;
    size_t count;
    tutti_dtype dtype;
    tutti_op op;
    int root;
    bool in_place;
};
/* The input has `in` elements, the output `out`. */
struct buffers { unsigned char *all, *input, *output; size_t in, out; };
enum { GUARD = 64 };

static struct buffers make(const struct test *t, const struct rank *me)
{
    size_t p = (size_t)me->size, bytes = tutti_dtype_bytes(t->dtype);
    bool many_in = !strcmp(t->collective, "reduce_scatter") || !strcmp(t->collective, "scatter")
        || !strcmp(t->collective, "all_to_all");
    bool many_out =
        !strcmp(t->collective, "allgather") || !strcmp(t->collective, "gather") || !strcmp(t->collective, "all_to_all");
    struct buffers b = { .in = t->count * (many_in ? p : 1), .out = t->count * (many_out ? p : 1) };
    b.all = malloc((b.in + b.out) * bytes + 2 * GUARD);
    memset(b.all, 0xa5, (b.in + b.out) * bytes + 2 * GUARD);
    b.input = b.all + GUARD;
    b.output = b.input + b.in * bytes;
    if (t->in_place && b.in >= b.out) b.output = b.input + (b.in > b.out ? (size_t)me->rank * t->count * bytes : 0);
    else if (t->in_place) { b.output = b.all + GUARD; b.input = b.output + (size_t)me->rank * t->count * bytes; }
    for (size_t i = 0; i < b.in; i++) put(b.input, t->dtype, i, value(me->rank, i));
    return b;
}
static void call(const struct test *t, struct rank *me, struct buffers *b)
{
    tutti_request r = { .struct_size = sizeof r, .algorithm = t->algorithm, .factor = 0.5, .blocking = true };
    tutti_status status = TUTTI_INTERNAL;
    if (!strcmp(t->collective, "allreduce"))
        status = tutti_all_reduce(b->input, b->output, t->count, t->dtype, t->op, me->comm, &r);
    if (!strcmp(t->collective, "reduce"))
        status = tutti_reduce(b->input, me->rank == t->root ? b->output : NULL, t->count, t->dtype, t->op, t->root,
            me->comm, &r);
    if (!strcmp(t->collective, "broadcast"))
        status = tutti_broadcast(me->rank == t->root ? b->input : NULL, b->output, t->count, t->dtype, t->root,
            me->comm, &r);
    if (!strcmp(t->collective, "reduce_scatter"))
        status = tutti_reduce_scatter(b->input, b->output, t->count, t->dtype, t->op, me->comm, &r);
    if (!strcmp(t->collective, "allgather"))
        status = tutti_all_gather(b->input, b->output, t->count, t->dtype, me->comm, &r);
    if (!strcmp(t->collective, "all_to_all"))
        status = tutti_all_to_all(b->input, b->output, t->count, t->dtype, me->comm, &r);
    if (!strcmp(t->collective, "gather"))
        status =
            tutti_gather(b->input, me->rank == t->root ? b->output : NULL, t->count, t->dtype, t->root, me->comm, &r);
    if (!strcmp(t->collective, "scatter"))
        status =
            tutti_scatter(me->rank == t->root ? b->input : NULL, b->output, t->count, t->dtype, t->root, me->comm, &r);
    if (!strcmp(t->collective, "barrier")) status = tutti_barrier(me->comm, &r);
    REQUIRE(status == TUTTI_OK);
}
static enum collective collective_of(const struct test *t)
{
    enum collective f = ALLREDUCE;
    while (strcmp(collective_name(f), t->collective) != 0) f++;
    return f;
}
static double expected(const struct test *t, enum collective collective, const struct rank *me, size_t i)
{
    size_t part = t->count ? i / t->count : 0, within = t->count ? i % t->count : 0, mine = (size_t)me->rank * t->count;
    switch (collective) {
    case BROADCAST: return value(t->root, i);
    case ALLGATHER:
    case GATHER: return value((int)part, within);
    case ALL_TO_ALL: return value((int)part, mine + within);
    case SCATTER: return value(t->root, mine + i);
    case REDUCE_SCATTER: return combined(me->size, mine + i, t->op);
    default: return combined(me->size, i, t->op);
    }
}
/* Returns whether hosts are simulated and the algorithm needs all ranks on one host. */
static bool is_of_one_host(const struct test *t)
{
    return *settings_get()->hosts && collectives_find_algorithm(collective_of(t), t->algorithm)->host_memory;
}
static void run(const struct test *t, struct rank *me)
{
    if (is_of_one_host(t)) return;
    struct buffers b = make(t, me);
    call(t, me, &b);
    enum collective collective = collective_of(t);
    bool has_result = collective != BARRIER && ((collective != REDUCE && collective != GATHER) || me->rank == t->root);
    for (size_t i = 0; i < b.out && has_result; i++) {
        double got = get(b.output, t->dtype, i), want = expected(t, collective, me, i);
        if (got == want) continue;
        fprintf(stderr, "%s %s: %d ranks, rank %d, count %zu, %s, %s, root %d%s: element %zu is %g, should be %g\n",
            t->collective, t->algorithm, me->size, me->rank, t->count, tutti_dtype_name(t->dtype), tutti_op_name(t->op),
            t->root, t->in_place ? ", in place" : "", i, got, want);
        REQUIRE(got == want);
    }
    for (int i = 0; i < GUARD; i++) REQUIRE(b.all[i] == 0xa5);
    free(b.all);
}
#ifdef FEW
enum { MOST = 4, MOST_OF_TYPES = 2, STEP = 3 };
static const size_t counts[] = { 0, 1, 6, 257, 40009 };
#else
enum { MOST = 5, MOST_OF_TYPES = 4, STEP = 1 };
static const size_t counts[] = { 0, 1, 2, 3, 5, 6, 17, 257, 4099, 40009 };
#endif
static void every_algorithm(struct rank *me)
{
    const char *collective, *algorithm;
    int n = 0;
    for (int c = 0; (collective = tutti_collective_name(c)) != NULL; c++)
        for (int a = 0; (algorithm = tutti_algorithm_name(collective, a)) != NULL; a++)
            for (size_t k = 0; k < sizeof counts / sizeof *counts; k++)
                for (int in_place = 0; in_place < 2; in_place++, n++) {
                    if (in_place && !strcmp(collective, "all_to_all")) continue;
                    struct test t = { collective, algorithm, counts[k], TUTTI_FLOAT32, TUTTI_SUM, n % me->size,
                        in_place };
                    run(&t, me);
                }
}
static void types_and_operations(struct rank *me)
{
    static const tutti_dtype dtypes[] = { TUTTI_INT32, TUTTI_INT64, TUTTI_UINT8, TUTTI_FLOAT16, TUTTI_BFLOAT16,
        TUTTI_FLOAT32, TUTTI_FLOAT64 };
    static const tutti_op ops[] = { TUTTI_SUM, TUTTI_PROD, TUTTI_MIN, TUTTI_MAX, TUTTI_AVG, TUTTI_PREMUL_SUM };
    static const char *const collectives[] = { "allreduce", "reduce", "reduce_scatter" };
    const char *algorithm;
    for (int c = 0; c < 3; c++)
        for (int a = 0; (algorithm = tutti_algorithm_name(collectives[c], a)) != NULL; a++)
            for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++)
                for (size_t o = 0; o < sizeof ops / sizeof *ops; o++) {
                    bool whole = dtypes[d] == TUTTI_INT32 || dtypes[d] == TUTTI_INT64 || dtypes[d] == TUTTI_UINT8;
                    if (ops[o] == TUTTI_PREMUL_SUM && whole) continue;
                    /* Only averages whose quotient is exact. */
                    if (ops[o] == TUTTI_AVG && (whole || (me->size & (me->size - 1)))) continue;
                    struct test t = { collectives[c], algorithm, o % 2 ? 33 : 5, dtypes[d], ops[o], (int)o % me->size,
                        o % 3 == 0 };
                    run(&t, me);
                }
}
/* On one host every algorithm divides an average before it rounds it. The sum is too large for a float16: 0x7b00 is
   57344, and the largest float16 is 65504. */
static void averages_of_large_values(struct rank *me)
{
    enum { COUNT = 300 };
    static const char *const algorithms[][2] = { { "allreduce", "one_shot" }, { "allreduce", "two_shot" },
        { "allreduce", "two_shot_read" }, { "reduce", "read" }, { "reduce", "two_shot_read" } };
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
        uint16_t in[COUNT], out[COUNT];
        for (int i = 0; i < COUNT; i++) in[i] = 0x7b00;
        tutti_request r = { .struct_size = sizeof r, .blocking = true, .algorithm = algorithms[a][1] };
        if (!strcmp(algorithms[a][0], "reduce"))
            REQUIRE(tutti_reduce(in, out, COUNT, TUTTI_FLOAT16, TUTTI_AVG, 0, me->comm, &r) == TUTTI_OK);
        else REQUIRE(tutti_all_reduce(in, out, COUNT, TUTTI_FLOAT16, TUTTI_AVG, me->comm, &r) == TUTTI_OK);
        for (int i = 0; i < COUNT && (*algorithms[a][0] == 'a' || me->rank == 0); i++) REQUIRE(out[i] == 0x7b00);
    }
}
/* Calls that differ in the sign of zero only are not the same call. */
static void factors_of_both_zeros(struct rank *me)
{
    for (int call = 0; call < 6; call++) {
        float in[3] = { 1, 2, 3 }, out[3];
        tutti_request r = { .struct_size = sizeof r, .blocking = true, .factor = call < 3 ? 0.0 : -0.0 };
        REQUIRE(tutti_all_reduce(in, out, 3, TUTTI_FLOAT32, TUTTI_PREMUL_SUM, me->comm, &r) == TUTTI_OK);
        for (int i = 0; i < 3; i++) REQUIRE(out[i] == 0 && !signbit(out[i]) == (call < 3));
    }
}
static void on_threads(rank_function *function, int from, int to)
{
    for (int size = from; size <= to; size++) world_threads(size, NULL, function, NULL);
}
static void test_every_algorithm_on_threads(void **state) { (void)state; on_threads(every_algorithm, 1, MOST); }
static void test_types_and_operations_on_threads(void **state)
{
    (void)state;
    on_threads(types_and_operations, 1, MOST_OF_TYPES);
}
static void test_averages_are_divided_before_they_are_rounded(void **state)
{
    (void)state;
    on_threads(averages_of_large_values, 2, 4);
}
static void test_factors_of_both_zeros_are_different_calls(void **state)
{
    (void)state;
    on_threads(factors_of_both_zeros, 1, 3);
}
/* ---- over hosts ---- */
static const struct {
    const char *hosts;
    int size;
} placements[] = { { "2", 2 }, { "1", 3 }, { "2", 3 }, { "0,1,0", 3 }, { "2", 4 }, { "0,1,0,1", 4 }, { "4", 4 },
    { "0,1,1,1", 4 }, { "2,0,2,1,0", 5 }, { "3", 5 } };
enum { PLACEMENTS = sizeof placements / sizeof *placements };
static void test_every_algorithm_over_hosts(void **state)
{
    (void)state;
    for (int i = 0; i < PLACEMENTS; i += STEP)
        world_threads_on(placements[i].hosts, placements[i].size, NULL, every_algorithm, NULL);
}
static void test_types_and_operations_over_hosts(void **state)
{
    (void)state;
    for (int i = 2; i < PLACEMENTS; i += 2 * STEP)
        world_threads_on(placements[i].hosts, placements[i].size, NULL, types_and_operations, NULL);
}
#ifndef NO_PROCESSES
static void test_every_algorithm_on_processes_over_hosts(void **state)
{
    (void)state;
    world_pretend("0,1,0");
    assert_int_equal(world_processes(3, 100, every_algorithm, NULL), 0);
    world_pretend("");
}
static void test_every_algorithm_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) assert_int_equal(world_processes(size, 100, every_algorithm, NULL), 0);
}
#endif

unit_function test_collectives;
int test_collectives(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_every_algorithm_on_processes),
        cmocka_unit_test(test_every_algorithm_on_processes_over_hosts),
#endif
        cmocka_unit_test(test_every_algorithm_on_threads),
        cmocka_unit_test(test_types_and_operations_on_threads),
        cmocka_unit_test(test_every_algorithm_over_hosts),
        cmocka_unit_test(test_types_and_operations_over_hosts),
        cmocka_unit_test(test_averages_are_divided_before_they_are_rounded),
        cmocka_unit_test(test_factors_of_both_zeros_are_different_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
