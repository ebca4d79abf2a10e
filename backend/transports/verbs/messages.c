/* What flights are at over an endpoint: an eager message waits for room in the other's box and is over when it is put
 * together; an announced one is offered, and over when the other says DONE; one that is fetched is read by the device
 * from where the other says that it lies. Each is an errand, in one list of its endpoint. */
#include "backend/base/memory.h"
#include "backend/transports/verbs/nic.h"
#include <stdlib.h>
#include <string.h>

/* ---- errands ---- */
static void append(struct errand **list, struct errand *errand)
{
    while (*list) list = &(*list)->next;
    errand->next = NULL;
    *list = errand;
}
static void take_out(struct errand **list, const struct errand *errand)
{
    while (*list != errand) list = &(*list)->next;
    *list = errand->next;
}
static struct errand *errand_new(struct flight *flight, enum what what)
{
    struct errand *errand = memory_zeroed(1, sizeof *errand);
    if (!errand) return NULL;
    errand->flight = flight;
    errand->what = what;
    return errand;
}
static void unpin(struct nic *nic, struct errand *errand)
{
    for (int i = 0; i < nic->adapter_count; i++)
        if (errand->memory[i].region) registration_give(nic->adapters[i].memory, &errand->memory[i]);
}
/* Each device that reads it must know its memory. What is registered before one refuses, its owner gives back. */
static bool pin(const struct verbs_endpoint *e, struct errand *errand, const void *at, size_t bytes, bool writes)
{
    for (int i = 0; i < e->lane_count; i++) {
        struct adapter *adapter = e->lanes[i].rail->adapter;
        struct registered *memory = &errand->memory[adapter->index];
        if (!memory->region && registration_take(adapter->memory, at, bytes, writes, memory) != TUTTI_OK) return false;
        if (!writes) errand->offer.keys[i] = memory->region->rkey;
    }
    return true;
}
static void errand_free(struct nic *nic, struct errand *errand)
{
    unpin(nic, errand);
    free(errand);
}
static void land(struct fabric *fabric, struct errand *errand, const char *why)
{
    struct flight *flight = errand->flight;
    errand_free(nic_of(fabric), errand);
    if (flight) flight_land(fabric, flight, why);
}
/* false: it has landed already, with these words. */
static bool refuse(struct flight *flight, const char *why)
{
    flight->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message",
                  not_registered[] =
                      "memory cannot be registered (ulimit -l must print unlimited; TUTTI_LOG=info shows more)";

/* ---- sent ---- */
static bool send_eager(struct fabric *fabric, struct verbs_endpoint *e, struct flight *f, const void *data)
{
    struct errand now = { .flight = f, .what = EAGER, .data = data };
    if (!e->waiting && box_send(fabric, e, &now)) return refuse(f, NULL); /* over, and well */
    struct errand *errand = errand_new(f, EAGER);
    if (!errand) return refuse(f, no_memory);
    errand->data = data;
    append(&e->waiting, errand);
    return true;
}
static bool send_offer(struct fabric *fabric, struct verbs_endpoint *e, struct flight *f, const void *data)
{
    struct nic *nic = nic_of(fabric);
    struct errand *errand = errand_new(f, OFFER);
    if (!errand) return refuse(f, no_memory);
    errand->offer = (struct offer){ .at = (uintptr_t)data, .bytes = f->bytes, .id = ++nic->ids };
    if (!pin(e, errand, data, f->bytes, false)) {
        errand_free(nic, errand);
        return refuse(f, not_registered);
    }
    bool left = !e->waiting && box_send(fabric, e, errand);
    if (endpoint_is_broken(&e->base)) { /* by this one */
        errand_free(nic, errand);
        return refuse(f, e->base.why);
    }
    append(left ? &e->offered : &e->waiting, errand);
    return true;
}
bool verbs_send(struct fabric *fabric, struct flight *f, const void *data, bool announced)
{
    struct verbs_endpoint *e = verbs_of(f->endpoint);
    const void *from = data ? data : f->room;
    if (endpoint_is_broken(&e->base)) return refuse(f, e->base.why);
    return announced ? send_offer(fabric, e, f, from) : send_eager(fabric, e, f, from);
}
bool endpoint_offer_done(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id)
{
    struct errand *errand = e->offered;
    while (errand && errand->offer.id != id) errand = errand->next;
    if (!errand) return false;
    take_out(&e->offered, errand);
    land(fabric, errand, NULL);
    return true;
}

/* ---- fetched ---- */
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
    struct errand now = { .what = DONE, .offer.id = id };
    if (endpoint_is_broken(&e->base) || (!e->waiting && box_send(fabric, e, &now))) return;
    struct errand *errand = errand_new(NULL, DONE);
    if (!errand) {
        endpoint_fail(fabric, e, no_memory);
        return;
    }
    errand->offer.id = id;
    append(&e->waiting, errand);
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
        struct errand *fetch = e->reading;
        size_t before = fetch->asked;
        int error = requests_read(e, fetch);
        if (error) {
            endpoint_fail(fabric, e, strerror(error));
            return;
        }
        if (fetch->asked == before) return; /* no room now */
        if (fetch->asked < fetch->offer.bytes) continue;
        take_out(&e->reading, fetch);
        append(&e->fetching, fetch);
    }
}
bool verbs_fetch(struct fabric *fabric, struct flight *f, void *descriptor, void *buffer)
{
    struct descriptor *d = descriptor;
    struct nic *nic = nic_of(fabric);
    struct verbs_endpoint *e = d->from;
    struct errand *errand = endpoint_is_broken(&e->base) ? NULL : errand_new(f, EAGER);
    const char *why = e->base.why ? e->base.why : no_memory;
    if (errand) {
        errand->offer = d->offer;
        errand->into = buffer ? buffer : f->room;
        if (!pin(e, errand, errand->into, f->bytes, true)) {
            errand_free(nic, errand);
            errand = NULL;
            why = not_registered;
        }
    }
    if (!errand) {
        verbs_release(fabric, d);
        return refuse(f, why);
    }
    free(d);
    append(&e->reading, errand);
    if (e->reading == errand) read_more(fabric, e);
    return true;
}
void endpoint_fetched(struct fabric *fabric, struct verbs_endpoint *e, struct errand *fetch)
{
    uint64_t id = fetch->offer.id;
    take_out(&e->fetching, fetch);
    land(fabric, fetch, NULL);
    tell_done(fabric, e, id);
}

/* ---- going on ---- */
void endpoint_go_on(struct fabric *fabric, struct verbs_endpoint *e)
{
    while (e->waiting && !endpoint_is_broken(&e->base)) {
        struct errand *errand = e->waiting;
        if (!box_send(fabric, e, errand)) break;
        if (endpoint_is_broken(&e->base)) break; /* and has landed */
        take_out(&e->waiting, errand);
        if (errand->what == OFFER) append(&e->offered, errand);
        else land(fabric, errand, NULL);
    }
    read_more(fabric, e);
    if (!endpoint_is_broken(&e->base) && box_owes(&e->box)) box_tell(fabric, e, HEARD, false);
}
static void land_list(struct fabric *fabric, struct errand **list, const char *why)
{
    for (struct errand *errand; (errand = *list) != NULL;) {
        *list = errand->next;
        land(fabric, errand, why);
    }
}
void endpoint_land_all(struct fabric *fabric, struct verbs_endpoint *e, const char *why)
{
    land_list(fabric, &e->waiting, why);
    land_list(fabric, &e->offered, why);
    land_list(fabric, &e->reading, why);
    land_list(fabric, &e->fetching, why);
}
