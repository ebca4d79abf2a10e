/* One-sided operations, in which a rank needs only some peers. A rank that only sends goes on without peers that have
   not arrived, but not further than its tracks allow. Its later calls report what has failed meanwhile. */
#include "backend/engine/comm.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <stdatomic.h>

#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
/* How many operations a rank can run ahead after one in which it has awaited all peers. */
enum { AHEAD = TRACKS - 2 };

static tutti_status broadcast(struct rank *me, int32_t *value, int root)
{
    return tutti_broadcast(value, value, 1, TUTTI_INT32, root, me->comm, NULL);
}

/* ---- how far ---- */
static void goes_ahead(struct rank *me)
{
    static _Atomic bool come;
    enum { CALLS = 3 * TRACKS };
    int32_t values[CALLS];
    tutti_request *r = world_requests(CALLS);
    /* Each round begins at another track. */
    for (int round = 0; round < 3; round++) {
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        world_meet(me);
        atomic_store(&come, false);
        world_meet(me);
        while (me->rank && !atomic_load(&come)) usleep(100);
        for (int i = 0; i < CALLS; i++) {
            values[i] = me->rank ? -1 : 100 * round + i;
            memset(&r[i], 0, sizeof r[i]);
            r[i].struct_size = sizeof r[i];
            REQUIRE(tutti_broadcast(&values[i], &values[i], 1, TUTTI_INT32, 0, me->comm, &r[i]) == TUTTI_OK);
        }
        /* Another thread may still drive those that need no peer, so the root waits for them. */
        for (int i = 0; i < AHEAD && !me->rank; i++) REQUIRE(tutti_wait(&r[i], 0) == TUTTI_OK);
        for (int i = AHEAD; i < CALLS && !me->rank; i++) REQUIRE(tutti_test(&r[i]) == TUTTI_IN_PROGRESS);
        atomic_store(&come, true);
        for (int i = 0; i < CALLS; i++) REQUIRE(tutti_wait(&r[i], 0) == TUTTI_OK && values[i] == 100 * round + i);
    }
    free(r);
}
static void test_a_root_runs_ahead_as_far_as_its_tracks_allow(void **state)
{
    (void)state;
    world_threads(2, NULL, goes_ahead, NULL);
    world_threads(3, NULL, goes_ahead, NULL);
}
static void sends_and_leaves(struct rank *me)
{
    int32_t value = 0;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank) usleep(20000);
    for (int i = 0; i < AHEAD; i++) {
        value = me->rank ? -1 : i;
        REQUIRE(broadcast(me, &value, 0) == TUTTI_OK && value == i);
    }
}
static void test_a_broadcast_can_be_read_after_its_root_has_left(void **state)
{
    (void)state;
    world_threads(3, NULL, sends_and_leaves, NULL);
}

/* ---- without a fence ---- */
static bool root_is_unfenced(const struct rank *me)
{
    return atomic_load(&segment_control(me->comm->executor.site.segment, 0)->waiters) == WAITERS_UNFENCED;
}
/* Broadcasts until the root publishes without a fence, if that is possible here. */
static void send_until_unfenced(struct rank *me)
{
    bool may_be = me->comm->executor.publisher.may_be_unfenced;
    int32_t more = true;
    for (int calls = 0; more; calls++) {
        if (!me->rank) more = may_be && !root_is_unfenced(me);
        REQUIRE(calls < 10000000 && broadcast(me, &more, 0) == TUTTI_OK);
    }
}
static void becomes_unfenced_and_fenced(struct rank *me)
{
    for (int32_t round = 0; round < 20; round++) {
        int32_t value = me->rank ? -1 : round;
        send_until_unfenced(me);
        /* The other rank waits for the next broadcast, and goes to sleep. */
        while (!me->rank && root_is_unfenced(me)) usleep(100);
        REQUIRE(broadcast(me, &value, 0) == TUTTI_OK && value == round);
    }
}
static void test_a_busy_root_is_unfenced_until_a_peer_sleeps(void **state)
{
    (void)state;
    world_threads(2, NULL, becomes_unfenced_and_fenced, NULL);
}

