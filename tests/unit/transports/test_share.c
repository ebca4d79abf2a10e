/* Messages that are copied from tensor to tensor. The bytes are right, whichever ends are reachable and whichever rank
   copies. After a cancel or a refusal no rank accesses the memory. This thread acts as both ranks; rank 0 sends. */
#include "backend/transports/shm/pair.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"

enum { MOST = 1 << 20, GUARD = 64, SENDER = 1, RECEIVER = 2, BOTH = 3 };
static unsigned char sent[MOST], got[MOST + GUARD];
struct scene {
    struct table t;
    struct transfer out_x, in_x;
    struct piece out, in;
};

static void poll_rank(struct scene *s, int rank, int times)
{
    for (int n = 0; n < times; n++) router_poll(s->t.routers[rank]);
}
static void poll_both(struct scene *s, int times)
{
    for (int n = 0; n < times; n++) {
        poll_rank(s, 0, 1);
        poll_rank(s, 1, 1);
    }
}
static void post(struct scene *s, struct transfer *x, struct piece *piece, unsigned char *at, size_t bytes)
{
    bool is_send = x == &s->out_x;
    *piece = (struct piece){ at, bytes, bytes };
    *x = (struct transfer){
        .name = { 0, 1 }, .peer = is_send, .is_send = is_send, .pieces = piece, .piece_count = 1, .may_share = true
    };
    router_post(s->t.routers[!is_send], x);
}
/* Posts the receive, then the send, which is announced. */
static void scene_begin(struct scene *s, size_t bytes)
{
    memset(got, 0, sizeof got);
    bytes_fill(sent, bytes, bytes);
    post(s, &s->in_x, &s->in, got, bytes);
    post(s, &s->out_x, &s->out, sent, bytes);
}
static void scene_open(struct scene *s, unsigned reachable, size_t bytes)
{
    *s = (struct scene){ .out_x = { .peer = 0 } };
    table_open_sharing(&s->t, 2, reachable);
    scene_begin(s, bytes);
}
static void expect_done(struct scene *s, size_t bytes)
{
    assert_int_equal(s->out_x.state, TRANSFER_DONE);
    assert_int_equal(s->in_x.state, TRANSFER_DONE);
    assert_true(bytes_are(got, bytes, bytes));
    for (size_t i = bytes; i < bytes + GUARD; i++) assert_int_equal(got[i], 0);
}

static void test_bytes_are_right_for_every_length_and_placement(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 1, 8192, 8193, 32768, 32769, 65535, 100001, 262144, 999999, MOST };
    for (unsigned reachable = 0; reachable <= BOTH; reachable++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            struct scene s;
            scene_open(&s, reachable, sizes[k]);
            poll_both(&s, 100);
            expect_done(&s, sizes[k]);
            table_close(&s.t);
        }
}
/* A message with a reachable end is copied once, and does not use the pipe. */
static void test_reachable_messages_are_not_staged(void **state)
{
    (void)state;
    for (unsigned reachable = 1; reachable <= BOTH; reachable++) {
        struct scene s;
        scene_open(&s, reachable, MOST);
        poll_both(&s, 100);
        expect_done(&s, MOST);
        struct pair *pair = (struct pair *)(void *)(s.t.memory + s.t.pair_bytes);
        for (int i = 0; i < PIPE_SLOTS; i++) assert_int_equal(atomic_load(&pair->slots[i].sequence), 0);
        table_close(&s.t);
    }
}
/* Both ends can copy. The receiver polls 1 + `parts` times before the sender first polls, and then the sender copies
   the parts that are left. */
