/* The probe on whatever this machine is: figures that make sense, or typical ones, and no traces. */
#include "backend/base/memory.h"
#include "backend/model/machine.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <sched.h>
#include <string.h>

static void stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
static void figures_make_sense(void **state)
{
    (void)state;
    struct machine m;
    machine_probe(stream, &m);
    assert_true(machine_is_sane(&m));
    assert_true(m.far >= m.near);
    assert_true(cache_bytes(2) == 0 || m.l2 == cache_bytes(2));
    assert_true(cache_bytes(3) == 0 || m.last == cache_bytes(3));
    machine_probe(NULL, &m);                            /* a processor without such stores */
    assert_true(machine_is_sane(&m));
}
static void the_caller_stays_where_it_is(void **state)
{
    (void)state;
    cpu_set_t before, one, after;
    struct machine m;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    machine_probe(stream, &m);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);              /* bound to one core, as ranks are */
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    machine_probe(stream, &m);
    assert_true(machine_is_sane(&m));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&one, &after));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}
static void without_memory_all_is_typical(void **state)
{
    (void)state;
    struct machine m, typical = machine_typical();
    memory_fail_after(1);
    assert_false(machine_probe(stream, &m));
    memory_fail_after(0);
    typical.l2 = m.l2;                                  /* facts, not measured */
    typical.last = m.last;
    assert_memory_equal(&m, &typical, sizeof m);
}
static void the_first_figures_stay(void **state)
{
    (void)state;
    struct machine first = machine_typical(), second = machine_typical(), now;
    first.line = 77;
    second.line = 88;
    machine_adopt(&first);
    machine_adopt(&second);
    now = machine_get(stream);
    assert_memory_equal(&now, &first, sizeof now);
}
static void the_table_is_the_struct(void **state)
{
    (void)state;
    const struct machine_row *rows;
    struct machine m = machine_typical();
    int count = machine_table(&rows);
    assert_int_equal(count * sizeof(double), sizeof m);
    assert_true(machine_is_sane(&m));
    for (int i = 0; i < count; i++) {
        struct machine wrong = m;
        assert_true(machine_figure(&m, i) == rows[i].typical);
        machine_set(&wrong, i, rows[i].least / 2);
        assert_false(machine_is_sane(&wrong));
        machine_set(&wrong, i, NAN);
        assert_false(machine_is_sane(&wrong));
    }
}
static void an_identity_is_one_line(void **state)
{
    (void)state;
    char identity[IDENTITY_BYTES];
    machine_identity(identity);
    assert_non_null(strstr(identity, TUTTI_VERSION));
    assert_null(strchr(identity, '\n'));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(figures_make_sense),
        cmocka_unit_test(the_caller_stays_where_it_is),
        cmocka_unit_test(without_memory_all_is_typical),
        cmocka_unit_test(the_first_figures_stay),
        cmocka_unit_test(the_table_is_the_struct),
        cmocka_unit_test(an_identity_is_one_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
