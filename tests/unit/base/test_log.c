/* The log drops a line that stderr does not accept at once, and the next line gives the number of dropped lines. */
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
static void test_log_drops_lines_while_the_pipe_is_full(void **state)
{
    int ends[2], before = dup(STDERR_FILENO);
    char text[2000] = "";
    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    fill(ends[1]);
    /* A log that waited for room would hang here. */
    for (int i = 0; i < DROPPED; i++) log_write(LOG_WARN, "line %d", i);
    drain(ends[0]);
    log_write(LOG_WARN, "one that fits");
    log_write(LOG_WARN, "and another");
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    assert_true(read(ends[0], text, sizeof text - 1) > 0);
    assert_non_null(strstr(text, "warn: (3 earlier lines were lost: stderr did not accept them) one that fits\n"));
    assert_non_null(strstr(text, "warn: and another\n"));
    for (int i = 0; i < 2; i++) close(ends[i]);
    close(before);
}
static void test_log_accepts_a_closed_stderr(void **state)
{
    int before = dup(STDERR_FILENO);
    (void)state;
    close(STDERR_FILENO);
    log_write(LOG_WARN, "a line without a reader");
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    close(before);
}
/* In the locale "C" no wide character above 127 can be converted. Lines that were lost before are still reported. */
static void test_log_reports_a_text_that_cannot_be_formatted(void **state)
{
    int ends[2], before = dup(STDERR_FILENO);
    char said[2000] = "";
    (void)state;
    assert_int_equal(pipe(ends), 0);
    assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
    fill(ends[1]);
    log_write(LOG_WARN, "a lost line");
    drain(ends[0]);
    log_write(LOG_WARN, "rank %d: %ls", 3, L"\u20ac");
    log_write(LOG_WARN, "the next");
    assert_true(dup2(before, STDERR_FILENO) >= 0);
    assert_true(read(ends[0], said, sizeof said - 1) > 0);
    assert_non_null(strstr(said, "warn: (1 earlier lines were lost: stderr did not accept them) "));
    assert_non_null(strstr(said, "a text with the format \"rank %d: %ls\" cannot be formatted\n"));
    assert_non_null(strstr(said, "warn: the next\n"));
    for (int i = 0; i < 2; i++) close(ends[i]);
    close(before);
}
unit_function test_log;
int test_log(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_log_drops_lines_while_the_pipe_is_full),
        cmocka_unit_test(test_log_accepts_a_closed_stderr),
        cmocka_unit_test(test_log_reports_a_text_that_cannot_be_formatted),
    };
    alarm(60);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
