/* The sockets of this process: one that listens, one for each process that it is connected to, and those of accepted
 * connections whose processes have not proved their identity yet. Callers of these functions hold the lock of the
 * fabric.
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
    /* How many accepted connections may be without a proof of identity, and how long each may take for it. */
    PENDING_MOST = 128,
    PENDING_MS = 5000,
    /* The time after which an unanswered connection attempt fails. */
    CONNECT_MS = 30000,
    /* The delay before this process connects again after the peer has closed the connection unanswered, because
       strangers may have taken all places of the peer. Then the limit of such repetitions. */
    RECONNECT_MS = 50,
    RECONNECTS_MOST = 100,
    /* The size of one read into the common buffer, and its size while a fetch is under way. */
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
enum tcp_frame_kind { EAGER, OFFER, PULL, RELEASE, DATA, GOODBYE };
/* The beginning of a frame. The header follows in EAGER and OFFER, then `bytes` bytes in EAGER and DATA. */
struct tcp_frame {
    uint64_t kind, bytes;
    /* The id of an announced message, which grows with each OFFER of the process; 0 in EAGER and GOODBYE. */
    uint64_t id;
    /* OFFER: the bytes of the message. DATA: the offset of the part in the message. */
    uint64_t extent;
};
/* The bytes of a frame before its data, at most. */
enum { MOST_HEAD = sizeof(struct tcp_frame) + sizeof(struct header) };
struct tcp_endpoint;
/* A message at one of its ends. It is in one list of its endpoint, or is the descriptor of a pending rendezvous. */
struct tcp_xfer {
    struct tcp_xfer *next;
    struct tcp_endpoint *endpoint;
    /* NULL: an OFFER has arrived and no op fetches its message yet, or the frame needs no op. */
    struct fabric_op *op;
    /* The frame that is written next. */
    struct tcp_frame frame;
    /* A send reads the message from `from`; a fetch writes it to `into`. */
    const unsigned char *from;
    unsigned char *into;
    /* The bytes of the message, and those of them that DATA frames have sent or brought. */
    size_t bytes, moved;
    /* The bytes of the frame, its head included, that have been written. */
    size_t written;
};
struct tcp_xfers { struct tcp_xfer *first, *last; };
/* The socket that listens, one of a pending connection, or one of an endpoint. */
enum purpose { LISTENER, PENDING, ENDPOINT };
/* A socket that epoll watches. */
struct socket_handle {
    enum purpose purpose;
    /* -1: no socket. */
    int descriptor;
    /* The events that epoll watches; 0: epoll does not watch the socket. */
    uint32_t events;
};
/* An accepted connection whose process has not proved its identity. */
struct pending_connection {
    struct socket_handle handle;
    /* When the connection was accepted. */
    int64_t since_ms;
    /* The IPv4 host or IPv6 network at the other end (sock_address_network). */
    uint64_t network;
    struct handshake handshake;
};
/* The frame that is being received. */
struct incoming_frame {
    /* The frame and the header; head_bytes of them have arrived. */
    unsigned char head[MOST_HEAD];
    size_t head_bytes;
    /* The destination and the number of the data bytes that are still missing. */
    unsigned char *into;
    size_t missing;
    /* An op whose buffer receives the bytes of an EAGER frame, or NULL. */
    struct fabric_op *eager_op;
    /* The transfer of a DATA frame, or NULL. */
    struct tcp_xfer *fetch;
};
struct tcp_endpoint {
    struct endpoint base;
    struct socket_handle handle;
    /* The address of the peer. */
    struct tcp_address address;
    /* connect has succeeded for this process's own attempt, so the handshake can begin. */
    bool has_connected;
    /* The write side is shut down. */
    bool is_shutdown;
    /* When this process began its first attempt to connect to the peer, and when it begins the next one; reconnect_ms
       0: no further attempt is due. */
    int64_t since_ms;
    int64_t reconnect_ms;
    int reconnects;
    /* The number of the peer's last connection attempt that this process knows. */
    uint64_t last_peer_attempt;
    /* The descriptor of the rival connection, which the peer has begun while this process's own attempt is undecided,
       or -1. */
    int rival_descriptor;
    /* The handshakes of this process's own attempt, and of the rival connection. */
    struct handshake handshake;
    struct handshake rival_handshake;
    /* NULL: the connection is not encrypted. */
    struct tls *tls;
    struct incoming_frame in;
    /* The id of the latest OFFER that arrived. */
    uint64_t last_offer;
    /* The transfer whose frame is partly written. */
    struct tcp_xfer *current_xfer;
    /* Transfers with a frame to write, transfers with parts to write, offers without an answer, and fetches. */
    struct tcp_xfers waiting, pulled, offered, fetching;
    struct tcp_xfer goodbye;
    /* The other end of a connection of this process with itself, or NULL. */
    struct tcp_endpoint *loopback_peer;
    /* The endpoint is in sockets->busy_endpoints. */
    bool is_busy;
    struct tcp_endpoint *next_busy;
};
struct sockets {
    struct socket_handle listener;
    /* The scope id for link-local addresses. */
    uint32_t scope_id;
    /* The address of the listener. */
    struct tcp_address address;
    /* The places of pending connections. A place is free if its descriptor is -1. */
    struct pending_connection pending[PENDING_MOST];
    int pending_count;
    /* When accept last failed, usually because descriptors are exhausted, or 0. */
    int64_t accept_failed_ms;
    /* When to watch the listener again; 0: it is watched. */
    int64_t accept_retry_ms;
    /* The number of this process's connection attempts, and the id of its last OFFER. */
    uint64_t attempts, last_id;
    /* Endpoints with data to write to a socket that accepts it, or with data to read that epoll does not report. */
    struct tcp_endpoint *busy_endpoints;
    /* The number of open endpoints, and the number of endpoints whose sockets accept no more bytes now. */
    int open_count, blocked_count;
    /* The first open endpoints. */
    struct tcp_endpoint *first_open[UNASKED];
    /* Counts the polls of few connections; every ASK_EVERY-th of them asks epoll. */
    unsigned unasked_polls;
    struct tcp_xfer *free_xfers;
    /* The common buffer, into which one read takes many small frames. */
    unsigned char buffer[BUFFER_BYTES];
};
static inline struct sockets *tcp_sockets_of(const struct fabric *fabric) { return fabric->state; }
/* Returns the endpoint of this fabric that begins with this struct. */
static inline struct tcp_endpoint *tcp_endpoint_of(struct endpoint *endpoint)
{
    return (struct tcp_endpoint *)endpoint;
}
/* Returns whether the handshake is complete and the socket is open, so that frames may be read and written. */
static inline bool tcp_endpoint_is_connected(const struct tcp_endpoint *endpoint)
{
    return endpoint->base.is_open && endpoint->handle.descriptor >= 0;
}

