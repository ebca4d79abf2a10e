/* Ranks that were told different things of a group of one name in one store: every rank that comes gets MISMATCH, which
   shows both sides, in whatever order they come; and no group has members of two lists. */
#include "tests/support/unit.h"
#include "tests/unit/join/bootstrap_world.h"

enum { JOB = 4711 };
static const int ends[] = { 0, 3 }, middle[] = { 1, 2 }, three[] = { 1, 2, 4 };
static const char hint[] = "new_group(ranks, use_local_synchronization=True)";

/* Two groups of the name, each of ranks that agree. */
struct side { struct way way; struct rank ranks[MOST]; pthread_t threads[MOST]; struct outcome *outcomes; };
struct dispute { struct store *store; struct side a, b; };
static void side_init(struct side *side, const int *members, int size, int attempt, uint64_t job)
{
    side->way = (struct way){ .size = size, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = attempt };
    side->way.members = members;
    side->way.job = job;
    side->outcomes = outcomes_create();
}
static void dispute_init(struct dispute *d, uint64_t job)
{
    d->store = store_create();
    side_init(&d->a, ends, 2, 0, job);
    side_init(&d->b, middle, 2, 1, job);
}
static void dispute_finish(struct dispute *d)
{
    free(d->store);
    outcomes_destroy(d->a.outcomes);
    outcomes_destroy(d->b.outcomes);
}
static void *bring_one(void *context)
{
    bring(context, false);
    return NULL;
}
typedef tutti_status get_function(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms);
static void start_reading(struct dispute *d, struct side *side, int rank, get_function *get)
{
    side->ranks[rank] = (struct rank){ .way = &side->way, .rank = rank, .outcome = &side->outcomes[rank] };
    side->ranks[rank].store = (tutti_store){ d->store, store_put, get };
    assert_int_equal(pthread_create(&side->threads[rank], NULL, bring_one, &side->ranks[rank]), 0);
}
static void start(struct dispute *d, struct side *side, int rank) { start_reading(d, side, rank, store_get); }
/* Two followers meet when both have seen that the attempt has no result yet. Without this, one of them may answer and
   end the attempt before the other reads, and that one cannot tell it from an attempt of an earlier job. */
static pthread_barrier_t both_have_read;
static _Thread_local bool has_met;
static tutti_status store_get_and_meet(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    tutti_status status = store_get(context, key, value, capacity, bytes, timeout_ms);
    if (!has_met && strstr(key, "table")) {
        has_met = true;
        pthread_barrier_wait(&both_have_read);
    }
    return status;
}
static void end(struct side *side, int rank) { pthread_join(side->threads[rank], NULL); }
static void bring_now(struct dispute *d, struct side *side, int rank)
{
    start(d, side, rank);
    end(side, rank);
}
static void await_keys(struct store *s, int count)
{
    while (store_keys(s) < count) sleep_ms(1);
}
static void expect_mismatch(const struct side *side, int rank, const char *one, const char *two)
{
    const struct outcome *o = &side->outcomes[rank];
    if (o->status != TUTTI_MISMATCH || !strstr(o->detail, one) || !strstr(o->detail, two))
        fail_msg("rank %d: status %d, \"%s\" without \"%s\" or \"%s\"", rank, o->status, o->detail, one, two);
}
static void expect_lists(const struct side *side, int rank)
{
    expect_mismatch(side, rank, "2 members, 0, 3, according to its rank", "2 members, 1, 2, according to its rank");
    assert_non_null(strstr(side->outcomes[rank].detail, hint));
}
static void expect_lists_on_all(const struct dispute *d)
{
    for (int r = 0; r < 2; r++) {
        expect_lists(&d->a, r);
        expect_lists(&d->b, r);
    }
}

