/* The table of the fabric: how it starts, shuts down and ends, and which sockets are read and written next. */
#include "backend/transports/tcp/tcp.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 16, SHUTDOWN_MS = 300 };

/* ---- progress ---- */
/* Reads and writes one connection after epoll has reported `events`. true: something moved. */
static bool tcp_endpoint_progress(struct fabric *fabric, struct tcp_endpoint *endpoint, uint32_t events)
{
    /* An earlier event may have closed the socket. */
    if (endpoint->handle.descriptor < 0) return false;
    if (!endpoint->base.is_open) {
        tcp_connect_advance(fabric, endpoint);
        return true;
    }
    bool moved = (events & ~(uint32_t)EPOLLOUT) && tcp_endpoint_read(fabric, endpoint);
    if ((events & EPOLLOUT) && tcp_endpoint_is_connected(endpoint)) moved |= tcp_endpoint_write(fabric, endpoint);
    return moved;
}
/* Returns the endpoint that has this handle. */
static struct tcp_endpoint *tcp_endpoint_of_handle(struct socket_handle *handle)
{
    return (struct tcp_endpoint *)(void *)((char *)handle - offsetof(struct tcp_endpoint, handle));
}
/* Asks epoll, and handles the events of all sockets. true: something moved. */
static bool tcp_poll_sockets(struct fabric *fabric)
{
    struct epoll_event found[EVENTS_AT_ONCE];
    bool moved = false;
    int count = epoll_wait(fabric->event_descriptor, found, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        struct socket_handle *handle = found[i].data.ptr;
        if (handle->purpose == ENDPOINT)
            moved |= tcp_endpoint_progress(fabric, tcp_endpoint_of_handle(handle), found[i].events);
        else if (handle->purpose == PENDING)
            pending_connection_read(fabric, (struct pending_connection *)(void *)handle);
        else pending_connections_accept(fabric);
        moved |= handle->purpose != ENDPOINT;
    }
    return moved;
}
/* Reads the open connections, at most UNASKED, without asking epoll, which saves a system call. true: something
   moved. */
static bool tcp_read_few(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    struct tcp_endpoint *few[UNASKED];
    bool moved = false;
    int count = sockets->open_count;
    memcpy(few, sockets->first_open, sizeof few);
    for (int i = 0; i < count; i++) moved |= tcp_endpoint_read(fabric, few[i]);
    return moved;
}
/* Reads and writes the busy endpoints: those with data to write or with unread data in TLS. true: something moved. */
static bool tcp_write_busy(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    struct tcp_endpoint *endpoint = sockets->busy_endpoints, *next;
    bool moved = false;
    for (sockets->busy_endpoints = NULL; endpoint; endpoint = next) {
        next = endpoint->next_busy;
        endpoint->is_busy = false;
        if (tcp_endpoint_is_connected(endpoint) && tls_has_unread(endpoint->tls))
            moved |= tcp_endpoint_read(fabric, endpoint);
        if (tcp_endpoint_is_connected(endpoint)) moved |= tcp_endpoint_write(fabric, endpoint);
    }
    return moved;
}
/* Progresses all sockets. all: asks epoll in any case. true: something moved. */
static bool tcp_progress_sockets(struct fabric *fabric, bool all)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    all |= sockets->open_count > UNASKED || sockets->blocked_count || fabric->needs_poll
        || ++sockets->unasked_polls % ASK_EVERY == 0;
    bool moved = all ? tcp_poll_sockets(fabric) : tcp_read_few(fabric);
    if (sockets->busy_endpoints) moved |= tcp_write_busy(fabric);
    if (fabric->needs_poll) tcp_handshakes_expire(fabric);
    return moved;
}
static bool tcp_progress(struct fabric *fabric) { return tcp_progress_sockets(fabric, false); }
static bool tcp_arm(struct fabric *fabric)
{
    return !tcp_progress_sockets(fabric, true) && !tcp_sockets_of(fabric)->busy_endpoints;
}

static void tcp_endpoint_print_address(const struct endpoint *endpoint, char *out, size_t bytes)
{
    tcp_socket_print_peer(((const struct tcp_endpoint *)endpoint)->handle.descriptor, out, bytes);
}

/* ---- shutdown ---- */
/* Shuts down the write side when all frames have left. true: the connection is closed, because the peer has closed it.
   The peer closes when it has read everything, so no data in flight is lost. A close with unread data here could
   discard it. */
