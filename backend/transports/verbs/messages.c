/* The protocol of messages. An eager message waits for room in the peer's eager ring, and completes when it is built in
 * this process's copy of that ring and its write is posted. An announced message is offered, and completes when the
 * peer sends DONE. The device of the receiver reads a fetched message from the address in the offer. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

/* Sets the reason for which an op has completed (NULL: success). Returns false, as verbs_send and verbs_fetch must for
   a completed op. */
static bool verbs_op_end(struct fabric_op *op, const char *why)
{
    op->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message",
                  not_registered[] =
                      "memory cannot be registered (ulimit -l must print unlimited; TUTTI_LOG=info shows more)";

/* ---- sending ---- */
/* Writes a small message into the peer's ring, or keeps it in `waiting`. false: the op has completed. */
static bool verbs_endpoint_send_eager(struct fabric *fabric, struct verbs_endpoint *endpoint, struct fabric_op *op,
    const void *data)
{
    struct verbs_xfer now = { .op = op, .kind = EAGER, .data = data };
    if (!endpoint->waiting && eager_ring_send_xfer(fabric, endpoint, &now)) {
        /* The message completes at once: with success, or with the reason for which the device has refused it. */
        return verbs_op_end(op, endpoint_is_broken(&endpoint->base) ? endpoint->base.why : NULL);
    }
    struct verbs_xfer *xfer = xfer_new(op, EAGER);
    if (!xfer) return verbs_op_end(op, no_memory);
    xfer->data = data;
    xfer_list_append(&endpoint->waiting, xfer);
    return true;
}
/* Registers the memory of a large message, and sends an offer with its address, or keeps the offer in `waiting`. false:
   the op has completed, with an error. */
static bool verbs_endpoint_send_offer(struct fabric *fabric, struct verbs_endpoint *endpoint, struct fabric_op *op,
    const void *data)
{
    struct nic *nic = nic_of_fabric(fabric);
    struct verbs_xfer *xfer = xfer_new(op, OFFER);
    if (!xfer) return verbs_op_end(op, no_memory);
    xfer->offer = (struct offer){ .address = (uintptr_t)data, .bytes = op->bytes, .id = ++nic->last_id };
    if (!xfer_pin(endpoint, xfer, data, op->bytes, false)) {
        xfer_free(nic, xfer);
        return verbs_op_end(op, not_registered);
    }
    bool sent = !endpoint->waiting && eager_ring_send_xfer(fabric, endpoint, xfer);
    /* The write of this message may have broken the endpoint. */
    if (endpoint_is_broken(&endpoint->base)) {
        xfer_free(nic, xfer);
        return verbs_op_end(op, endpoint->base.why);
    }
    xfer_list_append(sent ? &endpoint->offered : &endpoint->waiting, xfer);
    return true;
}
bool verbs_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced)
{
    struct verbs_endpoint *endpoint = verbs_endpoint_of(op->endpoint);
    const void *from = data ? data : op->buffer;
    if (endpoint_is_broken(&endpoint->base)) return verbs_op_end(op, endpoint->base.why);
    return is_announced ? verbs_endpoint_send_offer(fabric, endpoint, op, from)
                        : verbs_endpoint_send_eager(fabric, endpoint, op, from);
}
/* Completes the send of the offer with this id. false: the endpoint has no such offer. */
static bool verbs_endpoint_complete_offer(struct fabric *fabric, struct verbs_endpoint *endpoint, uint64_t id)
{
    struct verbs_xfer *xfer = endpoint->offered;
    while (xfer && xfer->offer.id != id) xfer = xfer->next;
    if (!xfer) return false;
    xfer_list_remove(&endpoint->offered, xfer);
    xfer_complete(fabric, xfer, NULL);
    return true;
}

/* ---- fetching ---- */
/* Returns a descriptor with a copy of the received offer, or NULL if memory is exhausted. */
static struct descriptor *offer_descriptor_new(struct verbs_endpoint *endpoint, const void *offer)
{
    struct descriptor *received = memory_alloc_zeroed(1, sizeof *received);
    if (!received) return NULL;
    received->from = endpoint;
    memcpy(&received->offer, offer, sizeof received->offer);
    return received;
}
/* Sends DONE, or keeps it in `waiting`: this process has finished with the offer `id`. */
static void verbs_endpoint_send_done(struct fabric *fabric, struct verbs_endpoint *endpoint, uint64_t id)
{
    struct verbs_xfer now = { .kind = DONE, .offer.id = id };
    if (endpoint_is_broken(&endpoint->base) || (!endpoint->waiting && eager_ring_send_xfer(fabric, endpoint, &now)))
        return;
    struct verbs_xfer *xfer = xfer_new(NULL, DONE);
    if (!xfer) {
        verbs_endpoint_fail(fabric, endpoint, no_memory);
        return;
    }
    xfer->offer.id = id;
    xfer_list_append(&endpoint->waiting, xfer);
}
void verbs_release(struct fabric *fabric, void *descriptor)
{
    struct descriptor *received = descriptor;
    verbs_endpoint_send_done(fabric, received->from, received->offer.id);
    free(received);
}
/* Posts RDMA reads of the fetches in `reading` while the send queues have room. A fetch whose reads are all posted
   moves to `fetching`. */
