/* HELLO datagrams that do not come from the process that they name, or not for this endpoint: changed on the way, with
   another key, of an earlier endpoint, to another process. They change nothing. A valid HELLO does. */
#include "backend/transports/verbs/handshake.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks_verbs.h"

static struct fabric *const here = &verbs_fabrics[1], *const there = &verbs_fabrics[0];
/* The endpoints of the connection between these two fabrics. */
static struct endpoint *end_here, *end_there;

/* Returns a HELLO from the other process about this endpoint of it, without a proof. */
static struct hello hello_of(const struct endpoint *e, enum handshake_stage stage)
{
    struct hello h = { .magic = HELLO_MAGIC, .address = nic_address(there), .stage = stage, .lane_count = 1 };
    h.lanes[0] = h.address;
    fabric_handshake_init(there, e, &h.handshake);
    return h;
}
static void hello_prove(struct hello *h) { proof_make(&end_there->pair_key, h, PROVED_BYTES, h->proof); }
/* Handles the HELLO. Returns whether the connection is unchanged. */
static bool changes_nothing(const struct hello *h)
{
    uint64_t theirs = verbs_endpoint_of(end_here)->peer_turn, least = end_here->least_turn;
    verbs_handle_hello(here, h);
    return here->endpoints == end_here && !end_here->next && !endpoint_is_broken(end_here) && end_here->is_open
        && verbs_endpoint_of(end_here)->peer_turn == theirs && end_here->least_turn == least;
}
static void check_changed_bytes(const struct rank *me)
{
    struct hello right = hello_of(end_there, ENDPOINT_CLOSED);
    hello_prove(&right);
    for (size_t at = 0; at < sizeof right; at++) {
        struct hello h = right;
        ((unsigned char *)&h)[at] ^= 1;
        REQUIRE(changes_nothing(&h));
    }
}
static void check_earlier_endpoints(const struct rank *me)
{
    struct endpoint earlier = *end_there;
    earlier.turn--;
    for (enum handshake_stage stage = CONNECTING; stage <= ENDPOINT_CLOSED; stage++) {
        struct hello h = hello_of(&earlier, stage);
        hello_prove(&h);
        REQUIRE(changes_nothing(&h));
    }
}
static void check_other_processes(const struct rank *me)
{
    struct hello h = hello_of(end_there, ENDPOINT_CLOSED);
    h.handshake.to[0] ^= 8;
    hello_prove(&h);
    REQUIRE(changes_nothing(&h));
    h = hello_of(end_there, ENDPOINT_CLOSED);
    h.handshake.key.bytes[0] ^= 1;
    hello_prove(&h);
    REQUIRE(changes_nothing(&h));
    h = hello_of(end_there, ENDPOINT_CLOSED);
    /* To another life of this process's fabric. */
    h.handshake.life++;
    hello_prove(&h);
    REQUIRE(changes_nothing(&h));
    h = hello_of(end_there, ENDPOINT_CLOSED);
    /* From this process to itself, with the key of the pair. */
    memcpy(h.handshake.from, here->process, sizeof h.handshake.from);
    hello_prove(&h);
    REQUIRE(changes_nothing(&h));
}
static void strangers_send(struct rank *me)
{
    rank_connect(me);
    rank_meet(me);
    if (me->rank == 0) end_there = there->endpoints;
    rank_meet(me);
    if (me->rank == 1) {
        pthread_mutex_lock(&here->lock);
        /* The other rank polls meanwhile. */
        pthread_mutex_lock(&there->lock);
        end_here = here->endpoints;
        check_changed_bytes(me);
        check_earlier_endpoints(me);
        check_other_processes(me);
        struct hello right = hello_of(end_there, ENDPOINT_CLOSED);
        hello_prove(&right);
        REQUIRE(!changes_nothing(&right) && endpoint_is_broken(end_here));
        pthread_mutex_unlock(&there->lock);
        pthread_mutex_unlock(&here->lock);
    }
    rank_meet(me);
}
static void test_hellos_of_strangers_change_nothing(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, strangers_send);
}
unit_function test_verbs_strangers;
int test_verbs_strangers(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_hellos_of_strangers_change_nothing, ranks_verbs_begin, ranks_verbs_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
