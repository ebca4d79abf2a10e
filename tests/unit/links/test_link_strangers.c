/* Who connects to the port that links use and is none of us gets nothing and disturbs nobody, however many they are;
   and what we say when it is a stranger that we call. */
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
static void say_something(int socket, int i)
{
    char nonsense[300];
    memset(nonsense, 'x', sizeof nonsense);
    struct handshake_hello hello = hello_to((const unsigned char *)"of another group");
    const void *what[] = { "GET /metrics HTTP/1.1\r\n\r\n", nonsense, &hello, &hello, "tutti", "" };
    const size_t bytes[] = { 25, sizeof nonsense, sizeof hello, sizeof hello, 5, 0 };
    if (i % 6 == 3) hello.head.version++;
    send(socket, what[i % 6], bytes[i % 6], MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- they call us ---- */
static void flood(void)                                 /* 2 is no process of ours, and 0 and 1 meet meanwhile */
{
    int silent[SILENT];
    if (rank < 2) {
        struct sock_address at = world_contact("127.0.0.1", 0);
        REQUIRE(world_acquire(&world->identity[rank]) == TUTTI_OK);
        REQUIRE(links_listen(&at, &world->contact[rank]) == TUTTI_OK);
    }
    world_barrier(3);
    for (int i = 0; i < SILENT && rank == 2; i++) silent[i] = connect_raw(i % 2);      /* and stay */
    world_barrier(3);
    if (rank == 2) {
        for (int i = 0; i < FLOOD; i++) {
            int one = connect_raw(i % 2);
            if (one >= 0) say_something(one, i);
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
static void test_strangers_disturb_nobody(void **state)
{
    (void)state;
    world_run(3, flood, 0);
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
        say_something(stranger, i);
        REQUIRE(stranger >= 0 && poll(&end, 1, 2 * GENEROUS_MS) == 1);
        close(stranger);
    }
    REQUIRE(descriptors_settle_at(before));
    peers_release();
}
static void test_strangers_are_dismissed(void **state)
{
    (void)state;
    world_run(1, await_dismissal, 0);
}

/* ---- they know all but the key ---- */
/* Everything that a stranger may read or has seen, and what comes back: a challenge, then a refusal or nothing, and
   never a byte of this process. The twelve bytes of another version are the first of the ways. */
enum { WAYS = 6 };
static void try_to_get_in(void)
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
        if (way == 1) h.opening.challenge[0] ^= 1;      /* so it proves what it has proved on another connection */
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
static void test_strangers_who_know_all_but_the_key_are_refused(void **state)
{
    (void)state;
    world_run(1, try_to_get_in, 0);
}
/* Callers that say a hello without a proof, or that they have seen, and stay: they keep nobody out, and the calls of
   this process to the one in whose name they come go on. */
static void occupy(void)                                /* 2 is no process of ours */
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
            send(held[i], &hello, sizeof hello - 1, MSG_NOSIGNAL | MSG_DONTWAIT);      /* the last byte never comes */
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
static void test_callers_without_a_proof_keep_nobody_out(void **state)
{
    (void)state;
    world_run(3, occupy, 0);
}

/* ---- we call them ---- */
static void answer_with(int listener, const void *bytes, size_t count, bool once)
{
    struct pollfd ready = { .fd = listener, .events = POLLIN };
    char ignored[sizeof(struct handshake_hello)];
    int64_t until = clock_ms() + JOIN_MS;
    do {
        if (poll(&ready, 1, 100) != 1) continue;
        int one = tcp_accept(listener);
        struct pollfd said = { .fd = one, .events = POLLIN };
        poll(&said, 1, JOIN_MS);
        recv(one, ignored, sizeof ignored, MSG_DONTWAIT);
        if (count) send(one, bytes, count, MSG_NOSIGNAL);
        close(one);
    } while (!once && !atomic_load(&world->skip) && clock_ms() < until);
}
static void expect(const struct identity *other, const char *text)
{
    struct peer *peer;
    REQUIRE(link_acquire(other, &world_key, &world->contact[1], &peer) == TUTTI_OK);
    REQUIRE(link_await(peer, clock_ms() + 2000) == TUTTI_SYSTEM);
    if (!strstr(status_detail(), text)) world_fail(text, __FILE__, __LINE__);
    peer_release(peer);
}
static void call_a_stranger(void)                       /* 1 is no process of ours */
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
        } said = { { { "tutti-l", HANDSHAKE_VERSION, HANDSHAKE_OPENING }, { 1 } },
            { { "tutti-l", HANDSHAKE_VERSION, round == 3 ? HANDSHAKE_REFUSED : HANDSHAKE_WELCOME }, 0, { 0 } } };
        const char *texts[] = { "closed the connection", "another program", "another version", "TUTTI_SECRET_FILE",
            "TUTTI_SECRET_FILE" };
        if (round == 2) said.opening.head.version++;
        if (rank == 0) {
            expect(&other, texts[round]);
            atomic_store(&world->skip, 1);
        } else if (round == 0) answer_with(listener, NULL, 0, false);
        else if (round == 1) answer_with(listener, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, false);
        else answer_with(listener, &said, sizeof said, false);      /* refuses, or welcomes without a proof */
        world_barrier(2);
        if (rank == 0) atomic_store(&world->skip, 0);
        world_barrier(2);
    }
    if (rank == 0) peers_release();
    else close(listener);
}
static void test_what_is_said_of_a_stranger(void **state)
{
    (void)state;
    world_run(2, call_a_stranger, 0);
}
unit_function test_link_strangers;
int test_link_strangers(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_disturb_nobody),
        cmocka_unit_test(test_strangers_are_dismissed),
        cmocka_unit_test(test_strangers_who_know_all_but_the_key_are_refused),
        cmocka_unit_test(test_callers_without_a_proof_keep_nobody_out),
        cmocka_unit_test(test_what_is_said_of_a_stranger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
