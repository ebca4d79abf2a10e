/* Verbs with several rails, on the two fake devices: all rails read parts of a large message, and small messages travel
   as with one rail. If there are more rails than devices, some devices have two queue pairs for a connection. */
#include "backend/base/settings.h"
#include "backend/transports/verbs/nic.h"
#include "backend/transports/verbs/verbs.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_verbs.h"
#include <errno.h>

enum { LARGE = 5 << 20, EVENTS = 64 };
static unsigned char from[LARGE], to[LARGE];
static void use_rails(int count)
{
    char text[12];
    snprintf(text, sizeof text, "%d", count);
    setenv("TUTTI_VERBS_RAILS", text, 1);
    settings_reload();
}
static int prepare(void **state)
{
    use_rails(2);
    return ranks_verbs_begin(state);
}

/* ---- the contract ---- */
static void test_contract_holds_with_each_number_of_rails(void **state)
{
    (void)state;
    for (int rails = 2; rails <= RAILS_MOST; rails++) {
        use_rails(rails);
        ranks_verbs_apart(2, rails % 2 ? POLLS : SLEEPS, the_contract);
    }
}
static void test_contract_holds_if_rails_complete_out_of_order(void **state)
{
    const struct fake_faults faults = { .seed = 7,
        .delay = 50000,
        .delay_most_us = 200,
        .late = 50000,
        .late_most_us = 200,
        .drop = 300000,
        .duplicate = 300000 };
    (void)state;
    use_rails(3);
    fake.fake_set_faults(&faults);
    ranks_verbs_apart(2, POLLS, the_contract);
}
/* Rank r has 1 + r rails. Two processes with different numbers use the smaller one. */
static tutti_status start_with_more(struct fabric *fabric, const struct fabric_environment *place)
{
    use_rails(1 + (int)(fabric - verbs_fabrics));
    return verbs_operations.start(fabric, place);
}
static void test_contract_holds_with_different_numbers_of_rails(void **state)
{
    struct fabric_operations uneven = verbs_operations;
    (void)state;
    uneven.start = start_with_more;
    for (int r = 0; r < VERBS_MOST; r++) verbs_fabrics[r].operations = &uneven;
    ranks_verbs_apart(VERBS_MOST, SLEEPS, the_contract);
    for (int r = 0; r < VERBS_MOST; r++) verbs_fabrics[r].operations = &verbs_operations;
}

/* ---- the parts that rails read ---- */
static struct fake_event seen[EVENTS];
/* The bytes of each message, and the number of messages. */
static size_t asked;
static int messages;
static void some_messages(struct rank *me)
{
    rank_connect(me);
    if (me->rank == 0) fake.fake_trace(seen, EVENTS);
    rank_meet(me);
    for (int i = 0; i < messages; i++) {
        struct transfer x;
        struct piece piece;
        if (me->rank == 0) rank_send(me, &x, 1, 7, &piece, from, asked);
        else rank_recv(me, &x, 0, 7, &piece, to, asked);
        rank_await(me, &x, 1);
        REQUIRE(x.state == TRANSFER_DONE);
    }
    rank_meet(me);
    if (me->rank == 0) fake.fake_trace(NULL, 0);
}
struct reader { uint32_t pair; uint64_t bytes; int doorbells; };
static int readers_of(int each, size_t bytes, struct reader readers[RAILS_MOST])
{
    int count = 0;
    messages = each;
    asked = bytes;
    memset(readers, 0, RAILS_MOST * sizeof *readers);
    memset(to, 0, bytes);
    ranks_verbs_apart(2, POLLS, some_messages);
    assert_memory_equal(from, to, bytes);
    assert_true(fake.fake_traced() <= EVENTS);
    for (size_t n = 0; n < fake.fake_traced(); n++) {
        if (seen[n].moment != FAKE_POSTED || seen[n].opcode != IBV_WR_RDMA_READ) continue;
        int i = 0;
        while (i < count && readers[i].pair != seen[n].qp_num) i++;
        assert_true(i < RAILS_MOST);
        if (i == count) readers[count++].pair = seen[n].qp_num;
        readers[i].bytes += seen[n].bytes;
        readers[i].doorbells += seen[n].rings;
    }
    return count;
}
static void test_all_rails_read_an_equal_part(void **state)
{
    struct reader readers[RAILS_MOST];
    (void)state;
    for (int rails = 1; rails <= RAILS_MOST; rails++) {
        uint64_t all = 0;
        use_rails(rails);
        assert_int_equal(readers_of(1, LARGE, readers), rails);
        for (int i = 0; i < rails; i++) {
            assert_in_range(readers[i].bytes, LARGE / rails - SHARE_BYTES * rails, LARGE / rails + SHARE_BYTES);
            assert_int_equal(readers[i].doorbells, 1);
            all += readers[i].bytes;
        }
        assert_int_equal(all, LARGE);
    }
}
static void test_the_next_message_begins_with_the_next_rail(void **state)
{
    struct reader readers[RAILS_MOST];
    (void)state;
    use_rails(4);
    assert_int_equal(readers_of(1, 2 * SHARE_BYTES, readers), 2);
    assert_int_equal(readers_of(2, 2 * SHARE_BYTES, readers), 4);
    for (int i = 0; i < 4; i++) assert_int_equal(readers[i].bytes, SHARE_BYTES);
}

