/* Failures around shared tensors: a peer is killed while it has them mapped, a group fails while peers use them, a
   process is forked, a peer is late, descriptors or addresses run out. After each, the memory belongs to its owner
   again, and other groups work. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

enum { COUNT = 1 << 20, SECONDS = 300 };
static float *allocate(size_t count)
{
    void *at;
    REQUIRE(tutti_mem_alloc(&at, 4 * count) == TUTTI_OK);
    return at;
}
/* Fills by large copies, because under the thread sanitizer each access to a single element costs more than the
   collectives. */
static void fill(float *at, size_t count, float with)
{
    at[0] = with;
    for (size_t n = 1; n < count; n *= 2) memcpy(at + n, at, sizeof *at * (n < count - n ? n : count - n));
}
static bool is_filled(const float *at, size_t count, float with)
{
    return at[0] == with && memcmp(at, at + 1, sizeof *at * (count - 1)) == 0;
}
static tutti_status sum(tutti_comm *comm, float *at)
{
    return tutti_all_reduce(at, at, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL);
}
static void sum_right(tutti_comm *comm, float *at, int ranks)
{
    fill(at, COUNT, 1);
    REQUIRE(sum(comm, at) == TUTTI_OK);
    REQUIRE(is_filled(at, COUNT, (float)ranks));
}

static void test_wrong_arguments_are_refused(void **state)
{
    (void)state;
    assert_int_equal(tutti_mem_alloc(NULL, 1), TUTTI_INVALID_ARGUMENT);
    assert_string_equal(tutti_get_last_error(), "tutti_mem_alloc: the pointer to the address is NULL");
    assert_int_equal(tutti_mem_free(NULL), TUTTI_OK);
    assert_int_equal(tutti_mem_free(&state), TUTTI_INVALID_ARGUMENT);
}

/* ---- a group that fails while peers are at its tensors ---- */
/* Rank 0 aborts during an operation. A rank that gets the error may reuse its tensor at once, and no peer changes it
   later. */
static void abort_in_the_middle(struct rank *me)
{
    float *at = allocate(COUNT);
    tutti_comm *comm;
    unsigned seed = 3;
    for (int round = 0; round < 15; round++) {
        pthread_t thread;
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        struct aborter aborter = { comm, 100 + rand_r(&seed) % 4000 };
        fill(at, COUNT, 0);
        sum_right(comm, at, me->size);
        /* When rank 0 has completed the barrier, all ranks have the sum. */
        tutti_status status = tutti_barrier(comm, NULL);
        if (me->rank == 0) REQUIRE(pthread_create(&thread, NULL, abort_main, &aborter) == 0);
        tutti_request request = { .struct_size = sizeof request };
        /* In odd rounds the caller drives the operation. */
        request.blocking = round % 2;
        while (status == TUTTI_OK) {
            status = tutti_all_reduce(at, at, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, &request);
            if (status == TUTTI_OK && !request.blocking) status = tutti_wait(&request, 0);
        }
        REQUIRE(status == TUTTI_ABORTED);
        fill(at, COUNT, 7);
        sleep_us(3000);
        REQUIRE(is_filled(at, COUNT, 7));
        if (me->rank == 0) pthread_join(thread, NULL);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    }
    sum_right(me->comm, at, me->size);
    REQUIRE(tutti_mem_free(at) == TUTTI_OK);
}
static void test_a_tensor_is_not_touched_after_an_abort_on_threads(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++) world_threads(size, NULL, abort_in_the_middle, NULL);
    for (int size = 3; size <= 4; size++) world_threads_on("2", size, NULL, abort_in_the_middle, NULL);
}

#ifndef NO_PROCESSES
static void test_a_tensor_is_not_touched_after_an_abort_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= 3; size++)
        assert_int_equal(world_processes(size, SECONDS, abort_in_the_middle, NULL), 0);
    world_pretend("2");
    for (int size = 3; size <= 4; size++)
        assert_int_equal(world_processes(size, SECONDS, abort_in_the_middle, NULL), 0);
    world_pretend("");
}

