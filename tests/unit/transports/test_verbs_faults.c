/* Verbs while the fake provider fails as devices may. Each test begins without faults, and leaves no object of the
   provider. */
#include "backend/transports/verbs/nic.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_verbs.h"
#include <errno.h>

enum { LARGE = 300000 };
static enum ibv_wc_status status;
/* The request that fails: the receiver's read, otherwise the sender's write. */
static bool of_read;

/* Waits until all messages and handshake datagrams have arrived, so that an ordered failure hits the next request. */
static void await_quiet(struct rank *me)
{
    for (int turn = 0; turn < 3; turn++) {
        rank_settle(me);
        usleep(5000);
    }
    rank_meet(me);
}

/* ---- a work request fails ---- */
/* Rank 0 sends an announced message to rank 1, and a request of one of them fails. That rank finds the connection
   broken itself. The other rank learns it from the link between the processes, for which this body stands. */
static void one_request_fails(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char *data = buffer(LARGE);
    int mine = of_read ? 1 : 0;
    rank_swap(me, 0);
    await_quiet(me);
    rank_meet(me);
    /* The write of OFFER comes before the read. */
    if (me->rank == mine) fake.fake_fail_request(of_read ? 1 : 0, status, false);
    rank_meet(me);
    if (me->rank == 0) rank_send(me, &x, 1, 9, &piece, data, LARGE);
    else rank_recv(me, &x, 0, 9, &piece, data, LARGE);
    if (me->rank == mine) rank_await(me, &x, 1);
    rank_meet(me);
    if (me->rank != mine && x.state == TRANSFER_POSTED)
        router_lose_peer(me->router, mine, status_fail(TUTTI_PEER_LOST, "the link has ended"));
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
static void test_a_failed_write_loses_the_peer(void **state)
{
    (void)state;
    each_error(false);
}
static void test_a_failed_read_loses_the_peer(void **state)
{
    (void)state;
    each_error(true);
}

/* ---- late completions, lost datagrams, small limits ---- */
static void test_contract_holds_with_late_completions_and_lost_handshakes(void **state)
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
/* The device has small limits, so messages wait for room, and reads wait for earlier reads. */
static void test_contract_holds_on_a_device_with_small_limits(void **state)
{
    struct fake_limits limits = fake.fake_limits();
    (void)state;
    limits.max_inline = 0;
    /* One request must carry an eager message of 64 KiB. */
    limits.max_message = 1 << 17;
    /* Enough completions for 16 queue pairs. */
    limits.max_cqe = 8500;
    limits.max_rd_atomic = 1;
    fake.fake_set_limits(&limits);
    ranks_verbs_apart(2, POLLS, the_contract);
}

/* ---- refused calls ---- */
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
static void test_a_send_beyond_the_limit_of_locked_memory_names_it(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, no_memory_for_it);
}
static void test_a_call_that_fails_at_the_start_leaves_no_object(void **state)
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
        tutti_status result = fabric_open(&verbs_fabrics[0], process, &place, address, &bytes);
        assert_true(result == TUTTI_SYSTEM || result == TUTTI_UNSUPPORTED);
        assert_non_null(strstr(status_detail(), "fake_0"));
        assert_int_equal(fake.fake_left(), 0);
    }
    /* Without faults verbs works again. */
    ranks_verbs_apart(2, POLLS, a_message_goes);
}

/* Every work request of every connection may end with an error. The completion queue has room for all of them, or the
   connection is refused. */
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
        /* The fabric's thread runs meanwhile. */
        pthread_mutex_lock(&fabric->lock);
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

/* ---- refused posts ---- */
/* The device refuses the write of a small message of rank 0. */
static void a_write_is_refused(struct rank *me)
{
    const unsigned char data[8] = { 0 };
    struct fabric *fabric = &verbs_fabrics[me->rank];
    rank_connect(me);
    await_quiet(me);
    if (me->rank == 0) {
        pthread_mutex_lock(&fabric->lock);
        struct fabric_op op = { .endpoint = fabric->endpoints, .bytes = sizeof data };
        fake.fake_fail_call(FAKE_POST_SEND, 0, EIO);
        bool is_in_flight = fabric->operations->send(fabric, &op, data, false);
        pthread_mutex_unlock(&fabric->lock);
        REQUIRE(!is_in_flight && op.why && strstr(op.why, strerror(EIO)));
    }
    rank_meet(me);
}
static void test_a_refused_write_fails_its_send(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, a_write_is_refused);
}
/* Returns how many of its receives completions have used, as the fabric counts them. */
static int fabric_used_receives(struct fabric *fabric)
{
    pthread_mutex_lock(&fabric->lock);
    int used = nic_of_fabric(fabric)->used_receives;
    pthread_mutex_unlock(&fabric->lock);
    return used;
}
/* The device refuses one receive in the middle of a list. The receives before it are posted and must not be posted
   again: each write with immediate data uses one receive. */
