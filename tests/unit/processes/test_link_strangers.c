/* Who connects to the port that links use and is none of us gets nothing and disturbs nobody, however many they are;
   and what we say when it is a stranger that we call. */
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/processes/link.h"
#include "backend/processes/tcp.h"
#include "tests/unit/processes/peers_world.h"
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cmocka.h>

#if defined(FEW)
enum { FLOOD = 2000 };
#else
enum { FLOOD = 10000 };
#endif
enum { SILENT = 300 };
static int connect_raw(int process)
{
    int out = tcp_call(&world->contact[process], &(struct contact){ 0 });
    struct pollfd one = { .fd = out, .events = POLLOUT };
    if (out >= 0) poll(&one, 1, 1000);
    return out;
}
static struct shake hello_to(const unsigned char nonce[16])
{
    struct shake hello = { "tutti-l", PROTOCOL, HELLO, 0, { 0 }, { { 1 }, 1, "elsewhere" }, { 2 }, { 0 } };
    memcpy(hello.to, nonce, sizeof hello.to);
    return hello;
}
static void say_something(int socket, int i)
{
    char nonsense[300];
    memset(nonsense, 'x', sizeof nonsense);
    struct shake hello = hello_to((const unsigned char *)"of another group");
    const void *what[] = { "GET /metrics HTTP/1.1\r\n\r\n", nonsense, &hello, &hello, "tutti", "" };
    const size_t bytes[] = { 25, sizeof nonsense, sizeof hello, sizeof hello, 5, 0 };
    if (i % 6 == 3) hello.version++;
    send(socket, what[i % 6], bytes[i % 6], MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* ---- they call us ---- */
static void flood(void)                                 /* 2 is no process of ours, and 0 and 1 meet meanwhile */
{
    int silent[SILENT];
    if (rank < 2) {
        struct contact at = world_contact("127.0.0.1", 0);
        REQUIRE(peers_acquire(&world->identity[rank]) == TUTTI_OK);
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
        REQUIRE(count_descriptors() < 3 + 3 + 4 + 1 + MOST_CALLERS + 8);
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
    struct contact at = world_contact("127.0.0.1", 0);
    struct identity mine;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK && links_listen(&at, &world->contact[0]) == TUTTI_OK);
    int before = count_descriptors();
    for (int i = 0; i < 6; i++) {
        int stranger = connect_raw(0);
        struct pollfd end = { .fd = stranger, .events = POLLIN };
        say_something(stranger, i);
        REQUIRE(stranger >= 0 && poll(&end, 1, 2 * GENEROUS_MS) == 1);
        close(stranger);
    }
    REQUIRE(descriptors_settle_at(before));
    struct shake hello = hello_to(mine.nonce), answer;  /* it knows the nonce, and says something else then */
    int one = connect_raw(0);
    REQUIRE(send(one, &hello, sizeof hello, 0) == (ssize_t)sizeof hello);
    struct pollfd ready = { .fd = one, .events = POLLIN };
    REQUIRE(poll(&ready, 1, JOIN_MS) == 1 && recv(one, &answer, sizeof answer, MSG_WAITALL) == (ssize_t)sizeof answer);
    REQUIRE(answer.kind == WELCOME && !link_find(hello.from.nonce));
    REQUIRE(send(one, &hello, sizeof hello, 0) == (ssize_t)sizeof hello);
    REQUIRE(poll(&ready, 1, JOIN_MS) == 1 && recv(one, &answer, sizeof answer, 0) <= 0);
    close(one);
    REQUIRE(descriptors_settle_at(before));
    peers_release();
}
static void test_strangers_are_dismissed(void **state)
{
    (void)state;
    world_run(1, await_dismissal, 0);
}

/* ---- we call them ---- */
static void answer_with(int listener, const void *bytes, size_t count, bool once)
{
    struct pollfd ready = { .fd = listener, .events = POLLIN };
    char ignored[sizeof(struct shake)];
    do {
        if (poll(&ready, 1, 100) != 1) continue;
        int one = tcp_accept(listener);
        struct pollfd said = { .fd = one, .events = POLLIN };
        poll(&said, 1, JOIN_MS);
        recv(one, ignored, sizeof ignored, MSG_DONTWAIT);
        if (count) send(one, bytes, count, MSG_NOSIGNAL);
        close(one);
    } while (!once && !atomic_load(&world->skip));
}
static void expect(const struct identity *other, const char *text)
{
    struct peer *peer;
    REQUIRE(link_hold(other, &world->contact[1], &peer) == TUTTI_OK);
    REQUIRE(link_await(peer, clock_ms() + 2000) == TUTTI_SYSTEM);
    if (!strstr(status_detail(), text)) world_fail(text, __FILE__, __LINE__);
    peer_release(peer);
}
static void call_a_stranger(void)                       /* 1 is no process of ours */
{
    struct contact at = world_contact("127.0.0.1", 0);
    struct identity *mine = &world->identity[0], other = { .nonce = { 9 }, .pid = 1, .host = "elsewhere" };
    int listener = -1;
    if (rank == 0) REQUIRE(peers_acquire(mine) == TUTTI_OK && links_listen(&at, &world->contact[0]) == TUTTI_OK);
    else {
        listener = tcp_listen(&at);
        REQUIRE(listener >= 0);
        world->contact[1] = tcp_here(listener);
    }
    world_barrier(2);
    for (int round = 0; round < 4; round++) {
        struct shake shake = hello_to(mine->nonce);
        const char *texts[] = { "hung up", "another program", "another version", "TUTTI_SECRET_FILE" };
        if (round == 2) shake.version++;
        if (round == 3) shake.kind = TURNED_AWAY;
        if (rank == 0) {
            expect(&other, texts[round]);
            atomic_store(&world->skip, 1);
        } else if (round == 0) answer_with(listener, NULL, 0, false);
        else if (round == 1) answer_with(listener, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, false);
        else answer_with(listener, &shake, sizeof shake, false);
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
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_disturb_nobody),
        cmocka_unit_test(test_strangers_are_dismissed),
        cmocka_unit_test(test_what_is_said_of_a_stranger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
