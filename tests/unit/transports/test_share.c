/* Messages from tensor to tensor: whichever ends can be reached, whoever copies, whatever is cancelled or refused in
   between, the bytes are right and nothing is touched afterwards. All ranks are played by this thread. */
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
/* Announced and met: both ends can begin. */
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

static void test_every_length_and_placement(void **state)
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
/* What can be reached is copied once: the pipe stays as it was. */
static void test_nothing_is_staged(void **state)
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
/* One end sleeps while the other copies; where both can, each takes what the other leaves. */
static void test_whoever_has_time_copies(void **state)
{
    (void)state;
    for (int parts = 0; parts <= 8; parts++) {
        struct scene s;
        scene_open(&s, BOTH, MOST);
        poll_rank(&s, 1, 1 + parts);                                   /* hears, offers, and copies so many */
        poll_rank(&s, 0, 20);
        poll_rank(&s, 1, 20);
        poll_rank(&s, 0, 2);
        expect_done(&s, MOST);
        table_close(&s.t);
    }
}
static void test_memory_that_comes_late(void **state)
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
static void test_a_refusal_is_an_error(void **state)
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
/* The sender copies all, is over, and frees its tensor, which the receiver has not mapped yet: that is no error. */
static void test_memory_that_is_gone_when_all_is_copied(void **state)
{
    (void)state;
    struct scene s;
    scene_open(&s, BOTH, MOST);
    s.t.delay = 1;
    poll_rank(&s, 1, 1);                                               /* asks for the sender's memory: not yet */
    poll_rank(&s, 0, 20);
    assert_int_equal(s.out_x.state, TRANSFER_DONE);
    s.t.refusal = TUTTI_INVALID_ARGUMENT;
    poll_rank(&s, 1, 2);
    expect_done(&s, MOST);
    table_close(&s.t);
}
/* Who copies last finds no room to say so: its transfer is not over, since nobody would poll for it any more. */
static void test_the_end_is_told_before_it_is_over(void **state)
{
    (void)state;
    for (unsigned reachable = SENDER; reachable <= RECEIVER; reachable++) {
        struct scene s;
        struct transfer small[RING_CELLS];
        struct piece piece = { sent, 1, 1 };
        int full = reachable == SENDER; /* the rank that copies, and whose ring is full */
        scene_open(&s, reachable, MOST);
        poll_rank(&s, 1, 1);                                           /* hears; offers, if it can be reached */
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
/* The receiver cannot reach the first of two: it does not begin with the second, which the sender, still at the first,
   would take for nonsense. */
static void test_a_refusal_does_not_begin_the_next(void **state)
{
    (void)state;
    struct scene s;
    struct transfer second[2];
    struct piece pieces[2] = { { got, MOST, MOST }, { sent, MOST, MOST } };
    scene_open(&s, BOTH, MOST);
    for (int side = 0; side < 2; side++) {
        second[side] = (struct transfer){ .name = { 0, 2 },
            .peer = side,
            .is_send = side,
            .pieces = &pieces[side],
            .piece_count = 1,
            .may_share = true };
        router_post(s.t.routers[!side], &second[side]);
    }
    s.t.delay = 2;
    poll_rank(&s, 1, 1);
    poll_rank(&s, 0, 1);                                               /* helps with the first */
    s.t.refusal = TUTTI_NO_MEMORY;
    poll_rank(&s, 1, 1);
    assert_int_equal(s.in_x.state, TRANSFER_FAILED);
    assert_int_equal(s.in_x.status, TUTTI_NO_MEMORY);
    s.t.refusal = TUTTI_OK;
    poll_both(&s, 20);
    assert_int_equal(s.out_x.state, TRANSFER_POSTED);
    assert_int_equal(second[1].state, TRANSFER_POSTED);
    assert_int_equal(second[0].state, TRANSFER_POSTED);
    for (size_t i = 0; i < MOST; i++) assert_int_equal(got[i], 0);
    assert_true(router_cancel(s.t.routers[1], &second[0]));
    for (int side = 0; side < 2; side++) assert_true(router_cancel(s.t.routers[0], side ? &second[1] : &s.out_x));
    table_close(&s.t);
}
/* After a failure nobody touches a peer's memory: what is open stays open until it is cancelled. */
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
/* At each stage; afterwards nothing of it is touched, and the next message arrives whole. */
static void test_cancelling(void **state)
{
    (void)state;
    for (unsigned reachable = 1; reachable <= BOTH; reachable++)
        for (int who = 0; who < 2; who++)
            for (int stage = who; stage < 7; stage++) {       /* a receive: once it has met the send */
                struct scene s;
                scene_open(&s, reachable, MOST);
                for (int n = 0; n < stage; n++) poll_rank(&s, (n + 1) % 2, 1);
                struct transfer *mine = who ? &s.in_x : &s.out_x, *other = who ? &s.out_x : &s.in_x;
                assert_int_equal(mine->state, TRANSFER_POSTED);
                assert_true(router_cancel(s.t.routers[who], mine));
                memset(mine, 0xee, sizeof *mine);       /* whoever uses it from now on will fall over it */
                unsigned char kept[sizeof got];
                memcpy(kept, got, sizeof got);
                if (!who) memset(sent, 0xdd, MOST);
                poll_both(&s, 20);
                if (who) assert_memory_equal(kept, got, sizeof got);
                assert_int_equal(other->state, who ? TRANSFER_DONE : TRANSFER_FAILED);    /* into the void */
                if (!who) assert_int_equal(other->status, TUTTI_ABORTED);
                scene_begin(&s, MOST);
                poll_both(&s, 50);
                expect_done(&s, MOST);
                table_close(&s.t);
            }
}
/* Several at once between the same two: one after the other, each right. */
static void test_many_at_once(void **state)
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
                bool shares = k % 3 != side;            /* one of the two does not want it: then it is streamed */
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
static void test_nonsense_fails_all_transfers(void **state)
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
        cmocka_unit_test(test_every_length_and_placement),
        cmocka_unit_test(test_nothing_is_staged),
        cmocka_unit_test(test_whoever_has_time_copies),
        cmocka_unit_test(test_memory_that_comes_late),
        cmocka_unit_test(test_a_refusal_is_an_error),
        cmocka_unit_test(test_memory_that_is_gone_when_all_is_copied),
        cmocka_unit_test(test_the_end_is_told_before_it_is_over),
        cmocka_unit_test(test_a_refusal_does_not_begin_the_next),
        cmocka_unit_test(test_forbidden_memory_is_not_touched),
        cmocka_unit_test(test_cancelling),
        cmocka_unit_test(test_many_at_once),
        cmocka_unit_test(test_nonsense_fails_all_transfers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
