/* A process that connects without being a rank of this user gets no data and does not disturb the ranks. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* ---- strangers ---- */
/* The last process is no rank, and sends nonsense. */
static void send_nonsense(void)
{
    struct peer *peers[MOST];
    char nonsense[300];
    int kept[100];
    bool stranger = rank == size - 1;
    if (!stranger) REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
    world_barrier(size);
    memset(nonsense, 'x', sizeof nonsense);
    for (int i = 0; i < 100 && stranger; i++) {
        kept[i] = socket_connect("peer", world->identity[i % 2].nonce);
        if (kept[i] < 0) continue;
        if (i % 4 == 0) socket_send(kept[i], "GET /metrics HTTP/1.1\r\n\r\n", 25, STDIN_FILENO);
        if (i % 4 == 1) socket_send(kept[i], nonsense, sizeof nonsense, -1);
        if (i % 4 == 2) socket_send(kept[i], nonsense, sizeof(struct handshake_hello), STDIN_FILENO);
    }
    if (stranger) { world_barrier(size); world_barrier(size); return; }
    size--;
    world_connect_all(peers);
    world_barrier(size + 1);
    for (int peer = 0; peer < size; peer++) REQUIRE(peer == rank || !peer_is_gone(peers[peer]));
    /* The process does not hold a descriptor for each of the hundred connections. */
    REQUIRE(count_descriptors() < 3 + 3 + size + 32 + 8);
    world_barrier(size + 1);
    world_release_all(peers);
    peers_release();
}
static void test_strangers_do_not_disturb_the_ranks(void **state)
{
    (void)state;
    world_run(3, send_nonsense, 0);
}
static void await_dismissal(void)
{
    struct identity mine;
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    int silent = socket_connect("peer", mine.nonce);
    struct pollfd end = { .fd = silent, .events = POLLRDHUP };
    REQUIRE(silent >= 0 && poll(&end, 1, 2 * GENEROUS_MS) == 1);
    close(silent);
    peers_release();
}
static void test_silent_stranger_is_disconnected(void **state)
{
    (void)state;
    world_run(1, await_dismissal, 0);
}
static void call_as_another_user(void)
{
    struct peer *peer;
    if (geteuid() != 0) _exit(SKIPPED);
    if (rank == 1) REQUIRE(setresuid(65534, 65534, 65534) == 0);
    world_join();
    REQUIRE(world_call(1 - rank, &peer) == TUTTI_SYSTEM);
    REQUIRE(strstr(status_detail(), "another user"));
    world_barrier(2);
    peers_release();
}
static void test_another_user_is_refused(void **state)
{
    (void)state;
    world_run(2, call_as_another_user, 0);
}
/* The other user connects by the system calls, without the checks of this library. */
static void connect_as_another_user(void)
{
    struct identity mine;
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    if (geteuid() != 0) _exit(SKIPPED);
    pid_t child = fork();
    if (child == 0) {
        struct {
            sa_family_t family;
            char path[108];
        } name = { .family = AF_UNIX };
        size_t used = (size_t)snprintf(name.path + 1, 100, "tutti-peer-");
        for (int i = 0; i < 16; i++) used += (size_t)snprintf(name.path + 1 + used, 100 - used, "%02x", mine.nonce[i]);
        if (setresuid(65534, 65534, 65534) != 0) _exit(2);
        int out = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(out, (struct sockaddr *)&name, (socklen_t)(sizeof(sa_family_t) + 1 + used)) != 0) _exit(3);
        char byte;
        /* The connection is closed at once, without a byte. */
        _exit(recv(out, &byte, 1, 0) == 0 ? 0 : 4);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    peers_release();
}
static void test_connection_of_another_user_is_closed(void **state)
{
    (void)state;
    world_run(1, connect_as_another_user, 0);
}

