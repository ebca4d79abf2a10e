/* The queues of an endpoint, and its boxes. Work requests end in the order in which they were posted, so one that is
 * signalled speaks for all before it. */
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/transports/verbs/nic.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- made ---- */
static tutti_status make_boxes(struct nic *nic, struct box *box)
{
    box->in = memory_aligned(BOX_BYTES);
    box->out = memory_aligned(BOX_BYTES);
    if (!box->in || !box->out) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    box->in_region =
        verbs.ibv_reg_mr(nic->domain, box->in, BOX_BYTES, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!box->in_region) return nic_refused(nic, "memory for messages");
    box->out_region = verbs.ibv_reg_mr(nic->domain, box->out, BOX_BYTES, IBV_ACCESS_LOCAL_WRITE);
    return box->out_region ? TUTTI_OK : nic_refused(nic, "memory for messages");
}
static tutti_status make_queues(struct nic *nic, struct verbs_endpoint *e)
{
    struct ibv_qp_init_attr how = { .send_cq = nic->completions,
        .recv_cq = nic->completions,
        .srq = nic->receives,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = SENDS, .max_send_sge = 1, .max_inline_data = INLINE_BYTES } };
    e->pair = verbs.ibv_create_qp(nic->domain, &how);
    if (!e->pair) { /* a device may have none */
        how.cap.max_inline_data = 0;
        e->pair = verbs.ibv_create_qp(nic->domain, &how);
    }
    if (!e->pair) return nic_refused(nic, "pair of queues");
    nic->pairs++;
    e->inline_bytes = how.cap.max_inline_data;
    struct verbs_endpoint **bucket = &nic->bucket[e->pair->qp_num % PAIR_BUCKETS];
    e->next_of_bucket = *bucket;
    *bucket = e;
    struct ibv_qp_attr start = { .qp_state = IBV_QPS_INIT,
        .port_num = nic->port->number,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
    errno = verbs.ibv_modify_qp(e->pair, &start, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    return errno ? nic_refused(nic, "pair of queues in state INIT") : TUTTI_OK;
}
tutti_status pair_create(struct nic *nic, struct verbs_endpoint *e)
{
    TRY(nic_expect_pair(nic));
    TRY(make_boxes(nic, &e->box));
    return make_queues(nic, e);
}
void pair_destroy(struct nic *nic, struct verbs_endpoint *e)
{
    if (!e->pair) return;
    struct verbs_endpoint **at = &nic->bucket[e->pair->qp_num % PAIR_BUCKETS];
    while (*at != e) at = &(*at)->next_of_bucket;
    *at = e->next_of_bucket;
    verbs.ibv_destroy_qp(e->pair); /* from here on nothing of it touches any memory */
    nic->pairs--;
    e->pair = NULL;
}

/* ---- connected ---- */
static struct ibv_ah_attr way_to(const struct nic *nic, const struct card *card)
{
    struct ibv_ah_attr way = { .dlid = card->lid,
        .sl = (uint8_t)settings_get()->verbs_service_level,
        .port_num = nic->port->number,
        .is_global = card->ethernet };
    if (!card->ethernet) return way;
    way.grh.sgid_index = (uint8_t)nic->port->gid.index;
    way.grh.hop_limit = 64;
    way.grh.traffic_class = (uint8_t)settings_get()->verbs_traffic_class;
    memcpy(&way.grh.dgid, card->gid, sizeof way.grh.dgid);
    return way;
}
tutti_status pair_address(const struct nic *nic, struct verbs_endpoint *e)
{
    struct ibv_ah_attr way = way_to(nic, &e->card);
    e->address = verbs.ibv_create_ah(nic->domain, &way);
    return e->address ? TUTTI_OK : nic_refused(nic, "way to the other host (no route by this port?)");
}
static uint8_t reads_at_once(int most) { return (uint8_t)(most > 16 ? 16 : most < 1 ? 1 : most); }
tutti_status pair_connect(struct nic *nic, struct verbs_endpoint *e, uint32_t pair, uint32_t psn)
{
    uint8_t mtu = e->card.mtu < nic->port->mtu ? e->card.mtu : (uint8_t)nic->port->mtu;
    struct ibv_qp_attr hears = { .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)mtu,
        .dest_qp_num = pair,
        .rq_psn = psn,
        .max_dest_rd_atomic = reads_at_once(nic->about.max_qp_rd_atom),
        .min_rnr_timer = 1, /* 10 us */
        .ah_attr = way_to(nic, &e->card) };
    errno = verbs.ibv_modify_qp(e->pair, &hears,
        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER);
    if (errno) return nic_refused(nic, "pair of queues that hears");
    struct ibv_qp_attr speaks = { .qp_state = IBV_QPS_RTS,
        .timeout = (uint8_t)settings_get()->verbs_timeout,
        .retry_cnt = (uint8_t)settings_get()->verbs_retries,
        .rnr_retry = 7, /* for ever: who is slow is not gone, and who is gone the link tells of */
        .sq_psn = nic->psn & 0xffffff,
        .max_rd_atomic = reads_at_once(nic->about.max_qp_init_rd_atom) };
    errno = verbs.ibv_modify_qp(e->pair, &speaks,
        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
    if (errno) return nic_refused(nic, "pair of queues that speaks");
    e->ready = true;
    return TUTTI_OK;
}

/* ---- work requests ---- */
bool pair_has_room(const struct verbs_endpoint *e) { return e->begun - e->ended < SENDS; }
static uint64_t note(struct verbs_endpoint *e, bool signalled, struct posted posted)
{
    e->posted[e->begun % SENDS] = posted;
    if (signalled) e->last_signalled = e->begun;
    return e->number << 32 | e->begun++;
}
int pair_write(struct verbs_endpoint *e, uint64_t begin, size_t bytes, bool signalled)
{
    struct box *box = &e->box;
    uint64_t offset = begin % BOX_BYTES;
    struct ibv_sge from = { (uintptr_t)(box->out + offset), (uint32_t)bytes, box->out_region->lkey };
    signalled |= e->begun - e->last_signalled >= SEND_SIGNALS || box->written - box->signalled >= BOX_BYTES / 4;
    if (signalled) box->signalled = box->written;
    struct ibv_send_wr *bad,
        request = { .sg_list = &from,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
            .send_flags = (signalled ? IBV_SEND_SIGNALED : 0u) | (bytes <= e->inline_bytes ? IBV_SEND_INLINE : 0u),
            .imm_data = htobe32((uint32_t)(offset / BOX_GRAIN)),
            .wr.rdma = { .remote_addr = box->there + offset, .rkey = box->there_key } };
    request.wr_id = note(e, signalled, (struct posted){ .position = box->written });
    return ibv_post_send(e->pair, &request, &bad);
}
static unsigned reads_that_fit(const struct verbs_endpoint *e)
{
    unsigned open = e->begun - e->ended, room = open < SENDS / 2 ? SENDS / 2 - open : 0; /* messages go beside */
    return room < READS_AT_ONCE ? room : READS_AT_ONCE;
}
int pair_read(struct nic *nic, struct verbs_endpoint *e, struct errand *fetch)
{
    struct ibv_send_wr list[READS_AT_ONCE], *bad;
    struct ibv_sge into[READS_AT_ONCE];
    size_t most = size_smaller(READ_BYTES, nic->port->message_bytes), bytes = (size_t)fetch->offer.bytes;
    unsigned count = 0, fit = reads_that_fit(e);
    for (; count < fit && fetch->asked < bytes; count++) {
        size_t part = size_smaller(most, bytes - fetch->asked), at = fetch->asked;
        fetch->asked += part;
        bool last = fetch->asked == bytes, signalled = last || count + 1 == fit;
        into[count] = (struct ibv_sge){ (uintptr_t)fetch->into + at, (uint32_t)part, fetch->memory.region->lkey };
        list[count] = (struct ibv_send_wr){ .sg_list = &into[count],
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_READ,
            .send_flags = signalled ? IBV_SEND_SIGNALED : 0u,
            .wr.rdma = { .remote_addr = fetch->offer.at + at, .rkey = fetch->offer.key } };
        list[count].wr_id =
            note(e, signalled, (struct posted){ .fetch = last ? fetch : NULL, .position = e->box.written });
        if (count > 0) list[count - 1].next = &list[count];
    }
    return count ? ibv_post_send(e->pair, list, &bad) : 0;
}
struct errand *pair_end(struct verbs_endpoint *e, unsigned request)
{
    struct errand *fetch = NULL;
    while (e->ended != request + 1) {
        const struct posted *posted = &e->posted[e->ended++ % SENDS];
        e->box.sent = posted->position;
        fetch = posted->fetch;
    }
    return fetch;
}
