/* Links between processes, all on this host: both ends connect at once, or when there is a message to send; the order
   of messages, aborted joins that are forwarded, process addresses, and children of fork. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/control/channel.h"
#include "backend/links/link.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <stdlib.h>
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
static void link_all(void)
{
    struct peer *peers[MOST] = { NULL };
    int before = count_descriptors();
    world_listen(address);
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peers[peer] = world_hold(peer);
    for (int hop = 1; hop < size; hop++)
        REQUIRE(link_await(peers[(rank + hop) % size], clock_ms() + JOIN_MS) == TUTTI_OK);
    world_barrier(size);
    /* The listener of links has a descriptor, and a link to each other process has one for both directions. */
    REQUIRE(descriptors_settle_at(before + REGISTRY_DESCRIPTORS + size));
    REQUIRE(world_link((rank + 1) % size) == peers[(rank + 1) % size]);
    for (int peer = 0; peer < size; peer++) REQUIRE(peer == rank || !peer_is_gone(peers[peer]));
    REQUIRE(link_one_way_ns(peers[(rank + 1) % size]) < JOIN_MS * 1e6 && link_one_way_ns(NULL) == 0);
    world_barrier(size);
    peer_release(peers[(rank + 1) % size]);
    world_release_all(peers);
    peers_release();
    REQUIRE(count_descriptors() == before);
}
static void test_both_ends_connect_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) world_run(2, link_all, 0);
    world_run(5, link_all, 0);
}
static void test_both_ends_connect_at_once_over_ipv6(void **state)
{
    (void)state;
    address = "::1";
    world_run(3, link_all, 0);
    address = "127.0.0.1";
}
/* Links to processes that do not exist, as a process of a group of many hosts holds them. */
static struct peer *hold_one_of_many(uint32_t number)
{
    struct peer *held;
    struct identity other = { .host = "another host" };
    const struct sock_address nowhere = { 0 };
    /* The numbers are mixed, because real nonces are random. */
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t mixed = (number + i + 1) * 2654435761u;
        memcpy(&other.nonce[4 * i], &mixed, sizeof mixed);
    }
    REQUIRE(link_acquire(&other, &world_key, &nowhere, &held) == TUTTI_OK);
    return held;
}
static void hold_many_links(void)
{
    enum { LINKS = 20000 };
    struct peer **held = calloc(LINKS, sizeof *held);
    world_listen(address);
    for (uint32_t i = 0; i < LINKS; i++) held[i] = hold_one_of_many(i);
    /* The index has grown, so a search reads few of the links. */
    REQUIRE(registry.index.count == LINKS && registry.index.room >= LINKS);
    /* The odd ones are found without the even ones, too. */
    for (uint32_t i = 0; i < LINKS; i += 2) peer_release(held[i]);
    for (uint32_t i = 1; i < LINKS; i += 2) {
        REQUIRE(hold_one_of_many(i) == held[i]);
        peer_release(held[i]);
        peer_release(held[i]);
    }
    REQUIRE(!registry.peers && !registry.index.places);
    peers_release();
    free(held);
}
static void test_many_links_are_found(void **state)
{
    (void)state;
    world_run(1, hold_many_links, 0);
}
/* Two processes have both a connection of one host and a link. */
static void hold_connection_and_link(void)
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
static void test_connection_and_link_to_one_process_are_two_peers(void **state)
{
    (void)state;
    world_run(2, hold_connection_and_link, 0);
}

