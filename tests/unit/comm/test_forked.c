/* A forked child has copies of its parent's communicators, requests and queues. Every call with one of them fails with
   TUTTI_FORKED and touches no shared memory: the segments are not mapped in the child, so an access would end it by a
   signal. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sys/wait.h>

enum { COUNT = 1 << 18 };
/* Counts the mappings of segments, of the arena's blocks, and of blocks of peers. */
static int shared_mappings(void)
{
    int count = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps)) count += strstr(line, "memfd:tutti") != NULL;
    fclose(maps);
    return count;
}
static tutti_status put(void *context, const char *key, const void *value, size_t bytes)
{
    (void)context, (void)key, (void)value, (void)bytes;
    return TUTTI_SYSTEM;
}
static tutti_status get(void *context, const char *key, void *value, size_t capacity, size_t *bytes, int64_t timeout_ms)
{
    (void)context, (void)key, (void)value, (void)capacity, (void)bytes, (void)timeout_ms;
    return TUTTI_SYSTEM;
}
static void require_forked(tutti_status status, const char *call)
{
    bool right = status == TUTTI_FORKED && strstr(tutti_get_last_error(), "before a fork");
    if (!right) fprintf(stderr, "%s: status %d, %s\n", call, status, tutti_get_last_error());
    REQUIRE(right);
}
#define FORKED(call) require_forked((call), #call)

/* ---- what a child may call ---- */
static void call_collectives(tutti_comm *comm, tutti_request *request)
{
    static float a[64], b[64];
    static const size_t counts[2] = { 1, 1 }, offsets[2] = { 0, 1 };
    FORKED(tutti_all_reduce(a, b, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, request));
    FORKED(tutti_reduce(a, b, 4, TUTTI_FLOAT32, TUTTI_SUM, 0, comm, request));
    FORKED(tutti_broadcast(a, b, 4, TUTTI_FLOAT32, 0, comm, request));
    FORKED(tutti_all_gather(a, b, 4, TUTTI_FLOAT32, comm, request));
    FORKED(tutti_reduce_scatter(a, b, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, request));
    FORKED(tutti_all_to_all(a, b, 4, TUTTI_FLOAT32, comm, request));
    FORKED(tutti_all_to_all_v(a, counts, offsets, b, counts, offsets, TUTTI_FLOAT32, comm, request));
    FORKED(tutti_all_gather_v(a, b, counts, offsets, TUTTI_FLOAT32, comm, request));
    FORKED(tutti_reduce_scatter_v(a, counts, offsets, b, TUTTI_FLOAT32, TUTTI_SUM, comm, request));
    FORKED(tutti_gather(a, b, 4, TUTTI_FLOAT32, 0, comm, request));
    FORKED(tutti_scatter(a, b, 4, TUTTI_FLOAT32, 0, comm, request));
    FORKED(tutti_barrier(comm, request));
    FORKED(tutti_send(a, 4, TUTTI_FLOAT32, 1 - tutti_comm_user_rank(comm), 0, comm, request));
    FORKED(tutti_recv(b, 4, TUTTI_FLOAT32, 1 - tutti_comm_user_rank(comm), 0, comm, request));
    FORKED(tutti_recv(b, 4, TUTTI_FLOAT32, TUTTI_ANY_SOURCE, 0, comm, request));
}
static void call_all_of_a_communicator(tutti_comm *comm)
{
    tutti_request request = TUTTI_REQUEST_INIT, blocking = { .struct_size = sizeof blocking, .blocking = true };
    tutti_comm *part = NULL;
    call_collectives(comm, NULL);
    call_collectives(comm, &request);
    call_collectives(comm, &blocking);
    FORKED(tutti_comm_split(comm, 0, 0, &part));
    FORKED(tutti_comm_get_async_error(comm));
    FORKED(tutti_comm_set_timeout(comm, 1000));
    FORKED(tutti_comm_set_algorithm(comm, "allreduce", "ring"));
    FORKED(tutti_comm_abort(comm));
    FORKED(tutti_comm_retain(comm));
    /* In a child this call does nothing. */
    REQUIRE(tutti_comm_release(comm) == TUTTI_OK);
    REQUIRE(tutti_comm_count(comm) == 2 && tutti_comm_user_rank(comm) >= 0 && !part);
}
static void call_all_of_a_request(tutti_request *request)
{
    FORKED(tutti_test(request));
    FORKED(tutti_detach(request));
    FORKED(tutti_wait(request, 0));
    FORKED(tutti_wait(request, 10));
}
/* A thread of the parent may have held the queue's lock during the fork, so a call that took the lock would hang. */
static void call_all_of_a_queue(tutti_queue *queue)
{
    tutti_request *got;
    FORKED(tutti_queue_wait(queue, 0, &got));
    FORKED(tutti_queue_wait(queue, -1, &got));
    /* In a child tutti_queue_destroy does nothing. */
    REQUIRE(!got && tutti_queue_destroy(queue) == TUTTI_OK);
}
static void call_what_needs_no_communicator(void)
{
    char text[1 << 16];
    size_t bytes;
    void *memory = NULL;
    REQUIRE(tutti_mem_alloc(&memory, COUNT) == TUTTI_OK && tutti_mem_free(memory) == TUTTI_OK);
    REQUIRE(tutti_info(text, sizeof text, &bytes) == TUTTI_OK);
    REQUIRE(tutti_schedule_print("allreduce", "ring", 2, 0, text, sizeof text, &bytes) == TUTTI_OK);
}
static void make_its_own(tutti_queue *of_parent)
{
    tutti_comm *own = NULL;
    tutti_queue *queue;
    tutti_request request = { .struct_size = sizeof request, .queue = of_parent }, *got;
    float x = 1;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    tutti_config refused = { .struct_size = sizeof refused, .size = 2, .store = { NULL, put, get } };
    REQUIRE(tutti_comm_init(&own, &refused) == TUTTI_SYSTEM);
    REQUIRE(tutti_comm_init(&own, &config) == TUTTI_OK);
    REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, own, NULL) == TUTTI_OK && x == 1);
    FORKED(tutti_barrier(own, &request));
    REQUIRE(tutti_queue_create(&queue) == TUTTI_OK);
    request.queue = queue;
    REQUIRE(tutti_barrier(own, &request) == TUTTI_OK);
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && got == &request && tutti_test(got) == TUTTI_OK);
    REQUIRE(tutti_queue_destroy(queue) == TUTTI_OK && tutti_comm_destroy(own) == TUTTI_OK);
}

