/* Fuzzes the links of a process. Other processes call it and are called by it; some know the key, and some send any
   bytes. Over open links come frames that are nearly valid. This program does what the watch thread does in a job. */
#include "backend/control/channel.h"
#include "backend/links/link.h"
#include "backend/links/tcp.h"
#include "tests/fuzz/pipes.h"
#include "tests/fuzz/simulated_clock.h"
#include <stddef.h>
#include <sys/epoll.h>

enum { STEPS = 48, PROCESSES = 5, OTHERS = PIPES / 2, HELD = 4, LISTENER = FIRST_PIPE - 2 };
enum step {
    CALLED_BY,
    GOES_ON,
    GOES_ON_TOO,
    SENDS_FRAME,
    SENDS_FRAME_TOO,
    SENDS_BYTES,
    CHANGED,
    HANGS_UP,
    HOLD,
    LET_GO,
    WANT_ADDRESS,
    TIME_PASSES,
    STEP_COUNT
};
struct other {
    int socket;
    unsigned char process;
    bool calls, is_over;
    struct handshake handshake;
    struct frame_stream stream;
};

static struct input in;
static struct other others[OTHERS];
static struct peer *held[HELD];
static struct key_id key;
static int other_count;
/* The socket of a caller that is not accepted yet, or -1. */
static int waiting;

static struct other *other_add(bool calls, int socket)
{
    struct other *o = &others[other_count++];
    *o = (struct other){ .socket = pipe_other(socket), .process = (unsigned char)(1 + input_byte(&in) % PROCESSES) };
    o->calls = calls;
    return o;
}
/* ---- in place of tcp.c, and of epoll ---- */
static struct sock_address address(int socket)
{
    return (struct sock_address){ .family = 2, .port = 1, .address = { 10, 0, 0, (unsigned char)socket } };
}
int tcp_listen(const struct sock_address *at) { return at->family ? LISTENER : -EINVAL; }
int tcp_start_connect(const struct sock_address *at, const struct sock_address *near)
{
    int socket = at && near && input_byte(&in) < 250 ? pipe_make() : -1;
    if (socket < 0) return -ECONNREFUSED;
    handshake_send_opening(&other_add(false, socket)->handshake, handshake_of_links, pipe_other(socket));
    return socket;
}
int tcp_accept(int from)
{
    int socket = from == LISTENER ? waiting : -1;
    waiting = -1;
    return socket < 0 ? -EAGAIN : socket;
}
int tcp_take_error(int socket) { return socket < 0 ? -EBADF : 0; }
struct sock_address tcp_local_address(int socket) { return address(socket); }
struct sock_address tcp_remote_address(int socket) { return address(socket % 2); }
double tcp_one_way_ns(int socket) { return socket; }
void tcp_drain(int socket) { pipe_at(socket)->count = 0; }
int epoll_ctl(int poller, int how, int socket, struct epoll_event *event)
{
    (void)poller;
    return how && (event || how == EPOLL_CTL_DEL) && socket >= LISTENER ? 0 : -1;
}

/* ---- the other ends ---- */
static void call(void)
{
    int socket = waiting < 0 ? pipe_make() : -1;
    if (socket < 0) return;
    struct other *o = other_add(true, socket);
    handshake_begin(&o->handshake, handshake_of_links);
    handshake_send_version(&o->handshake, o->socket);
    waiting = socket;
    pthread_mutex_lock(&registry.lock);
    incoming_links_on_ready(LISTENER);
    pthread_mutex_unlock(&registry.lock);
}
static void go_on_as_caller(struct other *o)
{
    const struct identity self = { { o->process }, 1, "another host" };
    struct handshake *h = &o->handshake;
    if (!h->has_sent_hello && handshake_receive_opening(h, o->socket) > 0)
        handshake_send_hello(h, &self, registry.self.nonce, &key, 0, o->socket);
    else if (h->has_sent_hello && handshake_receive_answer(h, o->socket) > 0) {
        handshake_send_confirm(h, o->socket);
        o->is_over = true;
    }
}
static void go_on_as_called(struct other *o)
{
    static const enum handshake_kind kinds[] = { HANDSHAKE_WELCOME, HANDSHAKE_WELCOME, HANDSHAKE_REFUSED,
        HANDSHAKE_SUPERFLUOUS };
    const unsigned char process[16] = { o->process };
    enum handshake_kind kind = kinds[input_byte(&in) % 4];
    if (handshake_receive_hello(&o->handshake, process, o->socket) <= 0) return;
    handshake_send_answer(&o->handshake, kind, 0, o->socket);
    o->is_over = true;
}
static void go_on(struct other *o)
{
    /* The other end reads all bytes. */
    if (o->is_over) pipe_at(o->socket)->count = 0;
    else if (o->calls) go_on_as_caller(o);
    else go_on_as_called(o);
}
static void send_frame(struct other *o)
{
    union link_message m = { .packet = packet_make_from_us(registry.self.nonce, 1 + input_byte(&in) % 10) };
    size_t bytes = sizeof m.packet;
    m.packet.token[0] = input_byte(&in) % 4;
    m.packet.from = (struct identity){ { o->process }, 1, "another host" };
    if (m.packet.kind == CTRL_MSG) {
        m.entry.msg = (struct ctrl_msg){ .to.rank = (int8_t)input_byte(&in), .from = (int8_t)input_byte(&in) };
        m.entry.msg.to.token[0] = input_byte(&in) % 4;
        m.entry.msg.length = input_byte(&in);
        bytes = offsetof(struct packet_and_ctrl_msg, msg.bytes) + m.entry.msg.length;
    } else if (m.packet.kind == ADDRESS) bytes += input_byte(&in);
    for (int changes = input_byte(&in) % 4 / 3; changes > 0; changes--)
        ((unsigned char *)&m)[input_byte(&in) % bytes] = input_byte(&in);
    frame_stream_put(&o->stream, &m, bytes, STREAM_WINDOW);
    if (input_byte(&in) % 4 == 0) o->stream.got += input_byte(&in);
    frame_stream_push(&o->stream, o->socket);
    o->stream.taken = o->stream.put;
}

