/* What becomes of links whose other end dies, is stopped, is not there, or is on a host that has vanished; and what is
   said of it. */
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
struct eager_ring { _Atomic int count, last; };
static void ring_receive(void *context, int from, const void *bytes, size_t length)
{
    struct eager_ring *box = context;
    int value;
    (void)from, (void)length;
    memcpy(&value, bytes, sizeof value);
    atomic_store(&box->last, value);
    atomic_fetch_add(&box->count, 1);
}
static struct channel *open_channel(struct peer *const *peers, struct eager_ring *box)
{
    struct channel *c;
    REQUIRE(channel_open(token, rank, peers, size, NULL, &(struct channel_user){ ring_receive, NULL, box }, &c)
        == TUTTI_OK);
    return c;
}
static bool channel_post_value(struct channel *c, int value)
{
    char bytes[1000] = { 0 };
    memcpy(bytes, &value, sizeof value);
    return channel_send(c, 1 - rank, 0, bytes, sizeof bytes);
}
static void await_value(const struct eager_ring *box, int value)
{
    for (int64_t until = clock_ms() + JOIN_MS; atomic_load(&box->last) != value; sleep_ms(1))
        REQUIRE(clock_ms() < until);
}
static void be_silent_for(const char *ms)
{
    setenv("TUTTI_PEER_TIMEOUT_MS", ms, 1);
    settings_reload();
}

/* ---- it dies ---- */
static void kill_one(void)                              /* the last */
{
    struct peer *peers[MOST];
    struct loss losses[MOST] = { 0 };
    struct peer_watch watches[MOST];
    be_silent_for("60000");                             /* it is not silence that tells */
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
static void test_death_is_told_to_all(void **state)
{
    (void)state;
    world_run(3, kill_one, 1u << 2);
}

/* ---- it is stopped ---- */
static void stop_one(void)                              /* for three times what counts as silence */
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box = { 0 };
    be_silent_for("1000");
    world_listen("127.0.0.1");
    peers[1 - rank] = world_link(1 - rank);
    struct channel *c = open_channel(peers, &box);
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
        await_value(&box, -2);
    } else {
        await_value(&box, -1);
        REQUIRE(channel_post_value(c, -2));
    }
    REQUIRE(!peer_is_gone(peers[1 - rank]));
    world_barrier(2);
    channel_close(c);
    peer_release(peers[1 - rank]);
    peers_release();
}
static void test_who_is_stopped_is_not_lost(void **state)
{
    (void)state;
    world_run(2, stop_one, 0);
}