/* ---- members ---- */
/* Neither has the ranks that it waits for when it finds out, and those find out when they come. */
static void test_two_that_join_as_rank_0_of_other_members(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    start(&d, &d.a, 0);
    await_keys(d.store, 1);
    bring_now(&d, &d.b, 0);
    bring_now(&d, &d.b, 1);
    end(&d.a, 0);
    bring_now(&d, &d.a, 1);
    expect_lists_on_all(&d);
    dispute_finish(&d);
    (void)state;
}
static void test_one_of_other_members_that_meets_rank_0(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    start(&d, &d.a, 0);
    await_keys(d.store, 1);
    bring_now(&d, &d.b, 1);
    end(&d.a, 0);
    bring_now(&d, &d.a, 1);
    bring_now(&d, &d.b, 0);
    expect_lists_on_all(&d);
    dispute_finish(&d);
    (void)state;
}
/* Nobody knows of a job: what is in the store might be of an earlier attempt, and is not, since both still wait. */
static void test_members_that_disagree_without_a_job(void **state)
{
    struct dispute d;
    dispute_init(&d, 0);
    start(&d, &d.a, 0);
    await_keys(d.store, 1);
    start(&d, &d.b, 0);
    await_keys(d.store, 3); /* each rank 0 has found the other, and has told it */
    pthread_barrier_init(&both_have_read, NULL, 2);
    start_reading(&d, &d.a, 1, store_get_and_meet);
    start_reading(&d, &d.b, 1, store_get_and_meet);
    for (int r = 0; r < 2; r++) {
        end(&d.a, r);
        end(&d.b, r);
    }
    pthread_barrier_destroy(&both_have_read);
    expect_lists_on_all(&d);
    dispute_finish(&d);
    (void)state;
}
static void test_one_that_comes_when_the_others_have_formed(void **state)
{
    for (int rank = 0; rank < 2; rank++) {
        struct dispute d;
        dispute_init(&d, JOB);
        run_store(&d.a.way, d.store, d.a.outcomes);
        bring_now(&d, &d.b, rank);
        expect_tables(&d.a.way, d.a.outcomes);
        expect_lists(&d.b, rank);
        dispute_finish(&d);
    }
    (void)state;
}
static void test_an_earlier_job_is_not_believed(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    run_store(&d.a.way, d.store, d.a.outcomes);
    d.b.way.job = JOB + 1;
    run_store(&d.b.way, d.store, d.b.outcomes);
    expect_tables(&d.b.way, d.b.outcomes);
    store_put_first(d.store, &d.a.way);                 /* one that has died, without a result */
    d.b.way.attempt = 2;
    run_store(&d.b.way, d.store, d.b.outcomes);
    expect_tables(&d.b.way, d.b.outcomes);
    dispute_finish(&d);
    (void)state;
}
/* All at once: which of them meet is chance, but none waits, and none is in a group with ranks of the other list. */
static void test_a_group_never_has_members_of_two_lists(void **state)
{
    for (int round = 0; round < 30; round++) {
        struct dispute d;
        dispute_init(&d, JOB);
        for (int i = 0; i < 4; i++) {
            int which = (i + round) % 4;
            start(&d, which & 1 ? &d.a : &d.b, which >> 1);
        }
        for (int side = 0; side < 2; side++) {
            struct side *s = side ? &d.a : &d.b;
            for (int r = 0; r < 2; r++) end(s, r);
            if (s->outcomes[0].status == TUTTI_OK) expect_tables(&s->way, s->outcomes);
            for (int r = 0; r < 2 && s->outcomes[0].status != TUTTI_OK; r++) expect_lists(s, r);
        }
        dispute_finish(&d);
    }
    (void)state;
}
static void test_members_of_another_number(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.b.way.members = three;
    d.b.way.size = 3;
    start(&d, &d.a, 0);
    await_keys(d.store, 1);
    for (int r = 2; r >= 0; r--) {
        bring_now(&d, &d.b, r);
        expect_mismatch(&d.b, r, "2 members, 0, 3, according", "3 members, 1, 2, 4, according");
    }
    end(&d.a, 0);
    expect_mismatch(&d.a, 0, "2 members, 0, 3, according", "3 members, 1, 2, 4, according");
    dispute_finish(&d);
    (void)state;
}
static void test_one_that_was_told_no_members(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.b.way.members = NULL;
    start(&d, &d.a, 0);
    await_keys(d.store, 1);
    bring_now(&d, &d.b, 1);
    end(&d.a, 0);
    expect_mismatch(&d.a, 0, "2 members, 0, 3, according", "0 members, none, according");
    expect_mismatch(&d.b, 1, "2 members, 0, 3, according", "0 members, none, according");
    dispute_finish(&d);
    (void)state;
}

