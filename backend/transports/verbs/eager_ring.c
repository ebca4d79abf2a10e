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

/* ---- sending ---- */
/* Returns the length of an xfer's message in the ring, behind its prefix. ACK and GOODBYE consist of a prefix alone. */
static size_t xfer_payload_bytes(const struct verbs_xfer *xfer)
{
    switch (xfer->kind) {
    case EAGER: return sizeof(struct header) + xfer->op->bytes;
    case OFFER: return sizeof(struct header) + sizeof(struct offer);
    case DONE: return sizeof(uint64_t);
    default: return 0;
    }
}
/* Writes what follows the prefix of an xfer's message to `at`: xfer_payload_bytes bytes. DONE has the id of the peer's
   offer that this process has finished with. */
static void xfer_fill_payload(unsigned char *at, const struct verbs_xfer *xfer)
{
    switch (xfer->kind) {
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
/* Builds the message of an xfer, and writes it into the peer's ring by RDMA. false: the ring or the send queue is full.
   RING_RESERVE bytes stay free for ACK and GOODBYE. */
static bool eager_ring_write_message(struct fabric *fabric, struct verbs_endpoint *endpoint,
    const struct verbs_xfer *xfer, bool is_signalled)
{
    struct eager_ring *ring = &endpoint->ring;
    size_t bytes = sizeof(struct prefix) + xfer_payload_bytes(xfer), taken = size_round_up(bytes, RING_GRAIN);
    uint64_t begin = ring->written, offset = begin % RING_BYTES;
    uint64_t reserve = xfer->kind == ACK || xfer->kind == GOODBYE ? 0 : RING_RESERVE;
    if (offset + taken > RING_BYTES) begin += RING_BYTES - offset;
    uint64_t free_from = ring->peer_consumed < ring->sent ? ring->peer_consumed : ring->sent, end = begin + taken;
    if (end + reserve - free_from > RING_BYTES || !lane_has_room(&endpoint->lanes[0])) return false;
    const struct prefix prefix = {
        .position = end, .consumed = ring->consumed, .kind = xfer->kind, .bytes = (uint32_t)(bytes - sizeof prefix)
    };
    unsigned char *at = ring->out + begin % RING_BYTES;
    memcpy(at, &prefix, sizeof prefix);
    xfer_fill_payload(at + sizeof prefix, xfer);
    ring->written = end;
    ring->acked = ring->consumed;
    int error = verbs_endpoint_post_write(endpoint, begin, bytes, is_signalled);
    if (error) verbs_endpoint_fail(fabric, endpoint, strerror(error));
    return true;
}
bool eager_ring_send_xfer(struct fabric *fabric, struct verbs_endpoint *endpoint, const struct verbs_xfer *xfer)
{
    return eager_ring_write_message(fabric, endpoint, xfer, false);
}
bool eager_ring_send_control(struct fabric *fabric, struct verbs_endpoint *endpoint, enum verbs_message_kind kind,
    bool is_signalled)
{
    return eager_ring_write_message(fabric, endpoint, &(struct verbs_xfer){ .kind = kind }, is_signalled);
}

/* ---- receiving ---- */
/* Returns whether the length in a prefix suits the kind of message. */
static bool prefix_length_is_valid(const struct prefix *prefix)
{
    switch (prefix->kind) {
    case EAGER: return prefix->bytes >= sizeof(struct header);
    case OFFER: return prefix->bytes == sizeof(struct header) + sizeof(struct offer);
    case DONE: return prefix->bytes == sizeof(uint64_t);
    case ACK:
    case GOODBYE: return prefix->bytes == 0;
    default: return false;
    }
}
/* Returns whether a received prefix is valid; the peer may have written anything. `offset` is where the prefix begins
   in the ring, and `bytes` the length of the message with its prefix. */
static bool prefix_is_valid(const struct eager_ring *ring, const struct prefix *prefix, uint64_t offset, size_t bytes)
{
    uint64_t taken = size_round_up(bytes, RING_GRAIN);
    bool has_valid_size = bytes == sizeof *prefix + prefix->bytes && offset + taken <= RING_BYTES;
    /* The step includes the bytes that the sender skipped. */
    uint64_t step = prefix->position - ring->consumed;
    bool follows_previous = step >= taken && step <= RING_BYTES && (prefix->position - taken) % RING_BYTES == offset;
    return has_valid_size && follows_previous && prefix_length_is_valid(prefix) && prefix->consumed <= ring->written
        && prefix->consumed >= ring->peer_consumed;
}
unsigned char *eager_ring_read_prefix(const struct eager_ring *ring, const struct ibv_wc *wc, struct prefix *out)
{
    uint64_t offset = (uint64_t)be32toh(wc->imm_data) * RING_GRAIN;
    size_t bytes = wc->byte_len;
    if (offset + sizeof *out > RING_BYTES || bytes < sizeof *out) return NULL;
    memcpy(out, ring->in + offset, sizeof *out);
    return prefix_is_valid(ring, out, offset, bytes) ? ring->in + offset + sizeof *out : NULL;
}
