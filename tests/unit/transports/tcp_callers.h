/* Two TCP fabrics, and connections to the first one whose bytes a test writes itself. One test file includes this
   header. */
#pragma once
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/transports/tcp/sockets.h"
#include "backend/transports/tcp/tcp.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"
#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>

enum { BYTES = 100000 };
static struct fabric ours = FABRIC(&tcp_operations), other = FABRIC(&tcp_operations);
static struct tcp_address address, address_of_other;
static struct key_id key;

static void fabric_run(struct fabric *fabric, unsigned char nonce, struct tcp_address *out)
{
    const struct fabric_environment place = { .simulated = true };
    unsigned char process[16] = { nonce }, bytes[FABRIC_ADDRESS_BYTES];
    size_t count;
    assert_int_equal(fabric_open(fabric, process, &place, bytes, &count), TUTTI_OK);
    assert_int_equal(count, sizeof *out);
    memcpy(out, bytes, sizeof *out);
}
static int set_up(void **state)
{
    static const unsigned char drawn[KEY_BYTES] = "the key of a group";
    (void)state;
    assert_int_equal(group_key_add(drawn, &key), TUTTI_OK);
    fabric_run(&ours, 1, &address);
    fabric_run(&other, 2, &address_of_other);
    return 0;
}
static int tear_down(void **state)
{
    (void)state;
    fabric_close(&ours);
    fabric_close(&other);
    return 0;
}

/* ---- connections by hand ---- */
static int connect_by_hand(void)
{
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_port = htons(address.port) };
    const struct timeval timeout = { .tv_sec = RANKS_SECONDS };
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(&name.sin_addr, address.address, 4);
    assert_int_equal(connect(s, (struct sockaddr *)&name, sizeof name), 0);
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    return s;
}
static void send_all(int s, const void *data, size_t bytes)
{
    assert_int_equal(send(s, data, bytes, MSG_NOSIGNAL), bytes);
}
static void receive_all(int s, void *into, size_t bytes) { assert_int_equal(recv(s, into, bytes, MSG_WAITALL), bytes); }
/* Receives the opening of the fabric, and prepares a valid hello without sending it. */
static struct handshake handshake_prepare(int s, unsigned char nonce, uint64_t number)
{
    struct handshake h;
    const struct identity from = { .nonce = { nonce, 7 } };
    handshake_begin(&h, "tutti-t");
    receive_all(s, &h.opening, sizeof h.opening);
    assert_int_equal(handshake_send_hello(&h, &from, (unsigned char[16]){ 1 }, &key, number, -1), -EBADF);
    return h;
}
/* Checks that the fabric closes the connection without sending a byte, and closes the socket. */
static void assert_closed(int s)
{
    char byte;
    ssize_t n = recv(s, &byte, 1, 0);
    assert_true(n == 0 || (n < 0 && errno == ECONNRESET));
    close(s);
}
static void await_welcome(int s, struct handshake *h)
{
    int got;
    while ((got = handshake_receive_answer(h, s)) == 0) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
    assert_int_equal(got, 1);
}
/* Connects as the process with this nonce, in its connection attempt `number`. Returns the socket. */
static int call_numbered(unsigned char nonce, uint64_t number)
{
    int s = connect_by_hand();
    struct handshake h = handshake_prepare(s, nonce, number);
    send_all(s, &h.hello, sizeof h.hello);
    await_welcome(s, &h);
    return s;
}
static int call_well(unsigned char nonce) { return call_numbered(nonce, 1); }
/* Returns a copy of the latest endpoint to that process, even if it is broken. */
static struct endpoint endpoint_seen(struct fabric *fabric, const unsigned char process[16])
{
    pthread_mutex_lock(&fabric->lock);
    const struct endpoint *e = fabric->endpoints;
    while (e && memcmp(e->process, process, 16) != 0) e = e->next;
    struct endpoint found = e ? *e : (struct endpoint){ .is_open = false };
    pthread_mutex_unlock(&fabric->lock);
    return found;
}
