/* Puts of every size, direct or by message, arrive before later signals, also if the target makes no call, and if
   several windows are in use. */
#include "backend/engine/driver.h"
#include "include/tutti_window.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <limits.h>
#include <sched.h>
#include <stdatomic.h>

#define OK(call) REQUIRE((call) == TUTTI_OK)
/* The memory of a window. Other ranks write shared memory directly, and private memory by messages. */
enum memory_kind { SHARED_MEMORY, PRIVATE_MEMORY };
struct window { tutti_window *handle; int32_t *at; enum memory_kind kind; };

static struct window window_open(const struct rank *me, size_t count)
{
    struct window w = { .kind = me->context ? *(enum memory_kind *)me->context : SHARED_MEMORY };
    if (w.kind == PRIVATE_MEMORY) w.at = malloc(4 * count + 4);
    else OK(tutti_mem_alloc((void **)&w.at, 4 * count + 4));
    memset(w.at, 0, 4 * count + 4);
    OK(tutti_window_register(w.at, count, TUTTI_INT32, me->comm, &w.handle));
    return w;
}
static void window_close(struct window *w)
{
    OK(tutti_window_deregister(w->handle));
    OK(tutti_window_free(w->handle));
    if (w->kind == PRIVATE_MEMORY) free(w->at);
    else OK(tutti_mem_free(w->at));
}
static tutti_status window_put_integers(const struct window *w, const int32_t *from, size_t count, int peer,
    size_t offset)
{
    return tutti_window_put(w->handle, from, count, TUTTI_INT32, peer, offset, NULL);
}

