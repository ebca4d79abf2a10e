/* Messages that other processes may send, over a fake fabric: the test delivers each message by the endpoint to the
   process that sends it, while the rank polls and while it does not. An invalid message closes the connection of its
   sender, with a reason that names the rank, and no other connection. */
#include "tests/unit/transports/fake_fabric.h"
#include <sys/mman.h>
#include <unistd.h>

/* ---- withdrawals ---- */
static void withdraws_by_another_name(void)
{
    unsigned char in[100];
    struct transfer x;
    struct piece piece;
    assert_true(rndv_announce(1, 9, 100, 7));
    rndv_withdraw(1, 1234, 7);
    poll_all();
    assert_int_equal(released, 1);
    rank_recv(&me, &x, 1, 9, &piece, in, sizeof in);
    poll_all();
    /* The message that the receive would have met was withdrawn. */
    assert_int_equal(x.state, TRANSFER_POSTED);
    assert_true(rndv_announce(1, 9, 100, 8));
    poll_all();
    assert_int_equal(x.state, TRANSFER_DONE);
    assert_int_equal(fetched, 1);
    assert_int_equal(ended, 0);
}
static void test_a_withdrawal_finds_its_message_by_id(void **state)
{
    (void)state;
    in_both_ways(withdraws_by_another_name);
}
/* A withdrawal with the id of another rank's message, or with an unknown id, has no effect. */
static void withdraws_unknown_ids(void)
{
    unsigned char in[100];
    struct transfer x;
    struct piece piece;
    rndv_announce(1, 9, 100, 7);
    rndv_withdraw(2, 9, 7);
    rndv_withdraw(1, 9, 6);
    poll_all();
    rank_recv(&me, &x, 1, 9, &piece, in, sizeof in);
    poll_all();
    assert_int_equal(x.state, TRANSFER_DONE);
    assert_int_equal(released, 0);
}
static void test_a_withdrawal_with_a_foreign_or_unknown_id_is_ignored(void **state)
{
    (void)state;
    in_both_ways(withdraws_unknown_ids);
}
/* Returns how many pages of the links to `size` ranks take memory. */
static int count_pages_of_links(int size)
{
    enum { MOST_PAGES = 4096 };
    static unsigned char resident[MOST_PAGES];
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)size * sizeof(struct fabric_link);
    const size_t pages = (bytes + page - 1) / page;
    int count = 0;
    assert_in_range(pages, 1, MOST_PAGES);
    assert_int_equal(mincore(fabric.transports->links, bytes, resident), 0);
    for (size_t i = 0; i < pages; i++) count += resident[i] & 1;
    return count;
}
static void test_links_take_memory_when_they_are_used(void **state)
{
    enum { MANY = 65536 };
    join_group_of(MANY);
    assert_int_equal(count_pages_of_links(MANY), 0);
    assert_true(rndv_announce(2, 9, 100, 7));
    poll_all();
    assert_int_equal(count_pages_of_links(MANY), 1);
    assert_int_equal(fabric_transport_link(fabric.transports, MANY - 1)->rank, MANY - 1);
    assert_int_equal(count_pages_of_links(MANY), 2);
    (void)state;
}
static void announces_twice(void)
{
    assert_true(rndv_announce(2, 9, 100, 7));
    assert_false(rndv_announce(2, 10, 100, 7));
    assert_refused(2, "its process has announced a message twice");
    assert_received(1, 3);
}
static void test_announcing_an_id_twice_is_refused(void **state)
{
    (void)state;
    in_both_ways(announces_twice);
}

/* ---- fetches ---- */
/* A waiting thread must know that bytes are on their way: from the begin of a fetch to the poll after its end. */
static void receives_until_fetched(void)
{
    unsigned char in[100];
    struct transfer x;
    struct piece piece;
    fetches_last = true;
    rank_recv(&me, &x, 1, 9, &piece, in, sizeof in);
    poll_all();
    assert_false(router_is_receiving(me.router));
    assert_true(rndv_announce(1, 9, 100, 7));
    poll_all();
    assert_true(router_is_receiving(me.router));
    assert_int_equal(x.state, TRANSFER_POSTED);
    pthread_mutex_lock(&fabric.lock);
    fabric_op_complete(&fabric, in_flight, NULL);
    pthread_mutex_unlock(&fabric.lock);
    poll_all();
    assert_false(router_is_receiving(me.router));
    assert_int_equal(x.state, TRANSFER_DONE);
    /* A fetch that completes at once leaves nothing to wait for. */
    fetches_last = false;
    rank_recv(&me, &x, 1, 9, &piece, in, sizeof in);
    assert_true(rndv_announce(1, 9, 100, 8));
    poll_all();
    assert_false(router_is_receiving(me.router));
    assert_int_equal(x.state, TRANSFER_DONE);
}
static void test_a_transport_receives_until_its_fetch_is_complete(void **state)
{
    (void)state;
    in_both_ways(receives_until_fetched);
}

