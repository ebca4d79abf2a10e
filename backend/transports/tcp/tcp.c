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
/* Reads and writes one connection after epoll has reported `events`. True: something moved. */
static bool tcp_endpoint_progress(struct fabric *fabric, struct tcp_endpoint *endpoint, uint32_t events)
{
    /* An earlier event may have closed the socket. */
    if (endpoint->handle.descriptor < 0) return false;
    if (!endpoint->base.open) {
        tcp_connect_advance(fabric, endpoint);
        return true;
    }
    bool moved = (events & ~(uint32_t)EPOLLOUT) && tcp_endpoint_read(fabric, endpoint);
    if ((events & EPOLLOUT) && tcp_endpoint_is_connected(endpoint)) moved |= tcp_endpoint_write(fabric, endpoint);
    return moved;
}
static struct tcp_endpoint *tcp_endpoint_of_handle(struct socket_handle *handle)
{
    return (struct tcp_endpoint *)(void *)((char *)handle - offsetof(struct tcp_endpoint, handle));
}
/* Asks epoll and handles the events of all sockets. True: something moved. */
static bool tcp_poll_sockets(struct fabric *fabric)
{
    struct epoll_event found[EVENTS_AT_ONCE];
    bool moved = false;
    int count = epoll_wait(fabric->event, found, EVENTS_AT_ONCE, 0);
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
/* Reads the few open connections without asking epoll, which saves a system call. */
static bool tcp_read_few(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    struct tcp_endpoint *few[UNASKED];
    bool moved = false;
    int count = sockets->open;
    memcpy(few, sockets->few, sizeof few);
    for (int i = 0; i < count; i++) moved |= tcp_endpoint_read(fabric, few[i]);
    return moved;
}
/* Continues endpoints with data to write or with unread data in TLS. */
static bool tcp_write_busy(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    struct tcp_endpoint *endpoint = sockets->busy, *next;
    bool moved = false;
    for (sockets->busy = NULL; endpoint; endpoint = next) {
        next = endpoint->next_busy;
        endpoint->busy = false;
        if (tcp_endpoint_is_connected(endpoint) && tls_has_unread(endpoint->tls))
            moved |= tcp_endpoint_read(fabric, endpoint);
        if (tcp_endpoint_is_connected(endpoint)) moved |= tcp_endpoint_write(fabric, endpoint);
    }
    return moved;
}
/* Progresses all sockets. `all`: ask epoll in any case. */
static bool tcp_progress_sockets(struct fabric *fabric, bool all)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    all |= sockets->open > UNASKED || sockets->blocked || fabric->needs_poll || ++sockets->looks % ASK_EVERY == 0;
    bool moved = all ? tcp_poll_sockets(fabric) : tcp_read_few(fabric);
    if (sockets->busy) moved |= tcp_write_busy(fabric);
    if (fabric->needs_poll) tcp_handshakes_expire(fabric);
    return moved;
}
static bool tcp_progress(struct fabric *fabric) { return tcp_progress_sockets(fabric, false); }
static bool tcp_arm(struct fabric *fabric)
{
    return !tcp_progress_sockets(fabric, true) && !tcp_sockets_of(fabric)->busy;
}

static void tcp_endpoint_print_address(const struct endpoint *endpoint, char *out, size_t bytes)
{
    tcp_socket_print_peer(((const struct tcp_endpoint *)endpoint)->handle.descriptor, out, bytes);
}

/* ---- shutdown ---- */
/* Shuts down the write side when all frames have left. true: the peer has closed the connection, too. The peer closes
   when it has read everything, so no data in flight is lost. A close with unread data here could discard it. */