/* ---- channels ---- */
/* The messages that have arrived: their number, the last value of each type, and whether those of each type rose. */
struct inbox { _Atomic int count, last[3]; bool ordered; };
static void inbox_receive(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    struct inbox *received = context;
    int value;
    REQUIRE(from == 1 - rank && length == 1024);
    memcpy(&value, bytes, sizeof value);
    REQUIRE(type == (unsigned)value % 3);
    received->ordered &= value > atomic_load(&received->last[value % 3]);
    atomic_store(&received->last[value % 3], value);
    atomic_fetch_add(&received->count, 1);
}
static bool has_all(const void *what)
{
    const struct inbox *received = what;
    bool all = true;
    for (int type = 0; type < 3; type++) all &= atomic_load(&received->last[type]) > MANY - 3;
    return all;
}
static bool has_some(const void *received) { return atomic_load(&((const struct inbox *)received)->count) > 0; }
static bool has_second(const void *received) { return atomic_load(&((const struct inbox *)received)->last[2]) == 2; }
static struct channel *open_channel(struct peer *const *peers, struct inbox *received)
{
    struct channel *c;
    *received = (struct inbox){ .ordered = true };
    REQUIRE(channel_open(token, rank, peers, size, NULL, &(struct channel_user){ inbox_receive, NULL, received }, &c)
        == TUTTI_OK);
    return c;
}
/* The messages are large, so most are queued, and later ones of their type replace them. */
static void channel_post_value(struct channel *c, int value)
{
    char bytes[1024] = { 0 };
    memcpy(bytes, &value, sizeof value);
    REQUIRE(channel_send(c, 1 - rank, (unsigned)value % 3, bytes, sizeof bytes));
}
/* The watch thread does not read the many idle links for each message. */
static void post_beside_idle_links(void)
{
    enum { IDLE_LINKS = 100 };
    struct peer *peers[2] = { NULL }, *idle[IDLE_LINKS];
    struct inbox received;
    world_listen(address);
    peers[1 - rank] = world_hold(1 - rank);
    for (uint32_t i = 0; i < IDLE_LINKS; i++) idle[i] = hold_one_of_many(i);
    REQUIRE(registry.peers != peers[1 - rank]);
    struct channel *c = open_channel(peers, &received);
    REQUIRE(link_await(peers[1 - rank], clock_ms() + JOIN_MS) == TUTTI_OK);
    channel_post_value(c, 1);
    REQUIRE(await_condition(has_some, &received));
    world_barrier(2);
    /* The first message may have arrived with the handshake, before the link had a socket. */
    channel_post_value(c, 2);
    REQUIRE(await_condition(has_second, &received));
    pthread_mutex_lock(&registry.lock);
    REQUIRE(registry.peers == peers[1 - rank] && !registry.watch_calls.are_due);
    pthread_mutex_unlock(&registry.lock);
    world_barrier(2);
    channel_close(c);
    for (int i = 0; i < IDLE_LINKS; i++) peer_release(idle[i]);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_link_in_use_is_found_first(void **state)
{
    (void)state;
    world_run(2, post_beside_idle_links, 0);
}
static void post_without_waiting(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received;
    world_listen(address);
    peers[1 - rank] = world_hold(1 - rank);
    struct channel *c = open_channel(peers, &received);
    for (int i = 1; i <= MANY; i++) channel_post_value(c, i);
    REQUIRE(await_condition(has_all, &received) && received.ordered);
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
/* Process 1 sends messages and leaves. Process 0, which never waits for the link, has them all when the loss is
   reported. */
static void post_and_leave(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received;
    struct loss loss = { 0 };
    world_listen(address);
    peers[1 - rank] = rank == 0 ? world_hold(1) : world_link(0);
    struct channel *c = open_channel(peers, &received);
    world_barrier(2);
    if (rank == 1)
        for (int i = MANY - 100; i <= MANY; i++) channel_post_value(c, i);
    else {
        struct peer_watch watch = { .peer = peers[1], .lost = loss_record, .context = &loss };
        peer_watch(&watch);
        loss_await(&loss);
        REQUIRE(has_all(&received) && received.ordered && peers[1]->state == LEFT);
        peer_unwatch(&watch);
        REQUIRE(!channel_send(c, 1, 0, "x", 1) && link_await(peers[1], clock_ms() + JOIN_MS) == TUTTI_PEER_LOST);
    }
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_messages_arrive_before_the_loss_is_reported(void **state)
{
    (void)state;
    world_run(2, post_and_leave, 0);
}
/* Process 0 sends and releases the link at once. */
static void post_and_release(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received;
    world_listen(address);
    peers[1 - rank] = world_hold(1 - rank);
    struct channel *c = open_channel(peers, &received);
    if (rank == 0)
        for (int i = MANY - 2; i <= MANY; i++) channel_post_value(c, i);
    else REQUIRE(await_condition(has_all, &received));
    peer_release(peers[1 - rank]);
    world_barrier(2);
    channel_close(c);
    peers_release();
}
static void test_messages_arrive_after_their_link_is_released(void **state)
{
    (void)state;
    world_run(2, post_and_release, 0);
}

/* ---- aborted joins ---- */
static bool is_aborted_by_first(const void *name)
{
    struct identity by;
    return peers_join_is_aborted(name, &by) && nonce_equal(by.nonce, world->identity[0].nonce) && by.pid;
}
/* Processes 0 and 2 each have one peer, process 1, and 0 aborts the join. With four processes, 1 and 2 are connected as
   on one host, and process 3 opens a link to 2 afterwards. */
static void forward_abort(void)
{
    struct peer *peer = NULL;
    bool near = rank != 0 && size == 4;
    world_listen(address);
    if (rank == 0) peer = world_link(1);
    if (rank == 2 && near) REQUIRE(world_call(1, &peer) == TUTTI_OK);
    if (rank == 2 && !near) peer = world_link(1);
    world_barrier(size);
    if (rank == 0) peers_abort_join(token);
    if (rank < 3) REQUIRE(await_condition(is_aborted_by_first, token));
    world_barrier(size);
    if (rank == 3) {
        peer = world_link(2);
        REQUIRE(await_condition(is_aborted_by_first, token));
    }
    world_barrier(size);
    peer_release(peer);
    peers_release();
}
static void test_aborted_join_is_forwarded(void **state)
{
    (void)state;
    /* From link to link. */
    world_run(3, forward_abort, 0);
    /* From a link to a connection of one host, and to a process that connects later. */
    world_run(4, forward_abort, 0);
}
/* Process 0 aborts the join. It has a connection of one host to 1, which has a link to 2. */
static void forward_abort_of_host(void)
{
    struct peer *peer = NULL;
    world_listen(address);
    if (rank == 0) REQUIRE(world_call(1, &peer) == TUTTI_OK);
    if (rank == 2) peer = world_link(1);
    world_barrier(size);
    if (rank == 0) peers_abort_join(other_token);
    REQUIRE(await_condition(is_aborted_by_first, other_token));
    world_barrier(size);
    peer_release(peer);
    peers_release();
}
static void test_aborted_join_is_forwarded_to_other_hosts(void **state)
{
    (void)state;
    world_run(3, forward_abort_of_host, 0);
}

/* ---- process addresses ---- */
static void expect_address(struct peer *peer, const char *text)
{
    char process_address[PROCESS_ADDRESS_BYTES];
    size_t bytes = 0;
    int64_t until = clock_ms() + JOIN_MS;
    for (tutti_status status = TUTTI_IN_PROGRESS; clock_ms() < until; sleep_ms(1)) {
        REQUIRE((status = link_get_process_address(peer, process_address, &bytes)) >= 0);
        if (status == TUTTI_OK && bytes == strlen(text) && !memcmp(process_address, text, bytes)) return;
    }
    /* The process address has not arrived in time. */
    REQUIRE(false);
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
    /* The request of rank 1 also connects the link. Rank 0 asks before rank 1 has published an address. */
    if (rank == 1) expect_address(peer, "first");
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
static void fork_and_link(void)
{
    struct peer *peers[2] = { NULL };
    struct identity own;
    struct sock_address at;
    struct inbox received;
    struct loss loss = { 0 };
    int before = count_descriptors();
    world_listen(address);
    peers[1 - rank] = world_link(1 - rank);
    struct channel *c = open_channel(peers, &received);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    world_barrier(2);
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(count_descriptors() == before && peer_is_gone(peers[1 - rank]));
        /* The parent acquired the peers, so this call does nothing. */
        peers_release();
        REQUIRE(world_acquire(&own) == TUTTI_OK);
        at = world_contact(address, 0);
        REQUIRE(links_listen(&at, &at) == TUTTI_OK && at.port != world->contact[rank].port);
        for (int other = 0; other < 2; other++) peer_release(world_link(other));
        peers_release();
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    channel_post_value(c, 1);
    REQUIRE(await_condition(has_some, &received) && !peer_is_gone(peers[1 - rank]) && !atomic_load(&loss.count));
    world_barrier(2);
    peer_unwatch(&watch);
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_child_of_fork_opens_its_own_links(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    world_run(2, fork_and_link, 0);
}
unit_function test_links;
int test_links(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_links_are_found),
        cmocka_unit_test(test_both_ends_connect_at_once),
        cmocka_unit_test(test_both_ends_connect_at_once_over_ipv6),
        cmocka_unit_test(test_connection_and_link_to_one_process_are_two_peers),
        cmocka_unit_test(test_link_in_use_is_found_first),
        cmocka_unit_test(test_messages_keep_their_order),
        cmocka_unit_test(test_messages_arrive_before_the_loss_is_reported),
        cmocka_unit_test(test_messages_arrive_after_their_link_is_released),
        cmocka_unit_test(test_aborted_join_is_forwarded),
        cmocka_unit_test(test_aborted_join_is_forwarded_to_other_hosts),
        cmocka_unit_test(test_addresses_are_sent_on_request),
        cmocka_unit_test(test_child_of_fork_opens_its_own_links),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
