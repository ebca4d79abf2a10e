/* The shm transport: damaged shared memory, failed reservations and allocations, credit, wake-ups, and cancelling at
   each stage. This thread acts as all ranks. */
#include "backend/base/memory.h"
#include "backend/transports/shm/link.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"

/* More bytes than the pipe holds. */
enum { LARGE = PIPE_SLOTS * SLOT_BYTES + 77 };
static unsigned char sent[LARGE], got[LARGE];

/* ---- damaged memory ---- */
typedef void damage(struct table *t);
static void forge_kind(struct table *t) { atomic_store(&table_pair(t, 0, 1)->cells[0].head, 77); }
static void forge_no_kind(struct table *t) { atomic_store(&table_pair(t, 0, 1)->cells[0].head, 0); }
static void forge_eager_bytes(struct table *t)
{
    atomic_store(&table_pair(t, 0, 1)->cells[0].head, UINT32_MAX << KIND_BITS | ENVELOPE_EAGER);
}
/* Rank 0 announces a large message. Its envelope is damaged before rank 1 reads it. */
static void test_a_damaged_envelope_fails_all_transfers(void **state)
{
    (void)state;
    static damage *const damages[] = { forge_kind, forge_no_kind, forge_eager_bytes };
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        struct table t;
        struct transfer x[4];
        struct piece out = piece_whole(sent, LARGE), in = piece_whole(got, LARGE);
        table_open(&t, 3, -1);
        table_post(&t, 0, &x[0], 1, true, &out);
        table_post(&t, 1, &x[1], 0, false, &in);
        table_post(&t, 1, &x[2], 2, true, &out);
        damages[i](&t);
        table_poll(&t, 5);
        for (int k = 1; k < 3; k++) {
            assert_int_equal(x[k].state, TRANSFER_FAILED);
            assert_int_equal(x[k].status, TUTTI_INTERNAL);
        }
        table_post(&t, 1, &x[3], 2, true, &out);
        assert_int_equal(x[3].status, TUTTI_INTERNAL);
        table_close(&t);
    }
}
static void forge_slot_bytes(struct table *t) { atomic_store(&table_pair(t, 0, 1)->slots[0].bytes, UINT64_MAX); }
static void forge_short_slot(struct table *t) { atomic_store(&table_pair(t, 0, 1)->slots[0].bytes, 17); }
static void forge_taken(struct table *t) { atomic_store(&table_pair(t, 0, 1)->taken, 5000); }
static void forge_returned(struct table *t) { atomic_store(&table_pair(t, 0, 1)->returned, UINT64_MAX / 2); }
static void forge_emptied(struct table *t) { atomic_store(&table_pair(t, 0, 1)->emptied, 12345); }
/* Rank 0 has filled the pipe, and rank 1 has not read it. Then a word is damaged that the rank `victim` reads next. */
static void damage_a_stream(damage *spoil, int victim)
{
    struct table t;
    struct transfer out_x, in_x, more[200];
    struct piece out = piece_whole(sent, LARGE), in = piece_whole(got, LARGE), little = piece_whole(sent, 3000);
    table_open(&t, 2, -1);
    table_post(&t, 0, &out_x, 1, true, &out);
    table_post(&t, 1, &in_x, 0, false, &in);
    router_poll(t.routers[1]);
    router_poll(t.routers[0]);
    assert_int_equal(in_x.state, TRANSFER_POSTED);
    spoil(&t);
    /* Small messages make rank 0 read the counters. */
    for (int i = 0; i < 200 && victim == 0; i++) table_post(&t, 0, &more[i], 1, true, &little);
    router_poll(t.routers[victim]);
    struct transfer *x = victim == 0 ? &out_x : &in_x;
    assert_int_equal(x->state, TRANSFER_FAILED);
    assert_int_equal(x->status, TUTTI_INTERNAL);
    table_close(&t);
}
static void test_damaged_counters_and_slots_fail_all_transfers(void **state)
{
    (void)state;
    damage_a_stream(forge_slot_bytes, 1);
    damage_a_stream(forge_short_slot, 1);
    damage_a_stream(forge_taken, 0);
    damage_a_stream(forge_returned, 0);
    damage_a_stream(forge_emptied, 0);
}
/* Random bytes overwrite the pairs between polls. Every poll must return, and write only to buffers and pairs. */
static void test_noise_in_shared_memory_is_survived(void **state)
{
    (void)state;
    unsigned long random = 12345;
    for (int round = 0; round < 300; round++) {
        struct table t;
        struct transfer x[20];
        struct piece pieces[20];
        table_open(&t, 2, -1);
        for (int k = 0; k < 20; k++) {
            size_t bytes = k % 4 == 3 ? LARGE : (size_t)k * 30;
            pieces[k] = piece_whole(k % 2 ? got : sent, bytes);
            table_post(&t, k % 2, &x[k], 1 - k % 2, k % 4 < 2, &pieces[k]);
        }
        for (int n = 0; n < 40; n++) {
            unsigned char *at = (unsigned char *)table_pair(&t, n % 2, 1 - n % 2);
            for (int k = 0; k < 8; k++) {
                random = random * 6364136223846793005ul + 1442695040888963407ul;
                at[(random >> 33) % offsetof(struct pair, eager)] =
                    (unsigned char)(random >> 25 & (random & 1 ? 3 : 255));
            }
            table_poll(&t, 1);
        }
        table_close(&t);
    }
}

