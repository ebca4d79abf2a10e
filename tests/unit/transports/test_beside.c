/* TCP and verbs as two networks of the same ranks, on the fake provider. The contract holds as over one network, and
   each message takes the network with the least link cost. test_contract.c has TCP beside UCX. */
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/verbs/verbs.h"
#include "tests/support/said.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"
#include "tests/unit/transports/ranks_verbs.h"

#ifdef FEW
enum { LEAST = 2, MOST = 3 };
#else
enum { LEAST = 1, MOST = 4 };
#endif
static struct fabric sockets[MOST];
static void networks_reset(void)
{
    fake.fake_reset();
    for (int r = 0; r < MOST; r++) sockets[r] = (struct fabric)FABRIC(&tcp_operations);
}
static void ranks_run_beside(int size, enum waiting waiting, body *each)
{
    networks_reset();
    ranks_fabric_apart_beside(sockets, verbs_fabrics, size, waiting, each);
    assert_int_equal(fake.fake_left(), 0);
}
static void test_contract_holds_over_tcp_beside_verbs(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++) ranks_run_beside(size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_transfers_with_a_lost_rank_fail(void **state)
{
    (void)state;
    ranks_run_beside(3, SLEEPS, the_last_rank_goes);
}

/* ---- the choice ---- */
static struct transfer *rank_exchange(struct rank *me, struct transfer *x, uint64_t name, struct piece *piece,
    size_t bytes)
{
    static unsigned char data[2][1 << 20];
    if (me->rank == 0) rank_send(me, x, 1, name, piece, data[0], bytes);
    else rank_recv(me, x, 0, name, piece, data[1], bytes);
    rank_await(me, x, 1);
    REQUIRE(x->state == TRANSFER_DONE);
    rank_settle(me);
    rank_meet(me);
    return x;
}
static uint64_t fake_count_requests(void)
{
    return fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE) + fake.fake_count(FAKE_READS);
}
/* Until verbs has connected, all messages go by TCP. */
static void each_for_its_own(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    uint64_t before = fake_count_requests();
    for (bool none = true; none; rank_meet(me)) {
        rank_exchange(me, &x, 0, &piece, 4096);
        none = fake_count_requests() == before;
    }
    before = fake_count_requests();
    rank_meet(me);
    for (uint64_t name = 0; name < 10; name++) rank_exchange(me, &x, name, &piece, 8);
    REQUIRE(fake_count_requests() == before);
    rank_meet(me);
    rank_exchange(me, &x, 1, &piece, 4096);
    REQUIRE(fake_count_requests() == before + 1);
    rank_meet(me);
    rank_exchange(me, &x, 2, &piece, 1 << 20);
    /* OFFER, a read, and DONE. */
    REQUIRE(fake_count_requests() == before + 4);
    rank_meet(me);
    router_use_network(me->router, 0);
    rank_exchange(me, &x, 3, &piece, 1 << 20);
    REQUIRE(fake_count_requests() == before + 4);
    rank_meet(me);
    router_use_network(me->router, 1);
    rank_exchange(me, &x, 4, &piece, 8);
    REQUIRE(fake_count_requests() == before + 5);
}
static void test_each_message_takes_the_faster_network(void **state)
{
    (void)state;
    ranks_run_beside(2, POLLS, each_for_its_own);
}

