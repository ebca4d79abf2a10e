/* Links to a process that dies, is stopped, does not exist, or is on a host that vanishes, and the errors that they
   give. */
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/control/channel.h"
#include "backend/links/link.h"
#include "backend/links/tcp.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>

static const unsigned char token[16] = "one token";
struct inbox { _Atomic int count, last; };
static void inbox_receive(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    struct inbox *received = context;
    int value;
    (void)from, (void)type, (void)length;
    memcpy(&value, bytes, sizeof value);
    atomic_store(&received->last, value);
    atomic_fetch_add(&received->count, 1);
}
static struct channel *open_channel(struct peer *const *peers, struct inbox *received)
{
    struct channel *c;
    REQUIRE(channel_open(token, rank, peers, size, NULL, &(struct channel_user){ inbox_receive, NULL, received }, &c)
        == TUTTI_OK);
    return c;
}
static bool channel_post_value(struct channel *c, int value)
{
    char bytes[1000] = { 0 };
    memcpy(bytes, &value, sizeof value);
    return channel_send(c, 1 - rank, 0, bytes, sizeof bytes);
}
static void await_value(const struct inbox *received, int value)
{
    for (int64_t until = clock_ms() + JOIN_MS; atomic_load(&received->last) != value; sleep_ms(1))
        REQUIRE(clock_ms() < until);
}
static void set_peer_timeout(const char *ms)
{
    setenv("TUTTI_PEER_TIMEOUT_MS", ms, 1);
    settings_reload();
}

/* ---- a peer that dies ---- */
/* The last process dies. */
static void lose_a_process(void)
{
    struct peer *peers[MOST];
    struct loss losses[MOST] = { 0 };
    struct peer_watch watches[MOST];
    /* The end of the connection shows the death, not the peer timeout. */
    set_peer_timeout("60000");
    world_listen("127.0.0.1");
    for (int peer = 0; peer < size; peer++) {
        if (peer == rank) continue;
        watches[peer] = (struct peer_watch){ .lost = loss_record, .context = &losses[peer] };
        watches[peer].peer = peers[peer] = world_link(peer);
        peer_watch(&watches[peer]);
    }
    world_barrier(size);
    if (rank == size - 1) raise(SIGKILL);
    loss_await(&losses[size - 1]);
    REQUIRE(peer_is_gone(peers[size - 1]) && peers[size - 1]->state == LOST);
    REQUIRE(link_await(peers[size - 1], clock_ms() + JOIN_MS) == TUTTI_PEER_LOST);
    REQUIRE(strstr(status_detail(), "is gone"));
    world_barrier(size - 1);
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) peer_unwatch(&watches[peer]);
    for (int peer = 0; peer < size - 1; peer++) REQUIRE(peer == rank || !atomic_load(&losses[peer].count));
    world_barrier(size - 1);
    world_release_all(peers);
    peers_release();
}
static void test_death_calls_all_watches(void **state)
{
    (void)state;
    world_run(3, lose_a_process, 1u << 2);
}

