/* The table of members goes through the store in pieces, because a store may refuse large values. */
#include "backend/base/clock.h"
#include "backend/control/lifetime.h"
#include "backend/join/join_result.h"
#include "backend/join/member_table.h"
#include "backend/join/records.h"
#include "backend/processes/peers.h"
#include "tests/support/unit.h"
#include "tests/unit/join/bootstrap_world.h"
#include <stdlib.h>

/* torch's TCPStore refuses larger values. */
enum { LARGEST_VALUE = 8 << 20, RECORD = sizeof(struct member), FEW_RECORDS = 20 };

/* ---- pieces ---- */
/* A table of `size` records, of which each piece has `step`. */
struct pieces { struct store *store; tutti_store api; struct member first, *members; struct store_pieces pieces; };
static struct pieces pieces_create(uint32_t size, uint32_t step)
{
    struct pieces p = { .store = store_create(), .members = calloc(size, RECORD) };
    p.api = (tutti_store){ p.store, store_put, store_get };
    for (uint32_t r = 0; r < size; r++) memset(&p.members[r], (int)r + 1, RECORD);
    /* A byte less than a record more makes no difference. */
    p.pieces = (struct store_pieces){ size, step * RECORD + RECORD - 1 };
    return p;
}
static void pieces_destroy(struct pieces *p)
{
    free(p->members);
    free(p->store);
}
static void test_pieces_make_the_table(void **state)
{
    static const struct {
        uint32_t size, step;
        int keys;
    } cases[] = { { 1, 7, 1 }, { 7, 7, 1 }, { 8, 7, 2 }, { 20, 7, 3 }, { 20, 1, 20 }, { 20, 20, 1 } };
    struct member found[FEW_RECORDS];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pieces p = pieces_create(cases[i].size, cases[i].step);
        tutti_config config = { .store = p.api, .store_remove = store_remove };
        assert_int_equal(store_put_table(&p.api, &p.first, &p.pieces, p.members, &(uint32_t){ 0 }), TUTTI_OK);
        assert_int_equal(store_keys(p.store), cases[i].keys);
        for (int k = 0; k < cases[i].keys; k++) assert_true(p.store->entries[k].bytes <= cases[i].step * RECORD);
        assert_int_equal(store_get_table(&p.api, &p.first, &p.pieces, found), TUTTI_OK);
        assert_memory_equal(found, p.members, cases[i].size * RECORD);
        store_remove_table(&config, &p.first, &p.pieces);
        assert_int_equal(store_keys(p.store), 0);
        pieces_destroy(&p);
    }
    (void)state;
}
static void test_store_that_cannot_remove_keeps_little(void **state)
{
    struct pieces p = pieces_create(20, 7);
    tutti_config config = { .store = p.api };
    assert_int_equal(store_put_table(&p.api, &p.first, &p.pieces, p.members, &(uint32_t){ 0 }), TUTTI_OK);
    store_remove_table(&config, &p.first, &p.pieces);
    assert_int_equal(store_keys(p.store), 3);
    for (int k = 0; k < 3; k++) assert_int_equal(p.store->entries[k].bytes, 1);
    pieces_destroy(&p);
    (void)state;
}
static void test_missing_or_invalid_piece_is_an_error(void **state)
{
    struct member found[FEW_RECORDS];
    struct pieces p = pieces_create(20, 7);
    assert_int_equal(store_put_table(&p.api, &p.first, &p.pieces, p.members, &(uint32_t){ 0 }), TUTTI_OK);
    p.store->entries[1].bytes--;
    assert_int_equal(store_get_table(&p.api, &p.first, &p.pieces, found), TUTTI_MISMATCH);
    p.store->entries[1].bytes += 2;
    assert_int_equal(store_get_table(&p.api, &p.first, &p.pieces, found), TUTTI_MISMATCH);
    store_remove(p.store, p.store->entries[1].key);
    assert_int_equal(store_get_table(&p.api, &p.first, &p.pieces, found), TUTTI_TIMEOUT);
    pieces_destroy(&p);
    (void)state;
}

