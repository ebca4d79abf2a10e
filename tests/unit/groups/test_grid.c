/* Compares grids with the rule of tutti_groups.h. The test computes the coordinates of each rank, and from them which
   ranks differ in which axes. */
#include "include/tutti_groups.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"

enum { AXES = 5, MOST_RANKS = 512, ORDERS = 20 };
static const char *const names[AXES] = { "tp", "cp", "ep", "dp", "pp" };
#ifdef FEW
enum { MOST_WORLD = 24 };
#else
enum { MOST_WORLD = MOST_RANKS };
#endif
/* Each order is a list of indices into `names`. */
static int orders[ORDERS][AXES];
static long grids, groups_seen;

#define ASSERT_ERROR(text) assert_non_null(strstr(tutti_get_last_error(), text))
static tutti_grid grid_make(const int *order, const int *size, int ranks)
{
    char words[64] = "", sizes[128] = "";
    tutti_grid g;
    for (int i = 0; i < AXES; i++) {
        int at = (int)strlen(words), to = (int)strlen(sizes);
        snprintf(words + at, sizeof words - (size_t)at, "%s%s", i ? "-" : "", names[order[i]]);
        snprintf(sizes + to, sizeof sizes - (size_t)to, "%s%s=%d", i ? "," : "", names[i], size[i]);
    }
    assert_int_equal(tutti_grid_make(&g, words, sizes, ranks), TUTTI_OK);
    assert_int_equal(g.axes, AXES);
    return g;
}
/* coordinates[rank][i] is the index of a rank on the i-th axis of the order. */
static int coordinates[MOST_RANKS][AXES];
static void find_coordinates(const int *order, const int *size, int ranks)
{
    for (int rank = 0; rank < ranks; rank++)
        for (int i = 0, rest = rank; i < AXES; rest /= size[order[i++]]) coordinates[rank][i] = rest % size[order[i]];
}
static bool same_group(int a, int b, unsigned chosen)
{
    for (int i = 0; i < AXES; i++)
        if (!(chosen >> i & 1) && coordinates[a][i] != coordinates[b][i]) return false;
    return true;
}
/* Compares the groups of two ranks: groups are ordered by the indices on the other axes, the last of which counts
   most. */
