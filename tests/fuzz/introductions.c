/* Fuzzes a group that is formed by a unique id. As rank 0, this process is called by processes that know the id; as
   another rank, it calls rank 0. The input decides when sockets are ready, which messages arrive, and which of their
   bytes are changed. */
#include "backend/host/socket.h"
#include "backend/join/bootstrap.h"
#include "backend/join/join_result.h"
#include "backend/processes/handshake.h"
#include "tests/fuzz/pipes.h"
#include "tests/fuzz/simulated_clock.h"
#include <poll.h>

enum { SIZE = 4, TIMEOUT_MS = 50, LISTENER = FIRST_PIPE - 2 };
enum answer { NOTHING, INTRODUCTION, REPLY, RECORDS, BYTES, END, FAILURE, ANSWERS };

static const char magic[8] = "tutti-i";
static const tutti_unique_id id;
static struct input in;
static struct member mine;
/* This process is rank 0. */
static bool leads;
/* The first NONCE_BYTES are the nonce of rank 0's socket. */
static unsigned char socket_name[SHA256_BYTES];
static struct key_id key;
/* The handshake at the other end of each pipe. */
static struct handshake others[PIPES];

/* ---- the other end, which makes its part of the handshake; bytes may be changed on the way ---- */
static void continue_as_caller(int socket)
{
    struct handshake *h = &others[socket - FIRST_PIPE];
    if (!h->has_sent_hello && handshake_receive_opening(h, socket) > 0)
        handshake_send_hello(h, &mine.identity, socket_name, &key, 0, socket);
    if (input_byte(&in) == 255) pipe_change(pipe_other(socket), &in);
}
static void continue_as_rank_0(int socket)
{
    struct handshake *h = &others[socket - FIRST_PIPE];
    if (handshake_receive_hello(h, socket_name, socket) > 0) handshake_send_answer(h, HANDSHAKE_WELCOME, 0, socket);
    if (input_byte(&in) == 255) pipe_change(pipe_other(socket), &in);
}

/* ---- in place of backend/host/socket.c ---- */
int socket_listen(const char *purpose, const unsigned char nonce[NONCE_BYTES])
{
    FUZZ_CHECK(purpose && memcmp(nonce, socket_name, NONCE_BYTES) == 0);
    return LISTENER;
}
int socket_connect(const char *purpose, const unsigned char nonce[NONCE_BYTES])
{
    FUZZ_CHECK(purpose && memcmp(nonce, socket_name, NONCE_BYTES) == 0);
    int socket = pipe_make();
    handshake_send_opening(&others[pipe_other(socket) - FIRST_PIPE], magic, pipe_other(socket));
    return socket;
}
int socket_accept(int listener)
{
    int socket = input_byte(&in) % 8 && listener == LISTENER ? pipe_make() : -1;
    if (socket < 0) return -EAGAIN;
    handshake_begin(&others[pipe_other(socket) - FIRST_PIPE], magic);
    return socket;
}
int64_t socket_peer_process(int socket) { return socket; }
int socket_send(int socket, const void *message, size_t bytes, int descriptor)
{
    (void)socket;
    (void)descriptor;
    FUZZ_CHECK(message && bytes);
    simulated_ns += 1000;
    return !in.left || input_byte(&in) % 8 ? 0 : -EAGAIN;
}
/* Copies a message with up to three changed bytes. Returns its size, or a negative errno if there is no room. */
static int give(const void *from, size_t bytes, void *message, size_t room)
{
    if (bytes > room) return -EMSGSIZE;
    memcpy(message, from, bytes);
    for (int changes = input_byte(&in) % 4; changes > 0; changes--) {
        size_t at = ((size_t)input_byte(&in) << 8 | input_byte(&in)) % bytes;
        ((unsigned char *)message)[at] = input_byte(&in);
    }
    return (int)bytes;
}
static int give_introduction(void *message, size_t room)
{
    struct {
        char magic[8];
        int32_t rank;
        uint32_t unused;
        struct member member;
    } introduction = { .magic = "tutti-i" };
    introduction.rank = (int8_t)input_byte(&in);
    introduction.member = mine;
    return give(&introduction, sizeof introduction, message, room);
}
static int give_records(void *message, size_t room)
{
    struct member records[SIZE] = { mine, mine, mine, mine };
    return give(records, sizeof records, message, room);
}
int socket_receive(int socket, void *message, size_t bytes, int *descriptor)
{
    struct join_result result;
    (void)socket;
    if (descriptor) *descriptor = -1;
    if (!in.left) return 0;
    join_result_decide(&result, TUTTI_OK, SIZE);
    switch ((enum answer)(input_byte(&in) % ANSWERS)) {
    case INTRODUCTION: return give_introduction(message, bytes);
    case REPLY: return give(&result, sizeof result, message, bytes);
    case RECORDS: return give_records(message, bytes);
    case BYTES: return (int)input_take(&in, message, bytes);
    case END: return 0;
    case FAILURE: return -ECONNRESET;
    default: return -EAGAIN;
    }
}
int poll(struct pollfd *polls, nfds_t count, int timeout_ms)
{
    bool ready = input_byte(&in) % 8;
    simulated_ns += ready ? 1000000 : 1000000 * (1 + (int64_t)timeout_ms);
    for (nfds_t i = 0; i < count; i++) {
        int other = pipe_other(polls[i].fd);
        polls[i].revents = ready ? polls[i].events : 0;
        if (polls[i].fd == LISTENER) continue;
        if (leads) continue_as_caller(other);
        else continue_as_rank_0(other);
    }
    return ready ? (int)count : 0;
}

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    unsigned char drawn[KEY_BYTES];
    (void)count;
    (void)arguments;
    unique_id_derive(&id, socket_name, drawn);
    FUZZ_CHECK(group_key_add(drawn, &key) == TUTTI_OK);
    return 0;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct shared_table *table = NULL;
    struct key_id found;
    in = (struct input){ data, size };
    pipes_reset();
    mine = (struct member){ .size = SIZE, .build = 1, .timeout_ms = TIMEOUT_MS, .group = "group" };
    mine.identity.pid = 1;
    leads = input_byte(&in) % 2;
    if (bootstrap_id(&id, !leads, &mine, clock_deadline(TIMEOUT_MS), &table, &found) == TUTTI_OK)
        FUZZ_CHECK(((const struct member *)shared_table_data(table))[!leads].build == mine.build);
    shared_table_leave(table);
    return 0;
}
