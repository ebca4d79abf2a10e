/* Every algorithm over messages costs what its comment states, for 1 to 17 ranks: the rounds, if a rank sends one
   message and receives one at a time; the chunks that the busiest rank sends; and the number of chunks in a rank's
   message. */
#include "backend/collectives/common.h"
#include "tests/support/unit.h"
#include "tests/unit/schedule/plans.h"

enum { MOST_RANKS = 17, MOST_STEPS = 256 };
static struct hosts hosts;

/* ---- formulas ---- */
typedef int formula(int p);
static int log_above(int p)
{
    int log = 0;
    while (1 << log < p) log++;
    return log;
}
static bool is_power(int p) { return (p & (p - 1)) == 0; }
static int log_below(int p) { return is_power(p) ? log_above(p) : log_above(p) - 1; }
static int one(int p) { return p > 1; }
static int two(int p) { return p > 1 ? 2 : 0; }
static int up_to_four(int p) { return p > 1 ? int_min(p, 4) : 0; }
static int others(int p) { return p - 1; }
static int twice_others(int p) { return 2 * (p - 1); }
static int twice_log(int p) { return 2 * log_above(p); }
static int twice_log_and_one(int p) { return 2 * log_above(p) + (p > 1); }
static int four_log_and_one(int p) { return 4 * log_above(p) + (p > 1); }
static int folded_log(int p) { return log_below(p) + (is_power(p) ? 0 : 2); }
static int folded_log_sent(int p) { return log_below(p) + (is_power(p) ? 0 : 1); }
static int folded_twice_log(int p) { return 2 * log_below(p) + (is_power(p) ? 0 : 2); }
static int rabenseifner_sent(int p)
{
    return 2 * (power_of_two_at_most(p) - 1) + (is_power(p) ? 0 : power_of_two_at_most(p));
}
static int halving_sent(int p) { return is_power(p) ? p - 1 : p; }
/* Returns the number of one bits in all numbers below p. */
static int all_bits(int p)
{
    int bits = 0;
    for (int i = 0; i < p; i++)
        for (int rest = i; rest; rest &= rest - 1) bits++;
    return bits;
}
/* Returns the most ranks below a child of the root in a binomial tree. */
static int largest_branch(int p)
{
    int most = 0;
    for (int v = 1; v < p; v++) most = int_min(v & -v, p - v) > most ? int_min(v & -v, p - v) : most;
    return most;
}
static int uncut(int p) { (void)p; return 1; }
static int halves(int p) { (void)p; return 2; }
static int all(int p) { return p; }

static const struct cost {
    enum collective collective;
    const char *name;
    formula *rounds, *sent, *cut;
    /* The plan may take fewer rounds. */
    bool at_most;
} costs[] = {
    { ALLREDUCE, "naive", twice_others, others, uncut, false },
    { ALLREDUCE, "tree", twice_log, log_above, uncut, false },
    { ALLREDUCE, "double_tree", four_log_and_one, up_to_four, halves, true },
    { ALLREDUCE, "ring", twice_others, twice_others, all, false },
    { ALLREDUCE, "doubling", folded_log, folded_log_sent, uncut, false },
    { ALLREDUCE, "rabenseifner", folded_twice_log, rabenseifner_sent, power_of_two_at_most, false },
    { ALLREDUCE, "circulant", twice_log, twice_others, all, false },
    { REDUCE, "naive", others, one, uncut, false },
    { REDUCE, "binomial", log_above, one, uncut, false },
    { REDUCE, "double_tree", twice_log, two, halves, true },
    { BROADCAST, "naive", others, others, uncut, false },
    { BROADCAST, "binomial", log_above, log_above, uncut, false },
    { BROADCAST, "chain", others, one, uncut, false },
    { BROADCAST, "double_tree", twice_log_and_one, two, halves, true },
    { REDUCE_SCATTER, "ring", others, others, uncut, false },
    { REDUCE_SCATTER, "halving", folded_log, halving_sent, uncut, false },
    { REDUCE_SCATTER, "circulant", log_above, others, uncut, false },
    { ALLGATHER, "ring", others, others, uncut, false },
    { ALLGATHER, "bruck", log_above, others, uncut, false },
    { ALL_TO_ALL, "pairwise", others, others, uncut, false },
    { ALL_TO_ALL, "direct", others, others, uncut, false },
    { ALL_TO_ALL, "bruck", log_above, all_bits, uncut, false },
    { GATHER, "naive", others, one, uncut, false },
    { GATHER, "binomial", log_above, largest_branch, uncut, false },
    { SCATTER, "naive", others, others, uncut, false },
    { SCATTER, "binomial", log_above, others, uncut, false },
    { BARRIER, "naive", twice_others, others, uncut, false },
    { BARRIER, "tree", twice_log, log_above, uncut, false },
    { BARRIER, "dissemination", log_above, log_above, uncut, false },
};
static const struct cost *cost_of(const struct algorithm *a)
{
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        if (costs[i].collective == a->collective && strcmp(costs[i].name, a->name) == 0) return &costs[i];
    fail_msg("%s %s has no row in this file's table of costs", collective_name(a->collective), a->name);
    return NULL;
}

