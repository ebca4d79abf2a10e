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
/* Handles one completion of a queue pair of the adapter. */
static void verbs_handle_completion(struct fabric *fabric, const struct adapter *adapter, const struct ibv_wc *wc)
{
    struct nic *nic = nic_of_fabric(fabric);
    if (adapter == nic->adapters && wc->qp_num == nic->datagram_queue.qp->qp_num) {
        verbs_handle_datagram(fabric, wc);
        return;
    }
    struct lane *lane = verbs_nic_find_lane(nic, adapter, wc->qp_num);
    struct verbs_endpoint *endpoint = lane ? lane->endpoint : NULL;
    bool is_receive = wc->status == IBV_WC_SUCCESS ? (wc->opcode & IBV_WC_RECV) != 0 : wc->wr_id == 0;
    if (is_receive) nic->used_receives++;
    /* A completion of a destroyed queue pair is ignored. */
    if (!endpoint || (!is_receive && wc->wr_id >> 32 != verbs_endpoint_tag(endpoint))) return;
    if (wc->status != IBV_WC_SUCCESS) {
        verbs_endpoint_fail(fabric, endpoint, verbs.ibv_wc_status_str(wc->status));
        return;
    }
    if (is_receive) {
        verbs_endpoint_receive(fabric, endpoint, wc);
        return;
    }
    struct verbs_xfer *fetch = lane_complete_request(lane, (unsigned)wc->wr_id);
    if (fetch) verbs_endpoint_complete_fetch(fabric, endpoint, fetch);
    nic->needs_progress |= endpoint->waiting || endpoint->reading || eager_ring_owes_ack(&endpoint->ring);
}
/* Handles completions of all adapters, and posts receives again. true: there were completions. */
static bool verbs_poll_completions(struct fabric *fabric)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct ibv_wc found[COMPLETIONS_AT_ONCE];
    bool found_some = false;
    for (const struct adapter *adapter = nic->adapters; adapter < nic->adapters + nic->adapter_count; adapter++) {
        int count = ibv_poll_cq(adapter->completions, COMPLETIONS_AT_ONCE, found);
        for (int i = 0; i < count; i++) verbs_handle_completion(fabric, adapter, &found[i]);
        found_some |= count > 0;
    }
    if (nic->used_receives >= RECEIVES_AT_ONCE && !verbs_nic_post_receives(nic))
        LOG(ERROR, "%s accepts no more receives: %s", nic_message_port(nic)->name, strerror(errno));
    return found_some;
}
/* Returns the name of port `number` of the adapter's device if a rail uses the port, otherwise NULL. */
static const char *nic_port_name(const struct nic *nic, const struct adapter *adapter, int number)
{
    for (int i = 0; i < nic->rail_count; i++)
        if (nic->rails[i].adapter == adapter && nic->rails[i].port->number == number) return nic->rails[i].port->name;
    return NULL;
}
/* Returns whether the endpoint uses the adapter: by one of its connected lanes, or before they are connected by the
   first. */
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
/* Handles completions, continues handshakes, and continues endpoints that wait for room or owe an acknowledgement.
   true: there were completions. */
static bool verbs_progress(struct fabric *fabric)
{
    struct nic *nic = nic_of_fabric(fabric);
    bool moved = verbs_poll_completions(fabric);
    if (fabric->needs_poll) verbs_advance_handshakes(fabric);
    if (!nic->needs_progress) return moved;
    nic->needs_progress = false;
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        if (endpoint->is_open && !endpoint_is_broken(endpoint))
            verbs_endpoint_progress(fabric, verbs_endpoint_of(endpoint));
    return moved;
}
/* Makes the adapter's descriptor readable at the next completion. Handles device events, and deregisters memory that is
   gone. */
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
/* Arms all adapters (fabric_operations). false: a completion has come meanwhile. */
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
    if (address->is_ethernet) snprintf(out, bytes, "%s", gid);
    else snprintf(out, bytes, "LID %d", address->lid);
}

