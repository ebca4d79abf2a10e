/* The contract of a transport (transport.h), and who polls. All of a port is touched with worker.lock held; the router
   and its matching only by the rank's own thread, in a call of the contract. */
#include "backend/transports/ucx/ucx.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/transports/ucx/port.h"
#include <stdlib.h>
#include <string.h>

enum { CLOSED = 256 };
static struct { /* worker.lock: ends that are no more, the latest */
    struct { uint64_t comm; int rank; } closed[CLOSED];
    unsigned count;
} past;

static struct ucx_port *enter(struct transport *t)
{
    pthread_mutex_lock(&worker.lock);
    return (struct ucx_port *)t;
}
static void leave(void) { pthread_mutex_unlock(&worker.lock); }

/* ---- for callbacks ---- */
struct ucx_port *port_find(uint64_t comm, int rank)
{
    struct ucx_port *p = worker.ports;
    while (p && (p->comm != comm || p->rank != rank)) p = p->next;
    return p;
}
bool port_was_closed(uint64_t comm, int rank)
{
    for (unsigned i = 0; i < CLOSED && i < past.count; i++)
        if (past.closed[i].comm == comm && past.closed[i].rank == rank) return true;
    return false;
}
static void disarm(struct ucx_port *p)
{
    worker.armed -= p->armed;
    p->armed = false;
}
static void wake(struct ucx_port *p)
{
    const struct bell *bell = &p->base.router->bell;
    if (p->armed && bell->ring) bell->ring(bell->context);
    disarm(p);
}
void port_note(struct ucx_port *p, struct note *note)
{
    if (note->header.kind == WITHDRAWN) port_let_go(p, &note->header);
    notes_push(&p->notes, note);
    wake(p);
}
void port_starve(struct ucx_port *p)
{
    p->starved = true;
    wake(p);
}
void ports_wake(void)
{
    for (struct ucx_port *p = worker.ports; p; p = p->next) wake(p);
}
void port_land(struct ucx_port *p, struct flight *f)
{
    flight_enlist(f, &p->landed);
    if (worker.polling != p) wake(p);
}

/* ---- the contract ---- */
static void ucx_send(struct transport *t, int member, struct transfer *x)
{
    struct ucx_port *p = enter(t);
    port_send(p, &p->links[member], x);
    leave();
}
static void ucx_accept(struct transport *t, int member, struct transfer *x, const struct arrival *a)
{
    struct ucx_port *p = enter(t);
    port_accept(p, &p->links[member], x, (struct parked *)(uintptr_t)a->id, a->bytes);
    port_end_landed(p);
    leave();
}
static void ucx_release(struct transport *t, int member, uint64_t bytes)
{
    struct ucx_port *p = enter(t);
    link_owe(p, &p->links[member], bytes);
    leave();
}
/* What notes and callbacks have left to be done. */
static bool settle(struct ucx_port *p)
{
    bool moved = p->matched || p->landed;
    if (p->matched) port_begin_matched(p);
    if (p->landed) port_end_landed(p);
    if (p->waiting) port_send_waiting(p);
    if (p->owes) port_return_credit(p);
    if (p->refuses) port_refuse(p);
    return moved;
}
/* Endpoints that broke, in whichever communicator it was noticed. What a rank announces to one that has no endpoint of
   its own any more UCX drops without a word, so that link is broken, too. */
