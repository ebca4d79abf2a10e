/* Fuzzes the frames of a TCP connection after its handshake, in portions of any size, while receives and sends are
   posted. The other end is a socket of this process. */
#include "backend/transports/tcp/tcp.h"
#include "backend/transports/tcp/sockets.h"
#include "tests/fuzz/rank.h"
#include <sys/socket.h>
#include <unistd.h>

static struct fabric fabric;
enum { STEPS = 40, WRITTEN_MOST = 4096 };
enum step { FRAME, FRAME_TOO, RAW, RECEIVE, SEND, POLL, CANCEL, READ, STEP_COUNT };

static void hand_over(int socket, const void *bytes, size_t count)
{
    ssize_t ignored = send(socket, bytes, count, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)ignored;
}
/* Sends a frame that is nearly valid. Its ids are small numbers, as those of the tested rank are. */
static void send_frame(struct fuzz_rank *r, int socket, struct input *in)
{
    unsigned char bytes_sent[sizeof(struct tcp_frame) + sizeof(struct header) + 256];
    struct header header = rank_header(r, in);
    struct tcp_frame frame = { .kind = input_byte(in) % 8, .id = header.id, .extent = header.bytes };
    size_t bytes = sizeof frame, behind = header.bytes < 256 ? (size_t)header.bytes : 255;
    header.from = input_byte(in) == 255 ? header.from : 1;
    if (frame.kind > GOODBYE) frame.kind = header.id ? OFFER : EAGER;
    if (frame.kind == EAGER) frame.bytes = behind;
    if (frame.kind == DATA)
        frame = (struct tcp_frame){ DATA, behind, 1 + input_byte(in) % 4, input_byte(in) % 2 * behind };
    if (input_byte(in) == 255) frame.bytes = input_number(in);
    memcpy(bytes_sent, &frame, sizeof frame);
    memcpy(bytes_sent + bytes, &header, sizeof header);
    if (frame.kind <= OFFER) bytes += sizeof header;
    if (frame.kind == EAGER || frame.kind == DATA) {
        memset(bytes_sent + bytes, 7, behind);
        bytes += behind;
    }
    hand_over(socket, bytes_sent, bytes);
}
static void send_bytes(int socket, struct input *in)
{
    unsigned char bytes[256];
    hand_over(socket, bytes, input_take(in, bytes, input_byte(in)));
}
static void take_step(struct fuzz_rank *r, int socket, struct input *in)
{
    static unsigned char unread[WRITTEN_MOST];
    switch ((enum step)(input_byte(in) % STEP_COUNT)) {
    case FRAME:
    case FRAME_TOO: send_frame(r, socket, in); break;
    case RAW: send_bytes(socket, in); break;
    case RECEIVE: rank_post(r, in, false); break;
    case SEND: rank_post(r, in, true); break;
    case POLL: router_poll(r->router); break;
    case CANCEL: rank_cancel(r, in); break;
    case READ: (void)!recv(socket, unread, sizeof unread, MSG_DONTWAIT); break;
    case STEP_COUNT: break;
    }
}
/* The fabric starts once; connections are new for each input. */
int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    (void)count;
    (void)arguments;
    fabric = (struct fabric)FABRIC(&tcp_operations);
    FUZZ_CHECK(tcp_operations.start(&fabric, &(struct fabric_environment){ .simulated = true }) == TUTTI_OK);
    return 0;
}
static void forget(void)
{
    struct sockets *s = tcp_sockets_of(&fabric);
    for (struct saved_msg *msg; (msg = early_msgs_pop(&fabric)) != NULL;) saved_msg_free(&fabric, msg);
    tcp_endpoints_free(&fabric);
    fabric_ops_free_all(&fabric);
    fabric.recently_closed.count = 0;
    s->last_id = s->unasked_polls = 0;
    s->busy_endpoints = NULL;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct fuzz_rank rank;
    int both[2];
    rank_init(&rank, &fabric);
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both) == 0);
    tcp_endpoint_open(&fabric, tcp_endpoint_new(&fabric, fuzz_process[1]), both[0], NULL, false);
    for (int i = 0; i < STEPS && in.left; i++) take_step(&rank, both[1], &in);
    router_poll(rank.router);
    close(both[1]);
    router_poll(rank.router);
    rank_finish(&rank);
    forget();
    return 0;
}
