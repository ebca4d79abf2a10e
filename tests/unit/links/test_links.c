/* Links between processes that are on different hosts, or pretend to be: made by both at once or when there is
   something to send, in order, with cards, notes of who gave up that are passed on, and children that start anew. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/control/channel.h"
#include "backend/links/link.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <sys/wait.h>

enum { MANY = 5000 };
static const unsigned char token[16] = "one token", other_token[16] = "another token";
static const char *address = "127.0.0.1";
static bool await_condition(bool (*is_so)(const void *), const void *what)
{
    for (int64_t until = clock_ms() + JOIN_MS; !is_so(what) && clock_ms() < until;) sleep_ms(1);
    return is_so(what);
}

/* ---- connecting ---- */
static void call_each_other(void)
{
    struct peer *peers[MOST] = { NULL };
    int before = count_descriptors();
    world_listen(address);
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peers[peer] = world_hold(peer);
    for (int hop = 1; hop < size; hop++)
        REQUIRE(link_await(peers[(rank + hop) % size], clock_ms() + JOIN_MS) == TUTTI_OK);
    world_barrier(size);
    REQUIRE(descriptors_settle_at(before + 4 + size - 1));             /* one for each, both ways */
    REQUIRE(world_link((rank + 1) % size) == peers[(rank + 1) % size]);
    for (int peer = 0; peer < size; peer++) REQUIRE(peer == rank || !peer_is_gone(peers[peer]));
    REQUIRE(link_one_way_ns(peers[(rank + 1) % size]) < JOIN_MS * 1e6 && link_one_way_ns(NULL) == 0);
    world_barrier(size);
    peer_release(peers[(rank + 1) % size]);
    world_release_all(peers);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_both_call_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) world_run(2, call_each_other, 0);
    world_run(5, call_each_other, 0);
}
static void test_both_call_at_once_over_ipv6(void **state)
{
    (void)state;
    address = "::1";
    world_run(3, call_each_other, 0);
    address = "127.0.0.1";
}
static void be_on_one_host_and_on_two(void)             /* the same two processes */
{
    struct peer *near, *far;
    world_listen(address);
    far = world_link(1 - rank);
    REQUIRE(world_call(1 - rank, &near) == TUTTI_OK && near != far);
    struct sock_address again;
    REQUIRE(links_listen(&(struct sock_address){ 0 }, &again) == TUTTI_OK);
    REQUIRE(memcmp(&again, &world->contact[rank], sizeof again) == 0);
    REQUIRE(link_acquire(&world->identity[rank], &world_key, &again, &far) == TUTTI_INTERNAL);
    world_barrier(2);
    peer_release(near);
    peer_release(far);
    peers_release();
}
static void test_a_connection_and_a_link_are_two(void **state)
{
    (void)state;
    world_run(2, be_on_one_host_and_on_two, 0);
}

