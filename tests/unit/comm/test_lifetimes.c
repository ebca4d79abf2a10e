/* Communicators fail, are destroyed, split or inherited by a forked child while operations are under way. Requests then
   end with an error, and no thread touches memory of a destroyed group. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)

/* The progress thread ends an operation with an error. The group is destroyed at once, and the thread must not touch
   its memory. */
static void destroy_after_an_error(struct rank *me)
{
    for (int round = 0; round < 10; round++) {
        tutti_comm *comm;
        int32_t data = 1;
        tutti_request r = { .struct_size = sizeof r, .timeout_ms = 20 };
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        if (me->rank == 0) {
            REQUIRE(tutti_all_reduce(&data, &data, 1, TUTTI_INT32, TUTTI_SUM, comm, &r) == TUTTI_OK);
            while (tutti_test(&r) == TUTTI_IN_PROGRESS) usleep(200);
            REQUIRE(tutti_test(&r) == TUTTI_TIMEOUT);
        } else
            while (tutti_comm_get_async_error(comm) == TUTTI_OK) usleep(200);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
        /* The progress thread may still be about to sleep. */
        usleep(2000);
    }
}
static void test_destroyed_group_is_not_touched_after_an_error(void **state)
{
    (void)state;
    world_threads(2, NULL, destroy_after_an_error, NULL);
}
/* One rank aborts a group as soon as it has joined. All other ranks join it, and only their operations fail. */
static void join_and_abort(struct rank *me)
{
    int rounds = me->context ? *(const int *)me->context : 1000;
    for (int round = 0; round < rounds; round++) {
        tutti_comm *comm;
        REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
        if (me->rank == round % me->size) REQUIRE(tutti_comm_abort(comm) == TUTTI_OK);
        REQUIRE(tutti_barrier(comm, NULL) == TUTTI_ABORTED);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    }
}
static void test_abort_right_after_joining_fails_only_operations_on_threads(void **state)
{
    (void)state;
    world_threads(3, NULL, join_and_abort, NULL);
    world_threads_on("0,0,1", 3, NULL, join_and_abort, &(int){ 200 });
}
static void test_request_outlives_its_communicator(void **state)
{
    (void)state;
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    float never;
    tutti_request r = TUTTI_REQUEST_INIT;
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_OK);
    assert_int_equal(tutti_recv(&never, 1, TUTTI_FLOAT32, 0, 0, comm, &r), TUTTI_OK);
    assert_int_equal(tutti_comm_destroy(comm), TUTTI_OK);
    assert_int_equal(tutti_test(&r), TUTTI_ABORTED);
    assert_int_equal(tutti_wait(&r, 100), TUTTI_ABORTED);
    assert_non_null(strstr(tutti_get_last_error(), "destroyed while operations ran"));
}
static void count(tutti_request *request, void *context)
{
    (void)request;
    atomic_fetch_add((atomic_int *)context, 1);
}
static void test_refused_call_does_not_start_its_request(void **state)
{
    (void)state;
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    float data = 1;
    atomic_int calls = 0;
    tutti_request r = { .struct_size = sizeof r, .algorithm = "nothing of the kind", .done = count, .context = &calls };
    assert_int_equal(tutti_comm_init(&comm, &config), TUTTI_OK);
    assert_int_equal(tutti_all_reduce(&data, &data, 1, TUTTI_FLOAT32, TUTTI_SUM, comm, &r), TUTTI_INVALID_ARGUMENT);
    /* No call has started the request. */
    assert_int_equal(tutti_test(&r), TUTTI_INVALID_ARGUMENT);
    assert_int_equal(atomic_load(&calls), 0);
    assert_int_equal(tutti_comm_destroy(comm), TUTTI_OK);
}
static void splits_inside_a_group(struct rank *me)
{
    tutti_comm *comm;
    int32_t sum = 1;
    REQUIRE(tutti_group_start() == TUTTI_OK);
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    REQUIRE(tutti_group_end() == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&sum, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, NULL) == TUTTI_OK);
    REQUIRE(sum == me->size);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_split_works_inside_a_group_of_calls(void **state)
{
    (void)state;
    world_threads(3, NULL, splits_inside_a_group, NULL);
}
static int split_key_of(int rank) { return rank * 5 % 4 - 2; }
/* The even and the odd ranks each form a group, in which some ranks have the same key. */
static void split_by_keys(struct rank *me)
{
    enum { PART = 5 };
    tutti_comm *comm;
    int32_t order[PART] = { 0 }, own = me->rank;
    REQUIRE(tutti_comm_split(me->comm, me->rank % 2, split_key_of(me->rank), &comm) == TUTTI_OK);
    REQUIRE(tutti_all_gather(&own, order, 1, TUTTI_INT32, comm, NULL) == TUTTI_OK);
    for (int i = 0; i < PART; i++) REQUIRE(order[i] % 2 == me->rank % 2);
    for (int i = 1; i < PART; i++) {
        int before = split_key_of(order[i - 1]), key = split_key_of(order[i]);
        REQUIRE(before < key || (before == key && order[i - 1] < order[i]));
    }
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_split_orders_ranks_by_key_and_rank(void **state)
{
    (void)state;
    world_threads(10, NULL, split_by_keys, NULL);
}
/* An operation with a blocking request is complete when its call returns, also inside a group. */
static void blocks_inside_a_group(struct rank *me)
{
    enum { COUNT = 300000 };
    int32_t *data = malloc(COUNT * sizeof *data);
    for (int i = 0; i < COUNT; i++) data[i] = 1;
    tutti_request r = { .struct_size = sizeof r, .blocking = true };
    REQUIRE(tutti_group_start() == TUTTI_OK);
    REQUIRE(tutti_all_reduce(data, data, COUNT, TUTTI_INT32, TUTTI_SUM, me->comm, &r) == TUTTI_OK);
    for (int i = 0; i < COUNT; i++) REQUIRE(data[i] == me->size);
    REQUIRE(tutti_group_end() == TUTTI_OK);
    free(data);
}
static void test_blocking_request_completes_inside_a_group_of_calls(void **state)
{
    (void)state;
    world_threads(2, NULL, blocks_inside_a_group, NULL);
}
/* Rank 0 reads the error and sets an algorithm while another of its threads waits in a barrier. */
static void *block_in_barrier(void *comm)
{
    REQUIRE(tutti_barrier(comm, NULL) == TUTTI_OK);
    return NULL;
}
static void query_during_a_barrier(struct rank *me)
{
    pthread_t thread;
    if (me->rank == 0) {
        pthread_create(&thread, NULL, block_in_barrier, me->comm);
        usleep(20000);
        REQUIRE(tutti_comm_get_async_error(me->comm) == TUTTI_OK);
        REQUIRE(tutti_comm_set_algorithm(me->comm, "allreduce", "ring") == TUTTI_OK);
        int32_t go = 1;
        /* Rank 1 begins the barrier only after it has received this message. */
        REQUIRE(tutti_send(&go, 1, TUTTI_INT32, 1, 1, me->comm, NULL) == TUTTI_OK);
        pthread_join(thread, NULL);
        return;
    }
    int32_t go = 0;
    REQUIRE(tutti_recv(&go, 1, TUTTI_INT32, 0, 1, me->comm, NULL) == TUTTI_OK);
    REQUIRE(go == 1 && tutti_barrier(me->comm, NULL) == TUTTI_OK);
}
static void test_queries_do_not_wait_for_a_thread_in_a_barrier(void **state)
{
    (void)state;
    world_threads(2, NULL, query_during_a_barrier, NULL);
}
#ifndef NO_PROCESSES
static void test_abort_right_after_joining_fails_only_operations_on_processes(void **state)
{
    (void)state;
    assert_int_equal(world_processes(4, 60, join_and_abort, NULL), 0);
}
static void forks_with_an_open_request(struct rank *me)
{
    enum { COUNT = 1 << 18 };
    int32_t *data = malloc(COUNT * sizeof *data);
    tutti_request r = TUTTI_REQUEST_INIT;
    for (int i = 0; i < COUNT; i++) data[i] = me->rank + 1;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    /* Rank 0 forks while its operation waits for rank 1. */
    if (me->rank == 1) usleep(100000);
    REQUIRE(tutti_all_reduce(data, data, COUNT, TUTTI_INT32, TUTTI_SUM, me->comm, &r) == TUTTI_OK);
    if (me->rank == 0) {
        pid_t child = fork();
        if (child == 0) {
            bool right = tutti_wait(&r, 0) == TUTTI_FORKED && tutti_test(&r) == TUTTI_FORKED;
            _exit(right && strstr(tutti_get_last_error(), "before a fork") ? 0 : 1);
        }
        int status;
        REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    REQUIRE(tutti_wait(&r, 0) == TUTTI_OK);
    for (int i = 0; i < COUNT; i++) REQUIRE(data[i] == 3);
    free(data);
}
static void test_child_cannot_wait_for_a_request_of_its_parent(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 30, forks_with_an_open_request, NULL), 0);
}
/* The ranks have different settings. A process reads its settings when it first needs them. */
static int join_with_slots(int rank, tutti_unique_id id)
{
    tutti_comm *comm;
    int32_t data = 1;
    alarm(600);
    setenv("TUTTI_SLOTS", rank ? "2" : "3", 1);
    REQUIRE(tutti_comm_init_rank(&comm, 2, id, rank) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&data, &data, 1, TUTTI_INT32, TUTTI_SUM, comm, NULL) == TUTTI_MISMATCH);
    REQUIRE_ERROR("2 slots");
    REQUIRE_ERROR("3 slots");
    return 0;
}
static void test_settings_that_differ_are_a_mismatch(void **state)
{
    (void)state;
    tutti_unique_id id;
    assert_int_equal(tutti_get_unique_id(&id), TUTTI_OK);
    for (int rank = 0; rank < 2; rank++)
        if (fork() == 0) _exit(join_with_slots(rank, id));
    for (int r = 0, status; r < 2; r++) assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#endif
unit_function test_lifetimes;
int test_lifetimes(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        /* This test is first, because its processes must not inherit settings that were already read. */
        cmocka_unit_test(test_settings_that_differ_are_a_mismatch),
        cmocka_unit_test(test_child_cannot_wait_for_a_request_of_its_parent),
        cmocka_unit_test(test_abort_right_after_joining_fails_only_operations_on_processes),
#endif
        cmocka_unit_test(test_destroyed_group_is_not_touched_after_an_error),
        cmocka_unit_test(test_abort_right_after_joining_fails_only_operations_on_threads),
        cmocka_unit_test(test_request_outlives_its_communicator),
        cmocka_unit_test(test_refused_call_does_not_start_its_request),
        cmocka_unit_test(test_split_works_inside_a_group_of_calls),
        cmocka_unit_test(test_split_orders_ranks_by_key_and_rank),
        cmocka_unit_test(test_blocking_request_completes_inside_a_group_of_calls),
        cmocka_unit_test(test_queries_do_not_wait_for_a_thread_in_a_barrier),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
