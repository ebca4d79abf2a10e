/* The router: which transport a message takes, which transfers fail with a transport or a lost peer, and which bells
   ring. This thread acts as all ranks; ranks 0 and 1 are on one host, rank 2 is on another. */
#include "backend/base/status.h"
#include "backend/transports/shm/pair.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"

enum { RANKS = 3, LARGE = 100000 };
static unsigned char sent[LARGE], got[LARGE];
static const struct piece large_out = { sent, LARGE, LARGE }, large_in = { got, LARGE, LARGE };
static const struct piece byte_out = { sent, 1, 1 }, byte_in = { got, 1, 1 };

static void open_ranks(struct mixed *m)
{
    mixed_open(m, RANKS, (int[]){ 0, 0, 1 }, &(struct inproc_options){ .seed = 1, .delay = 5, .budget = 4 });
}
static struct transfer *router_post_piece(struct router *r, struct transfer *x, bool is_send, int peer,
    const struct piece *piece)
{
    *x = (struct transfer){ .name = { 1, 2 }, .peer = peer, .is_send = is_send, .pieces = piece, .piece_count = 1 };
    router_post(r, x);
    return x;
}
static void poll_all(struct mixed *m)
{
    for (int n = 0; n < 100; n++)
        for (int r = 0; r < RANKS; r++) router_poll(m->routers[r]);
}
static void expect_failed(const struct transfer *x, tutti_status status)
{
    assert_int_equal(x->state, TRANSFER_FAILED);
    assert_int_equal(x->status, status);
}

static void test_a_message_takes_the_first_transport_that_leads_to_its_peer(void **state)
{
    (void)state;
    struct mixed m;
    struct transfer x[4];
    open_ranks(&m);
    router_post_piece(m.routers[1], &x[0], false, 0, &large_in);
    router_post_piece(m.routers[0], &x[1], true, 1, &large_out);
    poll_all(&m);
    assert_int_equal(x[0].state, TRANSFER_DONE);
    assert_int_equal(inproc_world_bytes_sent(m.world, 0), 0);
    router_post_piece(m.routers[2], &x[2], false, 0, &large_in);
    router_post_piece(m.routers[0], &x[3], true, 2, &large_out);
    poll_all(&m);
    assert_int_equal(x[2].state, TRANSFER_DONE);
    assert_int_equal(inproc_world_bytes_sent(m.world, 0), LARGE);
    mixed_close(&m);
}
static void test_a_peer_without_a_transport_is_unsupported(void **state)
{
    (void)state;
    struct router *router;
    struct transfer x;
    for (int is_send = 0; is_send < 2; is_send++) {
        assert_int_equal(router_create(0, 2, 1, (struct bell){ NULL, NULL }, &router), TUTTI_OK);
        expect_failed(router_post_piece(router, &x, is_send, 1, &byte_out), TUTTI_UNSUPPORTED);
        assert_string_equal(router->reason, "rank 0 has no transport to rank 1");
        assert_int_equal(router_post_piece(router, &x, false, TRANSFER_ANY_PEER, &byte_in)->state, TRANSFER_POSTED);
        assert_true(router_cancel(router, &x));
        router_destroy(router);
    }
}
static void test_pieces_that_exceed_64_bits_are_refused(void **state)
{
    (void)state;
    struct mixed m;
    struct transfer x = { .peer = 1,
        .is_send = true,
        .piece_count = 2,
        .pieces = (struct piece[]){ { sent, 1, SIZE_MAX }, { sent, 1, 1 } } };
    open_ranks(&m);
    router_post(m.routers[0], &x);
    expect_failed(&x, TUTTI_INVALID_ARGUMENT);
    assert_string_equal(m.routers[0]->reason, "the pieces of a message exceed 2^64 bytes");
    mixed_close(&m);
}
/* The memory that rank 1 shares with rank 0 is overwritten. Rank 1's transfers over the other transport fail too. */
static void test_a_failure_of_one_transport_fails_all_transfers(void **state)
{
    (void)state;
    struct mixed m;
    struct transfer x[5], late;
    open_ranks(&m);
    router_post_piece(m.routers[0], &x[0], true, 1, &large_out);
    router_post_piece(m.routers[1], &x[1], true, 2, &large_out);
    router_post_piece(m.routers[1], &x[2], false, 2, &large_in);
    router_post_piece(m.routers[1], &x[3], false, TRANSFER_ANY_PEER, &byte_in);
    router_post_piece(m.routers[1], &x[4], true, 0, &large_out);
    struct pair *pair = (struct pair *)(void *)(m.hosts[0].memory + m.hosts[0].pair_bytes);
    atomic_store(&pair->cells[0].head, 77);
    assert_true(router_poll(m.routers[1]));
    for (int k = 1; k < 5; k++) expect_failed(&x[k], TUTTI_INTERNAL);
    assert_false(router_poll(m.routers[1]));
    expect_failed(router_post_piece(m.routers[1], &late, true, 2, &byte_out), TUTTI_INTERNAL);
    expect_failed(router_post_piece(m.routers[1], &late, false, TRANSFER_ANY_PEER, &byte_in), TUTTI_INTERNAL);
    assert_non_null(strstr(m.routers[1]->reason, "rank 1 found invalid data in the memory that it shares with rank 0"));
    mixed_close(&m);
}
/* A receive still takes an eager message that arrived before the loss. An announced one is gone. */
static void test_eager_messages_of_a_lost_peer_can_be_received(void **state)
{
    (void)state;
    struct mixed m;
    struct transfer small, large, in[2];
    open_ranks(&m);
    router_post_piece(m.routers[0], &small, true, 1, &byte_out);
    router_post_piece(m.routers[0], &large, true, 1, &large_out);
    poll_all(&m);
    router_lose_peer(m.routers[1], 0, status_fail(TUTTI_PEER_LOST, "rank 0 has left"));
    router_lose_peer(m.routers[1], 0, status_fail(TUTTI_TIMEOUT, "and again"));
    assert_int_equal(router_post_piece(m.routers[1], &in[0], false, 0, &byte_in)->state, TRANSFER_DONE);
    expect_failed(router_post_piece(m.routers[1], &in[1], false, 0, &large_in), TUTTI_PEER_LOST);
    expect_failed(router_post_piece(m.routers[1], &in[1], true, 0, &large_out), TUTTI_PEER_LOST);
    assert_string_equal(m.routers[1]->reason, "rank 0 has left");
    poll_all(&m);
    mixed_close(&m);
}