static void test_each_rank_copies_the_parts_that_are_left(void **state)
{
    (void)state;
    for (int parts = 0; parts <= 8; parts++) {
        struct scene s;
        scene_open(&s, BOTH, MOST);
        poll_rank(&s, 1, 1 + parts);
        poll_rank(&s, 0, 20);
        poll_rank(&s, 1, 20);
        poll_rank(&s, 0, 2);
        expect_done(&s, MOST);
        table_close(&s.t);
    }
}
static void test_memory_that_is_mapped_late_is_awaited(void **state)
{
    (void)state;
    for (unsigned reachable = 1; reachable <= BOTH; reachable++) {
        struct scene s;
        scene_open(&s, reachable, MOST);
        s.t.delay = 15;
        poll_both(&s, 5);
        assert_int_equal(s.out_x.state, TRANSFER_POSTED);
        poll_both(&s, 100);
        expect_done(&s, MOST);
        table_close(&s.t);
    }
}
static void test_a_failed_mapping_fails_its_transfer(void **state)
{
    (void)state;
    for (unsigned reachable = 1; reachable <= BOTH; reachable++) {
        struct scene s;
        scene_open(&s, reachable, MOST);
        s.t.refusal = TUTTI_NO_MEMORY;
        poll_both(&s, 20);
        struct transfer *failed = reachable & SENDER ? &s.in_x : &s.out_x;
        assert_int_equal(failed->state, TRANSFER_FAILED);
        assert_int_equal(failed->status, TUTTI_NO_MEMORY);
        status_fail(TUTTI_TIMEOUT, "something else, later");
        int rank = failed == &s.in_x, peer = !rank;
        assert_non_null(strstr(s.t.routers[rank]->reason, peer ? "memory of rank 1" : "memory of rank 0"));
        table_close(&s.t);
    }
}
/* The sender copies all parts, completes, and frees its tensor before the receiver has mapped it. The receive
   succeeds. */
static void test_memory_freed_after_the_last_part_is_no_error(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, BOTH, MOST);
    s.t.delay = 1;
    /* The sender's memory is not mapped yet. */
    poll_rank(&s, 1, 1);
    poll_rank(&s, 0, 20);
    assert_int_equal(s.out_x.state, TRANSFER_DONE);
    s.t.refusal = TUTTI_INVALID_ARGUMENT;
    poll_rank(&s, 1, 2);
    expect_done(&s, MOST);
    table_close(&s.t);
}
/* The ring has no room for the last envelope of the rank that copies. Its transfer stays posted until the envelope has
   left, because a rank whose transfers are over does not poll. */
static void test_a_transfer_ends_after_its_last_envelope(void **state)
{
    (void)state;
    for (unsigned reachable = SENDER; reachable <= RECEIVER; reachable++) {
        struct scene s;
        struct transfer small[RING_CELLS];
        struct piece piece = { sent, 1, 1 };
        /* The rank that copies, and whose ring is full. */
        int full = reachable == SENDER;
        scene_open(&s, reachable, MOST);
        /* The receiver handles the announcement, and sends SHARE if its tensor is reachable. */
        poll_rank(&s, 1, 1);
        for (int k = 0; k < RING_CELLS; k++) {
            small[k] = (struct transfer){
                .name = { 0, 2 }, .peer = !full, .is_send = true, .pieces = &piece, .piece_count = 1
            };
            router_post(s.t.routers[full], &small[k]);
        }
        poll_rank(&s, full, 30);
        struct transfer *end[2] = { &s.out_x, &s.in_x };
        for (int n = 0; n < 100; n++)
            for (int r = 0; r < 2; r++)
                if (end[r]->state == TRANSFER_POSTED) poll_rank(&s, r, 1);
        expect_done(&s, MOST);
        table_close(&s.t);
    }
}
/* A receiver reads a message alone if peers can map neither end. */
static void test_a_tensor_that_is_only_readable_is_read(void **state)
{
    (void)state;
    struct scene s;
    static unsigned char readable[2][MOST];
    s = (struct scene){ .out_x = { .peer = 0 } };
    table_open_sharing(&s.t, 2, BOTH);
    s.t.readable = *readable;
    s.t.readable_bytes = sizeof readable;
    bytes_fill(readable[1], MOST, MOST);
    post(&s, &s.in_x, &s.in, readable[0], MOST);
    post(&s, &s.out_x, &s.out, readable[1], MOST);
    poll_both(&s, 20);
    assert_int_equal(s.out_x.state, TRANSFER_DONE);
    assert_int_equal(s.in_x.state, TRANSFER_DONE);
    assert_true(bytes_are(readable[0], MOST, MOST));
    struct pair *pair = (struct pair *)(void *)(s.t.memory + s.t.pair_bytes);
    for (int i = 0; i < PIPE_SLOTS; i++) assert_int_equal(atomic_load(&pair->slots[i].sequence), 0);
    table_close(&s.t);
}
/* The receiver fails to reach the first of three messages. It does not begin the second, which it could only read, and
   the third, because the sender still helps with the first and would treat another SHARE as invalid. */
