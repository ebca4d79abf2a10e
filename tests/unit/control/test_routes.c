/* Control messages travel over other hosts. The first tests follow routes from host to host, without processes. In the
   others processes on simulated hosts send messages: these keep their order and need no new links, and a process on the
   route may open its channel late, leave early, die or stop. */
#include "backend/base/clock.h"
#include "backend/control/channel.h"
#include "backend/links/link.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>

/* ---- steps from host to host ---- */
enum { HOSTS = 512, ALL_PAIRS = 96, ONE_MISSING = 40 };
static bool is_there(const void *missing, int host) { return !((const bool *)missing)[host]; }
static bool is_power(int number) { return number > 0 && !(number & (number - 1)); }
/* Follows the route from one host to another. Returns the number of its steps, or -1 if a host on it has no next
   one. */
static int route_walk(int hosts, int from, int to, const bool *missing)
{
    int steps = 0;
    for (; from != to; steps++) {
        int next = route_next_host(hosts, from, to, is_there, missing);
        if (next < 0) return -1;
        assert_true(next < hosts && !missing[next]);
        assert_true(is_power((next - from + hosts) % hosts) || is_power((from - next + hosts) % hosts));
        /* Each step is nearer to the end, so the route has no loop. */
        assert_true(route_distance(hosts, next, to) < route_distance(hosts, from, to));
        from = next;
    }
    return steps;
}
static void test_route_has_at_most_as_many_steps_as_its_distance(void **state)
{
    static const bool missing[HOSTS];
    (void)state;
    for (int hosts = 1; hosts <= HOSTS; hosts++)
        for (int from = 0; from < (hosts <= ALL_PAIRS || hosts == HOSTS ? hosts : 1); from++)
            for (int to = 0; to < hosts; to++) {
                int steps = route_walk(hosts, from, to, missing);
                assert_true(steps >= 0 && steps <= route_longest_distance(hosts)
                    && steps <= route_distance(hosts, from, to));
                assert_true(hosts > 3 || steps <= 1);
            }
}
static void test_route_leads_around_a_missing_host(void **state)
{
    bool missing[ONE_MISSING] = { false };
    (void)state;
    for (int hosts = 3; hosts <= ONE_MISSING; hosts++)
        for (int gone = 1; gone < hosts; gone++)
            for (int to = 0; to < hosts; to++) {
                if (to == gone) continue;
                missing[gone] = true;
                assert_true(route_walk(hosts, 0, to, missing) >= 0);
                missing[gone] = false;
            }
}
static void test_route_ends_whichever_hosts_are_missing(void **state)
{
    unsigned seed = (unsigned)clock_ms();
    int found = 0, cut_off = 0;
    (void)state;
    print_message("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < 20000; i++) {
        bool missing[HOSTS] = { false };
        int hosts = 2 + rand() % (HOSTS - 1), from = rand() % hosts, to = rand() % hosts;
        for (int h = 0; h < hosts; h++) missing[h] = h != to && rand() % 4 == 0;
        int steps = route_walk(hosts, from, to, missing);
        assert_true(steps <= route_longest_distance(hosts));
        if (steps < 0) cut_off++;
        else found++;
    }
    assert_true(found > cut_off);
}

/* ---- processes ---- */
/* Types of messages are 0, SECOND and, for answers, ECHO. The answer to a value is its negative; -BYE is the value of a
   final message. A message that may be lost is sent again after AGAIN_MS. */
enum { ROUNDS = 100, SECOND = 2, ECHO = 4, BYE = 999, AGAIN_MS = 20 };
static const unsigned char token[16] = "one token";
static struct peer *peers[MOST];
static struct channel *channel;
static int per_host, host_of[MOST];
/* Ranks send messages again, so a message may arrive twice, and late. */
static _Atomic bool ranks_repeat;
/* For each other rank: the highest value received from it, the highest value that it has answered, and the number of
   its final messages. */