/* ---- bells ---- */
static void bell_count(void *context) { ++*(int *)context; }
static void test_a_message_rings_the_bell(void **state)
{
    (void)state;
    struct inproc_world *world = inproc_world_create(2, &(struct inproc_options){ .seed = 1 });
    assert_non_null(world);
    struct router *routers[2];
    struct transfer x, more;
    int rings[2] = { 0, 0 };
    for (int r = 0; r < 2; r++) {
        assert_int_equal(router_create(r, 2, 1, (struct bell){ bell_count, &rings[r] }, &routers[r]), TUTTI_OK);
        inproc_world_connect(world, routers[r]);
        assert_true(router_arm(routers[r]));
    }
    router_post_piece(routers[0], &x, true, 1, &byte_out);
    assert_int_equal(rings[0], 0);
    assert_int_equal(rings[1], 1);
    router_post_piece(routers[0], &more, true, 1, &byte_out);
    /* Rank 1 has not armed again, so its bell does not ring again. */
    assert_int_equal(rings[1], 1);
    for (int r = 0; r < 2; r++) router_destroy(routers[r]);
    inproc_world_destroy(world);
}
static void test_a_rank_with_a_message_may_not_sleep(void **state)
{
    (void)state;
    struct mixed m;
    struct transfer x;
    open_ranks(&m);
    assert_true(router_arm(m.routers[2]));
    router_post_piece(m.routers[0], &x, true, 2, &byte_out);
    assert_false(router_arm(m.routers[2]));
    for (int n = 0; n < 100; n++) router_poll(m.routers[2]);
    assert_true(router_arm(m.routers[2]));
    mixed_close(&m);
}
/* A network by which messages came before their turn. Each poll handles one of them, until `stays` are left. */
struct early { struct transport base; int stays, polls; };
static bool handle_one(struct transport *t)
{
    struct early *early = (struct early *)(void *)t;
    early->polls++;
    t->router->ahead_count -= t->router->ahead_count > early->stays;
    return true;
}
static void test_one_poll_handles_all_messages_whose_turn_comes(void **state)
{
    (void)state;
    static const struct transport_operations operations = { .poll = handle_one };
    for (int stays = 0; stays < 3; stays++) {
        struct router r = { .ahead_count = 5 };
        struct early early = { .base = { .operations = &operations, .router = &r }, .stays = stays };
        r.polled = &early.base;
        assert_true(router_poll(&r));
        assert_int_equal(r.ahead_count, stays);
        assert_in_range(early.polls, 5 - stays, 7 - stays);
    }
}
unit_function test_router;
int test_router(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_message_takes_the_first_transport_that_leads_to_its_peer),
        cmocka_unit_test(test_a_peer_without_a_transport_is_unsupported),
        cmocka_unit_test(test_pieces_that_exceed_64_bits_are_refused),
        cmocka_unit_test(test_a_failure_of_one_transport_fails_all_transfers),
        cmocka_unit_test(test_eager_messages_of_a_lost_peer_can_be_received),
        cmocka_unit_test(test_a_message_rings_the_bell),
        cmocka_unit_test(test_a_rank_with_a_message_may_not_sleep),
        cmocka_unit_test(test_one_poll_handles_all_messages_whose_turn_comes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