/* ---- this process is stopped ---- */
/* The tests let the watch thread wait for registry.lock after it has asked the kernel which sockets are ready, as if
   the process were stopped there. `asked` counts the calls of epoll_wait, which is replaced. */
static _Atomic int asked;
int epoll_wait(int poller, struct epoll_event *events, int most, int timeout_ms)
{
    int ready = (int)syscall(SYS_epoll_pwait, poller, events, most, timeout_ms, NULL, 0);
    atomic_fetch_add(&asked, 1);
    return ready;
}
/* Takes registry.lock, and returns when the watch thread waits for it. */
static void stop_watching(void)
{
    pthread_mutex_lock(&registry.lock);
    int before = atomic_load(&asked);
    registry_wake();
    for (int64_t until = clock_ms() + GENEROUS_MS; atomic_load(&asked) == before; sleep_ms(1))
        REQUIRE(clock_ms() < until);
}
/* Waits until `count` connections have not finished their handshake, and gives those more time. */
static void await_pending(int count)
{
    int64_t until = clock_ms() + GENEROUS_MS;
    for (int have = -1; have != count; sleep_ms(1)) {
        pthread_mutex_lock(&registry.lock);
        for (int i = 0; i < registry.pending_count; i++) registry.pending[i].until_ms = INT64_MAX / 2;
        have = registry.pending_count;
        pthread_mutex_unlock(&registry.lock);
        REQUIRE(clock_ms() < until);
    }
}
static void await_input(int socket)
{
    struct pollfd one = { .fd = socket, .events = POLLIN };
    REQUIRE(poll(&one, 1, JOIN_MS) == 1);
}
static struct handshake send_hello(int socket, const struct identity *to)
{
    struct handshake h;
    const struct identity elsewhere = { { 1 }, 1, "elsewhere" };
    handshake_begin(&h, handshake_of_peers);
    await_input(socket);
    REQUIRE(handshake_receive_opening(&h, socket) == 1);
    REQUIRE(handshake_send_hello(&h, &elsewhere, to->nonce, &world_key, 0, socket) == 0);
    return h;
}
static void expect_welcome(struct handshake h, int socket)
{
    await_input(socket);
    REQUIRE(handshake_receive_answer(&h, socket) == 1 && h.answer.head.kind == HANDSHAKE_WELCOME);
    close(socket);
}
/* A process of this user has read the name of the socket in /proc. It uses an invented key (0), a proof of another
   connection (1) or of another process (2), or a changed proof (3). It is refused, and the answer has no data. */