static _Atomic int received[MOST], echoed[MOST], farewells[MOST];
static void send_value(int to, unsigned word, int value) { channel_send(channel, to, word, &value, sizeof value); }
/* Held while the channel opens, so that `value_receive`, which may be called meanwhile, finds `channel` set. */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static void value_receive(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    int value;
    (void)type;
    pthread_mutex_lock(&opening);
    pthread_mutex_unlock(&opening);
    REQUIRE(context == peers && length == sizeof value && from >= 0 && from < size && from != rank);
    memcpy(&value, bytes, sizeof value);
    if (value == -BYE) atomic_fetch_add(&farewells[from], 1);
    else if (value < 0 && -value > atomic_load(&echoed[from])) atomic_store(&echoed[from], -value);
    else if (value > 0) {
        int before = atomic_load(&received[from]);
        REQUIRE(ranks_repeat || value == before + 1);
        if (value > before) atomic_store(&received[from], value);
        if (value % 2 == 0) send_value(from, ECHO, -value);
    }
}
static void own_channel_open(void)
{
    struct route_map map = { size, size / per_host, rank / per_host, host_of };
    struct channel_user user = { value_receive, NULL, peers };
    pthread_mutex_lock(&opening);
    REQUIRE(channel_open(token, rank, peers, size, &map, &user, &channel) == TUTTI_OK);
    pthread_mutex_unlock(&opening);
}
static bool is_first(int r) { return r % per_host == 0; }
/* Connects the ranks of a host, and the first ranks of hosts that have a link. Other ranks are not connected. */
static void hosts_connect(int ranks_of_host)
{
    per_host = ranks_of_host;
    world_listen("127.0.0.1");
    for (int r = 0; r < size; r++) {
        host_of[r] = r / per_host;
        if (r == rank) continue;
        if (r / per_host == rank / per_host) REQUIRE(world_call(r, &peers[r]) == TUTTI_OK);
        else peers[r] = world_hold(r);
    }
    for (int ahead = per_host; is_first(rank) && ahead < size; ahead *= 2)
        REQUIRE(link_await(peers[(rank + ahead) % size], clock_ms() + JOIN_MS) == TUTTI_OK);
    world_barrier(size);
}
static int count_links(void)
{
    int count = 0;
    pthread_mutex_lock(&registry.lock);
    for (struct peer *p = registry.peers; p; p = p->next) count += p->link && p->state == OPEN;
    pthread_mutex_unlock(&registry.lock);
    return count;
}
static void finish(void)
{
    channel_close(channel);
    world_release_all(peers);
    peers_release();
}
/* Sends pairs of messages, and waits for the answer to each pair. The types of a pair differ, so that neither message
   replaces the other. */
static void exchange_pairs(int to, int first, int last)
{
    for (int value = first; value < last; value += 2) {
        send_value(to, 0, value);
        send_value(to, SECOND, value + 1);
        for (int64_t until = clock_ms() + JOIN_MS; atomic_load(&echoed[to]) < value + 1; sleep_ms(0))
            REQUIRE(clock_ms() < until);
    }
}
/* Sends a value again and again until it is answered. */
static void exchange_with_repeats(int to, int value)
{
    int64_t until = clock_ms() + JOIN_MS;
    for (int n = 0; atomic_load(&echoed[to]) < value; sleep_ms(1), n++) {
        if (n % AGAIN_MS == 0) send_value(to, 0, value);
        REQUIRE(clock_ms() < until);
    }
}
static void exchange_with_all(int first, int last)
{
    for (int hop = 1; hop < size; hop++) exchange_pairs((rank + hop) % size, first, last);
}