/* ---- senders ---- */
static void sends_for_another_rank(void)
{
    unsigned char in[2][8] = { { 0xee } }, noise[8] = { 0 };
    struct transfer x[2];
    struct piece pieces[2];
    for (int i = 0; i < 2; i++) rank_recv(&me, &x[i], 1 + i, 4, &pieces[i], in[i], 8);
    struct header h = short_of(1, 4, 8);
    sequences[1] = 0;
    message_deliver(2, h, noise, 8);
    assert_refused(2, "its process has sent a message as another process");
    assert_int_equal(x[0].state, TRANSFER_POSTED);
    assert_int_equal(in[0][0], 0xee);
    assert_received(1, 5);
    /* A rank is lost when its connection has been broken for HOLD_MS. */
    rank_await(&me, &x[1], 1);
    assert_int_equal(x[1].status, TUTTI_PEER_LOST);
    assert_non_null(strstr(me.router->reason, "rank 2 on host 2"));
    assert_non_null(strstr(me.router->reason, "as another process"));
    assert_received(1, 6);
}
static void test_a_process_may_send_only_for_its_own_rank(void **state)
{
    (void)state;
    in_both_ways(sends_for_another_rank);
}
static int lines_of(FILE *log, const char *text)
{
    char line[1500];
    int count = 0;
    rewind(log);
    while (fgets(line, sizeof line, log)) count += strstr(line, text) != NULL;
    return count;
}
static void sends_without_membership(void)
{
    static const int32_t ranks[] = { 1, 2, 0, -1, RANKS, INT32_MAX };
    unsigned char in[8] = { 0xee }, noise[8] = { 0 };
    struct transfer x;
    struct piece piece;
    FILE *log = tmpfile();
    int standard = dup(STDERR_FILENO);
    dup2(fileno(log), STDERR_FILENO);
    rank_recv(&me, &x, TRANSFER_ANY_PEER, 4, &piece, in, 8);
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++)
        message_deliver(STRANGER, (struct header){ .name = name_of(4), .bytes = 8, .from = ranks[i] }, noise, 8);
    poll_all();
    dup2(standard, STDERR_FILENO);
    close(standard);
    assert_refused(STRANGER, "its process has sent a message as another process");
    assert_int_equal(lines_of(log, "none ends its connection with a process at address 9"), 1);
    fclose(log);
    assert_int_equal(x.state, TRANSFER_POSTED);
    assert_int_equal(in[0], 0xee);
    assert_int_equal(me.router->failure, TUTTI_OK);
    for (int r = 1; r < RANKS; r++) assert_received(r, 5);
}
static void test_messages_of_a_non_member_are_refused(void **state)
{
    (void)state;
    in_both_ways(sends_without_membership);
}

/* ---- invalid messages ---- */
static const char of_length[] = "its process has sent a message of an invalid length",
                  of_id[] = "its process has sent a message with an invalid id",
                  of_kind[] = "its process has sent a message of an unknown kind";
