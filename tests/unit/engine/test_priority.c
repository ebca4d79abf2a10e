/* Operations of a higher priority go first. One that waits for another rank holds up no other. Ranks may set different
   priorities. */
#include "backend/engine/comm.h"
#include "backend/execute/precedence.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

/* MILLISECOND is in ns. LARGE and LONG are the elements of messages of many tiles. */
enum { MILLISECOND = 1000000, LARGE = 1 << 20, LONG = 1 << 18, ROUNDS = 5 };

/* An all-reduce of `count` elements on a communicator of its own. */
struct pending_call { tutti_comm *comm; int32_t *data; size_t count; tutti_request request; };
static void call_prepare(struct pending_call *f, const struct rank *me, size_t count, int priority)
{
    *f = (struct pending_call){ .data = calloc(count, sizeof *f->data), .count = count };
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &f->comm) == TUTTI_OK);
    REQUIRE(tutti_comm_set_priority(f->comm, priority) == TUTTI_OK);
}
static void call_start(struct pending_call *f, const struct rank *me)
{
    f->request = (tutti_request)TUTTI_REQUEST_INIT;
    for (size_t i = 0; i < f->count; i++) f->data[i] = me->rank + 1;
    REQUIRE(tutti_all_reduce(f->data, f->data, f->count, TUTTI_INT32, TUTTI_SUM, f->comm, &f->request) == TUTTI_OK);
}
static void call_end(struct pending_call *f, const struct rank *me)
{
    REQUIRE(tutti_wait(&f->request, 0) == TUTTI_OK);
    for (size_t i = 0; i < f->count; i++) REQUIRE(f->data[i] == me->size * (me->size + 1) / 2);
}
static void call_free(struct pending_call *f)
{
    REQUIRE(tutti_comm_destroy(f->comm) == TUTTI_OK);
    free(f->data);
}

/* ---- tiles in flight ---- */
static void drive_until_still(tutti_comm *comm)
{
    struct wait_set unused;
    do wait_set_clear(&unused);
    while (driver_make_progress(comm, &unused));
}
static int tiles_on_their_way(const tutti_comm *comm)
{
    const struct program *p = comm->executor.launch.program;
    int steps = p->schedule->step_count, tiles = 0;
    for (int slot = 0; slot < p->plan->slots; slot++) {
        bool any = false;
        for (int i = 0; i < steps; i++) any |= p->transfers[slot * steps + i].state == TRANSFER_POSTED;
        tiles += any;
    }
    return tiles;
}
/* The test records that another operation of this process moves, with priority ANOTHER, and later that it is over. Rank
   1 arrives later, so the operation of rank 0 does not complete meanwhile. */
static void while_another_moves(struct rank *me)
{
    enum { ANOTHER = 3 };
    struct pending_call f;
    for (int priority = ANOTHER - 1; priority <= ANOTHER; priority++) {
        call_prepare(&f, me, LARGE, priority);
        precedence_record_progress(ANOTHER, false);
        if (me->rank == 0) {
            driver_acquire_role(f.comm);
            call_start(&f, me);
            drive_until_still(f.comm);
            REQUIRE((tiles_on_their_way(f.comm) == 1) == (priority < ANOTHER));
            REQUIRE(f.comm->executor.blocked.soon == (priority < ANOTHER));
            precedence_record_progress(ANOTHER, true);
            drive_until_still(f.comm);
            REQUIRE(tiles_on_their_way(f.comm) > 1);
            driver_hand_over_role(f.comm);
        }
        world_meet(me);
        if (me->rank != 0) call_start(&f, me);
        call_end(&f, me);
        call_free(&f);
    }
}
static void small_ones(struct rank *me)
{
    struct pending_call f;
    call_prepare(&f, me, 1000, 0);
    for (int i = 0; i < ROUNDS; i++) {
        call_start(&f, me);
        call_end(&f, me);
    }
    call_free(&f);
}
/* ---- operations that wait for a rank ---- */
static void one_is_late(struct rank *me)
{
    struct pending_call urgent, usual;
    call_prepare(&urgent, me, LARGE, 7);
    call_prepare(&usual, me, LONG, 0);
    if (me->rank == 0) call_start(&urgent, me);
    call_start(&usual, me);
    call_end(&usual, me);
    world_meet(me);
    if (me->rank != 0) call_start(&urgent, me);
    call_end(&urgent, me);
    call_free(&urgent);
    call_free(&usual);
}
static void each_prefers_another(struct rank *me)
{
    struct pending_call one, other;
    call_prepare(&one, me, LARGE, me->rank == 0 ? 5 : 1);
    call_prepare(&other, me, LARGE, me->rank == 0 ? 1 : 5);
    for (int round = 0; round < ROUNDS; round++) {
        call_start(&one, me);
        call_start(&other, me);
        call_end(&one, me);
        call_end(&other, me);
    }
    call_free(&one);
    call_free(&other);
}
static void with_tiles(const char *bytes, int64_t moment_ns)
{
    alarm(600);
    setenv("TUTTI_TILE_BYTES", bytes, 1);
    atomic_store(&precedence_moment_ns, moment_ns);
}
static void test_one_tile_is_in_flight_while_a_higher_priority_moves(void **state)
{
    (void)state;
    with_tiles("65536", INT64_C(100000) * MILLISECOND);
    world_threads_on("2", 2, NULL, while_another_moves, NULL);
}
static void test_priorities_change_no_results(void **state)
{
    (void)state;
    for (int64_t moment_ms = 0; moment_ms <= 100000; moment_ms += 100000) {
        with_tiles("65536", moment_ms * MILLISECOND);
        precedence_record_progress(7, false);
        world_threads_on("2", 2, NULL, small_ones, NULL);
        world_threads_on("2", 4, NULL, each_prefers_another, NULL);
        world_threads_on("", 2, NULL, each_prefers_another, NULL);
        precedence_record_progress(7, true);
    }
}

