/* Averages that travel packed: all ranks get the same bits; over many calls what has come and what is still kept are
   what was given, to rounding; with nothing left out they are the averages; and what ranks ask for is compared. */
#include "include/tutti_zero.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <math.h>
#include <signal.h>

#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
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

static struct arrays {
    float data[2][MOST], lost[MOST], left[MOST];
    double given[MOST], came[MOST];
    uint8_t least[MOST * sizeof(float)], most[MOST * sizeof(float)];
} all[4];                                               /* of each rank */

static float gradient_of(int rank, int turn, size_t i)
{
    uint64_t mixed = (uint64_t)rank * 7001 + (uint64_t)turn * 601 + i;
    return (float)((int)(random_next(&mixed) % 2001) - 1000) / 64;
}
static void fills(float *data, size_t count, int rank, int turn)
{
    for (size_t i = 0; i < count; i++) data[i] = gradient_of(rank, turn, i);
}
static void is_the_same_on_all(struct rank *me, const void *data, size_t bytes)
{
    uint8_t *least = all[me->rank].least, *most = all[me->rank].most;
    REQUIRE(tutti_all_reduce(data, least, bytes, TUTTI_UINT8, TUTTI_MIN, me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(data, most, bytes, TUTTI_UINT8, TUTTI_MAX, me->comm, NULL) == TUTTI_OK);
    REQUIRE(memcmp(least, most, bytes) == 0);
}
/* What all ranks have kept, in the scale of an average. */
static void gathers_lost(struct rank *me, tutti_compressor *c, const float *lost, size_t count, float *out)
{
    size_t at, kept;
    int keepers;
    REQUIRE(tutti_compressor_span(c, count, &at, &kept, &keepers) == TUTTI_OK && at + kept <= count);
    REQUIRE(keepers >= 1 && me->size % keepers == 0);
    memset(out, 0, count * sizeof *out);
    for (size_t i = 0; i < kept; i++) out[at + i] = lost[i] / (float)me->size;
    REQUIRE(tutti_all_reduce(out, out, count, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
}
static void loses_nothing(struct rank *me, const tutti_compression *how, size_t count)
{
    struct arrays *k = &all[me->rank];
    float *data = k->data[0], *lost = k->lost, *left = k->left;
    double *given = k->given, *came = k->came;
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, how) == TUTTI_OK);
    memset(k, 0, sizeof *k);
    for (int turn = 0; turn < TURNS; turn++) {
        fills(data, count, me->rank, turn);
        for (int r = 0; r < me->size; r++)
            for (size_t i = 0; i < count; i++) given[i] += (double)gradient_of(r, turn, i) / me->size;
        REQUIRE(tutti_compressor_average(c, data, count, TUTTI_FLOAT32, lost, (uint64_t)turn, &sent) == TUTTI_OK);
        is_the_same_on_all(me, data, count * sizeof *data);
        for (size_t i = 0; i < count; i++) came[i] += (double)data[i];
    }
    gathers_lost(me, c, lost, count, left);
    for (size_t i = 0; i < count; i++) REQUIRE(fabs(came[i] + (double)left[i] - given[i]) < 1e-3);
    REQUIRE((sent > 0) == (me->size > 1) || how->form == TUTTI_COMPRESS_THRESHOLD); /* which may send nothing */
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
/* Without feedback, close to the average; twice the same. */
static void repeats(struct rank *me, const tutti_compression *how, size_t count)
{
    float (*data)[MOST] = all[me->rank].data;
    uint64_t sent = 0;
    for (int run = 0; run < 2; run++) {
        tutti_compressor *c;
        REQUIRE(tutti_compressor_create(&c, me->comm, how) == TUTTI_OK);
        fills(data[run], count, me->rank, 0);
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
static void is_exact(struct rank *me, tutti_compression_form form)
{
    float *data = all[me->rank].data[0];
    tutti_compression how = { .form = form, .kept = 1024 };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    for (int n = COUNTS - 1; n >= 0; n--) {
        fills(data, counts[n], me->rank, n);
        REQUIRE(tutti_compressor_average(c, data, counts[n], TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_OK);
        for (size_t i = 0; i < counts[n]; i++) {
            float sum = 0;
            for (int r = 0; r < me->size; r++) sum += gradient_of(r, n, i);
            REQUIRE(data[i] == sum * (1.0f / (float)me->size));
        }
    }
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void averages(struct rank *me)
{
    for (int f = 0; f < FORMS; f++)
        for (int n = 0; n < COUNTS; n++) {
            loses_nothing(me, &forms[f], counts[n]);
            repeats(me, &forms[f], counts[n]);
        }
    is_exact(me, TUTTI_COMPRESS_TOPK);
    is_exact(me, TUTTI_COMPRESS_RANDOMK);
}
static void test_on_one_host(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, averages, NULL);
}
static void test_over_hosts(void **state)
{
    (void)state;
    world_threads_on("2", 4, NULL, averages, NULL);
    world_threads_on("0,1,0,1", 4, NULL, averages, NULL);
    world_threads_on("0,0,0,1", 4, NULL, averages, NULL);
    world_threads_on("3", 3, NULL, averages, NULL);
}

/* Between two hosts of two ranks only sums cross, each rank's half of them: half the bytes of four ranks on one. */
static void sends_a_part(struct rank *me)
{
    float *data = all[me->rank].data[0];
    int host;
    tutti_compression how = { .form = TUTTI_COMPRESS_INT8 };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    fills(data, MOST, me->rank, 0);
    REQUIRE(tutti_compressor_average(c, data, MOST, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_OK);
    REQUIRE(tutti_comm_place(me->comm, me->size - 1, &host, NULL) == TUTTI_OK);
    double ideal = 2.0 * MOST / 4 * (host ? 1 : 3) * (1 + 4.0 / 128);
    REQUIRE((double)sent >= ideal && (double)sent < ideal * 1.1);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void test_bytes(void **state)
{
    (void)state;
    world_threads(4, NULL, sends_a_part, NULL);
    world_threads_on("2", 4, NULL, sends_a_part, NULL);
}
static void averages_bfloat16(struct rank *me)
{
    uint16_t data[300];
    tutti_compression how = { .form = TUTTI_COMPRESS_TOPK, .kept = 1024 };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    for (int i = 0; i < 300; i++) data[i] = (uint16_t)(me->rank ? 0x4040 : 0x3f80); /* 3 and 1: their mean is 2 */
    REQUIRE(tutti_compressor_average(c, data, 300, TUTTI_BFLOAT16, NULL, 0, &sent) == TUTTI_OK);
    for (int i = 0; i < 300; i++) REQUIRE(data[i] == 0x4000);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void test_bfloat16(void **state)
{
    (void)state;
    world_threads(2, NULL, averages_bfloat16, NULL);
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
static void takes_a_step(struct rank *me, tutti_zero *zero, int turn)
{
    const tutti_zero_rates rates = { .rate = 1 };
    bool adds;
    for (int u = 0; u < 2; u++) REQUIRE(tutti_zero_use_backward(zero, u) == TUTTI_OK);
    for (int i = 0; i < PARAMETERS; i++) {
        int p = (i + me->rank) % PARAMETERS;            /* in an order of its own */
        float *at;
        REQUIRE(tutti_zero_gradient(zero, p, (void **)&at, &adds) == TUTTI_OK && !adds);
        fills(at, parameters[p].count, me->rank, turn * PARAMETERS + p);
        REQUIRE(tutti_zero_ready(zero, p) == TUTTI_OK);
    }
    REQUIRE(tutti_zero_step(zero, &rates, 1) == TUTTI_OK);
}
/* Values began with zeros and went down by what came. What is lost survives being read and written again. */
static void counts_up(struct rank *me, tutti_zero *zero, int p)
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
static void trains(struct rank *me)
{
    for (tutti_zero_placement placement = TUTTI_ZERO_REPLICATED; placement < TUTTI_ZERO_WHOLE; placement++)
        for (int f = 0; f < FORMS; f++) {
            tutti_zero_report report = { .struct_size = sizeof report };
            tutti_zero *zero = trainer(me, placement, &forms[f]);
            for (int turn = 0; turn < STEPS; turn++) takes_a_step(me, zero, turn);
            REQUIRE(tutti_zero_keep(zero, true) == TUTTI_OK);
            for (int p = 0; p < PARAMETERS; p++) counts_up(me, zero, p);
            REQUIRE(tutti_zero_keep(zero, false) == TUTTI_OK);
            REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK && (report.packed_bytes > 0) == (me->size > 1));
            REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
        }
}
static void test_training(void **state)
{
    (void)state;
    for (int size = 1; size <= 4; size++) world_threads(size, NULL, trains, NULL);
    world_threads_on("2", 4, NULL, trains, NULL);
    world_threads_on("0,1,0,1", 4, NULL, trains, NULL);
    world_threads_on("0,0,0,1", 4, NULL, trains, NULL);
}

/* ---- what is refused, and what fails ---- */
static void asks_wrongly(struct rank *me)
{
    float *data = all[me->rank].data[0];
    tutti_compressor *c = NULL;
    uint64_t sent = 0;
    tutti_compression how = { .form = TUTTI_COMPRESS_FORMS };
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    SAYS("unknown compression 8");
    how.form = TUTTI_COMPRESS_NONE;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    how = (tutti_compression){ .form = TUTTI_COMPRESS_THRESHOLD, .kept = 5 };
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    SAYS("a threshold of 0: it must be above 0");
    how.threshold = 1 + me->rank;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_MISMATCH && !c);
    how = (tutti_compression){ .form = TUTTI_COMPRESS_TOPK };
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    SAYS("keeps 1 to 1024 of 1024 numbers, not 0");
    how.kept = 5;
    how.momentum = 0.9;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_INVALID_ARGUMENT && !c);
    SAYS("momentum 0.9: it must be below 1, and needs feedback and a form that leaves numbers out");
    how.momentum = 0;
    how.kept = 5 + me->rank;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_MISMATCH && !c);
    SAYS("uses another compression");
    how.kept = 5;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    REQUIRE(tutti_compressor_average(c, data, 4, TUTTI_FLOAT64, NULL, 0, &sent) == TUTTI_INVALID_ARGUMENT);
    SAYS("gradients of type float64 cannot be compressed; use float32 or bfloat16");
    REQUIRE(tutti_compressor_average(c, NULL, 4, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_INVALID_ARGUMENT);
    size_t count = me->rank ? 8 : 9;                    /* of one length, packed */
    REQUIRE(tutti_compressor_average(c, data, count, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_MISMATCH);
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK && tutti_compressor_destroy(NULL) == TUTTI_OK);
}
static void test_what_is_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, asks_wrongly, NULL);
}
/* A collective of a tutti_zero that fails ends the tutti_zero, also one that only reads. */
static void lost_is_read_by_one_rank(struct rank *me)
{
    const tutti_compression how = { .form = TUTTI_COMPRESS_INT8 };
    tutti_zero *zero = trainer(me, TUTTI_ZERO_REPLICATED, &how);
    tutti_zero_report report = { .struct_size = sizeof report };
    takes_a_step(me, zero, 0);
    if (me->rank == 0) {
        REQUIRE(tutti_zero_get_report(zero, &report) == TUTTI_OK);
        tutti_status status = tutti_zero_get_lost(zero, 0, all[0].lost);
        REQUIRE(status != TUTTI_OK && status != TUTTI_INVALID_ARGUMENT);
        SAYS("rank 1");
        REQUIRE(tutti_zero_get_report(zero, &report) == status);
        SAYS("rank 1");
    }
    REQUIRE(tutti_zero_destroy(zero) == TUTTI_OK);
}
static void test_lost_read_by_one_rank(void **state)
{
    (void)state;
    world_threads(2, NULL, lost_is_read_by_one_rank, NULL);
}
#ifndef NO_PROCESSES
static void loses_a_rank(struct rank *me)
{
    float *data = all[me->rank].data[0];
    tutti_compression how = { .form = TUTTI_COMPRESS_INT4, .feedback = true };
    tutti_compressor *c;
    uint64_t sent = 0;
    REQUIRE(tutti_compressor_create(&c, me->comm, &how) == TUTTI_OK);
    REQUIRE(tutti_compressor_average(c, data, MOST, TUTTI_FLOAT32, NULL, 0, &sent) == TUTTI_OK);
    if (me->rank == 1) raise(SIGKILL);
    REQUIRE(tutti_compressor_average(c, data, MOST, TUTTI_FLOAT32, NULL, 1, &sent) != TUTTI_OK);
    SAYS("rank 1");
    REQUIRE(tutti_compressor_destroy(c) == TUTTI_OK);
}
static void test_a_rank_dies(void **state)
{
    (void)state;
    if (getenv("WORLD_NETWORK")) skip();                /* which is one of threads */
    assert_int_equal(world_processes(3, 20, loses_a_rank, NULL), 1);
}
#endif
unit_function test_compress;
int test_compress(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_one_host),
        cmocka_unit_test(test_over_hosts),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_bfloat16),
        cmocka_unit_test(test_training),
        cmocka_unit_test(test_what_is_refused),
        cmocka_unit_test(test_lost_read_by_one_rank),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_rank_dies),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
