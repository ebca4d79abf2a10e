/* Errors of windows: refused calls, ranks that disagree, a wait without a signal, peers that leave or die, a group that
   is aborted during puts, and a peer that sends invalid headers. */
#include "backend/engine/comm.h"
#include "include/tutti_window.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <signal.h>

#define OK(call) REQUIRE((call) == TUTTI_OK)
#define REQUIRE_ERROR(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
enum { COUNT = 1 << 20 };
static int32_t *shared_allocate(size_t count)
{
    void *at;
    OK(tutti_mem_alloc(&at, 4 * count));
    memset(at, 0, 4 * count);
    return at;
}
static tutti_window *window_open(tutti_comm *comm, int32_t *at, size_t count)
{
    tutti_window *window = NULL;
    OK(tutti_window_register(at, count, TUTTI_INT32, comm, &window));
    return window;
}

/* ---- refused calls, which leave everything as it was ---- */
static void call_wrongly(struct rank *me)
{
    int32_t *at = shared_allocate(10), from[20] = { 0 };
    tutti_window *w = NULL, *other = NULL;
    tutti_request request = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_window_register(at, 10, TUTTI_INT32, me->comm, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_window_register(NULL, 10, TUTTI_INT32, me->comm, &w) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("the window buffer is NULL");
    REQUIRE(tutti_window_register(at, 10, (tutti_dtype)99, me->comm, &w) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_window_register(at, 10, TUTTI_INT32, NULL, &w) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_window_signal(NULL, 0, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("the window is NULL");
    w = window_open(me->comm, at, 10);
    REQUIRE(tutti_window_put(w, from, 3, TUTTI_FLOAT32, 0, 0, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("a put of float32 elements into a window of int32 elements");
    REQUIRE(tutti_window_put(w, from, 3, TUTTI_INT32, 0, 8, &request) == TUTTI_INVALID_ARGUMENT && request.refused);
    REQUIRE_ERROR("a put of 3 elements at element 8 passes the end of the window, which has 10");
    REQUIRE(tutti_window_put(w, from, 1, TUTTI_INT32, 0, SIZE_MAX, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_window_put(w, from, SIZE_MAX / 8, TUTTI_INT32, 0, 1, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_window_put(w, NULL, 1, TUTTI_INT32, 0, 0, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("the put buffer is NULL");
    REQUIRE(tutti_window_put(w, from, 1, TUTTI_INT32, me->size, 0, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("is not a rank of");
    REQUIRE(tutti_window_signal(w, -1, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("peer -1 is not a rank of");
    REQUIRE(tutti_window_wait_signal(w, 1000, NULL) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal());
    REQUIRE(tutti_window_map(w, 0, NULL) == TUTTI_INVALID_ARGUMENT);
    request.algorithm = "ring";
    REQUIRE(tutti_window_signal(w, 0, &request) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("cannot choose an algorithm");
    OK(tutti_window_put(w, from, 10, TUTTI_INT32, (me->rank + 1) % me->size, 0, NULL));
    /* Rank 1 registers another size, then another type. */
    size_t count = me->rank == 1 ? 9 : 10;
    REQUIRE(tutti_window_register(at, count, TUTTI_INT32, me->comm, &other) == TUTTI_MISMATCH && !other);
    REQUIRE_ERROR("rank 0 registers 40 bytes and rank 1 36; all ranks must register the same size");
    REQUIRE(tutti_last_error_is_refusal());
    tutti_dtype type = me->rank == 1 ? TUTTI_FLOAT32 : TUTTI_INT32;
    REQUIRE(tutti_window_register(at, 10, type, me->comm, &other) == TUTTI_MISMATCH && !other);
    REQUIRE_ERROR("rank 0 registers int32 elements and rank 1 float32; all ranks must register the same type");
    OK(tutti_window_deregister(w));
    REQUIRE(tutti_window_deregister(w) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("uses a window that was deregistered");
    REQUIRE(tutti_window_put(w, from, 1, TUTTI_INT32, 0, 0, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE_ERROR("uses a window that was deregistered; register it again");
    OK(tutti_window_free(w));
    OK(tutti_barrier(me->comm, NULL));
    OK(tutti_mem_free(at));
}
static void test_refused_calls_leave_the_window_as_it_was(void **state)
{
    (void)state;
    world_threads(3, NULL, call_wrongly, NULL);
    world_threads_on("2", 3, NULL, call_wrongly, NULL);
}
/* The same memory becomes a window repeatedly. */
static void register_repeatedly(struct rank *me)
{
    int32_t *at = shared_allocate(10);
    tutti_window *w = NULL;
    for (int n = 1; n <= 6; n++) {
        world_meet(me);
        OK(tutti_barrier(me->comm, NULL));
        w = window_open(me->comm, at, 10);
        OK(tutti_window_deregister(w));
        OK(tutti_window_free(w));
    }
    OK(tutti_mem_free(at));
}
static void test_memory_becomes_a_window_repeatedly(void **state)
{
    (void)state;
    world_threads(2, NULL, register_repeatedly, NULL);
}

/* ---- waits that cannot end ---- */
static void waits_too_long(struct rank *me)
{
    int32_t *at = shared_allocate(10);
    tutti_comm *comm;
    OK(tutti_comm_split(me->comm, 0, me->rank, &comm));
    tutti_window *w = window_open(comm, at, 10);
    tutti_request request = { .struct_size = sizeof request, .timeout_ms = 100, .blocking = true };
    if (me->rank == 0) {
        REQUIRE(tutti_window_wait_signal(w, 1, &request) == TUTTI_TIMEOUT);
        REQUIRE_ERROR(
            "reached the timeout of 100 ms in a wait for a signal of rank 1: it sent no signal that this rank has not");
    }
    world_meet(me);
    REQUIRE(tutti_window_deregister(w) == TUTTI_TIMEOUT || me->size > 2);
    at[0] = 5;
    OK(tutti_window_free(w));
    OK(tutti_mem_free(at));
    OK(tutti_comm_destroy(comm));
}
static void test_wait_without_a_signal_times_out(void **state)
{
    (void)state;
    world_threads(2, NULL, waits_too_long, NULL);
    world_threads_on("2", 2, NULL, waits_too_long, NULL);
}
static void peer_leaves(struct rank *me)
{
    int32_t *at = shared_allocate(10), *own = malloc(40);
    tutti_comm *comm;
    OK(tutti_comm_split(me->comm, 0, me->rank, &comm));
    tutti_window *w = window_open(comm, at, 10);
    if (me->rank == 1) {
        OK(tutti_window_signal(w, 0, NULL));
        OK(tutti_comm_destroy(comm));
    } else {
        OK(tutti_window_wait_signal(w, 1, NULL));
        REQUIRE(tutti_window_wait_signal(w, 1, NULL) == TUTTI_PEER_LOST);
        REQUIRE_ERROR("rank 1 of ");
        REQUIRE_ERROR("has ended or destroyed its group, and rank 0 is still in a wait for a signal of rank 1");
    }
    REQUIRE(tutti_window_signal(w, 0, NULL) != TUTTI_OK);
    if (me->rank == 0) OK(tutti_comm_destroy(comm));
    REQUIRE(tutti_window_put(w, at, 1, TUTTI_INT32, 0, 0, NULL) != TUTTI_OK);
    OK(tutti_window_free(w));
    OK(tutti_mem_free(at));
    free(own);
}
static void test_wait_for_a_peer_that_leaves_fails(void **state)
{
    (void)state;
    world_threads(2, NULL, peer_leaves, NULL);
    world_threads_on("2", 2, NULL, peer_leaves, NULL);
}
/* Ranks destroy their communicators, and free their windows afterwards. */
static void leaves_with_a_window(struct rank *me)
{
    int32_t *at = shared_allocate(10);
    tutti_comm *comm;
    for (int round = 0; round < 20; round++) {
        OK(tutti_comm_split(me->comm, 0, me->rank, &comm));
        tutti_window *w = window_open(comm, at, 10);
        OK(tutti_barrier(comm, NULL));
        OK(tutti_comm_destroy(comm));
        OK(tutti_window_free(w));
    }
    OK(tutti_barrier(me->comm, NULL));
    OK(tutti_mem_free(at));
}
static void test_windows_are_freed_after_their_communicator(void **state)
{
    (void)state;
    world_threads(3, NULL, leaves_with_a_window, NULL);
    world_threads_on("2", 3, NULL, leaves_with_a_window, NULL);
}

/* ---- a failure: the window's memory belongs to the caller again ---- */
static void put_until_failure(tutti_comm *comm, tutti_window *w, const int32_t *from, bool blocking, int peer)
{
    tutti_request request = { .struct_size = sizeof request };
    request.blocking = blocking;
    tutti_status status = TUTTI_OK;
    while (status == TUTTI_OK) {
        status = tutti_window_put(w, from, COUNT, TUTTI_INT32, peer, 0, &request);
        if (status == TUTTI_OK && !blocking) status = tutti_wait(&request, 0);
    }
    /* A peer of this host that has freed its window first refuses the put. */
    REQUIRE(status == TUTTI_ABORTED || status == TUTTI_INVALID_ARGUMENT);
    while (tutti_comm_get_async_error(comm) == TUTTI_OK) sleep_us(100);
}
static void abort_in_the_middle(struct rank *me)
{
    bool shared = *(bool *)me->context;
    int32_t *at = shared ? shared_allocate(COUNT) : calloc(COUNT, 4), *from = malloc(COUNT * sizeof *from);
    tutti_comm *comm;
    unsigned seed = 3;
    memset(from, 1, COUNT * sizeof *from);
    for (int round = 0; round < 15; round++) {
        pthread_t thread;
        OK(tutti_comm_split(me->comm, 0, me->rank, &comm));
        struct aborter aborter = { comm, 100 + rand_r(&seed) % 4000 };
        tutti_window *w = window_open(comm, at, COUNT);
        if (me->rank == 0) REQUIRE(pthread_create(&thread, NULL, abort_main, &aborter) == 0);
        put_until_failure(comm, w, from, round % 2, (me->rank + 1) % me->size);
        if (round % 3) REQUIRE(tutti_window_deregister(w) == TUTTI_ABORTED);
        else OK(tutti_window_free(w));
        memset(at, 7, COUNT * sizeof *at);
        memset(from, 1, COUNT * sizeof *from);
        sleep_us(3000);
        for (int i = 0; i < COUNT; i++) REQUIRE(at[i] == 0x07070707);
        if (me->rank == 0) pthread_join(thread, NULL);
        if (round % 3) OK(tutti_window_free(w));
        OK(tutti_comm_destroy(comm));
    }
    OK(tutti_barrier(me->comm, NULL));
    if (shared) OK(tutti_mem_free(at));
    else free(at);
    free(from);
}
static void test_memory_is_not_written_after_an_abort(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        bool is_shared = shared;
        world_threads(3, NULL, abort_in_the_middle, &is_shared);
        world_threads_on("2", 3, NULL, abort_in_the_middle, &is_shared);
    }
}

/* ---- a peer that sends invalid headers ---- */
static void send_header(tutti_comm *comm, const tutti_window *w, struct window_header header)
{
    struct piece piece = { (unsigned char *)&header, sizeof header, sizeof header };
    struct transfer t = { .name = window_header_name((const struct tutti_window *)w),
        .peer = 1,
        .is_send = true,
        .pieces = &piece,
        .piece_count = 1 };
    driver_acquire_role(comm);
    router_post(comm->router, &t);
    while (t.state == TRANSFER_POSTED) router_poll(comm->router);
    driver_hand_over_role(comm);
}
static void send_invalid_headers(struct rank *me)
{
    static const struct window_header headers[] = { { HEADER_PUT, 36, 8, 0 }, { HEADER_PUT, UINT64_MAX, 8, 0 },
        { HEADER_PUT, 8, UINT64_MAX, 0 }, { HEADER_PUT, 0, 0, 0 }, { HEADER_SIGNAL, 1, 0, 0 }, { 0, 0, 4, 0 },
        { 77, 0, 4, 0 } };
    for (size_t k = 0; k < sizeof headers / sizeof *headers; k++) {
        int32_t at[30] = { 0 };
        tutti_comm *comm;
        OK(tutti_comm_split(me->comm, 0, me->rank, &comm));
        tutti_window *w = window_open(comm, at + 10, 10);
        if (me->rank == 0) send_header(comm, w, headers[k]);
        REQUIRE(tutti_window_wait_signal(w, 1 - me->rank, NULL) == TUTTI_MISMATCH);
        REQUIRE_ERROR("rank 0 sent rank 1 a put of");
        REQUIRE_ERROR("of a window of 40 bytes");
        OK(tutti_window_free(w));
        for (int i = 0; i < 30; i++) REQUIRE(!at[i]);
        OK(tutti_comm_destroy(comm));
    }
}
static void test_invalid_header_of_a_peer_is_a_mismatch(void **state)
{
    (void)state;
    world_threads(2, NULL, send_invalid_headers, NULL);
    world_threads_on("2", 2, NULL, send_invalid_headers, NULL);
}

#ifndef NO_PROCESSES
/* ---- deaths ---- */
static void peer_dies(struct rank *me)
{
    bool shared = *(bool *)me->context;
    int32_t *at = shared ? shared_allocate(COUNT) : calloc(COUNT, 4), *from = malloc(COUNT * sizeof *from);
    tutti_window *w = window_open(me->comm, at, COUNT);
    memset(from, 1, COUNT * sizeof *from);
    if (me->rank == 1) {
        OK(tutti_window_wait_signal(w, 0, NULL));
        raise(SIGKILL);
    }
    tutti_status status = tutti_window_signal(w, 1, NULL);
    REQUIRE(status == TUTTI_OK || me->rank);
    if (me->rank == 2) status = tutti_window_wait_signal(w, 1, NULL);
    /* Puts go on until the group has failed. */
    while (status == TUTTI_OK) status = tutti_window_put(w, from, COUNT, TUTTI_INT32, 1, 0, NULL);
    REQUIRE(status == TUTTI_PEER_LOST);
    REQUIRE_ERROR("rank 1");
    REQUIRE_ERROR("died");
    REQUIRE(tutti_window_deregister(w) == TUTTI_PEER_LOST);
    memset(at, 2, COUNT * sizeof *at);
    OK(tutti_window_free(w));
}
static void test_death_of_a_peer_fails_puts_and_waits(void **state)
{
    (void)state;
    for (int shared = 0; shared < 2; shared++) {
        bool is_shared = shared;
        assert_int_equal(world_processes(3, 60, peer_dies, &is_shared), 1);
        world_pretend("0,1,0");
        assert_int_equal(world_processes(3, 60, peer_dies, &is_shared), 1);
        world_pretend("");
    }
}
#endif

unit_function test_window_errors;
int test_window_errors(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_calls_leave_the_window_as_it_was),
        cmocka_unit_test(test_memory_becomes_a_window_repeatedly),
        cmocka_unit_test(test_wait_without_a_signal_times_out),
        cmocka_unit_test(test_wait_for_a_peer_that_leaves_fails),
        cmocka_unit_test(test_windows_are_freed_after_their_communicator),
        cmocka_unit_test(test_memory_is_not_written_after_an_abort),
        cmocka_unit_test(test_invalid_header_of_a_peer_is_a_mismatch),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_death_of_a_peer_fails_puts_and_waits),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
