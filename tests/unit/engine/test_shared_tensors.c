/* Results do not depend on where tensors lie: every collective, with every algorithm, for every mixture of ranks whose
 * tensors are shared, private, in place or not, gives the bits that private tensors give. Inputs are overwritten and
 * memory is freed as soon as a call returns, so a peer that still reads them gets wrong results. Tiles are small, so
 * that slots are used again and again. */
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { GUARD = 64, TILE = 16384, LATE = 65536, MOST = 4, LARGEST = 200004 };
#ifdef FEW
enum { LARGEST_WORLD = 3, PLACEMENTS = 1 };
#else
enum { LARGEST_WORLD = 4, PLACEMENTS = 3 };
#endif
enum way { APART, IN_PLACE, SHARED, SHARED_IN_PLACE, INPUT_SHARED, WAYS };
struct test {
    const char *collective, *algorithm;
    /* The floats of one part. */
    size_t count;
    tutti_op op;
    int root;
};
static bool is(const struct test *t, const char *name) { return !strcmp(t->collective, name); }
static bool many_inputs(const struct test *t)
{
    return is(t, "reduce_scatter") || is(t, "scatter") || is(t, "all_to_all");
}
static bool many_outputs(const struct test *t) { return is(t, "allgather") || is(t, "gather") || is(t, "all_to_all"); }
static bool has_input(const struct test *t, int rank)
{
    return rank == t->root || !(is(t, "broadcast") || is(t, "scatter"));
}
static bool has_output(const struct test *t, int rank)
{
    return rank == t->root || !(is(t, "reduce") || is(t, "gather"));
}
/* The contents of inputs, whose sums are rounded. Tensors are filled and compared as a whole, because under the thread
   sanitizer each access to a single element costs more than the collectives. */
static float values[MOST * MOST][LARGEST / 4 + MOST];
static void values_init(void)
{
    for (uint64_t row = 0; row < sizeof values / sizeof *values; row++)
        for (size_t i = 0; i < sizeof *values / sizeof **values; i++) {
            uint64_t state = row << 40 ^ i;
            values[row][i] = (float)((double)(random_next(&state) >> 11) / (double)((uint64_t)1 << 53) - 0.4);
        }
}
static bool is_same(const float *at, const float *wanted, size_t count) { return memcmp(at, wanted, 4 * count) == 0; }

/* ---- buffers ---- */
struct area { unsigned char *at; size_t bytes; bool shared; };
struct areas { struct area area[2]; float *input, *output; size_t in, out; };
static struct area area_make(bool shared, size_t bytes)
{
    struct area a = { NULL, bytes, shared };
    if (shared) REQUIRE(tutti_mem_alloc((void **)&a.at, bytes + 2 * GUARD) == TUTTI_OK);
    else a.at = malloc(bytes + 2 * GUARD);
    memset(a.at, 0xa5, bytes + 2 * GUARD);
    return a;
}
static void area_free(struct area *a)
{
    if (!a->at) return;
    for (int i = 0; i < GUARD; i++) REQUIRE(a->at[i] == 0xa5 && a->at[GUARD + a->bytes + (size_t)i] == 0xa5);
    /* A peer that still reads the area gets wrong numbers. */
    memset(a->at, 0x5a, a->bytes + 2 * GUARD);
    if (a->shared) REQUIRE(tutti_mem_free(a->at) == TUTTI_OK);
    else free(a->at);
}
static struct areas make(const struct test *t, const struct rank *me, enum way way)
{
    size_t p = (size_t)me->size, mine = (size_t)me->rank * t->count;
    struct areas b = { .in = t->count * (many_inputs(t) ? p : 1), .out = t->count * (many_outputs(t) ? p : 1) };
    bool shared = way >= SHARED, in_place = way == IN_PLACE || way == SHARED_IN_PLACE;
    b.area[0] = area_make(shared, 4 * (in_place && b.out > b.in ? b.out : b.in));
    if (!in_place) b.area[1] = area_make(shared && way != INPUT_SHARED, 4 * b.out);
    b.input = (float *)(void *)(b.area[0].at + GUARD);
    b.output = in_place ? b.input : (float *)(void *)(b.area[1].at + GUARD);
    if (in_place && b.in > b.out) b.output += mine;
    if (in_place && b.in < b.out) b.input += mine;
    REQUIRE(4 * b.in <= sizeof *values);
    memcpy(b.input, values[me->rank], 4 * b.in);
    return b;
}
static void buffers_free(struct areas *b)
{
    area_free(&b->area[0]);
    area_free(&b->area[1]);
}

