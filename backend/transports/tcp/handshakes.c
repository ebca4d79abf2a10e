/* How two processes connect. Either process connects to the other at its address, and both prove that they know the key
 * of a common group (processes/handshake.h). An accepted connection is pending until its process has sent a proof;
 * without one it gets no answer and is closed. If all places of pending connections are taken, the network with the
 * most of them loses its oldest. So a process whose connection is closed before an answer connects again.
 *
 * If both processes connect at once, one of the two connections must close. A process that accepts a connection before
 * its own attempt has sent its hello keeps the accepted one. Otherwise the attempt of the process with the lesser nonce
 * stays, and the other connection, its rival, is kept until the first one is answered. Each process numbers its
 * attempts, and both sides exchange their counts. So a process can tell an attempt that began before the present
 * connection from a later one, which means that the connection broke. */
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/log.h"
#include "backend/links/tcp.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[8] = "tutti-t";
/* A shortage of descriptors is over when accept has not failed for SHORTAGE_OVER_MS. */
enum { ACCEPT_RETRY_MS = 100, SHORTAGE_OVER_MS = 5 * ACCEPT_RETRY_MS, ACCEPTS_AT_ONCE = 32 };
static const char closed[] = "it has closed the connection";

/* ---- opening an endpoint ---- */
void tcp_endpoint_open(struct fabric *fabric, struct tcp_endpoint *endpoint, int descriptor,
    const struct handshake *handshake, bool has_accepted)
{
    endpoint->handle.descriptor = descriptor;
    endpoint->base.is_open = true;
    if (socket_handle_watch(fabric, &endpoint->handle, EPOLLIN) != TUTTI_OK)
        tcp_endpoint_end(fabric, endpoint, "epoll cannot watch it");
    else if (handshake && tls_create_after_handshake(handshake, has_accepted, &endpoint->tls) != 0)
        tcp_endpoint_end(fabric, endpoint, "it cannot be encrypted");
    else tcp_endpoint_push_tls(fabric, endpoint);
    sockets_count_open(fabric);
}
/* Opens a pair of connected sockets for a connection of this process with itself. */
static tutti_status socket_pair_open(int both[2])
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, both) != 0)
        return status_fail(TUTTI_SYSTEM, "cannot create a pair of sockets: %s", strerror(errno));
    for (int i = 0; i < 2; i++) both[i] = descriptor_move_above_stderr(both[i]);
    if (both[0] < 0 || both[1] < 0) {
        int error = errno;
        for (int i = 0; i < 2; i++)
            if (both[i] >= 0) close(both[i]);
        return status_fail(TUTTI_SYSTEM, "cannot create a pair of sockets: %s", strerror(error));
    }
    return TUTTI_OK;
}
/* Opens a connection of this process with itself. The other end only receives the messages that this process sends to
   itself. It is marked as left, so that no message is sent by it. Both ends are linked first, so that the end of one
   is the end of both: after an error the caller ends this endpoint. */
static tutti_status tcp_endpoint_open_loopback(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    int both[2];
    struct tcp_endpoint *loopback_peer = tcp_endpoint_new(fabric, endpoint->base.process);
    if (!loopback_peer) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    loopback_peer->base.has_left = true;
    endpoint->loopback_peer = loopback_peer;
    loopback_peer->loopback_peer = endpoint;
    TRY(socket_pair_open(both));
    /* Both are watched before one opens, because an open endpoint writes at once. */
    endpoint->handle.descriptor = both[0];
    loopback_peer->handle.descriptor = both[1];
    TRY(socket_handle_watch(fabric, &endpoint->handle, EPOLLIN));
    TRY(socket_handle_watch(fabric, &loopback_peer->handle, EPOLLIN));
    tcp_endpoint_open(fabric, endpoint, both[0], NULL, false);
    tcp_endpoint_open(fabric, loopback_peer, both[1], NULL, true);
    return TUTTI_OK;
}

/* ---- the process that accepts ---- */
/* Answers the handshake of an accepted connection, and opens the endpoint by it in place of this process's own
   attempt. */