/* ---- joining ---- */
static tutti_status put_all_but_table(void *context, const char *key, const void *value, size_t bytes)
{
    return strstr(key, "/members") ? TUTTI_SYSTEM : store_put(context, key, value, bytes);
}
static void *join_through(void *context)
{
    rank_join(context, false);
    return NULL;
}
static void join_two(tutti_status (*put)(void *context, const char *key, const void *value, size_t bytes),
    struct outcome *outcomes)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct store *s = store_create();
    struct rank ranks[2];
    pthread_t threads[2];
    for (int r = 0; r < 2; r++) {
        ranks[r] = (struct rank){ .way = &way, .rank = r, .store = { s, put, store_get }, .outcome = &outcomes[r] };
        assert_int_equal(pthread_create(&threads[r], NULL, join_through, &ranks[r]), 0);
    }
    for (int r = 0; r < 2; r++) pthread_join(threads[r], NULL);
    free(s);
}
static void test_all_ranks_learn_that_the_store_refuses_the_table(void **state)
{
    struct outcome *outcomes = outcomes_create();
    join_two(put_all_but_table, outcomes);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, TUTTI_SYSTEM);
        assert_non_null(strstr(outcomes[r].detail, "the key-value store failed to store key "));
        assert_non_null(strstr(outcomes[r].detail, "/members0"));
    }
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_lost_table_is_an_error_of_the_store(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct member first = member_of(&way, 0), mine = member_of(&way, 1);
    struct store *s = store_create();
    tutti_config config = { .rank = 1, .size = 2, .store = { s, store_put, store_get } };
    struct shared_table *table = NULL;
    struct key_id key;
    assert_int_equal(group_key_add(first.key, &key), TUTTI_OK);
    const struct member_table_request request =
        member_table_request_make(&config, &first, &mine, &key, clock_deadline(JOIN_MS));
    assert_int_equal(member_table_get(&request, &table), TUTTI_SYSTEM);
    assert_null(table);
    assert_non_null(strstr(status_detail(),
        "the key-value store has lost the table of members of test group, which "
        "rank 0 has stored for rank 1: check"));
    free(s);
    (void)state;
}