static void note_breaks(struct ucx_port *p)
{
    p->breaks = worker.breaks;
    for (const struct endpoint *e = worker.endpoints; e; e = e->next) {
        if (!endpoint_is_broken(e) || e->left) continue;
        for (int r = 0; r < p->size; r++) {
            struct link *link = &p->links[r];
            bool its = link->endpoint ? link->endpoint == e
                                      : memcmp(p->ground.process(p->ground.context, r), e->process, 16) == 0;
            if (its) link_note_broken(p, link, e->status);
        }
    }
}
static bool progress(struct ucx_port *p)
{
    bool moved = p->notes.first;
    disarm(p);
    worker.touched++;
    if (moved) port_hear_notes(p);
    worker.polling = p;
    moved |= ucx.ucp_worker_progress(worker.ucp) != 0;
    if (worker.greets) endpoints_greet();
    moved |= settle(p);
    worker.polling = NULL;
    if (p->breaks != worker.breaks) note_breaks(p);
    return moved;
}
/* A connection that broke and has been held in vain. */
static struct link *find_broken(const struct ucx_port *p)
{
    int64_t now_ms = clock_ms();
    for (int r = 0; p->broken && r < p->size; r++) {
        struct link *link = &p->links[r];
        if (link->broken_ms && !link->lost && (link->unreachable || now_ms - link->broken_ms >= HOLD_MS)) return link;
    }
    return NULL;
}
static void lose(struct ucx_port *p, const struct link *link)
{
    char name[256];
    p->ground.name(p->ground.context, link->rank, name, sizeof name);
    router_lose(p->base.router, link->rank,
        status_fail(TUTTI_PEER_LOST, "the connection of rank %d to rank %d on %s broke: %s", p->rank, link->rank, name,
            ucx_status_text(link->status)));
}
static bool ucx_poll(struct transport *t)
{
    struct ucx_port *p = enter(t);
    bool moved = progress(p);
    const struct link *broken = p->broken ? find_broken(p) : NULL;
    bool starved = p->starved;
    leave();
    if (broken) lose(p, broken);
    if (starved) router_fail(t->router, status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for messages", p->rank));
    return moved || broken || starved;
}
static bool ucx_arm(struct transport *t)
{
    struct ucx_port *p = enter(t);
    bool ready = !p->notes.first && !p->landed && !p->matched && !p->waiting && !p->owes && !p->broken && !p->refuses
        && !p->starved;
    if (ready && !p->armed) {
        p->armed = true;
        worker.armed++;
        thread_wake();
    }
    leave();
    return ready;
}

/* ---- taking back ---- */
static struct flight *find_flight(const struct ucx_port *p, const struct transfer *x)
{
    struct flight *f = p->flights;
    while (f && f->transfer != x) f = f->next;
    return f;
}
/* A rendezvous cannot be called back: the other end is asked to let go of it, and after a while the connection is
   broken, which ends all that is under way. */
static bool is_overdue(struct ucx_port *p, struct flight *f)
{
    int64_t now_ms = clock_ms();
    if (f->withdrawn_ms) return now_ms - f->withdrawn_ms >= TRANSPORT_CANCEL_MS;
    f->withdrawn_ms = now_ms;
    if (f->transfer->is_send)
        port_tell(p, f->link, &(struct header){ .kind = WITHDRAWN, .name = f->header.name, .id = f->header.id });
    return false;
}
static bool unwait(struct ucx_port *p, struct link *link, const struct transfer *x)
{
    if (!queue_remove(&link->waiting, x)) return false;
    p->waiting -= !link->waiting.first;
    return true;
}
static bool ucx_cancel(struct transport *t, int member, struct transfer *x)
{
    struct ucx_port *p = enter(t);
    struct link *link = &p->links[member];
    bool forgotten = unwait(p, link, x) || queue_remove(&link->held, x) || link_forget_receive(link, x), late = false;
    struct flight *f = forgotten ? NULL : find_flight(p, x);
    if (f) late = is_overdue(p, f);
    if (!forgotten) progress(p);
    leave();
    if (late)
        router_lose(t->router, member,
            status_fail(TUTTI_PEER_LOST, "rank %d has not let go of a message of rank %d within %d ms", member, p->rank,
                TRANSPORT_CANCEL_MS));
    return forgotten;
}

/* ---- losing and ending ---- */
static void fail_all(struct queue *q, tutti_status status)
{
    while (q->first) transfer_fail(queue_take(q, NULL), status, 0);
}
static bool is_at(const struct ucx_port *p, const struct link *link) /* UCX may touch memory of a caller */
{
    const struct flight *f = p->flights;
    while (f && (f->link != link || !f->transfer || f->packed)) f = f->next;
    return f;
}
/* What is at a caller's memory has an endpoint, and ends with it. */
static void let_go(struct ucx_port *p, struct link *link)
{
    if (link->endpoint && is_at(p, link)) endpoint_break(link->endpoint, UCS_ERR_CANCELED);
    for (int64_t until_ms = clock_ms() + TRANSPORT_CANCEL_MS; is_at(p, link) && clock_ms() < until_ms;)
        ucx.ucp_worker_progress(worker.ucp);
    if (is_at(p, link)) LOG(ERROR, "UCX does not let go of memory of rank %d, whose connection was closed", p->rank);
}
static void end_link(struct ucx_port *p, struct link *link, tutti_status status)
{
    link->lost = true;
    for (struct parked *at = link->parked; at; at = at->next)
        if (at->receive) transfer_fail(at->receive, status, 0);
    link_forget_arrivals(link);
    let_go(p, link);
    port_end_landed(p);
    p->broken -= link->broken_ms != 0;
    p->waiting -= link->waiting.first != NULL;
    fail_all(&link->held, status);
    fail_all(&link->waiting, status);
    for (struct flight *f = p->flights; f; f = f->next)
        if (f->link == link && f->transfer) {
            transfer_fail(f->transfer, status, 0);
            f->transfer = NULL;
        }
}
static void ucx_lose(struct transport *t, int member, tutti_status status)
{
    struct ucx_port *p = enter(t);
    end_link(p, &p->links[member], status);
    leave();
}
static void orphan_flights(struct ucx_port *p)
{
    for (struct flight *f; (f = p->flights) != NULL; f->owner = NULL) flight_remove(f);
    for (struct flight *f; (f = p->landed) != NULL; flight_free(f)) flight_remove(f);
}
static void note_closed(const struct ucx_port *p)
{
    past.closed[past.count % CLOSED].comm = p->comm;
    past.closed[past.count++ % CLOSED].rank = p->rank;
}
static void ucx_destroy(struct transport *t)
{
    struct ucx_port *p = enter(t);
    struct ucx_port **at = &worker.ports;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    disarm(p);
    for (int r = 0; r < p->size; r++) {
        struct link *link = &p->links[r];
        let_go(p, link);
        link_forget_arrivals(link);
    }
    orphan_flights(p);
    for (struct note *note; (note = notes_pop(&p->notes)) != NULL;) note_free(note);
    note_closed(p);
    leave();
    free(p->links);
    free(p);
}
static const struct transport_operations operations = { .name = "ucx",
    .send = ucx_send,
    .accept = ucx_accept,
    .release = ucx_release,
    .poll = ucx_poll,
    .cancel = ucx_cancel,
    .lose = ucx_lose,
    .arm = ucx_arm,
    .destroy = ucx_destroy };

/* ---- the beginning ---- */
static void take_early(struct ucx_port *p)
{
    struct notes all = worker.early;
    worker.early = (struct notes){ NULL, NULL, 0 };
    for (struct note *note; (note = notes_pop(&all)) != NULL;) {
        bool ours = note->header.comm == p->comm && note->header.to == p->rank;
        if (ours && note->header.kind == WITHDRAWN) port_let_go(p, &note->header);
        notes_push(ours ? &p->notes : &worker.early, note);
    }
}
tutti_status ucx_connect(struct router *router, const struct ucx_ground *ground)
{
    struct ucx_port *p = memory_zeroed(1, sizeof *p);
    struct link *links = memory_zeroed((size_t)router->size, sizeof *links);
    if (!p || !links) {
        free(p);
        free(links);
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for links with %d ranks", router->rank,
            router->size);
    }
    *p = (struct ucx_port){ .base = { .operations = &operations, .router = router },
        .comm = router->comm,
        .rank = router->rank,
        .size = router->size,
        .ground = *ground,
        .links = links,
        .breaks = worker.breaks };
    for (int r = 0; r < p->size; r++) links[r].rank = r;
    pthread_mutex_lock(&worker.lock);
    p->next = worker.ports;
    worker.ports = p;
    take_early(p);
    leave();
    router_add(router, &p->base, NULL, router->size);
    return TUTTI_OK;
}