static void tcp_endpoint_accept(struct fabric *fabric, struct tcp_endpoint *endpoint, struct handshake *handshake,
    int descriptor)
{
    if (endpoint->rival_descriptor >= 0 && endpoint->rival_descriptor != descriptor) close(endpoint->rival_descriptor);
    endpoint->rival_descriptor = -1;
    socket_handle_close(fabric, &endpoint->handle);
    if (handshake_send_answer(handshake, HANDSHAKE_WELCOME, tcp_sockets_of(fabric)->attempts, descriptor) == 0) {
        tcp_endpoint_open(fabric, endpoint, descriptor, handshake, true);
        return;
    }
    close(descriptor);
    tcp_endpoint_end(fabric, endpoint, closed);
}
/* Closes the socket of a pending connection, if it has one, and frees its place. */
static void pending_connection_close(struct fabric *fabric, struct pending_connection *pending)
{
    socket_handle_close(fabric, &pending->handle);
    tcp_sockets_of(fabric)->pending_count--;
}
/* Returns the number of the last known connection attempt of that process, or 0. */
static uint64_t tcp_last_peer_attempt(const struct fabric *fabric, const unsigned char process[16])
{
    uint64_t last = 0;
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        if (memcmp(endpoint->process, process, 16) == 0 && tcp_endpoint_of(endpoint)->last_peer_attempt > last)
            last = tcp_endpoint_of(endpoint)->last_peer_attempt;
    return last;
}
/* Gives an accepted connection with a right proof to the endpoint of its process: opens the endpoint by it, or keeps it
   as rival of this process's own attempt. Closes it if the peer has given up this attempt since. */
static void pending_connection_admit(struct fabric *fabric, struct handshake *handshake, int descriptor)
{
    const unsigned char *from = handshake->hello.from.nonce;
    struct endpoint *found = endpoint_find(fabric, from);
    struct tcp_endpoint *endpoint = found ? tcp_endpoint_of(found) : NULL;
    if (handshake->hello.number <= tcp_last_peer_attempt(fabric, from)) {
        close(descriptor);
        return;
    }
    /* A newer attempt means that the connection of the open endpoint broke. */
    if (endpoint && endpoint->base.is_open) {
        tcp_endpoint_end(fabric, endpoint, strerror(ECONNRESET));
        endpoint = NULL;
    }
    if (!endpoint) endpoint = tcp_endpoint_new(fabric, from);
    if (!endpoint) {
        close(descriptor);
        return;
    }
    endpoint->last_peer_attempt = handshake->hello.number;
    bool keeps_own_attempt = endpoint->handshake.has_sent_hello && memcmp(fabric->process, from, 16) < 0;
    if (!keeps_own_attempt) {
        tcp_endpoint_accept(fabric, endpoint, handshake, descriptor);
        return;
    }
    if (endpoint->rival_descriptor >= 0) close(endpoint->rival_descriptor);
    endpoint->rival_descriptor = descriptor;
    endpoint->rival_handshake = *handshake;
}
void pending_connection_read(struct fabric *fabric, struct pending_connection *pending)
{
    struct handshake *handshake = &pending->handshake;
    int descriptor = pending->handle.descriptor;
    if (descriptor < 0) return;
    int got = handshake_receive_hello(handshake, fabric->process, descriptor);
    if (got == 0) return;
    if (got < 0 || memcmp(handshake->hello.from.nonce, fabric->process, 16) == 0) {
        LOG(DEBUG, "%s: a connection that %s was closed", fabric->operations->name,
            handshake_refusal_text(handshake, got));
        pending_connection_close(fabric, pending);
        return;
    }
    socket_handle_watch(fabric, &pending->handle, 0);
    pending->handle.descriptor = -1;
    pending_connection_close(fabric, pending);
    pending_connection_admit(fabric, handshake, descriptor);
}
/* Returns the pending connection to close when all places are taken. */
static struct pending_connection *pending_connection_find_superfluous(struct sockets *sockets)
{
    struct unproved list[PENDING_MOST];
    for (int i = 0; i < PENDING_MOST; i++)
        list[i] = (struct unproved){ sockets->pending[i].network, sockets->pending[i].since_ms };
    return &sockets->pending[unproved_find_superfluous(list, PENDING_MOST)];
}
/* Returns a free place for a new pending connection, closing another one if all are taken. */
static struct pending_connection *pending_connection_take_place(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    if (sockets->pending_count == PENDING_MOST) {
        struct pending_connection *found = pending_connection_find_superfluous(sockets);
        /* A proof may have arrived since the last read, for example while this process was stopped. */
        pending_connection_read(fabric, found);
        if (found->handle.descriptor >= 0) pending_connection_close(fabric, found);
    }
    struct pending_connection *pending = sockets->pending;
    while (pending->handle.descriptor >= 0) pending++;
    return pending;
}
/* Begins the handshake of an accepted connection. */
static void pending_connection_add(struct fabric *fabric, int descriptor)
{
    struct pending_connection *pending = pending_connection_take_place(fabric);
    struct sock_address remote = tcp_remote_address(descriptor);
    *pending = (struct pending_connection){
        .handle = { PENDING, descriptor, 0 }, .since_ms = clock_ms(), .network = sock_address_network(&remote)
    };
    tcp_sockets_of(fabric)->pending_count++;
    fabric->needs_poll = true;
    if (handshake_send_opening(&pending->handshake, magic, descriptor) != 0
        || socket_handle_watch(fabric, &pending->handle, EPOLLIN) != TUTTI_OK)
        pending_connection_close(fabric, pending);
}
/* Stops watching the listener for ACCEPT_RETRY_MS, because it stays readable while accept fails with `error`, an
   errno. */
