/* With a secret (TUTTI_SECRET_FILE) only those who know it get a link, whatever else they know. */
#include "backend/base/clock.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/processes/link.h"
#include "backend/processes/tcp.h"
#include "tests/unit/processes/peers_world.h"
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "link-secrets-XXXXXX";
static const char *secrets[2];                          /* NULL: none */
static void give(const char *content, size_t bytes, mode_t mode)       /* this process a secret */
{
    char path[80];
    snprintf(path, sizeof path, "%s/%d", folder, rank);
    unlink(path);
    int file = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
    REQUIRE(file >= 0 && write(file, content, bytes) == (ssize_t)bytes && fchmod(file, mode) == 0);
    close(file);
    setenv("TUTTI_SECRET_FILE", path, 1);
    settings_reload();
}
static void skip_without_library(void)
{
    struct contact at = world_contact("127.0.0.1", 0);
    if (links_listen(&at, &at) == TUTTI_OK) return;
    if (!strstr(status_detail(), "needs libcrypto")) world_fail(status_detail(), __FILE__, __LINE__);
    fprintf(stderr, "skipped: %s\n", status_detail());
    _exit(SKIPPED);
}

/* ---- both ways ---- */
static void meet(void)
{
    bool same = secrets[0] && secrets[1] && !strcmp(secrets[0], secrets[1]);
    if (secrets[rank]) give(secrets[rank], strlen(secrets[rank]), 0600);
    REQUIRE(peers_acquire(&world->identity[rank]) == TUTTI_OK);
    skip_without_library();
    struct contact any = { 0 };
    REQUIRE(links_listen(&any, &world->contact[rank]) == TUTTI_OK);
    world_barrier(2);
    if (same) {
        struct peer *peer = world_link(1 - rank);
        world_barrier(2);
        peer_release(peer);
    } else {
        struct peer *peer = world_hold(1 - rank);
        REQUIRE(link_await(peer, clock_ms() + JOIN_MS) == TUTTI_SYSTEM);
        REQUIRE(strstr(status_detail(), "the secret (TUTTI_SECRET_FILE) differs, or is missing on one"));
        world_barrier(2);
        peer_release(peer);
    }
    peers_release();
}
static void test_who_knows_the_secret_gets_in(void **state)
{
    (void)state;
    secrets[0] = secrets[1] = "we know this";
    for (int i = 0; i < 3; i++) world_run(2, meet, 0);
}
static void test_who_knows_another_does_not(void **state)
{
    (void)state;
    secrets[0] = "we know this", secrets[1] = "we know that";
    world_run(2, meet, 0);
}
static void test_who_knows_none_does_not(void **state)
{
    (void)state;
    secrets[0] = "we know this", secrets[1] = NULL;
    world_run(2, meet, 0);
    secrets[0] = NULL, secrets[1] = "we know this";
    world_run(2, meet, 0);
}

