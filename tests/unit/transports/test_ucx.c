/* The contract over UCX, on loopback: between processes, and between threads that share the worker of theirs. */
#include "backend/base/status.h"
#include "backend/transports/ucx/ucx.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"

#ifdef FEW
enum { LEAST = 2, MOST = 3 };
#else
enum { LEAST = 1, MOST = 4 };
#endif
#ifndef NO_PROCESSES
static void test_between_processes(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++)
        ranks_fabric_processes(&ucx_fabric, size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_a_process_that_is_gone(void **state)
{
    (void)state;
    ranks_fabric_processes(&ucx_fabric, 3, POLLS, the_last_rank_goes);
}
#endif
static void test_between_threads(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++)
        ranks_fabric_threads(&ucx_fabric, size, size % 2 ? POLLS : SLEEPS, the_contract);
}
unit_function test_ucx;
int test_ucx(void)
{
    if (!fabric_is_there("UCX", ucx_describe)) return SKIPPED;
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_between_processes),
        cmocka_unit_test(test_a_process_that_is_gone),
#endif
        cmocka_unit_test(test_between_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
