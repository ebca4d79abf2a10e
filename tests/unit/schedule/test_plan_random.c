/* Random all-reduces: partial sums are added in any order on any rank, which reads the other sum in a peer's memory or
   receives it by a message, also from a rank that sends it out of a peer's memory. The result is passed on by reads,
   writes or messages. For every layout and placement of tensors the builder must find the waits, which the checker
   proves, or report a cycle. A cycle arises if a rank sends on what it has received only after it has waited for
   another message that depends on that. A seed that fails is printed; `unit_schedule test_plan_random SEED` runs it
   alone. */
#include "tests/support/unit.h"
#include "tests/unit/check/mutants.h"

#ifdef FEW
enum { PLANS = 500, MUTATED = 30, MOST_RANKS = 8 };
#else
enum { PLANS = 3000, MUTATED = 200, MOST_RANKS = 8 };
#endif
static uint64_t seed, first_seed = 1;
static int plan_total = PLANS;

/* All ranks draw the same random events, and each records its own. `scratch`: the chunks of SCRATCH used so far. */
struct events {
    struct schedule *s;
    uint64_t random;
    int scratch[MOST_RANKS];
};
static int events_pick(struct events *e, int n) { return (int)(xorshift_next(&e->random) >> 20 & 0xffff) % n; }
static struct span scratch(struct events *e, int rank) { return span_of_chunk(rank, SCRATCH, e->scratch[rank]++); }
static bool neighbours(const struct events *e, int a, int b)
{
    return layout_host(e->s->layout, a) == layout_host(e->s->layout, b);
}
/* Returns a rank of the host of `rank`, mostly `rank` itself. */
static int near(struct events *e, int rank)
{
    int host = layout_host(e->s->layout, rank);
    return events_pick(e, 3) ? rank
                             : layout_rank(e->s->layout, host, events_pick(e, layout_host_size(e->s->layout, host)));
}
static void message(struct events *e, int sender, struct span from, struct span into)
{
    if (e->s->rank == sender) step_send(e->s, from, into.rank);
    if (e->s->rank == into.rank) step_recv(e->s, into, sender);
}
/* Returns where `rank` can read the data of `from`: in place, or where it receives them. */
static struct span bring(struct events *e, struct span from, int rank)
{
    int sender = near(e, from.rank);
    if (from.rank == rank || sender == rank || (neighbours(e, from.rank, rank) && events_pick(e, 2))) return from;
    struct span received = scratch(e, rank);
    message(e, sender, from, received);
    return received;
}
/* Adds b to a on the rank of a, and returns the sum. `last`: the sum is complete. */
static struct span merge(struct events *e, struct span a, struct span b, int piece, bool last)
{
    int rank = a.rank;
    struct span other = bring(e, b, rank),
                into = last && events_pick(e, 2) ? span_of_chunk(rank, OUTPUT, piece) : scratch(e, rank);
    if (e->s->rank != rank) return into;
    step_copy(e->s, into, a);
    step_reduce(e->s, into, other);
    return into;
}
static void pass_on(struct events *e, struct span from, struct span to)
{
    int way = events_pick(e, 3), sender = near(e, from.rank);
    bool host = neighbours(e, from.rank, to.rank);
    if ((host && way == 0) || sender == to.rank) {
        if (e->s->rank == to.rank) step_copy(e->s, to, from);
    } else if (host && way == 1) {
        if (e->s->rank == from.rank) step_copy(e->s, to, from);
    } else message(e, sender, from, to);
}
/* Passes the complete sum on to all ranks. */
static void spread(struct events *e, struct span total, int piece)
{
    int holders[MOST_RANKS] = { total.rank }, have = 1, size = e->s->size;
    struct span out = span_of_chunk(total.rank, OUTPUT, piece);
    if (total.buffer != OUTPUT && e->s->rank == total.rank) step_copy(e->s, out, total);
    for (int hop = 1, way = events_pick(e, 2) ? 1 : size - 1; hop < size; hop++) {
        int to = (total.rank + hop * way) % size, from = holders[events_pick(e, have)];
        pass_on(e, span_of_chunk(from, OUTPUT, piece), span_of_chunk(to, OUTPUT, piece));
        holders[have++] = to;
    }
}
static void allreduce_random(struct schedule *s)
{
    struct events e = { .s = s, .random = seed };
    int pieces = 1 + events_pick(&e, 3);
    schedule_cut(s, pieces);
    for (int piece = 0; piece < pieces; piece++) {
        struct span parts[MOST_RANKS];
        for (int r = 0; r < s->size; r++) parts[r] = span_of_chunk(r, INPUT, piece);
        for (int left = s->size; left > 1; left--) {
            int a = events_pick(&e, left), b = (a + 1 + events_pick(&e, left - 1)) % left;
            parts[a] = merge(&e, parts[a], parts[b], piece, left == 2);
            parts[b] = parts[left - 1];
            if (a == left - 1) parts[b] = parts[a];
        }
        spread(&e, parts[0], piece);
    }
}
static const struct algorithm random_algorithm = {
    .name = "random", .collective = ALLREDUCE, .record = allreduce_random
};

