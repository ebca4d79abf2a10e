/* Verbs, when the device that is none does what devices do at their worst. Each test begins with one that is well, and
   ends with nothing left of it. */
#include "backend/transports/verbs/nic.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_verbs.h"
#include <errno.h>

enum { LARGE = 300000 };
static enum ibv_wc_status status;
static bool of_read; /* the request that fails is the receiver's read, else the sender's write */

/* What is on its way, late greetings included, has come: a failure that is ordered then meets what is posted next. */
static void await_quiet(struct rank *me)
{
    for (int turn = 0; turn < 3; turn++) {
        rank_settle(me);
        usleep(5000);
    }
    rank_meet(me);
}

/* ---- a work request fails ---- */
/* Rank 0 sends to rank 1 what is announced. Whose request it was finds the connection broken by itself; the other is
   told by the link between the processes, which here is this body. */
static void one_request_fails(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char *data = buffer(LARGE);
    int mine = of_read ? 1 : 0;
    rank_swap(me, 0);
    await_quiet(me);
    rank_meet(me);
    if (me->rank == mine) fake.fake_fail_request(of_read ? 1 : 0, status, false); /* the offer comes before the read */
    rank_meet(me);
    if (me->rank == 0) rank_send(me, &x, 1, 9, &piece, data, LARGE);
    else rank_recv(me, &x, 0, 9, &piece, data, LARGE);
    if (me->rank == mine) rank_await(me, &x, 1);
    rank_meet(me);
    if (me->rank != mine && x.state == TRANSFER_POSTED)
        router_lose_peer(me->router, mine, status_fail(TUTTI_PEER_LOST, "the link says so"));
    REQUIRE(x.state == TRANSFER_FAILED && x.status == TUTTI_PEER_LOST);
    if (me->rank == mine) REQUIRE(strstr(me->router->reason, "the connection of rank"));
    if (me->rank == 1)
        for (size_t i = 0; i < LARGE; i++) REQUIRE(data[i] == 0xee);
    rank_meet(me);
    free(data);
}
static const enum ibv_wc_status errors[] = { IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR, IBV_WC_LOC_PROT_ERR,
    IBV_WC_BAD_RESP_ERR, IBV_WC_LOC_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR, IBV_WC_REM_ABORT_ERR, IBV_WC_FATAL_ERR, IBV_WC_RESP_TIMEOUT_ERR,
    IBV_WC_GENERAL_ERR };
static void each_error(bool read)
{
    of_read = read;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        status = errors[i];
        ranks_verbs_apart(2, POLLS, one_request_fails);
    }
}
static void test_a_write_that_fails(void **state)
{
    (void)state;
    each_error(false);
}
static void test_a_read_that_fails(void **state)
{
    (void)state;
    each_error(true);
}

/* ---- the device takes its time, and loses what it may lose ---- */
static void test_late_completions_and_lost_greetings(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        const struct fake_faults faults = { .seed = seed,
            .delay = 50000,
            .delay_most_us = 200,
            .late = 50000,
            .late_most_us = 200,
            .drop = 300000,
            .duplicate = 300000 };
        fake.fake_set_faults(&faults);
        ranks_verbs_apart(2, seed % 2 ? POLLS : SLEEPS, the_contract);
    }
}
/* A device with little of everything: messages wait for room, reads for their turn. */
static void test_a_small_device(void **state)
{
    struct fake_limits limits = fake.fake_limits();
    (void)state;
    limits.max_inline = 0;
    limits.max_message = 1 << 17; /* an eager ring takes one of 64 KiB whole */
    limits.max_cqe = 8500; /* what is asked for: one less would be refused */
    limits.max_rd_atomic = 1;
    fake.fake_set_limits(&limits);
    ranks_verbs_apart(2, POLLS, the_contract);
}