/* ---- calls ---- */
static tutti_status start(const struct test *t, const struct rank *me, const struct areas *b, tutti_request *r)
{
    const void *in = has_input(t, me->rank) ? b->input : NULL;
    void *out = has_output(t, me->rank) ? b->output : NULL;
    tutti_dtype f = TUTTI_FLOAT32;
    r->algorithm = t->algorithm;
    r->factor = 0.75;
    if (is(t, "allreduce")) return tutti_all_reduce(in, out, t->count, f, t->op, me->comm, r);
    if (is(t, "reduce")) return tutti_reduce(in, out, t->count, f, t->op, t->root, me->comm, r);
    if (is(t, "broadcast")) return tutti_broadcast(in, out, t->count, f, t->root, me->comm, r);
    if (is(t, "reduce_scatter")) return tutti_reduce_scatter(in, out, t->count, f, t->op, me->comm, r);
    if (is(t, "allgather")) return tutti_all_gather(in, out, t->count, f, me->comm, r);
    if (is(t, "all_to_all")) return tutti_all_to_all(in, out, t->count, f, me->comm, r);
    if (is(t, "gather")) return tutti_gather(in, out, t->count, f, t->root, me->comm, r);
    return tutti_scatter(in, out, t->count, f, t->root, me->comm, r);
}
static void expect(const struct test *t, const struct rank *me, enum way way, const float *output, const float *wanted,
    size_t count)
{
    if (is_same(output, wanted, count)) return;
    size_t i = 0;
    while (is_same(&output[i], &wanted[i], 1)) i++;
    fprintf(stderr, "%s %s: rank %d of %d, way %d, count %zu, root %d, op %d: element %zu is %g, should be %g\n",
        t->collective, t->algorithm ? t->algorithm : "default", me->rank, me->size, (int)way, t->count, t->root,
        (int)t->op, i, (double)output[i], (double)wanted[i]);
    bool has_the_same_bits = false;
    REQUIRE(has_the_same_bits);
}
/* Runs a call, and checks that its result has the bits of `wanted`. NULL: returns the result; the caller frees it. */
static float *run(const struct test *t, const struct rank *me, enum way way, const float *wanted)
{
    /* An all-to-all cannot work in place. */
    if (way % 2 && is(t, "all_to_all")) way = (enum way)(way - 1);
    struct areas b = make(t, me, way);
    tutti_request r = { .struct_size = sizeof r, .blocking = true };
    tutti_status status = start(t, me, &b, &r);
    if (status != TUTTI_OK) fprintf(stderr, "%s %s: %s\n", t->collective, t->algorithm, tutti_get_last_error());
    REQUIRE(status == TUTTI_OK);
    if (wanted && has_output(t, me->rank)) expect(t, me, way, b.output, wanted, b.out);
    if (has_input(t, me->rank) && b.area[1].at) REQUIRE(is_same(b.input, values[me->rank], b.in));
    float *result = NULL;
    if (!wanted) {
        result = malloc(4 * b.out);
        memcpy(result, b.output, 4 * b.out);
    }
    buffers_free(&b);
    return result;
}

/* ---- every mixture ---- */
static int power(int base, int exponent) { return exponent ? base * power(base, exponent - 1) : 1; }
/* Runs all mixtures if they are at most `most`, otherwise `most` of them, which all ranks draw alike. */
static void mixtures(const struct test *t, const struct rank *me, int most, uint64_t *random)
{
    int all = power(WAYS, me->size);
    float *wanted = run(t, me, APART, NULL);
    for (int n = 0; n < (all < most ? all : most); n++) {
        int mixture = all <= most ? n : (int)(random_next(random) % (uint64_t)all);
        run(t, me, (enum way)(mixture / power(WAYS, me->rank) % WAYS), wanted);
    }
    free(wanted);
}
static const char *const collectives[] = { "allreduce", "reduce", "broadcast", "reduce_scatter", "allgather",
    "all_to_all", "gather", "scatter" };
