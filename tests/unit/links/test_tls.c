/* Encrypted connections: bytes arrive in pieces of any size, a different key or a changed byte ends the connection, and
   a wrong setting or a missing library is an error. */
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/links/tls.h"
#include "tests/support/unit.h"
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

enum { SKIPPED = 77, MANY = 3 << 20 };
static const unsigned char key[KEY_BYTES] = "a key", another[KEY_BYTES] = "another key";
static unsigned char from[MANY], to[MANY];
struct end { int socket; struct tls *tls; };
struct both { struct end caller, called; };

static struct both connected(const unsigned char keys[2][KEY_BYTES])
{
    int sockets[2], few = 8192;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
    for (int i = 0; i < 2; i++) setsockopt(sockets[i], SOL_SOCKET, SO_SNDBUF, &few, sizeof few);
    struct both b = { { sockets[0], tls_new(false, keys[0]) }, { sockets[1], tls_new(true, keys[1]) } };
    assert_true(b.caller.tls && b.called.tls);
    return b;
}
static struct both connected_well(void)
{
    unsigned char keys[2][KEY_BYTES];
    for (int i = 0; i < 2; i++) memcpy(keys[i], key, sizeof key);
    return connected(keys);
}
static void end_free(struct end *e)
{
    tls_free(e->tls);
    close(e->socket);
}
static void both_free(struct both *b)
{
    end_free(&b->caller);
    end_free(&b->called);
}
static ssize_t send_piece(struct end *e, size_t at, size_t bytes)
{
    struct iovec list[4] = { { from + at, bytes / 8 }, { from + at, 0 } };
    list[2] = (struct iovec){ from + at + bytes / 8, bytes / 2 };
    list[3] = (struct iovec){ from + at + bytes / 8 + bytes / 2, bytes - bytes / 8 - bytes / 2 };
    return tls_send(e->tls, e->socket, list, 4);
}
static ssize_t receive_piece(struct end *e, size_t at, size_t bytes)
{
    struct iovec list[2] = { { to + at, bytes / 3 }, { to + at + bytes / 3, bytes - bytes / 3 } };
    return tls_receive(e->tls, e->socket, list, 2);
}
/* Sends `bytes` bytes from `a` to `b`, in pieces of at most `piece` bytes. Neither end waits. */
static void carry(struct end *a, struct end *b, size_t bytes, size_t piece)
{
    size_t sent = 0, came = 0;
    while (came < bytes) {
        ssize_t n = sent < bytes ? send_piece(a, sent, size_smaller(piece, bytes - sent)) : 0;
        assert_true(n >= 0 || errno == EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
        if (sent == bytes) assert_int_equal(tls_push(a->tls, a->socket), 0);
        n = receive_piece(b, came, size_smaller(piece, bytes - came));
        assert_true(n > 0 || (n < 0 && errno == EAGAIN));
        came += n > 0 ? (size_t)n : 0;
        assert_int_equal(tls_push(b->tls, b->socket), 0);
        assert_true(receive_piece(a, 0, 1) < 0 && errno == EAGAIN);
    }
    assert_memory_equal(from, to, bytes);
    memset(to, 0, bytes);
}
static void test_bytes_arrive_in_pieces_of_any_size(void **state)
{
    static const size_t pieces[] = { 1, 100, 16384, 16385, 300000, MANY };
    (void)state;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct both b = connected_well();
        size_t bytes = size_smaller(MANY, 1000 * pieces[i]);
        /* The end that did not connect may send first. */
        carry(&b.called, &b.caller, bytes, pieces[i]);
        carry(&b.caller, &b.called, bytes, pieces[i]);
        both_free(&b);
    }
}
/* Does the handshake. Returns 0, or the errno of the first end that fails. */
static int shake_hands(struct both *b)
{
    struct end *ends[2] = { &b->caller, &b->called };
    for (int i = 0; i < 100; i++) {
        struct end *e = ends[i % 2];
        ssize_t n = receive_piece(e, 0, 10);
        if (n == 0) return ECONNRESET;
        if (n < 0 && errno != EAGAIN) return errno;
        int error = tls_push(e->tls, e->socket);
        if (error) return -error;
    }
    return 0;
}
static void test_different_key_is_an_error(void **state)
{
    unsigned char keys[2][KEY_BYTES];
    (void)state;
    memcpy(keys[0], key, sizeof key);
    memcpy(keys[1], another, sizeof another);
    struct both b = connected(keys);
    assert_int_equal(shake_hands(&b), EPROTO);
    both_free(&b);
}
/* Forwards bytes from one socket to another, and changes the byte that *left others precede. Returns 0 if there are
   none to forward. */
