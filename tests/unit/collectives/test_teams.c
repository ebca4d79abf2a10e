/* The algorithms for teams work as stages of a hierarchy: the ranks of each host sum slices by reading each other, a
   team algorithm works on each slice across the hosts, and the ranks of each host copy the other slices from each
   other. The tests prove this for equal and unequal hosts, in place and not, with shared tensors and without. */
#include "backend/collectives/common.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

enum { MOST_HOSTS = 7 };
/* The tested algorithm between the hosts, and the number of pieces of a slice that it needs. */
static team_function *across_hosts;
static int (*pieces_of)(int hosts);

/* Returns the number of slices: that of the ranks of the largest host. The ranks of each host own them in turns. */
static int slices(const struct schedule *s) { return s->layout->largest; }
static struct team slice_team(const struct schedule *s, int slice, int pieces)
{
    struct team across = team_across_hosts(s, slice);
    across.base = slice * pieces;
    across.pieces = pieces;
    across.source = OUTPUT;
    return across;
}
static struct span slice_of(int rank, enum buffer buffer, int slice, int pieces)
{
    return (struct span){ rank, buffer, slice * pieces, pieces };
}
static void sum_over_host(struct schedule *s, const struct team *host, struct span into, int slice, int pieces)
{
    step_copy(s, into, slice_of(team_rank(host, 0), INPUT, slice, pieces));
    for (int i = 1; i < host->size; i++) step_reduce(s, into, slice_of(team_rank(host, i), INPUT, slice, pieces));
}
static void collect_slices(struct schedule *s, const struct team *host, int count, int pieces)
{
    for (int k = 0; k < count; k++)
        if (k % host->size != host->me)
            step_copy(s, slice_of(s->rank, OUTPUT, k, pieces), slice_of(team_rank(host, k), OUTPUT, k, pieces));
}
static void hierarchical_allreduce(struct schedule *s)
{
    struct team host = team_of_host(s);
    int count = slices(s), pieces = pieces_of(s->layout->hosts);
    schedule_cut(s, count * pieces);
    for (int k = host.me; k < count; k += host.size)
        sum_over_host(s, &host, slice_of(s->rank, OUTPUT, k, pieces), k, pieces);
    for (int k = host.me; k < count; k += host.size) {
        struct team across = slice_team(s, k, pieces);
        across_hosts(s, &across);
    }
    collect_slices(s, &host, count, pieces);
}
static void hierarchical_broadcast(struct schedule *s)
{
    struct team host = team_of_host(s);
    int count = slices(s), from = layout_host(s->layout, s->root);
    schedule_cut(s, count);
    for (int k = host.me; k < count; k += host.size) {
        struct team across = slice_team(s, k, 1);
        if (s->place.host == from) step_copy(s, span_of_chunk(s->rank, OUTPUT, k), span_of_chunk(s->root, INPUT, k));
        team_broadcast_binomial(s, &across, from);
    }
    collect_slices(s, &host, count, 1);
}

/* Bits of `mode`: 1 in place, 2 shared, 4 receives are posted early. */
static void prove(const struct algorithm *a, const int *sizes, int hosts, int root, unsigned mode)
{
    static struct hosts placed_hosts;
    char why[160] = "";
    struct plan plan = plan_of(a, hosts_of(&placed_hosts, sizes, hosts), root);
    plan.slots = 2;
    plan.in_place = mode & 1 ? mask_all : NULL;
    plan.shared = mode & 2 ? mask_all : NULL;
    plan.hoists_receives = (mode & 4) != 0;
    if (plan_build_staging(&plan) != TUTTI_OK) fail_msg("%s of %d ranks: %s", a->name, plan.size, plan.error);
    if (!plan_check(&plan, 5, 2, mode, why, sizeof why))
        fail_msg("%s of %d ranks, mode %u: %s", a->name, plan.size, mode, why);
    plan_finish(&plan);
}
static void prove_everywhere(const struct algorithm *a)
{
    static const int layouts[][MOST_HOSTS] = { { 1 }, { 3 }, { 1, 1 }, { 2, 2 }, { 3, 2, 1 }, { 1, 3, 2 },
        { 2, 1, 1, 2 }, { 1, 2, 1, 1, 2 }, { 1, 1, 1, 1, 1, 1 }, { 2, 1, 1, 1, 1, 1, 1 } };
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        int hosts = 0, ranks = 0;
        while (hosts < MOST_HOSTS && layouts[l][hosts]) ranks += layouts[l][hosts++];
        for (int root = 0; root < (a->collective == BROADCAST ? ranks : 1); root++)
            for (unsigned mode = 0; mode < 8; mode++) prove(a, layouts[l], hosts, root, mode);
    }
}
static int one_piece(int hosts) { (void)hosts; return 1; }
static int piece_each(int hosts) { return hosts; }
static void check_allreduce(const char *name, team_function *between, int (*pieces)(int))
{
    struct algorithm a = {
        .name = name, .collective = ALLREDUCE, .record = hierarchical_allreduce, .host_memory = true
    };
    across_hosts = between;
    pieces_of = pieces;
    prove_everywhere(&a);
}
static void test_ring_works_between_hosts(void **state)
{
    (void)state;
    check_allreduce("ring", team_allreduce_ring, piece_each);
}
static void test_doubling_works_between_hosts(void **state)
{
    (void)state;
    check_allreduce("doubling", team_allreduce_doubling, one_piece);
}
static void test_rabenseifner_works_between_hosts(void **state)
{
    (void)state;
    check_allreduce("rabenseifner", team_allreduce_rabenseifner, power_of_two_at_most);
}
static void test_circulant_works_between_hosts(void **state)
{
    (void)state;
    check_allreduce("circulant", team_allreduce_circulant, piece_each);
}
static void reduce_to_the_first_host(struct schedule *s, const struct team *t)
{
    team_reduce_binomial(s, t, 0, team_all_pieces(s, t, OUTPUT));
    team_broadcast_binomial(s, t, 0);
}
static void test_binomial_trees_work_between_hosts(void **state)
{
    (void)state;
    check_allreduce("trees", reduce_to_the_first_host, one_piece);
}
static void test_broadcast_works_between_hosts(void **state)
{
    (void)state;
    prove_everywhere(&(struct algorithm){
        .name = "broadcast", .collective = BROADCAST, .record = hierarchical_broadcast, .host_memory = true });
}

unit_function test_teams;
int test_teams(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring_works_between_hosts),
        cmocka_unit_test(test_doubling_works_between_hosts),
        cmocka_unit_test(test_rabenseifner_works_between_hosts),
        cmocka_unit_test(test_circulant_works_between_hosts),
        cmocka_unit_test(test_binomial_trees_work_between_hosts),
        cmocka_unit_test(test_broadcast_works_between_hosts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
