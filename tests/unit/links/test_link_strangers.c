/* Strangers, processes that do not belong to the group, connect to the port of links. They get no data and do not
   disturb the links of the group, however many they are. A link to a stranger is an error with a text. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/links/link.h"
#include "backend/links/tcp.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <poll.h>
#include <sys/socket.h>

#if defined(FEW)
enum { FLOOD = 2000 };
#else
enum { FLOOD = 10000 };
#endif
enum { SILENT = 300 };
static int connect_raw(int process)
{
    int out = tcp_start_connect(&world->contact[process], &(struct sock_address){ 0 });
    struct pollfd one = { .fd = out, .events = POLLOUT };
    if (out >= 0) poll(&one, 1, 1000);
    return out;
}
static const struct identity elsewhere = { { 1 }, 1, "elsewhere" };
static struct handshake_hello hello_to(const unsigned char nonce[16])
{
    struct handshake_hello hello = { .head = { "tutti-l", HANDSHAKE_VERSION, HANDSHAKE_HELLO }, .from = elsewhere };
    memcpy(hello.to, nonce, sizeof hello.to);
    return hello;
}
static void await_input(int socket)
{
    struct pollfd ready = { .fd = socket, .events = POLLIN };
    REQUIRE(poll(&ready, 1, JOIN_MS) == 1);
}
static void send_nonsense(int socket, int i)
{
    char nonsense[300];
    memset(nonsense, 'x', sizeof nonsense);
    struct handshake_hello hello = hello_to((const unsigned char *)"of another group");
    const void *what[] = { "GET /metrics HTTP/1.1\r\n\r\n", nonsense, &hello, &hello, "tutti", "" };
    const size_t bytes[] = { 25, sizeof nonsense, sizeof hello, sizeof hello, 5, 0 };
    if (i % 6 == 3) hello.head.version++;
    send(socket, what[i % 6], bytes[i % 6], MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- strangers that connect ---- */
/* Process 2 is a stranger and opens many connections, while 0 and 1 open their link. */
static void flood_with_connections(void)
{
    int silent[SILENT];
    if (rank < 2) {
        struct sock_address at = world_contact("127.0.0.1", 0);
        REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
        REQUIRE(links_listen(&at, &world->contact[rank]) == TUTTI_OK);
    }
    world_barrier(3);
    /* These connections stay open and silent. */
    for (int i = 0; i < SILENT && rank == 2; i++) silent[i] = connect_raw(i % 2);
    world_barrier(3);
    if (rank == 2) {
        for (int i = 0; i < FLOOD; i++) {
            int one = connect_raw(i % 2);
            if (one >= 0) send_nonsense(one, i);
            if (one >= 0) close(one);
            if (i == FLOOD / 10) world_barrier(3);
        }
    } else {
        world_barrier(3);
        struct peer *peer = world_link(1 - rank);
        REQUIRE(count_descriptors() < 3 + 3 + 4 + 1 + MOST_INCOMING_LINKS + 8);
        world_barrier(3);
        REQUIRE(!peer_is_gone(peer));
        world_barrier(3);
        peer_release(peer);
        peers_release();
        return;
    }
    world_barrier(3);
    world_barrier(3);
    for (int i = 0; i < SILENT; i++) close(silent[i]);
}
static void test_strangers_do_not_disturb_links(void **state)
{
    (void)state;
    world_run(3, flood_with_connections, 0);
}
static void await_dismissal(void)
{
    struct sock_address at = world_contact("127.0.0.1", 0);
    struct identity mine;
    REQUIRE(world_acquire(&mine) == TUTTI_OK && links_listen(&at, &world->contact[0]) == TUTTI_OK);
    int before = count_descriptors();
    for (int i = 0; i < 6; i++) {
        int stranger = connect_raw(0);
        struct pollfd end = { .fd = stranger, .events = POLLRDHUP };
        send_nonsense(stranger, i);
        REQUIRE(stranger >= 0 && poll(&end, 1, 2 * GENEROUS_MS) == 1);
        close(stranger);
    }
    REQUIRE(descriptors_settle_at(before));
    peers_release();
}
static void test_strangers_are_disconnected(void **state)
{
    (void)state;
    world_run(1, await_dismissal, 0);
}

/* ---- strangers that know all but the key ---- */
/* A stranger sends hellos with all that it may read or has seen. It gets a challenge, then a refusal or, for another
   version (way 0), only the end of the connection, and never data of this process. */
enum { WAYS = 6 };
static void connect_without_the_key(void)
{
    struct sock_address at = world_contact("127.0.0.1", 0);
    struct identity mine;
    REQUIRE(world_acquire(&mine) == TUTTI_OK && links_listen(&at, &world->contact[0]) == TUTTI_OK);
    int before = count_descriptors();
    for (int way = 0; way < WAYS; way++) {
        struct handshake h;
        unsigned char answer[sizeof(struct handshake_answer) + 1];
        int one = connect_raw(0);
        handshake_begin(&h, handshake_of_links);
        await_input(one);
        REQUIRE(handshake_receive_opening(&h, one) == 1);
        /* Way 1: the proof is that of another connection. */
        if (way == 1) h.opening.challenge[0] ^= 1;
        REQUIRE(handshake_send_hello(&h, &elsewhere, mine.nonce, &world_key, 0, -1) < 0);
        if (way == 0) h.hello.head.version++;
        if (way == 2) h.hello.key.bytes[0] ^= 1;
        if (way == 3) memset(h.hello.proof, 0, sizeof h.hello.proof);
        if (way == 4) h.hello.from.pid++;
        if (way == 5) h.hello.has_secret = 1;
        size_t bytes = way == 0 ? 12 : sizeof h.hello;
        REQUIRE(send(one, &h.hello, bytes, 0) == (ssize_t)bytes);
        struct pollfd end = { .fd = one, .events = POLLRDHUP };
        REQUIRE(poll(&end, 1, JOIN_MS) == 1);
        ssize_t got = recv(one, answer, sizeof answer, 0);
        REQUIRE(way == 0 ? got <= 0 : got == (ssize_t)sizeof(struct handshake_answer));
        for (ssize_t i = sizeof(struct handshake_head); i < got; i++) REQUIRE(!answer[i]);
        close(one);
    }
    REQUIRE(descriptors_settle_at(before));
    pthread_mutex_lock(&registry.lock);
    REQUIRE(!registry.peers);
    pthread_mutex_unlock(&registry.lock);
    peers_release();
}
static void test_strangers_without_the_key_are_refused(void **state)
{
    (void)state;
    world_run(1, connect_without_the_key, 0);
}
/* Process 2, a stranger, opens many connections in the names of processes 0 and 1, sends a hello without its last byte
   on each, and leaves them open. Processes 0 and 1 still open their link. */
