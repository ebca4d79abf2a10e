/* Fuzzes new TCP connections: processes that call this one, some with the key and some that send any bytes, and
   processes that this one calls. Each other end is a socket of this process; one with the key runs our own
   handshake. */
#include "backend/transports/tcp/sockets.h"
#include "backend/transports/tcp/tcp.h"
#include "tests/fuzz/rank.h"
#include "tests/fuzz/simulated_clock.h"
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum { STEPS = 40, OTHERS = 16 };
enum step { CALLED_BY, GOES_ON, GOES_ON_TOO, SENDS_BYTES, HANGS_UP, POST_SEND, POLL, TIME_PASSES, STEP_COUNT };
struct other { int socket, process; bool calls, is_over; uint64_t number; struct handshake handshake; };

static const char magic[8] = "tutti-t";
static struct input in;
static struct fabric fabric;
static struct other others[OTHERS];
static int other_count, listener;
/* The sockets of callers that are not accepted yet. */
static int waiting[OTHERS], waiting_count;
static struct key_id key;

static struct other *other_add(bool calls, int process, int *ours)
{
    int both[2];
    if (other_count == OTHERS || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both) != 0)
        return NULL;
    others[other_count] = (struct other){ .socket = both[1], .process = process, .calls = calls };
    *ours = both[0];
    return &others[other_count++];
}
/* ---- in place of address.c ---- */
tutti_status tcp_address_listen(struct sockets *s, const struct fabric_environment *place)
{
    s->listener.descriptor = listener = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->address.family = AF_INET;
    return place->simulated && listener >= 0 ? TUTTI_OK : TUTTI_SYSTEM;
}
int tcp_address_connect(const struct sockets *s, const struct tcp_address *address)
{
    int ours;
    struct other *o = s && address ? other_add(false, 1 + input_byte(&in) % (RANKS - 1), &ours) : NULL;
    if (!o || input_byte(&in) == 255) return -ECONNREFUSED;
    handshake_send_opening(&o->handshake, magic, o->socket);
    return ours;
}
int tcp_socket_accept(int from)
{
    uint64_t ignored;
    if (!waiting_count && read(from, &ignored, sizeof ignored) < 0) return -EAGAIN;
    return waiting_count ? waiting[--waiting_count] : -EAGAIN;
}
void tcp_socket_print_peer(int descriptor, char *out, size_t bytes)
{
    if (descriptor >= 0) strncpy(out, "an address", bytes);
}
int tcp_socket_error(int descriptor) { return descriptor < 0 ? EBADF : 0; }

/* ---- the other ends ---- */
static void call(void)
{
    uint64_t one = 1;
    int ours;
    struct other *o = waiting_count < OTHERS ? other_add(true, 1 + input_byte(&in) % (PROCESSES - 1), &ours) : NULL;
    if (!o) return;
    o->number = input_byte(&in) % 8;
    handshake_begin(&o->handshake, magic);
    waiting[waiting_count++] = ours;
    (void)!write(listener, &one, sizeof one);
}
static void go_on_as_caller(struct other *o)
{
    struct identity self = { .pid = 1 };
    memcpy(self.nonce, fuzz_process[o->process], sizeof self.nonce);
    if (o->handshake.has_sent_hello) o->is_over = handshake_receive_answer(&o->handshake, o->socket) != 0;
    else if (handshake_receive_opening(&o->handshake, o->socket) > 0)
        handshake_send_hello(&o->handshake, &self, fuzz_process[0], &key, o->number, o->socket);
}
static void go_on_as_called(struct other *o)
{
    static const enum handshake_kind kinds[] = { HANDSHAKE_WELCOME, HANDSHAKE_WELCOME, HANDSHAKE_REFUSED,
        HANDSHAKE_SUPERFLUOUS };
    if (handshake_receive_hello(&o->handshake, fuzz_process[o->process], o->socket) <= 0) return;
    handshake_send_answer(&o->handshake, kinds[input_byte(&in) % 4], input_byte(&in) % 8, o->socket);
    o->is_over = true;
}
static void go_on(struct other *o)
{
    if (o->socket < 0 || o->is_over) return;
    if (o->calls) go_on_as_caller(o);
    else go_on_as_called(o);
}
static void send_bytes(const struct other *o)
{
    unsigned char bytes[256];
    size_t count = input_take(&in, bytes, input_byte(&in));
    if (o->socket >= 0 && count) (void)!send(o->socket, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
}
static void hang_up(struct other *o)
{
    if (o->socket >= 0) close(o->socket);
    o->socket = -1;
}

/* ---- what happens ---- */
static void take_step(struct fuzz_rank *r)
{
    struct other *o = other_count ? &others[input_byte(&in) % other_count] : NULL;
    switch ((enum step)(input_byte(&in) % STEP_COUNT)) {
    case CALLED_BY: call(); break;
    case GOES_ON:
    case GOES_ON_TOO:
        if (o) go_on(o);
        break;
    case SENDS_BYTES:
        if (o) send_bytes(o);
        break;
    case HANGS_UP:
        if (o) hang_up(o);
        break;
    case POST_SEND: rank_post(r, &in, true); break;
    case POLL: router_poll(r->router); break;
    case TIME_PASSES: simulated_ns += (int64_t)input_byte(&in) << 25; break;
    case STEP_COUNT: break;
    }
    router_poll(r->router);
}
/* Checks that each endpoint is of a process that knows the key. */
static void check(void)
{
    for (struct endpoint *e = fabric.endpoints; e; e = e->next) {
        bool known = false;
        for (int k = 1; k < PROCESSES; k++) known |= memcmp(e->process, fuzz_process[k], sizeof e->process) == 0;
        FUZZ_CHECK(known);
    }
}
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    static const unsigned char bytes[KEY_BYTES] = "the key of the group";
    (void)count;
    (void)arguments;
    FUZZ_CHECK(group_key_add(bytes, &key) == TUTTI_OK);
    fabric = (struct fabric)FABRIC(&tcp_operations);
    FUZZ_CHECK(tcp_operations.start(&fabric, &(struct fabric_environment){ .simulated = true }) == TUTTI_OK);
    return 0;
}
static void forget(void)
{
    struct sockets *s = tcp_sockets_of(&fabric);
    uint64_t ignored;
    for (struct saved_msg *msg; (msg = early_msgs_pop(&fabric)) != NULL;) saved_msg_free(&fabric, msg);
    tcp_endpoints_free(&fabric);
    pending_connections_close(&fabric);
    fabric_ops_free_all(&fabric);
    while (waiting_count) close(waiting[--waiting_count]);
    for (int i = 0; i < other_count; i++) hang_up(&others[i]);
    other_count = 0;
    fabric.recently_closed.count = 0;
    fabric.needs_poll = false;
    s->last_id = s->unasked_polls = 0;
    s->attempts = 0;
    s->accept_failed_ms = 0;
    s->busy_endpoints = NULL;
    (void)!read(listener, &ignored, sizeof ignored);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_rank rank;
    in = (struct input){ data, size };
    rank_init(&rank, &fabric);
    ((struct fabric_transport *)rank.router->first_network)->callbacks.key = key;
    for (int i = 0; i < STEPS && in.left; i++) take_step(&rank);
    check();
    rank_finish(&rank);
    forget();
    return 0;
}