static void verbs_endpoint_continue_reads(struct fabric *fabric, struct verbs_endpoint *endpoint)
{
    while (endpoint->reading && !endpoint_is_broken(&endpoint->base)) {
        struct verbs_xfer *fetch = endpoint->reading;
        size_t before = fetch->requested;
        int error = verbs_endpoint_post_reads(endpoint, fetch);
        if (error) {
            verbs_endpoint_fail(fabric, endpoint, strerror(error));
            return;
        }
        /* The send queues are full. */
        if (fetch->requested == before) return;
        if (fetch->requested < fetch->offer.bytes) continue;
        xfer_list_remove(&endpoint->reading, fetch);
        xfer_list_append(&endpoint->fetching, fetch);
    }
}
bool verbs_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer)
{
    struct descriptor *received = descriptor;
    struct nic *nic = nic_of_fabric(fabric);
    struct verbs_endpoint *endpoint = received->from;
    struct verbs_xfer *xfer = endpoint_is_broken(&endpoint->base) ? NULL : xfer_new(op, EAGER);
    const char *why = endpoint->base.why ? endpoint->base.why : no_memory;
    if (xfer) {
        xfer->offer = received->offer;
        xfer->into = buffer ? buffer : op->buffer;
        if (!xfer_pin(endpoint, xfer, xfer->into, op->bytes, true)) {
            xfer_free(nic, xfer);
            xfer = NULL;
            why = not_registered;
        }
    }
    if (!xfer) {
        verbs_release(fabric, received);
        return verbs_op_end(op, why);
    }
    free(received);
    xfer_list_append(&endpoint->reading, xfer);
    if (endpoint->reading == xfer) verbs_endpoint_continue_reads(fabric, endpoint);
    return true;
}
void verbs_endpoint_complete_fetch(struct fabric *fabric, struct verbs_endpoint *endpoint, struct verbs_xfer *fetch)
{
    uint64_t id = fetch->offer.id;
    xfer_list_remove(&endpoint->fetching, fetch);
    xfer_complete(fabric, fetch, NULL);
    verbs_endpoint_send_done(fabric, endpoint, id);
}

/* ---- receiving ---- */
static const char invalid_message[] = "its process has sent an invalid message";
/* Handles OFFER, whose struct offer is at `at`: passes the announced message to the fabric, or sends DONE. */
static void verbs_endpoint_handle_offer(struct fabric *fabric, struct verbs_endpoint *endpoint,
    const struct header *header, const unsigned char *at)
{
    struct descriptor *received = offer_descriptor_new(endpoint, at);
    if (received
        && fabric_handle_message(fabric, &endpoint->base, header, received, (size_t)received->offer.bytes, true))
        return;
    if (received) verbs_release(fabric, received);
    else verbs_endpoint_fail(fabric, endpoint, "no memory for an incoming message");
}
/* Handles EAGER and OFFER, whose header and data are at `at`. */
static void verbs_endpoint_handle_message(struct fabric *fabric, struct verbs_endpoint *endpoint,
    const struct prefix *prefix, unsigned char *at)
{
    struct header header;
    size_t bytes = prefix->bytes - sizeof header;
    memcpy(&header, at, sizeof header);
    at += sizeof header;
    if (prefix->kind == EAGER) fabric_handle_message(fabric, &endpoint->base, &header, at, bytes, false);
    else verbs_endpoint_handle_offer(fabric, endpoint, &header, at);
}
/* Handles DONE, whose id is at `at`. An unknown id makes the endpoint faulty. */
static void verbs_endpoint_handle_done(struct fabric *fabric, struct verbs_endpoint *endpoint, const unsigned char *at)
{
    uint64_t id;
    memcpy(&id, at, sizeof id);
    if (!verbs_endpoint_complete_offer(fabric, endpoint, id))
        endpoint_mark_faulty(fabric, &endpoint->base, invalid_message);
}
void verbs_endpoint_receive(struct fabric *fabric, struct verbs_endpoint *endpoint, const struct ibv_wc *wc)
{
    struct eager_ring *ring = &endpoint->ring;
    struct prefix prefix;
    if (endpoint->base.is_faulty) return;
    unsigned char *at = eager_ring_read_prefix(ring, wc, &prefix);
    if (!at) {
        endpoint_mark_faulty(fabric, &endpoint->base, invalid_message);
        return;
    }
    ring->peer_consumed = prefix.consumed;
    switch ((enum verbs_message_kind)prefix.kind) {
    case EAGER:
    case OFFER: verbs_endpoint_handle_message(fabric, endpoint, &prefix, at); break;
    case DONE: verbs_endpoint_handle_done(fabric, endpoint, at); break;
    case GOODBYE: endpoint->base.has_left = true; break;
    case ACK: break;
    }
    ring->consumed = prefix.position;
    nic_of_fabric(fabric)->needs_progress |= eager_ring_owes_ack(ring) || endpoint->waiting;
}

/* ---- progress ---- */
void verbs_endpoint_progress(struct fabric *fabric, struct verbs_endpoint *endpoint)
{
    while (endpoint->waiting && !endpoint_is_broken(&endpoint->base)) {
        struct verbs_xfer *xfer = endpoint->waiting;
        if (!eager_ring_send_xfer(fabric, endpoint, xfer)) break;
        /* A failed write has completed and freed all xfers of the endpoint. */
        if (endpoint_is_broken(&endpoint->base)) break;
        xfer_list_remove(&endpoint->waiting, xfer);
        if (xfer->kind == OFFER) xfer_list_append(&endpoint->offered, xfer);
        else xfer_complete(fabric, xfer, NULL);
    }
    verbs_endpoint_continue_reads(fabric, endpoint);
    if (!endpoint_is_broken(&endpoint->base) && eager_ring_owes_ack(&endpoint->ring))
        eager_ring_send_control(fabric, endpoint, ACK, false);
}
