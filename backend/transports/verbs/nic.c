/* Creates and destroys the rails, and the shared receive queue on the first adapter, which serves all endpoints. A
   receive has no buffer, because messages are written into an eager ring; it only delivers the immediate value. */
#include "backend/transports/verbs/nic.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/base/settings.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- creating ---- */
static tutti_status nic_find_ports(struct nic *nic, const struct fabric_place *place)
{
    const struct device_environment environment = { .interface = place->simulated ? NULL : place->device };
    TRY(verbs_library_load());
    return devices_create(&environment, &nic->devices);
}
static tutti_status nic_get_adapter(struct nic *nic, const struct device_port *port, struct adapter **out)
{
    for (*out = nic->adapters; *out < nic->adapters + nic->adapter_count; ++*out)
        if ((*out)->port->context == port->context) return TUTTI_OK;
    (*out)->index = nic->adapter_count++;
    int beside = (*out)->index ? 0 : RECEIVES + 4 * DATAGRAM_SLOTS;
    return adapter_init(*out, port, beside, PAIRS_AT_FIRST * (int)settings_get()->verbs_rails);
}
/* Puts the rails on the nearest ports; if there are more rails than ports, several rails share a port. */
static tutti_status nic_create_rails(struct nic *nic)
{
    int order[PORTS_MOST], count = (int)settings_get()->verbs_rails;
    devices_order_by_distance(nic->devices, -1, NULL, order);
    for (int i = 0; i < count; i++) {
        struct rail *rail = &nic->rails[i];
        rail->port = &nic->devices->ports[order[i % nic->devices->count]];
        TRY(nic_get_adapter(nic, rail->port, &rail->adapter));
        nic->rail_count++;
        LOG(INFO, "verbs: rail %d is %s, by GID %d", i, rail->port->name, rail->port->gid.index);
    }
    return TUTTI_OK;
}
/* Creates the shared receive queue, whose receives only signal that a message was written. */
static tutti_status nic_create_receives(struct nic *nic)
{
    const struct adapter *adapter = &nic->adapters[0];
    int most = int_smaller(RECEIVES, adapter->about.max_srq_wr);
    struct ibv_srq_init_attr how = { .attr = { .max_wr = (uint32_t)most, .max_sge = 1 } };
    nic->receives = verbs.ibv_create_srq(adapter->domain, &how);
    if (!nic->receives) return device_port_fail_call(adapter->port, "shared receive queue");
    nic->used_receives = most;
    return verbs_nic_post_receives(nic) ? TUTTI_OK : device_port_fail_call(adapter->port, "receive");
}
tutti_status nic_create(const struct fabric *fabric, const struct fabric_place *place, struct nic **out)
{
    struct nic *nic = *out = memory_alloc_zeroed(1, sizeof *nic);
    if (!nic) return status_fail(TUTTI_NO_MEMORY, "no memory for a device");
    TRY(nic_find_ports(nic, place));
    TRY(nic_create_rails(nic));
    TRY(nic_create_receives(nic));
    TRY(random_fill(&nic->psn, sizeof nic->psn));
    /* Random ids differ from those of a fabric that this process has closed. */
    TRY(random_fill(&nic->ids, sizeof nic->ids));
    return datagram_queue_init(fabric, nic);
}
void nic_destroy(struct nic *nic)
{
    if (!nic) return;
    datagram_queue_finish(nic);
    if (nic->receives) verbs.ibv_destroy_srq(nic->receives);
    for (int i = 0; i < nic->adapter_count; i++) adapter_finish(&nic->adapters[i]);
    devices_destroy(nic->devices);
    free(nic);
}
struct verbs_address verbs_qp_address(const struct rail *rail, const struct ibv_qp *pair)
{
    const struct device_port *port = rail->port;
    struct verbs_address address = { .pair = pair->qp_num,
        .lid = port->lid,
        .ethernet = port->ethernet,
        .mtu = port->mtu & 0x7fu,
        .reads = rdma_reads_clamp(rail->adapter->about.max_qp_rd_atom) };
    memcpy(address.gid, &port->gid.raw, sizeof address.gid);
    return address;
}

struct verbs_address nic_address(const struct fabric *fabric)
{
    const struct nic *nic = nic_of_fabric(fabric);
    struct verbs_address address = verbs_qp_address(&nic->rails[0], nic->datagram_queue.pair);
    address.life = fabric->life;
    return address;
}

/* ---- lanes and receives ---- */
struct lane *verbs_nic_find_lane(const struct nic *nic, const struct adapter *adapter, uint32_t pair)
{
    struct lane *lane = nic->bucket[pair % LANE_BUCKETS];
    while (lane && (lane->pair->qp_num != pair || lane->rail->adapter != adapter)) lane = lane->next_of_bucket;
    return lane;
}
bool verbs_nic_post_receives(struct nic *nic)
{
    struct ibv_recv_wr list[RECEIVES_AT_ONCE], *bad;
    while (nic->used_receives > 0) {
        int count = int_smaller(nic->used_receives, RECEIVES_AT_ONCE);
        for (int i = 0; i < count; i++) list[i] = (struct ibv_recv_wr){ .next = i + 1 < count ? &list[i + 1] : NULL };
        errno = ibv_post_srq_recv(nic->receives, list, &bad);
        if (errno) return false;
        nic->used_receives -= count;
    }
    return true;
}
