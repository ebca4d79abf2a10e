/* Many processes of one host join a group through a store. Only the process of rank 0 handles the table of members,
   unless it fails. */
#include "backend/base/clock.h"
#include "backend/join/host_table.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RANKS = 20, VALUE_BYTES = 8192, ENTRIES = 4 * RANKS, SECONDS = 600 };
static_assert(RANKS * (int)sizeof(struct member) >= (int)SHARED_TABLE_LEAST, "the table is shared");
/* A store in memory that the processes share. */
struct entry { char key[64]; size_t bytes; unsigned char value[VALUE_BYTES]; };
static struct store {
    pthread_mutex_t lock;
    int count;
    /* How often the table was read. */
    int table_reads;
    struct entry entries[ENTRIES];
} *shared;

static struct entry *entry_find(const char *key)
{
    for (int i = 0; i < shared->count; i++)
        if (strcmp(shared->entries[i].key, key) == 0) return &shared->entries[i];
    return NULL;
}
static tutti_status shared_put(void *context, const char *key, const void *value, size_t bytes)
{
    (void)context;
    REQUIRE(bytes <= VALUE_BYTES);
    pthread_mutex_lock(&shared->lock);
    struct entry *e = entry_find(key);
    if (!e) e = &shared->entries[shared->count++];
    REQUIRE(shared->count <= ENTRIES);
    snprintf(e->key, sizeof e->key, "%s", key);
    memcpy(e->value, value, bytes);
    e->bytes = bytes;
    pthread_mutex_unlock(&shared->lock);
    return TUTTI_OK;
}
static tutti_status shared_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    (void)context;
    const int64_t until_ms = clock_ms() + timeout_ms;
    for (;;) {
        pthread_mutex_lock(&shared->lock);
        const struct entry *e = entry_find(key);
        tutti_status status = !e ? TUTTI_TIMEOUT : e->bytes > capacity ? TUTTI_NO_MEMORY : TUTTI_OK;
        if (status == TUTTI_OK) memcpy(value, e->value, *bytes = e->bytes);
        if (status == TUTTI_OK && strstr(key, "/members")) shared->table_reads++;
        pthread_mutex_unlock(&shared->lock);
        if (status != TUTTI_TIMEOUT || clock_ms() >= until_ms) return status;
        sleep_us(1000);
    }
}
/* The rank that ends in the given way, or -1. */
static int failing_rank;
static void (*fail_rank)(void);
/* Ends rank 0 when it has stored its result, or another rank when it has stored its record. */
static tutti_status put_and_fail(void *context, const char *key, const void *value, size_t bytes)
{
    tutti_status status = shared_put(context, key, value, bytes);
    if (strstr(key, failing_rank ? "/r" : "/table")) fail_rank();
    return status;
}
static tutti_status rank_join(int rank, tutti_comm **out)
{
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = rank;
    config.size = RANKS;
    config.timeout_ms = SECONDS * 1000;
    config.store = (tutti_store){ NULL, rank == failing_rank ? put_and_fail : shared_put, shared_get };
    return tutti_comm_init(out, &config);
}
/* Runs `body` as each rank, in processes. All but the failing one must exit with 0. */
static void ranks_run(void (*body)(int rank))
{
    pid_t children[RANKS];
    pthread_mutexattr_t between_processes;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    pthread_mutexattr_init(&between_processes);
    pthread_mutexattr_setpshared(&between_processes, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&shared->lock, &between_processes);
    fflush(NULL);
    for (int r = 0; r < RANKS; r++)
        if ((children[r] = fork()) == 0) {
            alarm(SECONDS);
            body(r);
            _exit(0);
        }
    for (int r = 0; r < RANKS; r++) {
        int status = -1;
        assert_int_equal(waitpid(children[r], &status, 0), children[r]);
        assert_int_equal(status, r == failing_rank ? SIGKILL : 0);
    }
}
static void join_and_sum(int rank)
{
    tutti_comm *comm, *half;
    float one = 1, sum = 0;
    REQUIRE(rank_join(rank, &comm) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL) == TUTTI_OK && sum == RANKS);
    REQUIRE(tutti_comm_split(comm, rank % 2, 0, &half) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, half, NULL) == TUTTI_OK && sum == RANKS / 2);
    REQUIRE(tutti_comm_destroy(half) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_no_process_reads_the_table_from_the_store(void **state)
{
    (void)state;
    failing_rank = -1;
    ranks_run(join_and_sum);
    assert_int_equal(shared->table_reads, 0);
    munmap(shared, sizeof *shared);
}
static void process_kill_itself(void) { raise(SIGKILL); }
static void join_without_rank_0(int rank)
{
    tutti_comm *comm;
    tutti_status status = rank_join(rank, &comm);
    REQUIRE(rank != 0 && (status == TUTTI_SYSTEM || status == TUTTI_PEER_LOST));
    /* The rank that found the death first is named by the others. */
    REQUIRE(strstr(tutti_get_last_error(), "rank 0 (process ") || strstr(tutti_get_last_error(), "could not join"));
}
static void test_death_of_rank_0_before_it_sends_the_table_is_an_error(void **state)
{
    (void)state;
    failing_rank = 0;
    fail_rank = process_kill_itself;
    ranks_run(join_without_rank_0);
    assert_int_equal(shared->table_reads, RANKS - 1);
    munmap(shared, sizeof *shared);
}
/* The group forms, because the record of rank 1 is in the store. */
static void join_without_rank_1(int rank)
{
    tutti_comm *comm;
    REQUIRE(rank_join(rank, &comm) != TUTTI_OK && rank != 1);
}
static void test_table_of_a_group_that_cannot_join_is_removed(void **state)
{
    (void)state;
    failing_rank = 1;
    fail_rank = process_kill_itself;
    ranks_run(join_without_rank_1);
    int pieces = 0;
    for (int i = 0; i < shared->count; i++) {
        if (!strstr(shared->entries[i].key, "/members")) continue;
        pieces++;
        /* This store cannot remove keys. */
        assert_int_equal(shared->entries[i].bytes, 1);
    }
    assert_int_equal(pieces, 1);
    munmap(shared, sizeof *shared);
}

/* ---- by a unique id ---- */
/* Returns the number of the file of the table that this process maps: the only one of tutti that it maps for reading
   only. 0: it maps none. */
static unsigned long find_table_file(void)
{
    char line[512], rights[8];
    unsigned long found = 0, number;
    FILE *maps = fopen("/proc/self/maps", "r");
    REQUIRE(maps);
    while (fgets(line, sizeof line, maps)) {
        if (!strstr(line, "/memfd:tutti") || sscanf(line, "%*s %7s %*s %*s %lu", rights, &number) != 2) continue;
        if (rights[1] == 'w') continue;
        REQUIRE(!found || found == number);
        found = number;
    }
    fclose(maps);
    return found;
}
static struct table_files {
    tutti_unique_id id;
    unsigned long of_rank[RANKS];
} *files;
static void join_by_id(int rank)
{
    tutti_comm *comm;
    float one = 1, sum = 0;
    REQUIRE(tutti_comm_init_rank(&comm, RANKS, files->id, rank) == TUTTI_OK);
    files->of_rank[rank] = find_table_file();
    REQUIRE(tutti_all_reduce(&one, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL) == TUTTI_OK && sum == RANKS);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    REQUIRE(find_table_file() == 0);
}
static void test_processes_that_join_by_an_id_map_one_table(void **state)
{
    (void)state;
    failing_rank = -1;
    files = mmap(NULL, sizeof *files, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(files != MAP_FAILED);
    assert_int_equal(tutti_get_unique_id(&files->id), TUTTI_OK);
    ranks_run(join_by_id);
    for (int r = 0; r < RANKS; r++) {
        assert_int_not_equal(files->of_rank[r], 0);
        assert_int_equal(files->of_rank[r], files->of_rank[0]);
    }
    munmap(files, sizeof *files);
    munmap(shared, sizeof *shared);
}

unit_function test_one_table;
int test_one_table(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_process_reads_the_table_from_the_store),
        cmocka_unit_test(test_death_of_rank_0_before_it_sends_the_table_is_an_error),
        cmocka_unit_test(test_table_of_a_group_that_cannot_join_is_removed),
        cmocka_unit_test(test_processes_that_join_by_an_id_map_one_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