/* ---- refusals ---- */
/* Refuses each reservation in turn. The transfer that needs it fails with NO_MEMORY. No rank accesses the memory. */
static void test_a_refused_reservation_is_an_error(void **state)
{
    (void)state;
    static const size_t sizes[] = { 8, 1000, LARGE };
    int refused = 0;
    for (int reserves = 0; reserves < 8; reserves++)
        for (int s = 0; s < 3; s++) {
            struct table t;
            struct transfer out_x, in_x;
            struct piece out = piece_whole(sent, sizes[s]), in = piece_whole(got, sizes[s]);
            table_open(&t, 2, reserves);
            table_post(&t, 1, &in_x, 0, false, &in);
            table_post(&t, 0, &out_x, 1, true, &out);
            table_poll(&t, 30);
            bool fine = out_x.state == TRANSFER_DONE && in_x.state == TRANSFER_DONE;
            struct transfer *failed = out_x.state == TRANSFER_FAILED ? &out_x : &in_x;
            if (!fine) assert_int_equal(failed->status, TUTTI_NO_MEMORY);
            refused += !fine;
            table_close(&t);
        }
    /* 8 bytes need ring and doorbell, 1000 bytes also the eager part. LARGE bytes need ring, doorbell and pipe, and
       ring and doorbell of the way back. */
    assert_int_equal(refused, 2 + 3 + 5);
}
static void test_no_memory_for_an_unexpected_message_is_an_error(void **state)
{
    (void)state;
    struct table t;
    struct transfer out_x, in_x, late;
    struct piece out = piece_whole(sent, 100), in = piece_whole(got, 100);
    table_open(&t, 2, -1);
    table_post(&t, 0, &out_x, 1, true, &out);
    in_x = (struct transfer){ .name = { 0, 2 }, .peer = 0, .pieces = &in, .piece_count = 1 };
    router_post(t.routers[1], &in_x);
    memory_fail_after(1);
    table_poll(&t, 2);
    memory_fail_after(0);
    assert_int_equal(in_x.state, TRANSFER_FAILED);
    assert_int_equal(in_x.status, TUTTI_NO_MEMORY);
    table_post(&t, 1, &late, 0, false, &in);
    assert_int_equal(late.status, TUTTI_NO_MEMORY);
    table_close(&t);
}
static void test_connecting_without_memory_is_an_error(void **state)
{
    (void)state;
    struct table t;
    table_open(&t, 2, -1);
    struct shm_callbacks callbacks = table_callbacks(&t);
    struct router *router;
    struct bell none = { NULL, NULL };
    for (int n = 1; n <= 2; n++) {
        memory_fail_after(n);
        assert_int_equal(router_create(0, 2, 1, none, &router), TUTTI_NO_MEMORY);
    }
    memory_fail_after(0);
    assert_int_equal(router_create(0, 2, 1, none, &router), TUTTI_OK);
    for (int n = 1; n <= 3; n++) {
        memory_fail_after(n);
        assert_int_equal(shm_connect(router, &callbacks, 0, NULL, 2), TUTTI_NO_MEMORY);
        assert_null(router->transports);
    }
    memory_fail_after(0);
    assert_int_equal(shm_connect(router, &callbacks, 0, NULL, DOORBELL_RANKS + 1), TUTTI_UNSUPPORTED);
    router_destroy(router);
    table_close(&t);
}
/* Expected messages of any size allocate nothing. */
static void test_expected_messages_allocate_nothing(void **state)
{
    (void)state;
    static const size_t sizes[] = { 0, 8, 1000, 4096, LARGE };
    struct table t;
    table_open(&t, 2, -1);
    memory_fail_after(1);
    for (int n = 0; n < 500; n++) {
        struct transfer out_x, in_x;
        struct piece out = piece_whole(sent, sizes[n % 5]), in = piece_whole(got, sizes[n % 5]);
        table_post(&t, 1, &in_x, 0, false, &in);
        table_post(&t, 0, &out_x, 1, true, &out);
        table_poll(&t, 10);
        assert_int_equal(in_x.state, TRANSFER_DONE);
        assert_int_equal(out_x.state, TRANSFER_DONE);
    }
    /* The first allocation since memory_fail_after is this one, so it fails. */
    assert_null(memory_alloc_zeroed(1, 1));
    table_close(&t);
}