static void listener_pause(struct fabric *fabric, int error)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    int64_t now_ms = clock_ms();
    if (!sockets->accept_failed_ms || now_ms - sockets->accept_failed_ms > SHORTAGE_OVER_MS)
        LOG(WARN, "%s cannot accept a connection: %s", fabric->operations->name, strerror(error));
    sockets->accept_failed_ms = now_ms;
    sockets->accept_retry_ms = now_ms + ACCEPT_RETRY_MS;
    socket_handle_watch(fabric, &sockets->listener, 0);
    fabric->needs_poll = true;
}
/* Watches the listener again after a pause. */
static void listener_resume(struct fabric *fabric, int64_t now_ms)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    bool is_watched = socket_handle_watch(fabric, &sockets->listener, EPOLLIN) == TUTTI_OK;
    sockets->accept_retry_ms = is_watched ? 0 : now_ms + ACCEPT_RETRY_MS;
}
void pending_connections_accept(struct fabric *fabric)
{
    int listener = tcp_sockets_of(fabric)->listener.descriptor;
    for (int n = 0; n < ACCEPTS_AT_ONCE; n++) {
        int descriptor = tcp_socket_accept(listener);
        if (descriptor == -EAGAIN) return;
        if (descriptor < 0) {
            listener_pause(fabric, -descriptor);
            return;
        }
        pending_connection_add(fabric, descriptor);
    }
}
void pending_connections_close(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    for (struct pending_connection *p = sockets->pending; p < sockets->pending + PENDING_MOST; p++)
        if (p->handle.descriptor >= 0) pending_connection_close(fabric, p);
}

/* ---- the process that connects ---- */
/* Starts a connection attempt to the peer of the endpoint. If the peer's process has ended, ends the endpoint and
   returns OK. */
static tutti_status tcp_endpoint_connect(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    int descriptor = tcp_address_connect(sockets, &endpoint->address);
    sockets->attempts++;
    endpoint->reconnect_ms = 0;
    endpoint->has_connected = false;
    handshake_begin(&endpoint->handshake, magic);
    fabric->needs_poll = true;
    /* The control connection reports why the peer's process has ended. */
    if (descriptor == -ECONNREFUSED || descriptor == -ECONNRESET) {
        tcp_endpoint_end(fabric, endpoint, strerror(-descriptor));
        return TUTTI_OK;
    }
    if (descriptor < 0)
        return status_fail(TUTTI_SYSTEM,
            "TCP cannot connect: %s (both hosts need a network interface in common; see TUTTI_SOCKET_IFNAME)",
            strerror(-descriptor));
    endpoint->handle.descriptor = descriptor;
    return socket_handle_watch(fabric, &endpoint->handle, EPOLLOUT);
}
tutti_status tcp_connect(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    struct tcp_address theirs;
    if (bytes != sizeof theirs)
        return status_fail(TUTTI_SYSTEM,
            "its process has published no address for TCP (TUTTI_TRANSPORT must name tcp on all hosts)");
    memcpy(&theirs, address, sizeof theirs);
    struct tcp_endpoint *endpoint = tcp_endpoint_new(fabric, process);
    if (!endpoint) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    endpoint->address = theirs;
    endpoint->base.key = *key;
    endpoint->since_ms = clock_ms();
    bool oneself = memcmp(fabric->process, process, 16) == 0;
    tutti_status status =
        oneself ? tcp_endpoint_open_loopback(fabric, endpoint) : tcp_endpoint_connect(fabric, endpoint);
    if (status != TUTTI_OK) tcp_endpoint_end(fabric, endpoint, "no connection is possible");
    else *out = &endpoint->base;
    return status;
}
/* Returns the reason for which an attempt failed with an errno. */
static const char *tcp_connect_reason(int error)
{
    bool is_silent = error == ETIMEDOUT || error == EHOSTUNREACH;
    return is_silent ? "no answer: a firewall closes its port (see TUTTI_PORTS), or its host is out of reach"
                     : strerror(error);
}
/* Ends this process's own attempt. If there is a rival connection, the endpoint opens by it, else the endpoint ends. */
static void tcp_connect_fail(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why)
{
    if (endpoint->rival_descriptor >= 0)
        tcp_endpoint_accept(fabric, endpoint, &endpoint->rival_handshake, endpoint->rival_descriptor);
    else tcp_endpoint_end(fabric, endpoint, why);
}
/* Connects again after RECONNECT_MS to a peer that closed the connection before it answered, because strangers may have
   taken all its places. If the peer's process has ended, the new attempt fails at once. */