/* ---- what else must be the same ---- */
static void expect_both(struct dispute *d, const char *one, const char *two)
{
    d->b.way.members = ends;
    start(d, &d->a, 0);
    await_keys(d->store, 1);
    bring_now(d, &d->b, 1);
    end(&d->a, 0);
    expect_mismatch(&d->a, 0, one, two);
    expect_mismatch(&d->b, 1, one, two);
    dispute_finish(d);
}
static void test_names_that_disagree_are_shown_to_all(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.a.way.name = "rows";
    d.b.way.name = "columns";
    expect_both(&d, "calls the group \"rows\"", "calls it \"columns\"");
    (void)state;
}
static void test_options_that_disagree_are_shown_to_all(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.a.way.all_reduce = collectives_find_algorithm(ALLREDUCE, "ring");
    assert_non_null(d.a.way.all_reduce);
    expect_both(&d, "asks for algorithms allreduce=ring for the group", "for none: a group's options must be the same");
    (void)state;
}

/* ---- lists that are long ---- */
static void expect_printed(const int *members, int count, const char *text)
{
    char out[40];
    terms_print_members(members, count, out, sizeof out);
    assert_string_equal(out, text);
}
static void test_lists_are_shortened(void **state)
{
    int all[4096], even[4096];
    for (int i = 0; i < 4096; i++) {
        all[i] = i;
        even[i] = 2 * i;
    }
    expect_printed((int[]){ 5 }, 1, "5");
    expect_printed((int[]){ 2, 0, 1 }, 3, "2, 0, 1");
    expect_printed((int[]){ 0, 1, 2, 3, 8, 9, 12 }, 7, "0-3, 8, 9, 12");
    expect_printed(all, 4096, "0-4095");
    expect_printed(even, 4096, "0, 2, 4, 6, 8, 10 and 4090 more");
    (void)state;
}
static void test_long_lists_that_differ_late_are_told_apart(void **state)
{
    int even[MOST], other[MOST];
    struct dispute d;
    dispute_init(&d, JOB);
    for (int i = 0; i < MOST; i++) even[i] = other[i] = 1000000000 + 2 * i;
    other[MOST - 1]++;
    d.a.way.size = d.b.way.size = MOST;
    d.a.way.members = even;
    d.b.way.members = other;
    start(&d, &d.a, 0);
    await_keys(d.store, 1);
    bring_now(&d, &d.b, 1);
    expect_mismatch(&d.b, 1, "1000000000, 1000000002,", "they differ in members that are not shown");
    end(&d.a, 0);
    dispute_finish(&d);
    (void)state;
}

unit_function test_terms;
int test_terms(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_that_join_as_rank_0_of_other_members),
        cmocka_unit_test(test_one_of_other_members_that_meets_rank_0),
        cmocka_unit_test(test_members_that_disagree_without_a_job),
        cmocka_unit_test(test_one_that_comes_when_the_others_have_formed),
        cmocka_unit_test(test_an_earlier_job_is_not_believed),
        cmocka_unit_test(test_a_group_never_has_members_of_two_lists),
        cmocka_unit_test(test_members_of_another_number),
        cmocka_unit_test(test_one_that_was_told_no_members),
        cmocka_unit_test(test_names_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_options_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_lists_are_shortened),
        cmocka_unit_test(test_long_lists_that_differ_late_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