/* ---- a peer that is killed ---- */
static void *kill_main(void *after_us)
{
    sleep_us(*(int *)after_us);
    raise(SIGKILL);
    return NULL;
}
/* The last rank is killed during an operation. The others form a smaller group, and use the same memory. */
static void survive(int rank, int size, const tutti_unique_id *ids, int after_us)
{
    tutti_comm *comm, *smaller;
    pthread_t thread;
    tutti_status status;
    alarm(SECONDS);
    float *at = allocate(COUNT);
    REQUIRE(tutti_comm_init_rank(&comm, size, ids[0], rank) == TUTTI_OK);
    sum_right(comm, at, size);
    /* When the last rank has completed the barrier, all ranks have the sum. */
    status = tutti_barrier(comm, NULL);
    if (rank == size - 1) REQUIRE(pthread_create(&thread, NULL, kill_main, &after_us) == 0);
    while (status == TUTTI_OK) status = sum(comm, at);
    REQUIRE(status == TUTTI_PEER_LOST);
    fill(at, COUNT, 7);
    REQUIRE(tutti_comm_init_rank(&smaller, size - 1, ids[1], rank) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    REQUIRE(is_filled(at, COUNT, 7));
    sum_right(smaller, at, size - 1);
    REQUIRE(tutti_comm_destroy(smaller) == TUTTI_OK);
    REQUIRE(tutti_mem_free(at) == TUTTI_OK);
    _exit(0);
}
static void test_a_killed_peer_leaves_tensors_to_their_owners(void **state)
{
    unsigned seed = 5;
    (void)state;
    for (int round = 0; round < 30; round++) {
        tutti_unique_id ids[2];
        /* The last ten rounds simulate two hosts. */
        bool hosts = round >= 20;
        int size = 2 + round % 2 + hosts, after_us = rand_r(&seed) % 5000, good = 0, status;
        for (int i = 0; i < 2; i++) assert_int_equal(tutti_get_unique_id(&ids[i]), TUTTI_OK);
        world_pretend(hosts ? "2" : "");
        for (int r = 0; r < size; r++)
            if (fork() == 0) survive(r, size, ids, after_us);
        for (int r = 0; r < size; r++) {
            assert_true(wait(&status) > 0);
            good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        assert_int_equal(good, size - 1);
    }
    world_pretend("");
}

/* ---- a peer that cannot map a tensor ---- */
static void barrier(tutti_comm *comm) { REQUIRE(tutti_barrier(comm, NULL) == TUTTI_OK); }
/* Makes room on the heap for what the operation allocates before it maps the tensor, so that only the mapping is
   refused. */
static void make_room_on_heap(void)
{
    void *pieces[64];
    mallopt(M_TRIM_THRESHOLD, INT32_MAX);
    for (int i = 0; i < 64; i++) REQUIRE((pieces[i] = malloc(32 << 10)) != NULL);
    for (int i = 0; i < 64; i++) free(pieces[i]);
}
/* A rank that cannot map a peer's tensor fails the group with an error that contains `says`. */
static void expect_failure(struct rank *me, float *at, int refused_rank, const char *says)
{
    tutti_comm *comm;
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    struct rlimit before = { 0, 0 };
    int which = strstr(says, "open files") ? RLIMIT_NOFILE : RLIMIT_AS;
    bool refused = me->rank == refused_rank;
    make_room_on_heap();
    if (refused) before = world_limit(which, which == RLIMIT_NOFILE ? 3 : 1 << 20);
    tutti_status status = sum(comm, at);
    if (refused) REQUIRE(setrlimit(which, &before) == 0);
    bool right = status != TUTTI_OK && strstr(tutti_get_last_error(), says);
    if (!right) fprintf(stderr, "rank %d: status %d, %s\n", me->rank, status, tutti_get_last_error());
    REQUIRE(right);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void shortage(struct rank *me)
{
    float *first = allocate(COUNT);
    barrier(me->comm);
    expect_failure(me, first, 1, "too many open files");
    sum_right(me->comm, first, me->size);
    /* A tensor in a block of its own. */
    float *second = allocate(16 * COUNT);
    barrier(me->comm);
#ifndef __SANITIZE_ADDRESS__
    expect_failure(me, second, 0, "cannot map");
#endif
    sum_right(me->comm, second, me->size);
    REQUIRE(tutti_mem_free(first) == TUTTI_OK && tutti_mem_free(second) == TUTTI_OK);
}
static void test_shortage_is_an_error_for_the_group(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, shortage, NULL), 0);
}

/* ---- freed blocks ---- */
/* Returns the bytes of memfds that this process has mapped. */
static size_t mapped_bytes(void)
{
    size_t total = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (strstr(line, "memfd:tutti") && sscanf(line, "%lx-%lx", &from, &to) == 2) total += to - from;
    }
    fclose(maps);
    return total;
}
/* Large tensors of changing sizes, each in a new block. Freed blocks do not stay mapped at the peers. */
static void allocate_and_free(struct rank *me)
{
    size_t most = 0;
    for (int round = 0; round < 12; round++) {
        size_t count = (size_t)(5 + round % 3) * COUNT;
        float *first = allocate(count), *second = allocate(count);
        fill(first, count, 1);
        fill(second, count, 2);
        for (int i = 0; i < 2; i++) {
            float *at = i ? second : first;
            REQUIRE(tutti_all_reduce(at, at, count, TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
            REQUIRE(is_filled(at, count, (float)(me->size * (i + 1))));
        }
        REQUIRE(tutti_mem_free(first) == TUTTI_OK && tutti_mem_free(second) == TUTTI_OK);
        if (round <= 3 && mapped_bytes() > most) most = mapped_bytes();
    }
    REQUIRE(mapped_bytes() <= most + ((size_t)64 << 20));
}
static void test_views_of_freed_blocks_are_unmapped(void **state)
{
    (void)state;
    assert_int_equal(world_processes(3, SECONDS, allocate_and_free, NULL), 0);
}

/* ---- fork ---- */
/* A forked child that writes to an inherited tensor changes neither the parent's tensor nor later operations. */
static void forking(struct rank *me)
{
    float *at = allocate(COUNT);
    for (int round = 0; round < 5; round++) {
        sum_right(me->comm, at, me->size);
        pid_t child = fork();
        if (child == 0) {
            bool seen = is_filled(at, COUNT, (float)me->size);
            fill(at, COUNT, -1);
            _exit(seen && tutti_mem_free(at) == TUTTI_OK ? 0 : 1);
        }
        int status = 1;
        REQUIRE(waitpid(child, &status, 0) == child && status == 0);
        REQUIRE(is_filled(at, COUNT, (float)me->size));
    }
    REQUIRE(tutti_mem_free(at) == TUTTI_OK);
}
static void test_a_forked_child_does_not_change_a_tensor(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, forking, NULL), 0);
}

