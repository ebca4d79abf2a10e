/* What flights are at over an endpoint. A message with its bytes is over when the kernel has taken them. An announced
 * one is offered; when the other side's receive has asked for it, its bytes leave in parts, and it is over when the
 * kernel has the last of them here, and when they have come there. */
#include "backend/base/memory.h"
#include "backend/transports/tcp/sockets.h"
#include <stdlib.h>

/* ---- errands ---- */
struct errand *errand_new(struct fabric *fabric, struct tcp_endpoint *e)
{
    struct sockets *s = sockets_of(fabric);
    struct errand *errand = s->spare;
    if (errand) s->spare = errand->next;
    else if (!(errand = memory_zeroed(1, sizeof *errand))) return NULL;
    *errand = (struct errand){ .endpoint = e };
    return errand;
}
void errand_free(struct fabric *fabric, struct errand *errand)
{
    struct sockets *s = sockets_of(fabric);
    if (errand == &errand->endpoint->goodbye) return;
    errand->next = s->spare;
    s->spare = errand;
}
void errands_push(struct errands *list, struct errand *errand)
{
    errand->next = NULL;
    if (list->last) list->last->next = errand;
    else list->first = errand;
    list->last = errand;
}
static int priority_of(const struct errand *errand)
{
    const struct port *owner = errand->flight ? errand->flight->owner : NULL;
    return owner ? router_priority(owner->base.router) : 0;
}
void errands_push_by_priority(struct errands *list, struct errand *errand)
{
    int priority = priority_of(errand);
    struct errand **at = &list->first;
    if (!priority) {
        errands_push(list, errand);
        return;
    }
    while (*at && priority_of(*at) >= priority) at = &(*at)->next;
    errand->next = *at;
    *at = errand;
    if (!errand->next) list->last = errand;
}
void errands_remove(struct errands *list, const struct errand *errand)
{
    struct errand *before = NULL, *at = list->first;
    for (; at != errand; at = at->next) before = at;
    if (before) before->next = errand->next;
    else list->first = errand->next;
    if (list->last == errand) list->last = before;
}
struct errand *errands_find(const struct errands *list, uint64_t id)
{
    struct errand *errand = list->first;
    while (errand && errand->frame.id != id) errand = errand->next;
    return errand;
}
void errand_land(struct fabric *fabric, struct errand *errand, const char *why)
{
    struct flight *flight = errand->flight;
    errand_free(fabric, errand);
    if (flight) flight_land(fabric, flight, why);
}
static void land_list(struct fabric *fabric, struct errands *list, const char *why)
{
    for (struct errand *errand; (errand = list->first) != NULL; errand_land(fabric, errand, why))
        errands_remove(list, errand);
}
void errands_land(struct fabric *fabric, struct tcp_endpoint *e, const char *why)
{
    land_list(fabric, &e->waiting, why);
    land_list(fabric, &e->pulled, why);
    land_list(fabric, &e->offered, why);
    land_list(fabric, &e->fetching, why);
}

/* ---- what the port asks for ---- */
static bool refuse(struct flight *flight, const char *why)
{
    flight->why = why;
    return false;
}
static const char no_memory[] = "no memory for a message";
/* Of what has left or failed; false, as the flight has landed. */
static bool end_now(struct fabric *fabric, struct errand *errand, enum fate fate)
{
    struct flight *flight = errand->flight;
    const char *why = fate == FAILED ? errand->endpoint->base.why : NULL;
    errand_free(fabric, errand);
    return refuse(flight, why);
}
bool tcp_send(struct fabric *fabric, struct flight *f, const void *data, bool announced)
{
    struct tcp_endpoint *e = tcp_of(f->endpoint);
    struct errand *errand = endpoint_is_broken(&e->base) ? NULL : errand_new(fabric, e);
    if (!errand) return refuse(f, e->base.why ? e->base.why : no_memory);
    errand->flight = f;
    errand->from = data ? data : f->room;
    errand->bytes = f->bytes;
    errand->frame = announced ? (struct frame){ .what = OFFER, .id = ++sockets_of(fabric)->ids, .extent = f->bytes }
                              : (struct frame){ .what = EAGER, .bytes = f->bytes };
    enum fate fate = errand_write(fabric, e, errand);
    if (fate == FAILED || (fate == LEFT && !announced)) return end_now(fabric, errand, fate);
    if (fate == LEFT) errands_push(&e->offered, errand);
    return true;
}
/* Its errand has been made when the offer came. */
bool tcp_fetch(struct fabric *fabric, struct flight *f, void *descriptor, void *buffer)
{
    struct errand *errand = descriptor;
    struct tcp_endpoint *e = errand->endpoint;
    errand->flight = f;
    errand->into = buffer ? buffer : f->room;
    errand->frame.what = PULL;
    enum fate fate = endpoint_is_broken(&e->base) ? FAILED : errand_write(fabric, e, errand);
    if (fate == FAILED) return end_now(fabric, errand, fate);
    if (fate == LEFT) errands_push(&e->fetching, errand);
    return true;
}
void tcp_release(struct fabric *fabric, void *descriptor)
{
    struct errand *errand = descriptor;
    struct tcp_endpoint *e = errand->endpoint;
    errand->frame.what = RELEASE;
    if (endpoint_is_broken(&e->base) || e->parted || errand_write(fabric, e, errand) != WAITS)
        errand_free(fabric, errand);
}
