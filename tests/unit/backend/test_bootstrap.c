/* The bootstrap: every rank ends with the same table, or every rank ends with the same error, which names who is
   missing and shows both sides of what does not agree. Ranks are threads (store) or processes (id). */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/bootstrap.h"
#include "backend/host/socket.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 8, VALUE_BYTES = 8192, JOIN_MS = 20000, SHORT_MS = 1000 }; /* SHORT: enough to join when all is busy */

static void nap(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }
static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* ---- a store in memory ---- */
struct entry { char key[32]; unsigned char value[VALUE_BYTES]; size_t bytes; };
struct store {
    pthread_mutex_t lock;
    struct entry entries[2 * MOST];
    int count, puts, gets;
    tutti_status refusal;                                              /* of every put, unless OK */
};
static tutti_status store_put(void *context, const char *key, const void *value, size_t bytes)
{
    struct store *s = context;
    if (s->refusal != TUTTI_OK) return s->refusal;
    pthread_mutex_lock(&s->lock);
    struct entry *entry = &s->entries[s->count];
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->entries[i].key, key) == 0) entry = &s->entries[i];
    if (entry == &s->entries[s->count]) s->count++;
    snprintf(entry->key, sizeof entry->key, "%s", key);
    memcpy(entry->value, value, bytes);
    entry->bytes = bytes;
    s->puts++;
    pthread_mutex_unlock(&s->lock);
    return TUTTI_OK;
}
static tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
                              int64_t timeout_ms)
{
    struct store *s = context;
    int64_t until_ms = clock_deadline(timeout_ms);
    tutti_status status = TUTTI_TIMEOUT;
    for (bool first = true; status == TUTTI_TIMEOUT && (first || clock_ms() < until_ms); first = false) {
        if (!first) nap(1);
        pthread_mutex_lock(&s->lock);
        s->gets += first;
        for (int i = 0; i < s->count; i++) {
            if (strcmp(s->entries[i].key, key) != 0) continue;
            *bytes = s->entries[i].bytes;
            status = *bytes <= capacity ? TUTTI_OK : TUTTI_NO_MEMORY;
            if (status == TUTTI_OK) memcpy(value, s->entries[i].value, *bytes);
        }
        pthread_mutex_unlock(&s->lock);
    }
    return status;
}

/* ---- ranks ---- */
struct way {                                                           /* what a test varies */
    int size;                                                          /* of the group as rank 0 sees it */
    int odd_rank, odd_size, odd_version;                               /* one rank that was told otherwise */
    int absent;                                                        /* bits: ranks that do not come */
    int64_t timeout_ms;
};
struct outcome { tutti_status status; char detail[STATUS_DETAIL_BYTES]; struct member table[MOST]; };
struct rank { const struct way *way; int rank; tutti_store store; tutti_unique_id id; struct outcome *outcome; };

