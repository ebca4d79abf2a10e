/* tutti_all_reduce_norm gives bitwise the result of an all-reduce and then, on one rank, the same norm of its rows, for
   any algorithm, number of ranks, type, shape and place of tensors. Ranks that ask for different norms get an error. */
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

struct shape { size_t rows, columns; tutti_dtype dtype; const char *algorithm; bool own, in_place, shared, residual; };
static const tutti_dtype dtypes[] = { TUTTI_FLOAT32, TUTTI_BFLOAT16, TUTTI_FLOAT16 };

static void *room(const struct shape *s, size_t bytes)
{
    void *memory = NULL;
    if (s->shared) REQUIRE(tutti_mem_alloc(&memory, bytes ? bytes : 1) == TUTTI_OK);
    else REQUIRE((memory = malloc(bytes ? bytes : 1)) != NULL);
    return memory;
}
static void give_back(const struct shape *s, void *memory)
{
    if (s->shared) REQUIRE(tutti_mem_free(memory) == TUTTI_OK);
    else free(memory);
}
/* Numbers from 1 to 2, of any of the three types, so that sums of a few ranks are ordinary. */
static void fill(void *to, size_t count, tutti_dtype dtype, uint64_t seed)
{
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = (uint32_t)(random_next(&seed) >> 40);
        if (dtype == TUTTI_FLOAT32) ((uint32_t *)to)[i] = 0x3f800000u | (bits & 0x7fffffu);
        else if (dtype == TUTTI_BFLOAT16) ((uint16_t *)to)[i] = (uint16_t)(0x3f80u | (bits & 0x7fu));
        else ((uint16_t *)to)[i] = (uint16_t)(0x3c00u | (bits & 0x3ffu));
    }
}
/* Makes a communicator of this rank alone, which computes the norm of a finished all-reduce. */
static tutti_comm *make_alone(struct rank *me)
{
    tutti_comm *alone;
    REQUIRE(tutti_comm_split(me->comm, me->rank, 0, &alone) == TUTTI_OK);
    return alone;
}
static void compare(struct rank *me, const struct shape *s, tutti_comm *alone, uint64_t seed)
{
    size_t count = s->rows * s->columns, size = tutti_dtype_bytes(s->dtype), row = s->columns * size;
    size_t first = 0, own = s->rows;
    if (s->own) REQUIRE(tutti_norm_rows(s->rows, me->size, me->rank, &first, &own) == TUTTI_OK);
    char *send = room(s, count * size), *recv = s->in_place ? send : room(s, count * size);
    char *sum = malloc(count * size + 1), *whole = malloc(count * size + 1), *residual = malloc(own * row + 1);
    char *with = malloc(2 * row);
    REQUIRE(sum && whole && residual && with);
    fill(send, count, s->dtype, seed + 100 * (uint64_t)me->rank);
    fill(whole, count, s->dtype, seed + 1);
    fill(with, 2 * s->columns, s->dtype, seed + 2);
    memcpy(residual, whole + first * row, own * row);
    tutti_norm norm = TUTTI_NORM_INIT;
    norm.kind = seed % 2 ? TUTTI_NORM_LAYER : TUTTI_NORM_RMS;
    norm.weight = seed % 3 ? with : NULL;
    norm.bias = seed % 5 ? NULL : with + row;
    tutti_request request = { .struct_size = sizeof request, .blocking = true, .algorithm = s->algorithm };
    REQUIRE(tutti_all_reduce(send, sum, count, s->dtype, TUTTI_SUM, me->comm, &request) == TUTTI_OK);
    norm.residual = s->residual ? whole : NULL;
    REQUIRE(tutti_all_reduce_norm(sum, sum, s->rows, s->columns, s->dtype, &norm, alone, NULL) == TUTTI_OK);
    norm.residual = s->residual ? residual : NULL;
    norm.own_rows = s->own;
    if (s->own) request.algorithm = NULL;
    REQUIRE(tutti_all_reduce_norm(send, recv, s->rows, s->columns, s->dtype, &norm, me->comm, &request) == TUTTI_OK);
    REQUIRE(memcmp(recv, sum, count * size) == 0);
    if (s->residual) REQUIRE(memcmp(residual, whole + first * row, own * row) == 0);
    if (recv != send) give_back(s, recv);
    give_back(s, send);
    free(sum);
    free(whole);
    free(residual);
    free(with);
}
/* Under sanitizers one form in three or five runs with each shape, because they take up to twenty times as long. */
#if defined(__SANITIZE_THREAD__)
enum { FORMS_APART = 5 };
#elif defined(FEW)
enum { FORMS_APART = 3 };
#else
enum { FORMS_APART = 1 };
#endif
static void all_shapes(struct rank *me)
{
    static const struct {
        size_t rows, columns;
    } shapes[] = { { 0, 8 }, { 1, 1 }, { 1, 5 }, { 1, 4096 }, { 2, 3 }, { 3, 64 }, { 7, 100 }, { 16, 1024 },
        { 33, 257 }, { 700, 300 } };
    const char *const *algorithm = me->context;
    tutti_comm *alone = make_alone(me);
    uint64_t seed = 7;
    for (size_t d = 0; d < 3; d++)
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (int form = (int)(seed % FORMS_APART); form < 16; form += FORMS_APART) {
                struct shape s = { shapes[k].rows, shapes[k].columns, dtypes[d], *algorithm, form & 1, form & 2,
                    form & 4, form & 8 };
                if (s.own && *algorithm) continue;
                compare(me, &s, alone, seed++);
                /* All ranks have freed their shared tensors. */
                world_meet(me);
            }
    REQUIRE(tutti_comm_destroy(alone) == TUTTI_OK);
}
static void test_results_equal_an_all_reduce_and_then_a_norm(void **state)
{
    (void)state;
    static const char *const algorithms[] = { NULL, "one_shot", "two_shot", "two_shot_read", "ring" };
    for (int size = 1; size <= 4; size++)
        for (size_t a = 0; a < sizeof algorithms / sizeof algorithms[0]; a++)
            world_threads(size, NULL, all_shapes, (void *)(uintptr_t)&algorithms[a]);
}
/* Shapes for several hosts, where each rank has the residuals of all rows. */
static void some_shapes(struct rank *me)
{
    tutti_comm *alone = make_alone(me);
    for (uint64_t k = 0; k < 24; k++) {
        struct shape s = { 1 + k * k, 96 + k, dtypes[k % 3], NULL, false, k & 1, k & 2, k & 4 };
        compare(me, &s, alone, k);
        world_meet(me);
    }
    REQUIRE(tutti_comm_destroy(alone) == TUTTI_OK);
}
static void test_results_equal_an_all_reduce_and_then_a_norm_over_hosts(void **state)
{
    (void)state;
    world_threads_on("0,1", 2, NULL, some_shapes, NULL);
    world_threads_on("0,1,0", 3, NULL, some_shapes, NULL);
    world_threads_on("0,0,1,1", 4, NULL, some_shapes, NULL);
}

