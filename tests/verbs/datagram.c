/* Carries out the requests of datagrams. The wire copies a datagram when it takes the request from its queue. From then
   on the datagram is independent of the queue pair: it may arrive late, twice or never. The first 40 bytes of a receive
   hold the global route header; for IPv4 only the last 20 of them are used. */
#include "tests/verbs/machine.h"
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_BYTES = 40, ECHO_MOST_US = 1000 };

struct datagram {
    struct datagram *next;
    uint64_t due, length;
    struct ibv_gid_entry from;
    struct ibv_global_route route;
    uint32_t source_qpn, qpn, qkey;
    /* Only the opcode, the flags and the immediate of the request. */
    const struct work what;
    unsigned char bytes[];
};
/* The datagrams that have not arrived, the earliest due time first. */
static struct datagram *under_way;

static void header_write(const struct datagram *d, unsigned char *header)
{
    struct ibv_grh grh = { .version_tclass_flow = htonl(6u << 28),
        .paylen = htons((uint16_t)d->length),
        .hop_limit = d->route.hop_limit,
        .sgid = d->from.gid,
        .dgid = d->route.dgid };
    static const unsigned char mapped[12] = { [10] = 0xff, 0xff };
    memcpy(header, &grh, sizeof grh);
    if (d->from.gid_type != IBV_GID_TYPE_ROCE_V2 || memcmp(d->from.gid.raw, mapped, sizeof mapped)) return;
    memset(header, 0x5e, HEADER_BYTES);
    header[20] = 0x45;
    memcpy(header + 32, d->from.gid.raw + 12, 4);
    memcpy(header + 36, d->route.dgid.raw + 12, 4);
}
static struct pair *datagram_target(const struct datagram *d)
{
    const struct device *at = device_by_gid(&d->route.dgid, d->from.gid_type);
    struct pair *p = pair_find(d->qpn);
    if (!p || p->device != at || !at->up || at->broken || p->unplugged || p->ibv.qp_type != IBV_QPT_UD) return NULL;
    int state = atomic_load(&p->state);
    bool hears = state == IBV_QPS_RTR || state == IBV_QPS_RTS || state == IBV_QPS_SQE;
    return hears && p->attr.qkey == d->qkey && queue_head(&p->receive) ? p : NULL;
}
static void datagram_deliver(struct datagram *d)
{
    struct pair *p = datagram_target(d);
    if (!p) { machine_count(FAKE_DATAGRAMS_LOST, 1); return; }
    const struct work *r = queue_head(&p->receive);
    bool has_immediate = d->what.opcode == IBV_WR_SEND_WITH_IMM;
    struct ibv_wc wc = { .opcode = IBV_WC_RECV,
        .byte_len = (uint32_t)(d->length + HEADER_BYTES),
        .src_qp = d->source_qpn,
        .wc_flags = IBV_WC_GRH | (has_immediate ? IBV_WC_WITH_IMM : 0),
        .imm_data = has_immediate ? d->what.immediate : 0 };
    if (receive_is_forced(&wc.status)) {
    } else if (r->length < wc.byte_len) wc.status = IBV_WC_LOC_LEN_ERR;
    else if (!local_is_allowed(p->ibv.pd, r, true)) wc.status = IBV_WC_LOC_PROT_ERR;
    if (wc.status == IBV_WC_SUCCESS) {
        unsigned char header[HEADER_BYTES];
        struct place to = { r->sges, r->count, NULL };
        header_write(d, header);
        bytes_move(to, 0, (struct place){ NULL, 0, header }, 0, HEADER_BYTES);
        bytes_move(to, HEADER_BYTES, (struct place){ NULL, 0, d->bytes }, 0, d->length);
        machine_count(FAKE_DATAGRAMS, 1);
        machine_count(FAKE_BYTES_SENT, d->length);
    }
    receive_complete(p, wc, d->what.flags & IBV_SEND_SOLICITED);
}
static void datagram_enter(struct datagram *d)
{
    struct datagram **at = &under_way;
    while (*at && (*at)->due <= d->due) at = &(*at)->next;
    d->next = *at;
    *at = d;
}
uint64_t datagrams_deliver(uint64_t now, uint64_t *next)
{
    uint64_t delivered = 0;
    for (; under_way && under_way->due <= now; delivered++) {
        struct datagram *d = under_way;
        under_way = d->next;
        datagram_deliver(d);
        free(d);
    }
    if (under_way && under_way->due < *next) *next = under_way->due;
    return delivered;
}
void datagrams_forget(void)
{
    while (under_way) {
        struct datagram *d = under_way;
        under_way = d->next;
        free(d);
    }
}

static struct datagram *datagram_create(const struct pair *p, const struct work *w, uint64_t due)
{
    struct datagram *d = malloc(sizeof *d + w->length);
    struct datagram made = { .due = due,
        .length = w->length,
        .from = *device_gid(p->device, w->to.grh.sgid_index),
        .route = w->to.grh,
        .source_qpn = p->ibv.qp_num,
        .qpn = w->remote_qpn,
        .qkey = w->remote_qkey >> 31 ? p->attr.qkey : w->remote_qkey,
        .what = { .opcode = w->opcode, .flags = w->flags, .immediate = w->immediate } };
    if (!d) return NULL;
    memcpy(d, &made, sizeof made);
    bytes_move((struct place){ NULL, 0, d->bytes }, 0, (struct place){ w->sges, w->count, w->inlined }, 0, w->length);
    return d;
}
static void datagram_send(const struct pair *p, const struct work *w, uint64_t due)
{
    struct datagram *d = datagram_create(p, w, due);
    if (d) datagram_enter(d);
    else machine_count(FAKE_DATAGRAMS_LOST, 1);
}
static enum ibv_wc_status datagram_check(const struct pair *p, const struct work *w)
{
    if (w->length > 128ull << machine.limits.mtu) return IBV_WC_LOC_LEN_ERR;
    if (!device_gid(p->device, w->to.grh.sgid_index)) return IBV_WC_LOC_QP_OP_ERR;
    return local_is_allowed(p->ibv.pd, w, false) ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR;
}
/* Takes the datagram off its queue at once, also if it is to arrive late, so later datagrams may overtake it. */
uint64_t datagram_step(struct pair *p, struct work *w, uint64_t now)
{
    const struct fake_faults *f = &machine.faults;
    enum ibv_wc_status status = datagram_check(p, w);
    if (status != IBV_WC_SUCCESS) { send_complete(p, status); return 1; }
    if (!p->device->up || p->unplugged || machine_chance(f->drop)) {
        machine_count(FAKE_DATAGRAMS_LOST, 1);
    } else {
        uint64_t delay_us = machine_chance(f->delay) ? machine_random(f->delay_most_us + 1) : 0;
        datagram_send(p, w, now + 1000 * delay_us);
        if (machine_chance(f->duplicate)) {
            machine_count(FAKE_DATAGRAMS_DOUBLED, 1);
            datagram_send(p, w, now + 1000 * (delay_us + machine_random(ECHO_MOST_US)));
        }
    }
    send_complete(p, IBV_WC_SUCCESS);
    uint64_t next = UINT64_MAX;
    return 1 + datagrams_deliver(now, &next);
}
