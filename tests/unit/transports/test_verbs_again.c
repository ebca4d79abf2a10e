/* Connections that open, break and open again: lost handshake datagrams, failed sends, and groups that begin after a
   break. */
#include "backend/base/clock.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/verbs/nic.h"
#include "backend/transports/verbs/verbs.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks_verbs.h"
#include <errno.h>

enum { MANY = 8, LARGE = 1 << 20 };
static unsigned char out[MANY][EAGER_BYTES], in[MANY][EAGER_BYTES], large[2][LARGE];

/* ---- handshakes ---- */
/* Rank 0 sends more than an eager ring holds. Rank 1 has no messages of its own by which it could report room. */
static void one_way(struct rank *me)
{
    struct transfer x[MANY];
    struct piece piece[MANY];
    for (int i = 0; i < MANY; i++)
        if (me->rank == 0) rank_send(me, &x[i], 1, (uint64_t)i, &piece[i], out[i], EAGER_BYTES);
        else rank_recv(me, &x[i], 0, (uint64_t)i, &piece[i], in[i], EAGER_BYTES);
    rank_await(me, x, MANY);
    for (int i = 0; i < MANY; i++) REQUIRE(x[i].state == TRANSFER_DONE);
    rank_meet(me);
}
static void test_messages_arrive_although_handshakes_are_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        const struct fake_faults faults = { .seed = seed, .drop = 700000 };
        fake.fake_set_faults(&faults);
        ranks_verbs_apart(2, POLLS, one_way);
    }
}
static __typeof__(verbs.ibv_modify_qp) modify;
static int refuse_to_connect(struct ibv_qp *pair, struct ibv_qp_attr *how, int mask)
{
    bool of_rank_1 = verbs_fabrics[1].state && pair->pd == nic_of_fabric(&verbs_fabrics[1])->adapters[0].domain;
    return of_rank_1 && pair->qp_type == IBV_QPT_RC && how->qp_state == IBV_QPS_RTR ? EINVAL : modify(pair, how, mask);
}
static int count_endpoints(struct fabric *fabric, bool broken_too)
{
    int count = 0;
    pthread_mutex_lock(&fabric->lock);
    for (const struct endpoint *e = fabric->endpoints; e; e = e->next) count += broken_too || !endpoint_is_broken(e);
    pthread_mutex_unlock(&fabric->lock);
    return count;
}
static void sends_while_verbs_cannot_connect(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    for (uint64_t name = 0; name < 3; name++) {
        if (me->rank == 0) rank_send(me, &x, 1, name, &piece, out[0], 8);
        else rank_recv(me, &x, 0, name, &piece, in[0], 8);
        rank_await(me, &x, 1);
        REQUIRE(x.state == TRANSFER_DONE);
    }
    while (count_endpoints(&verbs_fabrics[me->rank], false)) rank_poll(me);
    rank_meet(me);
    for (int64_t end_ms = clock_ms() + 500; clock_ms() < end_ms; usleep(500)) rank_poll(me);
    REQUIRE(count_endpoints(&verbs_fabrics[me->rank], true) <= 2);
    rank_meet(me);
}
static void test_a_refused_connection_is_not_requested_again_and_again(void **state)
{
    static struct fabric sockets[2];
    /* Datagrams that report the failure are lost too. */
    const struct fake_faults faults = { .seed = 1, .drop = 600000 };
    (void)state;
    fake.fake_set_faults(&faults);
    for (int r = 0; r < 2; r++) sockets[r] = (struct fabric)FABRIC(&tcp_operations);
    assert_int_equal(verbs_library_load(), TUTTI_OK);
    modify = verbs.ibv_modify_qp;
    verbs.ibv_modify_qp = refuse_to_connect;
    ranks_fabric_apart_beside(sockets, verbs_fabrics, 2, POLLS, sends_while_verbs_cannot_connect);
    verbs.ibv_modify_qp = modify;
}

/* ---- a send that fails ---- */
static void sends_unregistered_memory(struct rank *me)
{
    struct transfer x[2];
    struct piece piece[2];
    rank_connect(me);
    if (me->rank == 0) {
        fake.fake_fail_call(FAKE_REG_MR, 0, EIO);
        rank_send(me, &x[0], 1, 1, &piece[0], large[0], LARGE);
        rank_send(me, &x[1], 1, 2, &piece[1], out[0], 8);
        rank_await(me, x, 2);
        REQUIRE(x[0].status == TUTTI_PEER_LOST && x[1].status == TUTTI_PEER_LOST);
        REQUIRE(strstr(me->router->reason, "cannot be registered"));
    } else rank_recv(me, &x[1], 0, 2, &piece[1], in[0], 8);
    rank_meet(me);
    if (me->rank == 1) {
        rank_settle(me);
        REQUIRE(x[1].state == TRANSFER_POSTED && me->router->failure == TUTTI_OK);
        router_lose_peer(me->router, 0, status_fail(TUTTI_PEER_LOST, "the link has ended"));
    }
    rank_meet(me);
}
static void test_after_a_failed_send_no_message_leaves(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, sends_unregistered_memory);
}

