/* Creates, connects and destroys the lanes of an endpoint: one queue pair on each rail. The eager rings of the endpoint
   belong to the first lane. */
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/transports/verbs/nic.h"
#include <errno.h>
#include <string.h>

/* ---- creating and destroying ---- */
/* Allocates and registers both buffers of the ring: `in`, into which the peer writes, and `out`. */
static tutti_status eager_ring_create(const struct rail *rail, struct eager_ring *ring)
{
    struct ibv_pd *domain = rail->adapter->domain;
    ring->in = memory_alloc_aligned(RING_BYTES);
    ring->out = memory_alloc_aligned(RING_BYTES);
    if (!ring->in || !ring->out) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    ring->in_region = verbs.ibv_reg_mr(domain, ring->in, RING_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!ring->in_region) return device_port_fail_call(rail->port, "memory for messages");
    ring->out_region = verbs.ibv_reg_mr(domain, ring->out, RING_BYTES, IBV_ACCESS_LOCAL_WRITE);
    return ring->out_region ? TUTTI_OK : device_port_fail_call(rail->port, "memory for messages");
}
/* Returns a new reliable queue pair (RC), or NULL with errno. *inline_bytes is set to the inline data that it accepts.
   inline_bytes NULL: the queue pair carries only reads. */
static struct ibv_qp *rail_create_qp(const struct nic *nic, const struct rail *rail, uint32_t *inline_bytes)
{
    const struct adapter *adapter = rail->adapter;
    struct ibv_qp_init_attr attributes = { .send_cq = adapter->completions,
        .recv_cq = adapter->completions,
        .srq = inline_bytes ? nic->receives : NULL,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = SENDS, .max_send_sge = 1, .max_inline_data = inline_bytes ? INLINE_BYTES : 0 } };
    struct ibv_qp *qp = verbs.ibv_create_qp(adapter->domain, &attributes);
    /* The device may support no inline data. */
    if (!qp && inline_bytes) {
        attributes.cap.max_inline_data = 0;
        qp = verbs.ibv_create_qp(adapter->domain, &attributes);
    }
    if (inline_bytes) *inline_bytes = attributes.cap.max_inline_data;
    return qp;
}
/* Returns the list of nic->bucket that the lane belongs to. */
static struct lane **nic_lane_bucket(struct nic *nic, const struct lane *lane)
{
    return &nic->bucket[lane->qp->qp_num % LANE_BUCKETS];
}
/* Creates the lane of an endpoint on the rail with this index, in state INIT. */
static tutti_status verbs_lane_create(struct nic *nic, struct verbs_endpoint *endpoint, int index)
{
    struct lane *lane = &endpoint->lanes[index];
    lane->endpoint = endpoint;
    lane->rail = &nic->rails[index];
    TRY(verbs_adapter_reserve_lane(lane->rail->adapter));
    lane->qp = rail_create_qp(nic, lane->rail, index == 0 ? &endpoint->inline_bytes : NULL);
    if (!lane->qp) return device_port_fail_call(lane->rail->port, "queue pair");
    lane->rail->adapter->lane_count++;
    lane->next_of_bucket = *nic_lane_bucket(nic, lane);
    *nic_lane_bucket(nic, lane) = lane;
    struct ibv_qp_attr attributes = { .qp_state = IBV_QPS_INIT,
        .port_num = lane->rail->port->number,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
    errno = verbs.ibv_modify_qp(lane->qp, &attributes,
        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return errno ? device_port_fail_call(lane->rail->port, "queue pair in state INIT") : TUTTI_OK;
}
tutti_status lanes_create(struct nic *nic, struct verbs_endpoint *endpoint)
{
    TRY(eager_ring_create(&nic->rails[0], &endpoint->ring));
    for (int i = 0; i < nic->rail_count; i++) TRY(verbs_lane_create(nic, endpoint, i));
    return TUTTI_OK;
}
/* Destroys the lane's queue pair, if it has one. */
static void lane_destroy(struct nic *nic, struct lane *lane)
{
    if (!lane->qp) return;
    struct lane **at = nic_lane_bucket(nic, lane);
    while (*at != lane) at = &(*at)->next_of_bucket;
    *at = lane->next_of_bucket;
    verbs.ibv_destroy_qp(lane->qp);
    lane->rail->adapter->lane_count--;
    lane->qp = NULL;
}
void lanes_destroy(struct nic *nic, struct verbs_endpoint *endpoint)
{
    for (int i = 0; i < nic->rail_count; i++) lane_destroy(nic, &endpoint->lanes[i]);
}

/* ---- connecting ---- */
/* Returns the path from a port to an address: by LID on InfiniBand, by GID on Ethernet. */
static struct ibv_ah_attr device_port_path_to(const struct device_port *port, const struct verbs_address *address)
{
    struct ibv_ah_attr path = { .dlid = address->lid,
        .sl = (uint8_t)settings_get()->verbs_sl,
        .port_num = port->number,
        .is_global = address->is_ethernet };
    if (!address->is_ethernet) return path;
    path.grh.sgid_index = (uint8_t)port->gid.index;
    path.grh.hop_limit = 64;
    path.grh.traffic_class = (uint8_t)settings_get()->verbs_tc;
    memcpy(&path.grh.dgid, address->gid, sizeof path.grh.dgid);
    return path;
}
tutti_status verbs_endpoint_create_ah(const struct nic *nic, struct verbs_endpoint *endpoint)
{
    const struct rail *rail = &nic->rails[0];
    struct ibv_ah_attr path = device_port_path_to(rail->port, &endpoint->address);
    endpoint->address_handle = verbs.ibv_create_ah(rail->adapter->domain, &path);
    return endpoint->address_handle
        ? TUTTI_OK
        : device_port_fail_call(rail->port, "path to the other host (no route from this port?)");
}
tutti_status lane_connect(const struct nic *nic, struct lane *lane, const struct verbs_address *address, uint32_t psn)
{
    const struct device_port *port = lane->rail->port;
    const struct ibv_device_attr *limits = &lane->rail->adapter->attributes;
    uint8_t own_reads = rdma_reads_clamp(limits->max_qp_init_rd_atom);
    struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)(address->mtu < port->mtu ? address->mtu : (uint8_t)port->mtu),
        .dest_qp_num = address->qp_number,
        .rq_psn = psn,
        .max_dest_rd_atomic = rdma_reads_clamp(limits->max_qp_rd_atom),
        .min_rnr_timer = 1, /* 10 us */
        .ah_attr = device_port_path_to(port, address) };
    errno = verbs.ibv_modify_qp(lane->qp, &rtr,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER);
    if (errno) return device_port_fail_call(port, "queue pair in state RTR");
    struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)settings_get()->verbs_timeout,
        .retry_cnt = (uint8_t)settings_get()->verbs_retry_cnt,
        /* 7 means retries without limit: a peer without a posted receive is only slow, and the link between the
           processes reports a dead one. */
        .rnr_retry = 7,
        .sq_psn = nic->psn & 0xffffff,
        .max_rd_atomic = own_reads < address->read_limit ? own_reads : address->read_limit };
    errno = verbs.ibv_modify_qp(lane->qp, &rts,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return errno ? device_port_fail_call(port, "queue pair in state RTS") : TUTTI_OK;
}
