/* The predicted costs of the algorithms of the table, on machines that were measured once. */
#include "backend/base/memory.h"
#include "backend/collectives/collectives.h"
#include "backend/model/cost.h"
#include "tests/support/unit.h"
#include "tests/unit/model/machines.h"

/* Returns a layout of one host, which is created once for each size. */
static const struct layout *host_of_ranks(int size)
{
    enum { MOST_RANKS = 64 };
    static struct layout *made[MOST_RANKS + 1];
    if (!made[size]) assert_int_equal(layout_create(NULL, size, &made[size]), TUTTI_OK);
    return made[size];
}
static struct plan plan_of(const struct algorithm *a, int size, bool shared)
{
    struct plan plan = { .algorithm = a,
        .layout = host_of_ranks(size),
        .slots = 3,
        .in_place = shared || a->collective == ALL_TO_ALL ? NULL : mask_all,
        .shared = shared ? mask_all : NULL };
    assert_int_equal(plan_build_staging(&plan), TUTTI_OK);
    return plan;
}
static double cost(const struct plan *plan, const struct machine *m, size_t bytes, int cores)
{
    struct cutting cutting;
    double out = -1;
    assert_int_equal(plan_choose_tile(plan, m, bytes, cores, &cutting, &out), TUTTI_OK);
    assert_true(out > 0);
    return out;
}
static void test_more_bytes_cost_more(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 2; size <= 9 && a->host_memory; size++)
            for (int way = 0; way < 4; way++) {
                int cores = way & 1 ? size : 2;
                struct plan plan = plan_of(a, size, way & 2);
                double before = 0;
                for (size_t bytes = 1; bytes <= (size_t)1 << 30; bytes *= 2) {
                    double now = cost(&plan, &near_cores, bytes, cores);
                    assert_true(now > before);
                    before = now;
                }
                plan_finish(&plan);
            }
}
/* One round is cheaper for few bytes and two rounds for many, with one switch between them. */
static void test_two_rounds_are_cheaper_from_one_size_on(void **state)
{
    (void)state;
    for (int size = 4; size <= 16; size *= 2) {
        int changes = 0;
        struct plan one = plan_of(collectives_find_algorithm(ALLREDUCE, "one_shot"), size, false);
        struct plan two = plan_of(collectives_find_algorithm(ALLREDUCE, "two_shot"), size, false);
        bool is_better = false;
        for (size_t bytes = 8; bytes <= (size_t)1 << 28; bytes *= 2) {
            bool now = cost(&two, &near_cores, bytes, size) < cost(&one, &near_cores, bytes, size);
            changes += now != is_better;
            is_better = now;
        }
        assert_int_equal(changes, 1);
        assert_true(is_better);
        plan_finish(&one);
        plan_finish(&two);
    }
}
/* Returns the bytes from which two rounds are cheaper. */
static size_t switch_bytes(const struct machine *m)
{
    struct plan one = plan_of(collectives_find_algorithm(ALLREDUCE, "one_shot"), 8, false);
    struct plan two = plan_of(collectives_find_algorithm(ALLREDUCE, "two_shot"), 8, false);
    size_t bytes = 8;
    while (cost(&two, m, bytes, 8) >= cost(&one, m, bytes, 8)) bytes *= 2;
    plan_finish(&one);
    plan_finish(&two);
    return bytes;
}
/* A parameter that is wrong by a quarter moves the switch by at most a factor of two. */
static void test_wrong_parameter_moves_the_switch_little(void **state)
{
    (void)state;
    const struct machine_row *rows;
    size_t usual = switch_bytes(&near_cores);
    for (int i = 0; i < machine_get_rows(&rows); i++)
        for (int way = 0; way < 2; way++) {
            struct machine m = near_cores;
            machine_set_parameter(&m, i, machine_get_parameter(&m, i) * (way ? 1.25 : 0.75));
            size_t now = switch_bytes(&m);
            assert_true(now <= 2 * usual && usual <= 2 * now);
        }
}
static void test_round_costs_a_hand_over_if_cores_are_short(void **state)
{
    (void)state;
    assert_true(machine_cost_of_round(&near_cores, 2, 2) == near_cores.line);
    assert_true(machine_cost_of_round(&near_cores, 3, 2) > near_cores.line);
    assert_true(machine_cost_of_round(&near_cores, 8, 2) > machine_cost_of_round(&near_cores, 4, 2));
}