/* ---- failures of one network ---- */
static void run_with(const struct fabric_operations *verbs, enum waiting waiting, body *each)
{
    for (int r = 0; r < 2; r++) verbs_fabrics[r].operations = verbs;
    ranks_run_beside(2, waiting, each);
    for (int r = 0; r < 2; r++) verbs_fabrics[r].operations = &verbs_operations;
}
static tutti_status connect_nowhere(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    (void)fabric, (void)process, (void)address, (void)bytes, (void)out;
    (void)key;
    return status_fail(TUTTI_NO_MEMORY, "there is no room for a connection");
}
static void all_is_refused(struct rank *me)
{
    static unsigned char data[8];
    struct transfer x;
    struct piece piece;
    rank_send(me, &x, 1 - me->rank, 1, &piece, data, sizeof data);
    rank_settle(me);
    rank_send(me, &x, 1 - me->rank, 2, &piece, data, sizeof data);
    rank_await(me, &x, 1);
    REQUIRE(x.state == TRANSFER_FAILED && x.status == TUTTI_NO_MEMORY);
    REQUIRE(strstr(me->router->reason, "cannot send to rank") && strstr(me->router->reason, "there is no room"));
    rank_meet(me);
}
static void test_a_failed_send_reports_why_connecting_failed(void **state)
{
    struct fabric_operations verbs = verbs_operations;
    (void)state;
    verbs.connect = connect_nowhere;
    run_with(&verbs, POLLS, all_is_refused);
}
/* Connects, and breaks the connection before it opens. No message waits for it, so no rank is lost. */
static tutti_status connect_and_break(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    TRY(verbs_operations.connect(fabric, process, key, address, bytes, out));
    endpoint_mark_broken(fabric, *out, "no process answers there");
    return TUTTI_OK;
}
static void all_goes_by_sockets(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    for (uint64_t name = 0; name < 5; name++) rank_exchange(me, &x, name, &piece, 8);
    usleep((HOLD_MS + 100) * 1000);
    for (uint64_t name = 5; name < 10; name++) rank_exchange(me, &x, name, &piece, 1 << 20);
    REQUIRE(me->router->reason[0] == 0);
}
static void run_with_broken_verbs(void)
{
    struct fabric_operations verbs = verbs_operations;
    verbs.connect = connect_and_break;
    run_with(&verbs, POLLS, all_goes_by_sockets);
}
static void test_a_broken_connection_that_no_message_needs_is_logged_once(void **state)
{
    (void)state;
    const char *said = said_by(run_with_broken_verbs);
    const char *words =
        "rank 0 has no connection by verbs with rank 1 on the host of rank 1 (no process answers there): "
        "messages go by another network";
    const char *first = strstr(said, words);
    assert_non_null(first);
    assert_null(strstr(first + 1, words));
}
static void run_long(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    rank_exchange(me, &x, 0, &piece, 8);
    usleep((UNCONNECTED_MS + 100) * 1000);
    for (uint64_t name = 1; name < 4; name++) rank_exchange(me, &x, name, &piece, 8);
}
static void run_without_handshakes(void)
{
    const struct fake_faults faults = { .seed = 1, .drop = 1000000 };
    networks_reset();
    fake.fake_set_faults(&faults);
    ranks_fabric_apart_beside(sockets, verbs_fabrics, 2, POLLS, run_long);
}
static void test_a_connection_that_never_opens_is_logged_once(void **state)
{
    (void)state;
    const char *said = said_by(run_without_handshakes);
    const char *words = "rank 0 has no connection by verbs with rank 1 on the host of rank 1 (it is still asked for)";
    const char *first = strstr(said, words);
    assert_non_null(first);
    assert_null(strstr(first + 1, words));
}
/* A large message is held because its connection broke. A small one of the same name, which would go by the other
   network, must not overtake it. */
static void one_breaks(struct rank *me)
{
    struct transfer x[2];
    struct piece piece[2];
    static unsigned char data[1 << 20];
    uint64_t before = fake_count_requests();
    for (bool none = true; none; rank_meet(me)) {
        rank_exchange(me, x, 0, piece, 4096);
        none = fake_count_requests() == before;
    }
    if (me->rank == 0) {
        pthread_mutex_lock(&verbs_fabrics[0].lock);
        for (struct endpoint *e = verbs_fabrics[0].endpoints; e; e = e->next)
            verbs_operations.disconnect(&verbs_fabrics[0], e);
        pthread_mutex_unlock(&verbs_fabrics[0].lock);
    }
    rank_meet(me);
    if (me->rank == 0) {
        rank_send(me, &x[0], 1, 5, &piece[0], data, sizeof data);
        rank_send(me, &x[1], 1, 5, &piece[1], data, 8);
        rank_await(me, x, 2);
        REQUIRE(x[0].status == TUTTI_PEER_LOST && x[1].status == TUTTI_PEER_LOST);
    } else {
        rank_recv(me, &x[0], 0, 5, &piece[0], data, sizeof data);
        rank_settle(me);
    }
    rank_meet(me);
    if (me->rank == 1) {
        rank_settle(me);
        REQUIRE(x[0].state == TRANSFER_POSTED || x[0].status == TUTTI_PEER_LOST);
        router_lose_peer(me->router, 0, status_fail(TUTTI_PEER_LOST, "the link has ended"));
    }
    rank_meet(me);
}
static void test_a_message_that_a_broken_network_holds_is_not_overtaken(void **state)
{
    (void)state;
    ranks_run_beside(2, POLLS, one_breaks);
}
unit_function test_beside;
int test_beside(void)
{
    if (!ranks_verbs_open()) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract_holds_over_tcp_beside_verbs),
        cmocka_unit_test(test_transfers_with_a_lost_rank_fail),
        cmocka_unit_test(test_each_message_takes_the_faster_network),
        cmocka_unit_test(test_a_failed_send_reports_why_connecting_failed),
        cmocka_unit_test(test_a_broken_connection_that_no_message_needs_is_logged_once),
        cmocka_unit_test(test_a_connection_that_never_opens_is_logged_once),
        cmocka_unit_test(test_a_message_that_a_broken_network_holds_is_not_overtaken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
