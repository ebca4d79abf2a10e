/* Receiving the shared memory of a host from its maker. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/join/shm_group.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <string.h>
#include <unistd.h>

/* Whether the maker sends the descriptor before it ends. */
static bool maker_sends;

/* Rank 0 is the maker, which ends before rank 1 looks for the descriptor. */
static void receive_from_ended_maker(void)
{
    static const int ranks[] = { 0, 1 };
    static const unsigned char token[16] = "a shared memory";
    struct peer *peer, *peers[2] = { NULL, NULL };
    struct member members[2];
    struct loss loss = { 0 };
    int descriptor = -1;
    memset(members, 0, sizeof members);
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_OK);
    world_barrier(2);
    peers[1 - rank] = peer;
    for (int r = 0; r < 2; r++) members[r].identity = world->identity[r];
    struct group group = { .rank = rank, .size = 2, .members = members, .peers = peers };
    struct shm_group both = { .ranks = ranks, .count = 2 };
    if (rank == 0) {
        if (maker_sends) REQUIRE(shm_group_send_descriptor(&group, &both, token, STDIN_FILENO) == TUTTI_OK);
        peer_release(peer);
        peers_release();
        return;
    }
    struct peer_watch watch = { .peer = peer, .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    loss_await(&loss);
    peer_unwatch(&watch);
    tutti_status status =
        shm_group_receive_descriptor(&group, &both, token, clock_ms() + GENEROUS_MS, "the memory", &descriptor);
    if (maker_sends) {
        REQUIRE(status == TUTTI_OK && close(descriptor) == 0);
    } else {
        REQUIRE(status == TUTTI_PEER_LOST);
        REQUIRE(strstr(status_detail(), "rank 0 died before it had sent the memory") != NULL);
    }
    peer_release(peer);
    peers_release();
}
static void test_maker_that_ends_after_sending_is_no_death(void **state)
{
    (void)state;
    maker_sends = true;
    world_run(2, receive_from_ended_maker, 0);
}
static void test_maker_that_ends_before_sending_is_named(void **state)
{
    (void)state;
    maker_sends = false;
    world_run(2, receive_from_ended_maker, 0);
}

unit_function test_shm_group;
int test_shm_group(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_maker_that_ends_after_sending_is_no_death),
        cmocka_unit_test(test_maker_that_ends_before_sending_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
