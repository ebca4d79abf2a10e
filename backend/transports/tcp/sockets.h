/* The sockets of this process: one that listens, one for each process that it is connected to, and those of callers
 * that have not proved their identity yet. Callers of these functions hold the lock of the fabric.
 *
 * After the handshake a connection carries frames. EAGER is a message with its bytes, OFFER announces a message. The
 * receiver of an OFFER sends PULL when its receive is posted, or RELEASE if the message will not be received. DATA
 * carries the bytes in parts, from tensor to tensor. A frame is finished before the next one begins, and small frames
 * go before the next part. */
#pragma once
#include "backend/links/tls.h"
#include "backend/processes/handshake.h"
#include "backend/transports/fabric/fabric_transport.h"
#include <sys/epoll.h>

enum {
    /* How many callers may be connected that have not proved their identity, and how long each may take. */
    PENDING_MOST = 128,
    PENDING_MS = 5000,
    /* The time after which an unanswered call fails. */
    CONNECT_MS = 30000,
    /* The delay before a call is repeated that was closed unanswered, because strangers may have taken all places of
       the called process. Then the limit of such repetitions. */
    RECONNECT_MS = 50,
    RECONNECTS_MOST = 100,
    /* The size of one read of small frames, and the part of a read that follows bytes read straight to their place. */
    BUFFER_BYTES = 128 << 10,
    AHEAD_BYTES = 4 << 10,
    /* The largest DATA frame. */
    PART_BYTES = 2 << 20,
    /* The bytes that one connection may read or write per turn. */
    READ_BYTES = 512 << 10,
    WRITE_BYTES = 512 << 10,
    /* The unsent bytes that the kernel may hold. More of them would only delay small frames. */
    NOT_SENT_BYTES = 128 << 10,
    /* Up to this many connections are read without asking epoll. */
    UNASKED = 2,
    /* The number of such polls after which epoll is asked about all sockets. */
    ASK_EVERY = 32
};
/* The address at which others reach a process. */
struct tcp_address {
    uint16_t family, port;
    uint8_t address[16];
};
enum tcp_what { EAGER, OFFER, PULL, RELEASE, DATA, GOODBYE };
/* The beginning of a frame. The header follows in EAGER and OFFER, then `bytes` bytes in EAGER and DATA. */
struct tcp_frame {
    uint64_t what, bytes;
    /* The id of an announced message, which grows with each announcement of its sender. */
    uint64_t id;
    /* OFFER: the bytes of the message. DATA: the offset of the part in the message. */
    uint64_t extent;
};
enum { MOST_HEAD = sizeof(struct tcp_frame) + sizeof(struct header) };
struct tcp_endpoint;
/* A message at one of its ends. It is in one list of its endpoint, or is the descriptor of a pending rendezvous. */
struct tcp_xfer {
    struct tcp_xfer *next;
    struct tcp_endpoint *endpoint;
    /* NULL: no op exists, or not yet. */
    struct fabric_op *op;
    struct tcp_frame frame;
    const unsigned char *from;
    unsigned char *into;
    /* The bytes of an announced message, and those already sent or received. */
    size_t bytes, moved;
    /* The bytes of the frame that have been written. */
    size_t written;
};
struct tcp_xfers { struct tcp_xfer *first, *last; };
enum purpose { LISTENER, PENDING, ENDPOINT };
/* A socket that epoll watches. */
struct socket_handle {
    enum purpose purpose;
    /* -1: no socket. */
    int descriptor;
    uint32_t events;
};
/* The connection of a caller that has not proved its identity. */
struct pending_connection {
    struct socket_handle handle;
    int64_t since_ms;
    /* The network of the caller's address. */
    uint64_t network;
    struct handshake handshake;
};
/* The frame that is being received. */
struct incoming_frame {
    unsigned char head[MOST_HEAD];
    size_t head_bytes;
    /* The destination of the bytes that are still missing. */
    unsigned char *into;
    size_t left;
    /* The buffer of an EAGER frame. */
    struct fabric_op *room;
    /* The transfer of a DATA frame. */
    struct tcp_xfer *fetch;
};
struct tcp_endpoint {
    struct endpoint base;
    struct socket_handle handle;
    struct tcp_address address;
    /* The call of this process has reached the peer. */
    bool connected;
    /* The write side is shut down. */
    bool is_shutdown;
    /* When this process called the peer, and when it calls again; reconnect_ms 0: never. */
    int64_t since_ms;
    int64_t reconnect_ms;
    int reconnects;
    /* The number of the peer's last call that this process knows. */
    uint64_t theirs;
    /* The socket of the peer's call while the call of this process is undecided, or -1. */
    int spare;
    /* The handshakes of the two calls. */
    struct handshake handshake;
    struct handshake rival_handshake;
    /* NULL: the connection is not encrypted. */
    struct tls *tls;
    struct incoming_frame in;
    /* The id of the latest OFFER that arrived. */
    uint64_t last_offer;
    /* The transfer whose frame is partly written. */
    struct tcp_xfer *current;
    /* Frames to write, transfers with parts to write, offers without an answer, and fetches. */
    struct tcp_xfers waiting, pulled, offered, fetching;
    struct tcp_xfer goodbye;
    /* The other end of a connection of this process with itself. */
    struct tcp_endpoint *loopback_peer;
    /* The endpoint is in sockets->busy. */
    bool busy;
    struct tcp_endpoint *next_busy;
};
struct sockets {
    struct socket_handle listener;
    /* The scope id for link-local addresses. */
    uint32_t scope;
    struct tcp_address address;
    struct pending_connection pending[PENDING_MOST];
    int pending_count;
    /* When accept last failed, usually because descriptors are exhausted, or 0. */
    int64_t accept_failed_ms;
    /* When to watch the listener again; 0: it is watched. */
    int64_t accept_retry_ms;
    uint64_t calls, ids;
    /* Endpoints with data to write to a socket that accepts it, or with data to read that epoll does not report. */
    struct tcp_endpoint *busy;
    /* The number of open endpoints, and the number of those whose sockets accept no more bytes now. */
    int open, blocked;
    /* The first open endpoints. */
    struct tcp_endpoint *few[UNASKED];
    unsigned looks;
    struct tcp_xfer *spare;
    unsigned char buffer[BUFFER_BYTES];
};
static inline struct sockets *tcp_sockets_of(const struct fabric *fabric) { return fabric->own; }
static inline struct tcp_endpoint *tcp_endpoint_of(struct endpoint *endpoint)
{
    return (struct tcp_endpoint *)endpoint;
}
static inline bool tcp_endpoint_is_connected(const struct tcp_endpoint *endpoint)
{
    return endpoint->base.open && endpoint->handle.descriptor >= 0;
}

