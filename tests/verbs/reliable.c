/* Carries out requests of reliable connections: makes the checks of both ends in the order of a device, and moves the
   bytes in portions. The checks are repeated before each portion. So a change in the middle of a message (memory is
   deregistered, a port goes down) is noticed, as a device notices it between packets. */
#include "tests/verbs/machine.h"
#include <string.h>

enum { PORTION = 1 << 18, PSN_MASK = 0xffffff };

/* ---- does it reach the peer? ---- */
static bool is_plugged(const struct pair *p) { return p->device->up && !p->device->broken && !p->unplugged; }
static const struct ibv_gid_entry *gid_of(const struct pair *p)
{
    return device_gid(p->device, p->attr.ah_attr.grh.sgid_index);
}
static bool gids_equal(const union ibv_gid *a, const union ibv_gid *b) { return !memcmp(a, b, sizeof *a); }
/* Returns the peer's queue pair if packets reach it and both ends agree on GIDs, numbers and packet sequence numbers;
   otherwise NULL. */
static struct pair *peer_reach(const struct pair *p)
{
    struct pair *peer = pair_find(p->attr.dest_qp_num);
    if (!peer || peer->ibv.qp_type != IBV_QPT_RC || !is_plugged(p) || !is_plugged(peer)) return NULL;
    int state = atomic_load(&peer->state);
    if (state != IBV_QPS_RTR && state != IBV_QPS_RTS) return NULL;
    const struct ibv_gid_entry *mine = gid_of(p), *its = gid_of(peer);
    if (!mine || !its || mine->gid_type != its->gid_type) return NULL;
    if (!gids_equal(&p->attr.ah_attr.grh.dgid, &its->gid) || !gids_equal(&peer->attr.ah_attr.grh.dgid, &mine->gid))
        return NULL;
    return peer->attr.dest_qp_num == p->ibv.qp_num && peer->receive_psn == p->send_psn ? peer : NULL;
}
/* Sends a request again later, because the peer does not answer. After retry_cnt retries the request fails; with a
   timeout of 0 it never does. */
static uint64_t request_retry_unanswered(struct pair *p, uint64_t now)
{
    uint64_t wait_ns = p->attr.timeout ? 4096ull << p->attr.timeout : 1000000;
    if (machine.limits.retry_us) wait_ns = machine.limits.retry_us * 1000ull;
    if (p->attr.timeout && p->retries > p->attr.retry_cnt) {
        send_complete(p, IBV_WC_RETRY_EXC_ERR);
    } else {
        if (p->retries++) machine_count(FAKE_RETRIES, 1);
        p->not_before = now + wait_ns;
    }
    return 1;
}
/* Sends a request again after the time that the peer demands (min_rnr_timer), because the peer has no receive. After
   rnr_retry retries the request fails; 7 means retries without limit. */
static uint64_t request_retry_not_ready(struct pair *p, const struct pair *peer, uint64_t now)
{
    static const uint16_t tens_of_us[32] = { 65535, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384,
        512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152 };
    machine_count(FAKE_NOT_READY, 1);
    if (p->attr.rnr_retry != 7 && p->not_ready++ >= p->attr.rnr_retry) send_complete(p, IBV_WC_RNR_RETRY_EXC_ERR);
    else p->not_before = now + tens_of_us[peer->attr.min_rnr_timer] * 10000ull;
    return 1;
}
/* Fails the request with an error that the peer reports, and the peer's queue pair with an event. */
static uint64_t request_refuse(struct pair *p, struct pair *peer, enum ibv_wc_status status)
{
    pair_fail(peer);
    pair_raise(peer, status == IBV_WC_REM_ACCESS_ERR ? IBV_EVENT_QP_ACCESS_ERR : IBV_EVENT_QP_REQ_ERR);
    send_complete(p, status);
    return 1;
}

/* ---- checks ---- */
static bool takes_receive(const struct work *w)
{
    return w->opcode != IBV_WR_RDMA_WRITE && w->opcode != IBV_WR_RDMA_READ;
}
static bool is_send(const struct work *w) { return w->opcode == IBV_WR_SEND || w->opcode == IBV_WR_SEND_WITH_IMM; }
static unsigned remote_access(const struct work *w)
{
    return is_send(w) ? 0 : w->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
}
static enum ibv_wc_status local_check(const struct pair *p, const struct work *w)
{
    if (w->length > machine.limits.max_message) return IBV_WC_LOC_LEN_ERR;
    if (w->opcode == IBV_WR_RDMA_READ && !p->attr.max_rd_atomic) return IBV_WC_LOC_QP_OP_ERR;
    return local_is_allowed(p->ibv.pd, w, w->opcode == IBV_WR_RDMA_READ) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}
