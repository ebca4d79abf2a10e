/* Has a store in memory, and runs ranks as threads or processes. */
#include "tests/support/world.h"
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/engine/messages.h"
#include "tests/support/inproc.h"
#include "tests/support/unit.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

void world_fail(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: not true: %s (last error: %s)\n", file, line, text, tutti_get_last_error());
    _exit(1);
}

/* ---- store ---- */
/* A formed group leaves at most MOST_LEFT_BYTES in its store. On a busy machine a process takes up to BUSY times as
   long as on an idle one. */
enum { MOST_LEFT_BYTES = 512, BUSY = 10, BUCKETS = 1024 };
struct entry { char key[64]; size_t bytes; void *value; struct entry *next; };
/* The hash of a key chooses its bucket, because a thousand ranks poll their keys. */
struct memory_store { pthread_mutex_t lock; pthread_cond_t changed; struct entry *buckets[BUCKETS]; };

static struct entry **store_bucket(struct memory_store *s, const char *key)
{
    uint32_t hash = 5381;
    while (*key) hash = hash * 33 + (unsigned char)*key++;
    return &s->buckets[hash % BUCKETS];
}
/* Removes the entry of a key from the store and returns it, or NULL if there is no such entry. Called with the lock. */
static struct entry *store_take(struct memory_store *s, const char *key)
{
    struct entry **at = store_bucket(s, key), *found;
    while (*at && strcmp((*at)->key, key) != 0) at = &(*at)->next;
    if ((found = *at) != NULL) *at = found->next;
    return found;
}
static void entry_free(struct entry *e)
{
    if (e) free(e->value);
    free(e);
}
static tutti_status store_put(void *context, const char *key, const void *value, size_t bytes)
{
    struct memory_store *s = context;
    struct entry *e = calloc(1, sizeof *e);
    snprintf(e->key, sizeof e->key, "%s", key);
    e->value = malloc(bytes ? bytes : 1);
    e->bytes = bytes;
    memcpy(e->value, value, bytes);
    pthread_mutex_lock(&s->lock);
    entry_free(store_take(s, key));
    struct entry **bucket = store_bucket(s, key);
    e->next = *bucket;
    *bucket = e;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return TUTTI_OK;
}
tutti_status world_store_remove(void *context, const char *key)
{
    struct memory_store *s = context;
    pthread_mutex_lock(&s->lock);
    struct entry *found = store_take(s, key);
    pthread_mutex_unlock(&s->lock);
    entry_free(found);
    return found ? TUTTI_OK : TUTTI_SYSTEM;
}
static struct entry *store_find(struct memory_store *s, const char *key)
{
    struct entry *e = *store_bucket(s, key);
    while (e && strcmp(e->key, key) != 0) e = e->next;
    return e;
}
static tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    struct memory_store *s = context;
    int64_t deadline = clock_ms() + timeout_ms;
    struct entry *e;
    pthread_mutex_lock(&s->lock);
    while (!(e = store_find(s, key)) && clock_ms() < deadline) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 10000000;
        if (until.tv_nsec >= 1000000000) { until.tv_nsec -= 1000000000; until.tv_sec++; }
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
    if (e && e->bytes <= capacity) { memcpy(value, e->value, e->bytes); *bytes = e->bytes; }
    pthread_mutex_unlock(&s->lock);
    return !e ? TUTTI_TIMEOUT : e->bytes <= capacity ? TUTTI_OK : TUTTI_NO_MEMORY;
}
/* Returns true if the store has no more than a formed group leaves: two keys, one of them with a record, and no table
   of members. */
static bool store_is_short(const struct memory_store *s)
{
    size_t keys = 0, bytes = 0;
    for (int b = 0; b < BUCKETS; b++)
        for (const struct entry *e = s->buckets[b]; e; e = e->next, keys++) bytes += e->bytes;
    return keys <= 2 && bytes <= MOST_LEFT_BYTES;
}
tutti_store world_store_create(void)
{
    struct memory_store *s = calloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    return (tutti_store){ s, store_put, store_get };
}
void world_store_destroy(tutti_store store)
{
    struct memory_store *s = store.context;
    for (int b = 0; b < BUCKETS; b++)
        for (struct entry *e = s->buckets[b], *next; e; e = next) { next = e->next; entry_free(e); }
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->changed);
    free(s);
}