/* ---- other calls between, and several at a time ---- */
static void mix(struct rank *me)
{
    enum { COUNT = 64, AT_ONCE = 5 };
    float send[AT_ONCE][COUNT], recv[AT_ONCE][COUNT], plain[COUNT], residual[AT_ONCE][COUNT] = { 0 };
    tutti_norm norm = TUTTI_NORM_INIT;
    for (int turn = 0; turn < 200; turn++) {
        tutti_request requests[AT_ONCE];
        for (int k = 0; k < AT_ONCE; k++) {
            requests[k] = (tutti_request)TUTTI_REQUEST_INIT;
            for (int i = 0; i < COUNT; i++) send[k][i] = (float)(k + i % 3);
            norm.residual = residual[k];
            memset(residual[k], 0, sizeof residual[k]);
            norm.own_rows = k % 2;
            REQUIRE(tutti_all_reduce_norm(send[k], recv[k], k == 2 ? 4 : 2, k == 2 ? 16 : 32, TUTTI_FLOAT32, &norm,
                        me->comm, &requests[k])
                == TUTTI_OK);
        }
        REQUIRE(tutti_all_reduce(send[1], plain, COUNT, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
        for (int k = 0; k < AT_ONCE; k++) REQUIRE(tutti_wait(&requests[k], 0) == TUTTI_OK);
        for (int i = 0; i < COUNT; i++) REQUIRE(plain[i] == (float)(me->size * (1 + i % 3)));
        for (int k = 0; k < AT_ONCE; k++) {
            int columns = k == 2 ? 16 : 32;
            for (int r = 0; r < COUNT / columns; r++) {
                double squares = 0;
                const float *row = recv[k] + r * columns;
                for (int c = 0; c < columns; c++) squares += (double)row[c] * row[c];
                REQUIRE(squares / columns > 0.999 && squares / columns < 1.001);
            }
        }
    }
}
static void test_norms_run_among_other_calls(void **state)
{
    (void)state;
    world_threads(3, NULL, mix, NULL);
}

/* ---- refused calls, and disagreements ---- */
static void refuse(struct rank *me)
{
    float x[64] = { 0 }, w[64] = { 0 };
    tutti_norm good = TUTTI_NORM_INIT, weighted;
    struct wrong { const char *text; size_t rows, columns; tutti_dtype dtype; tutti_norm norm; const char *algorithm; };
    struct wrong cases[] = {
        { "must be 0 or more", 2, 32, TUTTI_FLOAT32, good, NULL },
        { "unknown norm 7", 2, 32, TUTTI_FLOAT32, good, NULL },
        { "rows of float64 cannot be normalised: use float32, bfloat16 or float16", 2, 32, TUTTI_FLOAT64, good, NULL },
        { "rows of 0 columns: there must be 1 to", 2, 0, TUTTI_FLOAT32, good, NULL },
        { "the residual overlaps with the", 2, 32, TUTTI_FLOAT32, good, NULL },
        { "the weight overlaps with the receive buffer", 2, 32, TUTTI_FLOAT32, good, NULL },
        { "own_rows always uses algorithm two_shot: choose none", 2, 32, TUTTI_FLOAT32, good, "one_shot" },
        { "initialize it with TUTTI_NORM_INIT", 2, 32, TUTTI_FLOAT32, good, NULL },
        { "exceed the address space", SIZE_MAX, 2, TUTTI_FLOAT32, good, NULL },
    };
    cases[0].norm.epsilon = -1;
    cases[1].norm.kind = (tutti_norm_kind)7;
    cases[4].norm.residual = x + 8;
    cases[5].norm.weight = x;
    cases[6].norm.own_rows = true;
    cases[7].norm.struct_size = 3;
    for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
        tutti_request request = { .struct_size = sizeof request, .blocking = true, .algorithm = cases[k].algorithm };
        REQUIRE(tutti_all_reduce_norm(x, x, cases[k].rows, cases[k].columns, cases[k].dtype, &cases[k].norm, me->comm,
                    &request)
            == TUTTI_INVALID_ARGUMENT);
        REQUIRE(tutti_last_error_is_refusal());
        if (!strstr(tutti_get_last_error(), cases[k].text)) fprintf(stderr, "%s\n", tutti_get_last_error());
        REQUIRE(strstr(tutti_get_last_error(), cases[k].text));
    }
    tutti_request labelled = { .struct_size = sizeof labelled, .blocking = true, .label = 3 };
    REQUIRE(tutti_all_reduce_norm(x, x, 2, 32, TUTTI_FLOAT32, &good, me->comm, &labelled) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_all_reduce_norm(x, x, 2, 32, TUTTI_FLOAT32, NULL, me->comm, NULL) == TUTTI_INVALID_ARGUMENT);
    weighted = good;
    weighted.weight = w;
    /* The communicator still works. */
    REQUIRE(tutti_all_reduce_norm(x, x, 2, 32, TUTTI_FLOAT32, &weighted, me->comm, NULL) == TUTTI_OK);
}
static void test_wrong_arguments_are_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, refuse, NULL);
}
static void refuse_own(struct rank *me)
{
    float x[64] = { 0 };
    tutti_norm norm = TUTTI_NORM_INIT;
    norm.own_rows = true;
    REQUIRE(tutti_all_reduce_norm(x, x, 2, 32, TUTTI_FLOAT32, &norm, me->comm, NULL) == TUTTI_UNSUPPORTED);
    REQUIRE(strstr(tutti_get_last_error(), "own_rows needs all ranks on one host"));
}
static void test_own_rows_need_one_host(void **state)
{
    (void)state;
    world_threads_on("0,1", 2, NULL, refuse_own, NULL);
}
static void refuse_long(struct rank *me)
{
    size_t columns = 4 << 20;
    float *x = calloc(2 * columns, sizeof *x);
    REQUIRE(x);
    tutti_norm norm = TUTTI_NORM_INIT;
    REQUIRE(tutti_all_reduce_norm(x, x, 2, columns, TUTTI_FLOAT32, &norm, me->comm, NULL) == TUTTI_OK);
    norm.own_rows = true;
    REQUIRE(tutti_all_reduce_norm(x, x, 2, columns, TUTTI_FLOAT32, &norm, me->comm, NULL) == TUTTI_UNSUPPORTED);
    REQUIRE(strstr(tutti_get_last_error(), "rows of 16777216 bytes are too long for own_rows on 2 ranks"));
    free(x);
}
static void test_rows_too_long_for_own_rows_are_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, refuse_long, NULL);
}
static void disagree(struct rank *me)
{
    float x[64] = { 0 }, w[32] = { 0 };
    tutti_norm norm = TUTTI_NORM_INIT;
    int way = *(int *)me->context;
    tutti_status status;
    if (way == 0) norm.epsilon = me->rank ? 1e-5 : 1e-6;
    if (way == 1) norm.weight = me->rank ? w : NULL;
    if (way == 2 && me->rank) status = tutti_all_reduce(x, x, 64, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    else {
        size_t rows = way == 3 && me->rank ? 4 : 2;
        status = tutti_all_reduce_norm(x, x, rows, 64 / rows, TUTTI_FLOAT32, &norm, me->comm, NULL);
    }
    static const char *const texts[] = { "RMSNorm of rows of 32, epsilon 1e-05",
        "RMSNorm of rows of 32, epsilon 1e-06, weight", "RMSNorm of rows of 32", "RMSNorm of rows of 16" };
    REQUIRE(status == TUTTI_MISMATCH);
    if (!strstr(tutti_get_last_error(), texts[way])) fprintf(stderr, "%s\n", tutti_get_last_error());
    REQUIRE(strstr(tutti_get_last_error(), texts[way]));
}
static void test_ranks_that_disagree_get_an_error(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) world_threads(2, NULL, disagree, &way);
}

unit_function test_rows;
int test_rows(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_results_equal_an_all_reduce_and_then_a_norm),
        cmocka_unit_test(test_results_equal_an_all_reduce_and_then_a_norm_over_hosts),
        cmocka_unit_test(test_norms_run_among_other_calls), cmocka_unit_test(test_wrong_arguments_are_refused),
        cmocka_unit_test(test_own_rows_need_one_host), cmocka_unit_test(test_rows_too_long_for_own_rows_are_refused),
        cmocka_unit_test(test_ranks_that_disagree_get_an_error) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