/* ---- this process ---- */
static void hold(int slot)
{
    const struct identity other = { { (unsigned char)(1 + input_byte(&in) % PROCESSES) }, 1, "another host" };
    const struct sock_address at = address(input_byte(&in));
    if (!held[slot] && link_acquire(&other, &key, &at, &held[slot]) == TUTTI_OK && input_byte(&in) % 2) {
        pthread_mutex_lock(&registry.lock);
        link_request_connect(held[slot]);
        pthread_mutex_unlock(&registry.lock);
    }
}
static void let_go(int slot)
{
    peer_release(held[slot]);
    held[slot] = NULL;
}
static void want_address(int slot)
{
    static unsigned char process_address[PROCESS_ADDRESS_BYTES];
    size_t bytes = 0;
    if (held[slot] && link_get_process_address(held[slot], process_address, &bytes) == TUTTI_OK)
        FUZZ_CHECK(bytes <= sizeof process_address);
    if (!held[slot]) links_publish_address(process_address, input_byte(&in));
}
static void turn(void)
{
    pthread_mutex_lock(&registry.lock);
    for (int socket = FIRST_PIPE; socket < FIRST_PIPE + pipes_made; socket += 2) {
        struct peer *p = registry.peers;
        while (p && p->descriptor != socket) p = p->next;
        if (p) link_on_ready(p);
        else incoming_links_on_ready(socket);
    }
    links_tick();
    channels_deliver();
    pthread_mutex_unlock(&registry.lock);
}
static void take_step(void)
{
    struct other *o = other_count ? &others[input_byte(&in) % other_count] : NULL;
    int slot = input_byte(&in) % HELD;
    switch ((enum step)(input_byte(&in) % STEP_COUNT)) {
    case CALLED_BY: call(); break;
    case GOES_ON:
    case GOES_ON_TOO:
        if (o) go_on(o);
        break;
    case SENDS_FRAME:
    case SENDS_FRAME_TOO:
        if (o && o->is_over) send_frame(o);
        break;
    case SENDS_BYTES:
        if (o) pipe_insert(pipe_other(o->socket), &in);
        break;
    case CHANGED:
        if (o) pipe_change(pipe_other(o->socket), &in);
        break;
    case HANGS_UP:
        if (o) pipe_at(pipe_other(o->socket))->ended = true;
        break;
    case HOLD: hold(slot); break;
    case LET_GO: let_go(slot); break;
    case WANT_ADDRESS: want_address(slot); break;
    case TIME_PASSES: simulated_ns += (int64_t)input_byte(&in) << 26; break;
    case STEP_COUNT: break;
    }
    turn();
}
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    static const unsigned char bytes[KEY_BYTES] = "the key of the group";
    (void)count;
    (void)arguments;
    return group_key_add(bytes, &key) != TUTTI_OK;
}
/* Checks that each open peer has sent its part of the handshake. */
static void check(void)
{
    for (const struct peer *p = registry.peers; p; p = p->next) {
        bool proved = false;
        for (int i = 0; i < other_count; i++)
            proved |=
                p->identity.nonce[0] == others[i].process && (others[i].is_over || others[i].handshake.has_sent_hello);
        FUZZ_CHECK(p->state != OPEN || proved);
    }
}
static void forget(void)
{
    for (int slot = 0; slot < HELD; slot++) let_go(slot);
    pthread_mutex_lock(&registry.lock);
    for (struct peer *p, *next = registry.peers; (p = next) != NULL;) {
        next = p->next;
        peer_end(p, LOST);
    }
    links_close();
    channels_free_all();
    memset(registry.join_aborts, 0, sizeof registry.join_aborts);
    registry.join_abort_count = 0;
    pthread_mutex_unlock(&registry.lock);
    FUZZ_CHECK(!registry.peers);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct sock_address here = address(0);
    in = (struct input){ data, size };
    pipes_reset();
    other_count = 0;
    waiting = -1;
    registry.users = 1;
    registry.self = (struct identity){ { 3 }, 1, "this host" };
    FUZZ_CHECK(links_listen(&here, &here) == TUTTI_OK);
    for (int i = 0; i < STEPS && in.left; i++) take_step();
    check();
    forget();
    return 0;
}