static void exchange_in_order(void)
{
    hosts_connect(2);
    own_channel_open();
    exchange_with_all(1, ROUNDS);
    world_barrier(size);
    REQUIRE(count_links() == (is_first(rank) ? 2 : 0));
    world_barrier(size);
    finish();
}
static void test_messages_keep_their_order_and_make_no_links(void **state)
{
    (void)state;
    world_run(6, exchange_in_order, 0);
}
static void exchange_between_16_hosts(void)
{
    hosts_connect(1);
    own_channel_open();
    exchange_with_all(1, 20);
    world_barrier(size);
    /* The links go to the hosts 1, 2 and 4 ahead and behind, and to the host 8 away. */
    REQUIRE(count_links() == 7);
    world_barrier(size);
    finish();
}
static void test_16_hosts_have_7_links_each(void **state)
{
    (void)state;
    world_run(16, exchange_between_16_hosts, 0);
}
static void come_late(void)
{
    hosts_connect(2);
    if (!is_first(rank)) own_channel_open();
    int to = (rank + 2) % size;
    if (!is_first(rank)) {
        send_value(to, 0, 1);
        send_value(to, SECOND, 2);
    }
    world_barrier(size);
    if (is_first(rank)) own_channel_open();
    for (int64_t until = clock_ms() + JOIN_MS; !is_first(rank) && atomic_load(&echoed[to]) < 2; sleep_ms(1))
        REQUIRE(clock_ms() < until);
    world_barrier(size);
    REQUIRE(count_links() == (is_first(rank) ? 2 : 0));
    world_barrier(size);
    finish();
}
static void test_forwarding_process_may_open_late(void **state)
{
    (void)state;
    world_run(6, come_late, 0);
}
static void leave_early(void)
{
    int bye = -BYE;
    hosts_connect(2);
    own_channel_open();
    exchange_with_all(1, 10);
    world_barrier(size);
    if (is_first(rank)) {
        for (int r = 0; r < size; r++)
            if (r != rank && is_first(r)) channel_send_final(channel, r, 7, &bye, sizeof bye);
        channel_close(channel);
    }
    world_barrier(size);
    for (int r = 1; r < size && !is_first(rank); r += 2)
        if (r != rank) exchange_pairs(r, 11, 20);
    world_barrier(size);
    /* The first rank of the next host has closed its channel without a message to this rank. */
    int gone = (rank + 1) % size;
    if (!is_first(rank)) send_value(gone, 0, 21);
    for (int64_t until = clock_ms() + JOIN_MS; !is_first(rank) && !atomic_load(&farewells[gone]); sleep_ms(1))
        REQUIRE(clock_ms() < until);
    world_barrier(size);
    REQUIRE(count_links() == (is_first(rank) ? 2 : 0));
    world_barrier(size);
    if (is_first(rank)) channel = NULL;
    finish();
}
static void test_forwarding_process_may_leave_early(void **state)
{
    (void)state;
    world_run(6, leave_early, 0);
}
/* Rank 2, the first of its host, is killed or stopped. The others repeat each message until it is answered. */
static void go_on_without(int signal)
{
    hosts_connect(2);
    own_channel_open();
    exchange_with_all(1, 10);
    world_barrier(size);
    atomic_store(&ranks_repeat, true);
    world_barrier(size);
    if (rank == 2) raise(signal);
    for (int value = 12; rank != 2 && value < 20; value += 2)
        for (int r = 0; r < size; r++)
            if (r != rank && r != 2) exchange_with_repeats(r, value);
    if (rank != 2) world_barrier(size - 1);
    if (rank == 0 && signal == SIGSTOP) REQUIRE(kill((pid_t)world->identity[2].pid, SIGCONT) == 0);
    finish();
}
static void die(void) { go_on_without(SIGKILL); }
static void stop(void) { go_on_without(SIGSTOP); }
static void test_forwarding_process_may_die(void **state)
{
    (void)state;
    world_run(6, die, 1u << 2);
}
static void test_forwarding_process_may_be_stopped(void **state)
{
    (void)state;
    world_run(6, stop, 0);
}
/* Rank 0, the first of its host, leaves. The messages that rank 1 has sent before still arrive. */
static void pass_on_and_go(void)
{
    hosts_connect(2);
    own_channel_open();
    if (rank == 1) {
        send_value(3, 0, 1);
        send_value(3, SECOND, 2);
    }
    world_barrier(size);
    if (rank == 0) { finish(); return; }
    if (rank == 3)
        for (int64_t until = clock_ms() + JOIN_MS; atomic_load(&received[1]) < 2; sleep_ms(1))
            REQUIRE(clock_ms() < until);
    world_barrier(size - 1);
    finish();
}
static void test_leaving_process_forwards_the_messages_that_it_has(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++) world_run(4, pass_on_and_go, 0);
}