static struct test test_of(int collective, const char *algorithm, size_t bytes, const struct rank *me)
{
    struct test t = { collectives[collective], algorithm, bytes / 4, TUTTI_SUM, 0 };
    if (many_inputs(&t) || many_outputs(&t)) t.count = t.count / (size_t)me->size + 1;
    return t;
}
static void every_mixture(struct rank *me)
{
    static const size_t sizes[] = { LATE - 64, LATE + 4, 5 * TILE, LARGEST };
    uint64_t random = 5;
    for (int c = 0; c < 8; c++)
        for (int k = 0; k < 4; k++) {
            struct test t = test_of(c, NULL, sizes[k], me);
            t.root = (c + k) % me->size;
            mixtures(&t, me, 25, &random);
        }
}
/* Returns whether hosts are simulated and the algorithm needs all ranks on one host. */
static bool is_of_one_host(const char *collective, const char *algorithm)
{
    enum collective f = ALLREDUCE;
    while (strcmp(collective_name(f), collective) != 0) f++;
    return *settings_get()->hosts && collectives_find_algorithm(f, algorithm)->host_memory;
}
static void every_algorithm(struct rank *me)
{
    uint64_t random = 6;
    const char *algorithm;
    for (int c = 0; c < 8; c++)
        for (int a = 0; (algorithm = tutti_algorithm_name(collectives[c], a)) != NULL; a++) {
            if (is_of_one_host(collectives[c], algorithm)) continue;
            struct test t = test_of(c, algorithm, 150004, me);
            t.root = a % me->size;
            mixtures(&t, me, 6, &random);
        }
}
static void every_operation(struct rank *me)
{
    static const tutti_op ops[] = { TUTTI_AVG, TUTTI_PREMUL_SUM, TUTTI_MAX };
    static const int reducing[] = { 0, 1, 3 };
    uint64_t random = 7;
    for (int c = 0; c < 3; c++)
        for (int o = 0; o < 3; o++) {
            struct test t = test_of(reducing[c], NULL, 100000, me);
            t.op = ops[o];
            mixtures(&t, me, 12, &random);
        }
}

/* ---- uneven ---- */
static void uneven(struct rank *me)
{
    uint64_t random = 8;
    size_t p = (size_t)me->size;
    for (int n = 0; n < 40; n++) {
        size_t counts[MOST][MOST], send[MOST], recv[MOST], send_at[MOST], recv_at[MOST], in = 0, out = 0;
        enum way ways[MOST];
        for (int a = 0; a < me->size; a++) {
            ways[a] = (enum way)(random_next(&random) % WAYS);
            for (int b = 0; b < me->size; b++) {
                uint64_t draw = random_next(&random);
                counts[a][b] = draw % 4 == 0 ? 0 : draw / 4 % (draw % 4 == 1 ? 30000 : 100);
            }
        }
        /* The parts lie in the order of falling ranks, with gaps. */
        for (size_t q = p; q-- > 0;) {
            send[q] = counts[me->rank][q];
            recv[q] = counts[q][me->rank];
            send_at[q] = in;
            recv_at[q] = out + 3;
            in += send[q] + 5;
            out += recv[q] + 3;
        }
        struct area from = area_make(ways[me->rank] >= SHARED, 4 * in);
        struct area to = area_make(ways[me->rank] >= SHARED && ways[me->rank] != INPUT_SHARED, 4 * out);
        float *input = (float *)(void *)(from.at + GUARD), *output = (float *)(void *)(to.at + GUARD);
        for (size_t q = 0; q < p; q++) memcpy(input + send_at[q], values[(size_t)me->rank * MOST + q], 4 * send[q]);
        REQUIRE(tutti_all_to_all_v(input, send, send_at, output, recv, recv_at, TUTTI_FLOAT32, me->comm, NULL)
            == TUTTI_OK);
        memset(from.at + GUARD, 0, from.bytes);
        for (size_t q = 0; q < p; q++)
            REQUIRE(is_same(output + recv_at[q], values[q * MOST + (size_t)me->rank], recv[q]));
        area_free(&from);
        area_free(&to);
    }
}

/* ---- started, in any number, and awaited in any order ---- */
static void interleaved(struct rank *me)
{
    enum { OPEN = 6, ROUNDS = 10 };
    uint64_t random = 9, own = 100 + (uint64_t)me->rank;
    for (int round = 0; round < ROUNDS; round++) {
        struct test tests[OPEN];
        struct areas b[OPEN];
        tutti_request requests[OPEN];
        float *wanted[OPEN];
        for (int i = 0; i < OPEN; i++) {
            tests[i] = test_of((int)(random_next(&random) % 8), NULL, 1 + random_next(&random) % 150000, me);
            tests[i].root = (int)(random_next(&random) % (uint64_t)me->size);
            wanted[i] = run(&tests[i], me, APART, NULL);
        }
        for (int i = 0; i < OPEN; i++) {
            enum way way = (enum way)(random_next(&own) % WAYS);
            if (way % 2 && is(&tests[i], "all_to_all")) way = SHARED;
            b[i] = make(&tests[i], me, way);
            requests[i] = (tutti_request)TUTTI_REQUEST_INIT;
            REQUIRE(start(&tests[i], me, &b[i], &requests[i]) == TUTTI_OK);
        }
        for (int n = 0, first = (int)(random_next(&own) % OPEN); n < OPEN; n++) {
            int i = (first + n) % OPEN;
            REQUIRE(tutti_wait(&requests[i], 0) == TUTTI_OK);
            if (has_output(&tests[i], me->rank)) REQUIRE(is_same(b[i].output, wanted[i], b[i].out));
            buffers_free(&b[i]);
            free(wanted[i]);
        }
    }
}

