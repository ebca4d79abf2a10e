/* Sends and receives through communicators: order, tags, any source, sizes, groups, beside collectives. */
#include "tests/support/bytes.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"

static void ring_of_every_size(struct rank *me)
{
    static const size_t sizes[] = { 0, 1, 7, 48, 64, 1000, 4095, 4096, 4097, 65536, 65537, 300000, 5 << 20 };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t n = sizes[k];
        unsigned char *out = malloc(n + 1), *in = calloc(1, n + 1);
        bytes_fill(out, n, (uint64_t)me->rank + k);
        in[n] = 99;
        REQUIRE(tutti_group_start() == TUTTI_OK);
        REQUIRE(tutti_send(out, n, TUTTI_UINT8, rank_next(me), 5, me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_recv(in, n, TUTTI_UINT8, rank_previous(me), 5, me->comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_group_end() == TUTTI_OK);
        REQUIRE(bytes_are(in, n, (uint64_t)rank_previous(me) + k));
        REQUIRE(in[n] == 99);
        free(out);
        free(in);
    }
}
/* Rank 0 sends tags 0 … 9, the others receive them backwards; within a tag in the order sent. */
static void tags_in_any_order(struct rank *me)
{
    int32_t data[10][3];
    if (me->rank == 0) {
        tutti_request *requests = world_requests((size_t)me->size * 30);
        for (int tag = 0; tag < 10; tag++)
            for (int k = 0; k < 3; k++) data[tag][k] = tag * 10 + k;
        int n = 0;
        for (int peer = 1; peer < me->size; peer++)
            for (int k = 0; k < 3; k++)
                for (uint32_t tag = 0; tag < 10; tag++)
                    REQUIRE(tutti_send(&data[tag][k], 1, TUTTI_INT32, peer, tag, me->comm, &requests[n++]) == TUTTI_OK);
        for (int i = 0; i < n; i++) REQUIRE(tutti_wait(&requests[i], 0) == TUTTI_OK);
        free(requests);
        return;
    }
    for (int tag = 9; tag >= 0; tag--)
        for (int k = 0; k < 3; k++) {
            int32_t got = -1;
            REQUIRE(tutti_recv(&got, 1, TUTTI_INT32, 0, (uint32_t)tag, me->comm, NULL) == TUTTI_OK);
            REQUIRE(got == tag * 10 + k);
        }
}
static void any_source(struct rank *me)
{
    int32_t mine = me->rank;
    if (me->rank) { REQUIRE(tutti_send(&mine, 1, TUTTI_INT32, 0, 1, me->comm, NULL) == TUTTI_OK); return; }
    int seen = 0;
    for (int k = 1; k < me->size; k++) {
        int32_t got = -1;
        tutti_request r = { .struct_size = sizeof r, .blocking = true };
        REQUIRE(tutti_recv(&got, 1, TUTTI_INT32, TUTTI_ANY_SOURCE, 1, me->comm, &r) == TUTTI_OK);
        REQUIRE(got == r.source);
        seen |= 1 << got;
    }
    REQUIRE(seen == (1 << me->size) - 2);
}
static void to_myself(struct rank *me)
{
    int64_t out = 42 + me->rank, in = 0;
    tutti_request send = TUTTI_REQUEST_INIT, recv = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_recv(&in, 1, TUTTI_INT64, me->rank, 3, me->comm, &recv) == TUTTI_OK);
    REQUIRE(tutti_send(&out, 1, TUTTI_INT64, me->rank, 3, me->comm, &send) == TUTTI_OK);
    REQUIRE(tutti_wait(&send, 0) == TUTTI_OK);
    REQUIRE(tutti_wait(&recv, 0) == TUTTI_OK);
    REQUIRE(in == out);
    REQUIRE(tutti_send(&out, 1, TUTTI_INT64, me->rank, 3, me->comm, NULL) == TUTTI_INVALID_ARGUMENT);
    REQUIRE(strstr(tutti_get_last_error(), "to or receives from itself") != NULL);
}
/* Waiting for a message to oneself whose other end has not been started would never end, so it is refused. */
static void to_myself_alone(struct rank *me)
{
    enum { MUCH = 300000 };
    int32_t *data = calloc(2 * MUCH, sizeof *data);
    tutti_request recv = TUTTI_REQUEST_INIT, send = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_recv(data, 1, TUTTI_INT32, me->rank, 5, me->comm, &recv) == TUTTI_OK && !recv.refused);
    REQUIRE(tutti_wait(&recv, 0) == TUTTI_INVALID_ARGUMENT && recv.refused);
    REQUIRE(strstr(tutti_get_last_error(), "waits to receive from itself with tag 5") != NULL);
    REQUIRE(tutti_last_error_is_refusal());
    REQUIRE(tutti_send(data, MUCH, TUTTI_INT32, me->rank, 5, me->comm, &send) == TUTTI_OK);
    REQUIRE(tutti_wait(&send, 0) == TUTTI_INVALID_ARGUMENT && send.refused);
    REQUIRE(strstr(tutti_get_last_error(), "waits to send to itself with tag 5") != NULL);
    REQUIRE(tutti_last_error_is_refusal());
    /* The refused transfers are cancelled, so these messages do not meet them. */
    data[MUCH - 1] = 7;
    send = recv = (tutti_request)TUTTI_REQUEST_INIT;
    REQUIRE(tutti_send(data, MUCH, TUTTI_INT32, me->rank, 5, me->comm, &send) == TUTTI_OK);
    REQUIRE(tutti_recv(data + MUCH, MUCH, TUTTI_INT32, me->rank, 5, me->comm, &recv) == TUTTI_OK);
    REQUIRE(tutti_wait(&recv, 0) == TUTTI_OK && tutti_wait(&send, 0) == TUTTI_OK && !recv.refused);
    REQUIRE(data[2 * MUCH - 1] == 7);
    tutti_group_start();
    REQUIRE(tutti_recv(data, 1, TUTTI_INT32, me->rank, 5, me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_group_end() == TUTTI_INVALID_ARGUMENT);
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    free(data);
}
static void test_waiting_for_an_unmatched_message_to_oneself_is_refused(void **state)
{
    (void)state;
    tutti_config soon = { .struct_size = sizeof soon, .timeout_ms = 5000 };
    for (int size = 1; size <= 2; size++) world_threads(size, &soon, to_myself_alone, NULL);
}
/* A receive is open while collectives run; its send comes last. */
static void beside_collectives(struct rank *me)
{
    double late = 0, sum, mine = 1;
    tutti_request r = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_recv(&late, 1, TUTTI_FLOAT64, rank_previous(me), 8, me->comm, &r) == TUTTI_OK);
    for (int k = 0; k < 50; k++) {
        REQUIRE(tutti_all_reduce(&mine, &sum, 1, TUTTI_FLOAT64, TUTTI_SUM, me->comm, NULL) == TUTTI_OK);
        REQUIRE(sum == me->size);
        REQUIRE(tutti_test(&r) == TUTTI_IN_PROGRESS);
    }
    mine = 7.5;
    REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_send(&mine, 1, TUTTI_FLOAT64, rank_next(me), 8, me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_wait(&r, 0) == TUTTI_OK);
    REQUIRE(late == 7.5);
}
/* All ranks send before any of them receives. */
static void large_both_ways(struct rank *me)
{
    size_t n = 3 << 20;
    unsigned char *out = malloc(n), *in = malloc(n);
    memset(out, me->rank + 1, n);
    tutti_request r = TUTTI_REQUEST_INIT;
    REQUIRE(tutti_send(out, n, TUTTI_UINT8, rank_next(me), 0, me->comm, &r) == TUTTI_OK);
    REQUIRE(tutti_recv(in, n, TUTTI_UINT8, rank_previous(me), 0, me->comm, NULL) == TUTTI_OK);
    REQUIRE(tutti_wait(&r, 0) == TUTTI_OK);
    for (size_t i = 0; i < n; i++) REQUIRE(in[i] == rank_previous(me) + 1);
    free(out);
    free(in);
}
static rank_function *const bodies[] = { ring_of_every_size, tags_in_any_order, any_source, to_myself,
    beside_collectives, large_both_ways };
