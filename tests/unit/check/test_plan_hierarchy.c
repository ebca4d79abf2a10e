/* Schedules over several hosts: proved for unequal hosts in every placement, their mutants rejected, and what a host
 * builds for itself is what is built for it in the plan of all. */
#include "tests/unit/check/hierarchies.h"
#include "tests/unit/check/mutants.h"

enum { IN_PLACE = 1, SHARED = 2, HOIST = 4, STAGE_INPUTS = 8, WAYS = 16, MIXED = 8 };

static struct plan plan_by(const struct algorithm *a, const struct layout *l, int way, uint64_t *random)
{
    struct plan p = plan_of(a, l, (int)(draw(random) % (uint64_t)l->ranks));
    p.slots = 1 + way / 2 % 3;
    p.in_place = way & IN_PLACE ? mask_all : NULL;
    p.shared = way & SHARED ? mask_all : NULL;
    p.hoist = way & HOIST;
    p.stage_inputs = way & STAGE_INPUTS && is_reducing(a->family);
    if (way < WAYS) return p;
    p.in_place = mask_of(draw(random));
    p.shared = mask_of(draw(random));
    p.stage_inputs = way % 4 == 3 && is_reducing(a->family);
    return p;
}
static void prove(struct plan *p)
{
    static const int most_tiles = 9;
    char why[200], text[200];
    describe(p, text, sizeof text);
    if (plan_build_staging(p) != TUTTI_OK) fail_msg("%s: %s", text, p->error);
    for (int tiles = 1; tiles <= most_tiles && tiles <= 2 * p->slots + 1; tiles += p->slots)
        if (!plan_check(p, tiles, 3, (unsigned)tiles - 1, why, sizeof why)) fail_msg("%s: %s", text, why);
}
static void every_placement_is_proved(void **state)
{
    static struct hosts hosts;
    uint64_t random = 271828;
    int plans = 0;
    (void)state;
    for (int a = 0; a < HIERARCHIES; a++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int way = 0; way < WAYS + MIXED; way++, plans++) {
                struct plan p = plan_by(&hierarchies[a], layout_nth(&hosts, l), way, &random);
                prove(&p);
                plan_finish(&p);
            }
    print_message("%d plans proved\n", plans);
}
static void every_mutant_is_rejected(void **state)
{
    enum { SMALL_LAYOUTS = 4 };
    static struct hosts hosts;
    uint64_t random = 577215;
    (void)state;
    for (int a = 0; a < HIERARCHIES; a++)
        for (int l = 0; l < SMALL_LAYOUTS; l++)
            for (int way = 0; way < WAYS; way += 3) {
                struct plan p = plan_by(&hierarchies[a], layout_nth(&hosts, l), way, &random);
                prove(&p);
                mutate(&p);
                plan_finish(&p);
            }
    mutants_report();
}

/* ---- local equals global, but for where in SCRATCH a chunk lies ---- */
static bool spans_equal(const struct schedule *a, const struct schedule *b, const struct step *x, const struct step *y)
{
    bool same = x->from_count == y->from_count && x->to_count == y->to_count;
    for (int i = 0; same && i < x->from_count + x->to_count; i++) {
        struct span m = a->spans[x->span + i], n = b->spans[y->span + i];
        same = m.rank == n.rank && m.buffer == n.buffer && m.count == n.count &&
               (m.first == n.first || m.buffer == SCRATCH);
    }
    return same;
}
static bool steps_equal(const struct schedule *a, const struct schedule *b, int j)
{
    const struct step *x = &a->steps[j], *y = &b->steps[j];
    bool same = x->kind == y->kind && x->peer == y->peer && x->number == y->number && x->wait_count == y->wait_count &&
                x->by_tile == y->by_tile && x->by_reuse == y->by_reuse && x->by_leave == y->by_leave &&
                x->finish == y->finish && x->raw == y->raw && spans_equal(a, b, x, y);
    for (int w = 0; same && w < x->wait_count; w++) {
        struct wait m = a->waits[x->wait + w], n = b->waits[y->wait + w];
        same = m.rank == n.rank && m.step == n.step && m.lag == n.lag;
    }
    return same;
}
static void compare_rank(const struct schedule *a, const struct schedule *b, const char *name)
{
    assert_int_equal(a->step_count, b->step_count);
    assert_int_equal(a->prelude, b->prelude);
    assert_int_equal(a->first_message, b->first_message);
    assert_int_equal(a->last_message, b->last_message);
    for (int j = 0; j < a->step_count; j++)
        if (!steps_equal(a, b, j)) fail_msg("%s: rank %d step %d differs", name, a->rank, j);
}
/* The part of a mask of all that is this host's. */
static const uint64_t *on_host(const uint64_t *mask, const struct layout *l, int host)
{
    uint64_t bits = 0;
    for (int i = 0; i < host_size(l, host); i++) bits |= (uint64_t)mask_has(mask, rank_at(l, host, i)) << i;
    return mask_of(bits);
}
static bool host_builds(const struct plan *all, bool built, const struct plan *key, int host)
{
    struct plan p = *key;
    p.one_host = true;
    p.host = host;
    p.in_place = on_host(key->in_place, key->layout, host);
    p.shared = on_host(key->shared, key->layout, host);
    bool fine = plan_build(&p) == TUTTI_OK;
    for (int m = 0; built && m < p.count; m++)
        compare_rank(&p.ranks[m], plan_member(all, plan_rank(&p, m)), p.algorithm->name);
    plan_finish(&p);
    return fine;
}
static void a_host_alone_builds_the_same(void **state)
{
    static struct hosts hosts;
    uint64_t random = 161803;
    int compared = 0, refused = 0;
    (void)state;
    for (int a = 0; a < HIERARCHIES; a++)
        for (int l = 0; l < LAYOUTS; l++)
            for (int way = 0; way < WAYS + MIXED; way++) {
                struct plan p = plan_by(&hierarchies[a], layout_nth(&hosts, l), way, &random), key = p;
                bool built = plan_build(&p) == TUTTI_OK, all = true;
                for (int h = 0; h < p.layout->hosts; h++, compared++) all &= host_builds(&p, built, &key, h);
                assert_int_equal(all, built);
                refused += !built;
                plan_finish(&p);
            }
    print_message("%d hosts compared; %d plans refused, by one of their hosts too\n", compared, refused);
    assert_true(refused > 0);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_placement_is_proved),
        cmocka_unit_test(every_mutant_is_rejected),
        cmocka_unit_test(a_host_alone_builds_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