/* ---- over hosts: shared tensors are not staged ---- */
/* Returns the number of copies from tensors into slots in this rank's last operation of that collective. */
static int staged_copies(const struct rank *me, enum collective collective)
{
    const struct schedule *s = me->comm->launcher.recent[collective].program->schedule;
    int copies = 0;
    for (const struct step *t = s->steps; t < s->steps + s->step_count; t++)
        for (int d = 0; t->kind == WORK && t->from_count == 1 && d < t->to_count; d++)
            copies += step_from(s, t)->buffer != SCRATCH && step_to(s, t)[d].buffer == SCRATCH;
    return copies;
}
/* All tensors of host 0 are shared, and on host 1 those of rank 2. */
static void stages_what_is_private(struct rank *me)
{
    static const enum collective which[] = { ALLREDUCE, REDUCE_SCATTER, ALLGATHER, ALL_TO_ALL };
    enum way mine = me->rank == 3 ? APART : SHARED;
    for (int k = 0; k < 4; k++) {
        const struct recent *r = &me->comm->launcher.recent[which[k]];
        struct test t = test_of((int)which[k], NULL, LARGEST, me);
        float *wanted = run(&t, me, APART, NULL);
        REQUIRE(r->selects_late && staged_copies(me, which[k]) > 0 && !r->program->touch_count);
        run(&t, me, mine, wanted);
        REQUIRE((staged_copies(me, which[k]) == 0) == (mine == SHARED));
        /* The tensors of rank 2's only peer are private. */
        REQUIRE((r->program->touch_count > 0) == (me->rank != 2));
        free(wanted);
    }
}
static void test_shared_tensors_are_not_staged(void **state)
{
    (void)state;
    world_threads_on("0,0,1,1", 4, NULL, stages_what_is_private, NULL);
}

/* ---- worlds ---- */
static void on_threads(rank_function *body)
{
    for (int size = 1; size <= LARGEST_WORLD; size++) world_threads(size, NULL, body, NULL);
}
static void test_every_mixture_on_threads(void **state) { (void)state; on_threads(every_mixture); }
static void test_every_algorithm_on_threads(void **state) { (void)state; on_threads(every_algorithm); }
static void test_every_operation_on_threads(void **state) { (void)state; on_threads(every_operation); }
static void test_uneven_on_threads(void **state) { (void)state; on_threads(uneven); }
static void test_interleaved_on_threads(void **state) { (void)state; on_threads(interleaved); }
/* The hosts of the ranks, and the number of ranks. Each host selects late by its own tensors alone. */
static const struct {
    const char *hosts;
    int size;
} placements[] = { { "0,1,0", 3 }, { "0,1,1,1", 4 }, { "0,0,1,1", 4 } };
static void over_hosts(rank_function *body)
{
    for (size_t i = 0; i < PLACEMENTS; i++) world_threads_on(placements[i].hosts, placements[i].size, NULL, body, NULL);
}
static void test_every_mixture_over_hosts(void **state) { (void)state; over_hosts(every_mixture); }
static void test_every_algorithm_over_hosts(void **state) { (void)state; over_hosts(every_algorithm); }
static void test_every_operation_over_hosts(void **state) { (void)state; over_hosts(every_operation); }
static void test_uneven_over_hosts(void **state) { (void)state; over_hosts(uneven); }
static void test_interleaved_over_hosts(void **state) { (void)state; over_hosts(interleaved); }
#ifndef NO_PROCESSES
static void all_of_it(struct rank *me)
{
    every_mixture(me);
    every_algorithm(me);
    every_operation(me);
    uneven(me);
    interleaved(me);
}
static void test_all_of_it_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= LARGEST_WORLD; size++) assert_int_equal(world_processes(size, 100, all_of_it, NULL), 0);
    world_pretend("0,0,1");
    assert_int_equal(world_processes(3, 100, all_of_it, NULL), 0);
    world_pretend("");
}
#endif

unit_function test_shared_tensors;
int test_shared_tensors(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_all_of_it_on_processes),
#endif
        cmocka_unit_test(test_every_mixture_on_threads),
        cmocka_unit_test(test_every_algorithm_on_threads),
        cmocka_unit_test(test_every_operation_on_threads),
        cmocka_unit_test(test_uneven_on_threads),
        cmocka_unit_test(test_interleaved_on_threads),
        cmocka_unit_test(test_shared_tensors_are_not_staged),
        cmocka_unit_test(test_every_mixture_over_hosts),
        cmocka_unit_test(test_every_algorithm_over_hosts),
        cmocka_unit_test(test_every_operation_over_hosts),
        cmocka_unit_test(test_uneven_over_hosts),
        cmocka_unit_test(test_interleaved_over_hosts),
    };
    values_init();
    setenv("TUTTI_TILE_BYTES", "16384", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