static void all(struct rank *me)
{
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        bodies[i](me);
        REQUIRE(tutti_barrier(me->comm, NULL) == TUTTI_OK);
    }
}
static void test_messages_arrive_on_threads(void **state)
{
    (void)state;
    world_threads(1, NULL, to_myself, NULL);
    for (int size = 2; size <= 4; size++) world_threads(size, NULL, all, NULL);
}
#ifndef NO_PROCESSES
static void test_messages_arrive_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) assert_int_equal(world_processes(size, 60, all, NULL), 0);
}
#endif
static void lengths_differ(struct rank *me)
{
    static char data[200000];
    size_t n = *(const size_t *)me->context;
    tutti_status status = me->rank == 0 ? tutti_send(data, n, TUTTI_UINT8, 1, 4, me->comm, NULL)
                                        : tutti_recv(data, n / 2, TUTTI_UINT8, 0, 4, me->comm, NULL);
    /* A small send may have completed. Then the barrier reports the failure. */
    if (status == TUTTI_OK && me->rank == 0) status = tutti_barrier(me->comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH);
    char both[64];
    snprintf(both, sizeof both, "%zu bytes", n);
    REQUIRE(strstr(tutti_get_last_error(), both) != NULL);
    snprintf(both, sizeof both, "%zu bytes", n / 2);
    REQUIRE(strstr(tutti_get_last_error(), both) != NULL);
}
static void test_lengths_that_differ_are_both_reported(void **state)
{
    (void)state;
    size_t small = 100, large = 200000;
    world_threads(2, NULL, lengths_differ, &small);
    world_threads(2, NULL, lengths_differ, &large);
}
/* Both messages have `count` elements of the same size. */
static void types_differ(struct rank *me)
{
    static char data[200000];
    size_t count = *(const size_t *)me->context;
    tutti_status status = me->rank == 0 ? tutti_send(data, count, TUTTI_INT32, 1, 4, me->comm, NULL)
                                        : tutti_recv(data, count, TUTTI_FLOAT32, 0, 4, me->comm, NULL);
    /* A small send may have completed. Then the barrier reports the failure. */
    if (status == TUTTI_OK && me->rank == 0) status = tutti_barrier(me->comm, NULL);
    REQUIRE(status == TUTTI_MISMATCH);
    REQUIRE(strstr(tutti_get_last_error(), "bytes of int32") && strstr(tutti_get_last_error(), "bytes of float32"));
}
static void test_types_that_differ_are_both_reported(void **state)
{
    (void)state;
    size_t small = 25, large = 50000;
    world_threads(2, NULL, types_differ, &small);
    world_threads(2, NULL, types_differ, &large);
}
unit_function test_messages;
int test_messages(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_messages_arrive_on_processes),
#endif
        cmocka_unit_test(test_messages_arrive_on_threads),
        cmocka_unit_test(test_waiting_for_an_unmatched_message_to_oneself_is_refused),
        cmocka_unit_test(test_lengths_that_differ_are_both_reported),
        cmocka_unit_test(test_types_that_differ_are_both_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