/* ---- several hosts ---- */
static const struct layout *hosts_of_ranks(int hosts, int each)
{
    static struct layout *made;
    int host[64];
    layout_destroy(made);
    made = NULL;
    for (int r = 0; r < hosts * each; r++) host[r] = r / each;
    assert_int_equal(layout_create(host, hosts * each, &made), TUTTI_OK);
    return made;
}
static double cost_between(enum collective collective, const char *name, const struct layout *l, bool one_host,
    size_t bytes)
{
    struct plan plan = { .algorithm = collectives_find_algorithm(collective, name),
        .layout = l,
        .slots = 3,
        .one_host = one_host,
        .in_place = collective == ALL_TO_ALL ? NULL : mask_all };
    assert_int_equal(plan_build_staging(&plan), TUTTI_OK);
    double ns = cost(&plan, &near_cores, bytes, l->largest);
    plan_finish(&plan);
    return ns;
}
static void test_more_bytes_between_hosts_cost_more(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int one_host = 0; one_host < 2; one_host++) {
            double before = 0;
            for (size_t bytes = 64; bytes <= (size_t)1 << 28 && !a->host_memory; bytes *= 4) {
                double now = cost_between(a->collective, a->name, hosts_of_ranks(3, 2), one_host, bytes);
                assert_true(now > before);
                before = now;
            }
        }
}
/* A long allreduce over 4 hosts takes as long as 1.5 messages on a link of 25 Gbit/s, however many ranks share it. */
static void test_long_messages_cost_the_time_of_the_link(void **state)
{
    (void)state;
    static const char *const names[] = { "hierarchy_ring", "hierarchy_circulant", "hierarchy_rabenseifner" };
    const size_t bytes = (size_t)256 << 20;
    const double link_ns = 1.5 * 0.32 * (double)bytes;
    for (int each = 1; each <= 4; each++)
        for (int i = 0; i < 3; i++)
            for (int one_host = 0; one_host < 2; one_host++) {
                double ns = cost_between(ALLREDUCE, names[i], hosts_of_ranks(4, each), one_host, bytes);
                /* The work of the cores adds to the time of the link. */
                assert_true(ns >= link_ns && ns < 1.5 * link_ns);
            }
}
static void test_short_messages_cost_rounds(void **state)
{
    (void)state;
    const struct layout *l = hosts_of_ranks(8, 2);
    double ring = cost_between(ALLREDUCE, "hierarchy_ring", l, false, 1024);
    double doubling = cost_between(ALLREDUCE, "hierarchy_doubling", l, false, 1024);
    double chain = cost_between(BROADCAST, "hierarchy_chain", l, false, 1024);
    double binomial = cost_between(BROADCAST, "hierarchy_binomial", l, false, 1024);
    /* A round costs 15,000 ns. The ring has 14 rounds, and doubling 3. */
    assert_true(ring > 13 * 15000 && ring < 16 * 15000);
    assert_true(doubling > 3 * 15000 && doubling < 4 * 15000);
    assert_true(chain > 7 * 15000 && binomial < 4 * 15000);
    assert_true(cost_between(ALLREDUCE, "hierarchy_doubling", l, false, 64 << 20)
        > cost_between(ALLREDUCE, "hierarchy_ring", l, false, 64 << 20));
    /* The chain uses each link in one direction only. */
    assert_true(cost_between(BROADCAST, "hierarchy_chain", l, false, 64 << 20) > 0.32 * (64 << 20));
}
/* `crosses`: the bytes that a link carries in one direction, divided by those of a message. */
static void test_cost_is_at_least_the_time_of_the_link(void **state)
{
    static const struct {
        const char *name;
        enum collective collective;
        int hosts, each;
        double crosses;
    } some[] = { { "hierarchy", GATHER, 8, 1, 7.0 / 8 }, { "hierarchy_direct", ALL_TO_ALL, 4, 4, 3 },
        { "hierarchy_double_tree", BROADCAST, 2, 1, 1 }, { "hierarchy_ring", ALLREDUCE, 4, 2, 1.5 } };
    (void)state;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++)
        for (size_t bytes = 1 << 20; bytes <= 1 << 26; bytes *= 2) {
            const struct layout *l = hosts_of_ranks(some[i].hosts, some[i].each);
            double ns = cost_between(some[i].collective, some[i].name, l, false, bytes);
            assert_true(ns >= some[i].crosses * near_cores.wire * (double)bytes);
        }
}
/* If announcing a message is expensive, 1 MiB is one tile. If it is cheap, the tiles are smaller, so that the phases of
   a host overlap. */
static void test_tiles_are_large_if_announcing_is_expensive(void **state)
{
    static const double announced[] = { 45000, 1000 };
    size_t tile[2][2];
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct plan plan = { .algorithm = collectives_find_algorithm(ALLREDUCE, "hierarchy_ring"),
            .layout = hosts_of_ranks(2, 2),
            .slots = 4,
            .in_place = mask_all };
        struct machine m = near_cores;
        struct cutting cutting;
        double ns;
        m.announced = announced[i % 2];
        m.message = announced[i % 2] / 3;
        assert_int_equal(plan_build_staging(&plan), TUTTI_OK);
        assert_int_equal(plan_choose_tile(&plan, &m, i < 2 ? 1 << 20 : 64 << 20, 2, &cutting, &ns), TUTTI_OK);
        plan_finish(&plan);
        tile[i / 2][i % 2] = cutting.tile_bytes;
        assert_int_equal(cutting.slots, TILES_WITH_MESSAGES);
    }
    assert_true(tile[0][0] >= 1 << 20 && tile[0][1] < 1 << 20);
    assert_true(tile[1][0] == BYTES_WITH_MESSAGES / TILES_WITH_MESSAGES && tile[1][1] < tile[1][0]);
}

