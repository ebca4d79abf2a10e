/* Averages of compressed gradients. All ranks get the same bits. Over many calls, the averages and the residual
   together are the sum of what the ranks gave, except for rounding. If no number is left out, the averages are exact.
   Different configurations are errors. */
#include "include/tutti_zero.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <math.h>
#include <signal.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
#ifdef FEW
enum { MOST = 5000, TURNS = 2 };
#else
enum { MOST = 5000, TURNS = 6 };
#endif
static const tutti_compression forms[] = {
    { .form = TUTTI_COMPRESS_FLOAT16 },
    { .form = TUTTI_COMPRESS_BFLOAT16 },
    { .form = TUTTI_COMPRESS_INT8 },
    { .form = TUTTI_COMPRESS_INT8, .stochastic = true, .seed = 3 },
    { .form = TUTTI_COMPRESS_INT4 },
    { .form = TUTTI_COMPRESS_TOPK, .kept = 20 },
    { .form = TUTTI_COMPRESS_RANDOMK, .kept = 50, .seed = 4 },
    { .form = TUTTI_COMPRESS_THRESHOLD, .kept = 200, .threshold = 14 },
    { .form = TUTTI_COMPRESS_THRESHOLD, .kept = 20, .threshold = 1e-3 },
};
enum { FORMS = sizeof forms / sizeof forms[0] };
static const size_t counts[] = { 1, 3, 17, 1000, MOST };
enum { COUNTS = sizeof counts / sizeof counts[0] };

/* The arrays of each rank. */
static struct arrays {
    float data[2][MOST], lost[MOST], left[MOST];
    double given[MOST], received[MOST];
    uint8_t least[MOST * sizeof(float)], most[MOST * sizeof(float)];
} all[4];