/* ---- what it refuses ---- */
static void a_message_goes(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char *data = buffer(LARGE);
    if (me->rank == 0) rank_send(me, &x, 1, 1, &piece, data, LARGE);
    else rank_recv(me, &x, 0, 1, &piece, data, LARGE);
    rank_await(me, &x, 1);
    REQUIRE(x.state == TRANSFER_DONE);
    rank_meet(me);
    free(data);
}
static void no_memory_for_it(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char *data = buffer(LARGE);
    rank_connect(me);
    if (me->rank == 0) {
        struct fake_limits limits = fake.fake_limits();
        limits.pinned_most = 1;
        fake.fake_set_limits(&limits);
        rank_send(me, &x, 1, 1, &piece, data, LARGE);
        rank_await(me, &x, 1);
        REQUIRE(x.state == TRANSFER_FAILED && strstr(me->router->reason, "ulimit -l"));
    }
    rank_meet(me);
    free(data);
}
static void test_memory_that_cannot_be_registered(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, no_memory_for_it);
}
static void test_a_call_that_fails_while_it_starts(void **state)
{
    static const enum fake_call calls[] = { FAKE_OPEN_DEVICE, FAKE_ALLOC_PD, FAKE_CREATE_CHANNEL, FAKE_CREATE_CQ,
        FAKE_CREATE_SRQ, FAKE_CREATE_QP, FAKE_MODIFY_QP, FAKE_POST_RECV };
    const struct fabric_environment place = { .device = "lo", .simulated = true };
    const unsigned char process[16] = { 1 };
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t bytes;
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct fake_limits one = fake.fake_limits();
        one.devices = 1;
        fake.fake_set_limits(&one);
        fake.fake_fail_call(calls[i], 0, ENOMEM);
        tutti_status told = fabric_open(&verbs_fabrics[0], process, &place, address, &bytes);
        assert_true(told == TUTTI_SYSTEM || told == TUTTI_UNSUPPORTED);
        assert_non_null(strstr(status_detail(), "fake_0"));
        assert_int_equal(fake.fake_left(), 0);
    }
    ranks_verbs_apart(2, POLLS, a_message_goes); /* and when all is well again */
}

/* Every work request of every connection may end with an error: there is room for all, or no connection. */
static void test_completions_have_room_whatever_fails(void **state)
{
    enum { MANY = 40 };
    const struct fabric_environment place = { .device = "lo", .simulated = true };
    struct fabric *fabric = &verbs_fabrics[0];
    unsigned char process[16] = { 1 }, address[FABRIC_ADDRESS_BYTES];
    const struct key_id key = ranks_key();
    struct endpoint *made;
    size_t bytes;
    (void)state;
    for (int most = 0; most <= 1; most++) {
        struct fake_limits limits = fake.fake_limits();
        limits.devices = 1;
        if (most) limits.max_cqe = 10000;
        fake.fake_set_limits(&limits);
        assert_int_equal(fabric_open(fabric, process, &place, address, &bytes), TUTTI_OK);
        int pairs = 0;
        pthread_mutex_lock(&fabric->lock); /* its thread makes progress */
        for (; pairs < MANY; pairs++) {
            process[1] = (unsigned char)(pairs + 1);
            if (fabric->operations->connect(fabric, process, &key, address, bytes, &made) != TUTTI_OK) break;
            assert_true(nic_of_fabric(fabric)->adapters[0].completions->cqe >= RECEIVES + (pairs + 1) * SENDS);
        }
        pthread_mutex_unlock(&fabric->lock);
        assert_int_equal(pairs, most ? (10000 - RECEIVES - 4 * DATAGRAM_SLOTS) / SENDS : MANY);
        if (most) assert_non_null(strstr(status_detail(), "room for 10000 completions"));
        process[1] = 0;
        fabric_close(fabric);
        assert_int_equal(fake.fake_left(), 0);
    }
}

/* ---- a cable ---- */
static void a_pulled_cable(struct rank *me)
{
    rank_connect(me);
    if (me->rank == 0) fake.fake_set_port(0, false);
    rank_meet(me);
    struct transfer x[2];
    struct piece pieces[2];
    unsigned char out[8] = { 1 }, in[8] = { 0 };
    rank_send(me, &x[0], 1 - me->rank, 1, &pieces[0], out, sizeof out);
    rank_recv(me, &x[1], 1 - me->rank, 1, &pieces[1], in, sizeof in);
    for (int n = 0; n < 200; n++) rank_poll(me);
    REQUIRE(x[1].state == TRANSFER_POSTED);
    rank_meet(me);
    if (me->rank == 0) fake.fake_set_port(0, true);
    rank_await(me, x, 2);
    REQUIRE(x[1].state == TRANSFER_DONE && in[0] == 1);
    rank_meet(me);
}
static void test_a_cable_that_is_out_for_a_moment(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, a_pulled_cable);
}

