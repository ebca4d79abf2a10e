/* Hosts that agree on a failure: a rank that only computes takes part, and what is known to fail does not succeed while
   they have not agreed yet. Also what is said of many ranks of both hosts. */
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <stdatomic.h>

static _Thread_local float one[64], other[64];
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)

/* ---- a rank that computes ---- */
static _Atomic int told;
/* Rank 1 sends what it calls a broadcast, and is done; rank 0 waits for another message of it. */
static void one_computes(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 1) {
        REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 1, me->comm, NULL) == TUTTI_OK);
        while (atomic_load(&told) < me->size - 1) sleep_us(1000);
        return;
    }
    REQUIRE(tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_MISMATCH);
    SAYS("broadcast(8 x float32, root 1");
    SAYS("allreduce(8 x float32, sum");
    atomic_fetch_add(&told, 1);
}
static void test_a_rank_that_computes_answers(void **state)
{
    (void)state;
    world_threads_on("2", 2, NULL, one_computes, NULL);
    atomic_store(&told, 0);
    world_threads_on("0,1,0", 3, NULL, one_computes, NULL);
}
/* Nothing is sent that would show it: each of two hosts has made its own calls, until all wait for each other. */
static void differ_unseen(struct rank *me)
{
    bool even = me->rank % 2 == 0;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    tutti_status status = tutti_broadcast(one, one, even ? 8 : 9, TUTTI_FLOAT32, even ? 0 : 1, me->comm, NULL);
    if (status == TUTTI_OK) status = tutti_barrier(me->comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH);
    SAYS("operation 2 of");
    SAYS("broadcast(8 x float32, root 0");
    SAYS("broadcast(9 x float32, root 1");
}
static void test_the_first_difference_is_told(void **state)
{
    (void)state;
    world_threads_on("2", 2, NULL, differ_unseen, NULL);
    world_threads_on("0,1,0,1", 4, NULL, differ_unseen, NULL);
}

/* ---- a rank that is late ---- */
static void one_is_missing(struct rank *me)
{
    tutti_request r = { .struct_size = sizeof r, .timeout_ms = 1500, .blocking = true };
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == 5)
        while (tutti_comm_get_async_error(me->comm) == TUTTI_OK) sleep_us(1000);
    REQUIRE(tutti_all_reduce(one, other, 4, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &r) == TUTTI_TIMEOUT);
    SAYS("this call has not been made by rank 5");
}
/* The ranks that wait for a missing one wait for others of its host, which know. */
static void test_a_rank_missing_on_another_host_is_named(void **state)
{
    (void)state;
    world_threads_on("2", 6, NULL, one_is_missing, NULL);
    world_threads_on("0,1,2,0,1,2", 6, NULL, one_is_missing, NULL);
}

/* Rank 0 is ahead, and its last words are about a later operation; ranks 1 and 2 are in the first, and rank 1 comes to
   it when rank 2 has failed in it. */
static void one_comes_after_it_failed(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    for (int i = 0; me->rank == 0 && i < 4; i++)
        REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 0, me->comm, NULL) == TUTTI_OK);
    if (me->rank == 0) {
        tutti_comm_abort(me->comm);
        return;
    }
    while (me->rank == 1 && !atomic_load(&told)) sleep_us(1000);
    REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 0, me->comm, NULL) == TUTTI_ABORTED);
    atomic_store(&told, 1);
}
static void test_what_failed_on_a_rank_succeeds_on_none_of_its_host(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        atomic_store(&told, 0);
        world_threads_on("0,1,1", 3, NULL, one_comes_after_it_failed, NULL);
    }
}
/* What arrives is read as a number and a fingerprint, whatever the fingerprint. */
static void test_a_name_keeps_number_and_calls_apart(void **state)
{
    struct executor x = { .operation = 5, .run.history = UINT64_MAX };
    (void)state;
    assert_int_equal((uint32_t)executor_message_name(&x), 5);
    assert_int_equal(executor_message_name(&x) >> 63, 0);
    x.run.history = 1;
    assert_int_not_equal(executor_fingerprint_of_name(executor_message_name(&x)), 0);
}

#ifndef NO_PROCESSES
/* Rank 1 is stopped, so that its host does not agree for a while. */
static void fails_before_the_decision(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    if (me->rank == 1) {
        raise(SIGSTOP);
        while (tutti_comm_get_async_error(me->comm) == TUTTI_OK) sleep_us(1000);
        SAYS("rank 0 failed the group: what the test says");
        return;
    }
    sleep_us(100000);
    struct agree_cause cause = { .kind = AGREE_FAILED, .status = TUTTI_SYSTEM, .other = -1 };
    strcpy(cause.detail, "what the test says");
    agreement_propose_cause(me->comm->agreement, &cause);
    REQUIRE(agreement_is_failing(me->comm->agreement));
    REQUIRE(comm_fail(me->comm, TUTTI_TIMEOUT, "what comes %s", "second") == TUTTI_TIMEOUT);
    SAYS("what comes second");                          /* what returns an error tells it */
    /* it has all it needs */
    REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 0, me->comm, NULL) == TUTTI_SYSTEM);
    SAYS("what the test says");
    REQUIRE(agreement_has_decided(me->comm->agreement));
    REQUIRE(kill((pid_t)me->comm->group.members[1].identity.pid, SIGCONT) == 0);
}
static void test_what_fails_does_not_succeed_before_the_decision(void **state)
{
    (void)state;
    world_pretend("2");
    assert_int_equal(world_processes(2, 30, fails_before_the_decision, NULL), 0);
    world_pretend("");
}
/* Of each host the first, which speaks for it, and the last. */
static void two_die(struct rank *me)
{
    tutti_status status = tutti_barrier(me->comm, NULL); /* who is done with it may die while another is still in it */
    if (me->rank == 0 || me->rank == 3) raise(SIGKILL);
    while (status == TUTTI_OK) status = tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS("died");
}
static void test_speakers_that_die_hold_up_nobody(void **state)
{
    (void)state;
    world_pretend("2");
    assert_int_equal(world_processes(6, 30, two_die, NULL), 2);
    world_pretend("");
}
#endif
unit_function test_agreement;
int test_agreement(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_what_fails_does_not_succeed_before_the_decision),
        cmocka_unit_test(test_speakers_that_die_hold_up_nobody),
#endif
        cmocka_unit_test(test_a_rank_that_computes_answers),
        cmocka_unit_test(test_the_first_difference_is_told),
        cmocka_unit_test(test_a_rank_missing_on_another_host_is_named),
        cmocka_unit_test(test_what_failed_on_a_rank_succeeds_on_none_of_its_host),
        cmocka_unit_test(test_a_name_keeps_number_and_calls_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
