/* Who connects and is no rank of this user gets nothing, and disturbs nobody. */
#include "tests/unit/backend/peers_world.h"
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- strangers ---- */
static void say_nonsense(void)                                         /* the last process is no rank */
{
    struct peer *peers[MOST];
    char nonsense[300];
    int kept[100];
    bool stranger = rank == size - 1;
    if (!stranger) REQUIRE(peers_acquire(&world->identity[rank]) == TUTTI_OK);
    world_barrier(size);
    memset(nonsense, 'x', sizeof nonsense);
    for (int i = 0; i < 100 && stranger; i++) {
        kept[i] = socket_connect("peer", world->identity[i % 2].nonce);
        if (kept[i] < 0) continue;
        if (i % 4 == 0) socket_send(kept[i], "GET /metrics HTTP/1.1\r\n\r\n", 25, STDIN_FILENO);
        if (i % 4 == 1) socket_send(kept[i], nonsense, sizeof nonsense, -1);
        if (i % 4 == 2) socket_send(kept[i], nonsense, 112, STDIN_FILENO);     /* of the right length */
    }
    if (stranger) { world_barrier(size); world_barrier(size); return; }
    size--;
    world_connect_all(peers);
    world_barrier(size + 1);
    for (int peer = 0; peer < size; peer++) REQUIRE(peer == rank || !peer_is_gone(peers[peer]));
    REQUIRE(count_descriptors() < 3 + 3 + size + 32 + 8);              /* not the hundred that came */
    world_barrier(size + 1);
    world_release_all(peers);
    peers_release();
}
static void test_strangers_disturb_nobody(void **state)
{
    (void)state;
    world_run(3, say_nonsense, 0);
}
static void wait_to_be_dismissed(void)
{
    struct identity mine;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    int silent = socket_connect("peer", mine.nonce);
    struct pollfd end = { .fd = silent, .events = POLLIN };
    REQUIRE(silent >= 0 && poll(&end, 1, 2 * GENEROUS_MS) == 1);
    close(silent);
    peers_release();
}
static void test_silent_stranger_is_dismissed(void **state)
{
    (void)state;
    world_run(1, wait_to_be_dismissed, 0);
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
static void connect_as_another_user(void)                              /* with a client that does not look */
{
    struct identity mine;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    if (geteuid() != 0) _exit(SKIPPED);
    pid_t child = fork();
    if (child == 0) {
        struct { sa_family_t family; char path[108]; } name = { .family = AF_UNIX };
        size_t used = (size_t)snprintf(name.path + 1, 100, "tutti-peer-");
        for (int i = 0; i < 16; i++) used += (size_t)snprintf(name.path + 1 + used, 100 - used, "%02x", mine.nonce[i]);
        if (setresuid(65534, 65534, 65534) != 0) _exit(2);
        int out = socket(AF_UNIX, SOCK_SEQPACKET, 0);
        if (connect(out, (struct sockaddr *)&name, (socklen_t)(sizeof(sa_family_t) + 1 + used)) != 0) _exit(3);
        char byte;
        _exit(recv(out, &byte, 1, 0) == 0 ? 0 : 4);                    /* it is hung up at once */
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    peers_release();
}
static void test_another_user_is_turned_away(void **state)
{
    (void)state;
    world_run(1, connect_as_another_user, 0);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_disturb_nobody),
        cmocka_unit_test(test_silent_stranger_is_dismissed),
        cmocka_unit_test(test_another_user_is_refused),
        cmocka_unit_test(test_another_user_is_turned_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
