/* The protocol of messages. An eager message waits for room in the peer's eager ring and completes when it is built
 * there. An announced message is offered, and completes when the peer sends DONE. The device of the receiver reads a
 * fetched message from the address in the offer. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

/* Records why an op has completed (NULL means success), and returns false, as send and fetch do for a completed op. */
static bool verbs_op_refuse(struct fabric_op *op, const char *why)
{
    op->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message",
                  not_registered[] =
                      "memory cannot be registered (ulimit -l must print unlimited; TUTTI_LOG=info shows more)";

/* ---- sending ---- */
static bool verbs_endpoint_send_eager(struct fabric *fabric, struct verbs_endpoint *e, struct fabric_op *f,
    const void *data)
{
    struct verbs_xfer now = { .op = f, .what = EAGER, .data = data };
    /* A message that fits completes with success at once. */
    if (!e->waiting && eager_ring_send_xfer(fabric, e, &now)) return verbs_op_refuse(f, NULL);
    struct verbs_xfer *xfer = xfer_new(f, EAGER);
    if (!xfer) return verbs_op_refuse(f, no_memory);
    xfer->data = data;
    xfer_list_append(&e->waiting, xfer);
    return true;
}
static bool verbs_endpoint_send_offer(struct fabric *fabric, struct verbs_endpoint *e, struct fabric_op *f,
    const void *data)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct verbs_xfer *xfer = xfer_new(f, OFFER);
    if (!xfer) return verbs_op_refuse(f, no_memory);
    xfer->offer = (struct offer){ .at = (uintptr_t)data, .bytes = f->bytes, .id = ++nic->ids };
    if (!xfer_pin(e, xfer, data, f->bytes, false)) {
        xfer_free(nic, xfer);
        return verbs_op_refuse(f, not_registered);
    }
    bool sent = !e->waiting && eager_ring_send_xfer(fabric, e, xfer);
    /* The write of this message may have broken the endpoint. */
    if (endpoint_is_broken(&e->base)) {
        xfer_free(nic, xfer);
        return verbs_op_refuse(f, e->base.why);
    }
    xfer_list_append(sent ? &e->offered : &e->waiting, xfer);
    return true;
}
bool verbs_send(struct fabric *fabric, struct fabric_op *f, const void *data, bool announced)
{
    struct verbs_endpoint *e = verbs_endpoint_of(f->endpoint);
    const void *from = data ? data : f->room;
    if (endpoint_is_broken(&e->base)) return verbs_op_refuse(f, e->base.why);
    return announced ? verbs_endpoint_send_offer(fabric, e, f, from) : verbs_endpoint_send_eager(fabric, e, f, from);
}
/* Completes the offer with this id; returns false if the endpoint has no such offer. */
static bool verbs_endpoint_complete_offer(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id)
{
    struct verbs_xfer *xfer = e->offered;
    while (xfer && xfer->offer.id != id) xfer = xfer->next;
    if (!xfer) return false;
    xfer_list_remove(&e->offered, xfer);
    xfer_complete(fabric, xfer, NULL);
    return true;
}

/* ---- fetching ---- */
/* Returns a descriptor with a copy of the offer, or NULL if memory is short. */
static struct descriptor *offer_descriptor_new(struct verbs_endpoint *e, const void *offer)
{
    struct descriptor *d = memory_alloc_zeroed(1, sizeof *d);
    if (!d) return NULL;
    d->from = e;
    memcpy(&d->offer, offer, sizeof d->offer);
    return d;
}
static void verbs_endpoint_send_done(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id)
{
    struct verbs_xfer now = { .what = DONE, .offer.id = id };
    if (endpoint_is_broken(&e->base) || (!e->waiting && eager_ring_send_xfer(fabric, e, &now))) return;
    struct verbs_xfer *xfer = xfer_new(NULL, DONE);
    if (!xfer) {
        verbs_endpoint_fail(fabric, e, no_memory);
        return;
    }
    xfer->offer.id = id;
    xfer_list_append(&e->waiting, xfer);
}
void verbs_release(struct fabric *fabric, void *descriptor)
{
    struct descriptor *d = descriptor;
    verbs_endpoint_send_done(fabric, d->from, d->offer.id);
    free(d);
}
static void verbs_endpoint_continue_reads(struct fabric *fabric, struct verbs_endpoint *e)
{
    while (e->reading && !endpoint_is_broken(&e->base)) {
        struct verbs_xfer *fetch = e->reading;
        size_t before = fetch->asked;
        int error = verbs_endpoint_post_reads(e, fetch);
        if (error) {
            verbs_endpoint_fail(fabric, e, strerror(error));
            return;
        }
        /* The send queues are full. */
        if (fetch->asked == before) return;
        if (fetch->asked < fetch->offer.bytes) continue;
        xfer_list_remove(&e->reading, fetch);
        xfer_list_append(&e->fetching, fetch);
    }
}
bool verbs_fetch(struct fabric *fabric, struct fabric_op *f, void *descriptor, void *buffer)
{
    struct descriptor *d = descriptor;
    struct nic *nic = nic_of_fabric(fabric);
    struct verbs_endpoint *e = d->from;
    struct verbs_xfer *xfer = endpoint_is_broken(&e->base) ? NULL : xfer_new(f, EAGER);
    const char *why = e->base.why ? e->base.why : no_memory;
    if (xfer) {
        xfer->offer = d->offer;
        xfer->into = buffer ? buffer : f->room;
        if (!xfer_pin(e, xfer, xfer->into, f->bytes, true)) {
            xfer_free(nic, xfer);
            xfer = NULL;
            why = not_registered;
        }
    }
    if (!xfer) {
        verbs_release(fabric, d);
        return verbs_op_refuse(f, why);
    }
    free(d);
    xfer_list_append(&e->reading, xfer);
    if (e->reading == xfer) verbs_endpoint_continue_reads(fabric, e);
    return true;
}
void verbs_endpoint_complete_fetch(struct fabric *fabric, struct verbs_endpoint *e, struct verbs_xfer *fetch)
{
    uint64_t id = fetch->offer.id;
    xfer_list_remove(&e->fetching, fetch);
    xfer_complete(fabric, fetch, NULL);
    verbs_endpoint_send_done(fabric, e, id);
}