static uint64_t mtu_bytes(const struct pair *p) { return 128ull << p->attr.path_mtu; }
static enum ibv_wc_status remote_check(const struct pair *p, const struct pair *peer, const struct work *w,
    const struct ibv_sge *remote)
{
    uint64_t least = mtu_bytes(p) < mtu_bytes(peer) ? mtu_bytes(p) : mtu_bytes(peer);
    unsigned access = remote_access(w);
    if (mtu_bytes(p) != mtu_bytes(peer) && w->length > least) return IBV_WC_REM_INV_REQ_ERR;
    if ((peer->attr.qp_access_flags & access) != access) return IBV_WC_REM_INV_REQ_ERR;
    if (w->opcode == IBV_WR_RDMA_READ && !peer->attr.max_dest_rd_atomic) return IBV_WC_REM_INV_REQ_ERR;
    return !access || remote_is_allowed(peer->ibv.pd, remote, access) ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}
/* Returns true if the peer's oldest receive can take the message. If not, the receive and the request fail, and with
   them both queue pairs. */
static bool receive_check(struct pair *p, struct pair *peer, const struct work *w)
{
    const struct work *r = queue_head(&peer->receive);
    enum ibv_wc_status status = IBV_WC_SUCCESS;
    if (!p->moved && receive_is_forced(&status)) {
    } else if (is_send(w) && r->length < w->length) status = IBV_WC_LOC_LEN_ERR;
    else if (is_send(w) && w->length && !local_is_allowed(peer->ibv.pd, r, true)) status = IBV_WC_LOC_PROT_ERR;
    if (status == IBV_WC_SUCCESS) return true;
    receive_complete(peer, (struct ibv_wc){ .status = status }, false);
    send_complete(p, status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR);
    return false;
}

/* ---- the bytes ---- */
static uint64_t portion_move(struct pair *p, struct pair *peer, const struct work *w, const struct ibv_sge *remote)
{
    uint64_t bytes = w->length - p->moved < PORTION ? w->length - p->moved : PORTION;
    struct place here = { w->sges, w->count, w->inlined }, there = { remote, 1, NULL };
    if (is_send(w)) {
        const struct work *r = queue_head(&peer->receive);
        there = (struct place){ r->sges, r->count, NULL };
    }
    if (w->opcode == IBV_WR_RDMA_READ) bytes_move(here, p->moved, there, p->moved, bytes);
    else bytes_move(there, p->moved, here, p->moved, bytes);
    p->moved += bytes;
    p->retries = 0;
    return bytes;
}
static void peer_finish(struct pair *peer, const struct work *w)
{
    if (atomic_load(&peer->state) == IBV_QPS_RTR && !peer->established) pair_raise(peer, IBV_EVENT_COMM_EST);
    peer->established = true;
    if (!takes_receive(w)) return;
    bool has_immediate = w->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || w->opcode == IBV_WR_SEND_WITH_IMM;
    struct ibv_wc wc = { .opcode = is_send(w) ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
        .byte_len = (uint32_t)w->length,
        .wc_flags = has_immediate ? IBV_WC_WITH_IMM : 0,
        .imm_data = has_immediate ? w->immediate : 0,
        .src_qp = peer->attr.dest_qp_num };
    receive_complete(peer, wc, w->flags & IBV_SEND_SOLICITED);
}
static void request_finish(struct pair *p, struct pair *peer, const struct work *w)
{
    uint64_t packets = w->length ? (w->length + mtu_bytes(p) - 1) / mtu_bytes(p) : 1;
    p->send_psn = (uint32_t)((p->send_psn + packets) & PSN_MASK);
    peer->receive_psn = p->send_psn;
    machine_count(is_send(w)                ? FAKE_BYTES_SENT
            : w->opcode == IBV_WR_RDMA_READ ? FAKE_BYTES_READ
                                            : FAKE_BYTES_WRITTEN,
        w->length);
    peer_finish(peer, w);
    send_complete(p, IBV_WC_SUCCESS);
}

uint64_t reliable_step(struct pair *p, struct work *w, uint64_t now)
{
    enum ibv_wc_status status = local_check(p, w);
    if (status != IBV_WC_SUCCESS) { send_complete(p, status); return 1; }
    struct pair *peer = peer_reach(p);
    if (!peer) return request_retry_unanswered(p, now);
    struct ibv_sge remote = { w->remote_address, (uint32_t)w->length, w->rkey };
    status = remote_check(p, peer, w, &remote);
    if (status != IBV_WC_SUCCESS) return request_refuse(p, peer, status);
    if (takes_receive(w)) {
        if (!receive_head(peer)) return request_retry_not_ready(p, peer, now);
        if (!receive_check(p, peer, w)) return 1;
    }
    uint64_t bytes = portion_move(p, peer, w, &remote);
    if (p->moved == w->length) request_finish(p, peer, w);
    return bytes + 1;
}
