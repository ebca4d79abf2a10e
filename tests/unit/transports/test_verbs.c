/* The contract over verbs, on a provider that is not there (tests/verbs): between ranks that are like processes, each
   with a device opened for itself, and between threads that share one. */
#include "backend/base/settings.h"
#include "backend/transports/verbs/verbs.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"
#include "tests/verbs/fake.h"
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#ifdef FEW
enum { LEAST = 2, MOST = 3 };
#else
enum { LEAST = 1, MOST = 4 };
#endif
static struct fabric fabrics[MOST];

static void apart(int size, enum waiting waiting, body *each)
{
    struct fabric *list[MOST];
    for (int r = 0; r < size; r++) list[r] = &fabrics[r];
    ranks_fabric_apart(list, size, waiting, each);
}
static void test_between_processes(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++) apart(size, size % 2 ? SLEEPS : POLLS, the_contract);
}
static void test_between_threads(void **state)
{
    (void)state;
    for (int size = LEAST; size <= MOST; size++)
        ranks_fabric_threads(&fabrics[0], size, size % 2 ? POLLS : SLEEPS, the_contract);
}

/* ---- what it costs, by the counters of the device that is none ---- */
static uint64_t (*counted)(enum fake_counter);
static void find_counters(void)
{
    void *opened = dlopen(FAKE_VERBS, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(opened);
    counted = (uint64_t (*)(enum fake_counter))dlsym(opened, "fake_count");
    assert_non_null(counted);
}
static struct { uint64_t writes, reads, doorbells, inlined, bytes_read; } before;
static void count(void)
{
    before.writes = counted(FAKE_WRITES_WITH_IMMEDIATE);
    before.reads = counted(FAKE_READS);
    before.doorbells = counted(FAKE_DOORBELLS);
    before.inlined = counted(FAKE_INLINED);
    before.bytes_read = counted(FAKE_BYTES_READ);
}
enum { ROUNDS = 20, LARGE = 5 << 20 };
static unsigned char from[LARGE], to[LARGE];
/* Both send 8 bytes, then both receive them, as an all-reduce of two does. */
static void swap(struct rank *me, uint64_t name)
{
    struct transfer x[2];
    struct piece pieces[2];
    rank_send(me, &x[0], 1 - me->rank, name, &pieces[0], from, 8);
    rank_recv(me, &x[1], 1 - me->rank, name, &pieces[1], to + 8 * me->rank, 8);
    rank_await(me, x, 2);
}
static void small_messages(struct rank *me)
{
    if (me->rank == 0) find_counters();
    swap(me, 0);
    rank_settle(me);
    rank_meet(me);
    if (me->rank == 0) count();
    rank_meet(me);
    for (uint64_t i = 1; i <= ROUNDS; i++) swap(me, i);
    rank_meet(me);
    if (me->rank == 0) {
        REQUIRE(counted(FAKE_WRITES_WITH_IMMEDIATE) - before.writes == 2 * ROUNDS); /* one for each message */
        REQUIRE(counted(FAKE_DOORBELLS) - before.doorbells == 2 * ROUNDS);
        REQUIRE(counted(FAKE_INLINED) - before.inlined == 2 * ROUNDS);
        REQUIRE(counted(FAKE_READS) == before.reads);
    }
}
static void test_a_small_message_is_one_request(void **state)
{
    (void)state;
    apart(2, POLLS, small_messages);
}
/* An offer, reads of a MiB in one doorbell, and DONE: nothing but the offer and DONE goes through a box. */
static void large_message(struct rank *me)
{
    struct transfer x;
    struct piece piece;
    if (me->rank == 0) find_counters();
    swap(me, 0);
    rank_settle(me);
    rank_meet(me);
    if (me->rank == 0) count();
    rank_meet(me);
    if (me->rank == 0) rank_send(me, &x, 1, 7, &piece, from, LARGE);
    else rank_recv(me, &x, 0, 7, &piece, to, LARGE);
    rank_await(me, &x, 1);
    rank_meet(me);
    if (me->rank == 0) {
        REQUIRE(counted(FAKE_WRITES_WITH_IMMEDIATE) - before.writes == 2);
        REQUIRE(counted(FAKE_READS) - before.reads == 5);
        REQUIRE(counted(FAKE_DOORBELLS) - before.doorbells == 3);
        REQUIRE(counted(FAKE_BYTES_READ) - before.bytes_read == LARGE);
    }
}
static void test_a_large_message_is_read_from_where_it_lies(void **state)
{
    (void)state;
    memset(from, 0x5a, sizeof from);
    apart(2, POLLS, large_message);
    assert_memory_equal(from, to, sizeof from);
}

int main(void)
{
    setenv("TUTTI_VERBS", FAKE_VERBS, 1);
    for (int r = 0; r < MOST; r++) fabrics[r] = (struct fabric)FABRIC(&verbs_operations);
    if (!fabric_is_there("verbs", verbs_describe)) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_processes),
        cmocka_unit_test(test_between_threads),
        cmocka_unit_test(test_a_small_message_is_one_request),
        cmocka_unit_test(test_a_large_message_is_read_from_where_it_lies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
