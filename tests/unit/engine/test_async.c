/* Asynchronous operations: requests, deferral, several communicators, splitting, groups, and uneven all-to-all. */
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <stdatomic.h>

enum { MANY = 40 };
/* Starts many operations, and waits for them in reverse order. */
static void many_at_once(struct rank *me)
{
    static const size_t n = 5000;
    float *data = malloc(MANY * n * sizeof *data);
    tutti_request *r = world_requests(MANY);
    for (size_t i = 0; i < MANY * n; i++) data[i] = (float)(i % 13 + (size_t)me->rank);
    for (size_t k = 0; k < MANY; k++) {
        float *at = data + k * n;
        REQUIRE(tutti_all_reduce(at, at, n, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &r[k]) == TUTTI_OK);
    }
    for (int k = MANY - 1; k >= 0; k--) {
        REQUIRE(tutti_wait(&r[k], 0) == TUTTI_OK);
        REQUIRE(r[k].sequence == (uint64_t)k + 1);
    }
    for (size_t i = 0; i < MANY * n; i++)
        REQUIRE(data[i] == (float)((int)(i % 13) * me->size + me->size * (me->size - 1) / 2));
    free(data);
    free(r);
}
static void record_end(tutti_request *request, void *context)
{
    (void)request;
    atomic_fetch_add((atomic_int *)context, 1);
}
/* No caller waits: the progress thread alone completes the operations. */
static void no_caller_waits(struct rank *me)
{
    atomic_int ended = 0;
    int32_t data[MANY];
    tutti_request *r = world_requests(MANY);
    for (int k = 0; k < MANY; k++) {
        data[k] = k;
        r[k].done = record_end;
        r[k].context = &ended;
        REQUIRE(tutti_all_reduce(&data[k], &data[k], 1, TUTTI_INT32, TUTTI_SUM, me->comm, &r[k]) == TUTTI_OK);
    }
    while (atomic_load(&ended) < MANY) usleep(100);
    for (int k = 0; k < MANY; k++) REQUIRE(tutti_test(&r[k]) == TUTTI_OK && data[k] == k * me->size);
    free(r);
}
/* Small operations with on_demand are deferred. They complete when this rank or another one tests, detaches or waits,
   and after a while without any of these. */
enum { DEFERRED = 5 };
static void start_deferred(struct rank *me, int32_t *data, atomic_int *ended, tutti_request *r)
{
    for (int k = 0; k < DEFERRED; k++) {
        data[k] = k + me->rank;
        r[k] = (tutti_request){ .struct_size = sizeof *r, .on_demand = true, .done = record_end, .context = ended };
        REQUIRE(tutti_all_reduce(&data[k], &data[k], 1, TUTTI_INT32, TUTTI_SUM, me->comm, &r[k]) == TUTTI_OK);
    }
}
static void check_deferred(struct rank *me, const int32_t *data, tutti_request *r)
{
    for (int k = 0; k < DEFERRED; k++) {
        REQUIRE(tutti_test(&r[k]) == TUTTI_OK && r[k].sequence % DEFERRED == (uint64_t)(k + 1) % DEFERRED);
        REQUIRE(data[k] == k * me->size + me->size * (me->size - 1) / 2);
    }
}
static void ended_on_demand(struct rank *me)
{
    enum { NO_CALL, TEST, DETACH, WAIT, WAYS };
    int32_t data[DEFERRED];
    tutti_request r[DEFERRED];
    for (int round = 0; round < 3 * WAYS; round++) {
        /* The way differs from rank to rank. */
        int way = (round + me->rank) % WAYS;
        atomic_int ended = 0;
        start_deferred(me, data, &ended, r);
        for (int k = DEFERRED - 1; way == TEST && k >= 0; k--)
            while (tutti_test(&r[k]) == TUTTI_IN_PROGRESS) usleep(10);
        for (int k = 0; way == DETACH && k < DEFERRED; k++) REQUIRE(tutti_detach(&r[k]) == TUTTI_OK);
        for (int k = 0; way == WAIT && k < DEFERRED; k++) REQUIRE(tutti_wait(&r[k], 0) == TUTTI_OK);
        while (atomic_load(&ended) < DEFERRED) usleep(100);
        check_deferred(me, data, r);
    }
}
/* Rank 0 starts a deferred send on one communicator, and waits on another one, where rank 1 sends only after it has
   received the first message. */
