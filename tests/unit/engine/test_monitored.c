/* The monitored barrier: it completes when all ranks have called it, and otherwise reports to rank 0 which ranks are
   missing. */
#include "tests/support/unit.h"
#include "tests/support/world.h"

enum { RANKS = 4, SHORT_MS = 200, LONG_MS = 60000 };
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)

static void all_come(struct rank *me)
{
    bool missing[RANKS] = { true, true, true, true };
    for (int i = 0; i < 20; i++) {
        REQUIRE(tutti_monitored_barrier(me->comm, i % 2 ? LONG_MS : INT64_MAX, me->rank ? NULL : missing) == TUTTI_OK);
        for (int r = 0; r < me->size && !me->rank; r++) REQUIRE(!missing[r]);
    }
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void test_the_barrier_completes_when_all_ranks_have_called_it(void **state)
{
    (void)state;
    for (int size = 1; size <= RANKS; size++) world_threads(size, NULL, all_come, NULL);
    world_threads_on("0,1,0", 3, NULL, all_come, NULL);
}
/* Rank 2 does not call the barrier. It waits for the failure that this causes. */
static void one_is_missing(struct rank *me)
{
    bool missing[RANKS] = { false };
    int32_t x = 0;
    if (me->rank == 2) {
        REQUIRE(tutti_recv(&x, 1, TUTTI_INT32, 0, 7, me->comm, NULL) == TUTTI_ABORTED);
        return;
    }
    tutti_status status = tutti_monitored_barrier(me->comm, me->rank ? LONG_MS : SHORT_MS, missing);
    REQUIRE(status == (me->rank ? TUTTI_ABORTED : TUTTI_TIMEOUT) && !tutti_last_error_is_refusal());
    if (me->rank) return;
    SAYS("waited 200 ms for the others in a monitored barrier");
    REQUIRE(!missing[0] && !missing[1] && missing[2] && !missing[3]);
}
static void test_rank_0_gets_the_missing_rank(void **state)
{
    (void)state;
    world_threads(RANKS, NULL, one_is_missing, NULL);
}
static void wrong_arguments(struct rank *me)
{
    REQUIRE(tutti_monitored_barrier(me->comm, 0, NULL) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal());
    SAYS("a timeout of 1 ms or more, not 0");
    if (me->rank) return;
    REQUIRE(tutti_monitored_barrier(me->comm, 5, NULL) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal());
    SAYS("the array for the missing ranks is NULL");
    REQUIRE(tutti_monitored_barrier(NULL, 5, NULL) == TUTTI_INVALID_ARGUMENT);
}
static void test_wrong_arguments_are_refused(void **state)
{
    (void)state;
    world_threads(2, NULL, wrong_arguments, NULL);
}

unit_function test_monitored;
int test_monitored(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_barrier_completes_when_all_ranks_have_called_it),
        cmocka_unit_test(test_rank_0_gets_the_missing_rank),
        cmocka_unit_test(test_wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
