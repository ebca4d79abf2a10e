/* The flag stage_in_place: between hosts nobody sees that all ranks wait for each other, so the table must say it. With
 * the flags as they are every algorithm over messages is built in place at the first try; without a flag that is set,
 * ranks wait for themselves. */
#include "backend/collectives/collectives.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { MOST_RANKS = 17 };

static bool builds_in_place(const struct algorithm *a, int size, bool hoist)
{
    int first[MOST_RANKS + 1];
    for (int h = 0; h <= size; h++) first[h] = h;
    struct layout apart = { size, first };
    struct plan plan = { .algorithm = a, .layout = &apart, .size = size, .root = size - 1, .count = size, .slots = 2,
        .in_place = UINT64_MAX, .hoist = hoist };
    tutti_status status = plan_build(&plan);
    if (status != TUTTI_OK && plan.cycle_rank < 0) fail_msg("%s of %d ranks: %s", a->name, size, plan.error);
    plan_finish(&plan);
    return status == TUTTI_OK;
}
static void is_set_where_it_is_needed(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= MOST_RANKS && !a->host_memory; size++)
            for (int hoist = 0; hoist < 2; hoist++)
                if (!builds_in_place(a, size, hoist))
                    fail_msg("%s %s of %d ranks needs it", family_name(a->family), a->name, size);
}
static void is_needed_where_it_is_set(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++) {
        if (!a->stage_in_place) continue;
        struct algorithm without = *a;
        int cycles = 0;
        without.stage_in_place = false;
        for (int size = 2; size <= MOST_RANKS; size++) cycles += !builds_in_place(&without, size, false);
        if (cycles == 0) fail_msg("%s %s needs no flag", family_name(a->family), a->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_set_where_it_is_needed),
        cmocka_unit_test(is_needed_where_it_is_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