/* ---- a peer that is stopped ---- */
/* Process 1 is stopped for three times the peer timeout. */
static void stop_a_process(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received = { 0 };
    set_peer_timeout("1000");
    world_listen("127.0.0.1");
    peers[1 - rank] = world_link(1 - rank);
    struct channel *c = open_channel(peers, &received);
    world_barrier(2);
    int value = 0;
    if (rank == 0) {
        REQUIRE(kill((pid_t)world->identity[1].pid, SIGSTOP) == 0);
        bool taken = true;
        for (int64_t until = clock_ms() + 3000; clock_ms() < until && taken; sleep_ms(1))
            taken = channel_post_value(c, ++value);
        pthread_mutex_lock(&registry.lock);
        const struct frame_stream *stream = peers[1]->link->stream;
        size_t on_its_way = stream->put - stream->taken;
        int unsent = peers[1]->unsent.count;
        pthread_mutex_unlock(&registry.lock);
        bool gone = peer_is_gone(peers[1]);
        REQUIRE(kill((pid_t)world->identity[1].pid, SIGCONT) == 0);
        REQUIRE(taken && !gone && unsent == 1 && on_its_way <= STREAM_WINDOW);
        REQUIRE(channel_post_value(c, -1));
        await_value(&received, -2);
    } else {
        await_value(&received, -1);
        REQUIRE(channel_post_value(c, -2));
    }
    REQUIRE(!peer_is_gone(peers[1 - rank]));
    world_barrier(2);
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_stopped_process_is_not_lost(void **state)
{
    (void)state;
    world_run(2, stop_a_process, 0);
}

/* ---- a host that vanishes ---- */
__attribute__((format(printf, 1, 2))) static bool command_run(const char *format, ...)
{
    char command[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return system(command) == 0;
}
/* Sends on a socket whose connection has failed. The first call returns the reason, and later ones EPIPE, before the
   watch thread has read the end of the connection. The reason must not get lost. */
static void send_more_than_once(struct peer *peer)
{
    pthread_mutex_lock(&registry.lock);
    if (peer_send_packet(peer, HEARTBEAT, NULL, -1) == 0) {
        struct pollfd end = { .fd = peer->descriptor };
        REQUIRE(poll(&end, 1, GENEROUS_MS) == 1);
        for (int i = 0; i < 2; i++) peer_send_packet(peer, HEARTBEAT, NULL, -1);
        REQUIRE(peer->state == OPEN);
    }
    pthread_mutex_unlock(&registry.lock);
}
/* Cuts the network between two network namespaces. */
static void cut_the_cable(void)
{
    struct loss loss = { 0 };
    const char *mine = rank == 0 ? "10.97.0.1" : "10.97.0.2";
    set_peer_timeout("1000");
    world->orphans[rank] = getpid();
    bool can = geteuid() == 0 && unshare(CLONE_NEWNET) == 0;
    if (!can) atomic_store(&world->skip, 1);
    world_barrier(2);
    if (rank == 0 && can
        && !command_run("ip link add tutti0 type veth peer name tutti1 netns %d 2>/dev/null", world->orphans[1]))
        atomic_store(&world->skip, 1);
    world_barrier(2);
    if (atomic_load(&world->skip)) {
        if (rank == 0) fprintf(stderr, "skipped: no network namespaces here, so no host can vanish\n");
        _exit(SKIPPED);
    }
    REQUIRE(command_run(rank == 0 ? "ip addr add 10.97.0.1/24 dev tutti%d" : "ip addr add 10.97.0.2/24 dev tutti%d",
        rank));
    REQUIRE(command_run("ip link set tutti%d up", rank));
    world_barrier(2);
    world_listen(mine);
    struct peer *peer = world_link(1 - rank);
    struct peer_watch watch = { .peer = peer, .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    world_barrier(2);
    /* Only heartbeats are sent for longer than the peer timeout. */
    sleep_ms(1500);
    REQUIRE(!peer_is_gone(peer));
    world_barrier(2);
    if (rank == 0) REQUIRE(command_run("ip link set tutti%d down", 0));
    if (rank == 0) send_more_than_once(peer);
    loss_await(&loss);
    REQUIRE(link_await(peer, clock_ms() + JOIN_MS) == TUTTI_PEER_LOST);
    REQUIRE(strstr(status_detail(), "10.97.0.1") && strstr(status_detail(), "10.97.0.2"));
    REQUIRE(strstr(status_detail(), "its host has stopped answering"));
    peer_unwatch(&watch);
    peer_release(peer);
    /* A new link cannot be opened either. */
    struct peer *again = world_hold(1 - rank);
    REQUIRE(link_await(again, clock_ms() + 2000) < 0);
    REQUIRE(strstr(status_detail(), "TUTTI_SOCKET_IFNAME"));
    peer_release(again);
    world_barrier(2);
    peers_release();
}
static void test_host_that_vanishes_is_lost(void **state)
{
    (void)state;
    world_run(2, cut_the_cable, 0);
}

/* ---- a peer that does not exist ---- */
static void connect_to_a_free_port(void)
{
    char here[SOCK_ADDRESS_TEXT_BYTES], there[SOCK_ADDRESS_TEXT_BYTES];
    struct peer *peers[2] = { NULL };
    struct inbox received = { 0 };
    struct loss loss = { 0 };
    struct sock_address at = world_contact("127.0.0.1", 0), nobody;
    world_listen("127.0.0.1");
    /* This socket has a port, but does not listen. */
    int port = socket(AF_INET, SOCK_STREAM, 0);
    struct {
        uint16_t family, port;
        uint32_t address;
        uint64_t zero;
    } name = { .family = AF_INET };
    memcpy(&name.address, at.address, sizeof name.address);
    socklen_t bytes = sizeof name;
    REQUIRE(bind(port, (struct sockaddr *)&name, bytes) == 0);
    REQUIRE(getsockname(port, (struct sockaddr *)&name, &bytes) == 0);
    nobody = world_contact("127.0.0.1", (unsigned)(name.port >> 8 | (name.port & 255) << 8));
    struct identity other = { .nonce = { 7 }, .pid = 4711, .host = "elsewhere" };
    REQUIRE(link_acquire(&other, &world_key, &nobody, &peers[1]) == TUTTI_OK);
    REQUIRE(link_await(peers[1], clock_ms() + JOIN_MS) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "process 4711 on elsewhere") && strstr(status_detail(), "nobody listens"));
    REQUIRE(strstr(status_detail(), sock_address_print(&nobody, there)) && strstr(status_detail(), "from 127.0.0.1:"));
    peer_release(peers[1]);
    REQUIRE(link_acquire(&other, &world_key, &nobody, &peers[1]) == TUTTI_OK && !peer_is_gone(peers[1]));
    /* A message connects the link although no caller waits for it. */
    struct channel *c = open_channel(peers, &received);
    struct peer_watch watch = { .peer = peers[1], .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    REQUIRE(channel_post_value(c, 1));
    for (int64_t until = clock_ms() + 3 * GENEROUS_MS; !atomic_load(&loss.count); sleep_ms(1))
        REQUIRE(clock_ms() < until);
    peer_unwatch(&watch);
    REQUIRE(!channel_post_value(c, 2) && link_await(peers[1], clock_ms()) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "nobody listens"));
    /* This process listens already, so the call returns the address of the first call. */
    REQUIRE(links_listen(&nobody, &at) == TUTTI_OK);
    sock_address_print(&at, here);
    REQUIRE(strcmp(here, there) != 0 && at.port == world->contact[0].port);
    channel_close(c);
    peer_release(peers[1]);
    peers_release();
    close(port);
}
static void test_port_without_a_listener_is_an_error(void **state)
{
    (void)state;
    world_run(1, connect_to_a_free_port, 0);
}
static void listen_at_a_taken_port(void)
{
    struct identity mine;
    if (rank == 0) world_listen("127.0.0.1");
    else {
        REQUIRE(world_acquire(&mine) == TUTTI_OK);
        world_barrier(2);
        struct sock_address taken = world->contact[0], at = taken;
        REQUIRE(links_listen(&taken, &at) == TUTTI_SYSTEM);
        REQUIRE(strstr(status_detail(), "127.0.0.1:") && strstr(status_detail(), "in use"));
        taken = world_contact("192.0.2.1", 0);
        REQUIRE(links_listen(&taken, &at) == TUTTI_SYSTEM && strstr(status_detail(), "192.0.2.1"));
        taken = world_contact("127.0.0.1", 0);
        REQUIRE(links_listen(&taken, &at) == TUTTI_OK);
    }
    world_barrier(2);
    peers_release();
}
static void test_taken_port_is_an_error(void **state)
{
    (void)state;
    world_run(2, listen_at_a_taken_port, 0);
}
/* Process 1 listens after process 0 has begun to connect. */
static void listen_late(void)
{
    struct sock_address at = world_contact("127.0.0.1", 0);
    struct identity *mine = &world->identity[rank];
    REQUIRE(world_acquire(mine) == TUTTI_OK);
    if (rank == 0) REQUIRE(links_listen(&at, &world->contact[0]) == TUTTI_OK);
    else {
        REQUIRE(links_listen(&at, &world->contact[1]) == TUTTI_OK);
        struct identity before = *mine;
        /* After the next acquire the process has another nonce. */
        peers_release();
        REQUIRE(world_acquire(mine) == TUTTI_OK && !nonce_equal(mine->nonce, before.nonce));
    }
    world_barrier(2);
    if (rank == 1) {
        /* Process 0 is refused meanwhile. */
        sleep_ms(30);
        REQUIRE(links_listen(&world->contact[1], &at) == TUTTI_OK && at.port == world->contact[1].port);
    }
    struct peer *peer = rank == 0 ? world_link(1) : NULL;
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
/* Process 0 has a wrong address of process 1, at which no connection is accepted. The connection that process 1 opens
   serves both, whichever has the smaller nonce. */
static void connect_from_one_side(void)
{
    struct sock_address any = world_contact("127.0.0.1", 0);
    world_listen("127.0.0.1");
    int deaf = tcp_listen(&any);
    REQUIRE(deaf >= 0);
    if (rank == 0) world->contact[1] = tcp_local_address(deaf);
    /* Most of the time process 0 has begun to connect by now. */
    if (rank == 1) sleep_ms(100);
    struct peer *peer = world_link(1 - rank);
    world_barrier(2);
    peer_release(peer);
    peers_release();
    close(deaf);
}
static void test_connection_from_one_side_is_enough(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) world_run(2, connect_from_one_side, 0);
}
static void test_connecting_is_repeated_until_the_peer_listens(void **state)
{
    (void)state;
    world_run(2, listen_late, 0);
}
unit_function test_link_failures;
int test_link_failures(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_calls_all_watches),
        cmocka_unit_test(test_stopped_process_is_not_lost),
        cmocka_unit_test(test_port_without_a_listener_is_an_error),
        cmocka_unit_test(test_taken_port_is_an_error),
        cmocka_unit_test(test_connecting_is_repeated_until_the_peer_listens),
        cmocka_unit_test(test_connection_from_one_side_is_enough),
        cmocka_unit_test(test_host_that_vanishes_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
