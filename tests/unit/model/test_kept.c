/* Figures on disk: what was written is read, and nothing else is. */
#include "backend/base/settings.h"
#include "tests/support/said.h"
#include "tests/support/unit.h"
#include "tests/unit/model/machines.h"
#include <dirent.h>
#include <sys/stat.h>

static char root[64], folder[128], file[512], text[4096];
static size_t length;
static const char identity[] = "tutti 1, a processor, 2 cores, Linux 6";

static int names(char *first)                           /* how many there are in the folder */
{
    int count = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.' && ++count == 1) snprintf(first, sizeof file, "%s/%s", folder, e->d_name);
    if (d) closedir(d);
    return count;
}
static void save(const char *bytes, size_t count)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, count, f), count);
    fclose(f);
}
static bool reads(void)
{
    struct machine found = { 0 };
    bool read = machine_file_read(folder, identity, &found);
    assert_true(read ? machine_is_within_bounds(&found) : found.l2 == 0);       /* untouched when it fails */
    return read;
}
static int set_up(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "%s", "kept-XXXXXX");
    if (!mkdtemp(root)) return 1;
    snprintf(folder, sizeof folder, "%s/one/two", root);
    if (!machine_file_write(folder, identity, &near_cores) || names(file) != 1) return 1;
    FILE *f = fopen(file, "r");
    length = fread(text, 1, sizeof text, f);
    fclose(f);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    char above[sizeof folder];
    while (names(file)) unlink(file);
    rmdir(folder);
    snprintf(above, sizeof above, "%s/one", root);
    rmdir(above);
    return rmdir(root);
}
static void what_was_written_is_read(void **state)
{
    (void)state;
    struct machine found;
    assert_true(machine_file_read(folder, identity, &found));
    assert_memory_equal(&found, &near_cores, sizeof found);
    assert_true(machine_file_write(folder, identity, &far_cores)); /* replaces it, and leaves nothing beside */
    assert_int_equal(names(file), 1);
    assert_true(machine_file_read(folder, identity, &found));
    assert_memory_equal(&found, &far_cores, sizeof found);
}
static void other_machines_have_files_of_their_own(void **state)
{
    (void)state;
    struct machine found;
    assert_false(machine_file_read(folder, "tutti 2, a processor, 2 cores, Linux 6", &found));
    assert_true(machine_file_write(folder, "another", &far_cores));
    assert_int_equal(names(file), 2);
    assert_true(machine_file_read(folder, identity, &found));
    assert_memory_equal(&found, &near_cores, sizeof found);
}
static void a_file_of_another_identity_is_not_believed(void **state)
{
    (void)state;
    char other[sizeof file], mine[sizeof file];
    snprintf(mine, sizeof mine, "%s", file);
    assert_int_equal(unlink(mine), 0);
    assert_true(machine_file_write(folder, "another", &near_cores));
    assert_int_equal(names(other), 1);
    assert_int_equal(rename(other, mine), 0);           /* whole, but of another machine */
    assert_false(reads());
}
static void no_broken_byte_is_believed(void **state)
{
    (void)state;
    for (size_t i = 0; i < length; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            char broken[sizeof text];
            memcpy(broken, text, length);
            broken[i] = (char)(broken[i] ^ 1 << bit);
            save(broken, length);
            assert_false(reads());
        }
    save(text, length);
    assert_true(reads());
}
static void half_a_file_is_not_believed(void **state)
{
    (void)state;
    for (size_t i = 0; i < length; i++) {
        save(text, i);
        assert_false(reads());
    }
    save(text, length);
    text[length] = 'x';
    save(text, length + 1);
    assert_false(reads());
}
static void parameters_out_of_bounds_are_refused(void **state)
{
    (void)state;
    const struct machine_row *rows;
    for (int i = 0; i < machine_get_rows(&rows); i++)
        for (int way = 0; way < 2; way++) {
            struct machine m = near_cores;
            machine_set_parameter(&m, i, way ? rows[i].most * 2 : -1);
            assert_true(machine_file_write(folder, identity, &m));             /* with a hash that is right */
            assert_false(reads());
        }
}
static void what_is_no_file_is_not_read(void **state)
{
    (void)state;
    unlink(file);
    assert_false(reads());
    assert_int_equal(mkfifo(file, 0600), 0);            /* nor does it wait for a writer */
    assert_false(reads());
    unlink(file);
    assert_int_equal(mkdir(file, 0700), 0);
    assert_false(reads());
    assert_false(machine_file_write(folder, identity, &near_cores));
    rmdir(file);
}
static void a_folder_that_cannot_be_had_is_no_error(void **state)
{
    (void)state;
    struct machine found;
    char inside[sizeof file + 8];
    snprintf(inside, sizeof inside, "%s/no", file);     /* in a file, so that not even root may */
    assert_false(machine_file_write(inside, identity, &near_cores));
    assert_false(machine_file_read(inside, identity, &found));
    assert_false(machine_file_write("", identity, &near_cores));
    assert_false(machine_file_write("kept-a/b/c/d", identity, &near_cores));   /* at most the last two are made */
}
static void write_nowhere(void) { machine_file_write("/dev/null/tutti", identity, &near_cores); }
static void a_folder_that_was_asked_for_is_missed(void **state)
{
    (void)state;
    setenv("TUTTI_CACHE", "/dev/null/tutti", 1);        /* in a file, so that not even root may */
    settings_reload();
    assert_non_null(strstr(said_by(write_nowhere),
        "warn: TUTTI_CACHE=/dev/null/tutti: the measured parameters of this "
        "machine cannot be kept there (Not a directory)"));
    unsetenv("TUTTI_CACHE");
    settings_reload();
    assert_string_equal(said_by(write_nowhere), "");    /* in a container no home may be written, and nobody cares */
}
static void the_setting_says_where(void **state)
{
    (void)state;
    char out[256];
    setenv("XDG_CACHE_HOME", "/x", 1);
    setenv("HOME", "/h", 1);
    unsetenv("TUTTI_CACHE");
    settings_reload();
    assert_true(machine_file_folder(out, sizeof out));
    assert_string_equal(out, "/x/tutti");
    setenv("XDG_CACHE_HOME", "relative", 1);            /* which the standard says to ignore */
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
        cmocka_unit_test_setup_teardown(what_was_written_is_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_machines_have_files_of_their_own, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_file_of_another_identity_is_not_believed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_broken_byte_is_believed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(half_a_file_is_not_believed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(parameters_out_of_bounds_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_file_is_not_read, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_folder_that_cannot_be_had_is_no_error, set_up, tear_down),
        cmocka_unit_test(a_folder_that_was_asked_for_is_missed),
        cmocka_unit_test(the_setting_says_where),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