static float gradient_of(int rank, int turn, size_t i)
{
    uint64_t mixed = (uint64_t)rank * 7001 + (uint64_t)turn * 601 + i;
    return (float)((int)(random_next(&mixed) % 2001) - 1000) / 64;
}
static void fill_gradient(float *data, size_t count, int rank, int turn)
{
    for (size_t i = 0; i < count; i++) data[i] = gradient_of(rank, turn, i);
}
static void require_equal_on_all(struct rank *me, const void *data, size_t bytes)
{
    uint8_t *least = all[me->rank].least, *most = all[me->rank].most;
    REQUIRE(tutti_all_reduce(data, least, bytes, TUTTI_UINT8, TUTTI_MIN, me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(data, most, bytes, TUTTI_UINT8, TUTTI_MAX, me->comm, NULL) == TUTTI_OK);
    REQUIRE(memcmp(least, most, bytes) == 0);
}
/* Sums the residuals of all ranks, in the scale of an average. */
static void sum_residuals(struct rank *me, tutti_compressor *c, const float *lost, size_t count, float *out)
{
    size_t at, kept;
    int keepers;
    REQUIRE(tutti_compressor_span(c, count, &at, &kept, &keepers) == TUTTI_OK && at + kept <= count);
    REQUIRE(keepers >= 1 && me->size % keepers == 0);
    memset(out, 0, count * sizeof *out);
    for (size_t i = 0; i < kept; i++) out[at + i] = lost[i] / (float)me->size;
    REQUIRE(tutti_all_reduce(out, out, count, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
}
static void check_sum(struct rank *me, const tutti_compression *how, size_t count)
{
    struct arrays *k = &all[me->rank];
    float *data = k->data[0], *lost = k->lost, *left = k->left;
    double *given = k->given, *received = k->received;
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, how) == TUTTI_OK);
    memset(k, 0, sizeof *k);
    for (int turn = 0; turn < TURNS; turn++) {
        fill_gradient(data, count, me->rank, turn);
        for (int r = 0; r < me->size; r++)
            for (size_t i = 0; i < count; i++) given[i] += (double)gradient_of(r, turn, i) / me->size;
        REQUIRE(tutti_compressor_average(c, data, count, TUTTI_FLOAT32, lost, (uint64_t)turn, &sent) == TUTTI_OK);
        require_equal_on_all(me, data, count * sizeof *data);
        for (size_t i = 0; i < count; i++) received[i] += (double)data[i];
    }
    sum_residuals(me, c, lost, count, left);
    for (size_t i = 0; i < count; i++) REQUIRE(fabs(received[i] + (double)left[i] - given[i]) < 1e-3);
    /* A threshold may leave out all numbers. */
    REQUIRE((sent > 0) == (me->size > 1) || how->form == TUTTI_COMPRESS_THRESHOLD);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
/* Without feedback, two runs give the same bits, which are close to the average. */
static void check_runs_are_equal(struct rank *me, const tutti_compression *how, size_t count)
{
    float (*data)[MOST] = all[me->rank].data;
    uint64_t sent = 0;
    for (int run = 0; run < 2; run++) {
        tutti_compressor *c;
        REQUIRE(tutti_compressor_create(&c, me->comm, how) == TUTTI_OK);
        fill_gradient(data[run], count, me->rank, 0);
        REQUIRE(tutti_compressor_average(c, data[run], count, TUTTI_FLOAT32, NULL, 9, &sent) == TUTTI_OK);
        REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
    }
    REQUIRE(memcmp(data[0], data[1], count * sizeof(float)) == 0);
    double bound = how->form <= TUTTI_COMPRESS_BFLOAT16 ? 0.15 : how->form == TUTTI_COMPRESS_INT8 ? 0.3 : 5;
    for (size_t i = 0; how->form < TUTTI_COMPRESS_TOPK && i < count; i++) {
        double mean = 0;
        for (int r = 0; r < me->size; r++) mean += (double)gradient_of(r, 0, i) / me->size;
        REQUIRE(fabs((double)data[0][i] - mean) < bound);
    }
}
static void check_exact(struct rank *me, tutti_compression_form form)
{
    float *data = all[me->rank].data[0];
    tutti_compression how = { .form = form, .kept = 1024 };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    for (int n = COUNTS - 1; n >= 0; n--) {
        fill_gradient(data, counts[n], me->rank, n);
        REQUIRE(tutti_compressor_average(c, data, counts[n], TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_OK);
        for (size_t i = 0; i < counts[n]; i++) {
            float sum = 0;
            for (int r = 0; r < me->size; r++) sum += gradient_of(r, n, i);
            REQUIRE(data[i] == sum * (1.0f / (float)me->size));
        }
    }
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void check_averages(struct rank *me)
{
    for (int f = 0; f < FORMS; f++)
        for (int n = 0; n < COUNTS; n++) {
            check_sum(me, &forms[f], counts[n]);
            check_runs_are_equal(me, &forms[f], counts[n]);
        }
    check_exact(me, TUTTI_COMPRESS_TOPK);
    check_exact(me, TUTTI_COMPRESS_RANDOMK);
}
static void test_averages_on_one_host(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, check_averages, NULL);
}
static void test_averages_over_hosts(void **state)
{
    (void)state;
    world_threads_on("2", 4, NULL, check_averages, NULL);
    world_threads_on("0,1,0,1", 4, NULL, check_averages, NULL);
    world_threads_on("0,0,0,1", 4, NULL, check_averages, NULL);
    world_threads_on("3", 3, NULL, check_averages, NULL);
}

/* Between two hosts of two ranks, a rank sends only its part of the sums of its host: a third of the bytes that it
   sends as one of four ranks on one host. */
static void check_sent_bytes(struct rank *me)
{
    float *data = all[me->rank].data[0];
    int host;
    tutti_compression how = { .form = TUTTI_COMPRESS_INT8 };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    fill_gradient(data, MOST, me->rank, 0);
    REQUIRE(tutti_compressor_average(c, data, MOST, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_OK);
    REQUIRE(tutti_comm_place(me->comm, me->size - 1, &host, NULL) == TUTTI_OK);
    double ideal = 2.0 * MOST / 4 * (host ? 1 : 3) * (1 + 4.0 / 128);
    REQUIRE((double)sent >= ideal && (double)sent < ideal * 1.1);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void test_number_of_sent_bytes(void **state)
{
    (void)state;
    world_threads(4, NULL, check_sent_bytes, NULL);
    world_threads_on("2", 4, NULL, check_sent_bytes, NULL);
}
static void average_bfloat16(struct rank *me)
{
    uint16_t data[300];
    tutti_compression how = { .form = TUTTI_COMPRESS_TOPK, .kept = 1024 };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    /* 3 and 1, whose mean is 2. */
    for (int i = 0; i < 300; i++) data[i] = (uint16_t)(me->rank ? 0x4040 : 0x3f80);
    REQUIRE(tutti_compressor_average(c, data, 300, TUTTI_BFLOAT16, NULL, 0, &sent) == TUTTI_OK);
    for (int i = 0; i < 300; i++) REQUIRE(data[i] == 0x4000);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void test_average_of_bfloat16(void **state)
{
    (void)state;
    world_threads(2, NULL, average_bfloat16, NULL);
}

/* ---- in training ---- */
enum { PARAMETERS = 3, STEPS = 5 };
static const tutti_zero_parameter parameters[PARAMETERS] = { { 3000, 0, 0 }, { 7, 1, 0 }, { 2000, 1, 0 } };
static tutti_zero *trainer(struct rank *me, tutti_zero_placement placement, const tutti_compression *how)
{
    static const tutti_dtype dtypes[2] = { TUTTI_FLOAT32, TUTTI_FLOAT32 };
    tutti_zero *zero;
    tutti_zero_config c = TUTTI_ZERO_CONFIG_INIT;
    c.comm = me->comm;
    c.parameters = PARAMETERS;
    c.units = 2;
    c.groups = 1;
    c.parameter = parameters;
    c.dtype = dtypes;
    c.placement = placement;
    c.rule = TUTTI_ZERO_SGD;
    c.compression = *how;
    c.compression.feedback = true;
    REQUIRE(tutti_zero_create(&zero, &c) == TUTTI_OK);
    for (int p = 0; p < PARAMETERS && me->rank == 0; p++)
        memset(tutti_zero_parameter_at(zero, p), 0, parameters[p].count * sizeof(float));
    REQUIRE(tutti_zero_begin(zero) == TUTTI_OK);
    return zero;
}
static void take_step(struct rank *me, tutti_zero *zero, int turn)
{
    const tutti_zero_rates rates = { .rate = 1 };
    bool adds;
    for (int u = 0; u < 2; u++) REQUIRE(tutti_zero_use_backward(zero, u) == TUTTI_OK);
    for (int i = 0; i < PARAMETERS; i++) {
        /* Each rank has its own order. */
        int p = (i + me->rank) % PARAMETERS;
        float *at;
        REQUIRE(tutti_zero_gradient(zero, p, (void **)&at, &adds) == TUTTI_OK && !adds);
        fill_gradient(at, parameters[p].count, me->rank, turn * PARAMETERS + p);
        REQUIRE(tutti_zero_ready(zero, p) == TUTTI_OK);
    }
    REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK);
}
/* The values began as zeros, and each step subtracted the average. So the residual minus the value is the sum of the
   gradients. The residual can be read and written again. */
static void check_trained_sum(struct rank *me, tutti_zero *zero, int p)
{
    float *lost = all[me->rank].lost, *again = all[me->rank].left;
    const float *value = tutti_zero_parameter_at(zero, p);
    REQUIRE(tutti_zero_get_lost(zero, p, lost) == TUTTI_OK);
    for (size_t i = 0; i < parameters[p].count; i++) {
        double given = 0;
        for (int turn = 0; turn < STEPS; turn++)
            for (int r = 0; r < me->size; r++) given += (double)gradient_of(r, turn * PARAMETERS + p, i) / me->size;
        REQUIRE(fabs((double)lost[i] - (double)value[i] - given) < 1e-3);
    }
    REQUIRE(tutti_zero_set_lost(zero, p, lost) == TUTTI_OK && tutti_zero_get_lost(zero, p, again) == TUTTI_OK);
    for (size_t i = 0; i < parameters[p].count; i++) REQUIRE(fabsf(again[i] - lost[i]) <= 1e-5f * fabsf(lost[i]));
}
static void train_compressed(struct rank *me)
{
    for (tutti_zero_placement placement = TUTTI_ZERO_REPLICATED; placement < TUTTI_ZERO_WHOLE; placement++)
        for (int f = 0; f < FORMS; f++) {
            tutti_zero_report report = { .struct_size = sizeof report };
            tutti_zero *zero = trainer(me, placement, &forms[f]);
            for (int turn = 0; turn < STEPS; turn++) take_step(me, zero, turn);
            REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
            for (int p = 0; p < PARAMETERS; p++) check_trained_sum(me, zero, p);
            REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK);
            REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK && (report.packed_bytes > 0) == (me->size > 1));
            REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
        }
}
static void test_training_loses_no_gradient(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, train_compressed, NULL);
    world_threads_on("2", 4, NULL, train_compressed, NULL);
    world_threads_on("0,1,0,1", 4, NULL, train_compressed, NULL);
    world_threads_on("0,0,0,1", 4, NULL, train_compressed, NULL);
}

/* ---- errors ---- */
static void make_wrong_calls(struct rank *me)
{
    float *data = all[me->rank].data[0];
    tutti_compressor *c = NULL;
    uint64_t sent = 0;
    tutti_compression how = { .form = TUTTI_COMPRESS_FORMS };
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    REQUIRE_ERROR("unknown compression 8");
    how.form = TUTTI_COMPRESS_NONE;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    how = (tutti_compression){ .form = TUTTI_COMPRESS_THRESHOLD, .kept = 5 };
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    REQUIRE_ERROR("a threshold of 0: it must be above 0");
    how.threshold = 1 + me->rank;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_MISMATCH && !c);
    how = (tutti_compression){ .form = TUTTI_COMPRESS_TOPK };
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    REQUIRE_ERROR("keeps 1 to 1024 of 1024 numbers, not 0");
    how.kept = 5;
    how.momentum = 0.9;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    REQUIRE_ERROR("momentum 0.9: it must be below 1, and needs feedback and a form that leaves numbers out");
    how.momentum = 0;
    how.kept = 5 + me->rank;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_MISMATCH && !c);
    REQUIRE_ERROR("uses another compression");
    how.kept = 5;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    REQUIRE(tutti_compressor_average(c, data, 4, TUTTI_FLOAT64, NULL, 0, &sent) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("gradients of type float64 cannot be compressed; use float32 or bfloat16");
    REQUIRE(tutti_compressor_average(c, NULL, 4, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_INVALID_ARGUMENT);
    /* Both have one length when they are packed. */
    size_t count = me->rank ? 8 : 9;
    REQUIRE(tutti_compressor_average(c, data, count, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_MISMATCH);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK && tutti_compressor_destroy(NULL) == TUTTI_OK);
}
static void test_wrong_calls_are_errors(void **state)
{
    (void)state;
    world_threads(2, NULL, make_wrong_calls, NULL);
}
/* After a failed collective of a tutti_zero, even one that only reads, later calls return its error. */
static void read_residual_on_one_rank(struct rank *me)
{
    const tutti_compression how = { .form = TUTTI_COMPRESS_INT8 };
    tutti_zero *zero = trainer(me, TUTTI_ZERO_REPLICATED, &how);
    tutti_zero_report report = { .struct_size = sizeof report };
    take_step(me, zero, 0);
    if (me->rank == 0) {
        REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK);
        tutti_status status = tutti_zero_get_lost(zero, 0, all[0].lost);
        REQUIRE(status != TUTTI_OK && status != TUTTI_INVALID_ARGUMENT);
        REQUIRE_ERROR("rank 1");
        REQUIRE(tutti_zero_get_report(zero, &report) == status);
        REQUIRE_ERROR("rank 1");
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_residual_read_by_one_rank_is_an_error(void **state)
{
    (void)state;
    world_threads(2, NULL, read_residual_on_one_rank, NULL);
}
#ifndef NO_PROCESSES
static void die_between_averages(struct rank *me)
{
    float *data = all[me->rank].data[0];
    tutti_compression how = { .form = TUTTI_COMPRESS_INT4, .feedback = true };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    REQUIRE(tutti_compressor_average(c, data, MOST, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_OK);
    if (me->rank == 1) raise(SIGKILL);
    REQUIRE(tutti_compressor_average(c, data, MOST, TUTTI_FLOAT32, NULL, 1, &sent) != TUTTI_OK);
    REQUIRE_ERROR("rank 1");
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void test_rank_that_dies_is_named(void **state)
{
    (void)state;
    /* That network connects only threads. */
    if (getenv("WORLD_NETWORK")) skip();
    assert_int_equal(world_processes(3, 20, die_between_averages, NULL), 1);
}
#endif
unit_function test_compress;
int test_compress(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_averages_on_one_host),
        cmocka_unit_test(test_averages_over_hosts),
        cmocka_unit_test(test_number_of_sent_bytes),
        cmocka_unit_test(test_average_of_bfloat16),
        cmocka_unit_test(test_training_loses_no_gradient),
        cmocka_unit_test(test_wrong_calls_are_errors),
        cmocka_unit_test(test_residual_read_by_one_rank_is_an_error),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_rank_that_dies_is_named),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