/* ---- receiving ---- */
static const char cannot_be[] = "its process has sent an invalid message";
static void verbs_endpoint_handle_offer(struct fabric *fabric, struct verbs_endpoint *e, const struct header *header,
    const unsigned char *at)
{
    struct descriptor *d = offer_descriptor_new(e, at);
    if (d && fabric_handle_message(fabric, &e->base, header, d, (size_t)d->offer.bytes, true)) return;
    if (d) verbs_release(fabric, d);
    else verbs_endpoint_fail(fabric, e, "no memory for an incoming message");
}
static void verbs_endpoint_handle_message(struct fabric *fabric, struct verbs_endpoint *e, const struct prefix *prefix,
    unsigned char *at)
{
    struct header header;
    size_t bytes = prefix->bytes - sizeof header;
    memcpy(&header, at, sizeof header);
    at += sizeof header;
    if (prefix->what == EAGER) fabric_handle_message(fabric, &e->base, &header, at, bytes, false);
    else verbs_endpoint_handle_offer(fabric, e, &header, at);
}
static void verbs_endpoint_handle_done(struct fabric *fabric, struct verbs_endpoint *e, const unsigned char *at)
{
    uint64_t id;
    memcpy(&id, at, sizeof id);
    if (!verbs_endpoint_complete_offer(fabric, e, id)) endpoint_mark_faulty(fabric, &e->base, cannot_be);
}
void verbs_endpoint_receive(struct fabric *fabric, struct verbs_endpoint *e, const struct ibv_wc *wc)
{
    struct eager_ring *ring = &e->ring;
    struct prefix prefix;
    if (e->base.faulty) return;
    unsigned char *at = eager_ring_read_prefix(ring, wc, &prefix);
    if (!at) {
        endpoint_mark_faulty(fabric, &e->base, cannot_be);
        return;
    }
    ring->left = prefix.consumed;
    switch ((enum verbs_what)prefix.what) {
    case EAGER:
    case OFFER: verbs_endpoint_handle_message(fabric, e, &prefix, at); break;
    case DONE: verbs_endpoint_handle_done(fabric, e, at); break;
    case GOODBYE: e->base.left = true; break;
    case ACK: break;
    }
    ring->consumed = prefix.position;
    nic_of_fabric(fabric)->stalled |= eager_ring_owes_ack(ring) || e->waiting;
}

/* ---- progress ---- */
void verbs_endpoint_progress(struct fabric *fabric, struct verbs_endpoint *e)
{
    while (e->waiting && !endpoint_is_broken(&e->base)) {
        struct verbs_xfer *xfer = e->waiting;
        if (!eager_ring_send_xfer(fabric, e, xfer)) break;
        /* A failed write has completed and freed all xfers of the endpoint. */
        if (endpoint_is_broken(&e->base)) break;
        xfer_list_remove(&e->waiting, xfer);
        if (xfer->what == OFFER) xfer_list_append(&e->offered, xfer);
        else xfer_complete(fabric, xfer, NULL);
    }
    verbs_endpoint_continue_reads(fabric, e);
    if (!endpoint_is_broken(&e->base) && eager_ring_owes_ack(&e->ring)) eager_ring_send_control(fabric, e, ACK, false);
}
