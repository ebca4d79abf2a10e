/* Plans and programs that are evicted and made again. The caches of a group may keep few of them or none, over
   thousands of calls of different collectives, algorithms, roots, sizes and placements, blocking and asynchronous. The
   caches stay within their limits, and every result is right. */
#include "backend/collectives/collectives.h"
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { RANKS = 4, MOST = 64000, OPEN = 6 };
#ifdef FEW
enum { CALLS = 300 };
#else
enum { CALLS = 3000 };
#endif
/* most: the bytes that each cache may keep. hosts: there are several hosts. */
struct limits { size_t most; bool hosts; };
struct call_kind { enum collective collective; int root; size_t count; bool shared, in_place; };
struct memory { int32_t *in, *out; };

static uint32_t next(uint32_t *state) { return (*state = *state * 1664525u + 1013904223u) >> 16; }
static int32_t value(int call, int rank, size_t i) { return (int32_t)((size_t)call + 7 * i) % 1000 * (rank + 1); }
static int32_t sum(int call, size_t i) { return value(call, 0, i) * (RANKS * (RANKS + 1) / 2); }
static struct call_kind draw(uint32_t *state)
{
    static const enum collective collectives[] = { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER };
    static const size_t counts[] = { 1, 2, 12, 700, 16000 };
    struct call_kind k = { collectives[next(state) % 4], (int)(next(state) % RANKS), counts[next(state) % 5], false,
        false };
    k.shared = next(state) % 2;
    k.in_place = next(state) % 2 && k.collective == ALLREDUCE;
    return k;
}
/* Returns an algorithm, or NULL for the default. All ranks draw the same. */
static const char *draw_algorithm(uint32_t *state, enum collective collective, bool hosts)
{
    const char *names[16] = { NULL };
    int count = 1;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a->collective == collective && (hosts ? !a->host_memory : !a->hierarchical) && count < 16)
            names[count++] = a->name;
    return names[next(state) % (uint32_t)count];
}
static void begin(struct rank *me, const struct call_kind *k, int call, struct memory *b, tutti_request *request)
{
    int32_t *out = k->in_place ? b->in : b->out;
    tutti_status status = TUTTI_INTERNAL;
    for (size_t i = 0; i < k->count; i++) b->in[i] = value(call, me->rank, i);
    if (k->collective == ALLREDUCE)
        status = tutti_all_reduce(b->in, out, k->count, TUTTI_INT32, TUTTI_SUM, me->comm, request);
    else if (k->collective == BROADCAST)
        status = tutti_broadcast(b->in, out, k->count, TUTTI_INT32, k->root, me->comm, request);
    else if (k->collective == REDUCE)
        status = tutti_reduce(b->in, out, k->count, TUTTI_INT32, TUTTI_SUM, k->root, me->comm, request);
    else status = tutti_all_gather(b->in, out, k->count, TUTTI_INT32, me->comm, request);
    REQUIRE(status == TUTTI_OK);
}
static void check(const struct rank *me, const struct call_kind *k, int call, const struct memory *b)
{
    const int32_t *out = k->in_place ? b->in : b->out;
    for (size_t i = 0; i < k->count; i++) {
        if (k->collective == ALLREDUCE || (k->collective == REDUCE && me->rank == k->root))
            REQUIRE(out[i] == sum(call, i));
        if (k->collective == BROADCAST) REQUIRE(out[i] == value(call, k->root, i));
        for (int r = 0; k->collective == ALLGATHER && r < RANKS; r++)
            REQUIRE(out[(size_t)r * k->count + i] == value(call, r, i));
    }
}
static struct memory make(bool shared)
{
    struct memory b = { NULL, NULL };
    size_t bytes = MOST * sizeof(int32_t);
    if (shared) {
        REQUIRE(tutti_mem_alloc((void **)&b.in, bytes) == TUTTI_OK);
        REQUIRE(tutti_mem_alloc((void **)&b.out, bytes) == TUTTI_OK);
    } else {
        b.in = malloc(bytes);
        b.out = malloc(bytes);
    }
    REQUIRE(b.in && b.out);
    return b;
}
static void unmake(struct memory b, bool shared)
{
    if (shared) {
        REQUIRE(tutti_mem_free(b.in) == TUTTI_OK);
        REQUIRE(tutti_mem_free(b.out) == TUTTI_OK);
    } else {
        free(b.in);
        free(b.out);
    }
}
/* Beyond the limit the cache keeps only the last plan and program of each collective, which are small here. */
static void check_bound(const struct rank *me, size_t most)
{
    enum { EACH = 128 << 10 };
    REQUIRE(plan_cache_held_bytes(me->comm->launcher.cache) <= most + COLLECTIVE_COUNT * EACH);
}
static void limit(const struct rank *me, size_t most)
{
    plan_cache_set_limit(me->comm->launcher.cache, most);
    plan_cache_set_limit(me->comm->launcher.plans_to_predict, most);
}
static void set_algorithm(const struct rank *me, uint32_t *state, const struct call_kind *k)
{
    const struct limits *limits = me->context;
    const char *name = draw_algorithm(state, k->collective, limits->hosts);
    REQUIRE(tutti_comm_set_algorithm(me->comm, collective_name(k->collective), name) == TUTTI_OK);
}
static void blocking(struct rank *me)
{
    struct memory both[2] = { make(false), make(true) };
    size_t most = ((const struct limits *)me->context)->most;
    uint32_t state = 1;
    limit(me, most);
    for (int call = 0; call < CALLS; call++) {
        struct call_kind k = draw(&state);
        set_algorithm(me, &state, &k);
        for (int times = 1 + (int)(next(&state) % 3); times > 0; times--) {
            begin(me, &k, call, &both[k.shared], NULL);
            check(me, &k, call, &both[k.shared]);
        }
        check_bound(me, most);
    }
    world_meet(me);
    unmake(both[0], false);
    unmake(both[1], true);
}
static void asynchronous(struct rank *me)
{
    struct memory open[2][OPEN];
    struct call_kind kinds[OPEN];
    tutti_request *requests = world_requests(OPEN);
    uint32_t state = 5;
    limit(me, ((const struct limits *)me->context)->most);
    for (int i = 0; i < 2 * OPEN; i++) open[i % 2][i / 2] = make(i % 2);
    for (int call = 0; call < CALLS; call += OPEN) {
        for (int i = 0; i < OPEN; i++) {
            kinds[i] = draw(&state);
            /* The algorithm takes effect with the next operation that begins. */
            if (i == 0) set_algorithm(me, &state, &kinds[0]);
            begin(me, &kinds[i], call + i, &open[kinds[i].shared][i], &requests[i]);
        }
        for (int i = 0; i < OPEN; i++) {
            REQUIRE(tutti_wait(&requests[i], 0) == TUTTI_OK);
            check(me, &kinds[i], call + i, &open[kinds[i].shared][i]);
        }
    }
    world_meet(me);
    for (int i = 0; i < 2 * OPEN; i++) unmake(open[i % 2][i / 2], i % 2);
    free(requests);
}
static void run(rank_function *body, const char *hosts, size_t most)
{
    struct limits limits = { most, hosts[0] != 0 };
    world_threads_on(hosts, RANKS, NULL, body, &limits);
}
static void test_blocking_calls_are_right_without_a_cache(void **state)
{
    (void)state;
    run(blocking, "", 1);
}
static void test_blocking_calls_are_right_with_a_small_cache(void **state)
{
    (void)state;
    run(blocking, "", 32 << 10);
}
static void test_asynchronous_calls_are_right_without_a_cache(void **state)
{
    (void)state;
    run(asynchronous, "", 1);
}
static void test_asynchronous_calls_are_right_without_a_cache_over_two_hosts(void **state)
{
    (void)state;
    run(asynchronous, "2", 1);
}
unit_function test_eviction;
int test_eviction(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocking_calls_are_right_without_a_cache),
        cmocka_unit_test(test_blocking_calls_are_right_with_a_small_cache),
        cmocka_unit_test(test_asynchronous_calls_are_right_without_a_cache),
        cmocka_unit_test(test_asynchronous_calls_are_right_without_a_cache_over_two_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