static const struct wrong {
    struct header header;
    size_t bytes;
    bool announced;
    const char *why;
} wrong[] = {
    { { .kind = KINDS }, 0, false, of_kind },
    { { .kind = UINT32_MAX }, 0, false, of_kind },
    { { .bytes = 8 }, 7, false, of_length },
    { { .bytes = 7 }, 8, false, of_length },
    { { .bytes = UINT64_MAX }, 8, false, of_length },
    { { .bytes = EAGER_BYTES + 1 }, EAGER_BYTES + 1, false, of_length },
    { { .bytes = 8, .id = 1 }, 0, true, of_length },
    { { .bytes = 8, .id = 1 }, 9, true, of_length },
    { { .bytes = 0, .id = 1 }, 2, true, of_length },
    { { .bytes = 0, .id = 1 }, SIZE_MAX, true, of_length },
    { { .kind = WITHDRAWN, .id = 1 }, 8, false, of_length },
    { { .kind = CREDIT, .id = 1 }, 8, true, of_length },
    { { .bytes = 8, .id = 1 }, 8, false, of_id },
    { { .bytes = 8 }, 8, true, of_id },
    { { .returned = 1 }, 0, false, "its process has returned more credit than it had" },
    { { .returned = UINT64_MAX }, 0, false, "its process has returned more credit than it had" },
    { { .sequence = 1 }, 0, false, "a message of its process is missing" },
    { { .sequence = UINT32_MAX }, 0, false, "its process has sent a message twice" },
};
static const struct wrong *which;
static void sends_an_invalid_message(void)
{
    static unsigned char noise[EAGER_BYTES + 1];
    struct header h = which->header;
    h.comm = COMM;
    h.from = 2;
    struct delivery d = { ends[2], &h, which->announced ? descriptors : (void *)noise, which->bytes, which->announced,
        false };
    pthread_mutex_lock(&fabric.lock);
    if (!polls) fabric_handle_message(&fabric, d.from, d.header, d.data, d.bytes, d.announced);
    else due = &d;
    pthread_mutex_unlock(&fabric.lock);
    assert_refused(2, which->why);
    assert_false(d.kept);
    assert_received(1, 3);
}
static void test_invalid_messages_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        which = &wrong[i];
        in_both_ways(sends_an_invalid_message);
    }
}

/* ---- limits ---- */
static void sends_beyond_its_credit(void)
{
    static unsigned char data[EAGER_BYTES], in[EAGER_BYTES];
    struct transfer x;
    struct piece piece;
    /* Messages that have met their receive do not count. */
    for (int i = 0; i < 3 * CREDIT_BYTES / EAGER_BYTES; i++) {
        message_deliver(2, short_of(2, 4, sizeof data), data, sizeof data);
        rank_recv(&me, &x, 2, 4, &piece, in, sizeof in);
        poll_all();
        assert_int_equal(x.state, TRANSFER_DONE);
    }
    for (int i = 0; i < CREDIT_BYTES / EAGER_BYTES; i++)
        message_deliver(2, short_of(2, 5, sizeof data), data, sizeof data);
    poll_all();
    assert_int_equal(ended, 0);
    message_deliver(2, short_of(2, 5, 0), data, 0);
    assert_refused(2, "its process has sent more eager bytes than it has credit for");
    assert_received(1, 3);
}
static void test_unexpected_eager_bytes_are_bounded(void **state)
{
    (void)state;
    in_both_ways(sends_beyond_its_credit);
}
static const char too_many[] = "more than 65536 messages of its process wait to be received";
static void announces_without_end(void)
{
    for (uint64_t i = 1; i <= PENDING_RNDV_MOST; i++) assert_true(rndv_announce(2, i, 100, i));
    assert_int_equal(ended, 0);
    assert_false(rndv_announce(2, 0, 100, PENDING_RNDV_MOST + 1));
    assert_refused(2, too_many);
    assert_received(1, 3);
    router_lose_peer(me.router, 2, status_fail(TUTTI_PEER_LOST, "it is gone"));
    assert_int_equal(released, PENDING_RNDV_MOST);
}
static void test_announced_messages_are_bounded(void **state)
{
    (void)state;
    in_both_ways(announces_without_end);
}
/* A withdrawn message no longer counts after the rank has handled the withdrawal. */
static void announces_and_withdraws(void)
{
    for (uint64_t i = 1; i <= 3 * PENDING_RNDV_MOST; i++) {
        assert_true(rndv_announce(2, 1, 100, i));
        rndv_withdraw(2, 1, i);
        if (i % 1000 == 0) poll_all();
    }
    poll_all();
    assert_int_equal(released, 3 * PENDING_RNDV_MOST);
    assert_int_equal(ended, 0);
}
static void test_withdrawn_messages_make_room(void **state)
{
    (void)state;
    in_both_ways(announces_and_withdraws);
}
static void test_saved_messages_are_bounded(void **state)
{
    polls = false;
    for (int i = 0; i < PENDING_RNDV_MOST; i++) rndv_withdraw(2, 1, 1);
    for (int i = 0; i < PENDING_RNDV_MOST; i++)
        message_deliver(2, (struct header){ .kind = CREDIT, .from = 2 }, NULL, 0);
    /* A CREDIT is not saved itself, but it arrived after the limit of saved messages was reached. */
    assert_int_equal(ends[2]->is_faulty, true);
    assert_string_equal(ends[2]->why, too_many);
    assert_received(1, 3);
    (void)state;
}