/* ---- budget ---- */
static void test_unexpected_bytes_are_bounded(void **state)
{
    (void)state;
    enum { MANY = 1500 };
    static const size_t sizes[] = { 1000, 0, 40, 4096 };
    static struct transfer x[MANY], y[MANY];
    for (int s = 0; s < 4; s++) {
        struct table t;
        struct piece out = piece_whole(sent, sizes[s]), in = piece_whole(got, sizes[s]);
        int done = 0;
        table_open(&t, 2, -1);
        for (int i = 0; i < MANY; i++) {
            table_post(&t, 0, &x[i], 1, true, &out);
            table_poll(&t, 2);
        }
        for (int i = 0; i < MANY; i++) done += x[i].state == TRANSFER_DONE;
        size_t each = sizes[s] + 64 + (sizes[s] > INLINE_BYTES ? READ_AHEAD : 0);
        assert_in_range((size_t)done * each, EAGER_CREDIT - 5000, EAGER_CREDIT + 40 * (size_t)done);
        for (int i = 0; i < MANY; i++) table_post(&t, 1, &y[i], 0, false, &in);
        table_poll(&t, 5000);
        for (int i = 0; i < MANY; i++) assert_true(x[i].state == TRANSFER_DONE && y[i].state == TRANSFER_DONE);
        table_close(&t);
    }
}
/* The receiver returns credit for messages that meet their receive on arrival, and for those that meet it later. */
static void test_credit_comes_back(void **state)
{
    (void)state;
    for (int late = 0; late < 2; late++) {
        struct table t;
        struct transfer out_x, in_x;
        struct piece out = piece_whole(sent, 3000), in = piece_whole(got, 3000);
        table_open(&t, 2, -1);
        for (int n = 0; n < 300; n++) {
            if (!late) table_post(&t, 1, &in_x, 0, false, &in);
            table_post(&t, 0, &out_x, 1, true, &out);
            /* An eager send is over at once. */
            assert_int_equal(out_x.state, TRANSFER_DONE);
            table_poll(&t, 1);
            if (late) table_post(&t, 1, &in_x, 0, false, &in);
            assert_int_equal(in_x.state, TRANSFER_DONE);
        }
        table_close(&t);
    }
}

/* ---- bells ---- */
/* A rank sleeps when a poll found nothing and its bell has not rung since before that poll. Two ranks that are polled
   only while they are awake must still finish: no wake-up may be missing. */
struct sleeper {
    uint32_t seen;
    bool asleep;
};
static bool poll_if_awake(struct table *t, int rank, struct sleeper *sleeper)
{
    uint32_t bell = atomic_load(&t->bells[rank]);
    if (sleeper->asleep && bell == sleeper->seen) return false;
    sleeper->seen = bell;
    sleeper->asleep = !router_poll(t->routers[rank]);
    return true;
}
/* Polls the two ranks in turns, or each one until it sleeps. */
static void run_until_all_sleep(struct table *t, struct sleeper sleepers[2], int first, bool in_turns)
{
    for (bool awake = true; awake;) {
        awake = false;
        for (int k = 0; k < 2; k++) {
            int r = first ^ k;
            while (poll_if_awake(t, r, &sleepers[r])) {
                awake = true;
                if (in_turns) break;
            }
        }
    }
}
/* Rank 0 sends `count` messages to rank 1. Bits of `how`: 1 receives are posted first, 2 rank 1 is polled first, 4 the
   ranks are polled in turns. */
