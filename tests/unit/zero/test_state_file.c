/* A file of optimizer states: values are read back after their memory was freed, and errors give the reason. The file
   is in the working directory, which should be on a disk. In a tmpfs only the errors can be tested. */
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "zero/state_file.h"
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>

enum { UNITS = 5, UNIT_BYTES = 1 << 18, TMPFS_MAGIC = 0x01021994 };
static const size_t bytes_of_units[UNITS] = { UNIT_BYTES, UNIT_BYTES - 5, UNIT_BYTES, 0, UNIT_BYTES };
static bool working_directory_is_in_memory(void)
{
    struct statfs system;
    assert_true(statfs(".", &system) == 0);
    return system.f_type == TMPFS_MAGIC;
}
/* Returns how many pages of a unit are in memory. */
static int count_resident_pages(const struct state_file *file, int unit)
{
    unsigned char in_memory[UNIT_BYTES / 4096];
    size_t bytes = file->range[unit].end - file->range[unit].begin, pages = bytes / (size_t)sysconf(_SC_PAGESIZE);
    int count = 0;
    assert_true(mincore(state_file_at(file, unit, 0), bytes, in_memory) == 0);
    for (size_t page = 0; page < pages; page++) count += in_memory[page] & 1;
    return count;
}
static void update_all(struct state_file *file, int step)
{
    for (int u = 0; u < UNITS; u++) {
        int *values = state_file_at(file, u, 0);
        if (u + 1 < UNITS) state_file_prefetch(file, u + 1);
        for (size_t i = 0; i < bytes_of_units[u] / sizeof(int); i++) {
            assert_true(values[i] == (step ? (int)i + u + step - 1 : 0));
            values[i] = (int)i + u + step;
        }
        assert_true(state_file_write_behind(file, u) == TUTTI_OK);
    }
}
static void test_states_are_read_back_from_the_file(void **state)
{
    (void)state;
    struct state_file file;
    if (working_directory_is_in_memory()) skip();
    assert_true(state_file_open(&file, ".", bytes_of_units, UNITS) == TUTTI_OK);
    for (int step = 0; step < 3; step++) update_all(&file, step);
    assert_true(count_resident_pages(&file, UNITS - 1) == UNIT_BYTES / sysconf(_SC_PAGESIZE));
    for (int u = 0; u < UNITS - 2; u++) assert_true(count_resident_pages(&file, u) == 0);
    state_file_close(&file);
}
static void test_no_directory_means_no_file(void **state)
{
    (void)state;
    struct state_file file;
    assert_true(state_file_open(&file, NULL, bytes_of_units, UNITS) == TUTTI_OK && !file.memory);
    state_file_prefetch(&file, 1);
    assert_true(state_file_write_behind(&file, 1) == TUTTI_OK);
    state_file_close(&file);
}
static void expect_refusal(const char *directory, const size_t *bytes, int units, const char *text)
{
    struct state_file file;
    assert_true(state_file_open(&file, directory, bytes, units) == TUTTI_INVALID_ARGUMENT);
    assert_true(status_is_refusal() && strstr(status_detail(), text) && strstr(status_detail(), directory));
    state_file_close(&file);
}
static void test_unusable_directories_are_errors(void **state)
{
    (void)state;
    const size_t huge = (size_t)1 << 60;
    expect_refusal("missing/directory", bytes_of_units, UNITS, "No such file or directory");
    expect_refusal("/proc", bytes_of_units, UNITS, "a file cannot be created");
    if (!working_directory_is_in_memory()) expect_refusal(".", &huge, 1, "there is no room");
}
unit_function test_state_file;
int test_state_file(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_states_are_read_back_from_the_file),
        cmocka_unit_test(test_no_directory_means_no_file),
        cmocka_unit_test(test_unusable_directories_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
