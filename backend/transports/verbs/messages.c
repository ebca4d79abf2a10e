/* The state of each op of an endpoint is an xfer in one of the endpoint's lists. An eager message waits for room in the
 * peer's box and completes when it is built there. An announced message is offered, and completes when the peer sends
 * DONE. The device of the receiver reads a fetched message from the address in the offer. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

/* ---- xfers ---- */
static void list_append(struct verbs_xfer **list, struct verbs_xfer *xfer)
{
    while (*list) list = &(*list)->next;
    xfer->next = NULL;
    *list = xfer;
}
static void take_out(struct verbs_xfer **list, const struct verbs_xfer *xfer)
{
    while (*list != xfer) list = &(*list)->next;
    *list = xfer->next;
}
static struct verbs_xfer *xfer_new(struct fabric_op *op, enum verbs_what what)
{
    struct verbs_xfer *xfer = memory_zeroed(1, sizeof *xfer);
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
    xfer_free(nic_of(fabric), xfer);
    if (op) fabric_op_complete(fabric, op, why);
}
/* Records why an op has completed (NULL means success), and returns false, as send and fetch do for a completed op. */
static bool op_refuse(struct fabric_op *op, const char *why)
{
    op->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message",
                  not_registered[] =
                      "memory cannot be registered (ulimit -l must print unlimited; TUTTI_LOG=info shows more)";

/* ---- sending ---- */
static bool send_eager(struct fabric *fabric, struct verbs_endpoint *e, struct fabric_op *f, const void *data)
{
    struct verbs_xfer now = { .op = f, .what = EAGER, .data = data };
    /* A message that fits completes with success at once. */
    if (!e->waiting && box_send(fabric, e, &now)) return op_refuse(f, NULL);
    struct verbs_xfer *xfer = xfer_new(f, EAGER);
    if (!xfer) return op_refuse(f, no_memory);
    xfer->data = data;
    list_append(&e->waiting, xfer);
    return true;
}
static bool send_offer(struct fabric *fabric, struct verbs_endpoint *e, struct fabric_op *f, const void *data)
{
    struct nic *nic = nic_of(fabric);
    struct verbs_xfer *xfer = xfer_new(f, OFFER);
    if (!xfer) return op_refuse(f, no_memory);
    xfer->offer = (struct offer){ .at = (uintptr_t)data, .bytes = f->bytes, .id = ++nic->ids };
    if (!xfer_pin(e, xfer, data, f->bytes, false)) {
        xfer_free(nic, xfer);
        return op_refuse(f, not_registered);
    }
    bool left = !e->waiting && box_send(fabric, e, xfer);
    /* The write of this message may have broken the endpoint. */
    if (endpoint_is_broken(&e->base)) {
        xfer_free(nic, xfer);
        return op_refuse(f, e->base.why);
    }
    list_append(left ? &e->offered : &e->waiting, xfer);
    return true;
}
bool verbs_send(struct fabric *fabric, struct fabric_op *f, const void *data, bool announced)
{
    struct verbs_endpoint *e = verbs_of(f->endpoint);
    const void *from = data ? data : f->room;
    if (endpoint_is_broken(&e->base)) return op_refuse(f, e->base.why);
    return announced ? send_offer(fabric, e, f, from) : send_eager(fabric, e, f, from);
}
bool endpoint_offer_done(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id)
{
    struct verbs_xfer *xfer = e->offered;
    while (xfer && xfer->offer.id != id) xfer = xfer->next;
    if (!xfer) return false;
    take_out(&e->offered, xfer);
    xfer_complete(fabric, xfer, NULL);
    return true;
}

/* ---- fetching ---- */
struct descriptor *descriptor_new(struct verbs_endpoint *e, const void *offer)
{
    struct descriptor *d = memory_zeroed(1, sizeof *d);
    if (!d) return NULL;
    d->from = e;
    memcpy(&d->offer, offer, sizeof d->offer);
    return d;
}
static void tell_done(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id)
{
    struct verbs_xfer now = { .what = DONE, .offer.id = id };
    if (endpoint_is_broken(&e->base) || (!e->waiting && box_send(fabric, e, &now))) return;
    struct verbs_xfer *xfer = xfer_new(NULL, DONE);
    if (!xfer) {
        endpoint_fail(fabric, e, no_memory);
        return;
    }
    xfer->offer.id = id;
    list_append(&e->waiting, xfer);
}
void verbs_release(struct fabric *fabric, void *descriptor)
{
    struct descriptor *d = descriptor;
    tell_done(fabric, d->from, d->offer.id);
    free(d);
}
static void read_more(struct fabric *fabric, struct verbs_endpoint *e)
{
    while (e->reading && !endpoint_is_broken(&e->base)) {
        struct verbs_xfer *fetch = e->reading;
        size_t before = fetch->asked;
        int error = requests_read(e, fetch);
        if (error) {
            endpoint_fail(fabric, e, strerror(error));
            return;
        }
        /* The send queues are full. */
        if (fetch->asked == before) return;
        if (fetch->asked < fetch->offer.bytes) continue;
        take_out(&e->reading, fetch);
        list_append(&e->fetching, fetch);
    }
}
bool verbs_fetch(struct fabric *fabric, struct fabric_op *f, void *descriptor, void *buffer)
{
    struct descriptor *d = descriptor;
    struct nic *nic = nic_of(fabric);
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
        return op_refuse(f, why);
    }
    free(d);
    list_append(&e->reading, xfer);
    if (e->reading == xfer) read_more(fabric, e);
    return true;
}
void endpoint_fetched(struct fabric *fabric, struct verbs_endpoint *e, struct verbs_xfer *fetch)
{
    uint64_t id = fetch->offer.id;
    take_out(&e->fetching, fetch);
    xfer_complete(fabric, fetch, NULL);
    tell_done(fabric, e, id);
}

/* ---- progress and completion ---- */
void endpoint_go_on(struct fabric *fabric, struct verbs_endpoint *e)
{
    while (e->waiting && !endpoint_is_broken(&e->base)) {
        struct verbs_xfer *xfer = e->waiting;
        if (!box_send(fabric, e, xfer)) break;
        /* A failed write has completed and freed all xfers of the endpoint. */
        if (endpoint_is_broken(&e->base)) break;
        take_out(&e->waiting, xfer);
        if (xfer->what == OFFER) list_append(&e->offered, xfer);
        else xfer_complete(fabric, xfer, NULL);
    }
    read_more(fabric, e);
    if (!endpoint_is_broken(&e->base) && box_owes(&e->box)) box_tell(fabric, e, HEARD, false);
}
static void list_complete(struct fabric *fabric, struct verbs_xfer **list, const char *why)
{
    for (struct verbs_xfer *xfer; (xfer = *list) != NULL;) {
        *list = xfer->next;
        xfer_complete(fabric, xfer, why);
    }
}
void endpoint_complete_all(struct fabric *fabric, struct verbs_endpoint *e, const char *why)
{
    list_complete(fabric, &e->waiting, why);
    list_complete(fabric, &e->offered, why);
    list_complete(fabric, &e->reading, why);
    list_complete(fabric, &e->fetching, why);
}