/* The group has formed, and rank 1 reads its table. The store cannot remove keys. */
static bool is_second_process;
/* The error with which rank 0 withdraws the table before rank 1 reads it; TUTTI_OK: rank 0 does not. */
static tutti_status withdrawn;
static tutti_status get_all_but_table(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    const struct way way = { .size = 2, .odd_rank = -1 };
    const struct member first = statement_of(&way, 0).member;
    const tutti_config config = { .store = { context, store_put, store_get } };
    if (strstr(key, "/members") && withdrawn) {
        status_fail(withdrawn, "the reason of rank 0");
        assert_int_equal(bootstrap_withdraw_result(&config, &first, withdrawn), withdrawn);
        assert_string_equal(status_detail(), "the reason of rank 0");
        return store_get(context, key, value, capacity, bytes, timeout_ms);
    }
    if (strstr(key, "/members") && !is_second_process) return TUTTI_SYSTEM;
    /* All ranks have joined: rank 0 shortens the result and the table. */
    if (strstr(key, "/members")) bootstrap_shorten_result(&config, &first);
    return store_get(context, key, value, capacity, bytes, timeout_ms);
}
/* Rank 1 joins a group that has formed, and cannot get its table. */
static void join_without_table(struct outcome *outcome)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct store *s = store_create();
    struct member first = statement_of(&way, 0).member;
    pthread_t thread;
    struct join_result formed;
    char key[STORE_KEY_BYTES];
    store_put_first(s, &way);
    struct rank late = { .way = &way, .rank = 1, .store = { s, store_put, get_all_but_table }, .outcome = outcome };
    assert_int_equal(pthread_create(&thread, NULL, join_through, &late), 0);
    while (store_keys(s) < 2) sleep_ms(1);
    join_result_decide(&formed, TUTTI_OK, 2);
    store_key_of_attempt(&first, "table", key);
    store_put(s, key, &formed, sizeof formed);
    pthread_join(thread, NULL);
    free(s);
}
static void test_rank_that_cannot_get_the_table_aborts_the_join_of_all(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1 };
    struct member first = statement_of(&way, 0).member;
    struct outcome *outcomes = outcomes_create();
    struct identity mine, by;
    assert_int_equal(peers_acquire(&mine), TUTTI_OK);
    is_second_process = true;
    join_without_table(&outcomes[1]);
    assert_int_equal(outcomes[1].status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(outcomes[1].detail, "two processes have joined test group as rank 1: this process ("));
    /* The second process of a rank does not disturb the group. */
    assert_false(peers_join_is_aborted(first.token, &by));
    is_second_process = false;
    join_without_table(&outcomes[1]);
    assert_int_equal(outcomes[1].status, TUTTI_SYSTEM);
    assert_non_null(strstr(outcomes[1].detail, "the key-value store failed to return key "));
    assert_true(peers_join_is_aborted(first.token, &by));
    assert_memory_equal(&by, &mine, sizeof mine);
    peers_release();
    outcomes_destroy(outcomes);
    (void)state;
}
static void expect_after_withdrawal(tutti_status status, tutti_status expected)
{
    struct outcome *outcomes = outcomes_create();
    struct identity mine;
    assert_int_equal(peers_acquire(&mine), TUTTI_OK);
    withdrawn = status;
    join_without_table(&outcomes[1]);
    withdrawn = TUTTI_OK;
    assert_int_equal(outcomes[1].status, expected);
    assert_string_equal(outcomes[1].detail,
        "rank 0 of test group could not join after the ranks had found each other: the reason of rank 0");
    peers_release();
    outcomes_destroy(outcomes);
}
static void test_rank_that_comes_after_the_table_was_withdrawn_gets_the_reason(void **state)
{
    (void)state;
    expect_after_withdrawal(TUTTI_SYSTEM, TUTTI_PEER_LOST);
    /* A rank that has read the table finds these two errors in it. */
    expect_after_withdrawal(TUTTI_MISMATCH, TUTTI_MISMATCH);
    expect_after_withdrawal(TUTTI_INVALID_ARGUMENT, TUTTI_INVALID_ARGUMENT);
}

