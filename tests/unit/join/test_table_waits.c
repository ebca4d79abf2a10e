/* Waits for the table of members of a host end early if nobody sends it, or if the caller cancels. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "tests/support/unit.h"
#include "tests/unit/join/table_world.h"

/* In these tests the join ends in an hour, and SIGALRM ends a process after a minute. */
enum { LONG_MS = 3600000, SECONDS = 60 };
static struct member_table_request long_request_of(int r)
{
    struct member_table_request request = table_request_of(r);
    request.host.deadline_ms = clock_deadline(LONG_MS);
    alarm(SECONDS);
    return request;
}
/* Process 2 has joined as rank 1, too, but the table has process 1. So nobody sends it the table. */
static void receive_as_second_process(void)
{
    struct shared_table *table = NULL;
    table_begin();
    for (int r = 0; r < RANKS; r++) members[r].identity = world->identity[r % 2];
    table_connect_all();
    if (rank == 0) table = table_send();
    if (rank == 1) table = table_receive(rank);
    if (rank == 2) {
        struct member mine = members[1];
        mine.identity = world->identity[2];
        struct member_table_request request = long_request_of(1);
        request.host.mine = &mine;
        REQUIRE(member_table_get(&request, &table) == TUTTI_INVALID_ARGUMENT && !table);
        REQUIRE(strstr(status_detail(), "two processes have joined test group as rank 1"));
    }
    world_barrier(size);
    shared_table_leave(table);
    peers_release();
}
static void test_second_process_of_a_rank_does_not_wait_for_a_table(void **state)
{
    (void)state;
    table_run(receive_as_second_process, 0, 1);
}
/* A rank of process 2 gets no descriptor, and cannot read the table. Then the next rank of the process tries. */
static void receive_as_next_rank(void)
{
    unsigned char token[KEY_BYTES];
    struct peer *peer;
    struct shared_table *table = NULL;
    table_begin();
    table_connect_all();
    table_elect();
    REQUIRE(group_key_derive(&world_key, "tutti table", first.token, sizeof first.token, token));
    if (rank == 0) {
        REQUIRE(world_call(2, &peer) == TUTTI_OK && peer_send_descriptor(peer, token, -1) == TUTTI_OK);
        peer_release(peer);
    }
    if (rank == 2) {
        struct member_table_request request = long_request_of(rank);
        fails_reads = true;
        REQUIRE(member_table_get(&request, &table) == TUTTI_SYSTEM && !table);
        fails_reads = false;
        request = long_request_of(rank + PROCESSES);
        REQUIRE(member_table_get(&request, &table) == TUTTI_OK);
    }
    world_barrier(size);
    host_election_leave(first.token);
    shared_table_leave(table);
    peers_release();
}
static void test_next_rank_does_not_wait_for_the_descriptor_of_another(void **state)
{
    (void)state;
    is_elected = true;
    table_run(receive_as_next_rank, 0, 1);
}
/* The process of the other ranks does not answer: its socket is in this process. */
static void cancel_while_sending(void)
{
    struct shared_table *table;
    int descriptor;
    table_begin();
    int descriptors = count_descriptors();
    if (rank == 0) {
        struct member_table_request request = long_request_of(0);
        struct member *own = calloc(RANKS, sizeof *own);
        for (int r = 1; r < RANKS; r++)
            members[r].identity.nonce[0] = (unsigned char)(members[0].identity.nonce[0] ^ 1);
        for (int r = 1; r < RANKS; r++) memcpy(members[r].identity.nonce + 1, members[0].identity.nonce + 1, 15);
        memcpy(own, members, sizeof members);
        int listener = socket_listen("peer", members[1].identity.nonce);
        REQUIRE(member_table_create(&request, own, &table, &descriptor) == TUTTI_OK && descriptor >= 0);
        cancels = true;
        REQUIRE(host_table_send(&request.host, shared_table_data(table), descriptor) == TUTTI_ABORTED);
        REQUIRE(strstr(status_detail(), "rank 0 has cancelled joining test group"));
        close(listener);
        shared_table_leave(table);
    }
    REQUIRE(descriptors_settle_at(descriptors));
    peers_release();
}
static void test_sender_that_is_cancelled_is_aborted(void **state)
{
    (void)state;
    table_run(cancel_while_sending, 0, 0);
}

unit_function test_table_waits;
int test_table_waits(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second_process_of_a_rank_does_not_wait_for_a_table),
        cmocka_unit_test(test_next_rank_does_not_wait_for_the_descriptor_of_another),
        cmocka_unit_test(test_sender_that_is_cancelled_is_aborted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
