/* Request queues: a thread that waits for any of several requests gets each one once, in the order of completion. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <pthread.h>
#include <stdatomic.h>

/* LATE is the number of a receive whose send is started last. */
enum { MANY = 60, LARGE = 200000, LATE = 56 };
#define SAYS(text) REQUIRE(strstr(tutti_get_last_error(), text) != NULL)
#define REFUSED(call, text) REQUIRE((call) == TUTTI_INVALID_ARGUMENT && tutti_last_error_is_refusal()); SAYS(text)

static tutti_request *requests_of(tutti_queue *queue, int count)
{
    tutti_request *r = world_requests((size_t)count);
    for (int i = 0; i < count; i++) r[i].queue = queue;
    return r;
}
/* Small operations, which are deferred, large ones, and messages, on two communicators. */
static void any_of_many(struct rank *me)
{
    tutti_comm *comm[2] = { me->comm };
    tutti_queue *queue;
    REQUIRE(tutti_comm_split(me->comm, 0, 0, &comm[1]) == TUTTI_OK && tutti_queue_create(&queue) == TUTTI_OK);
    tutti_request *r = requests_of(queue, MANY), *got;
    int32_t *data = calloc((size_t)2 * LARGE, sizeof *data), small[MANY], taken[MANY] = { 0 }, last[2] = { -1, -1 };
    /* The queue is empty. */
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && !got);
    for (int i = 0; i < MANY - 1; i++) {
        int peer = (me->rank + 1) % me->size, large = i % 20 == 7;
        int32_t *at = large ? data + (i > 30) * LARGE : &small[i];
        uint32_t tag = (uint32_t)i;
        size_t count = large ? LARGE : 1;
        tutti_status status;
        small[i] = me->rank + i;
        if (i % 3 < 2) status = tutti_all_reduce(at, at, count, TUTTI_INT32, TUTTI_MAX, comm[i % 2], &r[i]);
        else if (i % 2) status = tutti_send(&small[i], 1, TUTTI_INT32, peer, tag, comm[0], &r[i]);
        else status = tutti_recv(&small[i], 1, TUTTI_INT32, TUTTI_ANY_SOURCE, tag + 3, comm[0], &r[i]);
        REQUIRE(status == TUTTI_OK);
    }
    for (int n = 0; n < MANY - 2; n++) {
        REQUIRE(tutti_queue_wait(queue, n % 2 ? -1 : 20000, &got) == TUTTI_OK && got);
        int i = (int)(got - r);
        REQUIRE(i >= 0 && i < MANY && !taken[i]++ && tutti_test(got) == TUTTI_OK);
        if (i % 3 == 2) continue;
        /* Collectives of a communicator complete in order. */
        REQUIRE(i > last[i % 2]);
        last[i % 2] = i;
    }
    REQUIRE(tutti_queue_wait(queue, 0, &got) == TUTTI_IN_PROGRESS && !got);
    REQUIRE(tutti_queue_wait(queue, 5, &got) == TUTTI_IN_PROGRESS && !got);
    REFUSED(tutti_queue_destroy(queue),
        "the queue is not empty: 1 of its requests are not finished, and 0 are finished but");
    REQUIRE(tutti_barrier(comm[0], NULL) == TUTTI_OK);
    int32_t x = 5;
    tutti_request send = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_send(&x, 1, TUTTI_INT32, (me->rank + 1) % me->size, LATE + 3, comm[0], &send) == TUTTI_OK);
    REQUIRE(tutti_wait(&send, 0) == TUTTI_OK);
    while (tutti_test(&r[LATE]) != TUTTI_OK) sleep_us(100);
    REFUSED(tutti_queue_destroy(queue), "0 of its requests are not finished, and 1 are finished but were not taken");
    REFUSED(tutti_barrier(comm[0], &r[LATE]), "the request is still in its queue");
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && got == &r[LATE] && small[LATE] == 5);
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && !got);
    /* A request that was returned can be used again. */
    REQUIRE(tutti_barrier(comm[0], got = &r[0]) == TUTTI_OK);
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && got == &r[0]);
    REQUIRE(tutti_queue_destroy(queue) == TUTTI_OK && tutti_comm_destroy(comm[1]) == TUTTI_OK);
    free(r);
    free(data);
}
static void test_each_request_is_returned_once_in_order_of_completion(void **state)
{
    (void)state;
    for (int size = 1; size <= 3; size++) world_threads(size, NULL, any_of_many, NULL);
}