/* ---- start ---- */
/* Makes fabric->event_descriptor readable whenever this descriptor is. */
static tutti_status verbs_watch_descriptor(struct fabric *fabric, int descriptor)
{
    struct epoll_event what = { .events = EPOLLIN };
    if (epoll_ctl(fabric->event_descriptor, EPOLL_CTL_ADD, descriptor, &what) == 0) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM, "cannot create a file descriptor to wait for a device: %s", strerror(errno));
}
/* Opens the devices, and stores this process's address in the fabric. After an error the caller calls verbs_finish. */
static tutti_status verbs_start(struct fabric *fabric, const struct fabric_environment *environment)
{
    struct nic *nic;
    fabric->event_descriptor = -1;
    fabric->state = NULL;
    tutti_status status = nic_create(fabric, environment, &nic);
    fabric->state = nic;
    if (status != TUTTI_OK) return status;
    fabric->event_descriptor = descriptor_move_above_stderr(epoll_create1(EPOLL_CLOEXEC));
    if (fabric->event_descriptor < 0)
        return status_fail(TUTTI_SYSTEM, "epoll cannot watch a device: %s", strerror(errno));
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
/* Closes the endpoint by force, and reports that to the peer. */
static void verbs_endpoint_disconnect(struct fabric *fabric, struct endpoint *endpoint)
{
    verbs_endpoint_send_closed(fabric, verbs_endpoint_of(endpoint));
    verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "this process closed it");
}
/* Returns whether all messages of the endpoint, GOODBYE included, are known to have arrived, or the endpoint is broken
   or was never connected. */
static bool verbs_endpoint_is_drained(const struct verbs_endpoint *endpoint)
{
    return endpoint_is_broken(&endpoint->base) || !endpoint->lane_count
        || (endpoint->goodbye_is_sent && !endpoint->waiting && endpoint->ring.sent == endpoint->ring.written);
}
/* Sends GOODBYE to all peers, each as soon as its eager ring has room, and waits until all messages have arrived, but
   not beyond `until_ms`. */
static void verbs_endpoints_drain(struct fabric *fabric, int64_t until_ms)
{
    bool is_drained = false;
    while (!is_drained && clock_ms() < until_ms) {
        is_drained = true;
        for (struct endpoint *base = fabric->endpoints; base; base = base->next) {
            struct verbs_endpoint *endpoint = verbs_endpoint_of(base);
            if (!endpoint->goodbye_is_sent && endpoint->lane_count && !endpoint_is_broken(base))
                endpoint->goodbye_is_sent = eager_ring_send_control(fabric, endpoint, GOODBYE, true);
            is_drained &= verbs_endpoint_is_drained(endpoint);
        }
        if (!is_drained && !verbs_progress(fabric)) fabric_pause_unlocked(fabric);
    }
}
/* Drains all endpoints, and then fails them, because this process ends. */
static void verbs_shutdown(struct fabric *fabric)
{
    if (!fabric->state) return;
    verbs_endpoints_drain(fabric, clock_ms() + GOODBYE_MS);
    for (struct endpoint *endpoint = fabric->endpoints; endpoint; endpoint = endpoint->next)
        verbs_endpoint_fail(fabric, verbs_endpoint_of(endpoint), "this process ends");
}
/* Frees the state of the fabric, also after a start that failed. */
static void verbs_finish(struct fabric *fabric)
{
    if (fabric->state) verbs_endpoints_destroy(fabric);
    nic_destroy(nic_of_fabric(fabric));
    fabric->state = NULL;
    if (fabric->event_descriptor >= 0) close(fabric->event_descriptor);
    fabric->event_descriptor = -1;
}
const struct fabric_operations verbs_operations = { .name = "verbs",
    .start = verbs_start,
    .shutdown = verbs_shutdown,
    .finish = verbs_finish,
    .connect = verbs_connect_process,
    .send = verbs_send,
    .fetch = verbs_fetch,
    .release = verbs_release,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .disconnect = verbs_endpoint_disconnect,
    .print_address = verbs_endpoint_print_address };
struct fabric verbs_fabric = FABRIC(&verbs_operations);
