/* The contract over each network, and over two beside each other, on loopback. Each row of a table is a test, with
   the kind of the ranks, their number, and how they wait. `unit_transports test_contract NETWORK` runs the rows
   of one network. */
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/ucx/ucx.h"
#include "backend/transports/verbs/verbs.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"

#ifdef FEW
enum { LEAST = 2, MOST = 3 };
#else
enum { LEAST = 1, MOST = 4 };
#endif
static struct fabric apart[MOST];
/* THREADS share the fabric of their process. THREADS_APART are threads with a fabric each, as processes have. */
enum ranks_are { PROCESSES, THREADS, THREADS_APART };
/* Runs `each` over `fabric`, and over `next` beside it unless NULL, with groups of `least` to `most` ranks. `odd` and
   `even` are how ranks wait in groups of an odd and of an even size. */
static struct row {
    const char *network, *test;
    enum ranks_are ranks_are;
    struct fabric *fabric, *next;
    int least, most;
    enum waiting odd, even;
    body *each;
} rows[] = {
    /* clang-format off */
    { "tcp", "test_between_processes", PROCESSES, &tcp_fabric, NULL, LEAST, MOST, SLEEPS, POLLS, the_contract },
    { "tcp", "test_a_process_that_is_gone", PROCESSES, &tcp_fabric, NULL, 3, 3, POLLS, POLLS, the_last_rank_goes },
    { "tcp", "test_between_threads", THREADS, &tcp_fabric, NULL, LEAST, MOST, POLLS, SLEEPS, the_contract },
    { "tcp", "test_between_threads_apart", THREADS_APART, apart, NULL, LEAST, MOST, POLLS, SLEEPS, the_contract },
    { "tcp", "test_a_thread_that_is_gone", THREADS_APART, apart, NULL, 3, 3, SLEEPS, SLEEPS, the_last_rank_goes },
    { "ucx", "test_between_processes", PROCESSES, &ucx_fabric, NULL, LEAST, MOST, SLEEPS, POLLS, the_contract },
    { "ucx", "test_a_process_that_is_gone", PROCESSES, &ucx_fabric, NULL, 3, 3, POLLS, POLLS, the_last_rank_goes },
    { "ucx", "test_between_threads", THREADS, &ucx_fabric, NULL, LEAST, MOST, POLLS, SLEEPS, the_contract },
    { "tcp_and_ucx", "test_sockets_and_ucx", PROCESSES, &tcp_fabric, &ucx_fabric, LEAST, MOST, SLEEPS, POLLS,
        the_contract },
    { "tcp_and_ucx", "test_a_process_that_is_gone", PROCESSES, &ucx_fabric, &tcp_fabric, 3, 3, POLLS, POLLS,
        the_last_rank_goes },
    /* The real library and a real device: soft-RoCE in a guest (script/test-verbs), or hardware. */
    { "verbs", "test_between_processes_that_poll", PROCESSES, &verbs_fabric, NULL, 2, 2, POLLS, POLLS, the_contract },
    { "verbs", "test_between_processes_that_sleep", PROCESSES, &verbs_fabric, NULL, 3, 3, SLEEPS, SLEEPS,
        the_contract },
    { "verbs", "test_a_process_that_is_gone", PROCESSES, &verbs_fabric, NULL, 3, 3, POLLS, POLLS, the_last_rank_goes },
    /* clang-format on */
};
enum { ROWS = sizeof rows / sizeof *rows };
#ifdef NO_PROCESSES
static const bool has_processes = false;
#else
static const bool has_processes = true;
#endif

static void run_row(void **state)
{
    const struct row *row = *state;
    for (int size = row->least; size <= row->most; size++) {
        enum waiting waiting = size % 2 ? row->odd : row->even;
        if (row->next) ranks_fabric_processes_beside(row->fabric, row->next, size, waiting, row->each);
        else if (row->ranks_are == PROCESSES) ranks_fabric_processes(row->fabric, size, waiting, row->each);
        else if (row->ranks_are == THREADS) ranks_fabric_threads(row->fabric, size, waiting, row->each);
        else ranks_fabric_apart(row->fabric, size, waiting, row->each);
    }
}
static bool network_is_there(const char *network)
{
    if (strstr(network, "ucx")) return fabric_is_there("UCX", ucx_describe);
    if (strstr(network, "verbs")) return fabric_is_there("verbs", verbs_describe);
    return true;
}
unit_function test_contract;
int test_contract(void)
{
    struct CMUnitTest tests[ROWS] = { 0 };
    const char *network = unit_arguments.count > 1 ? unit_arguments.words[1] : "";
    int count = 0;
    for (struct row *row = rows; row < rows + ROWS; row++)
        if (strcmp(row->network, network) == 0 && (has_processes || row->ranks_are != PROCESSES))
            tests[count++] = (struct CMUnitTest){ row->test, run_row, NULL, NULL, row };
    if (!count) { fprintf(stderr, "no rows are of the network \"%s\"\n", network); return 2; }
    if (!network_is_there(network)) return SKIPPED;
    for (int r = 0; r < MOST; r++) apart[r] = (struct fabric)FABRIC(&tcp_operations);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
