/* The available memory is the smallest of what the machine and the control groups of this process have left. The tests
   write the kernel's files in a folder of their own. */
#include "backend/memory/available.h"
#include "tests/support/unit.h"
#include <sys/stat.h>

static char root[] = "available-XXXXXX";
static void file_write(const char *folder, const char *file, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, folder);
    for (char *slash = strchr(path + strlen(root) + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash) *slash = 0;
        mkdir(path, 0700);
        if (!slash) break;
        *slash = '/';
    }
    snprintf(path + strlen(path), sizeof path - strlen(path), "/%s", file);
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs(text, out);
    fclose(out);
}
static uint64_t available(void)
{
    char proc[64], cgroups[64];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroups, sizeof cgroups, "%s/groups", root);
    return memory_available_bytes(proc, cgroups);
}
static int setup(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}
static int empty(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}
static int empty_again(void **state) { return empty(state) || mkdir(root, 0700); }

static void test_available_memory_is_unknown_without_files(void **state)
{
    (void)state;
    assert_true(available() == UINT64_MAX);
    file_write("proc", "meminfo", "MemTotal: 100 kB\n");
    assert_true(available() == UINT64_MAX);
}
static void test_available_memory_is_that_of_the_machine(void **state)
{
    (void)state;
    file_write("proc", "meminfo",
        "MemTotal:       24683920 kB\nMemFree:  17 kB\nMemAvailable:   5000 kB\nBuffers: 1 kB\n");
    assert_int_equal(available(), 5000 * 1024);
    file_write("proc/self", "cgroup", "0::/\n");
    assert_int_equal(available(), 5000 * 1024);
}
static void test_available_memory_obeys_groups_of_version_2(void **state)
{
    (void)state;
    file_write("proc", "meminfo", "MemAvailable: 5000 kB\n");
    file_write("proc/self", "cgroup", "1:name=systemd:/x\n0::/above/mine\n");
    file_write("groups/above/mine", "memory.max", "max\n");
    file_write("groups/above/mine", "memory.current", "7000\n");
    assert_int_equal(available(), 5000 * 1024);
    file_write("groups/above", "memory.max", "10000\n");
    file_write("groups/above", "memory.current", "9000\n");
    assert_int_equal(available(), 1000);
    file_write("groups/above", "memory.stat", "anon 1\ninactive_file 300\nfile 77\nactive_file 200\n");
    assert_int_equal(available(), 1500);
    file_write("groups/above/mine", "memory.max", "7100\n");
    assert_int_equal(available(), 100);
    file_write("groups/above/mine", "memory.max", "10\n");
    assert_int_equal(available(), 0);
}
static void test_available_memory_obeys_groups_of_version_1(void **state)
{
    (void)state;
    file_write("proc", "meminfo", "MemAvailable: 5000 kB\n");
    file_write("proc/self", "cgroup", "8:pids:/\n4:memory:/mine\n3:cpuset:/\n");
    file_write("groups/memory/mine", "memory.limit_in_bytes", "9000\n");
    file_write("groups/memory/mine", "memory.usage_in_bytes", "8000\n");
    file_write("groups/memory/mine", "memory.stat", "inactive_file 5\ntotal_inactive_file 50\n");
    assert_int_equal(available(), 1050);
    /* The kernel writes this number where the group has no limit. */
    file_write("groups/memory", "memory.limit_in_bytes", "9223372036854771712\n");
    file_write("groups/memory", "memory.usage_in_bytes", "8000\n");
    assert_int_equal(available(), 1050);
}
static void test_available_memory_is_less_than_that_of_this_machine(void **state)
{
    (void)state;
    if (access("/proc/meminfo", R_OK) != 0) skip();
    uint64_t bytes = memory_available_bytes("/proc", "/sys/fs/cgroup");
    assert_true(bytes > 0 && bytes < (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
}

unit_function test_available;
int test_available(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_available_memory_is_unknown_without_files, empty_again),
        cmocka_unit_test_teardown(test_available_memory_is_that_of_the_machine, empty_again),
        cmocka_unit_test_teardown(test_available_memory_obeys_groups_of_version_2, empty_again),
        cmocka_unit_test_teardown(test_available_memory_obeys_groups_of_version_1, empty_again),
        cmocka_unit_test_teardown(test_available_memory_is_less_than_that_of_this_machine, empty_again),
    };
    return cmocka_run_group_tests(tests, setup, empty);
}