/* ---- failures ---- */
/* Rank 0's second lane, which carries no sends, breaks. Rank 1 finds this when it reads. Rank 0 learns it from the link
   between the processes, for which this body stands. */
static void lane_fails(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    rank_connect(me);
    if (me->rank == 0) {
        const struct endpoint *e = verbs_fabrics[0].endpoints;
        fake.fake_break_pair(((const struct verbs_endpoint *)(const void *)e)->lanes[1].qp->qp_num);
    }
    rank_meet(me);
    if (me->rank == 0) rank_send(me, &x, 1, 9, &piece, from, LARGE);
    else rank_recv(me, &x, 0, 9, &piece, to, LARGE);
    if (me->rank == 1) rank_await(me, &x, 1);
    rank_meet(me);
    if (me->rank == 0 && x.state == TRANSFER_POSTED)
        router_lose_peer(me->router, 1, status_fail(TUTTI_PEER_LOST, "the link has ended"));
    REQUIRE(x.state == TRANSFER_FAILED && x.status == TUTTI_PEER_LOST);
    if (me->rank == 1) REQUIRE(strstr(me->router->reason, "the connection of rank"));
    rank_meet(me);
}
static void test_a_rail_that_breaks_breaks_the_connection(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, lane_fails);
}
static void not_registered(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    rank_connect(me);
    if (me->rank == 0) {
        /* The second device fails to register the memory. */
        fake.fake_fail_call(FAKE_REG_MR, 1, EIO);
        rank_send(me, &x, 1, 1, &piece, from, LARGE);
        rank_await(me, &x, 1);
        REQUIRE(x.state == TRANSFER_FAILED && strstr(me->router->reason, "cannot be registered"));
    }
    rank_meet(me);
}
static void test_a_send_fails_if_one_device_cannot_register_it(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, not_registered);
}
/* The second device fails to create an object at the start. The error names the port and the object, and no object is
   left. */
static void test_an_object_that_one_device_lacks_is_named(void **state)
{
    static const struct {
        enum fake_call call;
        unsigned after;
        const char *lacks;
    } calls[] = { { FAKE_ALLOC_PD, 1, "fake_1:1 has no protection domain" },
        { FAKE_CREATE_CHANNEL, 1, "fake_1:1 has no completion channel" },
        { FAKE_CREATE_CQ, 1, "fake_1:1 has no completion queue" } };
    const struct fabric_environment place = { .device = "lo", .simulated = true };
    unsigned char address[FABRIC_ADDRESS_BYTES], process[16] = { 1 };
    size_t bytes;
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        fake.fake_fail_call(calls[i].call, calls[i].after, EIO);
        assert_int_equal(fabric_open(&verbs_fabrics[0], process, &place, address, &bytes), TUTTI_SYSTEM);
        assert_non_null(strstr(status_detail(), calls[i].lacks));
        assert_int_equal(fake.fake_left(), 0);
    }
}
unit_function test_verbs_rails;
int test_verbs_rails(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
    for (size_t i = 0; i < LARGE; i++) from[i] = (unsigned char)(i * 2654435761u >> 24);
#define TEST(name) cmocka_unit_test_setup_teardown(name, prepare, ranks_verbs_end)
    const struct CMUnitTest tests[] = {
        TEST(test_contract_holds_with_each_number_of_rails),
        TEST(test_contract_holds_if_rails_complete_out_of_order),
        TEST(test_contract_holds_with_different_numbers_of_rails),
        TEST(test_all_rails_read_an_equal_part),
        TEST(test_the_next_message_begins_with_the_next_rail),
        TEST(test_a_rail_that_breaks_breaks_the_connection),
        TEST(test_a_send_fails_if_one_device_cannot_register_it),
        TEST(test_an_object_that_one_device_lacks_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
