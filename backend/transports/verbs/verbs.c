/* Starts and ends the fabric, disconnects endpoints, handles completions and device events, and holds the table of
   fabric operations. */
#include "backend/transports/verbs/verbs.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/log.h"
#include "backend/transports/verbs/nic.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { COMPLETIONS_AT_ONCE = 32, GOODBYE_MS = 300 };

/* ---- completions and events ---- */
/* Handles one completion of a queue pair. */
static void verbs_handle_completion(struct fabric *fabric, const struct adapter *adapter, const struct ibv_wc *wc)
{
    struct nic *nic = nic_of_fabric(fabric);
    if (adapter == nic->adapters && wc->qp_num == nic->datagram_queue.pair->qp_num) {
        verbs_handle_datagram(fabric, wc);
        return;
    }
    struct lane *lane = verbs_nic_find_lane(nic, adapter, wc->qp_num);
    struct verbs_endpoint *endpoint = lane ? lane->endpoint : NULL;
    bool receive = wc->status == IBV_WC_SUCCESS ? (wc->opcode & IBV_WC_RECV) != 0 : wc->wr_id == 0;
    if (receive) nic->used_receives++;
    /* A completion of a destroyed queue pair is ignored. */
    if (!endpoint || (!receive && wc->wr_id >> 32 != verbs_endpoint_tag(endpoint))) return;
    if (wc->status != IBV_WC_SUCCESS) {
        verbs_endpoint_fail(fabric, endpoint, verbs.ibv_wc_status_str(wc->status));
        return;
    }
    if (receive) {
        verbs_endpoint_receive(fabric, endpoint, wc);
        return;
    }
    struct verbs_xfer *fetch = lane_complete_request(lane, (unsigned)wc->wr_id);
    if (fetch) verbs_endpoint_complete_fetch(fabric, endpoint, fetch);
    nic->stalled |= endpoint->waiting || endpoint->reading || eager_ring_owes_ack(&endpoint->ring);
}
/* Handles completions of all adapters, and posts receives again. True: there were some. */
static bool verbs_poll_completions(struct fabric *fabric)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct ibv_wc found[COMPLETIONS_AT_ONCE];
    bool consumed = false;
    for (const struct adapter *adapter = nic->adapters; adapter < nic->adapters + nic->adapter_count; adapter++) {
        int count = ibv_poll_cq(adapter->completions, COMPLETIONS_AT_ONCE, found);
        for (int i = 0; i < count; i++) verbs_handle_completion(fabric, adapter, &found[i]);
        consumed |= count > 0;
    }
    if (nic->used_receives >= RECEIVES_AT_ONCE && !verbs_nic_post_receives(nic))
        LOG(ERROR, "%s accepts no more receives: %s", nic_message_port(nic)->name, strerror(errno));
    return consumed;
}
/* Returns the name of the port if a rail uses it, otherwise NULL. */
static const char *nic_port_name(const struct nic *nic, const struct adapter *adapter, int number)
{
    for (int i = 0; i < nic->rail_count; i++)
        if (nic->rails[i].adapter == adapter && nic->rails[i].port->number == number) return nic->rails[i].port->name;
    return NULL;
}
static bool verbs_endpoint_uses_adapter(const struct verbs_endpoint *endpoint, const struct adapter *adapter)
{
    int count = endpoint->lane_count ? endpoint->lane_count : 1, i = 0;
    while (i < count && endpoint->lanes[i].rail->adapter != adapter) i++;
    return i < count;
}
/* Logs events of a device, and fails the endpoints of a device that has failed. */
static void verbs_handle_device_events(struct fabric *fabric, const struct adapter *adapter)
{
    struct ibv_async_event event;
    while (verbs.ibv_get_async_event(adapter->port->context, &event) == 0) {
        enum ibv_event_type kind = event.event_type;
        bool of_port = kind == IBV_EVENT_PORT_ERR || kind == IBV_EVENT_PORT_ACTIVE;
        const char *port = of_port ? nic_port_name(nic_of_fabric(fabric), adapter, event.element.port_num) : NULL;
        verbs.ibv_ack_async_event(&event);
        if (port) LOG(WARN, "the port %s is %s", port, kind == IBV_EVENT_PORT_ERR ? "down" : "up again");
        else LOG(INFO, "event %d of the device of %s", (int)kind, adapter->port->name);
        if (kind != IBV_EVENT_DEVICE_FATAL && kind != IBV_EVENT_CQ_ERR) continue;
        for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
            if (verbs_endpoint_uses_adapter(verbs_endpoint_of(endpoint), adapter))
                verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "its device has failed");
    }
}
/* Polls, continues handshakes, and continues endpoints that could not send. True: something moved. */
static bool verbs_progress(struct fabric *fabric)
{
    struct nic *nic = nic_of_fabric(fabric);
    bool moved = verbs_poll_completions(fabric);
    if (fabric->needs_poll) verbs_advance_handshakes(fabric);
    if (!nic->stalled) return moved;
    nic->stalled = false;
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        if (endpoint->open && !endpoint_is_broken(endpoint))
            verbs_endpoint_progress(fabric, verbs_endpoint_of(endpoint));
    return moved;
}
/* Makes the adapter's descriptor ready at the next completion. */
static void verbs_arm_adapter(struct fabric *fabric, const struct adapter *adapter)
{
    struct ibv_cq *queue;
    void *cookie;
    while (verbs.ibv_get_cq_event(adapter->channel, &queue, &cookie) == 0) verbs.ibv_ack_cq_events(queue, 1);
    verbs_handle_device_events(fabric, adapter);
    registration_cache_sweep(adapter->memory);
    errno = ibv_req_notify_cq(adapter->completions, 0);
    if (errno) LOG(ERROR, "%s cannot announce completions: %s", adapter->port->name, strerror(errno));
}
static bool verbs_arm(struct fabric *fabric)
{
    struct nic *nic = nic_of_fabric(fabric);
    for (const struct adapter *adapter = nic->adapters; adapter < nic->adapters + nic->adapter_count; adapter++)
        verbs_arm_adapter(fabric, adapter);
    return !verbs_progress(fabric);
}