static void one_way(int count, size_t bytes, int how)
{
    static struct transfer x[1000], y[1000];
    struct table t;
    struct sleeper sleepers[2] = { { 0, false }, { 0, false } };
    struct piece out = piece_whole(sent, bytes), in = piece_whole(got, bytes);
    bool receive_first = how & 1, in_turns = how & 4;
    int first = how >> 1 & 1;
    table_open(&t, 2, -1);
    for (int i = 0; i < count && receive_first; i++) table_post(&t, 1, &y[i], 0, false, &in);
    run_until_all_sleep(&t, sleepers, first, in_turns);
    for (int i = 0; i < count; i++) table_post(&t, 0, &x[i], 1, true, &out);
    /* A rank that posts polls afterwards. */
    sleepers[0].asleep = false;
    run_until_all_sleep(&t, sleepers, first, in_turns);
    for (int i = 0; i < count && !receive_first; i++) table_post(&t, 1, &y[i], 0, false, &in);
    if (!receive_first) sleepers[1].asleep = false;
    run_until_all_sleep(&t, sleepers, first, in_turns);
    for (int i = 0; i < count; i++) assert_true(x[i].state == TRANSFER_DONE && y[i].state == TRANSFER_DONE);
    table_close(&t);
}
static void test_no_wake_up_is_missing(void **state)
{
    (void)state;
    static const int counts[] = { 1, 5, 64, 65, 100, 1000 };
    static const size_t sizes[] = { 8, 2000, 4097, 70000, LARGE };
    for (int c = 0; c < 6; c++)
        for (int s = 0; s < 5; s++)
            for (int how = 0; how < 8; how++)
                if ((size_t)counts[c] * sizes[s] < 40000000) one_way(counts[c], sizes[s], how);
}