/* ---- address.c ---- */
tutti_status tcp_address_listen(struct sockets *sockets, const struct fabric_place *place);
/* These two return a descriptor or a negative errno. */
int tcp_address_connect(const struct sockets *sockets, const struct tcp_address *address);
int tcp_socket_accept(int listener);
/* Returns the errno with which the call of this socket failed, or 0. */
int tcp_socket_error(int descriptor);
/* Writes the address of the socket's other end. */
void tcp_socket_print_peer(int descriptor, char *out, size_t bytes);
/* ---- handshakes.c ---- */
/* Opens the endpoint after this handshake, in which this process was called or not. NULL: a connection of this process
   with itself. The call may end the endpoint. */
void tcp_endpoint_open(struct fabric *fabric, struct tcp_endpoint *endpoint, int descriptor,
    const struct handshake *handshake, bool called);
tutti_status tcp_connect(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
void pending_connections_accept(struct fabric *fabric);
void pending_connection_read(struct fabric *fabric, struct pending_connection *pending);
void pending_connections_close(struct fabric *fabric);
/* Continues the call of an endpoint that is not open. */
void tcp_connect_advance(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Ends handshakes that have taken too long, and repeats calls that are due. */
void tcp_handshakes_expire(struct fabric *fabric);
/* ---- endpoints.c ---- */
/* Makes epoll watch the socket for these events. 0: epoll no longer watches it. */
tutti_status socket_handle_watch(const struct fabric *fabric, struct socket_handle *handle, uint32_t events);
void socket_handle_close(const struct fabric *fabric, struct socket_handle *handle);
/* Returns NULL if memory is exhausted. */
struct tcp_endpoint *tcp_endpoint_new(struct fabric *fabric, const unsigned char process[16]);
/* Counts the open endpoints after one has been opened or ended. */
void sockets_count_open(struct fabric *fabric);
void tcp_endpoint_end(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why);
void tcp_disconnect(struct fabric *fabric, struct endpoint *endpoint);
void tcp_endpoints_free(struct fabric *fabric);
/* ---- xfers.c ---- */
/* Returns NULL if memory is exhausted. */
struct tcp_xfer *tcp_xfer_new(struct fabric *fabric, struct tcp_endpoint *endpoint);
void tcp_xfer_free(struct fabric *fabric, struct tcp_xfer *xfer);
void tcp_xfers_push(struct tcp_xfers *list, struct tcp_xfer *xfer);
/* Inserts the transfer behind those of equal or higher priority. */
void tcp_xfers_push_by_priority(struct tcp_xfers *list, struct tcp_xfer *xfer);
void tcp_xfers_remove(struct tcp_xfers *list, const struct tcp_xfer *xfer);
/* Returns NULL if the list has no transfer of this id. */
struct tcp_xfer *tcp_xfers_find(const struct tcp_xfers *list, uint64_t id);
void tcp_xfer_complete(struct fabric *fabric, struct tcp_xfer *xfer, const char *why);
/* Completes all transfers of the endpoint. */
void tcp_endpoint_complete_xfers(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why);
/* ---- messages.c ---- */
bool tcp_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
bool tcp_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void tcp_release(struct fabric *fabric, void *descriptor);
/* ---- outgoing.c ---- */
/* Writes the frame of a transfer, or queues it. A queued transfer moves on when its frame has left. After FAILED the
   caller still owns the transfer, and the endpoint has the reason. */
enum send_status { SENT, QUEUED, FAILED };
enum send_status tcp_xfer_write(struct fabric *fabric, struct tcp_endpoint *endpoint, struct tcp_xfer *xfer);
/* Prepares the DATA frame of the next part. */
void tcp_xfer_begin_part(struct tcp_xfer *xfer);
void tcp_endpoint_make_busy(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Writes frames that wait. true: some bytes have left, or the endpoint has ended. */
bool tcp_endpoint_write(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Writes bytes that TLS holds. The call may end the endpoint. */
void tcp_endpoint_push_tls(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* ---- incoming.c ---- */
/* Reads frames and handles them. true: some bytes have arrived, or the endpoint has ended. */
bool tcp_endpoint_read(struct fabric *fabric, struct tcp_endpoint *endpoint);