/* ---- channels ---- */
struct eager_ring { _Atomic int count, last[3]; bool ordered; };              /* by word */
static void ring_receive(void *context, int from, const void *bytes, size_t length)
{
    struct eager_ring *box = context;
    int value;
    REQUIRE(from == 1 - rank && length == 1024);
    memcpy(&value, bytes, sizeof value);
    box->ordered &= value > atomic_load(&box->last[value % 3]);
    atomic_store(&box->last[value % 3], value);
    atomic_fetch_add(&box->count, 1);
}
static bool has_all(const void *what)
{
    const struct eager_ring *box = what;
    bool all = true;
    for (int word = 0; word < 3; word++) all &= atomic_load(&box->last[word]) > MANY - 3;
    return all;
}
static bool has_some(const void *box) { return atomic_load(&((const struct eager_ring *)box)->count) > 0; }
static struct channel *open_channel(struct peer *const *peers, struct eager_ring *box)
{
    struct channel *c;
    *box = (struct eager_ring){ .ordered = true };
    REQUIRE(channel_open(token, rank, peers, size, NULL, &(struct channel_user){ ring_receive, NULL, box }, &c)
        == TUTTI_OK);
    return c;
}
/* Large ones: most are queued, and later ones take their place. */
static void channel_post_value(struct channel *c, int value)
{
    char bytes[1024] = { 0 };
    memcpy(bytes, &value, sizeof value);
    REQUIRE(channel_send(c, 1 - rank, (unsigned)value % 3, bytes, sizeof bytes));
}
static void post_without_waiting(void)
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box;
    world_listen(address);
    peers[1 - rank] = world_hold(1 - rank);
    struct channel *c = open_channel(peers, &box);
    for (int i = 1; i <= MANY; i++) channel_post_value(c, i);
    REQUIRE(await_condition(has_all, &box) && box.ordered);
    world_barrier(2);
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_messages_keep_their_order(void **state)
{
    (void)state;
    world_run(2, post_without_waiting, 0);
}
static void say_and_leave(void) /* what was said last arrives, also over a link that is not open */
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box;
    struct loss loss = { 0 };
    world_listen(address);
    peers[1 - rank] = rank == 0 ? world_hold(1) : world_link(0);
    struct channel *c = open_channel(peers, &box);
    world_barrier(2);
    if (rank == 1)
        for (int i = MANY - 100; i <= MANY; i++) channel_post_value(c, i);
    else {
        struct peer_watch watch = { .peer = peers[1], .lost = loss_record, .context = &loss };
        peer_watch(&watch);
        loss_await(&loss);
        REQUIRE(has_all(&box) && box.ordered && peers[1]->state == LEFT);
        peer_unwatch(&watch);
        REQUIRE(!channel_send(c, 1, 0, "x", 1) && link_await(peers[1], clock_ms() + JOIN_MS) == TUTTI_PEER_LOST);
    }
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_what_was_said_comes_before_the_goodbye(void **state)
{
    (void)state;
    world_run(2, say_and_leave, 0);
}
static void release_before_it_is_open(void)
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box;
    world_listen(address);
    peers[1 - rank] = world_hold(1 - rank);
    struct channel *c = open_channel(peers, &box);
    if (rank == 0)
        for (int i = MANY - 2; i <= MANY; i++) channel_post_value(c, i);
    else REQUIRE(await_condition(has_all, &box));
    peer_release(peers[1 - rank]);
    world_barrier(2);
    channel_close(c);
    peers_release();
}
static void test_what_was_said_is_delivered_although_nobody_holds_the_link(void **state)
{
    (void)state;
    world_run(2, release_before_it_is_open, 0);
}

/* ---- a group given up ---- */
static bool is_given_up_by_first(const void *name)
{
    struct identity by;
    return peers_join_is_aborted(name, &by) && nonce_equal(by.nonce, world->identity[0].nonce) && by.pid;
}
static void pass_on(void)                               /* 0 and 2 know 1 only; then 3 comes */
{
    struct peer *peer = NULL;
    bool near = rank != 0 && size == 4;
    world_listen(address);
    if (rank == 0) peer = world_link(1);
    if (rank == 2 && near) REQUIRE(world_call(1, &peer) == TUTTI_OK);
    if (rank == 2 && !near) peer = world_link(1);
    world_barrier(size);
    if (rank == 0) peers_abort_join(token);
    if (rank < 3) REQUIRE(await_condition(is_given_up_by_first, token));
    world_barrier(size);
    if (rank == 3) {
        peer = world_link(2);
        REQUIRE(await_condition(is_given_up_by_first, token));
    }
    world_barrier(size);
    peer_release(peer);
    peers_release();
}
static void test_who_gives_up_is_heard_of_from_a_third(void **state)
{
    (void)state;
    world_run(3, pass_on, 0);                           /* from link to link */
    world_run(4, pass_on, 0);                           /* from link to connection, and to who comes later */
}
static void pass_on_from_the_host(void)                 /* 0 tells 1, on its host; 1 has a link to 2 */
{
    struct peer *peer = NULL;
    world_listen(address);
    if (rank == 0) REQUIRE(world_call(1, &peer) == TUTTI_OK);
    if (rank == 2) peer = world_link(1);
    world_barrier(size);
    if (rank == 0) peers_abort_join(other_token);
    REQUIRE(await_condition(is_given_up_by_first, other_token));
    world_barrier(size);
    peer_release(peer);
    peers_release();
}
static void test_who_gives_up_on_a_host_is_heard_of_elsewhere(void **state)
{
    (void)state;
    world_run(3, pass_on_from_the_host, 0);
}