/* ---- a device, a pair ---- */
static void both_hear_of_a_break(struct rank *me, struct transfer *x, const char *why)
{
    rank_await(me, x, 1);
    REQUIRE(x->state == TRANSFER_FAILED && x->status == TUTTI_PEER_LOST);
    REQUIRE(strstr(me->router->reason, "the connection of rank") && strstr(me->router->reason, why));
    rank_meet(me);
}
static void a_broken_device(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char in[8];
    rank_swap(me, 0);
    await_quiet(me);
    rank_recv(me, &x, 1 - me->rank, 1, &piece, in, sizeof in);
    rank_meet(me);
    for (int device = 0; me->rank == 0 && device < FAKE_DEVICES; device++) fake.fake_break_device(device);
    both_hear_of_a_break(me, &x, "its device has failed");
}
static void test_a_device_that_breaks(void **state)
{
    (void)state;
    ranks_verbs_apart(2, SLEEPS, a_broken_device);      /* its event is consumed by who waits for events */
}
static void an_unplugged_pair(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char *data = buffer(LARGE);
    rank_swap(me, 0);
    await_quiet(me);
    const struct endpoint *e = verbs_fabrics[me->rank].endpoints;
    if (me->rank == 0)
        fake.fake_unplug_pair(((const struct verbs_endpoint *)(const void *)e)->lanes[0].qp->qp_num, true);
    rank_meet(me);
    rank_send(me, &x, 1 - me->rank, 1, &piece, data, LARGE);
    both_hear_of_a_break(me, &x, "retr");
    free(data);
}
static void test_a_pair_that_nothing_reaches(void **state)
{
    struct fake_limits limits = fake.fake_limits();
    (void)state;
    limits.retry_us = 1000;
    fake.fake_set_limits(&limits);
    ranks_verbs_apart(2, POLLS, an_unplugged_pair);
}

/* ---- what the other side says ---- */
/* By hand, behind what its port has sent. */
static bool say_by_hand(const struct rank *me, struct verbs_xfer *xfer)
{
    struct fabric_op op = { .header = { .comm = me->router->comm,
                                .name = name_of(9),
                                .id = 1,
                                .from = 0,
                                .to = 1,
                                .sequence = me->router->routes[1].sent } };
    struct fabric *fabric = &verbs_fabrics[0];
    xfer->op = &op;
    pthread_mutex_lock(&fabric->lock);
    bool sent = eager_ring_send_xfer(fabric, verbs_endpoint_of(fabric->endpoints), xfer);
    pthread_mutex_unlock(&fabric->lock);
    return sent;
}
static struct verbs_xfer by_hand;
static const char *complaint;
static void it_says_what_cannot_be(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char in[8];
    rank_connect(me);
    await_quiet(me);
    rank_recv(me, &x, 1 - me->rank, 9, &piece, in, 0);
    rank_meet(me);
    if (me->rank == 0) REQUIRE(say_by_hand(me, &by_hand));
    if (me->rank == 1) both_hear_of_a_break(me, &x, complaint);
    else both_hear_of_a_break(me, &x, "");
}
static void test_an_offer_of_nothing(void **state)
{
    (void)state;
    by_hand = (struct verbs_xfer){ .kind = OFFER, .offer.id = 1 };
    complaint = "its process has sent a message of an invalid length";
    ranks_verbs_apart(2, POLLS, it_says_what_cannot_be);
}
static void test_an_end_of_what_was_not_offered(void **state)
{
    (void)state;
    by_hand = (struct verbs_xfer){ .kind = DONE, .offer.id = 1 };
    complaint = "its process has sent an invalid message";
    ranks_verbs_apart(2, POLLS, it_says_what_cannot_be);
}
static void test_a_message_of_a_kind_that_is_none(void **state)
{
    (void)state;
    by_hand = (struct verbs_xfer){ .kind = (enum verbs_message_kind)(GOODBYE + 1) };
    complaint = "its process has sent an invalid message";
    ranks_verbs_apart(2, POLLS, it_says_what_cannot_be);
}
unit_function test_verbs_faults;
int test_verbs_faults(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_write_that_fails, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_read_that_fails, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_late_completions_and_lost_greetings, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_small_device, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_completions_have_room_whatever_fails, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_memory_that_cannot_be_registered, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_call_that_fails_while_it_starts, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_cable_that_is_out_for_a_moment, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_device_that_breaks, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_pair_that_nothing_reaches, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_an_offer_of_nothing, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_an_end_of_what_was_not_offered, ranks_verbs_begin, ranks_verbs_end),
        cmocka_unit_test_setup_teardown(test_a_message_of_a_kind_that_is_none, ranks_verbs_begin, ranks_verbs_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
