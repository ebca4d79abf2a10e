/* The memory of the shm transport: pairs take it when they are used, and idle pipes give it back. This thread acts as
   all ranks. */
#include "backend/transports/shm/link.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"

/* More bytes than the pipe holds. */
enum { LARGE = PIPE_SLOTS * SLOT_BYTES + 77 };
static unsigned char sent[LARGE], got[LARGE];

/* Sends LARGE bytes from rank 0 to the peer, and checks them there. */
static void send_large(struct table *t, int peer)
{
    struct transfer out_x, in_x;
    struct piece out = piece_whole(sent, LARGE), in = piece_whole(got, LARGE);
    for (size_t i = 0; i < LARGE; i++) sent[i] = (unsigned char)(i * 7 + (size_t)peer);
    table_post(t, peer, &in_x, 0, false, &in);
    table_post(t, 0, &out_x, peer, true, &out);
    for (int n = 0; in_x.state == TRANSFER_POSTED; n++) {
        assert_true(n < 1000);
        router_poll(t->routers[0]);
        router_poll(t->routers[peer]);
    }
    assert_memory_equal(got, sent, LARGE);
}
static void test_a_pair_without_messages_has_no_buffer(void **state)
{
    (void)state;
    struct table t;
    unsigned char byte = 1;
    struct transfer out_x, in_x;
    struct piece piece = piece_whole(&byte, 1);
    table_open(&t, MOST_RANKS, -1);
    assert_int_equal(t.reserved_bytes, MOST_RANKS * PAIR_PAGE);
    table_post(&t, 1, &in_x, 0, false, &piece);
    table_post(&t, 0, &out_x, 1, true, &piece);
    table_poll(&t, 3);
    assert_int_equal(in_x.state, TRANSFER_DONE);
    /* The pair has two pages, and the doorbell of rank 1 is reserved again. */
    assert_int_equal(t.reserved_bytes, (MOST_RANKS + 3) * PAIR_PAGE);
    table_close(&t);
}
static size_t pipes_reserved(const struct table *t) { return t->reserved_bytes / sizeof((struct pair *)NULL)->pipe; }
/* A rank that sends one large message to each other rank keeps PIPES_KEPT pipes. If it does so again, it keeps all. */
static void test_idle_pipes_are_given_back(void **state)
{
    (void)state;
    struct table t;
    table_open(&t, MOST_RANKS, -1);
    for (int peer = 1; peer < MOST_RANKS; peer++) {
        send_large(&t, peer);
        assert_true(pipes_reserved(&t) <= PIPES_KEPT);
    }
    for (int peer = 1; peer < MOST_RANKS; peer++) send_large(&t, peer);
    assert_int_equal(pipes_reserved(&t), MOST_RANKS - 1);
    table_close(&t);
}
static void send_byte(struct table *t, int from, int to)
{
    unsigned char byte = 1;
    struct transfer out_x, in_x;
    struct piece piece = piece_whole(&byte, 1);
    table_post(t, to, &in_x, from, false, &piece);
    table_post(t, from, &out_x, to, true, &piece);
    table_poll(t, 3);
    assert_int_equal(in_x.state, TRANSFER_DONE);
}
static void test_idle_pipe_makes_room_when_memory_is_short(void **state)
{
    (void)state;
    struct table t;
    table_open(&t, 3, -1);
    send_large(&t, 1);
    send_byte(&t, 0, 2);
    send_byte(&t, 2, 0);
    t.reserves = 0;
    send_large(&t, 2);
    assert_int_equal(pipes_reserved(&t), 1);
    table_close(&t);
}
/* Messages to all others are announced before any is received, so all pipes are needed at once. */
static void test_pipes_under_way_are_kept(void **state)
{
    (void)state;
    enum { SMALLER = 20000 };
    static struct transfer out_x[MOST_RANKS], in_x[MOST_RANKS];
    static unsigned char in_bytes[MOST_RANKS][SMALLER];
    struct table t;
    struct piece out = piece_whole(sent, SMALLER), in[MOST_RANKS];
    memset(sent, 9, SMALLER);
    table_open(&t, MOST_RANKS, -1);
    for (int peer = 1; peer < MOST_RANKS; peer++) table_post(&t, 0, &out_x[peer], peer, true, &out);
    table_poll(&t, 3);
    assert_int_equal(pipes_reserved(&t), MOST_RANKS - 1);
    for (int peer = 1; peer < MOST_RANKS; peer++) {
        in[peer] = piece_whole(in_bytes[peer], SMALLER);
        table_post(&t, peer, &in_x[peer], 0, false, &in[peer]);
    }
    table_poll(&t, 20);
    for (int peer = 1; peer < MOST_RANKS; peer++) {
        assert_int_equal(in_x[peer].state, TRANSFER_DONE);
        assert_memory_equal(in_bytes[peer], sent, SMALLER);
    }
    table_close(&t);
}
unit_function test_shm_memory;
int test_shm_memory(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_pair_without_messages_has_no_buffer),
        cmocka_unit_test(test_idle_pipes_are_given_back),
        cmocka_unit_test(test_idle_pipe_makes_room_when_memory_is_short),
        cmocka_unit_test(test_pipes_under_way_are_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
