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
/* Opens the library, and finds the usable ports of this host. */
static tutti_status nic_find_ports(struct nic *nic, const struct fabric_environment *environment)
{
    const struct device_environment wanted = { .interface = environment->simulated ? NULL : environment->device };
    TRY(verbs_library_load());
    return devices_create(&wanted, &nic->devices);
}
/* Writes the adapter of the device of this port to *out. Creates it if no earlier port belongs to the device. */
static tutti_status nic_get_adapter(struct nic *nic, const struct device_port *port, struct adapter **out)
{
    for (*out = nic->adapters; *out < nic->adapters + nic->adapter_count; ++*out)
        if ((*out)->port->context == port->context) return TUTTI_OK;
    (*out)->index = nic->adapter_count++;
    int other_completions = (*out)->index ? 0 : RECEIVES + 4 * DATAGRAM_SLOTS;
    return adapter_init(*out, port, other_completions, PAIRS_AT_FIRST * (int)settings_get()->verbs_rails);
}
/* Creates the rails, on the ports that are nearest to this core. If there are more rails than ports, several rails
   share a port. */
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
/* Creates the shared receive queue on the first adapter, and posts its receives, which only signal that a message was
   written. */
static tutti_status nic_create_receives(struct nic *nic)
{
    const struct adapter *adapter = &nic->adapters[0];
    int count = int_smaller(RECEIVES, adapter->attributes.max_srq_wr);
    struct ibv_srq_init_attr attributes = { .attr = { .max_wr = (uint32_t)count, .max_sge = 1 } };
    nic->receives = verbs.ibv_create_srq(adapter->domain, &attributes);
    if (!nic->receives) return device_port_fail_call(adapter->port, "shared receive queue");
    nic->used_receives = count;
    return verbs_nic_post_receives(nic) ? TUTTI_OK : device_port_fail_call(adapter->port, "receive");
}
tutti_status nic_create(const struct fabric *fabric, const struct fabric_environment *environment, struct nic **out)
{
    struct nic *nic = *out = memory_alloc_zeroed(1, sizeof *nic);
    if (!nic) return status_fail(TUTTI_NO_MEMORY, "no memory for a device");
    TRY(nic_find_ports(nic, environment));
    TRY(nic_create_rails(nic));
    TRY(nic_create_receives(nic));
    TRY(random_fill(&nic->psn, sizeof nic->psn));
    /* Random ids differ from those of a fabric that this process has closed. */
    TRY(random_fill(&nic->last_id, sizeof nic->last_id));
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
struct verbs_address verbs_qp_address(const struct rail *rail, const struct ibv_qp *qp)
{
    const struct device_port *port = rail->port;
    struct verbs_address address = { .qp_number = qp->qp_num,
        .lid = port->lid,
        .is_ethernet = port->is_ethernet,
        .mtu = port->mtu & 0x7fu,
        .read_limit = rdma_reads_clamp(rail->adapter->attributes.max_qp_rd_atom) };
    memcpy(address.gid, &port->gid.raw, sizeof address.gid);
    return address;
}

struct verbs_address nic_address(const struct fabric *fabric)
{
    const struct nic *nic = nic_of_fabric(fabric);
    struct verbs_address address = verbs_qp_address(&nic->rails[0], nic->datagram_queue.qp);
    address.life = fabric->life;
    return address;
}

/* ---- lanes and receives ---- */
struct lane *verbs_nic_find_lane(const struct nic *nic, const struct adapter *adapter, uint32_t qp_number)
{
    struct lane *lane = nic->bucket[qp_number % LANE_BUCKETS];
    while (lane && (lane->qp->qp_num != qp_number || lane->rail->adapter != adapter)) lane = lane->next_of_bucket;
    return lane;
}
bool verbs_nic_post_receives(struct nic *nic)
{
    struct ibv_recv_wr list[RECEIVES_AT_ONCE], *bad;
    while (nic->used_receives > 0) {
        int count = int_smaller(nic->used_receives, RECEIVES_AT_ONCE);
        for (int i = 0; i < count; i++) list[i] = (struct ibv_recv_wr){ .next = i + 1 < count ? &list[i + 1] : NULL };
        errno = ibv_post_srq_recv(nic->receives, list, &bad);
        /* After an error the receives before `bad` are posted. */
        nic->used_receives -= errno ? (int)(bad - list) : count;
        if (errno) return false;
    }
    return true;
}