static int forward_bytes(int out_of, int into, size_t *left)
{
    unsigned char bytes[4096];
    ssize_t n = recv(out_of, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n <= 0) return 0;
    if (*left < (size_t)n) bytes[*left] ^= 4;
    *left = *left < (size_t)n ? SIZE_MAX : *left - (size_t)n;
    assert_int_equal(send(into, bytes, (size_t)n, MSG_NOSIGNAL), n);
    return 1;
}
static void test_changed_byte_ends_the_connection(void **state)
{
    (void)state;
    for (size_t at = 0; at < 600; at += 37) {
        struct both b = connected_well(), way = connected_well();
        /* The caller is connected to `there` and the called end to `here`, and the test forwards between these two. */
        int there = b.called.socket, here = way.caller.socket;
        b.called.socket = way.called.socket;
        way.called.socket = there;
        size_t left = at, right = SIZE_MAX, came = 0;
        int error = 0;
        for (int i = 0; i < 400 && !error; i++) {
            send_piece(&b.caller, 0, 1000);
            ssize_t n = receive_piece(&b.called, 0, 1000);
            if (n == 0 || (n < 0 && errno != EAGAIN)) error = n ? errno : ECONNRESET;
            came += n > 0 ? (size_t)n : 0;
            tls_push(b.called.tls, b.called.socket);
            while (forward_bytes(there, here, &left) | forward_bytes(here, there, &right)) {}
        }
        assert_true(error == EPROTO || error == ECONNRESET || came == 0);
        both_free(&b);
        tls_free(way.caller.tls);
        tls_free(way.called.tls);
        close(there);
        close(here);
    }
}
/* Only tls_receive reads from the socket, because poll does not show bytes that another call has read. */
static void test_sending_does_not_read(void **state)
{
    struct both b = connected_well();
    struct pollfd readable = { .fd = b.called.socket, .events = POLLIN };
    (void)state;
    assert_int_equal(tls_push(b.caller.tls, b.caller.socket), 0);
    assert_true(receive_piece(&b.called, 0, 10) < 0 && errno == EAGAIN);
    assert_true(receive_piece(&b.caller, 0, 10) < 0 && errno == EAGAIN);
    /* These bytes follow directly behind the end of the handshake. */
    assert_int_equal(send_piece(&b.caller, 0, 100), 100);
    assert_true(!tls_is_open(b.called.tls) && tls_is_open(b.caller.tls));
    assert_true(send_piece(&b.called, 0, 100) < 0 && errno == EAGAIN);
    assert_int_equal(tls_push(b.called.tls, b.called.socket), 0);
    assert_int_equal(poll(&readable, 1, 0), 1);
    assert_int_equal(receive_piece(&b.called, 0, 200), 100);
    both_free(&b);
}
/* The other end has closed its socket. Sending to it fails, but the bytes that it sent before are received. */
static void test_last_bytes_of_a_closed_end_are_received(void **state)
{
    struct both b = connected_well();
    (void)state;
    carry(&b.caller, &b.called, 100, 100);
    assert_int_equal(send_piece(&b.caller, 0, 100), 100);
    close(b.caller.socket);
    for (int i = 0; i < 3; i++) send_piece(&b.called, 0, 100);
    assert_true(send_piece(&b.called, 0, 100) < 0 && errno == EPIPE);
    assert_int_equal(receive_piece(&b.called, 0, 200), 100);
    assert_int_equal(receive_piece(&b.called, 0, 200), 0);
    tls_free(b.caller.tls);
    end_free(&b.called);
}
static void test_shutdown_is_received_after_the_last_bytes(void **state)
{
    struct both b = connected_well();
    (void)state;
    carry(&b.caller, &b.called, 100, 100);
    assert_int_equal(send_piece(&b.caller, 0, 100), 100);
    shutdown(b.caller.socket, SHUT_WR);
    assert_int_equal(receive_piece(&b.called, 0, 200), 100);
    assert_int_equal(receive_piece(&b.called, 0, 200), 0);
    both_free(&b);
}
static void require_error(const char *asked, const char *library, tutti_status status, const char *words)
{
    setenv("TUTTI_ENCRYPTION", asked, 1);
    setenv("TUTTI_OPENSSL", library, 1);
    settings_reload();
    assert_int_equal(encryption_check(), status);
    if (words) assert_non_null(strstr(status_detail(), words));
}
/* This test has a process of its own, because a process opens the library once. */
static void test_wrong_setting_and_missing_library_are_errors(void **state)
{
    (void)state;
    require_error("require", "libssl.so.3", TUTTI_INVALID_ARGUMENT,
        "TUTTI_ENCRYPTION is \"require\": it must be required");
    require_error("required", "libno.so", TUTTI_UNSUPPORTED, "needs OpenSSL 3 (libno.so");
}
unit_function test_tls;
int test_tls(void)
{
    int count = unit_arguments.count;
    char **arguments = unit_arguments.words;
    const struct CMUnitTest without[] = { cmocka_unit_test(test_wrong_setting_and_missing_library_are_errors) };
    const struct CMUnitTest with[] = { cmocka_unit_test(test_bytes_arrive_in_pieces_of_any_size),
        cmocka_unit_test(test_different_key_is_an_error), cmocka_unit_test(test_changed_byte_ends_the_connection),
        cmocka_unit_test(test_sending_does_not_read), cmocka_unit_test(test_last_bytes_of_a_closed_end_are_received),
        cmocka_unit_test(test_shutdown_is_received_after_the_last_bytes) };
    (void)arguments;
    if (count > 1) return cmocka_run_group_tests(without, NULL, NULL);
    setenv("TUTTI_ENCRYPTION", "required", 1);
    settings_reload();
    if (encryption_check() != TUTTI_OK) {
        printf("%s\n", status_detail());
        return SKIPPED;
    }
    for (size_t i = 0; i < MANY; i++) from[i] = (unsigned char)(i * 2654435761u >> 13);
    return cmocka_run_group_tests(with, NULL, NULL);
}
