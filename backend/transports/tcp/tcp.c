/* The table of the fabric: how it starts and ends, and which sockets are read and written next. */
#include "backend/transports/tcp/tcp.h"
#include "backend/base/descriptor.h"
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVENTS_AT_ONCE = 16 };

/* ---- progress ---- */
static bool endpoint_go_on(struct fabric *fabric, struct tcp_endpoint *e, uint32_t events)
{
    /* An earlier event may have closed the socket. */
    if (e->handle.descriptor < 0) return false;
    if (!e->base.open) {
        call_advance(fabric, e);
        return true;
    }
    bool moved = (events & ~(uint32_t)EPOLLOUT) && endpoint_read(fabric, e);
    if ((events & EPOLLOUT) && is_connected(e)) moved |= endpoint_write(fabric, e);
    return moved;
}
static struct tcp_endpoint *endpoint_of(struct handle *handle)
{
    return (struct tcp_endpoint *)(void *)((char *)handle - offsetof(struct tcp_endpoint, handle));
}
static bool ask_all(struct fabric *fabric)
{
    struct epoll_event found[EVENTS_AT_ONCE];
    bool moved = false;
    int count = epoll_wait(fabric->event, found, EVENTS_AT_ONCE, 0);
    for (int i = 0; i < count; i++) {
        struct handle *handle = found[i].data.ptr;
        if (handle->purpose == ENDPOINT) moved |= endpoint_go_on(fabric, endpoint_of(handle), found[i].events);
        else if (handle->purpose == PENDING) pending_read(fabric, (struct pending_connection *)(void *)handle);
        else pending_accept(fabric);
        moved |= handle->purpose != ENDPOINT;
    }
    return moved;
}
static bool read_few(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    struct tcp_endpoint *few[UNASKED];
    bool moved = false;
    int count = s->open;
    memcpy(few, s->few, sizeof few);
    for (int i = 0; i < count; i++) moved |= endpoint_read(fabric, few[i]);
    return moved;
}
static bool write_busy(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    struct tcp_endpoint *e = s->busy, *next;
    bool moved = false;
    for (s->busy = NULL; e; e = next) {
        next = e->next_busy;
        e->busy = false;
        if (is_connected(e) && tls_has_unread(e->tls)) moved |= endpoint_read(fabric, e);
        if (is_connected(e)) moved |= endpoint_write(fabric, e);
    }
    return moved;
}
static bool go_on(struct fabric *fabric, bool all)
{
    struct sockets *s = sockets_of(fabric);
    all |= s->open > UNASKED || s->blocked || fabric->needs_poll || ++s->looks % ASK_EVERY == 0;
    bool moved = all ? ask_all(fabric) : read_few(fabric);
    if (s->busy) moved |= write_busy(fabric);
    if (fabric->needs_poll) handshakes_expire(fabric);
    return moved;
}
bool tcp_progress(struct fabric *fabric) { return go_on(fabric, false); }
static bool tcp_arm(struct fabric *fabric) { return !go_on(fabric, true) && !sockets_of(fabric)->busy; }

static void endpoint_address(const struct endpoint *e, char *out, size_t bytes)
{
    address_print(((const struct tcp_endpoint *)e)->handle.descriptor, out, bytes);
}

/* ---- the beginning and the end ---- */
static void tcp_part_all(struct fabric *fabric)
{
    if (fabric->own) tcp_part(fabric);
}
static void tcp_finish(struct fabric *fabric)
{
    struct sockets *s = sockets_of(fabric);
    if (!s) return;
    endpoints_free(fabric);
    pending_drop_all(fabric);
    handle_close(fabric, &s->listener);
    for (struct tcp_xfer *xfer; (xfer = s->spare) != NULL; free(xfer)) s->spare = xfer->next;
    if (fabric->event >= 0) close(fabric->event);
    fabric->event = -1;
    fabric->own = NULL;
    free(s);
}
static tutti_status tcp_start(struct fabric *fabric, const struct fabric_place *place)
{
    struct sockets *s = memory_zeroed(1, sizeof *s);
    fabric->own = s;
    fabric->event = -1;
    if (!s) return status_fail(TUTTI_NO_MEMORY, "no memory for connections");
    s->listener = (struct handle){ LISTENER, -1, 0 };
    for (int i = 0; i < PENDING_MOST; i++) s->pending[i].handle = (struct handle){ PENDING, -1, 0 };
    fabric->event = descriptor_raised(epoll_create1(EPOLL_CLOEXEC));
    if (fabric->event < 0)
        return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wait on: %s", strerror(errno));
    TRY(address_listen(s, place));
    TRY(handle_watch(fabric, &s->listener, EPOLLIN));
    memcpy(fabric->address, &s->address, sizeof s->address);
    fabric->address_bytes = sizeof s->address;
    return TUTTI_OK;
}
const struct fabric_operations tcp_operations = { .name = "tcp",
    .start = tcp_start,
    .part = tcp_part_all,
    .finish = tcp_finish,
    .connect = tcp_connect,
    .send = tcp_send,
    .fetch = tcp_fetch,
    .release = tcp_release,
    .progress = tcp_progress,
    .arm = tcp_arm,
    .disconnect = tcp_disconnect,
    .address = endpoint_address };
struct fabric tcp_fabric = FABRIC(&tcp_operations);