static struct plan random_plan(struct hosts *hosts, uint64_t *random)
{
    int sizes[MOST_RANKS], count = 0, left = 2 + (int)(xorshift_next(random) % (MOST_RANKS - 1));
    while (left > 0) {
        sizes[count] = 1 + (int)(xorshift_next(random) % (uint64_t)left);
        left -= sizes[count++];
    }
    struct plan p = plan_of(&random_algorithm, hosts_of(hosts, sizes, count), 0);
    uint64_t choice = xorshift_next(random);
    p.slots = 1 + (int)(choice >> 8 & 3);
    p.in_place = choice & 1 ? mask_of(xorshift_next(random)) : NULL;
    p.shared = choice & 2 ? mask_of(xorshift_next(random)) : NULL;
    p.hoists_receives = choice & 4;
    p.stage_inputs = (choice & 24) == 24;
    return p;
}
static void test_random_allreduces_are_proved_or_have_a_cycle(void **state)
{
    static struct hosts hosts;
    int cured = 0, refused = 0;
    (void)state;
    for (int i = 0; i < plan_total; i++) {
        uint64_t random = seed = (first_seed + (uint64_t)i) * 0x9e3779b97f4a7c15u;
        struct plan p = random_plan(&hosts, &random), key = p;
        char why[200], text[200];
        describe(&p, text, sizeof text);
        tutti_status status = plan_build_staging(&p);
        if (status != TUTTI_OK && strncmp(p.error, "cycle", 5) != 0)
            fail_msg("seed %d: %s: %s", (int)first_seed + i, text, p.error);
        refused += status != TUTTI_OK;
        cured += status == TUTTI_OK && (p.stage_sends != key.stage_sends || p.unshared);
        for (int tiles = 1; status == TUTTI_OK && tiles <= 2 * p.slots + 1; tiles += p.slots)
            if (!plan_check(&p, tiles, 3, (unsigned)(i % 3), why, sizeof why))
                fail_msg("seed %d: %s: %s", (int)first_seed + i, text, why);
        plan_finish(&p);
    }
    print_message("%d plans proved, %d of them cured by staging; %d refused\n", plan_total - refused, cured, refused);
    assert_true(refused <= plan_total / 5 + 1);
}
/* Other waits may imply a rank's wait for its own message. The search does not find that, so such mutants are left
   out. */
static void test_checker_rejects_mutants_of_random_allreduces(void **state)
{
    static struct hosts hosts;
    (void)state;
    own_waits = false;
    for (int i = 0; i < MUTATED; i++) {
        uint64_t random = seed = (first_seed + (uint64_t)i) * 0x9e3779b97f4a7c15u;
        struct plan p = random_plan(&hosts, &random);
        if (p.size <= 6 && plan_build_staging(&p) == TUTTI_OK) mutate(&p);
        plan_finish(&p);
    }
    mutants_report();
}
unit_function test_plan_random;
int test_plan_random(void)
{
    int argc = unit_arguments.count;
    char **argv = unit_arguments.words;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_allreduces_are_proved_or_have_a_cycle),
        cmocka_unit_test(test_checker_rejects_mutants_of_random_allreduces),
    };
    if (argc > 1) {
        first_seed = strtoull(argv[1], NULL, 10);
        plan_total = 1;
        return cmocka_run_group_tests_name("one seed", (struct CMUnitTest[]){ tests[0] }, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