/* ---- sizes ---- */
static void ring_of_every_size(struct rank *me)
{
    static const size_t sizes[] = { 0, 1, 12, 16, 1024, 16384, 16385, 70000, (5 << 20) / 4, (9 << 20) / 4 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        struct window w = window_open(me, n + 3);
        int32_t *from = malloc(4 * n + 4);
        for (size_t i = 0; i < n; i++) from[i] = (int32_t)(i * 3 + (size_t)me->rank);
        OK(window_put_integers(&w, from, n, rank_next(me), 2));
        OK(tutti_window_signal(w.handle, rank_next(me), NULL));
        OK(tutti_window_wait_signal(w.handle, rank_previous(me), NULL));
        for (size_t i = 0; i < n; i++) REQUIRE(w.at[i + 2] == (int32_t)(i * 3 + (size_t)rank_previous(me)));
        REQUIRE(!w.at[0] && !w.at[1] && !w.at[n + 2] && !w.at[n + 3]);
        window_close(&w);
        free(from);
    }
}
/* ---- order ---- */
enum { ROUNDS = 60, BLOCK = 3000 };
/* When a wait has taken a signal, the puts before that signal have arrived. Each wait takes one signal. */
static void puts_before_signals(struct rank *me)
{
    size_t row = ROUNDS * BLOCK, count = 0;
    struct window w = window_open(me, (size_t)me->size * row);
    tutti_request *requests = world_requests(2 * ROUNDS * (size_t)me->size);
    int32_t *from = malloc(row * sizeof *from);
    for (size_t i = 0; i < row; i++) from[i] = (int32_t)(i / BLOCK) + me->rank + 1;
    for (size_t at = 0; at < row; at += BLOCK)
        for (int peer = 0; peer < me->size; peer++) {
            OK(tutti_window_put(w.handle, from + at, BLOCK, TUTTI_INT32, peer, (size_t)me->rank * row + at,
                &requests[count++]));
            OK(tutti_window_signal(w.handle, peer, &requests[count++]));
        }
    for (size_t at = 0; at < row; at += BLOCK)
        for (int peer = 0; peer < me->size; peer++) {
            OK(tutti_window_wait_signal(w.handle, peer, NULL));
            for (size_t i = at; i < at + BLOCK; i++)
                REQUIRE(w.at[(size_t)peer * row + i] == (int32_t)(at / BLOCK) + peer + 1);
        }
    for (size_t i = 0; i < count; i++) OK(tutti_wait(&requests[i], 0));
    window_close(&w);
    free(requests);
    free(from);
}
/* All puts have arrived when a window is deregistered, also without a signal. */
static void deregistering_waits_for_puts(struct rank *me)
{
    for (int round = 1; round <= 20; round++) {
        struct window w = window_open(me, (size_t)me->size * BLOCK);
        int32_t *from = malloc(BLOCK * sizeof *from);
        tutti_request *requests = world_requests((size_t)me->size);
        for (int i = 0; i < BLOCK; i++) from[i] = round;
        for (int peer = 0; peer < me->size; peer++)
            OK(tutti_window_put(w.handle, from, BLOCK, TUTTI_INT32, peer, (size_t)me->rank * BLOCK, &requests[peer]));
        OK(tutti_window_deregister(w.handle));
        for (int i = 0; i < me->size * BLOCK; i++) REQUIRE(w.at[i] == round);
        for (int peer = 0; peer < me->size; peer++) OK(tutti_test(&requests[peer]));
        OK(tutti_window_free(w.handle));
        if (w.kind == PRIVATE_MEMORY) free(w.at);
        else OK(tutti_mem_free(w.at));
        free(requests);
        free(from);
    }
}
#ifndef NO_PROCESSES
/* ---- a target that makes no call ---- */
/* It reads its memory without a signal, which the thread sanitizer would report. */
static void target_only_computes(struct rank *me)
{
    enum { PUTS = 50, LARGE = 300000 };
    struct window w = window_open(me, LARGE);
    _Atomic int32_t *last = (_Atomic int32_t *)&w.at[LARGE - 1];
    int32_t *from = malloc(LARGE * sizeof *from);
    if (me->rank == 0)
        for (int peer = 1; peer < me->size; peer++)
            for (int n = 1; n <= PUTS; n++) {
                for (int i = 0; i < LARGE; i++) from[i] = n;
                OK(window_put_integers(&w, from, LARGE, peer, 0));
                if (n % 10 == 0) OK(window_put_integers(&w, from, 1, peer, 0));
            }
    /* The target makes no call, so the threads of the library must receive the puts. */
    if (me->rank)
        while (*last != PUTS) sched_yield();
    world_meet(me);
    window_close(&w);
    free(from);
}
#endif
/* ---- beside other work ---- */
static void beside_collectives_and_messages(struct rank *me)
{
    struct window one = window_open(me, 64), two = window_open(me, 100000);
    int32_t *large = calloc(100000, sizeof *large), small[64];
    for (int round = 1; round <= 30; round++) {
        int64_t sum = me->rank;
        tutti_request wait = TUTTI_REQUEST_INIT;
        for (int i = 0; i < 64; i++) small[i] = round;
        OK(tutti_window_wait_signal(two.handle, rank_previous(me), &wait));
        OK(window_put_integers(&one, small, 64, rank_next(me), 0));
        OK(tutti_window_signal(one.handle, rank_next(me), NULL));
        OK(tutti_all_reduce(&sum, &sum, 1, TUTTI_INT64, TUTTI_SUM, me->comm, NULL));
        REQUIRE(sum == (int64_t)me->size * (me->size - 1) / 2);
        large[99999] = round;
        OK(window_put_integers(&two, large, 100000, rank_next(me), 0));
        OK(tutti_window_signal(two.handle, rank_next(me), NULL));
        OK(tutti_wait(&wait, 0));
        OK(tutti_window_wait_signal(one.handle, rank_previous(me), NULL));
        REQUIRE(one.at[63] == round && two.at[99999] == round);
        OK(tutti_barrier(me->comm, NULL));
    }
    window_close(&one);
    window_close(&two);
    free(large);
}
/* A thread waits for a signal and so drives the communicator. Meanwhile another thread registers and frees windows. */
static void *wait_main(void *of)
{
    const struct rank *me = of;
    OK(tutti_window_wait_signal(*(tutti_window **)me->context, rank_previous(me), NULL));
    return NULL;
}
static void windows_while_a_thread_waits(struct rank *me)
{
    struct window w = window_open(me, 10);
    struct rank waiter = { .rank = me->rank, .size = me->size, .context = &w.handle };
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, wait_main, &waiter) == 0);
    for (int round = 0; round < 5; round++) {
        struct window other = window_open(me, 10);
        if (round % 2) OK(tutti_window_free(other.handle));
        else OK(tutti_window_deregister(other.handle));
        OK(tutti_barrier(me->comm, NULL));
        if (round % 2 == 0) OK(tutti_window_free(other.handle));
        if (other.kind == PRIVATE_MEMORY) free(other.at);
        else OK(tutti_mem_free(other.at));
    }
    OK(tutti_window_signal(w.handle, rank_next(me), NULL));
    REQUIRE(pthread_join(thread, NULL) == 0);
    window_close(&w);
}
/* The calls are made in a group, one wait has a request in a queue, and a second signal arrives before its wait. */
static void requests_of_every_kind(struct rank *me)
{
    struct window w = window_open(me, 10);
    int32_t from[10] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 };
    tutti_request request = TUTTI_REQUEST_INIT, *taken;
    tutti_queue *queue;
    OK(tutti_group_start());
    OK(window_put_integers(&w, from, 5, rank_next(me), 5));
    OK(tutti_window_signal(w.handle, rank_next(me), NULL));
    OK(tutti_window_signal(w.handle, rank_next(me), NULL));
    OK(tutti_window_wait_signal(w.handle, rank_previous(me), NULL));
    OK(tutti_group_end());
    REQUIRE(w.at[5] == 1 && w.at[9] == 5 && !w.at[4]);
    OK(tutti_queue_create(&queue));
    request.queue = queue;
    OK(tutti_window_wait_signal(w.handle, rank_previous(me), &request));
    OK(tutti_queue_wait(queue, -1, &taken));
    REQUIRE(taken == &request);
    OK(tutti_queue_destroy(queue));
    window_close(&w);
}
/* ---- addresses ---- */
static void map_memory_of_the_host(struct rank *me)
{
    struct window w = window_open(me, 10);
    int host, other, writer, peer = rank_next(me);
    int32_t *theirs = NULL;
    OK(tutti_comm_place(me->comm, me->rank, &host, NULL));
    OK(tutti_comm_place(me->comm, peer, &other, NULL));
    OK(tutti_comm_place(me->comm, rank_previous(me), &writer, NULL));
    w.at[3] = 100 + me->rank;
    OK(tutti_barrier(me->comm, NULL));
    if (host == other && (w.kind == SHARED_MEMORY || peer == me->rank)) {
        OK(tutti_window_map(w.handle, peer, (void **)&theirs));
        REQUIRE(theirs[3] == 100 + peer);
        theirs[4] = 7;
    } else {
        REQUIRE(tutti_window_map(w.handle, peer, (void **)&theirs) == TUTTI_UNSUPPORTED);
        REQUIRE(strstr(tutti_get_last_error(), host == other ? "its memory is private" : "on another host"));
    }
    OK(tutti_barrier(me->comm, NULL));
    bool mapped = host == writer && (w.kind == SHARED_MEMORY || me->size == 1);
    REQUIRE(w.at[4] == (mapped ? 7 : 0));
    /* The address stays valid after tutti_window_free, because the window is retained. */
    OK(tutti_window_retain(w.handle));
    window_close(&w);
    if (theirs && peer != me->rank) REQUIRE(theirs[0] == theirs[0]);
    OK(tutti_window_release(w.handle));
    OK(tutti_window_free(NULL));
    OK(tutti_window_release(NULL));
}
static void run_on_threads(rank_function *body)
{
    for (int kind = SHARED_MEMORY; kind <= PRIVATE_MEMORY; kind++) {
        enum memory_kind k = (enum memory_kind)kind;
        for (int size = 1; size <= 3; size++) world_threads(size, NULL, body, &k);
        world_threads_on("0,1,0,1", 4, NULL, body, &k);
        world_threads_on("2", 2, NULL, body, &k);
    }
}
/* Sleeps have no limit here, so a rank that misses a wake-up hangs. */
static void test_waits_lose_no_wake_up(void **state)
{
    (void)state;
    atomic_store(&most_sleep_ms, INT_MAX);
    run_on_threads(beside_collectives_and_messages);
    run_on_threads(puts_before_signals);
    atomic_store(&most_sleep_ms, 20);
}
static void test_puts_of_every_size_arrive(void **state) { (void)state; run_on_threads(ring_of_every_size); }
static void test_puts_arrive_before_later_signals(void **state) { (void)state; run_on_threads(puts_before_signals); }
static void test_deregistering_waits_for_puts(void **state)
{
    (void)state;
    run_on_threads(deregistering_waits_for_puts);
}
static void test_windows_work_beside_collectives_and_messages(void **state)
{
    (void)state;
    run_on_threads(beside_collectives_and_messages);
}
static void test_calls_complete_in_groups_and_queues(void **state)
{
    (void)state;
    run_on_threads(requests_of_every_kind);
}
static void test_windows_are_registered_while_a_thread_waits(void **state)
{
    (void)state;
    run_on_threads(windows_while_a_thread_waits);
}
static void test_memory_is_mapped_on_one_host_only(void **state)
{
    (void)state;
    run_on_threads(map_memory_of_the_host);
}
#ifndef NO_PROCESSES
static void test_puts_reach_a_target_that_makes_no_call(void **state)
{
    (void)state;
    atomic_store(&most_sleep_ms, INT_MAX);
    run_on_threads(target_only_computes);
    atomic_store(&most_sleep_ms, 20);
}
static void run_all(struct rank *me)
{
    ring_of_every_size(me);
    puts_before_signals(me);
    deregistering_waits_for_puts(me);
    beside_collectives_and_messages(me);
    requests_of_every_kind(me);
    map_memory_of_the_host(me);
}
static void test_windows_work_between_processes(void **state)
{
    (void)state;
    for (int kind = SHARED_MEMORY; kind <= PRIVATE_MEMORY; kind++) {
        enum memory_kind k = (enum memory_kind)kind;
        assert_int_equal(world_processes(3, 60, run_all, &k), 0);
        world_pretend("0,1,0");
        assert_int_equal(world_processes(3, 60, run_all, &k), 0);
        world_pretend("");
    }
}
#endif

unit_function test_window;
int test_window(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_puts_of_every_size_arrive),
        cmocka_unit_test(test_puts_arrive_before_later_signals),
        cmocka_unit_test(test_deregistering_waits_for_puts),
        cmocka_unit_test(test_windows_work_beside_collectives_and_messages),
        cmocka_unit_test(test_calls_complete_in_groups_and_queues),
        cmocka_unit_test(test_waits_lose_no_wake_up),
        cmocka_unit_test(test_windows_are_registered_while_a_thread_waits),
        cmocka_unit_test(test_memory_is_mapped_on_one_host_only),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_puts_reach_a_target_that_makes_no_call),
        cmocka_unit_test(test_windows_work_between_processes),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