static void needed_by_a_peer(struct rank *me)
{
    /* A message of N elements is announced, so its sender must make progress again. */
    enum { N = 3000 };
    static _Thread_local int32_t mine[N], theirs[N];
    tutti_comm *other;
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &other) == TUTTI_OK);
    for (int round = 0; me->rank < 2 && me->size > 1 && round < 20; round++) {
        tutti_request send = { .struct_size = sizeof send, .on_demand = true };
        tutti_request blocking = { .struct_size = sizeof blocking, .blocking = true }, back = blocking;
        for (int i = 0; i < N; i++) mine[i] = round + i;
        if (me->rank == 0) {
            REQUIRE(tutti_send(mine, N, TUTTI_INT32, 1, 7, me->comm, &send) == TUTTI_OK);
            REQUIRE(tutti_recv(theirs, 1, TUTTI_INT32, 1, 0, other, &back) == TUTTI_OK && theirs[0] == round);
            REQUIRE(tutti_wait(&send, 0) == TUTTI_OK);
        } else {
            REQUIRE(tutti_recv(theirs, N, TUTTI_INT32, 0, 7, me->comm, &blocking) == TUTTI_OK);
            REQUIRE(theirs[0] == round && theirs[N - 1] == round + N - 1);
            REQUIRE(tutti_send(&round, 1, TUTTI_INT32, 0, 0, other, &back) == TUTTI_OK);
        }
    }
    tutti_comm_destroy(other);
}
static void split_and_cross(struct rank *me)
{
    tutti_comm *half, *reversed, *none;
    int32_t mine = me->rank, sum;
    REQUIRE(tutti_comm_split(me->comm, me->rank % 2, 0, &half) == TUTTI_OK);
    REQUIRE(tutti_comm_split(me->comm, 0, -me->rank, &reversed) == TUTTI_OK);
    REQUIRE(tutti_comm_split(me->comm, me->rank == 0 ? 0 : -1, 0, &none) == TUTTI_OK);
    REQUIRE((none != NULL) == (me->rank == 0));
    REQUIRE(tutti_comm_user_rank(half) == me->rank / 2);
    REQUIRE(tutti_comm_count(reversed) == me->size && tutti_comm_user_rank(reversed) == me->size - 1 - me->rank);
    for (int k = 0; k < 20; k++) {
        tutti_request a = TUTTI_REQUEST_INIT, b = TUTTI_REQUEST_INIT;
        int32_t in_half = 0, in_all = 0;
        REQUIRE(tutti_all_reduce(&mine, &in_half, 1, TUTTI_INT32, TUTTI_SUM, half, &a) == TUTTI_OK);
        REQUIRE(tutti_all_reduce(&mine, &in_all, 1, TUTTI_INT32, TUTTI_SUM, reversed, &b) == TUTTI_OK);
        REQUIRE(tutti_all_reduce(&mine, &sum, 1, TUTTI_INT32, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_wait(&b, 0) == TUTTI_OK && tutti_wait(&a, 0) == TUTTI_OK);
        REQUIRE(sum == me->size * (me->size - 1) / 2 && in_all == sum);
        int want = 0;
        for (int q = me->rank % 2; q < me->size; q += 2) want += q;
        REQUIRE(in_half == want);
    }
    tutti_comm_destroy(half);
    tutti_comm_destroy(reversed);
    tutti_comm_destroy(none);
}
static void uneven(struct rank *me)
{
    enum { MOST = 8 };
    size_t out[MOST], out_at[MOST], in[MOST], in_at[MOST], sent = 0, received = 0;
    for (int scale = 1; scale <= 30001; scale += 15000) {
        sent = received = 0;
        for (int q = 0; q < me->size; q++) {
            out[q] = (size_t)((me->rank * 3 + q * 5) % 4 * scale);
            in[q] = (size_t)((q * 3 + me->rank * 5) % 4 * scale);
            out_at[q] = sent;
            sent += out[q] + 1;
            in_at[q] = received;
            received += in[q] + 2;
        }
        int32_t *send = malloc((sent + 1) * 4), *recv = malloc((received + 1) * 4);
        for (size_t i = 0; i < sent; i++) send[i] = (int32_t)i + me->rank * 1000000;
        memset(recv, 0xff, (received + 1) * 4);
        REQUIRE(tutti_all_to_all_v(send, out, out_at, recv, in, in_at, TUTTI_INT32, me->comm, NULL) == TUTTI_OK);
        for (int q = 0; q < me->size; q++) {
            size_t there = 0;
            for (int k = 0; k < me->rank; k++) there += (size_t)((q * 3 + k * 5) % 4 * scale) + 1;
            for (size_t i = 0; i < in[q]; i++) REQUIRE(recv[in_at[q] + i] == (int32_t)(there + i) + q * 1000000);
            REQUIRE(recv[in_at[q] + in[q]] == -1);
        }
        free(send);
        free(recv);
    }
}
/* Even and uneven all-to-alls alternate. With four ranks, rank 0 sends equally many bytes to others in both. */
static void even_after_uneven(struct rank *me)
{
    enum { MOST = 8, PART = 4 };
    unsigned char send[MOST * PART], recv[MOST * PART];
    int p = me->size;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < p * PART; i++) send[i] = (unsigned char)(100 * round + 10 * me->rank + i);
        REQUIRE(tutti_all_to_all(send, recv, PART, TUTTI_UINT8, me->comm, NULL) == TUTTI_OK);
        for (int q = 0; q < p; q++)
            for (int i = 0; i < PART; i++) REQUIRE(recv[q * PART + i] == 100 * round + 10 * q + me->rank * PART + i);
        size_t out[MOST] = { 0 }, in[MOST] = { 0 }, at[MOST] = { 0 }, bytes = (size_t)(PART - 1) * (size_t)p;
        if (me->rank == 0) out[p - 1] = bytes;
        if (me->rank == p - 1) in[0] = bytes;
        REQUIRE(tutti_all_to_all_v(send, out, at, recv, in, at, TUTTI_UINT8, me->comm, NULL) == TUTTI_OK);
    }
}
/* One thread drives several communicators by a group of calls. */
static void one_thread_many_communicators(struct rank *me)
{
    enum { GROUPS = 6 };
    tutti_comm *comms[GROUPS];
    int32_t data[GROUPS];
    for (int g = 0; g < GROUPS; g++) REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comms[g]) == TUTTI_OK);
    for (int round = 0; round < 10; round++) {
        REQUIRE(tutti_group_start() == TUTTI_OK);
        for (int i = 0; i < GROUPS; i++) {
            /* The order differs between ranks. */
            int g = me->rank % 2 ? i : GROUPS - 1 - i;
            data[g] = g + me->rank;
            REQUIRE(tutti_all_reduce(&data[g], &data[g], 1, TUTTI_INT32, TUTTI_SUM, comms[g], NULL) == TUTTI_OK);
        }
        REQUIRE(tutti_group_end() == TUTTI_OK);
        for (int g = 0; g < GROUPS; g++) REQUIRE(data[g] == g * me->size + me->size * (me->size - 1) / 2);
    }
    for (int g = 0; g < GROUPS; g++) tutti_comm_destroy(comms[g]);
}
static rank_function *const bodies[] = { many_at_once, no_caller_waits, ended_on_demand, needed_by_a_peer,
    split_and_cross, uneven, even_after_uneven, one_thread_many_communicators };
static void test_asynchronous_operations_on_threads(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        for (int size = 1; size <= 4; size++) world_threads(size, NULL, bodies[i], NULL);
}
#ifndef NO_PROCESSES
static void test_asynchronous_operations_on_processes(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        assert_int_equal(world_processes(3, 60, bodies[i], NULL), 0);
}
#endif
unit_function test_async;
int test_async(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_asynchronous_operations_on_processes),
#endif
        cmocka_unit_test(test_asynchronous_operations_on_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
