/* Constant memfds: no process can change one, and one that could change or fault is not mapped. */
#include "backend/base/status.h"
#include "backend/memory/memfd.h"
#include "tests/support/unit.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { BYTES = 3 * 4096 + 5, CONSTANT_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };
static unsigned char contents[BYTES];
static int create_constant(void)
{
    int descriptor;
    for (int i = 0; i < BYTES; i++) contents[i] = (unsigned char)(i * 7 + 1);
    assert_int_equal(memfd_create_constant(contents, BYTES, "a table", &descriptor), TUTTI_OK);
    return descriptor;
}
static void test_constant_file_has_the_bytes(void **state)
{
    const void *mapped;
    int descriptor = create_constant();
    assert_int_equal(memfd_map_constant(descriptor, BYTES, "the group's", &mapped), TUTTI_OK);
    close(descriptor);
    assert_memory_equal(mapped, contents, BYTES);
    munmap((void *)(uintptr_t)mapped, BYTES);
    (void)state;
}
static void test_constant_file_cannot_be_changed(void **state)
{
    int descriptor = create_constant();
    assert_int_equal(pwrite(descriptor, "x", 1, 0), -1);
    assert_int_equal(ftruncate(descriptor, 0), -1);
    assert_int_equal(ftruncate(descriptor, 2 * BYTES), -1);
    assert_int_equal(fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
    assert_true(mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0) == MAP_FAILED);
    close(descriptor);
    (void)state;
}
/* Checks that the file is refused with a text that has that part, and closes it. */
static void expect_refused(int descriptor, const char *text)
{
    const void *mapped = NULL;
    assert_true(descriptor >= 0);
    assert_int_equal(memfd_map_constant(descriptor, BYTES, "the group's", &mapped), TUTTI_SYSTEM);
    if (!strstr(status_detail(), text)) fail_msg("\"%s\" instead of \"%s\"", status_detail(), text);
    assert_null(mapped);
    close(descriptor);
}
/* Makes a memfd of that size with those seals. It has its pages if `is_written`. */
static int make_file(size_t bytes, int seals, bool is_written)
{
    int descriptor = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(descriptor, (off_t)bytes), 0);
    if (is_written) assert_int_equal(fallocate(descriptor, 0, 0, (off_t)bytes), 0);
    assert_int_equal(fcntl(descriptor, F_ADD_SEALS, seals), 0);
    return descriptor;
}
static void test_file_that_may_change_or_fault_is_refused(void **state)
{
    static const int seals[] = { 0, F_SEAL_SHRINK, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
        F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE };
    for (size_t i = 0; i < sizeof seals / sizeof *seals; i++)
        expect_refused(make_file(BYTES, seals[i], true), "the group's shared memory is not sealed against changes");
    expect_refused(make_file(BYTES - 1, CONSTANT_SEALS, true), "is 12292 bytes and should be 12293");
    expect_refused(make_file(BYTES + 4096, CONSTANT_SEALS, true), "is 16389 bytes and should be 12293");
    expect_refused(make_file(0, CONSTANT_SEALS, false), "is 0 bytes and should be 12293");
    expect_refused(make_file(BYTES, CONSTANT_SEALS, false), "has pages that are not allocated");
    (void)state;
}
static void test_file_that_is_no_memfd_is_refused(void **state)
{
    int pair[2];
    assert_int_equal(pipe(pair), 0);
    expect_refused(pair[0], "not sealed against changes");
    close(pair[1]);
    char path[] = "memfd-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    assert_int_equal(write(file, contents, BYTES), BYTES);
    expect_refused(file, "not sealed against changes");
    (void)state;
}
/* The sender may change the size of such a file after the check, so its size and pages do not count. */
static void test_seals_are_checked_before_size_and_pages(void **state)
{
    int shrinking = make_file(BYTES - 1, 0, true);
    expect_refused(make_file(BYTES - 1, 0, true), "not sealed against changes");
    expect_refused(make_file(BYTES, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, false), "not sealed against changes");
    assert_int_equal(memfd_check(shrinking, BYTES, "the group's"), TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "not sealed against shrinking"));
    close(shrinking);
    (void)state;
}
static void test_limits_are_errors_that_name_them(void **state)
{
    struct rlimit before, none = { 0 };
    int descriptor = 7;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    none = (struct rlimit){ 4096, before.rlim_max };
    setrlimit(RLIMIT_FSIZE, &none);
    tutti_status status = memfd_create_constant(contents, BYTES, "a table", &descriptor);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(status, TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "ulimit -f"));
    assert_int_equal(descriptor, -1);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = (struct rlimit){ 0, before.rlim_max };
    setrlimit(RLIMIT_NOFILE, &none);
    status = memfd_create_constant(contents, BYTES, "a table", &descriptor);
    setrlimit(RLIMIT_NOFILE, &before);
    assert_int_equal(status, TUTTI_SYSTEM);
    assert_non_null(strstr(status_detail(), "too many open files"));
    assert_int_equal(descriptor, -1);
    (void)state;
}

unit_function test_memfd;
int test_memfd(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_constant_file_has_the_bytes),
        cmocka_unit_test(test_constant_file_cannot_be_changed),
        cmocka_unit_test(test_file_that_may_change_or_fault_is_refused),
        cmocka_unit_test(test_file_that_is_no_memfd_is_refused),
        cmocka_unit_test(test_seals_are_checked_before_size_and_pages),
        cmocka_unit_test(test_limits_are_errors_that_name_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
