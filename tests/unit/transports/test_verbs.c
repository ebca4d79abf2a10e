/* The contract over verbs, on the fake provider (tests/verbs): between ranks with a fabric each, as processes have, and
   between threads that share one. Then the numbers of requests and doorbells of a message. */
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_verbs.h"

static void test_contract_holds_between_fabrics(void **state)
{
    (void)state;
    for (int size = VERBS_LEAST; size <= VERBS_MOST; size++)
        ranks_verbs_apart(size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_contract_holds_between_threads_of_one_fabric(void **state)
{
    (void)state;
    for (int size = VERBS_LEAST; size <= VERBS_MOST; size++)
        ranks_fabric_threads(&verbs_fabrics[0], size, size % 2 ? POLLS : SLEEPS, the_contract);
}

/* ---- numbers of requests ---- */
static struct { uint64_t writes, reads, doorbells, inlined, bytes_read; } before;
/* Rank 0 records the counts while no rank sends. */
static void count_from_here(struct rank *me)
{
    rank_connect(me);
    if (me->rank == 0) {
        before.writes = fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE);
        before.reads = fake.fake_count(FAKE_READS);
        before.doorbells = fake.fake_count(FAKE_DOORBELLS);
        before.inlined = fake.fake_count(FAKE_INLINED);
        before.bytes_read = fake.fake_count(FAKE_BYTES_READ);
    }
    rank_meet(me);
}
enum { ROUNDS = 20, LARGE = 5 << 20 };
static void small_messages(struct rank *me)
{
    count_from_here(me);
    for (uint64_t i = 1; i <= ROUNDS; i++) rank_swap(me, i);
    rank_meet(me);
    if (me->rank != 0) return;
    /* One request for each message. */
    REQUIRE(fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE) - before.writes == 2 * ROUNDS);
    REQUIRE(fake.fake_count(FAKE_DOORBELLS) - before.doorbells == 2 * ROUNDS);
    REQUIRE(fake.fake_count(FAKE_INLINED) - before.inlined == 2 * ROUNDS);
    REQUIRE(fake.fake_count(FAKE_READS) == before.reads);
}
static void test_a_small_message_is_one_request(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, small_messages);
}
static unsigned char from[LARGE], to[LARGE];
/* OFFER, reads of a MiB each with one doorbell for all, and DONE. Only OFFER and DONE go through an eager ring. */
static void large_message(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    count_from_here(me);
    if (me->rank == 0) rank_send(me, &x, 1, 7, &piece, from, LARGE);
    else rank_recv(me, &x, 0, 7, &piece, to, LARGE);
    rank_await(me, &x, 1);
    rank_meet(me);
    if (me->rank != 0) return;
    REQUIRE(fake.fake_count(FAKE_WRITES_WITH_IMMEDIATE) - before.writes == 2);
    REQUIRE(fake.fake_count(FAKE_READS) - before.reads == 5);
    REQUIRE(fake.fake_count(FAKE_DOORBELLS) - before.doorbells == 3);
    REQUIRE(fake.fake_count(FAKE_BYTES_READ) - before.bytes_read == LARGE);
}
static void test_a_large_message_is_read_from_where_it_lies(void **state)
{
    (void)state;
    memset(from, 0x5a, sizeof from);
    ranks_verbs_apart(2, POLLS, large_message);
    assert_memory_equal(from, to, sizeof from);
}
static void test_no_object_of_the_provider_is_left(void **state)
{
    (void)state;
    assert_int_equal(fake.fake_left(), 0);
}
unit_function test_verbs;
int test_verbs(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contract_holds_between_fabrics),
        cmocka_unit_test(test_contract_holds_between_threads_of_one_fabric),
        cmocka_unit_test(test_a_small_message_is_one_request),
        cmocka_unit_test(test_a_large_message_is_read_from_where_it_lies),
        cmocka_unit_test(test_no_object_of_the_provider_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
