/* The endpoints, one for each process that this process is connected to: how they are created, counted and ended. A
 * failed endpoint stays without its socket until the fabric ends, because messages from it may still be pending. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- sockets in epoll ---- */
tutti_status socket_handle_watch(const struct fabric *fabric, struct socket_handle *handle, uint32_t events)
{
    struct epoll_event what = { .events = events, .data.ptr = handle };
    int how = !handle->events ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL;
    if (events == handle->events) return TUTTI_OK;
    if (epoll_ctl(fabric->event_descriptor, how, handle->descriptor, &what) != 0)
        return status_fail(TUTTI_SYSTEM, "epoll cannot watch a socket: %s", strerror(errno));
    handle->events = events;
    return TUTTI_OK;
}
/* Removes the socket from epoll and shuts it down before closing it, because a child of fork may also have it. */
void socket_handle_close(const struct fabric *fabric, struct socket_handle *handle)
{
    if (handle->descriptor < 0) return;
    socket_handle_watch(fabric, handle, 0);
    shutdown(handle->descriptor, SHUT_RDWR);
    close(handle->descriptor);
    handle->descriptor = -1;
}

/* ---- creating and counting ---- */
struct tcp_endpoint *tcp_endpoint_new(struct fabric *fabric, const unsigned char process[16])
{
    struct tcp_endpoint *endpoint = memory_alloc_zeroed(1, sizeof *endpoint);
    if (!endpoint) return NULL;
    memcpy(endpoint->base.process, process, sizeof endpoint->base.process);
    endpoint->handle = (struct socket_handle){ ENDPOINT, -1, 0 };
    endpoint->rival_descriptor = -1;
    endpoint->base.next = fabric->endpoints;
    fabric->endpoints = &endpoint->base;
    return endpoint;
}
void sockets_count_open(struct fabric *fabric)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    sockets->open_count = 0;
    for (struct endpoint *base = fabric->endpoints; base; base = base->next) {
        if (!tcp_endpoint_is_connected(tcp_endpoint_of(base))) continue;
        if (sockets->open_count < UNASKED) sockets->first_open[sockets->open_count] = tcp_endpoint_of(base);
        sockets->open_count++;
    }
}

/* ---- the end ---- */
/* Closes the rival connection, if there is one. */
static void tcp_endpoint_close_rival(struct tcp_endpoint *endpoint)
{
    if (endpoint->rival_descriptor >= 0) close(endpoint->rival_descriptor);
    endpoint->rival_descriptor = -1;
}
/* Drops the frame that is being received. */
static void incoming_frame_reset(struct fabric *fabric, struct incoming_frame *in)
{
    if (in->eager_op) fabric_op_free(fabric, in->eager_op);
    *in = (struct incoming_frame){ .head_bytes = 0 };
}
/* Ends one endpoint without its loopback peer: closes its sockets, and fails its transfers for the reason `why`. */
static void tcp_endpoint_end_alone(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why)
{
    struct sockets *sockets = tcp_sockets_of(fabric);
    bool was_open = tcp_endpoint_is_connected(endpoint);
    endpoint_mark_broken(fabric, &endpoint->base, why);
    sockets->blocked_count -= (endpoint->handle.events & EPOLLOUT) != 0 && was_open;
    socket_handle_close(fabric, &endpoint->handle);
    tcp_endpoint_close_rival(endpoint);
    tls_free(endpoint->tls);
    endpoint->tls = NULL;
    endpoint->current_xfer = NULL;
    incoming_frame_reset(fabric, &endpoint->in);
    tcp_endpoint_complete_xfers(fabric, endpoint, why);
    if (was_open) sockets_count_open(fabric);
}
void tcp_endpoint_end(struct fabric *fabric, struct tcp_endpoint *endpoint, const char *why)
{
    struct tcp_endpoint *loopback_peer = endpoint->loopback_peer;
    tcp_endpoint_end_alone(fabric, endpoint, why);
    if (!loopback_peer) return;
    endpoint->loopback_peer = loopback_peer->loopback_peer = NULL;
    tcp_endpoint_end_alone(fabric, loopback_peer, why);
}
void tcp_disconnect(struct fabric *fabric, struct endpoint *endpoint)
{
    tcp_endpoint_end(fabric, tcp_endpoint_of(endpoint), "this process closed it");
}
void tcp_endpoints_free(struct fabric *fabric)
{
    for (struct endpoint *base; (base = fabric->endpoints) != NULL; free(base)) {
        tcp_endpoint_end(fabric, tcp_endpoint_of(base), "this process ends");
        fabric->endpoints = base->next;
    }
}
