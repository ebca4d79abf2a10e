/* Creates, connects and destroys the queue pairs of an endpoint, one on each rail. Its eager rings belong to the
   first. */
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
/* Creates a reliable queue pair. `inline_bytes` is NULL for lanes that carry only reads. */
static struct ibv_qp *rail_create_qp(const struct nic *nic, const struct rail *rail, uint32_t *inline_bytes)
{
    const struct adapter *adapter = rail->adapter;
    struct ibv_qp_init_attr how = { .send_cq = adapter->completions,
        .recv_cq = adapter->completions,
        .srq = inline_bytes ? nic->receives : NULL,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = SENDS, .max_send_sge = 1, .max_inline_data = inline_bytes ? INLINE_BYTES : 0 } };
    struct ibv_qp *pair = verbs.ibv_create_qp(adapter->domain, &how);
    /* The device may support no inline data. */
    if (!pair && inline_bytes) {
        how.cap.max_inline_data = 0;
        pair = verbs.ibv_create_qp(adapter->domain, &how);
    }
    if (inline_bytes) *inline_bytes = how.cap.max_inline_data;
    return pair;
}
static struct lane **nic_lane_bucket(struct nic *nic, const struct lane *lane)
{
    return &nic->bucket[lane->pair->qp_num % LANE_BUCKETS];
}
/* Creates lane `i` of an endpoint, in state INIT. */
static tutti_status verbs_lane_create(struct nic *nic, struct verbs_endpoint *endpoint, int i)
{
    struct lane *lane = &endpoint->lanes[i];
    lane->endpoint = endpoint;
    lane->rail = &nic->rails[i];
    TRY(verbs_adapter_reserve_lane(lane->rail->adapter));
    lane->pair = rail_create_qp(nic, lane->rail, i == 0 ? &endpoint->inline_bytes : NULL);
    if (!lane->pair) return device_port_fail_call(lane->rail->port, "queue pair");
    lane->rail->adapter->lanes++;
    lane->next_of_bucket = *nic_lane_bucket(nic, lane);
    *nic_lane_bucket(nic, lane) = lane;
    struct ibv_qp_attr start = { .qp_state = IBV_QPS_INIT,
        .port_num = lane->rail->port->number,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
    errno =
        verbs.ibv_modify_qp(lane->pair, &start, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return errno ? device_port_fail_call(lane->rail->port, "queue pair in state INIT") : TUTTI_OK;
}
tutti_status lanes_create(struct nic *nic, struct verbs_endpoint *endpoint)
{
    TRY(eager_ring_create(&nic->rails[0], &endpoint->ring));
    for (int i = 0; i < nic->rail_count; i++) TRY(verbs_lane_create(nic, endpoint, i));
    return TUTTI_OK;
}
/* Destroys the lane's queue pair. */
static void lane_destroy(struct nic *nic, struct lane *lane)
{
    if (!lane->pair) return;
    struct lane **at = nic_lane_bucket(nic, lane);
    while (*at != lane) at = &(*at)->next_of_bucket;
    *at = lane->next_of_bucket;
    verbs.ibv_destroy_qp(lane->pair);
    lane->rail->adapter->lanes--;
    lane->pair = NULL;
}
void lanes_destroy(struct nic *nic, struct verbs_endpoint *endpoint)
{
    for (int i = 0; i < nic->rail_count; i++) lane_destroy(nic, &endpoint->lanes[i]);
}

/* ---- connecting ---- */
/* Returns the path to an address: LID on InfiniBand, GID on Ethernet. */
static struct ibv_ah_attr device_port_path_to(const struct device_port *port, const struct verbs_address *address)
{
    struct ibv_ah_attr way = { .dlid = address->lid,
        .sl = (uint8_t)settings_get()->verbs_sl,
        .port_num = port->number,
        .is_global = address->ethernet };
    if (!address->ethernet) return way;
    way.grh.sgid_index = (uint8_t)port->gid.index;
    way.grh.hop_limit = 64;
    way.grh.traffic_class = (uint8_t)settings_get()->verbs_tc;
    memcpy(&way.grh.dgid, address->gid, sizeof way.grh.dgid);
    return way;
}
tutti_status verbs_endpoint_create_ah(const struct nic *nic, struct verbs_endpoint *endpoint)
{
    const struct rail *rail = &nic->rails[0];
    struct ibv_ah_attr way = device_port_path_to(rail->port, &endpoint->address);
    endpoint->address_handle = verbs.ibv_create_ah(rail->adapter->domain, &way);
    return endpoint->address_handle
        ? TUTTI_OK
        : device_port_fail_call(rail->port, "path to the other host (no route from this port?)");
}
tutti_status lane_connect(const struct nic *nic, struct lane *lane, const struct verbs_address *address, uint32_t psn)
{
    const struct device_port *port = lane->rail->port;
    const struct ibv_device_attr *about = &lane->rail->adapter->about;
    uint8_t reads = rdma_reads_clamp(about->max_qp_init_rd_atom);
    struct ibv_qp_attr hears = { .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)(address->mtu < port->mtu ? address->mtu : (uint8_t)port->mtu),
        .dest_qp_num = address->pair,
        .rq_psn = psn,
        .max_dest_rd_atomic = rdma_reads_clamp(about->max_qp_rd_atom),
        .min_rnr_timer = 1, /* 10 us */
        .ah_attr = device_port_path_to(port, address) };
    errno = verbs.ibv_modify_qp(lane->pair, &hears,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER);
    if (errno) return device_port_fail_call(port, "queue pair in state RTR");
    struct ibv_qp_attr speaks = { .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)settings_get()->verbs_timeout,
        .retry_cnt = (uint8_t)settings_get()->verbs_retry_cnt,
        /* 7 retries without limit: a slow peer is alive, and the link between the processes reports a dead one. */
        .rnr_retry = 7,
        .sq_psn = nic->psn & 0xffffff,
        .max_rd_atomic = reads < address->reads ? reads : address->reads };
    errno = verbs.ibv_modify_qp(lane->pair, &speaks,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    return errno ? device_port_fail_call(port, "queue pair in state RTS") : TUTTI_OK;
}