/* ---- its host vanishes ---- */
__attribute__((format(printf, 1, 2))) static bool run(const char *format, ...)
{
    char command[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    return system(command) == 0;
}
/* Who says something to a socket that has died is told why once, then that it is broken: before its end is read. */
static void say_more_than_once(struct peer *peer)
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
static void cut_the_cable(void)                         /* between two network namespaces */
{
    struct loss loss = { 0 };
    const char *mine = rank == 0 ? "10.97.0.1" : "10.97.0.2";
    be_silent_for("1000");
    world->orphans[rank] = getpid();
    bool can = geteuid() == 0 && unshare(CLONE_NEWNET) == 0;
    if (!can) atomic_store(&world->skip, 1);
    world_barrier(2);
    if (rank == 0 && can
        && !run("ip link add tutti0 type veth peer name tutti1 netns %d 2>/dev/null", world->orphans[1]))
        atomic_store(&world->skip, 1);
    world_barrier(2);
    if (atomic_load(&world->skip)) {
        if (rank == 0) fprintf(stderr, "skipped: no network namespaces here, so no host can vanish\n");
        _exit(SKIPPED);
    }
    REQUIRE(run(rank == 0 ? "ip addr add 10.97.0.1/24 dev tutti%d" : "ip addr add 10.97.0.2/24 dev tutti%d", rank));
    REQUIRE(run("ip link set tutti%d up", rank));
    world_barrier(2);
    world_listen(mine);
    struct peer *peer = world_link(1 - rank);
    struct peer_watch watch = { .peer = peer, .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    world_barrier(2);
    sleep_ms(1500);                                     /* nobody says anything but that it is there */
    REQUIRE(!peer_is_gone(peer));
    world_barrier(2);
    if (rank == 0) REQUIRE(run("ip link set tutti%d down", 0));
    if (rank == 0) say_more_than_once(peer);
    loss_await(&loss);
    REQUIRE(link_await(peer, clock_ms() + JOIN_MS) == TUTTI_PEER_LOST);
    REQUIRE(strstr(status_detail(), "10.97.0.1") && strstr(status_detail(), "10.97.0.2"));
    REQUIRE(strstr(status_detail(), "its host has stopped answering"));
    peer_unwatch(&watch);
    peer_release(peer);
    struct peer *again = world_hold(1 - rank);          /* neither is it there now */
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

/* ---- it is not there ---- */
static void call_nobody(void)
{
    char here[SOCK_ADDRESS_TEXT_BYTES], there[SOCK_ADDRESS_TEXT_BYTES];
    struct peer *peers[2] = { NULL };
    struct eager_ring box = { 0 };
    struct loss loss = { 0 };
    struct sock_address at = world_contact("127.0.0.1", 0), nobody;
    world_listen("127.0.0.1");
    int port = socket(AF_INET, SOCK_STREAM, 0);         /* has the port, and does not listen */
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
    REQUIRE(link_await(peers[1], clock_ms() + JOIN_MS) == TUTTI_SYSTEM);       /* before that: it is gone */
    REQUIRE(strstr(status_detail(), "process 4711 on elsewhere") && strstr(status_detail(), "nobody listens"));
    REQUIRE(strstr(status_detail(), sock_address_print(&nobody, there)) && strstr(status_detail(), "from 127.0.0.1:"));
    peer_release(peers[1]);
    REQUIRE(link_acquire(&other, &world_key, &nobody, &peers[1]) == TUTTI_OK && !peer_is_gone(peers[1]));
    struct channel *c = open_channel(peers, &box);      /* nobody waits, but something is to be sent */
    struct peer_watch watch = { .peer = peers[1], .lost = loss_record, .context = &loss };
    peer_watch(&watch);
    REQUIRE(channel_post_value(c, 1));
    for (int64_t until = clock_ms() + 3 * GENEROUS_MS; !atomic_load(&loss.count); sleep_ms(1))
        REQUIRE(clock_ms() < until);
    peer_unwatch(&watch);
    REQUIRE(!channel_post_value(c, 2) && link_await(peers[1], clock_ms()) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "nobody listens"));
    REQUIRE(links_listen(&nobody, &at) == TUTTI_OK);    /* it is what the first call said */
    sock_address_print(&at, here);
    REQUIRE(strcmp(here, there) != 0 && at.port == world->contact[0].port);
    channel_close(c);
    peer_release(peers[1]);
    peers_release();
    close(port);
}
static void test_nobody_listens(void **state)
{
    (void)state;
    world_run(1, call_nobody, 0);
}
static void listen_where_somebody_does(void)
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
static void test_port_is_taken(void **state)
{
    (void)state;
    world_run(2, listen_where_somebody_does, 0);
}
static void come_late(void)                             /* 1 listens after 0 has begun to wait */
{
    struct sock_address at = world_contact("127.0.0.1", 0);
    struct identity *mine = &world->identity[rank];
    REQUIRE(world_acquire(mine) == TUTTI_OK);
    if (rank == 0) REQUIRE(links_listen(&at, &world->contact[0]) == TUTTI_OK);
    else {
        REQUIRE(links_listen(&at, &world->contact[1]) == TUTTI_OK);
        struct identity before = *mine;
        peers_release();                                /* its next life has another nonce */
        REQUIRE(world_acquire(mine) == TUTTI_OK && !nonce_equal(mine->nonce, before.nonce));
    }
    world_barrier(2);
    if (rank == 1) {
        sleep_ms(30);                                   /* who is refused three times has ended */
        REQUIRE(links_listen(&world->contact[1], &at) == TUTTI_OK && at.port == world->contact[1].port);
    }
    struct peer *peer = rank == 0 ? world_link(1) : NULL;
    world_barrier(2);
    peer_release(peer);
    peers_release();
}
/* 0 has an address of 1 at which nobody ever answers; the other way leads there, whoever has the smaller nonce. */
static void call_one_way(void)
{
    struct sock_address any = world_contact("127.0.0.1", 0);
    world_listen("127.0.0.1");
    int deaf = tcp_listen(&any);
    REQUIRE(deaf >= 0);
    if (rank == 0) world->contact[1] = tcp_local_address(deaf);
    if (rank == 1) sleep_ms(100);                       /* so 0 has called by now, most of the time */
    struct peer *peer = world_link(1 - rank);
    world_barrier(2);
    peer_release(peer);
    peers_release();
    close(deaf);
}
static void test_one_way_is_enough(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) world_run(2, call_one_way, 0);
}
static void test_who_comes_late_is_called_again(void **state)
{
    (void)state;
    world_run(2, come_late, 0);
}
unit_function test_link_failures;
int test_link_failures(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_death_is_told_to_all),
        cmocka_unit_test(test_who_is_stopped_is_not_lost),
        cmocka_unit_test(test_nobody_listens),
        cmocka_unit_test(test_port_is_taken),
        cmocka_unit_test(test_who_comes_late_is_called_again),
        cmocka_unit_test(test_one_way_is_enough),
        cmocka_unit_test(test_host_that_vanishes_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