static int compare_others(int a, int b, unsigned chosen)
{
    for (int i = AXES - 1; i >= 0; i--)
        if (!(chosen >> i & 1) && coordinates[a][i] != coordinates[b][i]) return coordinates[a][i] - coordinates[b][i];
    return 0;
}
static void check_groups(const tutti_grid *g, const int *order, unsigned chosen)
{
    char words[64] = "";
    int groups, size, member[MOST_RANKS], seen = 0, before = -1;
    bool wrong = false;
    for (int i = 0; i < AXES; i++) {
        int at = (int)strlen(words);
        if (chosen >> i & 1) snprintf(words + at, sizeof words - (size_t)at, "%s%s", at ? "-" : "", names[order[i]]);
    }
    assert_int_equal(tutti_grid_groups(g, words, &groups, &size), TUTTI_OK);
    assert_int_equal(groups * size, g->ranks);
    for (int n = 0; n < groups; n++, before = member[0]) {
        wrong |= tutti_grid_group(g, words, n, member) != TUTTI_OK;
        wrong |= n > 0 && compare_others(before, member[0], chosen) >= 0;
        for (int i = 0; i < size; i++, seen++) wrong |= !same_group(member[0], member[i], chosen);
        for (int i = 1; i < size; i++) wrong |= member[i - 1] >= member[i];
        for (int i = n % size; i < size; i += 1 + size / 2) {
            int group, place;
            assert_int_equal(tutti_grid_find(g, words, member[i], &group, &place), TUTTI_OK);
            wrong |= group != n || place != i;
        }
    }
    assert_false(wrong);
    /* Each rank was in one group. */
    assert_int_equal(seen, g->ranks);
    groups_seen += groups;
}
static void check_grid(const int *order, const int *size, int ranks)
{
    tutti_grid g = grid_make(order, size, ranks);
    int index[TUTTI_GRID_AXES];
    find_coordinates(order, size, ranks);
    for (int rank = 0; rank < ranks; rank += 1 + ranks / 16) {
        assert_int_equal(tutti_grid_index(&g, rank, index), TUTTI_OK);
        assert_memory_equal(index, coordinates[rank], sizeof coordinates[rank]);
    }
    /* For more than 64 ranks only every 11th set of axes is checked, from another one on in each grid. */
    unsigned step = ranks > 64 ? 11 : 1;
    for (unsigned chosen = 1 + (unsigned)grids % step; chosen < 1u << AXES; chosen += step)
        check_groups(&g, order, chosen);
    grids++;
}
/* Checks all sizes of axes whose product is `ranks`, each in one of the orders; up to 32 ranks in all orders. */
static void try_sizes(int *size, int axis, int rest, int ranks)
{
    if (axis == AXES - 1) {
        size[axis] = rest;
        for (int i = 0; i < (ranks <= 32 ? ORDERS : 1); i++) check_grid(orders[(grids + i) % ORDERS], size, ranks);
        return;
    }
    for (int n = 1; n <= rest; n++)
        if (rest % n == 0) {
            size[axis] = n;
            try_sizes(size, axis + 1, rest / n, ranks);
        }
}
static void test_groups_of_all_sizes_follow_the_rule(void **state)
{
    (void)state;
    uint64_t seed = 20;
    for (int o = 0; o < ORDERS; o++) {
        for (int i = 0; i < AXES; i++) orders[o][i] = i;
        /* Order 0 is the usual one, and the others are random. */
        for (int i = AXES - 1; i > 0 && o; i--) {
            int k = (int)(random_next(&seed) % (uint64_t)(i + 1)), kept = orders[o][i];
            orders[o][i] = orders[o][k];
            orders[o][k] = kept;
        }
    }
    for (int ranks = 1; ranks <= MOST_WORLD; ranks++) {
        int size[AXES];
        try_sizes(size, 0, ranks, ranks);
    }
    print_message("%ld grids, %ld groups\n", grids, groups_seen);
}
/* In the lectures, rank = dp (tp pp) + pp tp + tp. */
static void test_ranks_are_numbered_as_in_the_lectures(void **state)
{
    (void)state;
    tutti_grid g;
    int index[TUTTI_GRID_AXES];
    assert_int_equal(tutti_grid_make(&g, "tp-pp-dp", "dp=3,tp=2,pp=4", 24), TUTTI_OK);
    for (int rank = 0; rank < 24; rank++) {
        assert_int_equal(tutti_grid_index(&g, rank, index), TUTTI_OK);
        assert_int_equal(rank, index[2] * (2 * 4) + index[1] * 2 + index[0]);
    }
}
static void test_grid_of_experts_has_the_dense_pipelines(void **state)
{
    (void)state;
    tutti_grid g, e;
    int member[16], of_dense[16], groups, size;
    assert_int_equal(tutti_grid_make(&g, "tp-cp-ep-dp-pp", "tp=4,dp=2,pp=2", 16), TUTTI_OK);
    assert_int_equal(tutti_grid_experts(&e, &g, 1, 4), TUTTI_OK);
    assert_int_equal(tutti_grid_groups(&e, "ep", &groups, &size), TUTTI_OK);
    assert_true(groups == 4 && size == 4);
    assert_int_equal(tutti_grid_group(&e, "ep", 1, member), TUTTI_OK);
    for (int i = 0; i < 4; i++) assert_int_equal(member[i], 4 + i);
    assert_int_equal(tutti_grid_group(&e, "dp", 0, member), TUTTI_OK);
    assert_true(member[0] == 0 && member[1] == 4);
    /* The pipelines of both grids are equal. */
    for (int n = 0; n < 8; n++) {
        assert_int_equal(tutti_grid_group(&e, "pp", n, member), TUTTI_OK);
        assert_int_equal(tutti_grid_group(&g, "pp", n, of_dense), TUTTI_OK);
        assert_memory_equal(member, of_dense, 2 * sizeof *member);
    }
    assert_int_equal(tutti_grid_experts(&e, &g, 1, 3), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("experts of tp 1 and ep 3 do not divide 16 ranks");
    assert_int_equal(tutti_grid_experts(&e, &g, 0, 1), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("both must be at least 1");
    assert_int_equal(tutti_grid_make(&g, "tp-pp-dp-ep", "tp=2,dp=4,pp=2", 16), TUTTI_OK);
    assert_int_equal(tutti_grid_experts(&e, &g, 1, 2), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("pipeline groups of the experts differ from the dense ones");
    assert_int_equal(tutti_grid_make(&g, "tp-pp", "tp=2,pp=2", 4), TUTTI_OK);
    assert_int_equal(tutti_grid_experts(&e, &g, 1, 2), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("an order that names dp");
}
static void test_groups_over_several_hosts_are_found(void **state)
{
    (void)state;
    tutti_grid g;
    int host[8] = { 0, 0, 0, 0, 1, 1, 1, 1 }, group, most;
    assert_int_equal(tutti_grid_make(&g, "tp-dp-pp", "tp=2,dp=2,pp=2", 8), TUTTI_OK);
    assert_int_equal(tutti_grid_straddles(&g, "tp", host, &group, &most), TUTTI_OK);
    assert_true(group == -1 && most == 1);
    assert_int_equal(tutti_grid_straddles(&g, "pp", host, &group, &most), TUTTI_OK);
    assert_true(group == 0 && most == 2);
    host[7] = 2;
    assert_int_equal(tutti_grid_straddles(&g, "tp", host, &group, &most), TUTTI_OK);
    assert_true(group == 3 && most == 2);
    assert_int_equal(tutti_grid_straddles(&g, "tp-dp-pp", host, &group, &most), TUTTI_OK);
    assert_true(group == 0 && most == 3);
}
static void test_wrong_grids_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *order, *sizes;
        int ranks;
        const char *text;
    } wrong[] = {
        { "tp-dp", "tp=2,dp=3", 8, "grid: tp 2 x dp 3 are 6 ranks, but there are 8" },
        { "tp-dp", "tp=4,dp=4", 8, "are more than 8 ranks" },
        { "tp-dp", "tp=2,pp=4", 8, "pp has size 4, but the order \"tp-dp\" does not name it" },
        { "tp-dp-tp", "", 1, "names tp twice" },
        { "tp--dp", "", 1, "is not a list of names of 1 to 7 letters" },
        { "tp-dp-", "", 1, "is not a list of names" },
        { "", "", 1, "is not a list of names" },
        { "tensorparallel", "", 1, "is not a list of names" },
        { "tp", "tp=2,tp=2", 4, "tp has two sizes" },
        { "tp", "tp=0", 1, "the size of tp is 0; it must be at least 1" },
        { "tp", "tp=99999999999", 1, "the size of tp is 99999999999" },
        { "tp", "tp=two", 2, "is not a list of sizes, as in \"tp=2,dp=4\"" },
        { "tp", "tp=2,", 2, "is not a list of sizes" },
        { "tp", "tp", 2, "is not a list of sizes" },
        { "tp", "tp=-2", 2, "is not a list of sizes" },
        { "tp", "", 0, "0 ranks; there must be at least one" },
        { "a-b-c-d-e-f-g-h-i", "", 1, "more than 8 names" },
    };
    tutti_grid g;
    int n, m, out[8];
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(tutti_grid_make(&g, wrong[i].order, wrong[i].sizes, wrong[i].ranks), TUTTI_INVALID_ARGUMENT);
        ASSERT_ERROR(wrong[i].text);
        assert_true(tutti_last_error_is_refusal());
    }
    assert_int_equal(tutti_grid_make(&g, "tp-dp", "tp=2,dp=2,ep=1", 4), TUTTI_OK);
    /* The axis ep is appended to the order. */
    assert_int_equal(g.axes, 3);
    assert_int_equal(tutti_grid_groups(&g, "tp-pp", &n, &m), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("\"tp-pp\" names pp, which is not an axis");
    assert_int_equal(tutti_grid_group(&g, "tp", 2, out), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("group 2 of \"tp\" does not exist; there are 2");
    assert_int_equal(tutti_grid_index(&g, 4, out), TUTTI_INVALID_ARGUMENT);
    assert_int_equal(tutti_grid_find(&g, "tp", -1, &n, &m), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("rank -1 does not exist; there are 4");
    assert_int_equal(tutti_grid_group(&g, "tp", 0, NULL), TUTTI_INVALID_ARGUMENT);
    ASSERT_ERROR("is NULL");
}
unit_function test_grid;
int test_grid(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups_of_all_sizes_follow_the_rule),
        cmocka_unit_test(test_ranks_are_numbered_as_in_the_lectures),
        cmocka_unit_test(test_grid_of_experts_has_the_dense_pipelines),
        cmocka_unit_test(test_groups_over_several_hosts_are_found),
        cmocka_unit_test(test_wrong_grids_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
