/* An eager ring has one sender and one receiver. The sender builds messages in its own copy, writes them into the
 * peer's eager ring by RDMA, and the peer reads them there.
 *
 * A message never wraps around the end of the eager ring: the sender skips the remaining bytes, which count as written.
 * Positions count from the start of the connection; each message carries its end, so the receiver knows what was
 * skipped. A message has room when the peer has read, and the device has sent, the bytes that it would replace. Part of
 * the eager ring is reserved for ACK and GOODBYE, so that two processes with full eager rings can still acknowledge. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <endian.h>
#include <string.h>

static size_t xfer_payload_bytes(const struct verbs_xfer *xfer)
{
    switch (xfer->what) {
    case EAGER: return sizeof(struct header) + xfer->op->bytes;
    case OFFER: return sizeof(struct header) + sizeof(struct offer);
    case DONE: return sizeof(uint64_t);
    default: return 0;
    }
}
static void xfer_fill_payload(unsigned char *at, const struct verbs_xfer *xfer)
{
    switch (xfer->what) {
    case EAGER:
        memcpy(at, &xfer->op->header, sizeof(struct header));
        memcpy(at + sizeof(struct header), xfer->data, xfer->op->bytes);
        return;
    case OFFER:
        memcpy(at, &xfer->op->header, sizeof(struct header));
        memcpy(at + sizeof(struct header), &xfer->offer, sizeof xfer->offer);
        return;
    case DONE: memcpy(at, &xfer->offer.id, sizeof xfer->offer.id); return;
    default: return;
    }
}
static bool eager_ring_write_message(struct fabric *fabric, struct verbs_endpoint *e, const struct verbs_xfer *xfer,
    bool signalled)
{
    struct eager_ring *ring = &e->ring;
    size_t bytes = sizeof(struct prefix) + xfer_payload_bytes(xfer), taken = size_round_up(bytes, RING_GRAIN);
    uint64_t begin = ring->written, offset = begin % RING_BYTES;
    uint64_t reserve = xfer->what == ACK || xfer->what == GOODBYE ? 0 : RING_RESERVE;
    if (offset + taken > RING_BYTES) begin += RING_BYTES - offset;
    uint64_t oldest = ring->left < ring->sent ? ring->left : ring->sent, end = begin + taken;
    if (end + reserve - oldest > RING_BYTES || !lane_has_room(&e->lanes[0])) return false;
    const struct prefix prefix = {
        .position = end, .consumed = ring->consumed, .what = xfer->what, .bytes = (uint32_t)(bytes - sizeof prefix)
    };
    unsigned char *at = ring->out + begin % RING_BYTES;
    memcpy(at, &prefix, sizeof prefix);
    xfer_fill_payload(at + sizeof prefix, xfer);
    ring->written = end;
    ring->acked = ring->consumed;
    int error = verbs_endpoint_post_write(e, begin, bytes, signalled);
    if (error) verbs_endpoint_fail(fabric, e, strerror(error));
    return true;
}
bool eager_ring_send_xfer(struct fabric *fabric, struct verbs_endpoint *e, const struct verbs_xfer *xfer)
{
    return eager_ring_write_message(fabric, e, xfer, false);
}
bool eager_ring_send_control(struct fabric *fabric, struct verbs_endpoint *e, enum verbs_what what, bool signalled)
{
    return eager_ring_write_message(fabric, e, &(struct verbs_xfer){ .what = what }, signalled);
}
bool eager_ring_owes_ack(const struct eager_ring *ring) { return ring->consumed - ring->acked >= RING_BYTES / 4; }

/* ---- receiving ---- */
static const char cannot_be[] = "its process has sent an invalid message";
static void eager_ring_handle_offer(struct fabric *fabric, struct verbs_endpoint *e, const struct header *header,
    const unsigned char *at)
{
    struct descriptor *d = offer_descriptor_new(e, at);
    if (d && fabric_handle_message(fabric, &e->base, header, d, (size_t)d->offer.bytes, true)) return;
    if (d) verbs_release(fabric, d);
    else verbs_endpoint_fail(fabric, e, "no memory for an incoming message");
}
static void eager_ring_handle_message(struct fabric *fabric, struct verbs_endpoint *e, const struct prefix *prefix,
    unsigned char *at)
{
    struct header header;
    size_t bytes = prefix->bytes - sizeof header;
    memcpy(&header, at, sizeof header);
    at += sizeof header;
    if (prefix->what == EAGER) fabric_handle_message(fabric, &e->base, &header, at, bytes, false);
    else eager_ring_handle_offer(fabric, e, &header, at);
}
static void eager_ring_handle_done(struct fabric *fabric, struct verbs_endpoint *e, const unsigned char *at)
{
    uint64_t id;
    memcpy(&id, at, sizeof id);
    if (!verbs_endpoint_complete_offer(fabric, e, id)) endpoint_mark_faulty(fabric, &e->base, cannot_be);
}
static bool prefix_length_is_valid(const struct prefix *prefix)
{
    switch (prefix->what) {
    case EAGER: return prefix->bytes >= sizeof(struct header);
    case OFFER: return prefix->bytes == sizeof(struct header) + sizeof(struct offer);
    case DONE: return prefix->bytes == sizeof(uint64_t);
    case ACK:
    case GOODBYE: return prefix->bytes == 0;
    default: return false;
    }
}
static bool prefix_is_valid(const struct eager_ring *ring, const struct prefix *prefix, uint64_t offset, size_t bytes)
{
    uint64_t taken = size_round_up(bytes, RING_GRAIN);
    bool fits = bytes == sizeof *prefix + prefix->bytes && offset + taken <= RING_BYTES;
    /* The step includes the bytes that the sender skipped. */
    uint64_t step = prefix->position - ring->consumed;
    bool follows = step >= taken && step <= RING_BYTES && (prefix->position - taken) % RING_BYTES == offset;
    return fits && follows && prefix_length_is_valid(prefix) && prefix->consumed <= ring->written
        && prefix->consumed >= ring->left;
}
void eager_ring_on_receive(struct fabric *fabric, struct verbs_endpoint *e, const struct ibv_wc *wc)
{
    struct eager_ring *ring = &e->ring;
    struct prefix prefix;
    uint64_t offset = (uint64_t)be32toh(wc->imm_data) * RING_GRAIN;
    size_t bytes = wc->byte_len;
    if (offset + sizeof prefix > RING_BYTES || bytes < sizeof prefix) bytes = 0;
    else memcpy(&prefix, ring->in + offset, sizeof prefix);
    if (e->base.faulty) return;
    if (!bytes || !prefix_is_valid(ring, &prefix, offset, bytes)) {
        endpoint_mark_faulty(fabric, &e->base, cannot_be);
        return;
    }
    unsigned char *at = ring->in + offset + sizeof prefix;
    ring->left = prefix.consumed;
    switch ((enum verbs_what)prefix.what) {
    case EAGER:
    case OFFER: eager_ring_handle_message(fabric, e, &prefix, at); break;
    case DONE: eager_ring_handle_done(fabric, e, at); break;
    case GOODBYE: e->base.left = true; break;
    case ACK: break;
    }
    ring->consumed = prefix.position;
    nic_of_fabric(fabric)->stalled |= eager_ring_owes_ack(ring) || e->waiting;
}
