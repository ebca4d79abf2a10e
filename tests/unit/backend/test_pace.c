/* How slots are written is found out while they are; whatever is found, what was copied is right. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/pace.h"
#include <stdlib.h>
#include <string.h>

static void note(struct pace *p, double ordinary, double streamed)
{
    pace_note_streamed(p, streamed);
    pace_note_ordinary(p, ordinary);
}
static void test_one_accident_changes_nothing(void **state)
{
    (void)state;
    struct pace p = { 0 };
    note(&p, 10, 1);
    assert_false(p.ordinary);
    note(&p, 1, 1);
    note(&p, 10, 1);
    note(&p, 1, 1);
    assert_false(p.ordinary);                          /* never twice in a row */
    note(&p, 1, 1);
    assert_true(p.ordinary);
    pace_note_ordinary(&p, 10);
    assert_true(p.ordinary);
    pace_note_ordinary(&p, 10);                        /* compared with what streaming cost */
    assert_false(p.ordinary);
}
static void test_interrupted_streaming_does_not_excuse_ordinary_stores(void **state)
{
    (void)state;
    struct pace p = { 0 };
    note(&p, 10, 1);
    for (int i = 0; i < 5; i++) note(&p, 10, 1000);    /* each time the thread was interrupted */
    assert_false(p.ordinary);
    for (int i = 0; i < 50; i++) note(&p, 10, 1000);   /* it really costs that much now */
    assert_true(p.ordinary);
}
static void test_it_goes_on_measuring_both(void **state)
{
    (void)state;
    for (int ordinary = 0; ordinary < 2; ordinary++) {
        struct pace p = { .ordinary = ordinary };
        int measured[4] = { 0 };
        for (int call = 0; call < 1000; call++) measured[pace_next(&p)]++;
        assert_in_range(measured[PACE_AS_EVER], 800, 980);
        assert_true(measured[PACE_TIME_BOTH] || (measured[PACE_TIME_STREAMED] && measured[PACE_TIME_ORDINARY]));
    }
}
static void test_copies_are_right(void **state)
{
    (void)state;
    enum { ROOM = 70000 };
    unsigned char *from = malloc(ROOM), *to = malloc(ROOM);
    for (size_t i = 0; i < ROOM; i++) from[i] = (unsigned char)(i * 31 >> 3);
    for (size_t call = 0; call < 400; call++) {        /* so that some are measured, whatever comes out */
        size_t at = call % 67, bytes = call % 3 ? 16384 + call * 131 % 50000 : call * 17 % 4200;
        memset(to, 0, ROOM);
        pace_copy(to + at, from + call % 13, bytes);
        assert_memory_equal(to + at, from + call % 13, bytes);
        assert_int_equal(to[at + bytes], 0);
        assert_true(at == 0 || to[at - 1] == 0);
    }
    free(from);
    free(to);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_accident_changes_nothing),
        cmocka_unit_test(test_interrupted_streaming_does_not_excuse_ordinary_stores),
        cmocka_unit_test(test_it_goes_on_measuring_both),
        cmocka_unit_test(test_copies_are_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
