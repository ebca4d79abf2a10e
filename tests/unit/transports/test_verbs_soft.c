/* The contract over a real libibverbs and whatever device there is: soft-RoCE in a guest (script/test-verbs), or
   hardware. Skipped where there is none. */
#include "backend/transports/verbs/verbs.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"

static void test_between_processes_that_poll(void **state)
{
    (void)state;
    ranks_fabric_processes(&verbs_fabric, 2, POLLS, the_contract);
}
static void test_between_processes_that_sleep(void **state)
{
    (void)state;
    ranks_fabric_processes(&verbs_fabric, 3, SLEEPS, the_contract);
}
static void test_a_process_that_is_gone(void **state)
{
    (void)state;
    ranks_fabric_processes(&verbs_fabric, 3, POLLS, the_last_rank_goes);
}
unit_function test_verbs_soft;
int test_verbs_soft(void)
{
    if (!fabric_is_there("verbs", verbs_describe)) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_processes_that_poll),
        cmocka_unit_test(test_between_processes_that_sleep),
        cmocka_unit_test(test_a_process_that_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