static void tcp_connect_retry(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    if (endpoint->rival_descriptor >= 0 || ++endpoint->reconnects > RECONNECTS_MOST) {
        tcp_connect_fail(fabric, endpoint, closed);
        return;
    }
    socket_handle_close(fabric, &endpoint->handle);
    endpoint->handshake.has_sent_hello = false;
    endpoint->reconnect_ms = clock_ms() + RECONNECT_MS;
    fabric->needs_poll = true;
}
/* Returns the reason for which the handshake of an attempt failed with -errno. */
static const char *tcp_handshake_reason(int error)
{
    switch (error) {
    case -ENOPROTOOPT: return "it runs another version of tutti";
    case -ENOKEY: return "its key is unknown";
    case -EKEYREJECTED: return "it has another key: it is of another job, or the secret (TUTTI_SECRET_FILE) differs";
    case -EPROTO: return "it sent an unexpected message: another program or another kind of connection listens there";
    case -EALREADY: return "it prefers its own connection to this process, which has not arrived";
    default: return strerror(-error);
    }
}
/* Continues the handshake of this process's own attempt. Returns 1 when it is complete, 0 while it goes on, or a
   negative errno. */
static int tcp_handshake_advance(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    struct handshake *handshake = &endpoint->handshake;
    struct identity self = { .pid = 0 };
    int descriptor = endpoint->handle.descriptor;
    if (handshake->has_sent_hello) return handshake_receive_answer(handshake, descriptor);
    int got = handshake_receive_opening(handshake, descriptor);
    if (got <= 0) return got;
    memcpy(self.nonce, fabric->process, sizeof self.nonce);
    return handshake_send_hello(handshake, &self, endpoint->base.process, &endpoint->base.key,
        tcp_sockets_of(fabric)->attempts, descriptor);
}
/* Opens the endpoint by this process's own attempt, which the peer has accepted. */
static void tcp_connect_complete(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    if (endpoint->handshake.answer.number > endpoint->last_peer_attempt)
        endpoint->last_peer_attempt = endpoint->handshake.answer.number;
    if (endpoint->rival_descriptor >= 0) close(endpoint->rival_descriptor);
    endpoint->rival_descriptor = -1;
    tcp_endpoint_open(fabric, endpoint, endpoint->handle.descriptor, &endpoint->handshake, false);
}
void tcp_connect_advance(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    if (!endpoint->has_connected) {
        int error = tcp_socket_error(endpoint->handle.descriptor);
        if (error) tcp_connect_fail(fabric, endpoint, tcp_connect_reason(error));
        else if (socket_handle_watch(fabric, &endpoint->handle, EPOLLIN) != TUTTI_OK)
            tcp_connect_fail(fabric, endpoint, "epoll cannot watch it");
        endpoint->has_connected = !error;
        return;
    }
    int got = tcp_handshake_advance(fabric, endpoint);
    if (got > 0) tcp_connect_complete(fabric, endpoint);
    else if (got == -ECONNRESET || got == -EPIPE) tcp_connect_retry(fabric, endpoint);
    else if (got < 0) tcp_connect_fail(fabric, endpoint, tcp_handshake_reason(got));
}

/* ---- time limits ---- */
/* Fails an attempt that takes too long, or starts the next one if it is due. */
static void tcp_connect_check_time(struct fabric *fabric, struct tcp_endpoint *endpoint, int64_t now_ms)
{
    if (now_ms - endpoint->since_ms >= CONNECT_MS) tcp_connect_fail(fabric, endpoint, tcp_connect_reason(ETIMEDOUT));
    else if (endpoint->reconnect_ms && now_ms >= endpoint->reconnect_ms
        && tcp_endpoint_connect(fabric, endpoint) != TUTTI_OK)
        tcp_connect_fail(fabric, endpoint, closed);
    fabric->needs_poll |= !endpoint->base.is_open && !endpoint_is_broken(&endpoint->base);
}
void tcp_handshakes_expire(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    int64_t now_ms = clock_ms();
    if (sockets->accept_retry_ms && now_ms >= sockets->accept_retry_ms) listener_resume(fabric, now_ms);
    for (struct pending_connection *p = sockets->pending; sockets->pending_count && p < sockets->pending + PENDING_MOST;
        p++)
        if (p->handle.descriptor >= 0 && now_ms - p->since_ms >= PENDING_MS) pending_connection_close(fabric, p);
    fabric->needs_poll = sockets->pending_count || sockets->accept_retry_ms;
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        if (!endpoint->is_open && !endpoint_is_broken(endpoint))
            tcp_connect_check_time(fabric, tcp_endpoint_of(endpoint), now_ms);
}
