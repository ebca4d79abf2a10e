/* The state of each op of an endpoint is an xfer in one of the endpoint's lists. An eager message waits for room in the
 * peer's eager ring and completes when it is built there. An announced message is offered, and completes when the peer
 * sends DONE. The device of the receiver reads a fetched message from the address in the offer. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

/* ---- xfers ---- */
static void xfer_list_append(struct verbs_xfer **list, struct verbs_xfer *xfer)
{
    while (*list) list = &(*list)->next;
    xfer->next = NULL;
    *list = xfer;
}
static void xfer_list_remove(struct verbs_xfer **list, const struct verbs_xfer *xfer)
{
    while (*list != xfer) list = &(*list)->next;
    *list = xfer->next;
}
static struct verbs_xfer *xfer_new(struct fabric_op *op, enum verbs_what what)
{
    struct verbs_xfer *xfer = memory_alloc_zeroed(1, sizeof *xfer);
    if (!xfer) return NULL;
    xfer->op = op;
    xfer->what = what;
    return xfer;
}
static void xfer_unpin(struct nic *nic, struct verbs_xfer *xfer)
{
    for (int i = 0; i < nic->adapter_count; i++)
        if (xfer->memory[i].region) registration_give(nic->adapters[i].memory, &xfer->memory[i]);
}
/* Registers the memory with each device that accesses it. If one refuses, the caller gives back the registrations that
   have succeeded, by xfer_free. */
static bool xfer_pin(const struct verbs_endpoint *e, struct verbs_xfer *xfer, const void *at, size_t bytes, bool writes)
{
    for (int i = 0; i < e->lane_count; i++) {
        struct adapter *adapter = e->lanes[i].rail->adapter;
        struct registered *memory = &xfer->memory[adapter->index];
        if (!memory->region && registration_take(adapter->memory, at, bytes, writes, memory) != TUTTI_OK) return false;
        if (!writes) xfer->offer.keys[i] = memory->region->rkey;
    }
    return true;
}
static void xfer_free(struct nic *nic, struct verbs_xfer *xfer)
{
    xfer_unpin(nic, xfer);
    free(xfer);
}
static void xfer_complete(struct fabric *fabric, struct verbs_xfer *xfer, const char *why)
{
    struct fabric_op *op = xfer->op;
    xfer_free(nic_of_fabric(fabric), xfer);
    if (op) fabric_op_complete(fabric, op, why);
}
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
    bool left = !e->waiting && eager_ring_send_xfer(fabric, e, xfer);
    /* The write of this message may have broken the endpoint. */
    if (endpoint_is_broken(&e->base)) {
        xfer_free(nic, xfer);
        return verbs_op_refuse(f, e->base.why);
    }
    xfer_list_append(left ? &e->offered : &e->waiting, xfer);
    return true;
}
bool verbs_send(struct fabric *fabric, struct fabric_op *f, const void *data, bool announced)
{
    struct verbs_endpoint *e = verbs_endpoint_of(f->endpoint);
    const void *from = data ? data : f->room;
    if (endpoint_is_broken(&e->base)) return verbs_op_refuse(f, e->base.why);
    return announced ? verbs_endpoint_send_offer(fabric, e, f, from) : verbs_endpoint_send_eager(fabric, e, f, from);
}
bool verbs_endpoint_complete_offer(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id)
{
    struct verbs_xfer *xfer = e->offered;
    while (xfer && xfer->offer.id != id) xfer = xfer->next;
    if (!xfer) return false;
    xfer_list_remove(&e->offered, xfer);
    xfer_complete(fabric, xfer, NULL);
    return true;
}

/* ---- fetching ---- */
struct descriptor *offer_descriptor_new(struct verbs_endpoint *e, const void *offer)
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

/* ---- progress and completion ---- */
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
static void xfer_list_complete_all(struct fabric *fabric, struct verbs_xfer **list, const char *why)
{
    for (struct verbs_xfer *xfer; (xfer = *list) != NULL;) {
        *list = xfer->next;
        xfer_complete(fabric, xfer, why);
    }
}
void verbs_endpoint_complete_all(struct fabric *fabric, struct verbs_endpoint *e, const char *why)
{
    xfer_list_complete_all(fabric, &e->waiting, why);
    xfer_list_complete_all(fabric, &e->offered, why);
    xfer_list_complete_all(fabric, &e->reading, why);
    xfer_list_complete_all(fabric, &e->fetching, why);
}