/* Rank 1 sends messages that need no answer to rank 3, over the first processes of both hosts. */
static bool own_link_is_wanted(int to)
{
    pthread_mutex_lock(&registry.lock);
    bool is_wanted = peers[to]->state == OPEN || peers[to]->link->wanted_since_ms;
    pthread_mutex_unlock(&registry.lock);
    return is_wanted;
}
static void send_optional(void)
{
    const int value = -BYE, messages = 10;
    hosts_connect(2);
    own_channel_open();
    world_barrier(size);
    for (int i = 0; rank == 1 && i < messages; i++)
        REQUIRE(channel_send_optional(channel, 3, 0, &value, sizeof value) && !own_link_is_wanted(3));
    /* With messages that need an answer it gives up the way by other processes. */
    for (int i = 0; rank == 1 && i < messages; i++) send_value(3, SECOND, value);
    REQUIRE(rank != 1 || own_link_is_wanted(3));
    if (rank == 3)
        for (int64_t until = clock_ms() + JOIN_MS; !atomic_load(&farewells[1]); sleep_ms(1))
            REQUIRE(clock_ms() < until);
    world_barrier(size);
    finish();
}
static void test_optional_messages_connect_no_link(void **state)
{
    (void)state;
    world_run(4, send_optional, 0);
}

/* ---- malformed control messages ---- */
static void forge(void)
{
    int value = 1;
    hosts_connect(2);
    own_channel_open();
    world_barrier(size);
    struct ctrl_msg msg = { .from = 0, .length = sizeof value };
    memcpy(msg.to.token, token, sizeof token);
    memcpy(msg.bytes, &value, sizeof value);
    const struct {
        int from, to, hops;
    } wrong[] = { { 0, 3, 99 }, { 0, 3, 255 }, { 0, size, 0 }, { 0, -7, 0 }, { 0, INT32_MAX, 0 }, { -1, 3, 0 },
        { size, 3, 0 }, { 0, INT32_MIN, 0 } };
    for (int i = 0; rank == 0 && i < 8; i++) {
        msg.from = wrong[i].from;
        msg.to.rank = wrong[i].to;
        msg.hops = (uint8_t)wrong[i].hops;
        pthread_mutex_lock(&registry.lock);
        REQUIRE(peer_post_ctrl_msg(peers[2], &msg));
        pthread_mutex_unlock(&registry.lock);
    }
    world_barrier(size);
    /* `value_receive` fails if it has received a malformed message. */
    exchange_with_all(1, 10);
    world_barrier(size);
    finish();
}
static void test_malformed_messages_are_not_forwarded(void **state)
{
    (void)state;
    world_run(4, forge, 0);
}
unit_function test_routes;
int test_routes(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_route_has_at_most_as_many_steps_as_its_distance),
        cmocka_unit_test(test_route_leads_around_a_missing_host),
        cmocka_unit_test(test_route_ends_whichever_hosts_are_missing),
        cmocka_unit_test(test_messages_keep_their_order_and_make_no_links),
        cmocka_unit_test(test_16_hosts_have_7_links_each),
        cmocka_unit_test(test_forwarding_process_may_open_late),
        cmocka_unit_test(test_forwarding_process_may_leave_early),
        cmocka_unit_test(test_forwarding_process_may_die),
        cmocka_unit_test(test_forwarding_process_may_be_stopped),
        cmocka_unit_test(test_leaving_process_forwards_the_messages_that_it_has),
        cmocka_unit_test(test_optional_messages_connect_no_link),
        cmocka_unit_test(test_malformed_messages_are_not_forwarded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
