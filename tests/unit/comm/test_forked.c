/* A child of fork and the communicators and requests of its parent: whatever it calls, it is told, and touches nothing
   of theirs. The segments are not mapped there, so what touched one would end the child with a signal. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sys/wait.h>

enum { COUNT = 1 << 18 };
static int shared_mappings(void)                        /* segments, blocks of the arena, and those of peers */
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
static void is_told(tutti_status status, const char *call)
{
    bool right = status == TUTTI_FORKED && strstr(tutti_get_last_error(), "before a fork");
    if (!right) fprintf(stderr, "%s: status %d, %s\n", call, status, tutti_get_last_error());
    REQUIRE(right);
}
#define TOLD(call) is_told((call), #call)

/* ---- what a child may call ---- */
static void call_collectives(tutti_comm *comm, tutti_request *request)
{
    static float a[64], b[64];
    static const size_t counts[2] = { 1, 1 }, offsets[2] = { 0, 1 };
    TOLD(tutti_all_reduce(a, b, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, request));
    TOLD(tutti_reduce(a, b, 4, TUTTI_FLOAT32, TUTTI_SUM, 0, comm, request));
    TOLD(tutti_broadcast(a, b, 4, TUTTI_FLOAT32, 0, comm, request));
    TOLD(tutti_all_gather(a, b, 4, TUTTI_FLOAT32, comm, request));
    TOLD(tutti_reduce_scatter(a, b, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, request));
    TOLD(tutti_all_to_all(a, b, 4, TUTTI_FLOAT32, comm, request));
    TOLD(tutti_all_to_all_v(a, counts, offsets, b, counts, offsets, TUTTI_FLOAT32, comm, request));
    TOLD(tutti_all_gather_v(a, b, counts, offsets, TUTTI_FLOAT32, comm, request));
    TOLD(tutti_reduce_scatter_v(a, counts, offsets, b, TUTTI_FLOAT32, TUTTI_SUM, comm, request));
    TOLD(tutti_gather(a, b, 4, TUTTI_FLOAT32, 0, comm, request));
    TOLD(tutti_scatter(a, b, 4, TUTTI_FLOAT32, 0, comm, request));
    TOLD(tutti_barrier(comm, request));
    TOLD(tutti_send(a, 4, TUTTI_FLOAT32, 1 - tutti_comm_user_rank(comm), 0, comm, request));
    TOLD(tutti_recv(b, 4, TUTTI_FLOAT32, 1 - tutti_comm_user_rank(comm), 0, comm, request));
    TOLD(tutti_recv(b, 4, TUTTI_FLOAT32, TUTTI_ANY_SOURCE, 0, comm, request));
}
static void call_all_of_a_communicator(tutti_comm *comm)
{
    tutti_request request = TUTTI_REQUEST_INIT, blocking = { .struct_size = sizeof blocking, .blocking = true };
    tutti_comm *part = NULL;
    call_collectives(comm, NULL);
    call_collectives(comm, &request);
    call_collectives(comm, &blocking);
    TOLD(tutti_comm_split(comm, 0, 0, &part));
    TOLD(tutti_comm_get_async_error(comm));
    TOLD(tutti_comm_set_timeout(comm, 1000));
    TOLD(tutti_comm_set_algorithm(comm, "allreduce", "ring"));
    TOLD(tutti_comm_abort(comm));
    TOLD(tutti_comm_retain(comm));
    REQUIRE(tutti_comm_release(comm) == TUTTI_OK);      /* which does nothing here */
    REQUIRE(tutti_comm_count(comm) == 2 && tutti_comm_user_rank(comm) >= 0 && !part);
}
static void call_all_of_a_request(tutti_request *request)
{
    TOLD(tutti_test(request));
    TOLD(tutti_detach(request));
    TOLD(tutti_wait(request, 0));
    TOLD(tutti_wait(request, 10));
}
static void call_all_of_a_queue(tutti_queue *queue)     /* its lock may be held by a thread that is not here */
{
    tutti_request *got;
    TOLD(tutti_queue_wait(queue, 0, &got));
    TOLD(tutti_queue_wait(queue, -1, &got));
    REQUIRE(!got && tutti_queue_destroy(queue) == TUTTI_OK);           /* which does nothing here */
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
    TOLD(tutti_barrier(own, &request));
    REQUIRE(tutti_queue_create(&queue) == TUTTI_OK);
    request.queue = queue;
    REQUIRE(tutti_barrier(own, &request) == TUTTI_OK);
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && got == &request && tutti_test(got) == TUTTI_OK);
    REQUIRE(tutti_queue_destroy(queue) == TUTTI_OK && tutti_comm_destroy(own) == TUTTI_OK);
}

/* ---- the parent ---- */
struct collective {
    tutti_comm *comm, *part;
    tutti_request *over, *open;
    tutti_queue *queue;
    float *shared;
    bool grouped;
};
static void child_main(struct collective *f)
{
    alarm(600);
    REQUIRE(shared_mappings() == 1);                    /* a private view of its parent's block */
    if (f->grouped) TOLD(tutti_group_end());
    call_all_of_a_communicator(f->comm);
    call_all_of_a_communicator(f->part);
    call_all_of_a_request(f->over);
    call_all_of_a_request(f->open);
    call_all_of_a_queue(f->queue);
    REQUIRE(f->shared[0] == 2 && f->shared[COUNT - 1] == 2 && tutti_mem_free(f->shared) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(f->part) == TUTTI_OK && tutti_comm_destroy(f->comm) == TUTTI_OK);
    call_what_needs_no_communicator();
    make_its_own(f->queue);
#if !defined(__SANITIZE_ADDRESS__)                      /* it would look for leaks, and threads of the parent's */
    exit(0);                                            /* not _exit: what runs at the end runs, too */
#endif
    _exit(0);
}
/* With everything mapped that can be: two segments, a block of this rank's and one of its peer's. */
static void forks(struct rank *me)
{
    tutti_request over = TUTTI_REQUEST_INIT, open = TUTTI_REQUEST_INIT, *got;
    float data[4] = { 0 };
    struct collective f = { .comm = me->comm, .over = &over, .open = &open, .grouped = me->rank == 0 };
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
    REQUIRE(tutti_queue_wait(f.queue, -1, &got) == TUTTI_OK && got == &open);  /* the parent has noticed nothing */
    REQUIRE(tutti_wait(&open, 0) == TUTTI_OK && tutti_queue_destroy(f.queue) == TUTTI_OK);
    REQUIRE(tutti_comm_destroy(f.part) == TUTTI_OK && tutti_mem_free(f.shared) == TUTTI_OK);
}
static void test_a_child_is_told_whatever_it_calls(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, 60, forks, NULL), 0);
}
unit_function test_forked;
int test_forked(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_is_told_whatever_it_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
