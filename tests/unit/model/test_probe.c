/* The probe on whatever this machine is: figures that make sense, or typical ones, and no traces. */
#include "backend/base/memory.h"
#include "backend/model/machine.h"
#include "tests/support/unit.h"
#include <math.h>
#include <sched.h>

static void stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void parameters_make_sense(void **state)
{
    (void)state;
    struct machine m;
    machine_probe(stream, NULL, &m);
    assert_true(machine_is_within_bounds(&m));
    assert_true(m.far >= m.near);
    assert_true(cache_level_bytes(2) == 0 || m.l2 == cache_level_bytes(2));
    assert_true(cache_level_bytes(3) == 0 || m.last == cache_level_bytes(3));
    machine_probe(NULL, NULL, &m);                            /* a processor without such stores */
    assert_true(machine_is_within_bounds(&m));
}
static void the_caller_stays_where_it_is(void **state)
{
    (void)state;
    cpu_set_t before, one, after;
    struct machine m;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    machine_probe(stream, NULL, &m);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);              /* bound to one core, as ranks are */
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    machine_probe(stream, NULL, &m);
    assert_true(machine_is_within_bounds(&m));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&one, &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}
static void without_memory_all_is_typical(void **state)
{
    (void)state;
    struct machine m, typical = machine_typical();
    memory_fail_after(1);
    assert_false(machine_probe(stream, NULL, &m));
    memory_fail_after(0);
    typical.l2 = m.l2;                                  /* facts, not measured */
    typical.last = m.last;
    assert_memory_equal(&m, &typical, sizeof m);
}
static void cores_may_be_given(void **state)
{
    (void)state;
    struct machine m;
    int core = sched_getcpu(), other[2] = { core, core }, nowhere[2] = { core, 1023 };
    assert_false(machine_probe(stream, other, &m));     /* one core: not everything can be measured there */
    assert_true(machine_is_within_bounds(&m));
    machine_probe(stream, nowhere, &m);                 /* the system says where instead */
    assert_true(machine_is_within_bounds(&m));
}

/* ---- what a process knows ---- */
static void distances_are_half_octaves(void **state)
{
    (void)state;
    int last = 0;
    for (double line = 0.1; line < 1e7; line *= 1.1) {
        int distance = distance_of_line_time(line);
        assert_in_range(distance, last ? last : 1, last + 1);
        last = distance;
    }
    assert_int_equal(last, DISTANCES - 1);
    for (double line = 4; line < 1e5; line *= 1.3)      /* a placement half an octave away is another one */
        assert_int_not_equal(distance_of_line_time(line), distance_of_line_time(line * 1.42));
    assert_int_equal(distance_of_line_time(0), 0);
    assert_int_equal(distance_of_line_time(-1), 0);
    assert_int_equal(distance_of_line_time(NAN), 0);
}
static void the_first_parameters_of_a_distance_stay(void **state)
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
    now = machine_get_or_measure(stream);                          /* of no known distance: the latest */
    assert_memory_equal(&now, &second, sizeof now);
    assert_true(machine_find_parameters(3, &now));
    assert_true(machine_find_parameters(0, &now));
    assert_memory_equal(&now, &first, sizeof now);
}
static void parameters_are_looked_for_on_disk(void **state)
{
    (void)state;
    char folder[] = "probe-XXXXXX", identity[IDENTITY_BYTES], command[64];
    struct machine kept = machine_typical(), now;
    kept.line = 99;
    assert_non_null(mkdtemp(folder));
    setenv("TUTTI_CACHE", folder, 1);                   /* nobody has read the settings yet */
    machine_format_identity(7, identity);
    assert_false(machine_find_parameters(0, &now));
    assert_true(machine_file_write(folder, identity, &kept));
    assert_false(machine_find_parameters(8, &now));
    assert_true(machine_find_parameters(0, &now));               /* any */
    assert_memory_equal(&now, &kept, sizeof now);
    assert_true(machine_find_parameters(7, &now));
    assert_memory_equal(&now, &kept, sizeof now);
    machine_store_parameters(9, &kept, true);
    machine_format_identity(9, identity);
    assert_true(machine_file_read(folder, identity, &now));
    machine_store_parameters(0, &kept, true);                      /* nobody knows what these are of */
    machine_format_identity(0, identity);
    assert_false(machine_file_read(folder, identity, &now));
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}
static void the_table_is_the_struct(void **state)
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
static void an_identity_is_one_line(void **state)
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
        cmocka_unit_test(parameters_make_sense),
        cmocka_unit_test(the_caller_stays_where_it_is),
        cmocka_unit_test(without_memory_all_is_typical),
        cmocka_unit_test(cores_may_be_given),
        cmocka_unit_test(distances_are_half_octaves),
        cmocka_unit_test(parameters_are_looked_for_on_disk),              /* first: this process knows nothing yet */
        cmocka_unit_test(the_first_parameters_of_a_distance_stay),
        cmocka_unit_test(the_table_is_the_struct),
        cmocka_unit_test(an_identity_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