/* ---- a clock of rounds ---- */
/* The plan of all ranks as it runs. `at`: the next step of each rank. */
struct clock {
    const struct plan *plan;
    int at[MOST_RANKS];
    bool posted[MOST_RANKS][MOST_STEPS], done[MOST_RANKS][MOST_STEPS];
};
static bool may_run(const struct clock *c, int rank)
{
    const struct schedule *s = &c->plan->ranks[rank];
    const struct step *t = &s->steps[c->at[rank]];
    for (int w = 0; w < t->wait_count; w++) {
        const struct wait *wait = &s->waits[t->wait + w];
        if (wait->rank == rank && !c->done[rank][wait->step]) return false;
    }
    return true;
}
/* Runs each rank until it waits for a message. Returns true if all ranks have ended. */
static bool run_ranks(struct clock *c)
{
    bool over = true;
    for (int r = 0; r < c->plan->size; r++) {
        while (c->at[r] < c->plan->ranks[r].step_count && may_run(c, r)) c->posted[r][c->at[r]++] = true;
        over = over && c->at[r] == c->plan->ranks[r].step_count;
    }
    return over;
}
static int receive_of(const struct clock *c, int sender, const struct step *t)
{
    const struct schedule *s = &c->plan->ranks[t->peer];
    for (int j = 0; j < s->step_count; j++)
        if (s->steps[j].kind == RECV && s->steps[j].peer == sender && s->steps[j].number == t->number) return j;
    fail_msg("rank %d sends what rank %d does not receive", sender, t->peer);
    return -1;
}
static int first_unsent(const struct clock *c, int rank)
{
    const struct schedule *s = &c->plan->ranks[rank];
    for (int j = 0; j < s->step_count; j++)
        if (s->steps[j].kind == SEND && c->posted[rank][j] && !c->done[rank][j]) return j;
    return -1;
}
/* Moves the first message of each rank that its receiver can take. Returns false if no message moved. */
static bool pass_round(struct clock *c)
{
    bool busy[MOST_RANKS] = { false }, moved = false;
    int sending[MOST_RANKS];
    for (int r = 0; r < c->plan->size; r++) sending[r] = first_unsent(c, r);
    for (int r = 0; r < c->plan->size; r++) {
        if (sending[r] < 0) continue;
        const struct step *t = &c->plan->ranks[r].steps[sending[r]];
        int receive_step = receive_of(c, r, t);
        if (busy[t->peer] || !c->posted[t->peer][receive_step]) continue;
        busy[t->peer] = moved = c->done[r][sending[r]] = c->done[t->peer][receive_step] = true;
    }
    return moved;
}
static int rounds_of(const struct plan *plan)
{
    static struct clock c;
    int rounds = 0;
    c = (struct clock){ .plan = plan };
    bool over = run_ranks(&c);
    while (pass_round(&c)) {
        rounds++;
        over = run_ranks(&c);
    }
    if (!over) fail_msg("%s of %d ranks never ends", plan->algorithm->name, plan->size);
    return rounds;
}

/* ---- counting ---- */
static int chunks_sent(const struct schedule *s)
{
    int chunks = 0;
    for (int j = 0; j < s->step_count; j++)
        for (int f = 0; s->steps[j].kind == SEND && f < s->steps[j].from_count; f++)
            chunks += step_from(s, &s->steps[j])[f].count;
    return chunks;
}
static void check_costs(const struct plan *plan, const struct cost *cost)
{
    int rounds = rounds_of(plan), expected = cost->rounds(plan->size), most = 0;
    for (int r = 0; r < plan->size; r++) {
        const struct schedule *s = &plan->ranks[r];
        assert_true(s->step_count <= MOST_STEPS);
        assert_int_equal(s->cut, cost->cut(plan->size));
        if (chunks_sent(s) > most) most = chunks_sent(s);
    }
    if (cost->at_most ? rounds > expected : rounds != expected)
        fail_msg("%s %s of %d ranks: %d rounds, not %d", collective_name(cost->collective), cost->name, plan->size,
            rounds, expected);
    if (most != cost->sent(plan->size))
        fail_msg("%s %s of %d ranks: a rank sends %d chunks, not %d", collective_name(cost->collective), cost->name,
            plan->size, most, cost->sent(plan->size));
}
static void test_message_costs_are_as_stated(void **state)
{
    (void)state;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        for (int size = 1; size <= MOST_RANKS && !a->host_memory && !a->hierarchical; size++) {
            struct plan plan = plan_of(a, apart(&hosts, size), size / 2);
            if (plan_build(&plan) != TUTTI_OK)
                fail_msg("%s %s of %d ranks: %s", collective_name(a->collective), a->name, size, plan.error);
            check_costs(&plan, cost_of(a));
            plan_finish(&plan);
        }
}
static void test_every_cost_belongs_to_an_algorithm(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof costs / sizeof *costs; i++)
        assert_non_null(collectives_find_algorithm(costs[i].collective, costs[i].name));
}

unit_function test_message_costs;
int test_message_costs(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_costs_are_as_stated),
        cmocka_unit_test(test_every_cost_belongs_to_an_algorithm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