static void test_after_a_failure_no_other_message_begins(void **state)
{
    (void)state;
    struct scene s;
    static unsigned char memory[3][MOST];
    unsigned char *readable_from = memory[2];
    struct transfer later[2][2];
    struct piece pieces[2][2] = { { { memory[1], MOST, MOST }, { readable_from, MOST, MOST } },
        { { memory[0], MOST, MOST }, { sent, MOST, MOST } } };
    memset(memory[0], 0, 2 * sizeof *memory);
    scene_open(&s, BOTH, MOST);
    s.t.readable = memory[1];
    s.t.readable_bytes = 2 * sizeof *memory;
    for (int k = 0; k < 4; k++) {
        int side = k % 2;
        later[k / 2][side] = (struct transfer){ .name = { 0, 2 + (uint64_t)k / 2 },
            .peer = side,
            .is_send = side,
            .pieces = &pieces[k / 2][side],
            .piece_count = 1,
            .may_share = true };
        router_post(s.t.routers[!side], &later[k / 2][side]);
    }
    s.t.delay = 2;
    poll_rank(&s, 1, 1);
    /* The sender helps with the first message. */
    poll_rank(&s, 0, 1);
    s.t.refusal = TUTTI_NO_MEMORY;
    poll_rank(&s, 1, 1);
    assert_int_equal(s.in_x.state, TRANSFER_FAILED);
    assert_int_equal(s.in_x.status, TUTTI_NO_MEMORY);
    s.t.refusal = TUTTI_OK;
    poll_both(&s, 20);
    assert_int_equal(s.out_x.state, TRANSFER_POSTED);
    for (int k = 0; k < 4; k++) assert_int_equal(later[k / 2][k % 2].state, TRANSFER_POSTED);
    for (size_t i = 0; i < MOST; i++) assert_int_equal(got[i] | memory[0][i] | memory[1][i], 0);
    for (int k = 0; k < 4; k++) assert_true(router_cancel(s.t.routers[!(k % 2)], &later[k / 2][k % 2]));
    assert_true(router_cancel(s.t.routers[0], &s.out_x));
    table_close(&s.t);
}
/* If access is forbidden, as after a failure, no rank copies. Transfers stay posted until they are cancelled. */
static void test_forbidden_memory_is_not_touched(void **state)
{
    (void)state;
    for (unsigned reachable = 1; reachable <= BOTH; reachable++) {
        struct scene s;
        scene_open(&s, reachable, MOST);
        s.t.forbidden = true;
        poll_both(&s, 20);
        for (size_t i = 0; i < MOST; i++) assert_int_equal(got[i], 0);
        assert_int_equal(s.out_x.state, TRANSFER_POSTED);
        assert_int_equal(s.in_x.state, TRANSFER_POSTED);
        assert_true(router_cancel(s.t.routers[0], &s.out_x));
        assert_true(router_cancel(s.t.routers[1], &s.in_x));
        table_close(&s.t);
    }
}
/* Cancels the send of rank 0 or the receive of rank 1 after 0 to 6 polls; the receive after 1 at least, when it has met
   the send. Afterwards no rank uses the transfer or its memory, and the next message arrives whole. */
