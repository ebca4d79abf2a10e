/* Small calls that equal the one before, or nearly. Data that a communicator keeps from call to call (addresses,
   counts, declarations) must never be used for other tensors, another type, another operation or another collective. */
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { KINDS = 400, MOST_BYTES = 4096, TENSORS = 3 };
static const struct kind {
    size_t bytes;
    tutti_dtype dtype;
    tutti_op op;
    bool gathers;
} kinds[] = {
    { 8, TUTTI_FLOAT32, TUTTI_SUM, false },
    { 8, TUTTI_FLOAT64, TUTTI_SUM, false },
    { 8, TUTTI_INT32, TUTTI_SUM, false },
    { 8, TUTTI_FLOAT32, TUTTI_MAX, false },
    { 4, TUTTI_FLOAT32, TUTTI_SUM, false },
    { 48, TUTTI_FLOAT64, TUTTI_SUM, false },
    { 48, TUTTI_INT32, TUTTI_MAX, false },
    { MOST_BYTES, TUTTI_FLOAT64, TUTTI_SUM, false },
    { MOST_BYTES, TUTTI_FLOAT32, TUTTI_SUM, false },
    { 8, TUTTI_FLOAT32, TUTTI_SUM, true },
    { 8, TUTTI_INT32, TUTTI_SUM, true },
};
struct tensor { _Alignas(8) unsigned char at[4 * MOST_BYTES]; };

static uint32_t next(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 16; }
static void put(struct tensor *t, tutti_dtype dtype, size_t i, int value)
{
    if (dtype == TUTTI_FLOAT32) ((float *)(void *)t->at)[i] = (float)value;
    else if (dtype == TUTTI_FLOAT64) ((double *)(void *)t->at)[i] = value;
    else ((int32_t *)(void *)t->at)[i] = value;
}
static int get(const struct tensor *t, tutti_dtype dtype, size_t i)
{
    if (dtype == TUTTI_FLOAT32) return (int)((const float *)(const void *)t->at)[i];
    if (dtype == TUTTI_FLOAT64) return (int)((const double *)(const void *)t->at)[i];
    return ((const int32_t *)(const void *)t->at)[i];
}
static int value(int call, int rank, size_t i) { return 1 + (int)(((size_t)call + i) % 50) * (rank + 1); }
static int expected(const struct kind *k, int size, int call, size_t i)
{
    size_t count = k->bytes / tutti_dtype_bytes(k->dtype);
    int all = 0;
    if (k->gathers) return value(call, (int)(i / count), i % count);
    for (int r = 0; r < size; r++) {
        int one = value(call, r, i);
        all = k->op == TUTTI_SUM ? all + one : one > all ? one : all;
    }
    return all;
}
static void run(const struct kind *k, struct rank *me, int call, const struct tensor *in, struct tensor *out)
{
    size_t count = k->bytes / tutti_dtype_bytes(k->dtype), results = k->gathers ? count * (size_t)me->size : count;
    tutti_status status = k->gathers ? tutti_all_gather(in->at, out->at, count, k->dtype, me->comm, NULL)
                                     : tutti_all_reduce(in->at, out->at, count, k->dtype, k->op, me->comm, NULL);
    REQUIRE(status == TUTTI_OK);
    for (size_t i = 0; i < results; i++) {
        int got = get(out, k->dtype, i), want = expected(k, me->size, call, i);
        if (got != want)
            fprintf(stderr, "call %d of %d ranks, rank %d, %zu bytes of %s: element %zu is %d, should be %d\n", call,
                me->size, me->rank, k->bytes, tutti_dtype_name(k->dtype), i, got, want);
        REQUIRE(got == want);
    }
}
/* All ranks draw the same kinds of calls, and each its own tensors. */
static void body(struct rank *me)
{
    static _Thread_local struct tensor tensors[TENSORS];
    uint32_t together = 1, alone = 100 + (uint32_t)me->rank;
    for (int n = 0, call = 0; n < KINDS; n++) {
        const struct kind *k = &kinds[next(&together) % (sizeof kinds / sizeof *kinds)];
        for (int times = 1 + (int)(next(&together) % 4); times > 0; times--, call++) {
            struct tensor *in = &tensors[next(&alone) % TENSORS], *out = &tensors[next(&alone) % TENSORS];
            if (k->gathers && in == out) out = &tensors[(in - tensors + 1) % TENSORS];
            for (size_t i = 0; i < k->bytes / tutti_dtype_bytes(k->dtype); i++)
                put(in, k->dtype, i, value(call, me->rank, i));
            run(k, me, call, in, out);
        }
    }
}
static void test_data_of_another_call_is_not_used(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, body, NULL);
}

unit_function test_repeats;
int test_repeats(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_data_of_another_call_is_not_used) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
