/* The contract over TCP, on loopback: between processes, between threads that share the sockets of theirs, and between
   threads that are like processes. */
#include "backend/transports/tcp/tcp.h"
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
        ranks_fabric_processes(&tcp_fabric, size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_a_process_that_is_gone(void **state)
{
    (void)state;
    ranks_fabric_processes(&tcp_fabric, 3, POLLS, the_last_rank_goes);
}
#endif
static void test_between_threads(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++)
        ranks_fabric_threads(&tcp_fabric, size, size % 2 ? POLLS : SLEEPS, the_contract);
}
static struct fabric fabrics[MOST];
static void test_between_threads_apart(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++)
        ranks_fabric_apart(fabrics, size, size % 2 ? POLLS : SLEEPS, the_contract);
}
static void test_a_thread_that_is_gone(void **state)
{
    (void)state;
    ranks_fabric_apart(fabrics, 3, SLEEPS, the_last_rank_goes);
}
unit_function test_tcp;
int test_tcp(void)
{
    for (int r = 0; r < MOST; r++) fabrics[r] = (struct fabric)FABRIC(&tcp_operations);
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_between_processes),
        cmocka_unit_test(test_a_process_that_is_gone),
#endif
        cmocka_unit_test(test_between_threads),
        cmocka_unit_test(test_between_threads_apart),
        cmocka_unit_test(test_a_thread_that_is_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