static void test_a_cancelled_transfer_is_not_touched(void **state)
{
    (void)state;
    for (unsigned reachable = 1; reachable <= BOTH; reachable++)
        for (int rank = 0; rank < 2; rank++)
            for (int stage = rank; stage < 7; stage++) {
                struct scene s;
                scene_open(&s, reachable, MOST);
                for (int n = 0; n < stage; n++) poll_rank(&s, (n + 1) % 2, 1);
                struct transfer *mine = rank ? &s.in_x : &s.out_x, *other = rank ? &s.out_x : &s.in_x;
                assert_int_equal(mine->state, TRANSFER_POSTED);
                assert_true(router_cancel(s.t.routers[rank], mine));
                /* A later use of the transfer would crash. */
                memset(mine, 0xee, sizeof *mine);
                unsigned char kept[sizeof got];
                memcpy(kept, got, sizeof got);
                if (!rank) memset(sent, 0xdd, MOST);
                poll_both(&s, 20);
                if (rank) assert_memory_equal(kept, got, sizeof got);
                /* The send of a cancelled receive succeeds; its bytes are dropped. */
                assert_int_equal(other->state, rank ? TRANSFER_DONE : TRANSFER_FAILED);
                if (!rank) assert_int_equal(other->status, TUTTI_ABORTED);
                scene_begin(&s, MOST);
                poll_both(&s, 50);
                expect_done(&s, MOST);
                table_close(&s.t);
            }
}
/* Messages between the same two ranks are copied one after the other. */
static void test_many_messages_at_once_arrive_whole(void **state)
{
    (void)state;
    enum { MANY = 40, BYTES = 100000 };
    static unsigned char from[MANY][BYTES], to[MANY][BYTES];
    for (unsigned reachable = 1; reachable <= BOTH; reachable++) {
        struct table t;
        struct transfer x[MANY][2];
        struct piece pieces[MANY][2];
        table_open_sharing(&t, 2, reachable);
        for (int k = 0; k < MANY; k++) {
            bytes_fill(from[k], BYTES, (uint64_t)k);
            memset(to[k], 0, BYTES);
            for (int side = 0; side < 2; side++) {
                /* A message is streamed if one of its ends may not be shared. */
                bool shares = k % 3 != side;
                pieces[k][side] = (struct piece){ side ? from[k] : to[k], BYTES, BYTES };
                x[k][side] = (struct transfer){ .name = { 0, (uint64_t)k % 2 },
                    .peer = side,
                    .is_send = side,
                    .pieces = &pieces[k][side],
                    .piece_count = 1,
                    .may_share = shares };
                router_post(t.routers[!side], &x[k][side]);
            }
        }
        for (int n = 0; n < 1000; n++) router_poll(t.routers[n % 2]);
        for (int k = 0; k < MANY; k++) {
            assert_true(x[k][0].state == TRANSFER_DONE && x[k][1].state == TRANSFER_DONE);
            assert_true(bytes_are(to[k], BYTES, (uint64_t)k));
        }
        table_close(&t);
    }
}
/* The sender claims to have copied more parts than there are. */
static void test_an_impossible_part_count_fails_all_transfers(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, RECEIVER, MOST);
    poll_rank(&s, 1, 1);
    struct pair *pair = (struct pair *)(void *)(s.t.memory + s.t.pair_bytes);
    struct cell *cell = &pair->cells[1];
    atomic_store(&cell->head, ENVELOPE_COPIED);
    atomic_store(&cell->body.about.bytes, 1000);
    atomic_store(&cell->body.about.id, s.in_x.key);
    atomic_store(&cell->sequence, 2);
    poll_rank(&s, 1, 1);
    assert_int_equal(s.in_x.state, TRANSFER_FAILED);
    assert_int_equal(s.in_x.status, TUTTI_INTERNAL);
    table_close(&s.t);
}
unit_function test_share;
int test_share(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_are_right_for_every_length_and_placement),
        cmocka_unit_test(test_reachable_messages_are_not_staged),
        cmocka_unit_test(test_each_rank_copies_the_parts_that_are_left),
        cmocka_unit_test(test_memory_that_is_mapped_late_is_awaited),
        cmocka_unit_test(test_a_failed_mapping_fails_its_transfer),
        cmocka_unit_test(test_memory_freed_after_the_last_part_is_no_error),
        cmocka_unit_test(test_a_transfer_ends_after_its_last_envelope),
        cmocka_unit_test(test_a_tensor_that_is_only_readable_is_read),
        cmocka_unit_test(test_after_a_failure_no_other_message_begins),
        cmocka_unit_test(test_forbidden_memory_is_not_touched),
        cmocka_unit_test(test_a_cancelled_transfer_is_not_touched),
        cmocka_unit_test(test_many_messages_at_once_arrive_whole),
        cmocka_unit_test(test_an_impossible_part_count_fails_all_transfers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