static void hold_connections(void)
{
    if (rank < 2) {
        struct sock_address at = world_contact("127.0.0.1", 0);
        REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
        REQUIRE(links_listen(&at, &world->contact[rank]) == TUTTI_OK);
    }
    world_barrier(3);
    if (rank == 2) {
        int held[2 * MOST_INCOMING_LINKS];
        for (int i = 0; i < 2 * MOST_INCOMING_LINKS; i++) {
            struct handshake_hello hello = hello_to(world->identity[i % 2].nonce);
            hello.from = world->identity[1 - i % 2];
            held[i] = connect_raw(i % 2);
            send(held[i], &hello, sizeof hello - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
        world_barrier(3);
        world_barrier(3);
        for (int i = 0; i < 2 * MOST_INCOMING_LINKS; i++) close(held[i]);
        return;
    }
    world_barrier(3);
    struct peer *peer = world_link(1 - rank);
    REQUIRE(!peer_is_gone(peer));
    world_barrier(3);
    peer_release(peer);
    peers_release();
}
static void test_connections_without_a_proof_keep_no_link_out(void **state)
{
    (void)state;
    world_run(3, hold_connections, 0);
}

/* ---- links to a stranger ---- */
static void answer_with(int listener, const void *bytes, size_t count, bool once)
{
    struct pollfd ready = { .fd = listener, .events = POLLIN };
    char ignored[sizeof(struct handshake_hello)];
    int64_t until = clock_ms() + JOIN_MS;
    do {
        if (poll(&ready, 1, 100) != 1) continue;
        int one = tcp_accept(listener);
        struct pollfd reply = { .fd = one, .events = POLLIN };
        poll(&reply, 1, JOIN_MS);
        recv(one, ignored, sizeof ignored, MSG_DONTWAIT);
        if (count) send(one, bytes, count, MSG_NOSIGNAL);
        close(one);
    } while (!once && !atomic_load(&world->skip) && clock_ms() < until);
}
static void require_error(const struct identity *other, const char *text)
{
    struct peer *peer;
    REQUIRE(link_acquire(other, &world_key, &world->contact[1], &peer) == TUTTI_OK);
    REQUIRE(link_await(peer, clock_ms() + 2000) == TUTTI_SYSTEM);
    if (!strstr(status_detail(), text)) world_fail(text, __FILE__, __LINE__);
    peer_release(peer);
}
/* Process 1 is a stranger, and answers in five ways. */
static void link_to_a_stranger(void)
{
    struct sock_address at = world_contact("127.0.0.1", 0);
    struct identity *mine = &world->identity[0], other = { .nonce = { 9 }, .pid = 1, .host = "elsewhere" };
    int listener = -1;
    if (rank == 0) REQUIRE(world_acquire(mine) == TUTTI_OK && links_listen(&at, &world->contact[0]) == TUTTI_OK);
    else {
        listener = tcp_listen(&at);
        REQUIRE(listener >= 0);
        world->contact[1] = tcp_local_address(listener);
    }
    world_barrier(2);
    for (int round = 0; round < 5; round++) {
        struct {
            struct handshake_opening opening;
            struct handshake_answer answer;
        } reply = { { { "tutti-l", HANDSHAKE_VERSION, HANDSHAKE_OPENING }, { 1 } },
            { { "tutti-l", HANDSHAKE_VERSION, round == 3 ? HANDSHAKE_REFUSED : HANDSHAKE_WELCOME }, 0, { 0 } } };
        /* The stranger closes, sends HTTP, has another version, refuses, or welcomes without a proof. */
        const char *texts[] = { "closed the connection", "another program", "another version", "TUTTI_SECRET_FILE",
            "TUTTI_SECRET_FILE" };
        if (round == 2) reply.opening.head.version++;
        if (rank == 0) {
            require_error(&other, texts[round]);
            atomic_store(&world->skip, 1);
        } else if (round == 0) answer_with(listener, NULL, 0, false);
        else if (round == 1) answer_with(listener, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, false);
        else answer_with(listener, &reply, sizeof reply, false);
        world_barrier(2);
        if (rank == 0) atomic_store(&world->skip, 0);
        world_barrier(2);
    }
    if (rank == 0) peers_release();
    else close(listener);
}
static void test_link_to_a_stranger_is_an_error(void **state)
{
    (void)state;
    world_run(2, link_to_a_stranger, 0);
}
unit_function test_link_strangers;
int test_link_strangers(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_do_not_disturb_links),
        cmocka_unit_test(test_strangers_are_disconnected),
        cmocka_unit_test(test_strangers_without_the_key_are_refused),
        cmocka_unit_test(test_connections_without_a_proof_keep_no_link_out),
        cmocka_unit_test(test_link_to_a_stranger_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