/* A store that makes up the records of all ranks but 0, and keeps what rank 0 stores. */
enum { KEPT_KEYS = 16 };
struct crowd {
    struct member other;
    /* The store refuses keys with this part, unless it is NULL. */
    const char *refused;
    int count;
    struct { char key[64]; void *value; size_t bytes; } kept[KEPT_KEYS];
};
static tutti_status crowd_put(void *context, const char *key, const void *value, size_t bytes)
{
    struct crowd *c = context;
    if (bytes > LARGEST_VALUE || (c->refused && strstr(key, c->refused))) return TUTTI_SYSTEM;
    assert_in_range(c->count, 0, KEPT_KEYS - 1);
    snprintf(c->kept[c->count].key, sizeof c->kept[c->count].key, "%s", key);
    c->kept[c->count].value = calloc(1, bytes);
    memcpy(c->kept[c->count].value, value, bytes);
    c->kept[c->count++].bytes = bytes;
    return TUTTI_OK;
}
static tutti_status crowd_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    struct crowd *c = context;
    const char *of_rank = strstr(key, "/r");
    (void)timeout_ms;
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->kept[i].key, key) != 0) continue;
        if ((*bytes = c->kept[i].bytes) > capacity) return TUTTI_NO_MEMORY;
        memcpy(value, c->kept[i].value, *bytes);
        return TUTTI_OK;
    }
    if (!of_rank) return TUTTI_TIMEOUT;
    struct member record = c->other;
    record.identity.pid = strtoull(of_rank + 2, NULL, 10);
    *bytes = sizeof record;
    memcpy(value, &record, sizeof record);
    return TUTTI_OK;
}
static tutti_status crowd_remove(void *context, const char *key)
{
    struct crowd *c = context;
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->kept[i].key, key) != 0) continue;
        free(c->kept[i].value);
        c->kept[i] = c->kept[--c->count];
        return TUTTI_OK;
    }
    return TUTTI_SYSTEM;
}
static void test_pieces_of_a_table_that_cannot_be_stored_are_removed(void **state)
{
    static const char *const refused[] = { "/members1", "/table" };
    /* Their table has two pieces. */
    enum { RANKS = 20000 };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct way way = { .size = RANKS, .odd_rank = -1, .timeout_ms = JOIN_MS };
        struct statement own = statement_of(&way, 0);
        struct crowd crowd = { .other = statement_of(&way, 1).member, .refused = refused[i] };
        struct shared_table *shared;
        tutti_config config = {
            .size = RANKS, .store = { &crowd, crowd_put, crowd_get }, .store_remove = crowd_remove
        };
        struct key_id key;
        assert_int_equal(bootstrap_store(&config, &own.member, &own.terms, clock_deadline(JOIN_MS), &shared, &key),
            TUTTI_SYSTEM);
        assert_non_null(strstr(status_detail(), refused[i]));
        for (int k = 0; k < crowd.count; k++) {
            assert_null(strstr(crowd.kept[k].key, "/members"));
            free(crowd.kept[k].value);
        }
    }
    (void)state;
}
/* With one value for the result and the table, at most 36,157 ranks fit into 8 MiB. */
static void test_group_forms_whose_table_is_larger_than_a_value(void **state)
{
    enum { RANKS = 40000 };
    struct way way = { .size = RANKS, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct statement own = statement_of(&way, 0);
    struct crowd crowd = { .other = statement_of(&way, 1).member };
    struct member *found = calloc(RANKS, RECORD);
    struct shared_table *shared;
    tutti_config config = { .size = RANKS, .store = { &crowd, crowd_put, crowd_get } };
    struct key_id key;
    assert_int_equal(bootstrap_store(&config, &own.member, &own.terms, clock_deadline(JOIN_MS), &shared, &key),
        TUTTI_OK);
    const struct member *table = shared_table_data(shared);
    assert_int_equal(table[RANKS - 1].identity.pid, RANKS - 1);
    const struct store_pieces pieces = { RANKS, STORE_PIECE_BYTES };
    assert_int_equal(store_get_table(&config.store, &own.member, &pieces, found), TUTTI_OK);
    for (int r = 1; r < RANKS; r++) assert_memory_equal(&found[r], &table[r], RECORD);
    /* The statement of rank 0, three pieces and the result. */
    assert_int_equal(crowd.count, 5);
    for (int i = 0; i < crowd.count; i++) free(crowd.kept[i].value);
    free(found);
    shared_table_leave(shared);
    (void)state;
}

unit_function test_store_table;
int test_store_table(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_make_the_table),
        cmocka_unit_test(test_store_that_cannot_remove_keeps_little),
        cmocka_unit_test(test_missing_or_invalid_piece_is_an_error),
        cmocka_unit_test(test_all_ranks_learn_that_the_store_refuses_the_table),
        cmocka_unit_test(test_lost_table_is_an_error_of_the_store),
        cmocka_unit_test(test_rank_that_cannot_get_the_table_aborts_the_join_of_all),
        cmocka_unit_test(test_rank_that_comes_after_the_table_was_withdrawn_gets_the_reason),
        cmocka_unit_test(test_pieces_of_a_table_that_cannot_be_stored_are_removed),
        cmocka_unit_test(test_group_forms_whose_table_is_larger_than_a_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