static bool tcp_endpoint_advance_shutdown(struct tcp_endpoint *endpoint)
{
    if (!tcp_endpoint_is_connected(endpoint)) return true;
    if (!endpoint->current && !endpoint->waiting.first && !endpoint->pulled.first && !tls_has_unsent(endpoint->tls)
        && !endpoint->is_shutdown) {
        shutdown(endpoint->handle.descriptor, SHUT_WR);
        endpoint->is_shutdown = true;
    }
    return false;
}
static void tcp_endpoint_send_goodbye(struct fabric *fabric, struct tcp_endpoint *endpoint)
{
    endpoint->goodbye = (struct tcp_xfer){ .endpoint = endpoint, .frame.what = GOODBYE };
    tcp_xfer_write(fabric, endpoint, &endpoint->goodbye);
}
/* Sends GOODBYE to all peers, and waits up to SHUTDOWN_MS for their answers. */
static void tcp_shutdown(struct fabric *fabric)
{
    bool is_shutdown = false;
    if (!fabric->own) return;
    socket_handle_close(fabric, &tcp_sockets_of(fabric)->listener);
    pending_connections_close(fabric);
    for (struct endpoint *b = fabric->endpoints; b; b = b->next) {
        if (tcp_endpoint_is_connected(tcp_endpoint_of(b))) tcp_endpoint_send_goodbye(fabric, tcp_endpoint_of(b));
        else if (!endpoint_is_broken(b)) tcp_endpoint_end(fabric, tcp_endpoint_of(b), "this process ends");
    }
    for (int64_t until_ms = clock_ms() + SHUTDOWN_MS; !is_shutdown && clock_ms() < until_ms;) {
        bool moved = tcp_progress(fabric);
        is_shutdown = true;
        for (struct endpoint *b = fabric->endpoints; b; b = b->next)
            is_shutdown &= tcp_endpoint_advance_shutdown(tcp_endpoint_of(b));
        if (!is_shutdown && !moved) fabric_pause_unlocked(fabric);
    }
    for (struct endpoint *b = fabric->endpoints; b; b = b->next)
        if (!endpoint_is_broken(b)) tcp_endpoint_end(fabric, tcp_endpoint_of(b), "this process ends");
}

/* ---- the beginning and the end ---- */
static void tcp_finish(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    if (!sockets) return;
    tcp_endpoints_free(fabric);
    pending_connections_close(fabric);
    socket_handle_close(fabric, &sockets->listener);
    for (struct tcp_xfer *xfer; (xfer = sockets->spare) != NULL; free(xfer)) sockets->spare = xfer->next;
    if (fabric->event >= 0) close(fabric->event);
    fabric->event = -1;
    fabric->own = NULL;
    free(sockets);
}
static tutti_status tcp_start(struct fabric *fabric, const struct fabric_place *place)
{
    struct sockets *sockets = memory_alloc_zeroed(1, sizeof *sockets);
    fabric->own = sockets;
    fabric->event = -1;
    if (!sockets) return status_fail(TUTTI_NO_MEMORY, "no memory for connections");
    sockets->listener = (struct socket_handle){ LISTENER, -1, 0 };
    for (int i = 0; i < PENDING_MOST; i++) sockets->pending[i].handle = (struct socket_handle){ PENDING, -1, 0 };
    fabric->event = descriptor_move_above_stderr(epoll_create1(EPOLL_CLOEXEC));
    if (fabric->event < 0)
        return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wait on: %s", strerror(errno));
    TRY(tcp_address_listen(sockets, place));
    TRY(socket_handle_watch(fabric, &sockets->listener, EPOLLIN));
    memcpy(fabric->address, &sockets->address, sizeof sockets->address);
    fabric->address_bytes = sizeof sockets->address;
    return TUTTI_OK;
}
const struct fabric_operations tcp_operations = { .name = "tcp",
    .start = tcp_start,
    .part = tcp_shutdown,
    .finish = tcp_finish,
    .connect = tcp_connect,
    .send = tcp_send,
    .fetch = tcp_fetch,
    .release = tcp_release,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .disconnect = tcp_disconnect,
    .address = tcp_endpoint_print_address };
struct fabric tcp_fabric = FABRIC(&tcp_operations);
