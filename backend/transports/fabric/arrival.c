/* What comes. While its rank polls, a message goes from the fabric's memory into its receive, or into the matching;
   while it does not, notes are taken, which the next poll hears in their order. So are they of what is ahead of others
   that come by another network. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/port.h"
#include "backend/transports/pieces.h"
#include <stdlib.h>
#include <string.h>

static struct matching *matching_of(struct port *p) { return &p->base.router->matching; }
static void fail(struct port *p, tutti_status status) { router_fail(p->base.router, status); }
static void fail_memory(struct port *p, int from)
{
    fail(p, status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d", p->rank, from));
}

/* ---- announced messages ---- */
static struct parked *park(struct link *link, void *descriptor, const struct header *header, size_t bytes)
{
    struct parked *parked = memory_zeroed(1, sizeof *parked), **at = &link->parked;
    if (!parked) return NULL;
    *parked = (struct parked){ .descriptor = descriptor, .bytes = bytes, .id = header->id, .wire = header->bytes };
    while (*at) at = &(*at)->next;
    return *at = parked;
}
static void parked_free(struct link *link, struct parked *parked)
{
    struct parked **at = &link->parked;
    while (*at != parked) at = &(*at)->next;
    *at = parked->next;
    free(parked);
}
static void release(struct port *p, struct parked *parked)
{
    if (parked->descriptor) p->fabric->operations->release(p->fabric, parked->descriptor);
    parked->descriptor = NULL;
}
static void fetch(struct port *p, struct link *link, struct transfer *x, struct parked *parked)
{
    /* Without an endpoint that is whole nothing could end the fetch: so it is not to the caller's memory. */
    bool safe = link_connect(p, link) && !endpoint_is_broken(link->endpoint);
    bool direct = safe && x->piece_count == 1 && x->pieces[0].length >= parked->bytes;
    struct flight *f = flight_new(p->fabric, direct ? 0 : parked->bytes);
    if (!f) {
        release(p, parked);
        router_refuse(p->base.router, x,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message of rank %d", p->rank, link->rank));
        return;
    }
    f->owner = p;
    f->link = link;
    f->endpoint = link->endpoint;
    f->transfer = x;
    f->packed = !direct;
    f->bytes = parked->bytes;
    flight_enlist(f, &p->flights); /* before: it may land within */
    if (p->fabric->operations->fetch(p->fabric, f, parked->descriptor, direct ? x->pieces[0].at : NULL)) return;
    flight_remove(f);
    flight_enlist(f, &p->landed);
}
/* What is refused stays parked until its sender has heard so and withdraws it: to let go of it is success there. */
void port_accept(struct port *p, struct link *link, struct transfer *x, struct parked *parked, uint64_t bytes)
{
    x->key = parked->id;
    parked->receive = NULL;
    if (!parked->descriptor) transfer_fail(x, TUTTI_ABORTED, 0);
    else if (transfer_meets(x, link->rank, bytes)) fetch(p, link, x, parked);
    else {
        parked->refused = true;
        parked->wanted = x->wire;
        p->refuses = true;
        return;
    }
    parked_free(link, parked);
}
/* Again where memory was missing for it. */
void port_refuse(struct port *p)
{
    p->refuses = false;
    for (int r = 0; r < p->size; r++)
        for (struct parked *at = p->links[r].parked; at; at = at->next) {
            struct link *link = &p->links[r];
            if (!at->refused || link->unreachable) continue;
            at->refused = !port_tell(p, link, &(struct header){ .kind = REFUSED, .id = at->id, .bytes = at->wanted });
            p->refuses |= at->refused && !link->broken_ms;
        }
}
void port_begin_matched(struct port *p)
{
    p->matched = false;
    for (int r = 0; r < p->size; r++)
        for (struct parked *at = p->links[r].parked, *next; at; at = next) {
            next = at->next;
            if (at->receive) port_accept(p, &p->links[r], at->receive, at, at->wire);
        }
}
static void let_go_among(struct port *p, const struct notes *notes, const struct header *h)
{
    for (struct note *note = notes->first; note; note = note->next) {
        if (note->header.from != h->from || note->header.id != h->id || !note->parked) continue;
        p->fabric->operations->release(p->fabric, note->parked);
        note->parked = NULL;
    }
}
/* At once, though its rank does not poll: the sender waits for it. */
void port_let_go(struct port *p, const struct header *h)
{
    if (h->from < 0 || h->from >= p->size) return;
    let_go_among(p, &p->notes, h);
    let_go_among(p, &p->ahead, h);
    for (struct parked *parked = p->links[h->from].parked; parked; parked = parked->next)
        if (parked->id == h->id) release(p, parked);
}
/* The sender takes it back, or has died: nobody will fetch it. Its receive, if there is one, finds it gone. */
static void withdraw(struct port *p, struct link *link, const struct header *header)
{
    struct parked *parked = link->parked;
    while (parked && parked->id != header->id) parked = parked->next;
    if (!parked) { /* it is ahead of its turn, or is being fetched, or has been */
        let_go_among(p, &p->ahead, header);
        return;
    }
    release(p, parked);
    if (parked->receive) return;
    struct arrival *a = matching_withdraw(matching_of(p), link->rank, header->name, (uint64_t)(uintptr_t)parked);
    if (a) matching_free(matching_of(p), a);
    parked_free(link, parked);
}
void link_forget_arrivals(struct port *p, struct link *link)
{
    for (struct parked *parked; (parked = link->parked) != NULL; free(parked)) {
        release(p, parked);
        link->parked = parked->next;
    }
}
bool link_forget_receive(struct port *p, struct link *link, const struct transfer *x)
{
    struct parked *parked = link->parked;
    while (parked && parked->receive != x) parked = parked->next;
    if (!parked) return false;
    release(p, parked);
    parked_free(link, parked);
    return true;
}

/* ---- messages ---- */
static bool hear_announced(struct port *p, struct link *link, const struct header *h, void *descriptor, size_t bytes)
{
    struct parked *parked = park(link, descriptor, h, bytes);
    if (!parked) {
        fail_memory(p, link->rank);
        return false;
    }
    parked->receive = matching_arrive(matching_of(p), link->rank, h->name);
    if (parked->receive) {
        parked->receive->source = link->rank;
        p->matched = true;
        return true;
    }
    struct arrival *a = matching_arrival(matching_of(p), 0);
    if (!a) {
        fail_memory(p, link->rank);
        return true;
    }
    a->name = h->name;
    a->bytes = h->bytes;
    a->id = (uint64_t)(uintptr_t)parked;
    a->source = link->rank;
    a->by = &p->base;
    a->announced = true;
    matching_keep(matching_of(p), a);
    return true;
}
static void hear_eager(struct port *p, struct link *link, const struct header *h, const unsigned char *data)
{
    struct transfer *x = matching_arrive(matching_of(p), link->rank, h->name);
    if (x) {
        link_owe(p, link, h->bytes);
        if (!transfer_meets(x, link->rank, h->bytes)) return;
        pieces_scatter(x, data, (size_t)h->bytes);
        transfer_done(x);
        return;
    }
    struct arrival *a = matching_arrival(matching_of(p), (size_t)h->bytes);
    if (!a) {
        fail_memory(p, link->rank);
        return;
    }
    a->name = h->name;
    a->bytes = h->bytes;
    a->source = link->rank;
    a->by = &p->base;
    memcpy(a->data, data, (size_t)h->bytes);
    matching_keep(matching_of(p), a);
}
static struct link *link_of(struct port *p, const struct header *h, size_t bytes, bool announced)
{
    uint64_t most = announced ? (h->bytes ? h->bytes : 1) : EAGER_BYTES;
    bool sane = h->from >= 0 && h->from < p->size && bytes <= most;
    sane = sane && (announced || h->kind != MESSAGE || bytes == h->bytes);
    struct link *link = sane ? &p->links[h->from] : NULL;
    return link && !link->lost ? link : NULL;
}
/* How many messages of this rank, in the order in which they left, are to be heard before. */
static int messages_before(const struct port *p, const struct header *h)
{
    return (int)(h->sequence - p->base.router->routes[h->from].heard);
}
static bool hear_next(struct port *p, struct link *link, const struct header *h, void *data, size_t bytes,
    bool announced)
{
    p->base.router->routes[link->rank].heard++;
    if (announced) return hear_announced(p, link, h, data, bytes);
    hear_eager(p, link, h, data);
    return false;
}
static void put_ahead(struct port *p, struct note *note)
{
    notes_push(&p->ahead, note);
    p->base.router->ahead++;
}
static bool hear_message(struct port *p, struct link *link, const struct header *h, void *data, size_t bytes,
    bool announced)
{
    int before = messages_before(p, h);
    if (before == 0) return hear_next(p, link, h, data, bytes, announced);
    if (before < 0 || !p->base.router->network->beside) {
        fail(p,
            status_fail(TUTTI_INTERNAL, "rank %d: message %u of rank %d came, and %u was to be next", p->rank,
                h->sequence, h->from, h->sequence - (unsigned)before));
        return false;
    }
    struct note *note = note_new(h, data, bytes, announced);
    if (note) put_ahead(p, note);
    else fail_memory(p, link->rank);
    return note && announced;
}
/* Those of one rank are in their order; what was withdrawn meanwhile is heard of by nobody. */
bool port_hear_ahead(struct port *p)
{
    struct router *router = p->base.router;
    struct notes all = p->ahead;
    bool heard = false;
    p->ahead = (struct notes){ NULL, NULL, 0 };
    router->ahead -= all.count;
    for (struct note *note; (note = notes_pop(&all)) != NULL;) {
        struct link *link = &p->links[note->header.from];
        if (!link->lost && messages_before(p, &note->header) != 0) {
            put_ahead(p, note);
            continue;
        }
        heard = true;
        void *data = note->announced ? note->parked : note->data;
        if (link->lost) data = NULL;
        else if (!data) router->routes[link->rank].heard++;
        if (data && hear_next(p, link, &note->header, data, note->bytes, note->announced)) note->parked = NULL;
        note_free(p->fabric, note);
    }
    return heard;
}
bool port_hear(struct port *p, const struct header *h, void *data, size_t bytes, bool announced)
{
    struct link *link = link_of(p, h, bytes, announced);
    if (!link) return false;
    link->returned = h->returned;
    switch ((enum kind)h->kind) {
    case MESSAGE: return hear_message(p, link, h, data, bytes, announced);
    case WITHDRAWN: withdraw(p, link, h); return false;
    case REFUSED: port_refused(p, h); return false;
    default: return false; /* credit has been taken */
    }
}
void port_hear_notes(struct port *p)
{
    for (struct note *note; (note = notes_pop(&p->notes)) != NULL; note_free(p->fabric, note)) {
        void *data = note->announced ? note->parked : note->data;
        if (port_hear(p, &note->header, data, note->bytes, note->announced)) note->parked = NULL;
    }
}