/* ---- between the hosts of threads ---- */
static struct inproc_options delays = { .in_time = true, .seed = 1, .delay = 100, .budget = 8 };
static tutti_status join_inproc(struct router *router) { return inproc_world_join(&delays, router); }
/* Restores the default network in the child of a fork, where the other ranks' threads do not run. */
static void forget_network(void) { messages_override_network(NULL); }
/* Makes inproc the network between hosts of threads if WORLD_NETWORK requests it. */
static void choose_network(void)
{
    const char *network = getenv("WORLD_NETWORK"), *seed = getenv("WORLD_SEED"), *delay = getenv("WORLD_DELAY_US");
    if (!network) return;
    REQUIRE(strcmp(network, "inproc") == 0);
    if (seed) delays.seed = (unsigned)strtoul(seed, NULL, 10);
    if (delay) delays.delay = atoi(delay);
    printf("hosts of threads: WORLD_NETWORK=inproc WORLD_SEED=%u WORLD_DELAY_US=%d\n", delays.seed, delays.delay);
    pthread_atfork(NULL, NULL, forget_network);
    messages_override_network(join_inproc);
}
static pthread_once_t network_once = PTHREAD_ONCE_INIT;
__attribute__((constructor)) static void filter_tests(void)
{
    if (getenv("WORLD_TESTS")) cmocka_set_test_filter(getenv("WORLD_TESTS"));
    /* A thread cannot be killed alone. */
    if (getenv("WORLD_NETWORK")) cmocka_set_skip_filter("*killed*");
}
/* Simulates the hosts of WORLD_HOSTS if the test simulates none. Returns true if it does. */
static bool pretend_by_environment(int size)
{
    const char *hosts = getenv("WORLD_HOSTS");
    char number[12];
    if (!hosts || size < 2 || settings_get()->hosts[0]) return false;
    snprintf(number, sizeof number, "%d", atoi(hosts) < size ? atoi(hosts) : size);
    world_pretend(number);
    return true;
}

/* ---- threads ---- */
struct thread { pthread_t thread; struct rank rank; tutti_config config; rank_function *body; };
static void *thread_main(void *argument)
{
    struct thread *t = argument;
    REQUIRE(tutti_comm_init(&t->rank.comm, &t->config) == TUTTI_OK);
    t->body(&t->rank);
    REQUIRE(tutti_comm_destroy(t->rank.comm) == TUTTI_OK);
    return NULL;
}
void world_threads(int size, const tutti_config *options, rank_function *body, void *context)
{
    bool pretends = pretend_by_environment(size);
    tutti_store store = world_store_create();
    struct thread *threads = calloc((size_t)size, sizeof *threads);
    pthread_barrier_t meeting;
    pthread_barrier_init(&meeting, NULL, (unsigned)size);
    for (int r = 0; r < size; r++) {
        threads[r] = (struct thread){ .rank = { NULL, r, size, context, &meeting }, .body = body };
        threads[r].config = options ? *options : (tutti_config)TUTTI_CONFIG_INIT;
        threads[r].config.rank = r;
        threads[r].config.size = size;
        threads[r].config.store = store;
        threads[r].config.store_remove = world_store_remove;
        pthread_create(&threads[r].thread, NULL, thread_main, &threads[r]);
    }
    for (int r = 0; r < size; r++) pthread_join(threads[r].thread, NULL);
    REQUIRE(store_is_short(store.context));
    pthread_barrier_destroy(&meeting);
    free(threads);
    world_store_destroy(store);
    if (pretends) world_pretend("");
}
void world_meet(const struct rank *me) { pthread_barrier_wait(me->meeting); }
void world_set(const char *variable, const char *value)
{
    if (value) setenv(variable, value, 1);
    else unsetenv(variable);
    settings_reload();
}
void world_pretend(const char *hosts)
{
    pthread_once(&network_once, choose_network);
    world_set("TUTTI_HOSTS", hosts);
}
void world_threads_on(const char *hosts, int size, const tutti_config *options, rank_function *body, void *context)
{
    world_pretend(hosts);
    world_threads(size, options, body, context);
    world_pretend("");
}

/* ---- processes ---- */
static void process_main(int rank, int size, tutti_unique_id id, int seconds, rank_function *body, void *context)
{
    struct rank me = { NULL, rank, size, context, NULL };
    alarm((unsigned)(BUSY * seconds));
    REQUIRE(tutti_comm_init_rank(&me.comm, size, id, rank) == TUTTI_OK);
    body(&me);
    REQUIRE(tutti_comm_destroy(me.comm) == TUTTI_OK);
    _exit(0);
}
int world_processes(int size, int seconds, rank_function *body, void *context)
{
    tutti_unique_id id;
    int bad = 0;
    /* A run with WORLD_NETWORK covers threads only; the run without it covers processes. */
    if (getenv("WORLD_NETWORK")) return 0;
    if (tutti_get_unique_id(&id) != TUTTI_OK) return size;
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        pid_t child = fork();
        if (child < 0) return size;
        if (child == 0) process_main(r, size, id, seconds, body, context);
    }
    for (int r = 0, status; r < size; r++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) bad++;
    return bad;
}
tutti_request *world_requests(size_t count)
{
    tutti_request *requests = calloc(count, sizeof *requests);
    REQUIRE(requests != NULL);
    for (size_t i = 0; i < count; i++) requests[i] = (tutti_request)TUTTI_REQUEST_INIT;
    return requests;
}
void sleep_us(int us) { nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL); }
struct rlimit world_limit(int resource, rlim_t most)
{
    struct rlimit before, now;
    REQUIRE(getrlimit(resource, &before) == 0);
    now = (struct rlimit){ most, before.rlim_max };
    REQUIRE(setrlimit(resource, &now) == 0);
    return before;
}
void *abort_main(void *argument)
{
    struct aborter *a = argument;
    sleep_us(a->after_us);
    tutti_comm_abort(a->comm);
    return NULL;
}