/* ---- cards ---- */
static void expect_address(struct peer *peer, const char *text)
{
    char process_address[PROCESS_ADDRESS_BYTES];
    size_t bytes = 0;
    int64_t until = clock_ms() + JOIN_MS;
    for (tutti_status status = TUTTI_IN_PROGRESS; clock_ms() < until; sleep_ms(1)) {
        REQUIRE((status = link_get_process_address(peer, process_address, &bytes)) >= 0);
        if (status == TUTTI_OK && bytes == strlen(text) && !memcmp(process_address, text, bytes)) return;
    }
    REQUIRE(false);                                     /* the process address has not come */
}
static void show_addresses(void)
{
    char process_address[PROCESS_ADDRESS_BYTES], large[PROCESS_ADDRESS_BYTES + 1];
    size_t bytes;
    world_listen(address);
    struct peer *peer = world_hold(1 - rank);
    REQUIRE(link_get_process_address(NULL, process_address, &bytes) == TUTTI_IN_PROGRESS);
    memset(large, 'x', sizeof large);
    REQUIRE(links_publish_address(large, sizeof large) == TUTTI_INTERNAL);
    if (rank == 0) REQUIRE(links_publish_address("first", 5) == TUTTI_OK);
    world_barrier(2);
    if (rank == 1) expect_address(peer, "first");          /* makes the link, too */
    /* The other rank asks before the address is there. */
    else REQUIRE(link_get_process_address(peer, process_address, &bytes) == TUTTI_IN_PROGRESS);
    world_barrier(2);
    if (rank == 1) REQUIRE(links_publish_address(large, PROCESS_ADDRESS_BYTES) == TUTTI_OK);
    large[PROCESS_ADDRESS_BYTES] = 0;
    if (rank == 0) expect_address(peer, large);
    if (rank == 0) REQUIRE(links_publish_address("last", 4) == TUTTI_OK);
    expect_address(rank == 0 ? NULL : peer, "last");
    world_barrier(2);
    if (rank == 1) {
        struct loss loss = { 0 };
        struct peer_watch watch = { .peer = peer, .lost = loss_record, .context = &loss };
        peer_watch(&watch);
        loss_await(&loss);
        peer_unwatch(&watch);
        expect_address(peer, "last");
    }
    peer_release(peer);
    peers_release();
}
static void test_addresses_are_sent_on_request(void **state)
{
    (void)state;
    world_run(2, show_addresses, 0);
}

/* ---- fork ---- */
static void fork_and_start_anew(void)
{
    struct peer *peers[2] = { NULL };
    struct identity anew;
    struct sock_address at;
    struct eager_ring box;
    struct loss loss = { 0 };
    int before = count_descriptors();
    world_listen(address);
    peers[1 - rank] = world_link(1 - rank);
    struct channel *c = open_channel(peers, &box);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    world_barrier(2);
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(count_descriptors() == before && peer_is_gone(peers[1 - rank]));
        peers_release();                                /* of its parent's: nothing happens */
        REQUIRE(world_acquire(&anew) == TUTTI_OK);
        at = world_contact(address, 0);
        REQUIRE(links_listen(&at, &at) == TUTTI_OK && at.port != world->contact[rank].port);
        for (int other = 0; other < 2; other++) peer_release(world_link(other));
        peers_release();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    channel_post_value(c, 1);
    REQUIRE(await_condition(has_some, &box) && !peer_is_gone(peers[1 - rank]) && !atomic_load(&loss.count));
    world_barrier(2);
    peer_unwatch(&watch);
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_child_of_fork_starts_anew(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    world_run(2, fork_and_start_anew, 0);
}
unit_function test_links;
int test_links(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_call_at_once),
        cmocka_unit_test(test_both_call_at_once_over_ipv6),
        cmocka_unit_test(test_a_connection_and_a_link_are_two),
        cmocka_unit_test(test_messages_keep_their_order),
        cmocka_unit_test(test_what_was_said_comes_before_the_goodbye),
        cmocka_unit_test(test_what_was_said_is_delivered_although_nobody_holds_the_link),
        cmocka_unit_test(test_who_gives_up_is_heard_of_from_a_third),
        cmocka_unit_test(test_who_gives_up_on_a_host_is_heard_of_elsewhere),
        cmocka_unit_test(test_addresses_are_sent_on_request),
        cmocka_unit_test(test_child_of_fork_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
