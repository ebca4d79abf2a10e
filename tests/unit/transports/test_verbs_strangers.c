/* Greetings that are none of the process that they name: changed on the way, without its key, of an endpoint that is no
   more, for another process. They change nothing; the one that is right does. */
#include "backend/transports/verbs/handshake.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks_verbs.h"

static struct fabric *const here = &verbs_fabrics[1], *const there = &verbs_fabrics[0];
static struct endpoint *end_here, *end_there; /* of their connection */

/* As the other process says it, in the name of that endpoint. */
static struct hello hello_of(const struct endpoint *e, enum handshake_stage stage)
{
    struct hello h = { .magic = HELLO_MAGIC, .address = nic_address(there), .stage = stage, .lane_count = 1 };
    h.lanes[0] = h.address;
    fabric_handshake_init(there, e, &h.handshake);
    return h;
}
static void hello_prove(struct hello *h) { proof_make(&end_there->pair_key, h, PROVED_BYTES, h->proof); }
/* Whether the connection is as it was. */
static bool changes_nothing(const struct hello *h)
{
    uint64_t theirs = verbs_endpoint_of(end_here)->peer_turn, least = end_here->least_turn;
    verbs_handle_hello(here, h);
    return here->endpoints == end_here && !end_here->next && !endpoint_is_broken(end_here) && end_here->is_open
        && verbs_endpoint_of(end_here)->peer_turn == theirs && end_here->least_turn == least;
}
static void of_every_byte(const struct rank *me)
{
    struct hello right = hello_of(end_there, ENDPOINT_CLOSED);
    hello_prove(&right);
    for (size_t at = 0; at < sizeof right; at++) {
        struct hello h = right;
        ((unsigned char *)&h)[at] ^= 1;
        REQUIRE(changes_nothing(&h));
    }
}
static void of_earlier_endpoints(const struct rank *me)
{
    struct endpoint earlier = *end_there;
    earlier.turn--;
    for (enum handshake_stage stage = CONNECTING; stage <= ENDPOINT_CLOSED; stage++) {
        struct hello h = hello_of(&earlier, stage);
        hello_prove(&h);
        REQUIRE(changes_nothing(&h));
    }
}
static void of_others(const struct rank *me)
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
    h.handshake.life++; /* to a fabric of this process that has ended */
    hello_prove(&h);
    REQUIRE(changes_nothing(&h));
    h = hello_of(end_there, ENDPOINT_CLOSED);
    memcpy(h.handshake.from, here->process, sizeof h.handshake.from); /* by the key of the pair, as its own */
    hello_prove(&h);
    REQUIRE(changes_nothing(&h));
}
static void strangers_speak(struct rank *me)
{
    rank_connect(me);
    rank_meet(me);
    if (me->rank == 0) end_there = there->endpoints;
    rank_meet(me);
    if (me->rank == 1) {
        pthread_mutex_lock(&here->lock);
        pthread_mutex_lock(&there->lock); /* the other rank polls meanwhile */
        end_here = here->endpoints;
        of_every_byte(me);
        of_earlier_endpoints(me);
        of_others(me);
        struct hello right = hello_of(end_there, ENDPOINT_CLOSED);
        hello_prove(&right);
        REQUIRE(!changes_nothing(&right) && endpoint_is_broken(end_here));
        pthread_mutex_unlock(&there->lock);
        pthread_mutex_unlock(&here->lock);
    }
    rank_meet(me);
}
static void test_greetings_of_strangers_change_nothing(void **state)
{
    (void)state;
    ranks_verbs_apart(2, POLLS, strangers_speak);
}
unit_function test_verbs_strangers;
int test_verbs_strangers(void)
{
    if (!ranks_verbs_open()) return SKIPPED;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_greetings_of_strangers_change_nothing, ranks_verbs_begin, ranks_verbs_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
