/* A store in memory, ranks that join through it or by a unique id, and checks of their outcomes. */
#include "tests/unit/join/bootstrap_world.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/host/socket.h"
#include "backend/join/join_result.h"
#include "tests/support/unit.h"
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

void sleep_ms(int ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }
static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* ---- a store in memory ---- */
tutti_status store_put(void *context, const char *key, const void *value, size_t bytes)
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
tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes, int64_t timeout_ms)
{
    struct store *s = context;
    int64_t until_ms = clock_ms() + timeout_ms;
    tutti_status status = TUTTI_TIMEOUT;
    for (bool first = true; status == TUTTI_TIMEOUT && (first || clock_ms() < until_ms); first = false) {
        if (!first) sleep_ms(1);
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

tutti_status store_remove(void *context, const char *key)
{
    struct store *s = context;
    pthread_mutex_lock(&s->lock);
    int i = 0;
    while (i < s->count && strcmp(s->entries[i].key, key) != 0) i++;
    bool found = i < s->count;
    if (found) s->entries[i] = s->entries[--s->count];
    pthread_mutex_unlock(&s->lock);
    return found ? TUTTI_OK : TUTTI_SYSTEM;
}
int store_keys(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    int keys = s->count;
    pthread_mutex_unlock(&s->lock);
    return keys;
}

/* ---- ranks ---- */

struct member member_of(const struct way *way, int rank)
{
    bool odd = rank == way->odd_rank;
    struct member mine = { .timeout_ms = way->timeout_ms, .group = "test group", .build = 1, .job = way->job };
    mine.size = (uint32_t)(odd && way->odd_size ? way->odd_size : way->size);
    if (odd && way->odd_build) mine.build = (uint32_t)way->odd_build;
    if (odd) mine.status = way->odd_status;
    memset(mine.identity.nonce, rank + 1 + 10 * way->attempt, sizeof mine.identity.nonce);
    memset(mine.token, rank + 101 + 10 * way->attempt, sizeof mine.token);
    mine.identity.pid = (uint64_t)getpid();
    if (way->has_contacts != (odd && way->odd_contact))
        mine.contact = (struct sock_address){ 2, 4711, 0, { 10, 0, 0, 1 } };
    snprintf(mine.identity.host, sizeof mine.identity.host, "host of %d", rank);
    return mine;
}
static void terms_of(const struct way *way, int rank, struct terms *out)
{
    _Atomic(const struct algorithm *) chosen[COLLECTIVE_COUNT] = { NULL };
    tutti_config config = { .rank = rank, .size = way->size, .members = way->members, .name = way->name };
    atomic_store(&chosen[ALLREDUCE], way->all_reduce);
    terms_init(&config, chosen, out);
}
struct statement statement_of(const struct way *way, int rank)
{
    struct statement own = { .member = member_of(way, rank) };
    terms_of(way, rank, &own.terms);
    own.member.terms = own.terms.digest;
    return own;
}
void store_put_first(struct store *s, const struct way *way)
{
    struct statement first = statement_of(way, 0);
    store_put(s, "r0", &first, sizeof first);
}
void rank_join(struct rank *r, bool by_id)
{
    struct member mine = member_of(r->way, r->rank);
    int64_t deadline_ms = clock_deadline(r->way->timeout_ms);
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = r->rank;
    config.store = r->store;
    config.store_remove = store_remove;
    if (r->rank == r->way->odd_rank) config.is_cancelled = r->way->odd_cancels;
    if (mine.status != TUTTI_OK) status_fail((tutti_status)mine.status, "there is no eth9 on the host of %d", r->rank);
    struct terms terms;
    struct shared_table *table = NULL;
    terms_of(r->way, r->rank, &terms);
    r->outcome->status = by_id ? bootstrap_id(&r->id, r->rank, &mine, deadline_ms, &table, &r->key)
                               : bootstrap_store(&config, &mine, &terms, deadline_ms, &table, &r->key);
    snprintf(r->outcome->detail, sizeof r->outcome->detail, "%s", status_detail());
    if (table) memcpy(r->outcome->table, shared_table_data(table), mine.size * sizeof mine);
    shared_table_leave(table);
}
static void *join_through_store(void *context)
{
    rank_join(context, false);
    return NULL;
}
void run_store(const struct way *way, struct store *s, struct outcome outcomes[MOST])
{
    struct rank ranks[MOST];
    pthread_t threads[MOST];
    memset(outcomes, 0, MOST * sizeof *outcomes);
    for (int r = 0; r < way->size; r++) {
        ranks[r] = (struct rank){ .way = way, .rank = r, .outcome = &outcomes[r] };
        ranks[r].store = (tutti_store){ s, store_put, store_get };
        if (way->absent >> r & 1) continue;
        assert_int_equal(pthread_create(&threads[r], NULL, join_through_store, &ranks[r]), 0);
    }
    for (int r = 0; r < way->size; r++)
        if (!(way->absent >> r & 1)) pthread_join(threads[r], NULL);
}
struct store *store_create(void)
{
    struct store *s = calloc(1, sizeof *s);
    assert_non_null(s);
    pthread_mutex_init(&s->lock, NULL);
    return s;
}
struct outcome *outcomes_create(void)
{
    void *at = mmap(NULL, MOST * sizeof(struct outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(at != MAP_FAILED);
    return at;
}
void outcomes_destroy(struct outcome *outcomes) { munmap(outcomes, MOST * sizeof *outcomes); }
void rank_process(const struct way *way, int rank, const tutti_unique_id *id, struct outcome *outcome)
{
    struct rank one = { .way = way, .rank = rank, .id = *id, .outcome = outcome };
    int before = count_descriptors();
    alarm(600);
    /* The ranks join in a mixed order. */
    sleep_ms(rank * 7 % 5 * 10);
    rank_join(&one, true);
    _exit(count_descriptors() == before ? 0 : 3);
}
void run_id(const struct way *way, struct outcome outcomes[MOST])
{
    pid_t children[MOST] = { 0 };
    tutti_unique_id id;
    assert_int_equal(random_fill(&id, sizeof id), TUTTI_OK);
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

/* ---- outcomes ---- */
void expect_tables(const struct way *way, const struct outcome outcomes[MOST])
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
void expect_failure(const struct way *way, const struct outcome outcomes[MOST], tutti_status status, const char *text)
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