static void send_wrong_proofs(void)
{
    struct identity mine;
    const struct identity elsewhere = { { 1 }, 1, "elsewhere" };
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    for (int way = 0; way < 4; way++) {
        struct handshake h;
        struct handshake_answer answer;
        int socket = socket_connect("peer", mine.nonce);
        REQUIRE(socket >= 0);
        handshake_begin(&h, handshake_of_peers);
        await_input(socket);
        REQUIRE(handshake_receive_opening(&h, socket) == 1);
        if (way == 1) h.opening.challenge[3] ^= 1;
        REQUIRE(handshake_send_hello(&h, &elsewhere, mine.nonce, &world_key, 0, -1) == -EBADF);
        if (way == 0) h.hello.key.bytes[0] ^= 1;
        if (way == 2) h.hello.from.nonce[0] = 2;
        if (way == 3) h.hello.proof[31] ^= 128;
        REQUIRE(send(socket, &h.hello, sizeof h.hello, 0) == (ssize_t)sizeof h.hello);
        await_input(socket);
        REQUIRE(recv(socket, &answer, sizeof answer, 0) == (ssize_t)sizeof answer);
        REQUIRE(answer.head.kind == HANDSHAKE_REFUSED && !answer.number);
        for (size_t i = 0; i < sizeof answer.proof; i++) REQUIRE(!answer.proof[i]);
        await_input(socket);
        REQUIRE(recv(socket, &answer, sizeof answer, 0) == 0);
        close(socket);
        pthread_mutex_lock(&registry.lock);
        REQUIRE(!registry.peers);
        pthread_mutex_unlock(&registry.lock);
    }
    peers_release();
}
static void test_wrong_proofs_are_refused(void **state)
{
    (void)state;
    world_run(1, send_wrong_proofs, 0);
}
static void send_hello_when_time_is_over(void)
{
    struct identity mine;
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    int socket = socket_connect("peer", mine.nonce);
    await_pending(1);
    stop_watching();
    struct handshake h = send_hello(socket, &mine);
    registry.pending[0].until_ms = 0;
    pthread_mutex_unlock(&registry.lock);
    expect_welcome(h, socket);
    peers_release();
}
static void send_hello_with_one_connection_too_many(void)
{
    struct identity mine;
    int sockets[MOST_PENDING + 1];
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    for (int i = 0; i < MOST_PENDING; i++) {
        sockets[i] = socket_connect("peer", mine.nonce);
        await_pending(i + 1);
    }
    stop_watching();
    /* The watch thread accepts this connection before it reads the hello of the first. */
    sockets[MOST_PENDING] = socket_connect("peer", mine.nonce);
    struct handshake h = send_hello(sockets[0], &mine);
    pthread_mutex_unlock(&registry.lock);
    expect_welcome(h, sockets[0]);
    for (int i = 1; i <= MOST_PENDING; i++) close(sockets[i]);
    peers_release();
}
static void test_hello_that_arrived_while_the_process_was_stopped_is_read(void **state)
{
    (void)state;
    world_run(1, send_hello_when_time_is_over, 0);
    world_run(1, send_hello_with_one_connection_too_many, 0);
}

/* ---- a release while connecting ---- */
/* This process also plays the process to which it connects. */
static void release_before_the_answer(void)
{
    struct identity mine, other;
    struct handshake h;
    struct peer *peer;
    char byte;
    REQUIRE(world_acquire(&mine) == TUTTI_OK);
    other = mine;
    other.nonce[0] ^= 1;
    int listener = socket_listen("peer", other.nonce);
    REQUIRE(listener >= 0 && peer_acquire(&other, &world_key, &peer) == TUTTI_OK);
    REQUIRE(peer_try_await(peer, clock_ms()) == -ETIMEDOUT);
    await_input(listener);
    int socket = socket_accept(listener);
    REQUIRE(socket >= 0 && handshake_send_opening(&h, handshake_of_peers, socket) == 0);
    await_input(socket);
    REQUIRE(handshake_receive_hello(&h, other.nonce, socket) == 1);
    peer_release(peer);
    /* The other process counts the connection as open from here on. */
    REQUIRE(handshake_send_answer(&h, HANDSHAKE_WELCOME, 0, socket) == 0);
    REQUIRE(socket_receive(socket, &byte, 1, NULL) == -EAGAIN);
    /* The next group uses this connection. */
    REQUIRE(peer_acquire(&other, &world_key, &peer) == TUTTI_OK);
    REQUIRE(peer_await(peer, clock_ms() + JOIN_MS) == TUTTI_OK && !peer_is_gone(peer));
    peer_release(peer);
    close(listener);
    close(socket);
    peers_release();
}
static void test_release_while_connecting_is_no_end_of_the_process(void **state)
{
    (void)state;
    world_run(1, release_before_the_answer, 0);
}
unit_function test_peer_strangers;
int test_peer_strangers(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_do_not_disturb_the_ranks),
        cmocka_unit_test(test_silent_stranger_is_disconnected),
        cmocka_unit_test(test_another_user_is_refused),
        cmocka_unit_test(test_connection_of_another_user_is_closed),
        cmocka_unit_test(test_wrong_proofs_are_refused),
        cmocka_unit_test(test_release_while_connecting_is_no_end_of_the_process),
        cmocka_unit_test(test_hello_that_arrived_while_the_process_was_stopped_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