static struct member member_of(const struct way *way, int rank)
{
    bool odd = rank == way->odd_rank;
    struct member mine = { .timeout_ms = way->timeout_ms, .group = "test group", .version = MEMBER_VERSION };
    mine.size = (uint32_t)(odd && way->odd_size ? way->odd_size : way->size);
    if (odd && way->odd_version) mine.version = (uint32_t)way->odd_version;
    memset(mine.identity.nonce, rank + 1, sizeof mine.identity.nonce);
    memset(mine.token, rank + 101, sizeof mine.token);
    mine.identity.pid = (uint64_t)getpid();
    snprintf(mine.identity.host, sizeof mine.identity.host, "host of %d", rank);
    return mine;
}
static void bring(struct rank *r, bool by_id)
{
    struct member mine = member_of(r->way, r->rank);
    int64_t deadline_ms = clock_deadline(r->way->timeout_ms);
    r->outcome->status = by_id ? bootstrap_id(&r->id, r->rank, &mine, deadline_ms, r->outcome->table)
                               : bootstrap_store(&r->store, r->rank, &mine, deadline_ms, r->outcome->table);
    snprintf(r->outcome->detail, sizeof r->outcome->detail, "%s", status_detail());
}
static void *bring_through_store(void *context)
{
    bring(context, false);
    return NULL;
}
static void run_store(const struct way *way, struct store *s, struct outcome outcomes[MOST])
{
    struct rank ranks[MOST];
    pthread_t threads[MOST];
    memset(outcomes, 0, MOST * sizeof *outcomes);
    for (int r = 0; r < way->size; r++) {
        ranks[r] = (struct rank){ .way = way, .rank = r, .outcome = &outcomes[r] };
        ranks[r].store = (tutti_store){ s, store_put, store_get };
        if (way->absent >> r & 1) continue;
        assert_int_equal(pthread_create(&threads[r], NULL, bring_through_store, &ranks[r]), 0);
    }
    for (int r = 0; r < way->size; r++)
        if (!(way->absent >> r & 1)) pthread_join(threads[r], NULL);
}
static struct store *store_create(void)
{
    struct store *s = calloc(1, sizeof *s);
    assert_non_null(s);
    pthread_mutex_init(&s->lock, NULL);
    return s;
}
static struct outcome *outcomes_create(void)
{
    void *at = mmap(NULL, MOST * sizeof(struct outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}
static void outcomes_destroy(struct outcome *outcomes) { munmap(outcomes, MOST * sizeof *outcomes); }
static void rank_process(const struct way *way, int rank, const tutti_unique_id *id, struct outcome *outcome)
{
    struct rank one = { .way = way, .rank = rank, .id = *id, .outcome = outcome };
    int before = count_descriptors();
    alarm(60);
    nap(rank * 7 % 5 * 10);                                            /* in no order */
    bring(&one, true);
    _exit(count_descriptors() == before ? 0 : 3);
}
static void run_id(const struct way *way, struct outcome outcomes[MOST])
{
    pid_t children[MOST] = { 0 };
    tutti_unique_id id;
    assert_int_equal(bootstrap_random(&id, sizeof id), TUTTI_OK);
    memset(outcomes, 0, MOST * sizeof *outcomes);
    for (int r = 0; r < way->size; r++) {
        if (way->absent >> r & 1) continue;
        if ((children[r] = fork()) == 0) rank_process(way, r, &id, &outcomes[r]);
    }
    for (int r = 0; r < way->size; r++) {
        int status = 0;
        if (children[r]) assert_int_equal(waitpid(children[r], &status, 0), children[r]);
        assert_int_equal(status, 0);
    }
}

/* ---- what must have come of it ---- */
static void expect_tables(const struct way *way, const struct outcome outcomes[MOST])
{
    for (int r = 0; r < way->size; r++) {
        assert_int_equal(outcomes[r].status, TUTTI_OK);
        for (int q = 0; q < way->size; q++) {
            const struct member *m = &outcomes[r].table[q];
            char host[40];
            snprintf(host, sizeof host, "host of %d", q);
            assert_string_equal(m->identity.host, host);
            assert_int_equal(m->token[15], q + 101);
            assert_memory_equal(m, &outcomes[0].table[q], sizeof *m);
        }
    }
}
static void expect_failure(const struct way *way, const struct outcome outcomes[MOST], tutti_status status,
                           const char *text)
{
    static const struct member untouched;
    for (int r = 0; r < way->size; r++) {
        if (way->absent >> r & 1) continue;
        const struct outcome *o = &outcomes[r];
        if (o->status != status || !strstr(o->detail, text))
            fail_msg("rank %d: status %d, \"%s\", instead of %d, \"%s\"", r, o->status, o->detail, status, text);
        assert_memory_equal(&outcomes[r].table[0], &untouched, sizeof untouched);
    }
}

/* ---- both ways ---- */
static void run_both(const struct way *way, tutti_status status, const char *text)
{
    for (int by_id = 0; by_id < 2; by_id++) {
        struct outcome *outcomes = outcomes_create();
        struct store *s = store_create();
        if (by_id) run_id(way, outcomes);
        else run_store(way, s, outcomes);
        if (status == TUTTI_OK) expect_tables(way, outcomes);
        else expect_failure(way, outcomes, status, text);
        free(s);
        outcomes_destroy(outcomes);
    }
}
static void test_all_get_the_table(void **state)
{
    for (int size = 1; size <= MOST; size++) {
        struct way way = { .size = size, .odd_rank = -1, .timeout_ms = JOIN_MS };
        run_both(&way, TUTTI_OK, "");
    }
    (void)state;
}
static void test_missing_rank_is_named_by_all(void **state)
{
    struct way way = { .size = 5, .odd_rank = -1, .absent = 1 << 3, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "rank 3 of 5 has not joined group test group within 1000 ms");
    (void)state;
}
static void test_missing_ranks_are_named_by_all(void **state)
{
    struct way way = { .size = 5, .odd_rank = -1, .absent = 1 << 1 | 1 << 4, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "ranks 1, 4 of 5 have not joined group test group");
    (void)state;
}
static void test_missing_rank_0_is_named_by_all(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .absent = 1 << 0, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "rank 0 of 3 has not joined group test group");
    (void)state;
}
static void test_sizes_that_disagree_are_shown_to_all(void **state)
{
    struct way more = { .size = 4, .odd_rank = 2, .odd_size = 6, .timeout_ms = JOIN_MS };
    run_both(&more, TUTTI_MISMATCH, "rank 2 was told that group test group has 6 ranks, rank 0 was told 4");
    struct way less = { .size = 4, .odd_rank = 3, .odd_size = 3, .timeout_ms = JOIN_MS };
    run_both(&less, TUTTI_MISMATCH, "rank 3 was told that group test group has 3 ranks, rank 0 was told 4");
    (void)state;
}
static void test_versions_that_disagree_are_shown_to_all(void **state)
{
    struct way way = { .size = 3, .odd_rank = 1, .odd_version = 7, .timeout_ms = JOIN_MS };
    run_both(&way, TUTTI_MISMATCH, "rank 1 joins group test group with version 7");
    (void)state;
}
static void test_no_memory_is_an_error(void **state)
{
    struct way way = { .size = 1, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct member mine = member_of(&way, 0), table[1];
    struct store *s = store_create();
    tutti_store store = { s, store_put, store_get };
    tutti_unique_id id = { { 1 } };
    memory_fail_after(1);
    assert_int_equal(bootstrap_store(&store, 0, &mine, clock_deadline(JOIN_MS), table), TUTTI_NO_MEMORY);
    for (int n = 1; n <= 3; n++) {
        memory_fail_after(n);
        assert_true(bootstrap_id(&id, 0, &mine, clock_deadline(JOIN_MS), table) != TUTTI_OK);
    }
    memory_fail_after(0);
    free(s);
    (void)state;
}

/* ---- through a store ---- */
static void test_store_sees_few_requests(void **state)
{
    struct way way = { .size = MOST, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    run_store(&way, s, outcomes);
    assert_int_equal(s->puts, MOST + 1);
    assert_int_equal(s->gets, 2 * (MOST - 1));
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_store_that_fails_is_blamed(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = SHORT_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    s->refusal = TUTTI_SYSTEM;
    run_store(&way, s, outcomes);
    expect_failure(&way, outcomes, TUTTI_SYSTEM, "the key-value store failed to take key r");
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_late_rank_0_is_not_called_missing(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .absent = 1 << 0, .timeout_ms = SHORT_MS };
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct member first = member_of(&way, 0);
    store_put(s, "r0", &first, sizeof first);
    run_store(&way, s, outcomes);
    expect_failure(&way, outcomes, TUTTI_TIMEOUT, "rank 0 of 2 has joined group test group, but");
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_taken_twice_is_noticed(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create(), *second = outcomes_create();
    struct store *s = store_create();
    run_store(&way, s, outcomes);
    struct member other = member_of(&way, 1);
    other.identity.nonce[0] ^= 255;                                    /* another process */
    tutti_store store = { s, store_put, store_get };
    tutti_status status = bootstrap_store(&store, 1, &other, clock_deadline(SHORT_MS), second->table);
    assert_int_equal(status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(status_detail(), "two processes have joined group test group as rank 1"));
    free(s);
    outcomes_destroy(second);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_store_with_nonsense_is_another_version(void **state)
{
    static const size_t lengths[] = { 0, 5, sizeof(struct member) - 1, 500, 528, 700, VALUE_BYTES };
    unsigned char nonsense[VALUE_BYTES];
    struct way way = { .size = 2, .odd_rank = -1, .absent = 1 << 0, .timeout_ms = SHORT_MS };
    memset(nonsense, 'x', sizeof nonsense);
    for (int rank = 0; rank < 2; rank++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct outcome *outcomes = outcomes_create();
            struct store *s = store_create();
            way.absent = 1 << !rank;
            store_put(s, rank ? "table" : "r1", nonsense, lengths[i]);
            run_store(&way, s, outcomes);
            expect_failure(&way, outcomes, TUTTI_MISMATCH, "another version of tutti");
            free(s);
            outcomes_destroy(outcomes);
        }
    (void)state;
}

/* ---- through an id ---- */
static void test_id_taken_twice_is_noticed(void **state)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct member mine = member_of(&way, 0), table[2];
    tutti_unique_id id;
    assert_int_equal(bootstrap_random(&id, sizeof id), TUTTI_OK);
    int taken = socket_listen("id", id.bytes);
    assert_true(taken >= 0);
    assert_int_equal(bootstrap_id(&id, 0, &mine, clock_deadline(JOIN_MS), table), TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(status_detail(), "another process is rank 0"));
    close(taken);
    (void)state;
}
static void test_rank_that_gives_up_is_named(void **state)
{
    struct way way = { .size = 4, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    tutti_unique_id id;
    assert_int_equal(bootstrap_random(&id, sizeof id), TUTTI_OK);
    pid_t children[3];                                                 /* rank 3 never comes */
    for (int r = 0; r < 3; r++)
        if ((children[r] = fork()) == 0) rank_process(&way, r, &id, &outcomes[r]);
    nap(SHORT_MS);                                                     /* then both others are with rank 0 */
    kill(children[2], SIGKILL);
    for (int r = 0; r < 3; r++) waitpid(children[r], NULL, 0);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(outcomes[r].status, TUTTI_PEER_LOST);
        assert_non_null(strstr(outcomes[r].detail, "rank 2 (process"));
        assert_non_null(strstr(outcomes[r].detail, "waited for rank 3 of 4"));
    }
    outcomes_destroy(outcomes);
    (void)state;
}
static void disturb(const tutti_unique_id *id)
{
    char nonsense[144];
    int sockets[60];
    memset(nonsense, 'x', sizeof nonsense);
    for (int i = 0; i < 60; i++) {
        for (int tries = 0; (sockets[i] = socket_connect("id", id->bytes)) < 0 && tries < 1000; tries++) nap(1);
        if (i % 3 == 0) socket_send(sockets[i], "GET / HTTP/1.1\r\n\r\n", 18, STDIN_FILENO);
        if (i % 3 == 1) socket_send(sockets[i], nonsense, sizeof nonsense, -1);
    }
    nap(60000);
    _exit(0);
}
static void test_strangers_do_not_take_a_place(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS };
    struct outcome *outcomes = outcomes_create();
    tutti_unique_id id;
    pid_t children[3];
    assert_int_equal(bootstrap_random(&id, sizeof id), TUTTI_OK);
    pid_t stranger = fork();
    if (stranger == 0) disturb(&id);
    for (int r = 0; r < 3; r++) {
        if ((children[r] = fork()) == 0) rank_process(&way, r, &id, &outcomes[r]);
        nap(100);
    }
    for (int r = 0; r < 3; r++) assert_int_equal(waitpid(children[r], NULL, 0), children[r]);
    kill(stranger, SIGKILL);
    waitpid(stranger, NULL, 0);
    expect_tables(&way, outcomes);
    outcomes_destroy(outcomes);
    (void)state;
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_get_the_table),
        cmocka_unit_test(test_missing_rank_is_named_by_all),
        cmocka_unit_test(test_missing_ranks_are_named_by_all),
        cmocka_unit_test(test_missing_rank_0_is_named_by_all),
        cmocka_unit_test(test_sizes_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_versions_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_no_memory_is_an_error),
        cmocka_unit_test(test_store_sees_few_requests),
        cmocka_unit_test(test_store_that_fails_is_blamed),
        cmocka_unit_test(test_late_rank_0_is_not_called_missing),
        cmocka_unit_test(test_rank_taken_twice_is_noticed),
        cmocka_unit_test(test_store_with_nonsense_is_another_version),
        cmocka_unit_test(test_id_taken_twice_is_noticed),
        cmocka_unit_test(test_rank_that_gives_up_is_named),
        cmocka_unit_test(test_strangers_do_not_take_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