static bool tcp_endpoint_advance_shutdown(struct tcp_endpoint *endpoint)
{
    if (!tcp_endpoint_is_connected(endpoint)) return true;
    if (!endpoint->current_xfer && !endpoint->waiting.first && !endpoint->pulled.first && !tls_has_unsent(endpoint->tls)
        && !endpoint->is_shutdown) {
        shutdown(endpoint->handle.descriptor, SHUT_WR);
        endpoint->is_shutdown = true;
    }
    return false;
}
/* Sends GOODBYE, which announces that this process closes the connection. */
static void tcp_endpoint_send_goodbye(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    endpoint->goodbye = (struct tcp_xfer){ .endpoint = endpoint, .frame.kind = GOODBYE };
    tcp_xfer_write(fabric, endpoint, &endpoint->goodbye);
}
/* Sends GOODBYE to all peers, waits up to SHUTDOWN_MS until they have closed their connections, and ends all
   endpoints. */
static void tcp_shutdown(struct fabric *fabric)
{
    bool is_shutdown = false;
    if (!fabric->state) return;
    socket_handle_close(fabric, &tcp_sockets_of(fabric)->listener);
    pending_connections_close(fabric);
    for (struct endpoint *base = fabric->endpoints; base; base = base->next) {
        if (tcp_endpoint_is_connected(tcp_endpoint_of(base))) tcp_endpoint_send_goodbye(fabric, tcp_endpoint_of(base));
        else if (!endpoint_is_broken(base)) tcp_endpoint_end(fabric, tcp_endpoint_of(base), "this process ends");
    }
    for (int64_t until_ms = clock_ms() + SHUTDOWN_MS; !is_shutdown && clock_ms() < until_ms;) {
        bool moved = tcp_progress(fabric);
        is_shutdown = true;
        for (struct endpoint *base = fabric->endpoints; base; base = base->next)
            is_shutdown &= tcp_endpoint_advance_shutdown(tcp_endpoint_of(base));
        if (!is_shutdown && !moved) fabric_pause_unlocked(fabric);
    }
    for (struct endpoint *base = fabric->endpoints; base; base = base->next)
        if (!endpoint_is_broken(base)) tcp_endpoint_end(fabric, tcp_endpoint_of(base), "this process ends");
}

/* ---- the beginning and the end ---- */
/* Frees the state of the fabric, also after a start that failed. */
static void tcp_finish(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    if (!sockets) return;
    tcp_endpoints_free(fabric);
    pending_connections_close(fabric);
    socket_handle_close(fabric, &sockets->listener);
    for (struct tcp_xfer *xfer; (xfer = sockets->free_xfers) != NULL; free(xfer)) sockets->free_xfers = xfer->next;
    if (fabric->event_descriptor >= 0) close(fabric->event_descriptor);
    fabric->event_descriptor = -1;
    fabric->state = NULL;
    free(sockets);
}
/* Opens the listener, and stores its address in the fabric. After an error the caller calls tcp_finish. */
static tutti_status tcp_start(struct fabric *fabric, const struct fabric_environment *environment)
{
    struct sockets *sockets = memory_alloc_zeroed(1, sizeof *sockets);
    fabric->state = sockets;
    fabric->event_descriptor = -1;
    if (!sockets) return status_fail(TUTTI_NO_MEMORY, "no memory for connections");
    sockets->listener = (struct socket_handle){ LISTENER, -1, 0 };
    for (int i = 0; i < PENDING_MOST; i++) sockets->pending[i].handle = (struct socket_handle){ PENDING, -1, 0 };
    fabric->event_descriptor = descriptor_move_above_stderr(epoll_create1(EPOLL_CLOEXEC));
    if (fabric->event_descriptor < 0)
        return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wait on: %s", strerror(errno));
    TRY(tcp_address_listen(sockets, environment));
    TRY(socket_handle_watch(fabric, &sockets->listener, EPOLLIN));
    memcpy(fabric->address, &sockets->address, sizeof sockets->address);
    fabric->address_bytes = sizeof sockets->address;
    return TUTTI_OK;
}
const struct fabric_operations tcp_operations = { .name = "tcp",
    .start = tcp_start,
    .shutdown = tcp_shutdown,
    .finish = tcp_finish,
    .connect = tcp_connect,
    .send = tcp_send,
    .fetch = tcp_fetch,
    .release = tcp_release,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .disconnect = tcp_disconnect,
    .print_address = tcp_endpoint_print_address };
struct fabric tcp_fabric = FABRIC(&tcp_operations);
