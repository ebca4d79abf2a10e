/* Any list of hosts makes a layout, which gives the place of a rank and the rank of a place. A mask has a bit for each
   member of a plan, also beyond the 64th. */
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/examples.h"

static struct hosts hosts;

static void expect_places(const int *host_of_rank, int ranks, const struct place *expected)
{
    const struct layout *l = placed(&hosts, host_of_rank, ranks);
    int counted = 0, largest = 0;
    assert_int_equal(l->ranks, ranks);
    for (int r = 0; r < ranks; r++) {
        struct place at = layout_place(l, r);
        assert_int_equal(at.host, expected[r].host);
        assert_int_equal(at.index, expected[r].index);
        assert_int_equal(layout_host(l, r), at.host);
        assert_int_equal(layout_rank(l, at.host, at.index), r);
    }
    for (int h = 0; h < l->hosts; h++) {
        counted += layout_host_size(l, h);
        largest = layout_host_size(l, h) > largest ? layout_host_size(l, h) : largest;
        for (int i = 1; i < layout_host_size(l, h); i++) assert_true(layout_rank(l, h, i - 1) < layout_rank(l, h, i));
    }
    assert_int_equal(counted, ranks);
    assert_int_equal(l->largest, largest);
}
static void test_layout_gives_places_and_ranks(void **state)
{
    (void)state;
    expect_places((int[]){ 0, 0, 0, 1, 1 }, 5, (struct place[]){ { 0, 0 }, { 0, 1 }, { 0, 2 }, { 1, 0 }, { 1, 1 } });
    expect_places((int[]){ 0, 1, 0, 1, 0 }, 5, (struct place[]){ { 0, 0 }, { 1, 0 }, { 0, 1 }, { 1, 1 }, { 0, 2 } });
    expect_places((int[]){ 0, 0, 1, 1, 0, 0 }, 6,
        (struct place[]){ { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 }, { 0, 2 }, { 0, 3 } });
    expect_places(NULL, 3, (struct place[]){ { 0, 0 }, { 0, 1 }, { 0, 2 } });
}
static void test_hosts_are_numbered_by_their_first_ranks(void **state)
{
    (void)state;
    expect_places((int[]){ 3, 1, 3, 0 }, 4, (struct place[]){ { 0, 0 }, { 1, 0 }, { 0, 1 }, { 2, 0 } });
    assert_int_equal(hosts.layout->hosts, 3);
}
static void test_layout_refuses_impossible_hosts(void **state)
{
    struct layout *l = NULL;
    (void)state;
    assert_int_equal(layout_create((int[]){ 0, 2 }, 2, &l), TUTTI_INVALID_ARGUMENT);
    assert_string_equal(status_detail(), "rank 1 on host 2: hosts of 2 ranks are 0 to 1");
    assert_int_equal(layout_create((int[]){ -1 }, 1, &l), TUTTI_INVALID_ARGUMENT);
    assert_int_equal(layout_create(NULL, 0, &l), TUTTI_INVALID_ARGUMENT);
    assert_null(l);
    memory_fail_after(1);
    assert_int_equal(layout_create(NULL, 2, &l), TUTTI_NO_MEMORY);
    memory_fail_after(0);
}
static void test_masks_have_more_than_64_members(void **state)
{
    enum { MEMBERS = 130 };
    uint64_t some[3] = { 0 }, copy[3] = { 0 };
    (void)state;
    mask_add(some, 0);
    mask_add(some, 64);
    mask_add(some, 129);
    for (int m = 0; m < MEMBERS; m++) {
        assert_int_equal(mask_has(some, m), m == 0 || m == 64 || m == 129);
        assert_true(mask_has(mask_all, m) && !mask_has(NULL, m));
    }
    assert_true(mask_any(some, MEMBERS) && !mask_is_full(some, MEMBERS) && mask_is_full(some, 1));
    assert_false(mask_equal(some, mask_all, MEMBERS) || mask_equal(some, NULL, MEMBERS));
    assert_true(mask_equal(NULL, copy, MEMBERS));
    mask_copy(copy, mask_all, MEMBERS);
    assert_true(mask_equal(mask_all, copy, MEMBERS) && copy[2] == 3);
    /* Bits beyond the last member do not count. */
    copy[2] = UINT64_MAX;
    assert_true(mask_is_full(copy, MEMBERS));
}
/* Rank 69 of 70 is private. With a mask of one word it would share the bit of rank 5, which is not private. */
static void test_private_rank_beyond_64_is_staged_alone(void **state)
{
    enum { RANKS = 70 };
    uint64_t shared[2] = { UINT64_MAX, (1 << (RANKS - 1 - 64)) - 1 };
    struct plan p = plan_of(&one_shot, together(&hosts, RANKS), 0);
    (void)state;
    p.shared = shared;
    assert_int_equal(plan_build(&p), TUTTI_OK);
    const struct step *sum = &p.ranks[0].steps[p.ranks[0].prelude];
    for (int f = 0; f < RANKS; f++)
        assert_int_equal(step_from(&p.ranks[0], sum)[f].buffer, f == RANKS - 1 ? SCRATCH : INPUT);
    plan_finish(&p);
}
unit_function test_layout;
int test_layout(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_gives_places_and_ranks),
        cmocka_unit_test(test_hosts_are_numbered_by_their_first_ranks),
        cmocka_unit_test(test_layout_refuses_impossible_hosts),
        cmocka_unit_test(test_masks_have_more_than_64_members),
        cmocka_unit_test(test_private_rank_beyond_64_is_staged_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