/* ---- a peer that comes late ---- */
/* Rank 0 reaches its timeout before rank 1 calls the operation. */
static void late(struct rank *me)
{
    _Atomic int *has_given_up = me->context;
    float *at = allocate(COUNT);
    tutti_comm *comm;
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    sum_right(comm, at, me->size);
    tutti_request request = { .struct_size = sizeof request, .timeout_ms = me->rank ? 0 : 100, .blocking = true };
    if (me->rank == 0) {
        REQUIRE(tutti_all_reduce(at, at, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, &request) == TUTTI_TIMEOUT);
        fill(at, COUNT, 7);
        atomic_store(has_given_up, 1);
        barrier(me->comm);
        REQUIRE(is_filled(at, COUNT, 7));
    } else {
        while (!atomic_load(has_given_up)) sleep_us(1000);
        REQUIRE(tutti_all_reduce(at, at, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, &request) == TUTTI_TIMEOUT);
        barrier(me->comm);
    }
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    REQUIRE(tutti_mem_free(at) == TUTTI_OK);
}
static void test_a_late_peer_does_not_touch_a_tensor(void **state)
{
    void *has_given_up = mmap(NULL, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(has_given_up != MAP_FAILED);
    assert_int_equal(world_processes(2, SECONDS, late, has_given_up), 0);
    munmap(has_given_up, sizeof(int));
    (void)state;
}
#endif

unit_function test_shared_failures;
int test_shared_failures(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong_arguments_are_refused),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_tensor_is_not_touched_after_an_abort_on_processes),
        cmocka_unit_test(test_a_killed_peer_leaves_tensors_to_their_owners),
        cmocka_unit_test(test_shortage_is_an_error_for_the_group),
        cmocka_unit_test(test_views_of_freed_blocks_are_unmapped),
        cmocka_unit_test(test_a_forked_child_does_not_change_a_tensor),
        cmocka_unit_test(test_a_late_peer_does_not_touch_a_tensor),
#endif
        cmocka_unit_test(test_a_tensor_is_not_touched_after_an_abort_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