/* ---- several threads ---- */
enum { WAITERS = 3, ROUNDS = 300 };
struct shared { tutti_queue *queue; atomic_int taken, stop; };
static void *take_all(void *argument)
{
    struct shared *s = argument;
    tutti_request *got;
    while (!atomic_load(&s->stop) || atomic_load(&s->taken) < ROUNDS) {
        tutti_status status = tutti_queue_wait(s->queue, 5, &got);
        REQUIRE(status == TUTTI_OK || (status == TUTTI_IN_PROGRESS && !got));
        if (!got) continue;
        REQUIRE(tutti_test(got) == TUTTI_OK);
        /* The request belongs to the caller again. */
        memset(got, 0xee, sizeof *got);
        free(got);
        atomic_fetch_add(&s->taken, 1);
    }
    return NULL;
}
static void start_and_let_others_wait(struct rank *me)
{
    struct shared s = { .taken = 0 };
    pthread_t threads[WAITERS];
    static _Thread_local int32_t data[ROUNDS];
    REQUIRE(tutti_queue_create(&s.queue) == TUTTI_OK);
    for (int i = 0; i < WAITERS; i++) REQUIRE(pthread_create(&threads[i], NULL, take_all, &s) == 0);
    for (int i = 0; i < ROUNDS; i++) {
        tutti_request *r = requests_of(s.queue, 1);
        data[i] = i;
        REQUIRE(tutti_all_reduce(&data[i], &data[i], 1, TUTTI_INT32, TUTTI_SUM, me->comm, r) == TUTTI_OK);
        if (i % 50 == 0) sleep_us(3000);
    }
    atomic_store(&s.stop, 1);
    for (int i = 0; i < WAITERS; i++) REQUIRE(pthread_join(threads[i], NULL) == 0);
    REQUIRE(atomic_load(&s.taken) == ROUNDS && tutti_queue_destroy(s.queue) == TUTTI_OK);
    for (int i = 0; i < ROUNDS; i++) REQUIRE(data[i] == i * me->size);
}
static void test_several_threads_can_wait_for_one_queue(void **state)
{
    (void)state;
    for (int size = 1; size <= 2; size++) world_threads(size, NULL, start_and_let_others_wait, NULL);
}
/* A thread that gets the last request may destroy the queue at once. */
static void destroy_at_once(struct rank *me)
{
    for (int round = 0; round < ROUNDS; round++) {
        tutti_queue *queue;
        tutti_request *got, *r;
        int32_t x = 1;
        REQUIRE(tutti_queue_create(&queue) == TUTTI_OK);
        r = requests_of(queue, 1);
        REQUIRE(tutti_all_reduce(&x, &x, 1, TUTTI_INT32, TUTTI_SUM, me->comm, r) == TUTTI_OK);
        while (tutti_queue_wait(queue, 0, &got) == TUTTI_IN_PROGRESS) REQUIRE(!got);
        REQUIRE(got == r && x == me->size);
        free(r);
        REQUIRE(tutti_queue_destroy(queue) == TUTTI_OK);
    }
}
static void test_a_queue_can_be_destroyed_at_once_after_its_last_request(void **state)
{
    (void)state;
    world_threads(2, NULL, destroy_at_once, NULL);
}

/* ---- errors ---- */
static void ignore_completion(tutti_request *request, void *context) { (void)request, (void)context; }
static void fail_some(struct rank *me)
{
    tutti_queue *queue;
    tutti_request *got;
    float x = 1;
    REQUIRE(tutti_queue_create(&queue) == TUTTI_OK);
    tutti_request *r = requests_of(queue, 3);
    r[0].blocking = true;
    REFUSED(tutti_barrier(me->comm, &r[0]), "cannot also be blocking or have a `done` callback");
    r[0].blocking = false;
    r[0].done = ignore_completion;
    REFUSED(tutti_barrier(me->comm, &r[0]), "cannot also be blocking or have a `done` callback");
    r[0].done = NULL;
    REFUSED(tutti_send(&x, 1, TUTTI_FLOAT32, 77, 0, me->comm, &r[0]), "peer 77 is not a rank of");
    REFUSED(tutti_queue_wait(NULL, 0, &got), "the queue or the pointer to the request is NULL");
    REFUSED(tutti_queue_create(NULL), "the pointer to the queue is NULL");
    /* Refused requests are not in the queue. */
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && !got);
    for (int i = 0; i < 2; i++)
        REQUIRE(tutti_recv(&x, 1, TUTTI_FLOAT32, TUTTI_ANY_SOURCE, (uint32_t)i, me->comm, &r[i]) == TUTTI_OK);
    REQUIRE(tutti_queue_wait(queue, 20, &got) == TUTTI_IN_PROGRESS);
    /* No rank aborts before all have seen IN_PROGRESS. */
    tutti_barrier(me->comm, NULL);
    REQUIRE(tutti_comm_abort(me->comm) == TUTTI_OK);
    for (int i = 0; i < 2; i++) {
        REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && got);
        REQUIRE(tutti_test(got) == TUTTI_ABORTED);
        SAYS("aborted");
    }
    REQUIRE(tutti_queue_wait(queue, -1, &got) == TUTTI_OK && !got && tutti_queue_destroy(queue) == TUTTI_OK);
    REQUIRE(tutti_queue_destroy(NULL) == TUTTI_OK);
    free(r);
}
static void test_failed_requests_are_returned_and_refused_ones_are_not(void **state)
{
    (void)state;
    for (int size = 1; size <= 2; size++) world_threads(size, NULL, fail_some, NULL);
}
unit_function test_queue;
int test_queue(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_request_is_returned_once_in_order_of_completion),
        cmocka_unit_test(test_several_threads_can_wait_for_one_queue),
        cmocka_unit_test(test_a_queue_can_be_destroyed_at_once_after_its_last_request),
        cmocka_unit_test(test_failed_requests_are_returned_and_refused_ones_are_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
