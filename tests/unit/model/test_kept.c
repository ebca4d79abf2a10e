/* Parameters on disk: a file that was written for this machine is read, and no damaged or foreign one. */
#include "backend/base/settings.h"
#include "tests/support/said.h"
#include "tests/support/unit.h"
#include "tests/unit/model/machines.h"
#include <dirent.h>
#include <sys/stat.h>

static char root[64], folder[128], file[512], text[4096];
static size_t length;
static const char identity[] = "tutti 1, a processor, 2 cores, Linux 6";

/* Returns the number of files in the folder, and sets `first` to the path of one. */
static int count_files(char *first)
{
    int count = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && ++count == 1) snprintf(first, sizeof file, "%s/%s", folder, e->d_name);
    if (d) closedir(d);
    return count;
}
static void file_save(const char *bytes, size_t count)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}
static bool file_is_accepted(void)
{
    struct machine found = { 0 };
    bool read = machine_file_read(folder, identity, &found);
    /* A failed read leaves the struct unchanged. */
    assert_true(read ? machine_is_within_bounds(&found) : found.l2 == 0);
    return read;
}
static int set_up(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "%s", "kept-XXXXXX");
    if (!mkdtemp(root)) return 1;
    snprintf(folder, sizeof folder, "%s/one/two", root);
    if (!machine_file_write(folder, identity, &near_cores) || count_files(file) != 1) return 1;
    FILE *f = fopen(file, "r");
    length = fread(text, 1, sizeof text, f);
    fclose(f);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    char above[sizeof folder];
    while (count_files(file)) unlink(file);
    rmdir(folder);
    snprintf(above, sizeof above, "%s/one", root);
    rmdir(above);
    return rmdir(root);
}
static void test_written_parameters_are_read(void **state)
{
    (void)state;
    struct machine found;
    assert_true(machine_file_read(folder, identity, &found));
    assert_memory_equal(&found, &near_cores, sizeof found);
    /* The new file replaces the old one, and no temporary file is left. */
    assert_true(machine_file_write(folder, identity, &far_cores));
    assert_int_equal(count_files(file), 1);
    assert_true(machine_file_read(folder, identity, &found));
    assert_memory_equal(&found, &far_cores, sizeof found);
}
static void test_other_machines_have_files_of_their_own(void **state)
{
    (void)state;
    struct machine found;
    assert_false(machine_file_read(folder, "tutti 2, a processor, 2 cores, Linux 6", &found));
    assert_true(machine_file_write(folder, "another", &far_cores));
    assert_int_equal(count_files(file), 2);
    assert_true(machine_file_read(folder, identity, &found));
    assert_memory_equal(&found, &near_cores, sizeof found);
}
static void test_file_of_another_machine_is_not_read(void **state)
{
    (void)state;
    char other[sizeof file], mine[sizeof file];
    snprintf(mine, sizeof mine, "%s", file);
    assert_int_equal(unlink(mine), 0);
    assert_true(machine_file_write(folder, "another", &near_cores));
    assert_int_equal(count_files(other), 1);
    /* The file is complete, but of another machine. */
    assert_int_equal(rename(other, mine), 0);
    assert_false(file_is_accepted());
}
static void test_file_with_a_changed_bit_is_not_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < length; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            char broken[sizeof text];
            memcpy(broken, text, length);
            broken[i] = (char)(broken[i] ^ 1 << bit);
            file_save(broken, length);
            assert_false(file_is_accepted());
        }
    file_save(text, length);
    assert_true(file_is_accepted());
}
static void test_file_of_wrong_length_is_not_read(void **state)
{
    (void)state;
    for (size_t i = 0; i < length; i++) {
        file_save(text, i);
        assert_false(file_is_accepted());
    }
    file_save(text, length);
    text[length] = 'x';
    file_save(text, length + 1);
    assert_false(file_is_accepted());
}
static void test_parameters_out_of_bounds_are_not_read(void **state)
{
    (void)state;
    const struct machine_row *rows;
    for (int i = 0; i < machine_get_rows(&rows); i++)
        for (int way = 0; way < 2; way++) {
            struct machine m = near_cores;
            machine_set_parameter(&m, i, way ? rows[i].most * 2 : -1);
            /* The hash in the file is right. */
            assert_true(machine_file_write(folder, identity, &m));
            assert_false(file_is_accepted());
        }
}
static void test_pipe_or_folder_is_not_read(void **state)
{
    (void)state;
    unlink(file);
    assert_false(file_is_accepted());
    assert_int_equal(mkfifo(file, 0600), 0);
    /* The function must not wait for a writer of the pipe. */
    assert_false(file_is_accepted());
    unlink(file);
    assert_int_equal(mkdir(file, 0700), 0);
    assert_false(file_is_accepted());
    assert_false(machine_file_write(folder, identity, &near_cores));
    rmdir(file);
}
static void test_folder_that_cannot_be_created_is_no_error(void **state)
{
    (void)state;
    struct machine found;
    char inside[sizeof file + 8];
    /* Not even root can create a folder in a file. */
    snprintf(inside, sizeof inside, "%s/no", file);
    assert_false(machine_file_write(inside, identity, &near_cores));
    assert_false(machine_file_read(inside, identity, &found));
    assert_false(machine_file_write("", identity, &near_cores));
    /* At most the last two folders of a path are created. */
    assert_false(machine_file_write("kept-a/b/c/d", identity, &near_cores));
}
static void write_nowhere(void) { machine_file_write("/dev/null/tutti", identity, &near_cores); }
static void test_folder_of_the_user_that_cannot_be_created_is_warned_of(void **state)
{
    (void)state;
    /* Not even root can create a folder in a file. */
    setenv("TUTTI_CACHE", "/dev/null/tutti", 1);
    settings_reload();
    assert_non_null(strstr(said_by(write_nowhere),
        "warn: TUTTI_CACHE=/dev/null/tutti: the measured parameters of this "
        "machine cannot be kept there (Not a directory)"));
    unsetenv("TUTTI_CACHE");
    settings_reload();
    /* A default folder that cannot be written, as in a container, is no reason for a warning. */
    assert_string_equal(said_by(write_nowhere), "");
}
static void test_setting_names_the_folder(void **state)
{
    (void)state;
    char out[256];
    setenv("XDG_CACHE_HOME", "/x", 1);
    setenv("HOME", "/h", 1);
    unsetenv("TUTTI_CACHE");
    settings_reload();
    assert_true(machine_file_folder(out, sizeof out));
    assert_string_equal(out, "/x/tutti");
    /* The standard of this variable ignores relative paths. */
    setenv("XDG_CACHE_HOME", "relative", 1);
    assert_true(machine_file_folder(out, sizeof out));
    assert_string_equal(out, "/h/.cache/tutti");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_false(machine_file_folder(out, sizeof out));
    setenv("TUTTI_CACHE", "/elsewhere", 1);
    settings_reload();
    assert_true(machine_file_folder(out, sizeof out));
    assert_string_equal(out, "/elsewhere");
    assert_false(machine_file_folder(out, 5));
    setenv("TUTTI_CACHE", "none", 1);
    settings_reload();
    assert_false(machine_file_folder(out, sizeof out));
}

unit_function test_kept;
int test_kept(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_written_parameters_are_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_other_machines_have_files_of_their_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_of_another_machine_is_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_with_a_changed_bit_is_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_file_of_wrong_length_is_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_parameters_out_of_bounds_are_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_pipe_or_folder_is_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_folder_that_cannot_be_created_is_no_error, set_up, tear_down),
        cmocka_unit_test(test_folder_of_the_user_that_cannot_be_created_is_warned_of),
        cmocka_unit_test(test_setting_names_the_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