static void a_receive_is_refused(struct rank *me)
{
    static int used[2];
    static uint64_t writes, receives;
    rank_connect(me);
    await_quiet(me);
    used[me->rank] = fabric_used_receives(&verbs_fabrics[me->rank]);
    if (me->rank == 0) {
        writes = fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE);
        receives = fake.fake_count(FAKE_RECEIVES);
        fake.fake_fail_call(FAKE_POST_RECV, RECEIVES_AT_ONCE / 2, ENOMEM);
    }
    rank_meet(me);
    for (uint64_t turn = 1; turn <= 3 * RECEIVES_AT_ONCE; turn++) rank_swap(me, turn);
    await_quiet(me);
    used[me->rank] = fabric_used_receives(&verbs_fabrics[me->rank]) - used[me->rank];
    rank_meet(me);
    if (me->rank == 0) {
        int64_t posted = (int64_t)(fake.fake_count(FAKE_RECEIVES) - receives);
        REQUIRE(posted > RECEIVES_AT_ONCE);
        REQUIRE(posted + used[0] + used[1] == (int64_t)(fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE) - writes));
    }
    rank_meet(me);
}
static void test_receives_before_a_refused_one_are_posted_once(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, a_receive_is_refused);
}
/* Rank 0 shuts down while its send queue is full, because completions come late. */
static void a_full_queue_shuts_down(struct rank *me)
{
    static const struct fake_faults late = { .seed = 1, .late = 1000000, .late_most_us = 20000 };
    struct fabric *fabric = &verbs_fabrics[me->rank];
    rank_connect(me);
    await_quiet(me);
    struct verbs_endpoint *endpoint = verbs_endpoint_of(fabric->endpoints);
    if (me->rank == 0) {
        fake.fake_set_faults(&late);
        pthread_mutex_lock(&fabric->lock);
        while (eager_ring_send_control(fabric, endpoint, ACK, false)) {}
        REQUIRE(!lane_has_room(&endpoint->lanes[0]));
        fabric->operations->shutdown(fabric);
        pthread_mutex_unlock(&fabric->lock);
    }
    for (bool is_over = me->rank == 0; !is_over; rank_settle(me)) {
        pthread_mutex_lock(&fabric->lock);
        REQUIRE(!endpoint_is_broken(&endpoint->base));
        is_over = endpoint->base.has_left;
        pthread_mutex_unlock(&fabric->lock);
    }
    rank_meet(me);
}
static void test_a_goodbye_waits_for_room_in_the_send_queue(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, a_full_queue_shuts_down);
}

/* ---- a port that is down ---- */
static void port_is_down_for_a_moment(struct rank *me)
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
static void test_messages_arrive_after_the_port_is_up_again(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, port_is_down_for_a_moment);
}

/* ---- a broken device, an unreachable queue pair ---- */
static void expect_break(struct rank *me, struct transfer *x, const char *why)
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
    expect_break(me, &x, "its device has failed");
}
static void test_a_failed_device_breaks_its_connections(void **state)
{
    (void)state;
    /* A rank that sleeps, and so waits for events, reads the event of the device. */
    ranks_verbs_apart(2, SLEEPS, a_broken_device);
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
    expect_break(me, &x, "retr");
    free(data);
}
static void test_an_unreachable_queue_pair_breaks_the_connection(void **state)
{
    struct fake_limits limits = fake.fake_limits();
    (void)state;
    limits.retry_us = 1000;
    fake.fake_set_limits(&limits);
    ranks_verbs_apart(2, POLLS, an_unplugged_pair);
}

/* ---- invalid messages ---- */
/* Sends a message from rank 0 to rank 1, with the sequence number that is next. */
static bool send_by_hand(const struct rank *me, struct verbs_xfer *xfer)
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
/* The message that rank 0 sends, and the reason that rank 1 reports. */
static struct verbs_xfer by_hand;
static const char *complaint;
static void sends_an_invalid_message(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    unsigned char in[8];
    rank_connect(me);
    await_quiet(me);
    rank_recv(me, &x, 1 - me->rank, 9, &piece, in, 0);
    rank_meet(me);
    if (me->rank == 0) REQUIRE(send_by_hand(me, &by_hand));
    if (me->rank == 1) expect_break(me, &x, complaint);
    else expect_break(me, &x, "");
}
static void test_an_offer_of_no_bytes_breaks_the_connection(void **state)
{
    (void)state;
    by_hand = (struct verbs_xfer){ .kind = OFFER, .offer.id = 1 };
    complaint = "its process has sent a message of an invalid length";
    ranks_verbs_apart(2, POLLS, sends_an_invalid_message);
}
static void test_a_done_without_an_offer_breaks_the_connection(void **state)
{
    (void)state;
    by_hand = (struct verbs_xfer){ .kind = DONE, .offer.id = 1 };
    complaint = "its process has sent an invalid message";
    ranks_verbs_apart(2, POLLS, sends_an_invalid_message);
}
static void test_a_message_of_an_unknown_kind_breaks_the_connection(void **state)
{
    (void)state;
    by_hand = (struct verbs_xfer){ .kind = (enum verbs_message_kind)(GOODBYE + 1) };
    complaint = "its process has sent an invalid message";
    ranks_verbs_apart(2, POLLS, sends_an_invalid_message);
}
unit_function test_verbs_faults;
int test_verbs_faults(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
#define TEST(name) cmocka_unit_test_setup_teardown(name, ranks_verbs_begin, ranks_verbs_end)
    const struct CMUnitTest tests[] = {
        TEST(test_a_failed_write_loses_the_peer),
        TEST(test_a_failed_read_loses_the_peer),
        TEST(test_contract_holds_with_late_completions_and_lost_handshakes),
        TEST(test_contract_holds_on_a_device_with_small_limits),
        TEST(test_completions_have_room_whatever_fails),
        TEST(test_a_send_beyond_the_limit_of_locked_memory_names_it),
        TEST(test_a_call_that_fails_at_the_start_leaves_no_object),
        TEST(test_a_refused_write_fails_its_send),
        TEST(test_receives_before_a_refused_one_are_posted_once),
        TEST(test_a_goodbye_waits_for_room_in_the_send_queue),
        TEST(test_messages_arrive_after_the_port_is_up_again),
        TEST(test_a_failed_device_breaks_its_connections),
        TEST(test_an_unreachable_queue_pair_breaks_the_connection),
        TEST(test_an_offer_of_no_bytes_breaks_the_connection),
        TEST(test_a_done_without_an_offer_breaks_the_connection),
        TEST(test_a_message_of_an_unknown_kind_breaks_the_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
