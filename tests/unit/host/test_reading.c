/* A read of the memory of another process returns its bytes. It fails if the process has ended or another process has
   its id, and if the memory is unreadable; the error gives the reason. */
#include "backend/base/status.h"
#include "backend/host/reading.h"
#include "tests/support/forbid.h"
#include "tests/support/unit.h"
#include <errno.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { BYTES = 100003 };
static unsigned char memory[BYTES], nonce[NONCE_BYTES] = "a random number";

/* Forks a process with other contents at the same addresses. It sleeps until it is killed. */
static pid_t other_process(void)
{
    int ready[2];
    char word;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child) {
        assert_int_equal(read(ready[0], &word, 1), 1);
        close(ready[0]);
        close(ready[1]);
        return child;
    }
    for (size_t i = 0; i < BYTES; i++) memory[i] = (unsigned char)(i * 7 + i / 256);
    nonce[0] = '!';
    if (write(ready[1], "r", 1) != 1) _exit(1);
    for (;;) pause();
}
static struct read_source source_of(pid_t process)
{
    struct read_source source = { .process = process, .nonce_at = (uintptr_t)nonce };
    memcpy(source.nonce, nonce, sizeof nonce);
    source.nonce[0] = '!';
    return source;
}
static void process_kill(pid_t process)
{
    kill(process, SIGKILL);
    waitpid(process, NULL, 0);
}
static void test_reading_returns_the_bytes_of_the_process(void **state)
{
    static unsigned char got[BYTES];
    (void)state;
    pid_t process = other_process();
    struct read_source source = source_of(process);
    assert_int_equal(reading_test_source(&source), 0);
    assert_int_equal(reading_copy(&source, got, (uintptr_t)memory, BYTES), 0);
    for (size_t i = 0; i < BYTES; i++) assert_int_equal(got[i], (unsigned char)(i * 7 + i / 256));
    process_kill(process);
}
/* Another process may have got the id of a process that has ended. */
static void test_reading_refuses_a_process_without_the_nonce(void **state)
{
    unsigned char got[64];
    (void)state;
    pid_t process = other_process();
    struct read_source source = source_of(process), itself = source_of(getpid()), nobody = source_of(0);
    assert_int_equal(reading_copy(&itself, got, (uintptr_t)memory, sizeof got), -ESRCH);
    assert_int_equal(reading_copy(&nobody, got, (uintptr_t)memory, sizeof got), -ESRCH);
    process_kill(process);
    assert_int_equal(reading_copy(&source, got, (uintptr_t)memory, sizeof got), -ESRCH);
    assert_int_equal(reading_test_source(&source), -ESRCH);
    /* The connections of the process report its end, so reading does not fail the operation. */
    assert_int_equal(reading_failure_status(&source, -EFAULT, 0, 1), TUTTI_IN_PROGRESS);
    assert_non_null(strstr(reading_reason(-ESRCH), "namespace"));
}
static void test_reading_unreadable_memory_fails_with_the_reason(void **state)
{
    unsigned char got[64];
    (void)state;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *hole = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(munmap(hole + page, page), 0);
    pid_t process = other_process();
    struct read_source source = source_of(process);
    assert_int_equal(reading_copy(&source, got, (uintptr_t)hole + page - 32, sizeof got), -EFAULT);
    assert_int_equal(reading_failure_status(&source, -EFAULT, 2, 1), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "rank 2 cannot read the tensor of rank 1"));
    assert_non_null(strstr(status_detail(), "TUTTI_SINGLE_COPY=0"));
    assert_true(reading_is_possible(memory, BYTES) && reading_is_possible(NULL, 0));
    assert_false(reading_is_possible(hole, page + 1));
    munmap(hole, page);
    process_kill(process);
}
/* The kernel maps data pages of its own in every process, directly before the code that it maps there (vdso). Like the
   memory of a device, process_vm_readv cannot read them. */
static void test_reading_is_impossible_for_memory_of_a_device(void **state)
{
    (void)state;
    const unsigned char *code = (const unsigned char *)getauxval(AT_SYSINFO_EHDR);
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char resident;
    if (!code || mincore((void *)(uintptr_t)(code - 2 * page), page, &resident) != 0) skip();
    assert_false(reading_is_possible(code - 2 * page, page));
}
static void test_reading_reports_that_the_kernel_forbids_it(void **state)
{
    (void)state;
    pid_t process = other_process(), reader = fork();
    if (!reader) {
        struct read_source source = source_of(process);
        if (!forbid_reading()) _exit(77);
        bool right = reading_test_source(&source) == -EPERM && !reading_is_possible(memory, 1);
        right = right && reading_failure_status(&source, -EPERM, 2, 1) == TUTTI_SYSTEM;
        _exit(right && strstr(status_detail(), "it could when the group was formed") ? 0 : 1);
    }
    int how;
    waitpid(reader, &how, 0);
    process_kill(process);
    if (WIFEXITED(how) && WEXITSTATUS(how) == 77) skip();
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
    assert_non_null(strstr(reading_reason(-EPERM), "ptrace_scope"));
}

unit_function test_reading;
int test_reading(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading_returns_the_bytes_of_the_process),
        cmocka_unit_test(test_reading_refuses_a_process_without_the_nonce),
        cmocka_unit_test(test_reading_unreadable_memory_fails_with_the_reason),
        cmocka_unit_test(test_reading_is_impossible_for_memory_of_a_device),
        cmocka_unit_test(test_reading_reports_that_the_kernel_forbids_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
