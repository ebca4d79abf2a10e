/* The bootstrap through a key-value store, in which groups that have ended, failed or died may have left records. */
#include "backend/base/clock.h"
#include "backend/control/lifetime.h"
#include "backend/host/socket.h"
#include "backend/join/records.h"
#include "backend/processes/peers.h"
#include "tests/support/unit.h"
#include "tests/unit/join/bootstrap_world.h"

static void test_store_sees_few_requests(void **state)
{
    struct way way = { .size = MOST, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    run_store(&way, s, outcomes);
    assert_int_equal(s->puts, MOST + 2);
    /* The ranks other than 0 have removed their records. The statement of rank 0, the table and the result remain. */
    assert_int_equal(s->count, 3);
    /* A rank reads more often if another is late. */
    assert_in_range(s->gets, 5 * (MOST - 1), 41 * (MOST - 1));
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
/* A rank that joins after a while. */
struct late { struct rank rank; int after_ms; pthread_t thread; };
static void *join_late(void *context)
{
    struct late *late = context;
    sleep_ms(late->after_ms);
    rank_join(&late->rank, false);
    return NULL;
}
static void late_start(struct late *late, const struct way *way, int rank, struct store *s, struct outcome *outcome)
{
    late->rank = (struct rank){ .way = way, .rank = rank, .store = { s, store_put, store_get }, .outcome = outcome };
    assert_int_equal(pthread_create(&late->thread, NULL, join_late, late), 0);
}
/* A second process joins as rank 1 when the group has formed and its table, which would show that, is removed. */
static void test_second_process_of_a_rank_after_the_group_formed_is_an_error(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct statement first = statement_of(&way, 0);
    struct late duplicate = { .after_ms = 0 };
    tutti_config config = { .store = { s, store_put, store_get } };
    store_put_first(s, &way);
    late_start(&duplicate, &way, 1, s, &outcomes[1]);
    /* The second process stores its record. */
    while (store_keys(s) < 2) sleep_ms(1);
    bootstrap_shorten_result(&config, &first.member);
    pthread_join(duplicate.thread, NULL);
    assert_int_equal(outcomes[1].status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(outcomes[1].detail, "two processes have joined test group as rank 1: this process ("));
    /* The second process has removed its record. The statement of rank 0, the result and the shortened table remain. */
    assert_int_equal(store_keys(s), 3);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_that_cannot_join_reports_why_to_all(void **state)
{
    struct outcome *outcomes = outcomes_create();
    for (int odd = 0; odd < 3; odd++) {
        struct way way = { .size = 3, .odd_rank = odd, .odd_status = TUTTI_INVALID_ARGUMENT, .timeout_ms = JOIN_MS };
        char own[64], others[64];
        struct store *s = store_create();
        snprintf(own, sizeof own, "there is no eth9 on the host of %d", odd);
        snprintf(others, sizeof others, "on host of %d) cannot join test group: there is", odd);
        run_store(&way, s, outcomes);
        for (int r = 0; r < way.size; r++) {
            assert_int_equal(outcomes[r].status, TUTTI_INVALID_ARGUMENT);
            assert_non_null(strstr(outcomes[r].detail, r == odd ? own : others));
        }
        assert_string_equal(outcomes[odd].detail, own);
        free(s);
    }
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_that_cannot_join_does_not_wait_for_rank_0(void **state)
{
    struct way way = {
        .size = 2, .odd_rank = 1, .odd_status = TUTTI_UNSUPPORTED, .absent = 1 << 0, .timeout_ms = 3600000
    };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    run_store(&way, s, outcomes);
    assert_int_equal(outcomes[1].status, TUTTI_UNSUPPORTED);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
/* Rank 1 finds the statement of a rank 0 that has died while joining. The next rank 0 joins 200 ms later. */
static void test_rank_that_cannot_join_reports_to_the_next_attempt(void **state)
{
    struct way dead = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = 1 };
    struct way way = { .size = 2, .odd_rank = 1, .odd_status = TUTTI_SYSTEM, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct late ranks[2] = { { .after_ms = 200 }, { .after_ms = 0 } };
    store_put_first(s, &dead);
    for (int r = 0; r < 2; r++) late_start(&ranks[r], &way, r, s, &outcomes[r]);
    for (int r = 0; r < 2; r++) pthread_join(ranks[r].thread, NULL);
    assert_int_equal(outcomes[0].status, TUTTI_SYSTEM);
    assert_non_null(strstr(outcomes[0].detail, "there is no eth9 on the host of 1"));
    assert_int_equal(outcomes[1].status, TUTTI_SYSTEM);
    /* The dead attempt has left no key, because its only one, "r0", was overwritten. */
    assert_int_equal(store_keys(s), 4);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static bool cancels_at_once(void *store) { return store != NULL; }
static bool cancels_after_its_answer(void *store) { return store_keys(store) >= 2; }
static void test_cancelled_rank_does_not_wait_for_others(void **state)
{
    struct outcome *outcomes = outcomes_create();
    for (int odd = 0; odd < 2; odd++) {
        struct way way = {
            .size = 2, .odd_rank = odd, .odd_cancels = cancels_at_once, .absent = 1 << !odd, .timeout_ms = 3600000
        };
        char text[64];
        struct store *s = store_create();
        snprintf(text, sizeof text, "rank %d has cancelled joining test group", odd);
        run_store(&way, s, outcomes);
        expect_failure(&way, outcomes, TUTTI_ABORTED, text);
        free(s);
    }
    outcomes_destroy(outcomes);
    (void)state;
}
/* A rank whose caller may cancel waits in the store, too. The two waits before this cancel last two seconds. */
static int64_t cancel_ms;
static bool cancels_later(void *store) { return store && clock_ms() >= cancel_ms; }
static void test_rank_that_may_cancel_asks_the_store_once_a_second(void **state)
{
    struct way way = {
        .size = 2, .odd_rank = 1, .odd_cancels = cancels_later, .absent = 1 << 0, .timeout_ms = 3600000
    };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    cancel_ms = clock_ms() + 1500;
    run_store(&way, s, outcomes);
    expect_failure(&way, outcomes, TUTTI_ABORTED, "rank 1 has cancelled joining test group");
    assert_in_range(s->gets, 1, 2);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_cancelled_rank_reports_to_rank_0(void **state)
{
    struct way way = {
        .size = 2, .odd_rank = 1, .odd_cancels = cancels_after_its_answer, .absent = 1 << 0, .timeout_ms = 3600000
    };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct statement first = statement_of(&way, 0);
    const tutti_store store = { s, store_put, store_get };
    struct member record;
    char key[STORE_KEY_BYTES], why[64] = "";
    size_t bytes;
    store_put_first(s, &way);
    run_store(&way, s, outcomes);
    expect_failure(&way, outcomes, TUTTI_ABORTED, "rank 1 has cancelled joining test group");
    store_key_of_record(&first.member, 1, key);
    assert_int_equal(store_get_record(&store, key, 1, NOW, &record), TUTTI_OK);
    assert_int_equal(record.status, TUTTI_ABORTED);
    store_key_of_rank(&first.member, "why", 1, key);
    assert_int_equal(store_get_value(&store, key, NOW, sizeof why - 1, why, &bytes), TUTTI_OK);
    assert_string_equal(why, "its caller has cancelled the join, or was interrupted");
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
/* The group may have formed before rank 1 gave up. Then another process of its host may send the table. */
static void test_cancelled_rank_refuses_the_table(void **state)
{
    struct way way = {
        .size = 2, .odd_rank = 1, .odd_cancels = cancels_after_its_answer, .timeout_ms = 3600000, .attempt = 2
    };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct identity mine;
    struct late late = { .after_ms = 0 };
    struct member first = statement_of(&way, 0).member;
    unsigned char token[KEY_BYTES];
    int none;
    assert_int_equal(peers_acquire(&mine), TUTTI_OK);
    store_put_first(s, &way);
    late_start(&late, &way, 1, s, &outcomes[1]);
    pthread_join(late.thread, NULL);
    assert_int_equal(outcomes[1].status, TUTTI_ABORTED);
    assert_true(group_key_derive(&late.rank.key, "tutti table", first.token, sizeof first.token, token));
    assert_int_equal(peers_await_descriptor(token, clock_ms(), &none), TUTTI_SYSTEM);
    peers_release();
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_error_names_a_store_that_fails(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = SHORT_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    s->refusal = TUTTI_SYSTEM;
    run_store(&way, s, outcomes);
    assert_int_equal(outcomes[0].status, TUTTI_SYSTEM);
    assert_non_null(strstr(outcomes[0].detail, "the key-value store failed to store key r0"));
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_late_rank_0_is_not_called_missing(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .absent = 1 << 0, .timeout_ms = SHORT_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    store_put_first(s, &way);
    run_store(&way, s, outcomes);
    expect_failure(&way, outcomes, TUTTI_TIMEOUT, "rank 0 of 2 has joined test group, but");
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
/* Joins as ranks 0 to 2, each after that time. */
static void join_three(const int after_ms[3], const struct way *way, struct store *s, struct outcome *outcomes)
{
    struct late ranks[3];
    for (int r = 0; r < 3; r++) {
        ranks[r].after_ms = after_ms[r];
        late_start(&ranks[r], way, r, s, &outcomes[r]);
    }
    for (int r = 0; r < 3; r++) pthread_join(ranks[r].thread, NULL);
}
/* Stores the record of a rank of `way` as an answer to the rank 0 of `answers`. */
static void put_record(struct store *s, const struct way *answers, const struct way *way, int rank)
{
    char key[64];
    struct member mine = statement_of(way, rank).member;
    for (int i = 0; i < 16; i++) snprintf(&key[2 * i], 3, "%02x", member_of(answers, 0).token[i]);
    snprintf(&key[32], 16, "/r%d", rank);
    store_put(s, key, &mine, sizeof mine);
}
static void test_records_of_earlier_groups_are_ignored(void **state)
{
    static const int sizes[] = { 3, 3, 2, 5, 1, 4 };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    for (int attempt = 0; attempt < 6; attempt++) {
        struct way way = { .size = sizes[attempt], .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = attempt };
        run_store(&way, s, outcomes);
        expect_tables(&way, outcomes);
    }
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_results_of_earlier_failures_are_ignored(void **state)
{
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct way odd = { .size = 3, .odd_rank = 1, .odd_size = 4, .timeout_ms = SHORT_MS };
    run_store(&odd, s, outcomes);
    expect_failure(&odd, outcomes, TUTTI_MISMATCH, "rank 1 joins test group as a group of 4 ranks");
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = 1 };
    run_store(&way, s, outcomes);
    expect_tables(&way, outcomes);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_0_that_died_while_joining_is_not_waited_for(void **state)
{
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct way dead = { .size = 3, .odd_rank = -1 };
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = 1 };
    store_put_first(s, &dead);
    put_record(s, &dead, &dead, 1);
    join_three((int[]){ 100, 0, 0 }, &way, s, outcomes);
    expect_tables(&way, outcomes);
    /* The records for the dead rank 0 are removed, too. */
    assert_int_equal(s->count, 3);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_restarted_rank_joins(void **state)
{
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS }, dead = way;
    dead.attempt = 1;
    /* An earlier process of rank 1 has stored its record and died. */
    put_record(s, &way, &dead, 1);
    join_three((int[]){ 0, 100, 1200 }, &way, s, outcomes);
    expect_tables(&way, outcomes);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_second_process_of_a_rank_is_an_error(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS }, other = way;
    struct outcome *outcomes = outcomes_create(), *second = outcomes_create();
    struct store *s = store_create();
    other.attempt = 1;
    /* Another process, which also joins as rank 1. */
    struct late duplicate = { .after_ms = 100 };
    late_start(&duplicate, &other, 1, s, second);
    join_three((int[]){ 0, 0, 200 }, &way, s, outcomes);
    pthread_join(duplicate.thread, NULL);
    bool first_joined = outcomes[1].status == TUTTI_OK;
    const struct outcome *refused = first_joined ? second : &outcomes[1];
    assert_true(first_joined != (second->status == TUTTI_OK));
    assert_int_equal(refused->status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(refused->detail, "two processes have joined test group as rank 1"));
    free(s);
    outcomes_destroy(second);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_that_joins_a_formed_group_times_out(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = SHORT_MS }, other = way;
    struct outcome *outcomes = outcomes_create(), *second = outcomes_create();
    struct store *s = store_create();
    tutti_config config = { .store = { s, store_put, store_get } };
    other.attempt = 1;
    run_store(&way, s, outcomes);
    expect_tables(&way, outcomes);
    bootstrap_shorten_result(&config, &outcomes[0].table[0]);
    struct late late = { .after_ms = 0 };
    late_start(&late, &other, 1, s, second);
    pthread_join(late.thread, NULL);
    assert_int_equal(second->status, TUTTI_TIMEOUT);
    assert_non_null(strstr(second->detail,
        "rank 0 of 3 has not joined test group within 1000 ms; the store holds "
        "only an earlier attempt without this process (3 ranks, process"));
    free(s);
    outcomes_destroy(second);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_second_rank_0_replaces_the_first(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS }, other = way;
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    other.attempt = 1;
    struct late ranks[3] = { { .after_ms = 0 }, { .after_ms = 200 }, { .after_ms = 1000 } };
    late_start(&ranks[0], &way, 0, s, &outcomes[0]);
    late_start(&ranks[1], &other, 0, s, &outcomes[1]);
    late_start(&ranks[2], &other, 1, s, &outcomes[2]);
    for (int r = 0; r < 3; r++) pthread_join(ranks[r].thread, NULL);
    assert_int_equal(outcomes[0].status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(outcomes[0].detail, "two processes have joined test group as rank 0"));
    expect_tables(&other, &outcomes[1]);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_invalid_record_is_another_version(void **state)
{
    static const size_t lengths[] = { 0, 5, sizeof(struct member) - 1, 500, 528, 700, VALUE_BYTES };
    unsigned char invalid[VALUE_BYTES];
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = SHORT_MS };
    memset(invalid, 'x', sizeof invalid);
    for (int rank = 0; rank < 2; rank++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct outcome *outcomes = outcomes_create();
            struct store *s = store_create();
            way.absent = 1 << !rank;
            put_record(s, &way, &way, 1);
            struct entry *entry = &s->entries[0];
            if (rank) snprintf(entry->key, sizeof entry->key, "r0");
            memcpy(entry->value, invalid, lengths[i]);
            entry->bytes = lengths[i];
            run_store(&way, s, outcomes);
            expect_failure(&way, outcomes, TUTTI_MISMATCH, "another version of tutti");
            free(s);
            outcomes_destroy(outcomes);
        }
    (void)state;
}

/* ---- host tokens ---- */
static void expect_host(const struct way *way, const struct outcome *outcomes, const unsigned char token[16])
{
    expect_tables(way, outcomes);
    for (int r = 0; r < way->size; r++) assert_memory_equal(outcomes[0].table[r].host_token, token, 16);
}
static void test_ranks_without_contacts_are_on_one_host(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    run_store(&way, s, outcomes);
    expect_host(&way, outcomes, member_of(&way, 0).token);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
/* Checks that no rank still claims the host. The caller must not have called peers_release, which would end the claims
   of this process. */
static void expect_nothing_claimed(struct store *s)
{
    struct statement of_rank_0;
    size_t bytes;
    struct key_id key;
    unsigned char name[KEY_BYTES];
    assert_int_equal(store_get(s, "r0", &of_rank_0, sizeof of_rank_0, &bytes, 0), TUTTI_OK);
    assert_int_equal(group_key_add(of_rank_0.member.key, &key), TUTTI_OK);
    assert_true(group_key_derive(&key, "tutti host", of_rank_0.member.token, sizeof of_rank_0.member.token, name));
    int free_again = socket_listen("host", name);
    assert_true(free_again >= 0);
    close(free_again);
}
static void test_ranks_with_contacts_elect_a_host_token(void **state)
{
    struct identity mine;
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct way dead = { .size = 3, .odd_rank = -1, .has_contacts = true };
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS, .attempt = 1, .has_contacts = true };
    assert_int_equal(peers_acquire(&mine), TUTTI_OK);
    /* Ranks 1 and 2 first answer this dead rank 0. */
    store_put_first(s, &dead);
    join_three((int[]){ 100, 0, 0 }, &way, s, outcomes);
    /* All ranks are threads of this process, so they are on one host. */
    expect_host(&way, outcomes, outcomes[0].table[0].host_token);
    assert_memory_not_equal(outcomes[0].table[0].host_token, (unsigned char[16]){ 0 }, 16);
    expect_nothing_claimed(s);
    peers_release();
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_ranks_with_and_without_contacts_do_not_mix(void **state)
{
    struct identity mine;
    struct outcome *outcomes = outcomes_create();
    assert_int_equal(peers_acquire(&mine), TUTTI_OK);
    for (int all = 0; all < 2; all++) {
        struct store *s = store_create();
        struct way way = { .size = 3, .odd_rank = 2, .timeout_ms = SHORT_MS, .has_contacts = all, .odd_contact = true };
        run_store(&way, s, outcomes);
        expect_failure(&way, outcomes, TUTTI_MISMATCH,
            all ? "rank 2 of test group has no address for ranks of other hosts, but rank 0 has one"
                : "rank 2 of test group has an address for ranks of other hosts, but rank 0 has none");
        expect_nothing_claimed(s);
        free(s);
    }
    peers_release();
    outcomes_destroy(outcomes);
    (void)state;
}

unit_function test_bootstrap_store;
int test_bootstrap_store(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_sees_few_requests),
        cmocka_unit_test(test_second_process_of_a_rank_after_the_group_formed_is_an_error),
        cmocka_unit_test(test_rank_that_cannot_join_reports_why_to_all),
        cmocka_unit_test(test_rank_that_cannot_join_does_not_wait_for_rank_0),
        cmocka_unit_test(test_rank_that_cannot_join_reports_to_the_next_attempt),
        cmocka_unit_test(test_cancelled_rank_does_not_wait_for_others),
        cmocka_unit_test(test_rank_that_may_cancel_asks_the_store_once_a_second),
        cmocka_unit_test(test_cancelled_rank_reports_to_rank_0),
        cmocka_unit_test(test_cancelled_rank_refuses_the_table),
        cmocka_unit_test(test_error_names_a_store_that_fails),
        cmocka_unit_test(test_late_rank_0_is_not_called_missing),
        cmocka_unit_test(test_records_of_earlier_groups_are_ignored),
        cmocka_unit_test(test_results_of_earlier_failures_are_ignored),
        cmocka_unit_test(test_rank_0_that_died_while_joining_is_not_waited_for),
        cmocka_unit_test(test_restarted_rank_joins),
        cmocka_unit_test(test_second_process_of_a_rank_is_an_error),
        cmocka_unit_test(test_rank_that_joins_a_formed_group_times_out),
        cmocka_unit_test(test_second_rank_0_replaces_the_first),
        cmocka_unit_test(test_invalid_record_is_another_version),
        cmocka_unit_test(test_ranks_without_contacts_are_on_one_host),
        cmocka_unit_test(test_ranks_with_contacts_elect_a_host_token),
        cmocka_unit_test(test_ranks_with_and_without_contacts_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
