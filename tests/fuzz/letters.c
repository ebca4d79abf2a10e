/* Fuzzes control messages of other processes: for channels that are open, closed or not made yet, and for processes of
   other hosts to which they are passed on. */
#include "backend/control/channel.h"
#include "backend/host/socket.h"
#include "backend/processes/local_peer.h"
#include "backend/processes/registry.h"
#include "tests/fuzz/input.h"
#include <errno.h>
#include <stddef.h>

enum { RANKS = 6, CHANNELS = 3, STEPS = 48 };
enum step { RECEIVE, DELIVER, SEND, SEND_FINAL, OPEN_ONE, CLOSE_ONE, LOSE, STEP_COUNT };

static struct peer peers[RANKS];
static struct peer *table[RANKS];
static struct channel *channels[CHANNELS];
static int calls;

/* ---- in place of backend/host/socket.c: a message is sent whole, or fails because the socket is full ---- */
static bool full;
int socket_listen(const char *purpose, const unsigned char nonce[NONCE_BYTES]) { return purpose && nonce ? -1 : -2; }
int socket_connect(const char *purpose, const unsigned char nonce[NONCE_BYTES])
{
    return socket_listen(purpose, nonce);
}
int socket_accept(int listener) { return listener; }
int64_t socket_peer_process(int socket) { return socket; }
int socket_receive(int socket, void *message, size_t bytes, int *descriptor)
{
    (void)descriptor;
    return message && bytes ? socket : -1;
}
int socket_send(int socket, const void *message, size_t bytes, int descriptor)
{
    const struct packet_and_ctrl_msg *m = message;
    (void)socket;
    FUZZ_CHECK(descriptor == -1 && bytes >= sizeof m->packet);
    if (m->packet.kind == CTRL_MSG)
        FUZZ_CHECK(bytes == offsetof(struct packet_and_ctrl_msg, msg.bytes) + m->msg.length);
    return full ? -EAGAIN : 0;
}

static void message_count_received(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    (void)context;
    (void)from;
    FUZZ_CHECK(bytes && length <= CHANNEL_BYTES && type < CHANNEL_TYPES);
    calls++;
}
static void tick(void *context) { (void)context; }
static void open_channel(int which, bool routed)
{
    static const int host_of[RANKS] = { 0, 0, 1, 2, 3, 4 };
    static const struct channel_user user = { message_count_received, tick, NULL };
    static const struct route_map map = { RANKS, 5, 0, host_of };
    unsigned char token[16] = { (unsigned char)which };
    if (!channels[which]) channel_open(token, 0, table, RANKS, routed ? &map : NULL, &user, &channels[which]);
}
static void close_channel(int which)
{
    channel_close(channels[which]);
    channels[which] = NULL;
}
static void take_ctrl_msg(struct input *in)
{
    struct packet_and_ctrl_msg m = { .packet = packet_make_from_us(registry.self.nonce, CTRL_MSG) };
    m.msg.to.token[0] = input_byte(in) % (CHANNELS + 1);
    m.msg.to.rank = (int8_t)input_byte(in);
    m.msg.from = (int8_t)input_byte(in);
    m.msg.type = input_byte(in);
    m.msg.hops = input_byte(in);
    m.msg.flags = input_byte(in);
    m.msg.length = input_byte(in) << 3 | input_byte(in);
    input_take(in, m.msg.bytes, m.msg.length < 64 ? m.msg.length : 64);
    int bytes = (int)(offsetof(struct packet_and_ctrl_msg, msg.bytes) + m.msg.length - (input_byte(in) == 255));
    if (!ctrl_msg_is_for_us(bytes, &m)) return;
    pthread_mutex_lock(&registry.lock);
    peer_receive_ctrl_msg(&peers[1 + input_byte(in) % (RANKS - 1)], &m.msg);
    pthread_mutex_unlock(&registry.lock);
}
static void take_step(struct input *in)
{
    enum step step = input_byte(in) % STEP_COUNT;
    uint8_t which = input_byte(in);
    struct channel *channel = channels[which % CHANNELS];
    static const unsigned char bytes[CHANNEL_BYTES];
    full = which >= 200;
    switch (step) {
    case RECEIVE: take_ctrl_msg(in); break;
    case DELIVER:
        pthread_mutex_lock(&registry.lock);
        channels_deliver();
        pthread_mutex_unlock(&registry.lock);
        break;
    case SEND:
        if (channel) channel_send(channel, which % RANKS, which % CHANNEL_TYPES, bytes, which);
        break;
    case SEND_FINAL:
        if (channel) channel_send_final(channel, which % RANKS, which % CHANNEL_TYPES, bytes, which);
        break;
    case OPEN_ONE: open_channel(which % CHANNELS, which % 2); break;
    case CLOSE_ONE: close_channel(which % CHANNELS); break;
    case LOSE: peers[1 + which % (RANKS - 1)].state = which % 2 ? LOST : OPEN; break;
    case STEP_COUNT: break;
    }
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    for (int r = 1; r < RANKS; r++) {
        peers[r] = (struct peer){ .ops = &local_peer_ops, .state = OPEN, .descriptor = -1, .users = 1 };
        peers[r].identity.nonce[0] = (unsigned char)r;
        FUZZ_CHECK(registry_insert_peer(&peers[r]));
        table[r] = &peers[r];
    }
    for (int i = 0; i < STEPS && in.left; i++) take_step(&in);
    for (int c = 0; c < CHANNELS; c++) close_channel(c);
    pthread_mutex_lock(&registry.lock);
    channels_deliver();
    channels_free_all();
    pthread_mutex_unlock(&registry.lock);
    for (int r = 1; r < RANKS; r++) {
        registry_remove_peer(&peers[r]);
        ctrl_queue_free(&peers[r].unsent);
    }
    return 0;
}
