/* The bootstrap: every rank ends with the same table, or every rank ends with the same error, which names who is
   missing and shows both sides of what does not agree. Ranks are threads (store) or processes (id). */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/bootstrap.h"
#include "backend/host/socket.h"
#include "backend/verdict.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
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
struct entry { char key[64]; unsigned char value[VALUE_BYTES]; size_t bytes; };
struct store {
    pthread_mutex_t lock;
    struct entry entries[8 * MOST];
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
    int64_t until_ms = clock_ms() + timeout_ms;
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
    int odd_rank, odd_size, odd_build;                                 /* one rank that was told otherwise */
    int absent;                                                        /* bits: ranks that do not come */
    int64_t timeout_ms;
    int attempt;                                                       /* each of other processes, with other tokens */
};
struct outcome { tutti_status status; char detail[STATUS_DETAIL_BYTES]; struct member table[MOST]; };
struct rank { const struct way *way; int rank; tutti_store store; tutti_unique_id id; struct outcome *outcome; };

static struct member member_of(const struct way *way, int rank)
{
    bool odd = rank == way->odd_rank;
    struct member mine = { .timeout_ms = way->timeout_ms, .group = "test group", .build = 1 };
    mine.size = (uint32_t)(odd && way->odd_size ? way->odd_size : way->size);
    if (odd && way->odd_build) mine.build = (uint32_t)way->odd_build;
    memset(mine.identity.nonce, rank + 1 + 10 * way->attempt, sizeof mine.identity.nonce);
    memset(mine.token, rank + 101 + 10 * way->attempt, sizeof mine.token);
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
            assert_int_equal(m->token[15], q + 101 + 10 * way->attempt);
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
    run_both(&way, TUTTI_TIMEOUT, "rank 3 of 5 has not joined test group within 1000 ms");
    (void)state;
}
static void test_missing_ranks_are_named_by_all(void **state)
{
    struct way way = { .size = 5, .odd_rank = -1, .absent = 1 << 1 | 1 << 4, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "ranks 1, 4 of 5 have not joined test group");
    (void)state;
}
static void test_missing_rank_0_is_named_by_all(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .absent = 1 << 0, .timeout_ms = SHORT_MS };
    run_both(&way, TUTTI_TIMEOUT, "rank 0 of 3 has not joined test group");
    (void)state;
}
static void test_sizes_that_disagree_are_shown_to_all(void **state)
{
    struct way more = { .size = 4, .odd_rank = 2, .odd_size = 6, .timeout_ms = JOIN_MS };
    run_both(&more, TUTTI_MISMATCH, "rank 2 was told that test group has 6 ranks, rank 0 was told 4");
    struct way less = { .size = 4, .odd_rank = 3, .odd_size = 3, .timeout_ms = JOIN_MS };
    run_both(&less, TUTTI_MISMATCH, "rank 3 was told that test group has 3 ranks, rank 0 was told 4");
    (void)state;
}
static void test_builds_that_disagree_are_shown_to_all(void **state)
{
    struct way way = { .size = 3, .odd_rank = 1, .odd_build = 7, .timeout_ms = JOIN_MS };
    run_both(&way, TUTTI_MISMATCH, "rank 1 joins test group with a tutti made of other sources (00000007)");
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
    assert_in_range(s->gets, 4 * (MOST - 1), 40 * (MOST - 1));         /* looks again, if somebody comes late */
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
    assert_int_equal(outcomes[0].status, TUTTI_SYSTEM);
    assert_non_null(strstr(outcomes[0].detail, "the key-value store failed to take key r0"));
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
    expect_failure(&way, outcomes, TUTTI_TIMEOUT, "rank 0 of 2 has joined test group, but");
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
struct late { struct rank rank; int after_ms; pthread_t thread; };
static void *bring_late(void *context)
{
    struct late *late = context;
    nap(late->after_ms);
    bring(&late->rank, false);
    return NULL;
}
static void late_start(struct late *late, const struct way *way, int rank, struct store *s, struct outcome *outcome)
{
    late->rank = (struct rank){ .way = way, .rank = rank, .store = { s, store_put, store_get }, .outcome = outcome };
    assert_int_equal(pthread_create(&late->thread, NULL, bring_late, late), 0);
}
static void put_record(struct store *s, const struct way *answers, const struct way *way, int rank)
{
    char key[64];
    struct member mine = member_of(way, rank);
    for (int i = 0; i < 16; i++) snprintf(&key[2 * i], 3, "%02x", member_of(answers, 0).token[i]);
    snprintf(&key[32], 16, "/r%d", rank);
    store_put(s, key, &mine, sizeof mine);
}
static void test_earlier_groups_are_not_believed(void **state)
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
static void test_earlier_failures_are_not_believed(void **state)
{
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct way odd = { .size = 3, .odd_rank = 1, .odd_size = 4, .timeout_ms = SHORT_MS };
    run_store(&odd, s, outcomes);
    expect_failure(&odd, outcomes, TUTTI_MISMATCH, "rank 1 was told that test group has 4 ranks");
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
    struct member first = member_of(&dead, 0);
    store_put(s, "r0", &first, sizeof first);                          /* and no verdict */
    put_record(s, &dead, &dead, 1);
    struct late ranks[3] = { { .after_ms = 100 } };
    for (int r = 0; r < 3; r++) late_start(&ranks[r], &way, r, s, &outcomes[r]);
    for (int r = 0; r < 3; r++) pthread_join(ranks[r].thread, NULL);
    expect_tables(&way, outcomes);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_started_again_while_others_join(void **state)
{
    struct outcome *outcomes = outcomes_create();
    struct store *s = store_create();
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS }, dead = way;
    dead.attempt = 1;
    put_record(s, &way, &dead, 1);                                     /* has answered, and died */
    struct late ranks[3] = { { .after_ms = 0 }, { .after_ms = 100 }, { .after_ms = 1200 } };
    for (int r = 0; r < 3; r++) late_start(&ranks[r], &way, r, s, &outcomes[r]);
    for (int r = 0; r < 3; r++) pthread_join(ranks[r].thread, NULL);
    expect_tables(&way, outcomes);
    free(s);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_taken_twice_is_noticed(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = JOIN_MS }, other = way;
    struct outcome *outcomes = outcomes_create(), *second = outcomes_create();
    struct store *s = store_create();
    other.attempt = 1;                                                 /* another process */
    struct late ranks[4] = { { .after_ms = 0 }, { .after_ms = 0 }, { .after_ms = 200 }, { .after_ms = 100 } };
    for (int r = 0; r < 3; r++) late_start(&ranks[r], &way, r, s, &outcomes[r]);
    late_start(&ranks[3], &other, 1, s, second);                       /* and is read: the first had no time to be */
    for (int r = 0; r < 4; r++) pthread_join(ranks[r].thread, NULL);
    bool first_seated = outcomes[1].status == TUTTI_OK;
    const struct outcome *turned_away = first_seated ? second : &outcomes[1];
    assert_true(first_seated != (second->status == TUTTI_OK));
    assert_int_equal(turned_away->status, TUTTI_INVALID_ARGUMENT);
    assert_non_null(strstr(turned_away->detail, "two processes have joined test group as rank 1"));
    free(s);
    outcomes_destroy(second);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_that_comes_after_the_end_is_told(void **state)
{
    struct way way = { .size = 3, .odd_rank = -1, .timeout_ms = SHORT_MS }, other = way;
    struct outcome *outcomes = outcomes_create(), *second = outcomes_create();
    struct store *s = store_create();
    other.attempt = 1;
    run_store(&way, s, outcomes);
    expect_tables(&way, outcomes);
    struct late late = { .after_ms = 0 };
    late_start(&late, &other, 1, s, second);
    pthread_join(late.thread, NULL);
    assert_int_equal(second->status, TUTTI_TIMEOUT);
    assert_non_null(strstr(second->detail, "rank 0 of 3 has not joined test group within 1000 ms; the store only "
        "holds the end of an earlier attempt without this process, of 3 ranks, by process"));
    free(s);
    outcomes_destroy(second);
    outcomes_destroy(outcomes);
    (void)state;
}
static void test_rank_0_taken_twice_is_noticed(void **state)
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
static void test_store_with_nonsense_is_another_version(void **state)
{
    static const size_t lengths[] = { 0, 5, sizeof(struct member) - 1, 500, 528, 700, VALUE_BYTES };
    unsigned char nonsense[VALUE_BYTES];
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = SHORT_MS };
    memset(nonsense, 'x', sizeof nonsense);
    for (int rank = 0; rank < 2; rank++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            struct outcome *outcomes = outcomes_create();
            struct store *s = store_create();
            way.absent = 1 << !rank;
            put_record(s, &way, &way, 1);
            struct entry *entry = &s->entries[0];
            if (rank) snprintf(entry->key, sizeof entry->key, "r0");
            memcpy(entry->value, nonsense, lengths[i]);
            entry->bytes = lengths[i];
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

/* ---- rank 0 is stopped, or asked by many ---- */
/* Its calls of poll and of the clock are ours: a test can stop it between the two, and time passes as it says. */
static _Atomic int polled_count, stopped;               /* descriptors of a poll; 1: to stop after it, 2: it has */
static _Atomic int64_t seconds;                         /* not 0: what the clock shows, which stands still */
int poll(struct pollfd *polls, nfds_t count, int timeout_ms)
{
    struct timespec most = { timeout_ms / 1000, timeout_ms % 1000 * 1000000 };
    atomic_store(&polled_count, (int)count);
    int ready = (int)syscall(SYS_ppoll, polls, count, timeout_ms < 0 ? NULL : &most, NULL, 0);
    int running = 1;
    if (count > 1) atomic_compare_exchange_strong(&stopped, &running, 2);
    while (count > 1 && atomic_load(&stopped) == 2) nap(1);
    return ready;
}
int clock_gettime(clockid_t clock, struct timespec *out)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, out);
    if (atomic_load(&seconds)) *out = (struct timespec){ atomic_load(&seconds), 0 };
    return failed;
}
static void *bring_by_id(void *context)
{
    bring(context, true);
    return NULL;
}
static int connect_to(const tutti_unique_id *id)
{
    int socket = -1;
    for (int tries = 0; (socket = socket_connect("id", id->bytes)) < 0 && tries < JOIN_MS; tries++) nap(1);
    assert_true(socket >= 0);
    return socket;
}
static void introduce(int socket, const struct way *way, int rank)
{
    struct { char magic[8]; int32_t rank; uint32_t unused; struct member member; } say = { "tutti-i", rank, 0,
        member_of(way, rank) };
    assert_int_equal(socket_send(socket, &say, sizeof say, -1), 0);
}
static tutti_status hear(int socket, struct verdict *out)
{
    struct pollfd one = { .fd = socket, .events = POLLIN };
    assert_int_equal(poll(&one, 1, JOIN_MS), 1);
    assert_int_equal(socket_receive(socket, out, sizeof *out, NULL), sizeof *out);
    return (tutti_status)out->status;
}
static void await_polled(int guests)
{
    for (int tries = 0; atomic_load(&polled_count) != guests + 1 && tries < JOIN_MS; tries++) nap(1);
    assert_int_equal(atomic_load(&polled_count), guests + 1);
}
/* Rank 0 has seen so many connections, the first of them rank 1's, when it is stopped, and one more comes. Rank 1 says
   who it is only then, and rank 0 goes on so much later. */
static void join_when_stopped(int guests, int later)
{
    struct way way = { .size = 2, .odd_rank = -1, .timeout_ms = JOIN_MS };
    static struct outcome outcome;
    struct rank first = { .way = &way, .rank = 0, .outcome = &outcome };
    struct verdict verdict;
    pthread_t thread;
    int sockets[32];
    atomic_store(&seconds, 1000);
    assert_int_equal(bootstrap_random(&first.id, sizeof first.id), TUTTI_OK);
    assert_int_equal(pthread_create(&thread, NULL, bring_by_id, &first), 0);
    for (int i = 0; i < guests; i++) sockets[i] = connect_to(&first.id);
    await_polled(guests);
    atomic_store(&stopped, 1);
    sockets[guests] = connect_to(&first.id);
    for (int tries = 0; atomic_load(&stopped) != 2 && tries < JOIN_MS; tries++) nap(1);
    introduce(sockets[0], &way, 1);
    atomic_store(&seconds, 1000 + later);
    atomic_store(&stopped, 0);
    assert_int_equal(hear(sockets[0], &verdict), TUTTI_OK);
    pthread_join(thread, NULL);
    atomic_store(&seconds, 0);
    assert_int_equal(outcome.status, TUTTI_OK);
    for (int i = 0; i <= guests; i++) close(sockets[i]);
}
static void test_who_spoke_while_rank_0_was_stopped_is_heard(void **state)
{
    join_when_stopped(1, 5);
    (void)state;
}
static void test_who_spoke_before_the_places_ran_out_is_heard(void **state)
{
    join_when_stopped(2 + 16, 0);
    (void)state;
}
/* Rank 0 believes in fewer ranks than there are: more than it has places for, and all of them learn it. */
static void test_more_ranks_than_rank_0_knows_all_hear_it(void **state)
{
    enum { TOLD = 4, ARE = 40 };
    struct way way = { .size = TOLD, .odd_rank = -1, .timeout_ms = JOIN_MS }, theirs = way;
    static struct outcome outcome;
    struct rank first = { .way = &way, .rank = 0, .outcome = &outcome };
    struct verdict verdict;
    pthread_t thread;
    int sockets[ARE];
    theirs.size = ARE;
    assert_int_equal(bootstrap_random(&first.id, sizeof first.id), TUTTI_OK);
    assert_int_equal(pthread_create(&thread, NULL, bring_by_id, &first), 0);
    for (int r = ARE - 1; r > 0; r--) {                                /* those that it knows come last */
        sockets[r] = connect_to(&first.id);
        introduce(sockets[r], &theirs, r);
    }
    for (int r = 1; r < ARE; r++) {
        assert_int_equal(hear(sockets[r], &verdict), TUTTI_MISMATCH);
        assert_non_null(strstr(verdict.detail, "was told that group test group has 40 ranks, rank 0 was told 4"));
        close(sockets[r]);
    }
    pthread_join(thread, NULL);
    assert_int_equal(outcome.status, TUTTI_MISMATCH);
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
        cmocka_unit_test(test_builds_that_disagree_are_shown_to_all),
        cmocka_unit_test(test_no_memory_is_an_error),
        cmocka_unit_test(test_store_sees_few_requests),
        cmocka_unit_test(test_store_that_fails_is_blamed),
        cmocka_unit_test(test_late_rank_0_is_not_called_missing),
        cmocka_unit_test(test_earlier_groups_are_not_believed),
        cmocka_unit_test(test_earlier_failures_are_not_believed),
        cmocka_unit_test(test_rank_0_that_died_while_joining_is_not_waited_for),
        cmocka_unit_test(test_rank_started_again_while_others_join),
        cmocka_unit_test(test_rank_taken_twice_is_noticed),
        cmocka_unit_test(test_rank_that_comes_after_the_end_is_told),
        cmocka_unit_test(test_rank_0_taken_twice_is_noticed),
        cmocka_unit_test(test_store_with_nonsense_is_another_version),
        cmocka_unit_test(test_id_taken_twice_is_noticed),
        cmocka_unit_test(test_rank_that_gives_up_is_named),
        cmocka_unit_test(test_strangers_do_not_take_a_place),
        cmocka_unit_test(test_who_spoke_while_rank_0_was_stopped_is_heard),
        cmocka_unit_test(test_who_spoke_before_the_places_ran_out_is_heard),
        cmocka_unit_test(test_more_ranks_than_rank_0_knows_all_hear_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