/* ---- who pretends ---- */
static void pretend(void)                               /* it knows the nonce, and shows our own proof, or nothing */
{
    give("we know this", 12, 0400);
    struct contact at = world_contact("127.0.0.1", 0);
    struct identity mine;
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    skip_without_library();
    REQUIRE(links_listen(&at, &at) == TUTTI_OK);
    for (int round = 0; round < 2; round++) {
        struct shake shake = { "tutti-l", PROTOCOL, HELLO, 1, { 0 }, { { 1 }, 1, "elsewhere" }, { 2 }, { 0 } }, answer;
        memcpy(shake.to, mine.nonce, sizeof shake.to);
        int one = tcp_call(&at, &at);
        struct pollfd ready = { .fd = one, .events = POLLOUT };
        REQUIRE(one >= 0 && poll(&ready, 1, JOIN_MS) == 1);
        REQUIRE(send(one, &shake, sizeof shake, 0) == (ssize_t)sizeof shake);
        ready.events = POLLIN;
        REQUIRE(poll(&ready, 1, JOIN_MS) == 1);
        REQUIRE(recv(one, &answer, sizeof answer, MSG_WAITALL) == (ssize_t)sizeof answer && answer.kind == WELCOME);
        shake.kind = CONFIRM;
        if (round) memcpy(shake.proof, answer.proof, sizeof shake.proof);
        REQUIRE(send(one, &shake, sizeof shake, 0) == (ssize_t)sizeof shake);
        REQUIRE(poll(&ready, 1, JOIN_MS) == 1 && recv(one, &answer, sizeof answer, 0) <= 0);
        REQUIRE(!link_find(shake.from.nonce));
        close(one);
    }
    peers_release();
}
static void test_who_pretends_is_turned_away(void **state)
{
    (void)state;
    world_run(1, pretend, 0);
}
/* RFC 4231, case 2: what is called HMAC-SHA256 here is what others call so. */
static void sign_as_others_do(void)
{
    static const unsigned char expected[PROOF_BYTES] = { 0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04,
        0x24, 0x26, 0x08, 0x95, 0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9,
        0x64, 0xec, 0x38, 0x43 };
    static const char text[] = "what do ya want for nothing?";
    unsigned char proof[PROOF_BYTES];
    struct identity mine;
    give("Jefe", 4, 0600);
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    skip_without_library();
    REQUIRE(secret_is_set() && secret_sign(text, 28, proof) && memcmp(proof, expected, sizeof proof) == 0);
    REQUIRE(secret_proves(text, 28, proof) && !secret_proves(text, 27, proof));
    for (int i = 0; i < PROOF_BYTES; i++) {
        proof[i] ^= 1;
        REQUIRE(!secret_proves(text, 28, proof));
        proof[i] ^= 1;
    }
    peers_release();
}
static void test_proofs_are_hmac_sha256(void **state)
{
    (void)state;
    world_run(1, sign_as_others_do, 0);
}

/* ---- the file ---- */
static void expect(const char *text)
{
    struct contact at = world_contact("127.0.0.1", 0);
    REQUIRE(links_listen(&at, &at) == TUTTI_SYSTEM);
    if (!strstr(status_detail(), text) || !strstr(status_detail(), "TUTTI_SECRET_FILE"))
        world_fail(text, __FILE__, __LINE__);
}
static void choose_badly(void)
{
    static char large[MOST_SECRET_BYTES + 1];
    struct identity mine;
    struct contact at = world_contact("127.0.0.1", 0);
    REQUIRE(peers_acquire(&mine) == TUTTI_OK);
    give("x", 1, 0644);
    expect("mode 0600 or 0400");
    give("x", 1, 0601);
    expect("mode 0600 or 0400");
    give("", 0, 0600);
    expect("is empty");
    give(large, sizeof large, 0600);
    expect("more than 4096");
    setenv("TUTTI_SECRET_FILE", folder, 1);
    settings_reload();
    expect("regular file");
    setenv("TUTTI_SECRET_FILE", "/nowhere/at/all", 1);
    settings_reload();
    expect("cannot open");
    if (geteuid() == 0) {
        give("x", 1, 0600);
        REQUIRE(chown(settings_get()->secret_file, 65534, 65534) == 0);
        expect("another user");
    }
    give(large, sizeof large - 1, 0600);
    skip_without_library();
    REQUIRE(links_listen(&at, &at) == TUTTI_OK && secret_is_set());
    peers_release();
    REQUIRE(!secret_is_set());
}
static void test_what_is_wrong_with_the_file_is_said(void **state)
{
    (void)state;
    world_run(1, choose_badly, 0);
}
static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}
static int remove_folder(void **state)
{
    char path[80];
    (void)state;
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        unlink(path);
    }
    return rmdir(folder);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_knows_the_secret_gets_in),
        cmocka_unit_test(test_who_knows_another_does_not),
        cmocka_unit_test(test_who_knows_none_does_not),
        cmocka_unit_test(test_who_pretends_is_turned_away),
        cmocka_unit_test(test_proofs_are_hmac_sha256),
        cmocka_unit_test(test_what_is_wrong_with_the_file_is_said),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