/* ---- cancelling, at each stage ---- */
struct scene {
    struct table t;
    struct transfer out_x, in_x;
    struct piece out, in;
};
/* Rank 0 announces a message of a little more than the pipe holds. */
static void scene_open(struct scene *s)
{
    table_open(&s->t, 2, -1);
    s->out = piece_whole(sent, LARGE);
    s->in = piece_whole(got, LARGE);
    memset(got, 0, sizeof got);
    table_post(&s->t, 0, &s->out_x, 1, true, &s->out);
}
/* Rank 1 handles the announcement, and posts the receive, which is cleared. */
static void receive_and_clear(struct scene *s)
{
    router_poll(s->t.routers[1]);
    table_post(&s->t, 1, &s->in_x, 0, false, &s->in);
}
/* Checks that the next message arrives whole, and that the memory of the first receive is not written. */
static void scene_close(struct scene *s)
{
    static unsigned char other[sizeof sent];
    struct transfer next_out, next_in;
    struct piece from = piece_whole(sent, LARGE), to = piece_whole(other, LARGE);
    table_poll(&s->t, 50);
    memset(got, 0, sizeof got);
    bytes_fill(sent, LARGE, 5);
    table_post(&s->t, 0, &next_out, 1, true, &from);
    table_post(&s->t, 1, &next_in, 0, false, &to);
    table_poll(&s->t, 50);
    assert_int_equal(next_out.state, TRANSFER_DONE);
    assert_int_equal(next_in.state, TRANSFER_DONE);
    assert_true(bytes_are(other, LARGE, 5));
    for (size_t i = 0; i < sizeof got; i++) assert_int_equal(got[i], 0);
    table_close(&s->t);
}
static void cancel(struct scene *s, struct transfer *x)
{
    assert_int_equal(x->state, TRANSFER_POSTED);
    assert_true(router_cancel(s->t.routers[x == &s->out_x ? 0 : 1], x));
    assert_int_equal(x->state, TRANSFER_IDLE);
    /* A later use of the transfer would crash. */
    memset(x, 0xee, sizeof *x);
}
static void test_a_send_can_be_cancelled_at_each_stage(void **state)
{
    (void)state;
    /* 0: the announcement is in the ring. 1: the receiver keeps it. 2: the receive is cleared. 3: the pipe is full. */
    for (int stage = 0; stage < 4; stage++) {
        struct scene s;
        scene_open(&s);
        if (stage == 1) table_poll(&s.t, 1);
        if (stage >= 2) receive_and_clear(&s);
        if (stage == 3) router_poll(s.t.routers[0]);
        cancel(&s, &s.out_x);
        table_poll(&s.t, 20);
        if (stage >= 2) assert_int_equal(s.in_x.state, TRANSFER_FAILED);
        if (stage >= 2) assert_int_equal(s.in_x.status, TUTTI_ABORTED);
        scene_close(&s);
    }
}
static void test_a_receive_can_be_cancelled_at_each_stage(void **state)
{
    (void)state;
    /* 0: the receive is cleared. 1: the pipe is full. 2: the first slots are read. */
    for (int stage = 0; stage < 3; stage++) {
        struct scene s;
        scene_open(&s);
        receive_and_clear(&s);
        if (stage >= 1) router_poll(s.t.routers[0]);
        if (stage >= 2) router_poll(s.t.routers[1]);
        cancel(&s, &s.in_x);
        table_poll(&s.t, 20);
        /* The send succeeds; its bytes are dropped. */
        assert_int_equal(s.out_x.state, TRANSFER_DONE);
        scene_close(&s);
    }
}
/* Fills the ring from rank 1 to rank 0, so that answers of rank 1 wait. */
static void fill_ring(struct scene *s, struct transfer x[RING_CELLS])
{
    static struct piece nothing;
    for (int i = 0; i < RING_CELLS; i++) {
        x[i] = (struct transfer){ .name = { 0, 2 }, .is_send = true, .pieces = &nothing, .piece_count = 1 };
        router_post(s->t.routers[1], &x[i]);
        assert_int_equal(x[i].state, TRANSFER_DONE);
    }
}
static void test_transfers_can_be_cancelled_while_answers_wait(void **state)
{
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        struct scene s;
        struct transfer x[RING_CELLS];
        scene_open(&s);
        fill_ring(&s, x);
        /* The clearance finds no room in the ring. */
        receive_and_clear(&s);
        cancel(&s, rank == 0 ? &s.out_x : &s.in_x);
        router_poll(s.t.routers[1]);
        if (rank == 0) assert_int_equal(s.in_x.status, TUTTI_ABORTED);
        table_poll(&s.t, 20);
        if (rank == 1) assert_int_equal(s.out_x.state, TRANSFER_DONE);
        scene_close(&s);
    }
}
/* Rank 1 answers a hundred messages with MISMATCH while its ring is full. All their sends get the answer later. */
static void test_answers_wait_for_room_in_the_ring(void **state)
{
    (void)state;
    enum { MANY = 100 };
    struct scene s;
    struct transfer x[RING_CELLS], out[MANY], in[MANY];
    struct piece wrong = piece_whole(got, 5);
    scene_open(&s);
    for (int i = 0; i < MANY; i++) table_post(&s.t, 0, &out[i], 1, true, &s.out);
    fill_ring(&s, x);
    receive_and_clear(&s);
    for (int i = 0; i < MANY; i++) table_post(&s.t, 1, &in[i], 0, false, &wrong);
    table_poll(&s.t, 50);
    for (int i = 0; i < MANY; i++) {
        assert_int_equal(in[i].peer_bytes, s.out.wire);
        assert_int_equal(out[i].status, TUTTI_MISMATCH);
        assert_int_equal(out[i].peer_bytes, 5);
    }
    scene_close(&s);
}
unit_function test_shm;
int test_shm(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_damaged_envelope_fails_all_transfers),
        cmocka_unit_test(test_damaged_counters_and_slots_fail_all_transfers),
        cmocka_unit_test(test_noise_in_shared_memory_is_survived),
        cmocka_unit_test(test_a_refused_reservation_is_an_error),
        cmocka_unit_test(test_no_memory_for_an_unexpected_message_is_an_error),
        cmocka_unit_test(test_connecting_without_memory_is_an_error),
        cmocka_unit_test(test_expected_messages_allocate_nothing),
        cmocka_unit_test(test_unexpected_bytes_are_bounded),
        cmocka_unit_test(test_credit_comes_back),
        cmocka_unit_test(test_no_wake_up_is_missing),
        cmocka_unit_test(test_a_send_can_be_cancelled_at_each_stage),
        cmocka_unit_test(test_a_receive_can_be_cancelled_at_each_stage),
        cmocka_unit_test(test_transfers_can_be_cancelled_while_answers_wait),
        cmocka_unit_test(test_answers_wait_for_room_in_the_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
