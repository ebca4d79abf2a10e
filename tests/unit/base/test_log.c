/* A line of the log is dropped rather than waited for, and the next line says so. */
#include "backend/base/log.h"
#include "tests/support/unit.h"
#include <fcntl.h>

enum { DROPPED = 3 };
static void fill(int pipe_end)
{
    char bytes[4096] = { 0 };
    assert_int_equal(fcntl(pipe_end, F_SETFL, O_NONBLOCK), 0);
    while (write(pipe_end, bytes, sizeof bytes) > 0);
    assert_int_equal(fcntl(pipe_end, F_SETFL, 0), 0);
}
static void drain(int pipe_end)
{
    char bytes[4096];
    assert_int_equal(fcntl(pipe_end, F_SETFL, O_NONBLOCK), 0);
    while (read(pipe_end, bytes, sizeof bytes) > 0);
}
static void test_a_full_pipe_holds_nobody_up(void **state)
{
    int ends[2], before = dup(STDERR_FILENO);
    char said[2000] = "";
    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    fill(ends[1]);
    for (int i = 0; i < DROPPED; i++) log_write(LOG_WARN, "line %d", i);       /* would wait for ever */
    drain(ends[0]);
    log_write(LOG_WARN, "one that fits");
    log_write(LOG_WARN, "and another");
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    assert_non_null(strstr(said, "warn: (3 earlier lines were lost: stderr did not accept them) one that fits\n"));
    assert_non_null(strstr(said, "warn: and another\n"));
    for (int i = 0; i < 2; i++) close(ends[i]);
    close(before);
}
static void test_a_closed_stderr_is_no_hindrance(void **state)
{
    int before = dup(STDERR_FILENO);
    (void)state;
    close(STDERR_FILENO);
    log_write(LOG_WARN, "nobody reads this");
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
}
unit_function test_log;
int test_log(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_full_pipe_holds_nobody_up),
        cmocka_unit_test(test_a_closed_stderr_is_no_hindrance),
    };
    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