/* ---- another group, of the same processes ---- */
static struct {
    unsigned char process[16], address[FABRIC_ADDRESS_BYTES];
    size_t bytes;
} known[VERBS_MOST];
static const unsigned char *process_of(void *context, int rank)
{
    (void)context;
    return known[rank].process;
}
static tutti_status known_address(void *context, const struct fabric *fabric, int rank, void *to, size_t *bytes)
{
    (void)context, (void)fabric;
    *bytes = known[rank].bytes;
    memcpy(to, known[rank].address, *bytes);
    return TUTTI_OK;
}
static void name_of_host(void *context, int rank, char *to, size_t bytes)
{
    (void)context;
    snprintf(to, bytes, "host %d", rank);
}
static void become_known(struct rank *me)
{
    const struct fabric *fabric = &verbs_fabrics[me->rank];
    memcpy(known[me->rank].process, fabric->process, 16);
    memcpy(known[me->rank].address, fabric->address, fabric->address_bytes);
    known[me->rank].bytes = fabric->address_bytes;
    rank_meet(me);
    if (me->rank < 2) rank_swap(me, 0);
    rank_settle(me);
    rank_meet(me);
}
static void poll_for(struct router *router, int64_t ms)
{
    for (int64_t end_ms = clock_ms() + ms; clock_ms() < end_ms; usleep(200)) router_poll(router);
}
static struct router *another_group(struct rank *me)
{
    const struct fabric_callbacks callbacks = { NULL, process_of, known_address, name_of_host, ranks_key() };
    struct router *router;
    REQUIRE(router_create(me->rank, me->size, 77, (struct bell){ NULL, NULL }, &router) == TUTTI_OK);
    REQUIRE(fabric_connect(&verbs_fabrics[me->rank], router, &callbacks) == TUTTI_OK);
    return router;
}
static void connection_close(struct fabric *fabric, int rank)
{
    pthread_mutex_lock(&fabric->lock);
    struct endpoint *e = endpoint_find(fabric, known[rank].process);
    if (e) fabric->operations->disconnect(fabric, e);
    pthread_mutex_unlock(&fabric->lock);
}
static bool is_connected(struct fabric *fabric, int rank)
{
    pthread_mutex_lock(&fabric->lock);
    const struct endpoint *e = endpoint_find(fabric, known[rank].process);
    pthread_mutex_unlock(&fabric->lock);
    return e;
}
/* The rank that sends in the other group. */
static int sender;
static void begins_again(struct rank *me)
{
    struct piece piece = { out[0], 8, 8 };
    struct transfer x = {
        .is_send = me->rank == sender, .peer = 1 - me->rank, .pieces = &piece, .piece_count = 1, .name = name_of(3)
    };
    become_known(me);
    if (me->rank == 0) connection_close(&verbs_fabrics[0], 1);
    rank_meet(me);
    /* Rank 1 polls until it has received that rank 0 has closed. */
    while (me->rank == 1 && is_connected(&verbs_fabrics[1], 0)) rank_poll(me);
    rank_meet(me);
    struct router *router = another_group(me);
    rank_meet(me);
    router_post(router, &x);
    while (x.state == TRANSFER_POSTED) router_poll(router);
    poll_for(router, HOLD_MS + 100);
    REQUIRE(x.state == TRANSFER_DONE && router->routes[1 - me->rank].status == TUTTI_OK);
    rank_meet(me);
    router_destroy(router);
    if (me->rank == 1) router_lose_peer(me->router, 0, status_fail(TUTTI_PEER_LOST, "the link has ended"));
    rank_meet(me);
}
static void test_a_closed_connection_opens_again_for_another_group(void **state)
{
    (void)state;
    for (sender = 0; sender < 2; sender++) ranks_verbs_apart(2, POLLS, begins_again);
}
/* Rank 0 closes its connection with rank 1, begins another group, and then closes its connection with rank 2. In that
   group only rank 2 is lost. */
static void one_breaks_after_another(struct rank *me)
{
    become_known(me);
    if (me->rank == 0) connection_close(&verbs_fabrics[0], 1);
    rank_meet(me);
    if (me->rank == 0) {
        struct router *router = another_group(me);
        struct transfer x;
        struct piece piece;
        rank_send(me, &x, 2, 4, &piece, out[0], 8);
        rank_await(me, &x, 1);
        connection_close(&verbs_fabrics[0], 2);
        while (router->routes[2].status == TUTTI_OK) router_poll(router);
        poll_for(router, 100);
        REQUIRE(router->routes[1].status == TUTTI_OK && router->routes[2].status == TUTTI_PEER_LOST);
        router_destroy(router);
    }
    if (me->rank == 2) {
        struct transfer x;
        struct piece piece;
        rank_recv(me, &x, 0, 4, &piece, in[0], 8);
        rank_await(me, &x, 1);
    }
    rank_meet(me);
}
static void test_a_break_before_a_group_loses_no_rank_of_it(void **state)
{
    (void)state;
    ranks_verbs_apart(3, POLLS, one_breaks_after_another);
}
unit_function test_verbs_again;
int test_verbs_again(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
#define TEST(name) cmocka_unit_test_setup_teardown(name, ranks_verbs_begin, ranks_verbs_end)
    const struct CMUnitTest tests[] = {
        TEST(test_messages_arrive_although_handshakes_are_lost),
        TEST(test_a_refused_connection_is_not_requested_again_and_again),
        TEST(test_after_a_failed_send_no_message_leaves),
        TEST(test_a_closed_connection_opens_again_for_another_group),
        TEST(test_a_break_before_a_group_loses_no_rank_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
