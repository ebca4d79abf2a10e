/* Communicators that are destroyed while others still run, several of them, threads as ranks, and forks. */
#include "tests/fake_cuda/graph_calls.h"
#include "tests/unit/cuda_calls/cuda_ranks.h"
#include <dirent.h>
#include <sys/wait.h>

static void rank_start_sum(struct cuda_rank *rank, size_t count, int stream, struct cuda_run *out)
{
    struct cuda_call call = cuda_call_sum(count, stream);
    cuda_run_prepare(rank, &call, out);
    REQUIRE(cuda_run_start(rank, out) == TUTTI_OK);
}

/* ---- ends ---- */
/* Rank 0 leaves as soon as its own operations are over, and the streams of the others are slow. */
static void rank_leaves_early(struct cuda_rank *rank)
{
    struct cuda_run runs[6];
    for (int i = 0; i < 6; i++) rank_start_sum(rank, 20000, i % CUDA_STREAMS, &runs[i]);
    for (int i = 0; i < 6; i++) REQUIRE(cuda_run_wait(&runs[i]) == TUTTI_OK);
    for (int i = 0; i < 6; i++) cuda_run_free(&runs[i]);
}
/* No rank waits for its operations before it destroys its communicator. */
static void rank_leaves_at_work(struct cuda_rank *rank)
{
    static struct cuda_run runs[6];
    for (int i = 0; i < 6; i++) rank_start_sum(rank, 20000, i % CUDA_STREAMS, &runs[i]);
    REQUIRE(tutti_comm_retain(rank->me->comm) == TUTTI_OK && tutti_comm_destroy(rank->me->comm) == TUTTI_OK);
    for (int i = 0; i < 6; i++) REQUIRE(tutti_test(&runs[i].request) == TUTTI_OK);
    REQUIRE(cuda_run_start(rank, &runs[0]) == TUTTI_ABORTED);
}
static void test_ranks_leave_in_any_order(void **state)
{
    (void)state;
    assert_cuda_ranks(3, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=2000", rank_leaves_early);
    assert_cuda_ranks(2, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=2000", rank_leaves_at_work);
}
static void rank_is_left_alone(struct cuda_rank *rank)
{
    struct cuda_run run;
    if (rank->me->rank == 0) return;
    rank_start_sum(rank, 100, 0, &run);
    REQUIRE(cuda_run_wait(&run) == TUTTI_PEER_LOST);
    /* The text names the operation, unless rank 0 leaves before the call of rank 1 has returned. */
    REQUIRE_TEXT("rank 0 of the group has ended or destroyed its group, and rank 1 waits for it in a");
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
/* Rank 0 destroys its communicator although rank 1 has not made its call. */
static void rank_destroys_what_waits(struct cuda_rank *rank)
{
    struct cuda_run run;
    if (rank->me->rank == 1) {
        while (tutti_comm_get_async_error(rank->me->comm) == TUTTI_OK) sleep_us(1000);
        REQUIRE(tutti_comm_get_async_error(rank->me->comm) == TUTTI_ABORTED);
        REQUIRE_TEXT("was destroyed while operations ran on its streams, by rank 0");
        return;
    }
    rank_start_sum(rank, 100, 0, &run);
    REQUIRE(tutti_comm_retain(rank->me->comm) == TUTTI_OK && tutti_comm_destroy(rank->me->comm) == TUTTI_OK);
    REQUIRE(tutti_test(&run.request) == TUTTI_ABORTED);
    cuda_rank_check_device(rank);
    cuda_run_free(&run);
}
static void test_operations_that_wait_for_ranks_that_left_fail(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_is_left_alone);
    assert_cuda_ranks(2, UNORDERED, rank_destroys_what_waits);
}

/* ---- several ---- */
/* Each communicator is destroyed before the next one is made, and two live at once. */
static void rank_uses_several(struct cuda_rank *rank)
{
    struct rank *me = rank->me;
    tutti_comm *whole = me->comm, *parts[2];
    struct cuda_run runs[3];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 2; i++) {
            REQUIRE(tutti_comm_split(whole, 0, me->rank, &parts[i]) == TUTTI_OK);
            REQUIRE(tutti_comm_open_cuda(parts[i], me->rank % 2) == TUTTI_OK);
        }
        for (int i = 0; i < 3; i++) {
            me->comm = i < 2 ? parts[i] : whole;
            rank_start_sum(rank, 5000, i % CUDA_STREAMS, &runs[i]);
        }
        for (int i = 0; i < 3; i++) {
            me->comm = whole;
            REQUIRE(cuda_run_wait(&runs[i]) == TUTTI_OK);
            cuda_run_check(rank, &runs[i]);
            cuda_run_free(&runs[i]);
        }
        for (int i = 0; i < 2; i++) REQUIRE(tutti_comm_destroy(parts[i]) == TUTTI_OK);
    }
}
static void test_several_communicators_run_beside_each_other(void **state)
{
    (void)state;
    assert_cuda_ranks(2, "TUTTI_CUDA_SLOT_BYTES=65536", rank_uses_several);
}
static void rank_is_a_thread(struct cuda_rank *rank)
{
    struct cuda_run runs[4];
    for (int i = 0; i < 4; i++) rank_start_sum(rank, 3000, i % CUDA_STREAMS, &runs[i]);
    for (int i = 0; i < 4; i++) {
        REQUIRE(cuda_run_wait(&runs[i]) == TUTTI_OK);
        cuda_run_check(rank, &runs[i]);
        cuda_run_free(&runs[i]);
    }
}
static void test_ranks_may_be_threads(void **state)
{
    (void)state;
    assert_cuda_threads(2, NULL, rank_is_a_thread);
    assert_cuda_threads(3, "FAKE_CUDA_DEVICES=3 FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=100", rank_is_a_thread);
}

