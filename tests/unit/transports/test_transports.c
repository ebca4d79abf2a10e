/* The contract, over every transport of one host: inproc with delays and reordering, shm between threads, shm between
   processes, and a router over both. */
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include <sys/sysinfo.h>

/* The receiver stops while it reads a send, so the sender cannot forget the send at once. Cancelling ends after
   cancel_ms. */
static void test_cancelling_ends_although_the_receiver_has_stopped(void **state)
{
    (void)state;
    static unsigned char sent[100000], got[100000];
    struct mixed m;
    struct piece pieces[3] = { { sent, sizeof sent, sizeof sent }, { got, sizeof got, sizeof got }, { got, 8, 8 } };
    struct transfer out = { .peer = 1, .is_send = true, .pieces = &pieces[0], .piece_count = 1 },
                    in = { .peer = 0, .pieces = &pieces[1], .piece_count = 1 },
                    later = { .peer = 1, .pieces = &pieces[2], .piece_count = 1 };
    mixed_open(&m, 2, (int[]){ 0, 1 }, &(struct inproc_options){ .delay = 1000000, .cancel_ms = 30 });
    router_post(m.routers[0], &out);
    router_post(m.routers[1], &in);
    while (!in.wire || in.source < 0) router_poll(m.routers[1]);
    assert_false(router_cancel(m.routers[0], &out));
    assert_int_equal(out.state, TRANSFER_POSTED);
    while (out.state == TRANSFER_POSTED && !router_cancel(m.routers[0], &out)) router_poll(m.routers[0]);
    assert_int_equal(out.state, TRANSFER_FAILED);
    assert_int_equal(out.status, TUTTI_PEER_LOST);
    assert_non_null(strstr(m.routers[0]->reason, "rank 1 has not released"));
    router_post(m.routers[0], &later);
    assert_int_equal(later.status, TUTTI_PEER_LOST);
    /* The caller may use its memory again. The receiver gets none of the new bytes. */
    memset(sent, 0xdd, sizeof sent);
    while (in.state == TRANSFER_POSTED) router_poll(m.routers[1]);
    assert_int_equal(in.status, TUTTI_ABORTED);
    for (size_t i = 0; i < sizeof got; i++) assert_int_equal(got[i], 0);
    mixed_close(&m);
}

/* ---- beyond 32 bits ---- */
#ifndef NO_PROCESSES
/* A message of 4 GiB and 123 bytes: 64 pieces that are the same 64 MiB, and one of 123 bytes. */
static void more_than_4_gib(struct rank *me)
{
    enum { BLOCK = 64 << 20, BLOCKS = 64 };
    struct piece pieces[BLOCKS + 1];
    unsigned char *data = buffer(BLOCK), last[123];
    struct transfer x = {
        .name = { 0, 1 }, .peer = 1 - me->rank, .is_send = me->rank == 0, .pieces = pieces, .piece_count = BLOCKS + 1
    };
    for (int i = 0; i < BLOCKS; i++) pieces[i] = (struct piece){ data, BLOCK, BLOCK };
    pieces[BLOCKS] = (struct piece){ last, sizeof last, sizeof last };
    if (me->rank == 0) bytes_fill(data, BLOCK, 1);
    bytes_fill(last, sizeof last, me->rank == 0 ? 2 : 9);
    router_post(me->router, &x);
    rank_await(me, &x, 1);
    REQUIRE(x.state == TRANSFER_DONE && x.moved == (uint64_t)BLOCK * BLOCKS + sizeof last);
    REQUIRE(bytes_are(data, BLOCK, 1) && bytes_are(last, sizeof last, 2));
    free(data);
}
static void test_a_message_may_exceed_4_gib(void **state)
{
    (void)state;
    struct sysinfo machine;
    if (sysinfo(&machine) != 0 || machine.freeram + machine.bufferram < 512ul << 20) {
        print_message("SKIPPED: a message of 4 GiB takes 512 MiB of free memory, and less is free\n");
        skip();
    }
    ranks_processes(2, more_than_4_gib);
}
#endif

/* ---- over every transport ---- */
#ifdef FEW
enum { LEAST = 2, MOST = 3, STEP = 3, SEEDS = 3 };
#else
enum { LEAST = 1, MOST = 4, STEP = 1, SEEDS = 5 };
#endif
static void test_contract_holds_over_inproc(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++)
        ranks_inproc(size, (unsigned)size, size % 2 ? SLEEPS : POLLS, the_contract);
    for (int size = 2; size <= MOST; size++) ranks_inproc(size, (unsigned)size, SLEEPS_IN_TIME, the_contract);
}
static void test_contract_holds_over_shm_and_inproc(void **state)
{
    (void)state;
    ranks_mixed(4, (int[]){ 0, 0, 1, 1 }, 1, the_contract);
    ranks_mixed(3, (int[]){ 0, 1, 0 }, 2, the_contract);
}
static void test_transfers_with_a_lost_peer_fail(void **state)
{
    (void)state;
    ranks_threads(3, the_last_rank_goes);
    ranks_sharing(3, 5, the_last_rank_goes);
    for (unsigned seed = 1; seed <= SEEDS; seed++) {
        ranks_inproc(3, seed, seed % 2 ? POLLS : SLEEPS_IN_TIME, the_last_rank_goes);
        ranks_mixed(4, (int[]){ 0, 0, 1, 1 }, seed, the_last_rank_goes);
        ranks_mixed(3, (int[]){ 0, 1, 0 }, seed, the_last_rank_goes);
    }
}
static void test_contract_holds_over_shm_between_threads(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++) ranks_threads(size, the_contract);
    for (unsigned reachable = 0; reachable < 8; reachable += STEP) ranks_sharing(3, reachable, the_contract);
}
#ifndef NO_PROCESSES
static void test_contract_holds_over_shm_between_processes(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++) ranks_processes(size, the_contract);
}
#endif
unit_function test_transports;
int test_transports(void)
{
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_contract_holds_over_shm_between_processes),
#endif
        cmocka_unit_test(test_contract_holds_over_shm_between_threads),
        cmocka_unit_test(test_contract_holds_over_inproc),
        cmocka_unit_test(test_contract_holds_over_shm_and_inproc),
        cmocka_unit_test(test_transfers_with_a_lost_peer_fail),
        cmocka_unit_test(test_cancelling_ends_although_the_receiver_has_stopped),
#ifndef NO_PROCESSES
        cmocka_unit_test(test_a_message_may_exceed_4_gib),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
