/* The probe runs on this machine, whatever it is. Its parameters are within their bounds, or typical, and the caller
   may use the same cores as before. */
#include "backend/base/memory.h"
#include "backend/model/machine.h"
#include "tests/support/unit.h"
#include <math.h>
#include <sched.h>

static void stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void test_probed_parameters_are_within_bounds(void **state)
{
    (void)state;
    struct machine m;
    machine_probe(stream, NULL, &m);
    assert_true(machine_is_within_bounds(&m));
    assert_true(m.far >= m.near);
    assert_true(cache_level_bytes(2) == 0 || m.l2 == cache_level_bytes(2));
    assert_true(cache_level_bytes(3) == 0 || m.last == cache_level_bytes(3));
    /* Some processors have no stores around the cache. */
    machine_probe(NULL, NULL, &m);
    assert_true(machine_is_within_bounds(&m));
}
static void test_probe_restores_the_cores_of_the_caller(void **state)
{
    (void)state;
    cpu_set_t before, one, after;
    struct machine m;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    machine_probe(stream, NULL, &m);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    CPU_ZERO(&one);
    /* Ranks may be bound to one core. */
    CPU_SET((size_t)sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    machine_probe(stream, NULL, &m);
    assert_true(machine_is_within_bounds(&m));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&one, &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}
static void test_parameters_are_typical_without_memory(void **state)
{
    (void)state;
    struct machine m, typical = machine_typical();
    memory_fail_after(1);
    assert_false(machine_probe(stream, NULL, &m));
    memory_fail_after(0);
    /* The sizes of caches are read, not measured. */
    typical.l2 = m.l2;
    typical.last = m.last;
    assert_memory_equal(&m, &typical, sizeof m);
}
static void test_probe_accepts_cores(void **state)
{
    (void)state;
    struct machine m;
    int core = sched_getcpu(), other[2] = { core, core }, nowhere[2] = { core, 1023 };
    /* Not all parameters can be measured on one core. */
    assert_false(machine_probe(stream, other, &m));
    assert_true(machine_is_within_bounds(&m));
    /* A core that does not exist: the system chooses the core. */
    machine_probe(stream, nowhere, &m);
    assert_true(machine_is_within_bounds(&m));
}

/* ---- the parameters of this process ---- */
static void test_distances_are_half_octaves(void **state)
{
    (void)state;
    int last = 0;
    for (double line = 0.1; line < 1e7; line *= 1.1) {
        int distance = distance_of_line_time(line);
        assert_in_range(distance, last ? last : 1, last + 1);
        last = distance;
    }
    assert_int_equal(last, DISTANCES - 1);
    /* A time that is longer by half an octave is another distance. */
    for (double line = 4; line < 1e5; line *= 1.3)
        assert_int_not_equal(distance_of_line_time(line), distance_of_line_time(line * 1.42));
    assert_int_equal(distance_of_line_time(0), 0);
    assert_int_equal(distance_of_line_time(-1), 0);
    assert_int_equal(distance_of_line_time(NAN), 0);
}
static void test_first_parameters_of_a_distance_stay(void **state)
{
    (void)state;
    struct machine first = machine_typical(), second = machine_typical(), now;
    first.line = 77;
    second.line = 88;
    machine_store_parameters(3, &first, false);
    machine_store_parameters(3, &second, false);
    assert_true(machine_find_parameters(3, &now));
    assert_memory_equal(&now, &first, sizeof now);
    machine_store_parameters(5, &second, false);
    assert_true(machine_find_parameters(5, &now));
    assert_memory_equal(&now, &second, sizeof now);
    /* For an unknown distance the latest parameters are used. */
    now = machine_get_or_measure(stream);
    assert_memory_equal(&now, &second, sizeof now);
    assert_true(machine_find_parameters(3, &now));
    assert_true(machine_find_parameters(0, &now));
    assert_memory_equal(&now, &first, sizeof now);
}
static void test_parameters_are_read_from_disk(void **state)
{
    (void)state;
    char folder[] = "probe-XXXXXX", identity[IDENTITY_BYTES], command[64];
    struct machine kept = machine_typical(), now;
    kept.line = 99;
    assert_non_null(mkdtemp(folder));
    /* The process has not read its settings yet. */
    setenv("TUTTI_CACHE", folder, 1);
    machine_format_identity(7, identity);
    assert_false(machine_find_parameters(0, &now));
    assert_true(machine_file_write(folder, identity, &kept));
    assert_false(machine_find_parameters(8, &now));
    /* For an unknown distance any parameters are used. */
    assert_true(machine_find_parameters(0, &now));
    assert_memory_equal(&now, &kept, sizeof now);
    assert_true(machine_find_parameters(7, &now));
    assert_memory_equal(&now, &kept, sizeof now);
    machine_store_parameters(9, &kept, true);
    machine_format_identity(9, identity);
    assert_true(machine_file_read(folder, identity, &now));
    /* Parameters of an unknown distance are not written. */
    machine_store_parameters(0, &kept, true);
    machine_format_identity(0, identity);
    assert_false(machine_file_read(folder, identity, &now));
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}
static void test_table_has_every_parameter(void **state)
{
    (void)state;
    const struct machine_row *rows;
    struct machine m = machine_typical();
    int count = machine_get_rows(&rows);
    assert_int_equal(count * sizeof(double), sizeof m);
    assert_true(machine_is_within_bounds(&m));
    for (int i = 0; i < count; i++) {
        struct machine wrong = m;
        assert_true(machine_get_parameter(&m, i) == rows[i].typical);
        machine_set_parameter(&wrong, i, rows[i].least / 2);
        assert_false(machine_is_within_bounds(&wrong));
        machine_set_parameter(&wrong, i, NAN);
        assert_false(machine_is_within_bounds(&wrong));
    }
}
static void test_identity_is_one_line(void **state)
{
    (void)state;
    char identity[IDENTITY_BYTES];
    machine_format_identity(4, identity);
    assert_non_null(strstr(identity, TUTTI_VERSION));
    assert_null(strchr(identity, '\n'));
}

unit_function test_probe;
int test_probe(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_probed_parameters_are_within_bounds),
        cmocka_unit_test(test_probe_restores_the_cores_of_the_caller),
        cmocka_unit_test(test_parameters_are_typical_without_memory),
        cmocka_unit_test(test_probe_accepts_cores),
        cmocka_unit_test(test_distances_are_half_octaves),
        /* This test is before the others that store parameters in the process. */
        cmocka_unit_test(test_parameters_are_read_from_disk),
        cmocka_unit_test(test_first_parameters_of_a_distance_stay),
        cmocka_unit_test(test_table_has_every_parameter),
        cmocka_unit_test(test_identity_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