static void verbs_endpoint_print_address(const struct endpoint *endpoint, char *out, size_t bytes)
{
    const struct verbs_address *address = &((const struct verbs_endpoint *)endpoint)->address;
    char gid[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, address->gid, gid, sizeof gid);
    if (address->ethernet) snprintf(out, bytes, "%s", gid);
    else snprintf(out, bytes, "LID %d", address->lid);
}

/* ---- start ---- */
static tutti_status verbs_watch_descriptor(struct fabric *fabric, int descriptor)
{
    struct epoll_event what = { .events = EPOLLIN };
    if (epoll_ctl(fabric->event, EPOLL_CTL_ADD, descriptor, &what) == 0) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wait for a device: %s", strerror(errno));
}
static tutti_status verbs_start(struct fabric *fabric, const struct fabric_place *place)
{
    struct nic *nic;
    fabric->event = -1;
    fabric->own = NULL;
    tutti_status status = nic_create(fabric, place, &nic);
    fabric->own = nic;
    if (status != TUTTI_OK) return status;
    fabric->event = descriptor_move_above_stderr(epoll_create1(EPOLL_CLOEXEC));
    if (fabric->event < 0) return status_fail(TUTTI_SYSTEM, "epoll cannot watch a device: %s", strerror(errno));
    for (int i = 0; i < nic->adapter_count; i++) {
        TRY(verbs_watch_descriptor(fabric, nic->adapters[i].channel->fd));
        TRY(verbs_watch_descriptor(fabric, nic->adapters[i].port->context->async_fd));
    }
    const struct verbs_address address = nic_address(fabric);
    memcpy(fabric->address, &address, sizeof address);
    fabric->address_bytes = sizeof address;
    return TUTTI_OK;
}

/* ---- shutdown and finish ---- */
static void verbs_endpoint_disconnect(struct fabric *fabric, struct endpoint *endpoint)
{
    verbs_endpoint_send_closed(fabric, verbs_endpoint_of(endpoint));
    verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "this process closed it");
}
/* All messages have arrived when the GOODBYE behind them is known to have arrived. */
static bool verbs_endpoint_is_drained(const struct verbs_endpoint *endpoint)
{
    return endpoint_is_broken(&endpoint->base) || !endpoint->lane_count
        || (!endpoint->waiting && endpoint->ring.sent == endpoint->ring.written);
}
/* Sends GOODBYE to all peers and waits until `until_ms` for theirs. */
static void verbs_endpoints_drain(struct fabric *fabric, int64_t until_ms)
{
    bool said = false, parted = false;
    while (!parted && clock_ms() < until_ms) {
        parted = true;
        for (struct endpoint *b = fabric->endpoints; b; b = b->next) {
            struct verbs_endpoint *endpoint = verbs_endpoint_of(b);
            if (!said && endpoint->lane_count && !endpoint_is_broken(b))
                eager_ring_send_control(fabric, endpoint, GOODBYE, true);
            parted &= verbs_endpoint_is_drained(endpoint);
        }
        said = true;
        if (!parted && !verbs_progress(fabric)) fabric_pause_unlocked(fabric);
    }
}
static void verbs_shutdown(struct fabric *fabric)
{
    if (!fabric->own) return;
    verbs_endpoints_drain(fabric, clock_ms() + GOODBYE_MS);
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "this process ends");
}
static void verbs_finish(struct fabric *fabric)
{
    if (fabric->own) verbs_endpoints_destroy(fabric);
    nic_destroy(nic_of_fabric(fabric));
    fabric->own = NULL;
    if (fabric->event >= 0) close(fabric->event);
    fabric->event = -1;
}
const struct fabric_operations verbs_operations = { .name = "verbs",
    .start = verbs_start,
    .part = verbs_shutdown,
    .finish = verbs_finish,
    .connect = verbs_connect_process,
    .send = verbs_send,
    .fetch = verbs_fetch,
    .release = verbs_release,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .disconnect = verbs_endpoint_disconnect,
    .address = verbs_endpoint_print_address };
struct fabric verbs_fabric = FABRIC(&verbs_operations);