/* ---- the parent ---- */
/* The parent's objects. `part` is a part of `comm`, `over` a completed request, and `open` a receive that waits, in
   `queue`. `grouped`: the fork happens between tutti_group_start and tutti_group_end. */
struct inherited {
    tutti_comm *comm, *part;
    tutti_request *over, *open;
    tutti_queue *queue;
    float *shared;
    bool grouped;
};
static void child_main(struct inherited *f)
{
    alarm(600);
    /* This is the private view of the parent's block. */
    REQUIRE(shared_mappings() == 1);
    if (f->grouped) FORKED(tutti_group_end());
    call_all_of_a_communicator(f->comm);
    call_all_of_a_communicator(f->part);
    call_all_of_a_request(f->over);
    call_all_of_a_request(f->open);
    call_all_of_a_queue(f->queue);
    REQUIRE(f->shared[0] == 2 && f->shared[COUNT - 1] == 2 && tutti_mem_free(f->shared) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(f->part) == TUTTI_OK && tutti_comm_destroy(f->comm) == TUTTI_OK);
    call_what_needs_no_communicator();
    make_its_own(f->queue);
    /* exit also runs the functions that run at exit. The address sanitizer's would look for leaks and for threads of
       the parent. */
#if !defined(__SANITIZE_ADDRESS__)
    exit(0);
#endif
    _exit(0);
}
/* Forks while all kinds of shared memory are mapped: two segments, a block of this rank and one of its peer. */
static void fork_child(struct rank *me)
{
    tutti_request over = TUTTI_REQUEST_INIT, open = TUTTI_REQUEST_INIT, *got;
    float data[4] = { 0 };
    struct inherited f = { .comm = me->comm, .over = &over, .open = &open, .grouped = me->rank == 0 };
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &f.part) == TUTTI_OK);
    REQUIRE(tutti_mem_alloc((void **)&f.shared, COUNT * sizeof *f.shared) == TUTTI_OK);
    for (int i = 0; i < COUNT; i++) f.shared[i] = 1;
    REQUIRE(tutti_all_reduce(f.shared, f.shared, COUNT, TUTTI_FLOAT32, TUTTI_SUM, f.comm, &over) == TUTTI_OK);
    REQUIRE(tutti_wait(&over, 0) == TUTTI_OK);
    REQUIRE(shared_mappings() == 4);
    REQUIRE(tutti_queue_create(&f.queue) == TUTTI_OK);
    open.queue = f.queue;
    REQUIRE(tutti_recv(data, 4, TUTTI_FLOAT32, 1 - me->rank, 7, f.comm, &open) == TUTTI_OK);
    if (f.grouped) {
        tutti_group_start();
        REQUIRE(tutti_send(data, 4, TUTTI_FLOAT32, 1, 8, f.part, NULL) == TUTTI_OK);
    }
    pid_t child = fork();
    if (child == 0) child_main(&f);
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    if (!f.grouped) REQUIRE(tutti_recv(data, 4, TUTTI_FLOAT32, 0, 8, f.part, NULL) == TUTTI_OK);
    else REQUIRE(tutti_group_end() == TUTTI_OK);
    REQUIRE(tutti_send(data, 4, TUTTI_FLOAT32, 1 - me->rank, 7, f.comm, NULL) == TUTTI_OK);
    /* The child's calls have changed nothing for the parent. */
    REQUIRE(tutti_queue_wait(f.queue, -1, &got) == TUTTI_OK && got == &open);
    REQUIRE(tutti_wait(&open, 0) == TUTTI_OK && tutti_queue_destroy(f.queue) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(f.part) == TUTTI_OK && tutti_mem_free(f.shared) == TUTTI_OK);
}
static void test_calls_of_a_child_on_its_parents_objects_fail(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, fork_child, NULL), 0);
}
unit_function test_forked;
int test_forked(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls_of_a_child_on_its_parents_objects_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
