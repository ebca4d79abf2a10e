/* Hosts that agree on a failure. A rank that computes takes part, and an operation that is known to fail does not
   succeed before the hosts have decided. Errors name ranks and calls of all hosts. */
#include "backend/engine/comm.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>
#include <stdatomic.h>

static _Thread_local float one[64], other[64];
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)

/* ---- a rank that computes ---- */
/* The number of ranks that have reported the failure. */
static _Atomic int failed_ranks;
/* Rank 1 is the root of a broadcast, which completes, and then makes no calls. The others call an all-reduce, for which
   they need another message of rank 1. */
static void one_computes(struct rank *me)
{
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    world_meet(me);
    if (me->rank == 1) {
        REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 1, me->comm, NULL) == TUTTI_OK);
        while (atomic_load(&failed_ranks) < me->size - 1) sleep_us(1000);
        return;
    }
    REQUIRE(tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_MISMATCH);
    SAYS("broadcast(8 x float32, root 1");
    SAYS("allreduce(8 x float32, sum");
    atomic_fetch_add(&failed_ranks, 1);
}
static void test_a_rank_that_computes_takes_part_in_an_agreement(void **state)
{
    (void)state;
    world_threads_on("2", 2, NULL, one_computes, NULL);
    atomic_store(&failed_ranks, 0);
    world_threads_on("0,1,0", 3, NULL, one_computes, NULL);
}
/* Each of two hosts calls its own broadcast, for which it needs no message of the other host. The difference shows in
   the barrier, in which all ranks wait for each other. */
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
static void test_the_first_differing_operation_is_reported(void **state)
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
/* Ranks of other hosts wait for ranks of rank 5's host, which know that rank 5 is missing. */
static void test_a_rank_missing_on_another_host_is_named(void **state)
{
    (void)state;
    world_threads_on("2", 6, NULL, one_is_missing, NULL);
    world_threads_on("0,1,2,0,1,2", 6, NULL, one_is_missing, NULL);
}

/* Rank 0 is ahead, and aborts in a later operation. Ranks 1 and 2 of the other host are at the first broadcast; rank 1
   calls it after it has failed on rank 2. */
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
    while (me->rank == 1 && !atomic_load(&failed_ranks)) sleep_us(1000);
    REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 0, me->comm, NULL) == TUTTI_ABORTED);
    atomic_store(&failed_ranks, 1);
}
static void test_an_operation_that_failed_on_a_rank_fails_on_its_host(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) {
        atomic_store(&failed_ranks, 0);
        world_threads_on("0,1,1", 3, NULL, one_comes_after_it_failed, NULL);
    }
}
/* A message name has the operation's number and a fingerprint of the calls. No fingerprint changes the number. */
static void test_a_message_name_separates_number_and_fingerprint(void **state)
{
    struct executor x = { .operation = 5, .run.history = UINT64_MAX };
    (void)state;
    assert_int_equal((uint32_t)executor_message_name(&x), 5);
    assert_int_equal(executor_message_name(&x) >> 63, 0);
    x.run.history = 1;
    assert_int_not_equal(executor_fingerprint_of_name(executor_message_name(&x)), 0);
}

#ifndef NO_PROCESSES
/* Rank 1 is stopped, so its host does not take part in the agreement for a while. */
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
    /* A call that returns an error gives its own text. */
    SAYS("what comes second");
    /* The broadcast has all that it needs, and fails even so. */
    REQUIRE(tutti_broadcast(one, one, 8, TUTTI_FLOAT32, 0, me->comm, NULL) == TUTTI_SYSTEM);
    SAYS("what the test says");
    REQUIRE(agreement_has_decided(me->comm->agreement));
    REQUIRE(kill((pid_t)me->comm->group.members[1].identity.pid, SIGCONT) == 0);
}
static void test_a_failing_operation_does_not_succeed_before_the_decision(void **state)
{
    (void)state;
    world_pretend("2");
    assert_int_equal(world_processes(2, 30, fails_before_the_decision, NULL), 0);
    world_pretend("");
}
/* Ranks 0 and 3 die, the speakers of the two hosts. */
static void two_die(struct rank *me)
{
    /* A speaker that has completed the barrier may die while another rank is still in it. */
    tutti_status status = tutti_barrier(me->comm, NULL);
    if (me->rank == 0 || me->rank == 3) raise(SIGKILL);
    while (status == TUTTI_OK) status = tutti_all_reduce(one, other, 8, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL);
    REQUIRE(status == TUTTI_PEER_LOST);
    SAYS("died");
}
static void test_survivors_report_the_death_of_all_speakers(void **state)
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
        cmocka_unit_test(test_a_failing_operation_does_not_succeed_before_the_decision),
        cmocka_unit_test(test_survivors_report_the_death_of_all_speakers),
#endif
        cmocka_unit_test(test_a_rank_that_computes_takes_part_in_an_agreement),
        cmocka_unit_test(test_the_first_differing_operation_is_reported),
        cmocka_unit_test(test_a_rank_missing_on_another_host_is_named),
        cmocka_unit_test(test_an_operation_that_failed_on_a_rank_fails_on_its_host),
        cmocka_unit_test(test_a_message_name_separates_number_and_fingerprint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