/* ---- all kinds of operations, at random ---- */
/* MOST elements exceed a track's slot; larger messages are not needed here. */
enum { MOST = 3000, MOST_RANKS = 4 };
struct play { uint64_t seed; int calls; };
static int32_t in[MOST_RANKS][MOST_RANKS * MOST], out[MOST_RANKS][MOST_RANKS * MOST];
static int32_t element(int call, int rank, size_t i) { return (int32_t)(call * 7919 + rank * 131 + (int)i); }
static int32_t summed(int call, int ranks, size_t i)
{
    int32_t sum = 0;
    for (int r = 0; r < ranks; r++) sum += element(call, r, i);
    return sum;
}
struct move { int collective, root; size_t n; };
static struct move draw(uint64_t *random, int size)
{
    static const size_t sizes[] = { 0, 1, 2, 12, 13, 100, 255, 256, 511, 1023, 1024, 1025, 2000, MOST };
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint64_t small = random_next(random) % 4;
    return (struct move){ (int)(random_next(random) % 14), (int)(random_next(random) % (uint64_t)size),
        sizes[random_next(random) % (small ? 9 : SIZES)] };
}
static tutti_status play_move(const struct move *m, int32_t *a, int32_t *b, const struct rank *me)
{
    size_t n = m->n, counts[MOST_RANKS], at[MOST_RANKS];
    switch (m->collective) {
    case 0:
    case 1:
    case 2: return tutti_broadcast(a, b, n, TUTTI_INT32, m->root, me->comm, NULL);
    case 3:
    case 4: return tutti_scatter(a, b, n, TUTTI_INT32, m->root, me->comm, NULL);
    case 5:
    case 6: return tutti_gather(a, b, n, TUTTI_INT32, m->root, me->comm, NULL);
    case 7:
    case 8: return tutti_reduce(a, b, n, TUTTI_INT32, TUTTI_SUM, m->root, me->comm, NULL);
    case 9: return tutti_all_reduce(a, b, n, TUTTI_INT32, TUTTI_SUM, me->comm, NULL);
    case 10: return tutti_all_gather(a, b, n, TUTTI_INT32, me->comm, NULL);
    case 11: return tutti_reduce_scatter(a, b, n, TUTTI_INT32, TUTTI_SUM, me->comm, NULL);
    case 12:
        for (int q = 0; q < me->size; q++) counts[q] = n, at[q] = (size_t)q * n;
        return tutti_all_to_all_v(a, counts, at, b, counts, at, TUTTI_INT32, me->comm, NULL);
    default: return tutti_barrier(me->comm, NULL);
    }
}
static bool is_right(const struct move *m, int call, const struct rank *me, const int32_t *b)
{
    bool root = me->rank == m->root;
    for (size_t i = 0; i < m->n; i++) {
        size_t mine = (size_t)me->rank * m->n + i;
        if (m->collective <= 2 && b[i] != element(call, m->root, i)) return false;
        if ((m->collective == 3 || m->collective == 4) && b[i] != element(call, m->root, mine)) return false;
        if ((m->collective == 7 || m->collective == 8) && root && b[i] != summed(call, me->size, i)) return false;
        if (m->collective == 9 && b[i] != summed(call, me->size, i)) return false;
        if (m->collective == 11 && b[i] != summed(call, me->size, mine)) return false;
        bool gathers = m->collective == 10 || ((m->collective == 5 || m->collective == 6) && root);
        for (int q = 0; q < me->size; q++) {
            if (gathers && b[(size_t)q * m->n + i] != element(call, q, i)) return false;
            if (m->collective == 12 && b[(size_t)q * m->n + i] != element(call, q, mine)) return false;
        }
    }
    return true;
}
static void plays(struct rank *me)
{
    const struct play *play = me->context;
    uint64_t common = play->seed, own = random_mixed(play->seed + 1 + (uint64_t)me->rank);
    int32_t *a = in[me->rank], *b = out[me->rank];
    int naps = 0;
    for (int call = 0; call < play->calls; call++) {
        struct move m = draw(&common, me->size);
        for (size_t i = 0; i < (size_t)me->size * m.n; i++) a[i] = element(call, me->rank, i);
        if (random_next(&own) % 64 == 0 && naps++ < 400) usleep((unsigned)(random_next(&own) % 200));
        REQUIRE(play_move(&m, a, b, me) == TUTTI_OK);
        /* The input belongs to the caller again. */
        memset(a, 0xee, (size_t)me->size * m.n * sizeof *a);
        if (!is_right(&m, call, me, b)) {
            printf("rank %d of %d, call %d: move %d root %d %zu elements\n", me->rank, me->size, call, m.collective,
                m.root, m.n);
            fflush(stdout);
            REQUIRE(!"the result is right");
        }
    }
}
#ifdef FEW
enum { CALLS = 2500 };
#else
enum { CALLS = 12000 };
#endif
static uint64_t seed_of_today(void)
{
    const char *given = getenv("SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)getpid();
    printf("SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    return seed;
}
static void test_random_operations_are_right_on_threads(void **state)
{
    (void)state;
    struct play play = { seed_of_today(), CALLS };
    for (int size = 2; size <= MOST_RANKS; size++) world_threads(size, NULL, plays, &play);
}
#ifndef NO_PROCESSES
static void test_random_operations_are_right_on_processes(void **state)
{
    (void)state;
    struct play play = { seed_of_today(), CALLS };
    for (int size = 2; size <= MOST_RANKS; size++) assert_int_equal(world_processes(size, 100, plays, &play), 0);
}
#endif

/* ---- disagreement ---- */
/* Each rank names itself as the root, and so needs no peer. */
static void all_are_roots(struct rank *me)
{
    int32_t value = 0;
    int calls = 0;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    tutti_status status = TUTTI_OK;
    for (; status == TUTTI_OK; calls++) status = broadcast(me, &value, me->rank);
    REQUIRE(status == TUTTI_MISMATCH && calls < 2 * TRACKS);
    SAYS("operation 2 of");
    SAYS("broadcast(1 x int32, root 0");
    SAYS("broadcast(1 x int32, root 1");
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_MISMATCH);
}
static void test_ranks_that_are_all_roots_report_their_disagreement(void **state)
{
    (void)state;
    world_threads(2, NULL, all_are_roots, NULL);
}
/* Rank 1 sends to rank 2, which reads from rank 0: no rank needs one whose call differs. `between` more broadcasts need
   none either. The all-reduce needs all ranks, and finds the disagreement. */
static void one_sends_elsewhere(struct rank *me)
{
    static _Thread_local int32_t values[3];
    int between = *(const int *)me->context;
    int32_t value = me->rank, sum = 5;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    tutti_status status = me->rank == 1 ? tutti_gather(&value, values, 1, TUTTI_INT32, 2, me->comm, NULL)
                                        : tutti_broadcast(&value, &value, 1, TUTTI_INT32, 0, me->comm, NULL);
    REQUIRE(status == TUTTI_OK && (me->rank != 2 || value == 0));
    /* Rank 1 names itself as the root, because it would find the disagreement if it read from rank 0. */
    for (int i = 0; i < between; i++) {
        status = me->rank == 0 ? broadcast(me, &value, 0) : me->rank == 2 ? broadcast(me, &value, 0) : TUTTI_OK;
        if (me->rank == 1) status = broadcast(me, &value, 1);
        if (status != TUTTI_OK) break;
    }
    if (status == TUTTI_OK) status = tutti_all_reduce(&value, &sum, 1, TUTTI_INT32, TUTTI_SUM, me->comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH && sum == 5);
    SAYS("operation 2 of");
    SAYS("broadcast(1 x int32, root 0");
    SAYS("gather(1 x int32, root 2");
    SAYS("rank 1 ");
}
static void test_a_disagreement_of_independent_calls_is_found_later(void **state)
{
    (void)state;
    for (int between = 0; between <= AHEAD - 1; between++) world_threads(3, NULL, one_sends_elsewhere, &between);
}
static void counts_differ(struct rank *me)
{
    int32_t values[9];
    for (int i = 0; i < 9; i++) values[i] = 5;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    size_t n = me->rank ? 9 : 8;
    tutti_status status = tutti_broadcast(values, values, n, TUTTI_INT32, 0, me->comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH || (!me->rank && status == TUTTI_OK));
    for (int i = 0; i < 9; i++) REQUIRE(values[i] == 5);
    world_meet(me);
    /* The root knows of the mismatch by now. */
    REQUIRE(broadcast(me, values, 0) == TUTTI_MISMATCH);
    SAYS("broadcast(8 x int32");
    SAYS("broadcast(9 x int32");
    SAYS("operation 2 of");
}
static void test_a_reader_finds_a_disagreement_and_its_root_reports_it_later(void **state)
{
    (void)state;
    world_threads(2, NULL, counts_differ, NULL);
    world_threads(4, NULL, counts_differ, NULL);
}

/* ---- missing ranks ---- */
static void root_is_late(struct rank *me)
{
    int32_t value = 0;
    if (me->size == 2) send_until_unfenced(me);
    tutti_status status = tutti_barrier(me->comm, NULL);
    tutti_request r = { .struct_size = sizeof r, .timeout_ms = 300, .blocking = true };
    REQUIRE(status == TUTTI_OK);
    world_meet(me);
    if (me->rank == 1)
        while (tutti_comm_get_async_error(me->comm) == TUTTI_OK) usleep(1000);
    int calls = 0;
    for (; status == TUTTI_OK && calls <= AHEAD; calls++)
        status = tutti_broadcast(&value, &value, 1, TUTTI_INT32, 0, me->comm, &r);
    REQUIRE(status == TUTTI_TIMEOUT && (me->rank || calls == AHEAD + 1));
    SAYS("this call has not been made by rank 1");
}
static void test_a_timeout_of_a_root_that_is_ahead_names_the_rank_behind(void **state)
{
    (void)state;
    world_threads(2, NULL, root_is_late, NULL);
    world_threads(3, NULL, root_is_late, NULL);
}
/* Rank 2 arrives after the root has failed. It only sends, and does not succeed even so. */
static void sender_is_late(struct rank *me)
{
    static _Atomic bool failed;
    int32_t value = me->rank, all[3] = { 5, 5, 5 };
    tutti_request r = { .struct_size = sizeof r, .timeout_ms = 200, .blocking = true };
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    atomic_store(&failed, false);
    world_meet(me);
    while (me->rank == 2 && !atomic_load(&failed)) usleep(1000);
    tutti_status status = tutti_gather(&value, all, 1, TUTTI_INT32, 0, me->comm, &r);
    REQUIRE(me->rank == 1 ? status == TUTTI_OK : status == TUTTI_TIMEOUT);
    if (me->rank != 1) SAYS("this call has not been made by rank 2");
    REQUIRE(all[0] == 5 && all[2] == 5);
    if (!me->rank) atomic_store(&failed, true);
    world_meet(me);
    REQUIRE(tutti_gather(&value, all, 1, TUTTI_INT32, 0, me->comm, &r) == TUTTI_TIMEOUT);
}
static void test_sending_to_a_failed_root_does_not_succeed(void **state)
{
    (void)state;
    world_threads(3, NULL, sender_is_late, NULL);
}
static void one_leaves(struct rank *me)
{
    int32_t value = 0;
    send_until_unfenced(me);
    tutti_status status = tutti_barrier(me->comm, NULL);
    REQUIRE(status == TUTTI_OK);
    world_meet(me);
    if (me->rank == 1) return;
    for (int calls = 0; status == TUTTI_OK && calls <= AHEAD; calls++) status = broadcast(me, &value, 0);
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS("rank 1 of the group has ended or destroyed its group");
}
static void test_a_root_that_is_ahead_of_a_rank_that_has_left_fails(void **state)
{
    (void)state;
    world_threads(2, NULL, one_leaves, NULL);
}
#ifndef NO_PROCESSES
static void one_dies(struct rank *me)
{
    int32_t value = 0;
    int dead = *(const int *)me->context;
    tutti_status status = tutti_barrier(me->comm, NULL);
    for (int calls = 0; status == TUTTI_OK; calls++) {
        if (me->rank == dead && calls == 100) raise(SIGKILL);
        value = me->rank ? -1 : calls;
        status = broadcast(me, &value, 0);
        REQUIRE(status != TUTTI_OK || value == calls);
        REQUIRE(status != TUTTI_OK || calls < 100 + AHEAD);
    }
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS("died");
}
static void test_a_rank_killed_while_the_root_is_ahead_is_named(void **state)
{
    (void)state;
    for (int dead = 0; dead < 3; dead++) assert_int_equal(world_processes(3, 20, one_dies, &dead), 1);
}
#endif

unit_function test_one_sided;
int test_one_sided(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_root_runs_ahead_as_far_as_its_tracks_allow),
        cmocka_unit_test(test_a_broadcast_can_be_read_after_its_root_has_left),
        cmocka_unit_test(test_a_busy_root_is_unfenced_until_a_peer_sleeps),
        cmocka_unit_test(test_random_operations_are_right_on_threads),
        cmocka_unit_test(test_ranks_that_are_all_roots_report_their_disagreement),
        cmocka_unit_test(test_a_disagreement_of_independent_calls_is_found_later),
        cmocka_unit_test(test_a_reader_finds_a_disagreement_and_its_root_reports_it_later),
        cmocka_unit_test(test_a_timeout_of_a_root_that_is_ahead_names_the_rank_behind),
        cmocka_unit_test(test_sending_to_a_failed_root_does_not_succeed),
        cmocka_unit_test(test_a_root_that_is_ahead_of_a_rank_that_has_left_fails),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_random_operations_are_right_on_processes),
        cmocka_unit_test(test_a_rank_killed_while_the_root_is_ahead_is_named),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