/* The slots of rank 0 are freed while its program captures a stream in the strictest mode. */
static void rank_captures(struct cuda_rank *rank)
{
    tutti_comm *whole = rank->me->comm, *part;
    CUgraph graph;
    REQUIRE(tutti_comm_split(whole, 0, rank->me->rank, &part) == TUTTI_OK);
    REQUIRE(tutti_comm_open_cuda(part, rank->me->rank) == TUTTI_OK);
    if (rank->me->rank == 0) {
        REQUIRE(tutti_comm_destroy(part) == TUTTI_OK);
        REQUIRE(cuStreamBeginCapture_v2(rank->streams[0], CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
    }
    uint64_t freed = fake_cuda_count("cuMemFree");
    REQUIRE(tutti_barrier(whole, NULL) == TUTTI_OK);
    if (rank->me->rank == 1) {
        REQUIRE(tutti_comm_destroy(part) == TUTTI_OK);
        return;
    }
    while (fake_cuda_count("cuMemFree") == freed) sleep_us(1000);
    REQUIRE(cuStreamEndCapture(rank->streams[0], &graph) == CUDA_SUCCESS);
}
static void test_slots_are_freed_during_a_capture(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_captures);
}

/* The slots of one communicator are freed, which waits for the device, while a stream waits that only the timeout of an
   operation of another communicator ends. */
static void rank_frees_beside_a_wait(struct cuda_rank *rank)
{
    struct cuda_run run;
    tutti_comm *part;
    REQUIRE(tutti_comm_split(rank->me->comm, 0, rank->me->rank, &part) == TUTTI_OK);
    REQUIRE(tutti_comm_open_cuda(part, rank->me->rank) == TUTTI_OK);
    struct cuda_call call = cuda_call_sum(100, 0);
    cuda_run_prepare(rank, &call, &run);
    run.request.timeout_ms = 300;
    if (rank->me->rank == 0) {
        REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK);
        REQUIRE(tutti_comm_destroy(part) == TUTTI_OK);
        REQUIRE(cuda_run_wait(&run) == TUTTI_TIMEOUT);
    } else {
        REQUIRE(tutti_comm_destroy(part) == TUTTI_OK);
        while (tutti_comm_get_async_error(rank->me->comm) == TUTTI_OK) sleep_us(1000);
    }
    cuda_run_free(&run);
}
static void test_streams_are_polled_while_slots_are_freed(void **state)
{
    (void)state;
    assert_cuda_ranks(2, UNORDERED, rank_frees_beside_a_wait);
}

