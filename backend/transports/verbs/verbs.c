/* Starts and ends the fabric, handles completions and device events, and holds the table of fabric operations. */
#include "backend/transports/verbs/verbs.h"
#include "backend/base/descriptor.h"
#include "backend/base/log.h"
#include "backend/transports/verbs/nic.h"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { COMPLETIONS_AT_ONCE = 32 };

/* ---- completions and events ---- */
static void hear_completion(struct fabric *fabric, const struct adapter *adapter, const struct ibv_wc *wc)
{
    struct nic *nic = nic_of(fabric);
    if (adapter == nic->adapters && wc->qp_num == nic->greeter.pair->qp_num) {
        greeter_hear(fabric, wc);
        return;
    }
    struct lane *lane = nic_find(nic, adapter, wc->qp_num);
    struct verbs_endpoint *e = lane ? lane->endpoint : NULL;
    bool receive = wc->status == IBV_WC_SUCCESS ? (wc->opcode & IBV_WC_RECV) != 0 : wc->wr_id == 0;
    if (receive) nic->used_receives++;
    /* A completion of a destroyed queue pair is ignored. */
    if (!e || (!receive && wc->wr_id >> 32 != endpoint_tag(e))) return;
    if (wc->status != IBV_WC_SUCCESS) {
        endpoint_fail(fabric, e, verbs.ibv_wc_status_str(wc->status));
        return;
    }
    if (receive) {
        box_hear(fabric, e, wc);
        return;
    }
    struct verbs_xfer *fetch = requests_end(lane, (unsigned)wc->wr_id);
    if (fetch) endpoint_fetched(fabric, e, fetch);
    nic->stalled |= e->waiting || e->reading || box_owes(&e->box);
}
static bool hear_all(struct fabric *fabric)
{
    struct nic *nic = nic_of(fabric);
    struct ibv_wc found[COMPLETIONS_AT_ONCE];
    bool heard = false;
    for (const struct adapter *a = nic->adapters; a < nic->adapters + nic->adapter_count; a++) {
        int count = ibv_poll_cq(a->completions, COMPLETIONS_AT_ONCE, found);
        for (int i = 0; i < count; i++) hear_completion(fabric, a, &found[i]);
        heard |= count > 0;
    }
    if (nic->used_receives >= RECEIVES_AT_ONCE && !nic_post_receives(nic))
        LOG(ERROR, "%s accepts no more receives: %s", nic_port(nic)->name, strerror(errno));
    return heard;
}
/* Returns the name of the port if a rail uses it, otherwise NULL. */
static const char *port_name(const struct nic *nic, const struct adapter *adapter, int number)
{
    for (int i = 0; i < nic->rail_count; i++)
        if (nic->rails[i].adapter == adapter && nic->rails[i].port->number == number) return nic->rails[i].port->name;
    return NULL;
}
static bool is_by(const struct verbs_endpoint *e, const struct adapter *adapter)
{
    int count = e->lane_count ? e->lane_count : 1, i = 0;
    while (i < count && e->lanes[i].rail->adapter != adapter) i++;
    return i < count;
}
static void hear_events(struct fabric *fabric, const struct adapter *adapter)
{
    struct ibv_async_event event;
    while (verbs.ibv_get_async_event(adapter->port->context, &event) == 0) {
        enum ibv_event_type kind = event.event_type;
        bool of_port = kind == IBV_EVENT_PORT_ERR || kind == IBV_EVENT_PORT_ACTIVE;
        const char *port = of_port ? port_name(nic_of(fabric), adapter, event.element.port_num) : NULL;
        verbs.ibv_ack_async_event(&event);
        if (port) LOG(WARN, "the port %s is %s", port, kind == IBV_EVENT_PORT_ERR ? "down" : "up again");
        else LOG(INFO, "event %d of the device of %s", (int)kind, adapter->port->name);
        if (kind != IBV_EVENT_DEVICE_FATAL && kind != IBV_EVENT_CQ_ERR) continue;
        for (struct endpoint *e = fabric->endpoints; e; e = e->next)
            if (is_by(verbs_of(e), adapter)) endpoint_fail(fabric, verbs_of(e), "its device has failed");
    }
}
bool verbs_progress(struct fabric *fabric)
{
    struct nic *nic = nic_of(fabric);
    bool moved = hear_all(fabric);
    if (fabric->needs_poll) verbs_greet(fabric);
    if (!nic->stalled) return moved;
    nic->stalled = false;
    for (struct endpoint *e = fabric->endpoints; e; e = e->next)
        if (e->open && !endpoint_is_broken(e)) endpoint_go_on(fabric, verbs_of(e));
    return moved;
}
static void arm_adapter(struct fabric *fabric, const struct adapter *a)
{
    struct ibv_cq *queue;
    void *cookie;
    while (verbs.ibv_get_cq_event(a->channel, &queue, &cookie) == 0) verbs.ibv_ack_cq_events(queue, 1);
    hear_events(fabric, a);
    registration_sweep(a->memory);
    errno = ibv_req_notify_cq(a->completions, 0);
    if (errno) LOG(ERROR, "%s cannot announce completions: %s", a->port->name, strerror(errno));
}
static bool verbs_arm(struct fabric *fabric)
{
    struct nic *nic = nic_of(fabric);
    for (const struct adapter *a = nic->adapters; a < nic->adapters + nic->adapter_count; a++) arm_adapter(fabric, a);
    return !verbs_progress(fabric);
}

static void endpoint_address(const struct endpoint *e, char *out, size_t bytes)
{
    const struct verbs_address *address = &((const struct verbs_endpoint *)e)->address;
    char gid[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, address->gid, gid, sizeof gid);
    if (address->ethernet) snprintf(out, bytes, "%s", gid);
    else snprintf(out, bytes, "LID %d", address->lid);
}

/* ---- start and finish ---- */
static tutti_status descriptor_watch(struct fabric *fabric, int descriptor)
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
    fabric->event = descriptor_raised(epoll_create1(EPOLL_CLOEXEC));
    if (fabric->event < 0) return status_fail(TUTTI_SYSTEM, "epoll cannot watch a device: %s", strerror(errno));
    for (int i = 0; i < nic->adapter_count; i++) {
        TRY(descriptor_watch(fabric, nic->adapters[i].channel->fd));
        TRY(descriptor_watch(fabric, nic->adapters[i].port->context->async_fd));
    }
    const struct verbs_address address = nic_address(fabric);
    memcpy(fabric->address, &address, sizeof address);
    fabric->address_bytes = sizeof address;
    return TUTTI_OK;
}
static void verbs_part_all(struct fabric *fabric)
{
    if (fabric->own) verbs_part(fabric);
}
static void verbs_finish(struct fabric *fabric)
{
    if (fabric->own) endpoints_destroy(fabric);
    nic_destroy(nic_of(fabric));
    fabric->own = NULL;
    if (fabric->event >= 0) close(fabric->event);
    fabric->event = -1;
}
const struct fabric_operations verbs_operations = { .name = "verbs",
    .start = verbs_start,
    .part = verbs_part_all,
    .finish = verbs_finish,
    .connect = verbs_connect,
    .send = verbs_send,
    .fetch = verbs_fetch,
    .release = verbs_release,
    .progress = verbs_progress,
    .arm = verbs_arm,
    .disconnect = verbs_disconnect,
    .address = endpoint_address };
struct fabric verbs_fabric = FABRIC(&verbs_operations);
