/* Two networks beside each other: the contract holds over both as over one, and each message takes the one that is said
   to be faster for it. Sockets beside UCX, between processes, and beside verbs on the device that is none. */
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/ucx/ucx.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"
#ifdef FAKE_VERBS
#include "tests/unit/transports/ranks_verbs.h"
#endif
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#ifdef FEW
enum { LEAST = 2, MOST = 3 };
#else
enum { LEAST = 1, MOST = 4 };
#endif
#ifndef NO_PROCESSES
static void test_sockets_and_ucx(void **state)
{
    (void)state;
    if (!fabric_is_there("UCX", ucx_describe)) skip();
    for (int size = LEAST; size <= MOST; size++)
        ranks_fabric_processes_beside(&tcp_fabric, &ucx_fabric, size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_a_process_that_is_gone(void **state)
{
    (void)state;
    if (!fabric_is_there("UCX", ucx_describe)) skip();
    ranks_fabric_processes_beside(&ucx_fabric, &tcp_fabric, 3, POLLS, the_last_rank_goes);
}
#endif
#ifdef FAKE_VERBS
static struct fabric sockets[MOST];
static void run(int size, enum waiting waiting, body *each)
{
    fake.fake_reset();
    for (int r = 0; r < MOST; r++) sockets[r] = (struct fabric)FABRIC(&tcp_operations);
    ranks_fabric_apart_beside(sockets, verbs_fabrics, size, waiting, each);
    assert_int_equal(fake.fake_left(), 0);
}
static void test_sockets_and_verbs(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++) run(size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_a_rank_that_is_gone(void **state)
{
    (void)state;
    run(3, SLEEPS, the_last_rank_goes);
}

/* ---- the choice ---- */
static struct transfer *exchange(struct rank *me, struct transfer *x, uint64_t name, struct piece *piece, size_t bytes)
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
static uint64_t requests(void) { return fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE) + fake.fake_count(FAKE_READS); }
/* Until a network has connected all goes by another. */
static void each_for_its_own(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    uint64_t before = requests();
    for (bool none = true; none; rank_meet(me)) {
        exchange(me, &x, 0, &piece, 4096);
        none = requests() == before;
    }
    before = requests();
    rank_meet(me);
    for (uint64_t name = 0; name < 10; name++) exchange(me, &x, name, &piece, 8);
    REQUIRE(requests() == before);
    rank_meet(me);
    exchange(me, &x, 1, &piece, 4096);
    REQUIRE(requests() == before + 1);
    rank_meet(me);
    exchange(me, &x, 2, &piece, 1 << 20);
    REQUIRE(requests() == before + 4);                  /* an offer, a read, and that it is done */
    rank_meet(me);
    router_use_network(me->router, 0);
    exchange(me, &x, 3, &piece, 1 << 20);
    REQUIRE(requests() == before + 4);
    rank_meet(me);
    router_use_network(me->router, 1);
    exchange(me, &x, 4, &piece, 8);
    REQUIRE(requests() == before + 5);
}
static void test_each_message_takes_the_faster_one(void **state)
{
    (void)state;
    run(2, POLLS, each_for_its_own);
}
#endif
int main(void)
{
#ifdef FAKE_VERBS
    if (!ranks_verbs_open()) return 1;
#endif
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_sockets_and_ucx),
        cmocka_unit_test(test_a_process_that_is_gone),
#endif
#ifdef FAKE_VERBS
        cmocka_unit_test(test_sockets_and_verbs),
        cmocka_unit_test(test_a_rank_that_is_gone),
        cmocka_unit_test(test_each_message_takes_the_faster_one),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