/* ---- address.c ---- */
/* Opens the listener, and stores its address. */
tutti_status tcp_address_listen(struct sockets *sockets, const struct fabric_environment *environment);
/* Starts a connection to the address, without waiting for it. Returns a descriptor or a negative errno. */
int tcp_address_connect(const struct sockets *sockets, const struct tcp_address *address);
/* Accepts a connection. Returns its descriptor or a negative errno; -EAGAIN: there is no connection to accept. */
int tcp_socket_accept(int listener);
/* Returns the errno with which connect failed for this socket, or 0. */
int tcp_socket_error(int descriptor);
/* Writes the address of the socket's other end, without its port. */
void tcp_socket_print_peer(int descriptor, char *out, size_t bytes);
/* ---- handshakes.c ---- */
/* Opens the endpoint by a connection with this descriptor, whose handshake is complete. handshake NULL: a connection of
   this process with itself. has_accepted: this process has accepted the connection, and the peer has begun it. If epoll
   or TLS fails, the function ends the endpoint. */
void tcp_endpoint_open(struct fabric *fabric, struct tcp_endpoint *endpoint, int descriptor,
    const struct handshake *handshake, bool has_accepted);
/* Implements fabric_operations.connect. */
tutti_status tcp_connect(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
/* Accepts the connections that wait at the listener, and begins their handshakes. */
void pending_connections_accept(struct fabric *fabric);
/* Continues the handshake of a pending connection. Closes it if the handshake fails, and gives it to its endpoint if
   the proof is right. */
void pending_connection_read(struct fabric *fabric, struct pending_connection *pending);
/* Closes all pending connections. */
void pending_connections_close(struct fabric *fabric);
/* Continues this process's own connection attempt of an endpoint that is not open. */
void tcp_connect_advance(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Ends handshakes that have taken too long, and repeats connection attempts that are due. */
void tcp_handshakes_expire(struct fabric *fabric);
/* ---- endpoints.c ---- */
/* Makes epoll watch the socket for these events. events 0: epoll no longer watches it. */
tutti_status socket_handle_watch(const struct fabric *fabric, struct socket_handle *handle, uint32_t events);
/* Closes the socket, if there is one. */
void socket_handle_close(const struct fabric *fabric, struct socket_handle *handle);
/* Returns a new endpoint to the process, without a socket and listed in the fabric. NULL: memory is exhausted. */
struct tcp_endpoint *tcp_endpoint_new(struct fabric *fabric, const unsigned char process[16]);
/* Counts the open endpoints after one has been opened or ended. */
void sockets_count_open(struct fabric *fabric);
/* Ends the endpoint and its loopback peer: closes their sockets, and fails their transfers with the reason `why`. */
void tcp_endpoint_end(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why);
/* Implements fabric_operations.disconnect. */
void tcp_disconnect(struct fabric *fabric, struct endpoint *endpoint);
/* Ends and frees all endpoints. */
void tcp_endpoints_free(struct fabric *fabric);
/* ---- xfers.c ---- */
/* Returns an empty transfer of the endpoint, in no list. NULL: memory is exhausted. */
struct tcp_xfer *tcp_xfer_new(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Keeps a transfer that is in no list for reuse. */
void tcp_xfer_free(struct fabric *fabric, struct tcp_xfer *xfer);
/* Appends the transfer to the list. */
void tcp_xfers_push(struct tcp_xfers *list, struct tcp_xfer *xfer);
/* Inserts the transfer behind the transfers of equal or higher priority. */
void tcp_xfers_push_by_priority(struct tcp_xfers *list, struct tcp_xfer *xfer);
/* Removes the transfer from the list, which must have it. */
void tcp_xfers_remove(struct tcp_xfers *list, const struct tcp_xfer *xfer);
/* Returns the transfer of the list with this id, or NULL. */
struct tcp_xfer *tcp_xfers_find(const struct tcp_xfers *list, uint64_t id);
/* Frees a transfer that is in no list, and completes its op. why NULL: with success. */
void tcp_xfer_complete(struct fabric *fabric, struct tcp_xfer *xfer, const char *why);
/* Completes all transfers of the endpoint as failed for the reason `why`. */
void tcp_endpoint_complete_xfers(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why);
/* ---- messages.c: implements send, fetch and release of fabric_operations ---- */
bool tcp_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced);
bool tcp_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void tcp_release(struct fabric *fabric, void *descriptor);
/* ---- outgoing.c ---- */
/* Writes the frame of a transfer, or queues it in `waiting`. A queued transfer moves to its next list when its frame
   has left. After SENT and FAILED the caller still owns the transfer; after FAILED the endpoint has the reason. */
enum send_status { SENT, QUEUED, FAILED };
enum send_status tcp_xfer_write(struct fabric *fabric, struct tcp_endpoint *endpoint, struct tcp_xfer *xfer);
/* Sets the frame of the transfer to DATA with its next part. */
void tcp_xfer_begin_part(struct tcp_xfer *xfer);
/* Adds the endpoint to sockets->busy_endpoints, so that the next poll reads and writes it. */
void tcp_endpoint_make_busy(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Writes up to WRITE_BYTES of frames that wait. true: some bytes have left, or the endpoint has ended. */
bool tcp_endpoint_write(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* Writes bytes that TLS holds. A failure ends the endpoint. */
void tcp_endpoint_push_tls(struct fabric *fabric, struct tcp_endpoint *endpoint);
/* ---- incoming.c ---- */
/* Reads up to about READ_BYTES of frames and handles them. true: some bytes have arrived, or the endpoint has ended. */
bool tcp_endpoint_read(struct fabric *fabric, struct tcp_endpoint *endpoint);