/* ---- before the group has joined ---- */
static void test_early_messages_are_bounded(void **state)
{
    (void)state;
    polls = false;
    for (uint64_t i = 1; i <= EARLY_MOST; i++) assert_true(rndv_announce(2, 1, 100, i));
    message_deliver(1, short_of(1, 3, 0), NULL, 0);
    assert_false(ends[2]->is_faulty);
    assert_false(rndv_announce(2, 1, 100, EARLY_MOST + 1));
    assert_true(ends[2]->is_faulty);
    assert_string_equal(ends[2]->why,
        "its process has sent too many messages to groups that this process has not joined");
    join_group();
    poll_all();
    assert_int_equal(released, EARLY_MOST);
    assert_int_equal(ended, 1);
    struct transfer x;
    struct piece piece;
    rank_recv(&me, &x, 1, 3, &piece, NULL, 0);
    poll_all();
    /* The early message of another process has arrived. */
    assert_int_equal(x.state, TRANSFER_DONE);
}
static void test_early_bytes_are_bounded(void **state)
{
    static unsigned char data[EAGER_BYTES];
    int count = 0;
    (void)state;
    polls = false;
    for (; !ends[2]->is_faulty; count++) message_deliver(2, short_of(2, 1, sizeof data), data, sizeof data);
    assert_in_range(count, EARLY_BYTES / EAGER_BYTES / 2, EARLY_BYTES / EAGER_BYTES + 1);
    join_group();
    poll_all();
    assert_int_equal(ended, 1);
}
/* When the group joins, the senders of early messages are checked, and the messages no longer count as early. */
static void test_senders_of_early_messages_are_checked(void **state)
{
    unsigned char out[8] = { 5 }, in[8] = { 0xee };
    struct transfer x;
    struct piece piece;
    (void)state;
    polls = false;
    struct header h = short_of(1, 4, 8);
    message_deliver(2, h, out, 8);
    join_group();
    assert_refused(2, "its process has sent a message as another process");
    rank_recv(&me, &x, 1, 4, &piece, in, 8);
    poll_all();
    assert_int_equal(x.state, TRANSFER_POSTED);
    message_deliver(1, h, out, 8);
    poll_all();
    assert_int_equal(x.state, TRANSFER_DONE);
    for (int i = 0; i < PROCESSES; i++) assert_int_equal(ends[i]->early_count + (int)ends[i]->early_bytes, 0);
}
static int begin(void **state)
{
    memset(sequences, 0, sizeof sequences);
    return open_all(state);
}
static int begin_joined(void **state)
{
    memset(sequences, 0, sizeof sequences);
    return open_and_join(state);
}
unit_function test_fabric;
int test_fabric(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_withdrawal_finds_its_message_by_id),
        cmocka_unit_test(test_a_withdrawal_with_a_foreign_or_unknown_id_is_ignored),
        cmocka_unit_test(test_announcing_an_id_twice_is_refused),
        cmocka_unit_test_setup_teardown(test_links_take_memory_when_they_are_used, begin, leave_and_close),
        cmocka_unit_test(test_a_transport_receives_until_its_fetch_is_complete),
        cmocka_unit_test(test_a_process_may_send_only_for_its_own_rank),
        cmocka_unit_test(test_messages_of_a_non_member_are_refused),
        cmocka_unit_test(test_invalid_messages_are_refused),
        cmocka_unit_test(test_unexpected_eager_bytes_are_bounded),
        cmocka_unit_test(test_announced_messages_are_bounded),
        cmocka_unit_test(test_withdrawn_messages_make_room),
        cmocka_unit_test_setup_teardown(test_saved_messages_are_bounded, begin_joined, leave_and_close),
        cmocka_unit_test_setup_teardown(test_early_messages_are_bounded, begin, leave_and_close),
        cmocka_unit_test_setup_teardown(test_early_bytes_are_bounded, begin, leave_and_close),
        cmocka_unit_test_setup_teardown(test_senders_of_early_messages_are_checked, begin, leave_and_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