/* Returns true while this process has a thread of that name. */
static bool process_has_thread(const char *name)
{
    char path[300], found[32] = "";
    bool has = false;
    DIR *tasks = opendir("/proc/self/task");
    REQUIRE(tasks != NULL);
    for (struct dirent *task; !has && (task = readdir(tasks)) != NULL;) {
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *file = fopen(path, "r");
        if (!file) continue;
        has = fgets(found, sizeof found, file) && strncmp(found, name, strlen(name)) == 0;
        fclose(file);
    }
    closedir(tasks);
    return has;
}
static void rank_stops_its_thread(struct cuda_rank *rank)
{
    struct rank *me = rank->me;
    tutti_comm *whole = me->comm;
    for (int round = 0; round < 3; round++) {
        struct cuda_run run;
        REQUIRE(tutti_comm_split(whole, 0, me->rank, &me->comm) == TUTTI_OK);
        REQUIRE(tutti_comm_open_cuda(me->comm, me->rank) == TUTTI_OK);
        rank_start_sum(rank, 100, 0, &run);
        REQUIRE(process_has_thread("tutti-streams"));
        REQUIRE(cuda_run_wait(&run) == TUTTI_OK);
        REQUIRE(tutti_comm_destroy(me->comm) == TUTTI_OK);
        while (process_has_thread("tutti-streams")) sleep_us(1000);
        me->comm = whole;
        cuda_run_check(rank, &run);
        cuda_run_free(&run);
    }
}
static void test_the_thread_stops_when_no_communicator_needs_it(void **state)
{
    (void)state;
    assert_cuda_ranks_unopened(2, NULL, rank_stops_its_thread);
}

/* The stream of rank 0 waits for its program longer than the communicator lives. */
static void rank_has_a_stuck_stream(struct cuda_rank *rank)
{
    struct rank *me = rank->me;
    tutti_comm *whole = me->comm;
    struct cuda_run run;
    _Atomic uint32_t *word = NULL;
    REQUIRE(tutti_comm_split(whole, 0, me->rank, &me->comm) == TUTTI_OK);
    REQUIRE(tutti_comm_open_cuda(me->comm, me->rank) == TUTTI_OK);
    if (me->rank == 0) word = cuda_stream_block(rank->streams[0]);
    rank_start_sum(rank, 100, 0, &run);
    REQUIRE(tutti_barrier(whole, NULL) == TUTTI_OK);
    if (me->rank == 0) REQUIRE(tutti_comm_abort(me->comm) == TUTTI_OK);
    REQUIRE(cuda_run_wait(&run) == TUTTI_ABORTED);
    REQUIRE(tutti_comm_destroy(me->comm) == TUTTI_OK);
    if (word) *word = 1;
    cuda_rank_check_device(rank);
    while (process_has_thread("tutti-streams")) sleep_us(1000);
    me->comm = whole;
    cuda_run_free(&run);
}
static void test_slots_outlive_a_communicator_that_streams_use(void **state)
{
    (void)state;
    assert_cuda_ranks_unopened(2, UNORDERED, rank_has_a_stuck_stream);
}

/* ---- forks ---- */
#ifndef NO_PROCESSES
static void rank_forks(struct cuda_rank *rank)
{
    struct cuda_run run;
    rank_start_sum(rank, 3000, 0, &run);
    pid_t child = fork();
    int status;
    if (!child) {
        REQUIRE(cuda_run_start(rank, &run) == TUTTI_FORKED);
        REQUIRE(tutti_comm_open_cuda(rank->me->comm, 0) == TUTTI_FORKED);
        REQUIRE(tutti_wait(&run.request, 0) == TUTTI_FORKED);
        REQUIRE(tutti_comm_destroy(rank->me->comm) == TUTTI_OK);
        _exit(0);
    }
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    REQUIRE(cuda_run_wait(&run) == TUTTI_OK);
    cuda_run_check(rank, &run);
    cuda_run_free(&run);
}
static void test_a_child_does_not_use_its_parents_streams(void **state)
{
    (void)state;
    assert_cuda_ranks(2, NULL, rank_forks);
}
#endif

unit_function test_cuda_lifetimes;
int test_cuda_lifetimes(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_leave_in_any_order),
        cmocka_unit_test(test_operations_that_wait_for_ranks_that_left_fail),
        cmocka_unit_test(test_several_communicators_run_beside_each_other),
        cmocka_unit_test(test_ranks_may_be_threads),
        cmocka_unit_test(test_slots_are_freed_during_a_capture),
        cmocka_unit_test(test_streams_are_polled_while_slots_are_freed),
        cmocka_unit_test(test_slots_outlive_a_communicator_that_streams_use),
        cmocka_unit_test(test_the_thread_stops_when_no_communicator_needs_it),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_child_does_not_use_its_parents_streams),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
