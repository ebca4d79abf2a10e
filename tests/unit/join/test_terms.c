/* Ranks that join a group with different terms through one store: every rank gets MISMATCH, which shows both sides, in
   whatever order they join, and no group has members of two lists. */
#include "tests/support/unit.h"
#include "tests/unit/join/bootstrap_world.h"

enum { JOB = 4711 };
static const int ends[] = { 0, 3 }, middle[] = { 1, 2 }, three[] = { 1, 2, 4 };
static const char hint[] = "new_group(ranks, use_local_synchronization=True)";

/* Two groups in one store. The ranks of each have the same terms. */
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
static void *join_one(void *context)
{
    rank_join(context, false);
    return NULL;
}
typedef tutti_status get_function(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms);
static void join_start_reading(struct dispute *d, struct side *side, int rank, get_function *get)
{
    side->ranks[rank] = (struct rank){ .way = &side->way, .rank = rank, .outcome = &side->outcomes[rank] };
    side->ranks[rank].store = (tutti_store){ d->store, store_put, get };
    assert_int_equal(pthread_create(&side->threads[rank], NULL, join_one, &side->ranks[rank]), 0);
}
static void join_start(struct dispute *d, struct side *side, int rank) { join_start_reading(d, side, rank, store_get); }
/* Two ranks other than 0 wait for each other here when both have read that the attempt has no result yet. Otherwise one
   of them might answer and so end the attempt before the other reads. To the other, the attempt would then look like
   one of an earlier job. */
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
static void join_await(struct side *side, int rank) { pthread_join(side->threads[rank], NULL); }
/* Joins as that rank, and waits for its outcome. */
static void join_and_await(struct dispute *d, struct side *side, int rank)
{
    join_start(d, side, rank);
    join_await(side, rank);
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
/* Each rank 0 finds the mismatch before its rank 1 joins, which then finds it, too. */
static void test_two_ranks_0_with_different_lists_mismatch(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    join_start(&d, &d.a, 0);
    await_keys(d.store, 1);
    join_and_await(&d, &d.b, 0);
    join_and_await(&d, &d.b, 1);
    join_await(&d.a, 0);
    join_and_await(&d, &d.a, 1);
    expect_lists_on_all(&d);
    dispute_finish(&d);
    (void)state;
}
static void test_rank_1_with_another_list_than_rank_0_mismatches(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    join_start(&d, &d.a, 0);
    await_keys(d.store, 1);
    join_and_await(&d, &d.b, 1);
    join_await(&d.a, 0);
    join_and_await(&d, &d.a, 1);
    join_and_await(&d, &d.b, 0);
    expect_lists_on_all(&d);
    dispute_finish(&d);
    (void)state;
}
/* Without a job, the records in the store might be of an earlier attempt. The ranks find that they are not, because
   both ranks 0 still wait. */
static void test_different_lists_without_a_job_mismatch(void **state)
{
    struct dispute d;
    dispute_init(&d, 0);
    join_start(&d, &d.a, 0);
    await_keys(d.store, 1);
    join_start(&d, &d.b, 0);
    /* Each rank 0 has found the statement of the other, and has stored its own terms for it. */
    await_keys(d.store, 3);
    pthread_barrier_init(&both_have_read, NULL, 2);
    join_start_reading(&d, &d.a, 1, store_get_and_meet);
    join_start_reading(&d, &d.b, 1, store_get_and_meet);
    for (int r = 0; r < 2; r++) {
        join_await(&d.a, r);
        join_await(&d.b, r);
    }
    pthread_barrier_destroy(&both_have_read);
    expect_lists_on_all(&d);
    dispute_finish(&d);
    (void)state;
}
static void test_rank_with_another_list_than_a_formed_group_mismatches(void **state)
{
    for (int rank = 0; rank < 2; rank++) {
        struct dispute d;
        dispute_init(&d, JOB);
        run_store(&d.a.way, d.store, d.a.outcomes);
        join_and_await(&d, &d.b, rank);
        expect_tables(&d.a.way, d.a.outcomes);
        expect_lists(&d.b, rank);
        dispute_finish(&d);
    }
    (void)state;
}
static void test_records_of_an_earlier_job_are_ignored(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    run_store(&d.a.way, d.store, d.a.outcomes);
    d.b.way.job = JOB + 1;
    run_store(&d.b.way, d.store, d.b.outcomes);
    expect_tables(&d.b.way, d.b.outcomes);
    /* A rank 0 of the earlier job has died while joining. */
    store_put_first(d.store, &d.a.way);
    d.b.way.attempt = 2;
    run_store(&d.b.way, d.store, d.b.outcomes);
    expect_tables(&d.b.way, d.b.outcomes);
    dispute_finish(&d);
    (void)state;
}
/* All ranks join at once. The schedule decides which of them form a group or get the error. Every rank gets one of the
   two, and no group has ranks of both lists. */
static void test_no_group_has_members_of_two_lists(void **state)
{
    for (int round = 0; round < 30; round++) {
        struct dispute d;
        dispute_init(&d, JOB);
        for (int i = 0; i < 4; i++) {
            int which = (i + round) % 4;
            join_start(&d, which & 1 ? &d.a : &d.b, which >> 1);
        }
        for (int side = 0; side < 2; side++) {
            struct side *s = side ? &d.a : &d.b;
            for (int r = 0; r < 2; r++) join_await(s, r);
            if (s->outcomes[0].status == TUTTI_OK) expect_tables(&s->way, s->outcomes);
            for (int r = 0; r < 2 && s->outcomes[0].status != TUTTI_OK; r++) expect_lists(s, r);
        }
        dispute_finish(&d);
    }
    (void)state;
}
static void test_lists_of_different_lengths_mismatch(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.b.way.members = three;
    d.b.way.size = 3;
    join_start(&d, &d.a, 0);
    await_keys(d.store, 1);
    for (int r = 2; r >= 0; r--) {
        join_and_await(&d, &d.b, r);
        expect_mismatch(&d.b, r, "2 members, 0, 3, according", "3 members, 1, 2, 4, according");
    }
    join_await(&d.a, 0);
    expect_mismatch(&d.a, 0, "2 members, 0, 3, according", "3 members, 1, 2, 4, according");
    dispute_finish(&d);
    (void)state;
}
static void test_rank_without_a_list_mismatches(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.b.way.members = NULL;
    join_start(&d, &d.a, 0);
    await_keys(d.store, 1);
    join_and_await(&d, &d.b, 1);
    join_await(&d.a, 0);
    expect_mismatch(&d.a, 0, "2 members, 0, 3, according", "0 members, none, according");
    expect_mismatch(&d.b, 1, "2 members, 0, 3, according", "0 members, none, according");
    dispute_finish(&d);
    (void)state;
}

/* ---- names and options ---- */
/* Rank 0 of `a` and rank 1 of `b`, whose lists are the same, get the mismatch of other terms. Finishes the dispute. */
static void expect_both(struct dispute *d, const char *one, const char *two)
{
    d->b.way.members = ends;
    join_start(d, &d->a, 0);
    await_keys(d->store, 1);
    join_and_await(d, &d->b, 1);
    join_await(&d->a, 0);
    expect_mismatch(&d->a, 0, one, two);
    expect_mismatch(&d->b, 1, one, two);
    dispute_finish(d);
}
static void test_different_names_are_shown_to_all(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.a.way.name = "rows";
    d.b.way.name = "columns";
    expect_both(&d, "calls the group \"rows\"", "calls it \"columns\"");
    (void)state;
}
static void test_different_options_are_shown_to_all(void **state)
{
    struct dispute d;
    dispute_init(&d, JOB);
    d.a.way.all_reduce = collectives_find_algorithm(ALLREDUCE, "ring");
    assert_non_null(d.a.way.all_reduce);
    expect_both(&d, "asks for algorithms allreduce=ring for the group", "for none: a group's options must be the same");
    (void)state;
}

/* ---- long lists ---- */
static void expect_printed(const int *members, int count, const char *text)
{
    char out[40];
    terms_print_members(members, count, out, sizeof out);
    assert_string_equal(out, text);
}
static void test_long_lists_are_shortened(void **state)
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
static void test_long_lists_that_differ_at_the_end_mismatch(void **state)
{
    int even[MOST], other[MOST];
    struct dispute d;
    dispute_init(&d, JOB);
    for (int i = 0; i < MOST; i++) even[i] = other[i] = 1000000000 + 2 * i;
    other[MOST - 1]++;
    d.a.way.size = d.b.way.size = MOST;
    d.a.way.members = even;
    d.b.way.members = other;
    join_start(&d, &d.a, 0);
    await_keys(d.store, 1);
    join_and_await(&d, &d.b, 1);
    expect_mismatch(&d.b, 1, "1000000000, 1000000002,", "they differ in members that are not shown");
    join_await(&d.a, 0);
    dispute_finish(&d);
    (void)state;
}

unit_function test_terms;
int test_terms(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_ranks_0_with_different_lists_mismatch),
        cmocka_unit_test(test_rank_1_with_another_list_than_rank_0_mismatches),
        cmocka_unit_test(test_different_lists_without_a_job_mismatch),
        cmocka_unit_test(test_rank_with_another_list_than_a_formed_group_mismatches),
        cmocka_unit_test(test_records_of_an_earlier_job_are_ignored),
        cmocka_unit_test(test_no_group_has_members_of_two_lists),
        cmocka_unit_test(test_lists_of_different_lengths_mismatch),
        cmocka_unit_test(test_rank_without_a_list_mismatches),
        cmocka_unit_test(test_different_names_are_shown_to_all),
        cmocka_unit_test(test_different_options_are_shown_to_all),
        cmocka_unit_test(test_long_lists_are_shortened),
        cmocka_unit_test(test_long_lists_that_differ_at_the_end_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