static void test_an_operation_that_waits_for_a_rank_holds_up_no_other(void **state)
{
    (void)state;
    with_tiles("65536", MILLISECOND);
    world_threads_on("2", 2, NULL, one_is_late, NULL);
    world_threads_on("2", 3, NULL, one_is_late, NULL);
}
static void test_ranks_may_set_different_priorities(void **state)
{
    (void)state;
    with_tiles("65536", MILLISECOND);
    world_threads_on("2", 2, NULL, each_prefers_another, NULL);
#ifndef NO_PROCESSES
    world_pretend("2");
    /* Each process has its own record of the priorities that move. */
    assert_int_equal(world_processes(2, 60, each_prefers_another, NULL), 0);
#endif
}

/* ---- arguments and records ---- */
static void set_priorities(struct rank *me)
{
    REQUIRE(tutti_comm_set_priority(me->comm, TUTTI_PRIORITIES - 1) == TUTTI_OK);
    REQUIRE(tutti_comm_set_priority(me->comm, TUTTI_PRIORITIES) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(strcmp(tutti_get_last_error(), "a priority of 8: it must be 0 to 7") == 0);
    REQUIRE(tutti_comm_set_priority(me->comm, -1) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_comm_set_priority(NULL, 1) == TUTTI_INVALID_ARGUMENT);
}
static void test_invalid_priorities_are_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, set_priorities, NULL);
}
static void test_lower_priorities_defer_while_a_higher_one_moves(void **state)
{
    (void)state;
    atomic_store(&precedence_moment_ns, INT64_C(100000) * MILLISECOND);
    assert_false(precedence_must_defer(0));
    precedence_record_progress(2, false);
    assert_true(precedence_must_defer(0) && precedence_must_defer(1));
    assert_false(precedence_must_defer(2) || precedence_must_defer(3));
    precedence_record_progress(5, false);
    precedence_record_progress(2, true);
    assert_true(precedence_must_defer(0) && precedence_must_defer(4));
    precedence_record_progress(5, true);
    assert_false(precedence_must_defer(0));
    precedence_record_progress(1, false);
    /* The record of progress expires at once. */
    atomic_store(&precedence_moment_ns, 0);
    assert_false(precedence_must_defer(0));
    precedence_record_progress(1, true);
}
unit_function test_priority;
int test_priority(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_invalid_priorities_are_refused),
        cmocka_unit_test(test_lower_priorities_defer_while_a_higher_one_moves),
        cmocka_unit_test(test_one_tile_is_in_flight_while_a_higher_priority_moves),
        cmocka_unit_test(test_priorities_change_no_results),
        cmocka_unit_test(test_an_operation_that_waits_for_a_rank_holds_up_no_other),
        cmocka_unit_test(test_ranks_may_set_different_priorities),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
