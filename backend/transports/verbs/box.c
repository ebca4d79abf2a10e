/* A box is an eager ring. The sender builds messages in its own copy, writes them into the peer's box by RDMA, and the
 * peer reads them there.
 *
 * A message never wraps around the end of the box: the sender skips the remaining bytes, which count as written.
 * Positions count from the start of the connection; each message carries its end, so the receiver knows what was
 * skipped. A message has room when the peer has read, and the device has sent, the bytes that it would replace. Part of
 * the box is reserved for HEARD and GOODBYE, so that two processes with full boxes can still acknowledge. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <endian.h>
#include <string.h>

static size_t bytes_of(const struct verbs_xfer *xfer)
{
    switch (xfer->what) {
    case EAGER: return sizeof(struct header) + xfer->op->bytes;
    case OFFER: return sizeof(struct header) + sizeof(struct offer);
    case DONE: return sizeof(uint64_t);
    default: return 0;
    }
}
static void message_fill(unsigned char *at, const struct verbs_xfer *xfer)
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
static bool write_message(struct fabric *fabric, struct verbs_endpoint *e, const struct verbs_xfer *xfer,
    bool signalled)
{
    struct box *box = &e->box;
    size_t bytes = sizeof(struct prefix) + bytes_of(xfer), taken = size_round_up(bytes, BOX_GRAIN);
    uint64_t begin = box->written, offset = begin % BOX_BYTES;
    uint64_t reserve = xfer->what == HEARD || xfer->what == GOODBYE ? 0 : BOX_RESERVE;
    if (offset + taken > BOX_BYTES) begin += BOX_BYTES - offset;
    uint64_t oldest = box->left < box->sent ? box->left : box->sent, end = begin + taken;
    if (end + reserve - oldest > BOX_BYTES || !lane_has_room(&e->lanes[0])) return false;
    const struct prefix prefix = {
        .position = end, .heard = box->heard, .what = xfer->what, .bytes = (uint32_t)(bytes - sizeof prefix)
    };
    unsigned char *at = box->out + begin % BOX_BYTES;
    memcpy(at, &prefix, sizeof prefix);
    message_fill(at + sizeof prefix, xfer);
    box->written = end;
    box->told = box->heard;
    int error = requests_write(e, begin, bytes, signalled);
    if (error) endpoint_fail(fabric, e, strerror(error));
    return true;
}
bool box_send(struct fabric *fabric, struct verbs_endpoint *e, const struct verbs_xfer *xfer)
{
    return write_message(fabric, e, xfer, false);
}
bool box_tell(struct fabric *fabric, struct verbs_endpoint *e, enum verbs_what what, bool signalled)
{
    return write_message(fabric, e, &(struct verbs_xfer){ .what = what }, signalled);
}
bool box_owes(const struct box *box) { return box->heard - box->told >= BOX_BYTES / 4; }

/* ---- receiving ---- */
static const char cannot_be[] = "its process has sent an invalid message";
static void hear_offer(struct fabric *fabric, struct verbs_endpoint *e, const struct header *header,
    const unsigned char *at)
{
    struct descriptor *d = descriptor_new(e, at);
    if (d && fabric_hear(fabric, &e->base, header, d, (size_t)d->offer.bytes, true)) return;
    if (d) verbs_release(fabric, d);
    else endpoint_fail(fabric, e, "no memory for an incoming message");
}
static void hear_with_header(struct fabric *fabric, struct verbs_endpoint *e, const struct prefix *prefix,
    unsigned char *at)
{
    struct header header;
    size_t bytes = prefix->bytes - sizeof header;
    memcpy(&header, at, sizeof header);
    at += sizeof header;
    if (prefix->what == EAGER) fabric_hear(fabric, &e->base, &header, at, bytes, false);
    else hear_offer(fabric, e, &header, at);
}
static void hear_done(struct fabric *fabric, struct verbs_endpoint *e, const unsigned char *at)
{
    uint64_t id;
    memcpy(&id, at, sizeof id);
    if (!endpoint_offer_done(fabric, e, id)) endpoint_mark_faulty(fabric, &e->base, cannot_be);
}
static bool is_whole(const struct prefix *prefix)
{
    switch (prefix->what) {
    case EAGER: return prefix->bytes >= sizeof(struct header);
    case OFFER: return prefix->bytes == sizeof(struct header) + sizeof(struct offer);
    case DONE: return prefix->bytes == sizeof(uint64_t);
    case HEARD:
    case GOODBYE: return prefix->bytes == 0;
    default: return false;
    }
}
static bool is_sane(const struct box *box, const struct prefix *prefix, uint64_t offset, size_t bytes)
{
    uint64_t taken = size_round_up(bytes, BOX_GRAIN);
    bool fits = bytes == sizeof *prefix + prefix->bytes && offset + taken <= BOX_BYTES;
    /* The step includes the bytes that the sender skipped. */
    uint64_t step = prefix->position - box->heard;
    bool follows = step >= taken && step <= BOX_BYTES && (prefix->position - taken) % BOX_BYTES == offset;
    return fits && follows && is_whole(prefix) && prefix->heard <= box->written && prefix->heard >= box->left;
}
void box_hear(struct fabric *fabric, struct verbs_endpoint *e, const struct ibv_wc *wc)
{
    struct box *box = &e->box;
    struct prefix prefix;
    uint64_t offset = (uint64_t)be32toh(wc->imm_data) * BOX_GRAIN;
    size_t bytes = wc->byte_len;
    if (offset + sizeof prefix > BOX_BYTES || bytes < sizeof prefix) bytes = 0;
    else memcpy(&prefix, box->in + offset, sizeof prefix);
    if (e->base.faulty) return;
    if (!bytes || !is_sane(box, &prefix, offset, bytes)) {
        endpoint_mark_faulty(fabric, &e->base, cannot_be);
        return;
    }
    unsigned char *at = box->in + offset + sizeof prefix;
    box->left = prefix.heard;
    switch ((enum verbs_what)prefix.what) {
    case EAGER:
    case OFFER: hear_with_header(fabric, e, &prefix, at); break;
    case DONE: hear_done(fabric, e, at); break;
    case GOODBYE: e->base.left = true; break;
    case HEARD: break;
    }
    box->heard = prefix.position;
    nic_of(fabric)->stalled |= box_owes(box) || e->waiting;
}