/* ---- tiles ---- */
static size_t tile_for(const struct machine *m, size_t bytes)
{
    struct plan plan = plan_of(collectives_find_algorithm(ALLREDUCE, "one_shot"), 2, false);
    struct cutting cutting;
    double ns = 0;
    assert_int_equal(plan_choose_tile(&plan, m, bytes, 2, &cutting, &ns), TUTTI_OK);
    assert_true(cutting.message_bytes == bytes);
    assert_int_equal(cutting.slots, machine_tiles_in_flight(m, cutting.tile_bytes, false));
    plan_finish(&plan);
    return cutting.tile_bytes;
}
/* These tiles were the best, or within some percent of it, in benchmarks of allreduce on these machines. */
static void test_tiles_are_those_measured_best(void **state)
{
    (void)state;
    const struct machine *machines[] = { &near_cores, &far_cores };
    for (int i = 0; i < 2; i++) {
        size_t large = tile_for(machines[i], (size_t)64 << 20), medium = tile_for(machines[i], 1 << 20);
        assert_true(large >= 256 << 10 && large <= 512 << 10);
        assert_true(medium >= 128 << 10 && medium <= 512 << 10);
    }
}
static void test_tiles_in_flight_fit_in_the_cache(void **state)
{
    (void)state;
    static const double caches[] = { 256 << 10, 512 << 10, 1 << 20, 1.25 * (1 << 20), 2 << 20, 4 << 20 };
    for (size_t c = 0; c < sizeof caches / sizeof *caches; c++) {
        struct machine m = near_cores;
        size_t before = 0;
        m.l2 = caches[c];
        assert_true(machine_tiles_in_flight(&m, 32 << 10, false) == 3);
        assert_true(machine_tiles_in_flight(&m, machine_largest_tile(&m), false) == 2);
        assert_true(machine_tiles_in_flight(&m, machine_largest_tile(&m), true) == 3);
        for (size_t bytes = 4 << 20; bytes <= (size_t)1 << 30; bytes *= 2) {
            size_t tile = tile_for(&m, bytes);
            assert_true(tile >= 32 << 10 && tile >= before);
            assert_true((double)tile * machine_tiles_in_flight(&m, tile, false) <= m.l2);
            before = tile;
        }
        assert_true(before >= machine_largest_tile(&m) / 2);
    }
}
static void test_smallest_cache_has_the_smallest_tile(void **state)
{
    (void)state;
    struct machine m = near_cores;
    m.l2 = 32 << 10;
    assert_int_equal(machine_largest_tile(&m), 32 << 10);
    assert_int_equal(machine_tiles_in_flight(&m, 32 << 10, false), 2);
    assert_int_equal(tile_for(&m, 1 << 30), 32 << 10);
}

/* ---- waiting ---- */
static void test_spin_budget_is_about_the_cost_of_a_sleep(void **state)
{
    (void)state;
    struct spin_budget p = machine_spin_budget(&near_cores, 0);
    double awake = p.pauses * near_cores.pause;
    assert_true(awake > near_cores.sleep / 8 && awake < near_cores.sleep);
    assert_true(p.yields * near_cores.yield > near_cores.sleep);
    struct machine slow = near_cores;
    slow.sleep *= 10;
    assert_true(machine_spin_budget(&slow, 0).pauses > p.pauses && machine_spin_budget(&slow, 0).yields > p.yields);
}

/* ---- no memory ---- */
static void test_lack_of_memory_is_an_error(void **state)
{
    (void)state;
    struct plan plan = plan_of(collectives_find_algorithm(ALLREDUCE, "one_shot"), 2, false);
    struct cutting cutting;
    double ns = 7;
    memory_fail_after(1);
    assert_int_equal(plan_choose_tile(&plan, &near_cores, 4096, 2, &cutting, &ns), TUTTI_NO_MEMORY);
    memory_fail_after(0);
    assert_true(ns == 7);
    plan_finish(&plan);
}

unit_function test_cost;
int test_cost(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_bytes_cost_more),
        cmocka_unit_test(test_two_rounds_are_cheaper_from_one_size_on),
        cmocka_unit_test(test_wrong_parameter_moves_the_switch_little),
        cmocka_unit_test(test_round_costs_a_hand_over_if_cores_are_short),
        cmocka_unit_test(test_more_bytes_between_hosts_cost_more),
        cmocka_unit_test(test_long_messages_cost_the_time_of_the_link),
        cmocka_unit_test(test_short_messages_cost_rounds),
        cmocka_unit_test(test_cost_is_at_least_the_time_of_the_link),
        cmocka_unit_test(test_tiles_are_large_if_announcing_is_expensive),
        cmocka_unit_test(test_tiles_are_those_measured_best),
        cmocka_unit_test(test_tiles_in_flight_fit_in_the_cache),
        cmocka_unit_test(test_smallest_cache_has_the_smallest_tile),
        cmocka_unit_test(test_spin_budget_is_about_the_cost_of_a_sleep),
        cmocka_unit_test(test_lack_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
