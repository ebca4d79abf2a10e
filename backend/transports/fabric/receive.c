/* The receiving side. While its rank polls, a message goes from the fabric's memory into its receive or into the
   matching. Otherwise it becomes a saved message, which the next poll handles in order. A message that is early because
   others come by another network is saved, too. */
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/pieces.h"
#include <stdlib.h>
#include <string.h>

static const char twice[] = "its process has sent a message twice", missing[] = "a message of its process is missing";

static struct matching *fabric_transport_matching(struct fabric_transport *p) { return &p->base.router->matching; }
static void fabric_transport_fail(struct fabric_transport *p, tutti_status status)
{
    router_fail(p->base.router, status);
}
static void fabric_transport_fail_memory(struct fabric_transport *p, int from)
{
    fabric_transport_fail(p,
        status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for an unexpected message of rank %d", p->rank, from));
}

/* ---- announced messages ---- */
static struct pending_rndv **pending_rndv_bucket(struct fabric_transport *p, uint64_t id)
{
    return &p->pending[id % PENDING_RNDV_BUCKETS];
}
static struct pending_rndv *pending_rndv_find(struct fabric_transport *p, const struct fabric_link *link, uint64_t id)
{
    struct pending_rndv *pending = *pending_rndv_bucket(p, id);
    while (pending && (pending->id != id || pending->link != link)) pending = pending->next;
    return pending;
}
static struct pending_rndv *pending_rndv_new(struct fabric_transport *p, struct fabric_link *link,
    const struct header *h, void *descriptor, size_t bytes)
{
    struct pending_rndv *pending = memory_alloc_zeroed(1, sizeof *pending), **at = pending_rndv_bucket(p, h->id);
    if (!pending) return NULL;
    *pending =
        (struct pending_rndv){ .next = *at, .at = at, .link = link, .name = h->name, .id = h->id, .wire = h->bytes };
    pending->descriptor = descriptor;
    pending->bytes = bytes;
    if (*at) (*at)->at = &pending->next;
    link->pending++;
    return *at = pending;
}
static void due_list_push(struct due_list *due, struct pending_rndv *pending)
{
    pending->next_due = NULL;
    pending->due = true;
    if (due->first) due->last->next_due = pending;
    else due->first = pending;
    due->last = pending;
}
static void due_list_remove(struct due_list *due, const struct pending_rndv *pending)
{
    struct pending_rndv *before = NULL, *at = due->first;
    for (; at && at != pending; at = at->next_due) before = at;
    if (!at) return;
    if (before) before->next_due = at->next_due;
    else due->first = at->next_due;
    if (due->last == at) due->last = before;
    at->due = false;
}
static struct pending_rndv *due_list_pop(struct due_list *due)
{
    struct pending_rndv *pending = due->first;
    if (pending) due_list_remove(due, pending);
    return pending;
}
static void pending_rndv_release(struct fabric_transport *p, struct pending_rndv *pending)
{
    if (pending->descriptor) p->fabric->operations->release(p->fabric, pending->descriptor);
    pending->descriptor = NULL;
}
static void pending_rndv_free(struct fabric_transport *p, struct pending_rndv *pending)
{
    pending_rndv_release(p, pending);
    if (pending->due) due_list_remove(&p->met, pending);
    if (pending->due) due_list_remove(&p->refusing, pending);
    *pending->at = pending->next;
    if (pending->next) pending->next->at = pending->at;
    pending->link->pending--;
    free(pending);
}
/* Starts to fetch the bytes of an announced message whose receive is posted. They go directly into the tensor if it
   takes all of them in one piece, and if a fetch can be ended when the peer is lost: fabric_link_release_memory then
   disconnects the endpoint, which must exist and be whole. Other bytes go to the room of the op, and are copied when
   the fetch is complete. */
static void pending_rndv_fetch(struct fabric_transport *p, struct fabric_link *link, struct transfer *x,
    struct pending_rndv *pending)
{
    bool safe = fabric_link_connect(p, link) && !endpoint_is_broken(link->endpoint);
    bool direct = safe && x->piece_count == 1 && x->pieces[0].length >= pending->bytes;
    struct fabric_op *f = fabric_op_new(p->fabric, direct ? 0 : pending->bytes);
    if (!f) {
        pending_rndv_release(p, pending);
        router_refuse_transfer(p->base.router, x,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message of rank %d", p->rank, link->rank));
        return;
    }
    f->owner = p;
    f->link = link;
    f->endpoint = link->endpoint;
    f->transfer = x;
    f->packed = !direct;
    f->bytes = pending->bytes;
    void *descriptor = pending->descriptor;
    pending->descriptor = NULL;
    /* The op is added before the fetch because it may complete within that call. */
    fabric_op_add(f, &p->ops);
    if (p->fabric->operations->fetch(p->fabric, f, descriptor, direct ? x->pieces[0].at : NULL)) return;
    fabric_op_remove(f);
    fabric_op_add(f, &p->completed);
}
/* A refused message stays pending until its sender gets the refusal and withdraws the message, because a release would
   mean success to the sender. */
void fabric_transport_accept_rndv(struct fabric_transport *p, struct fabric_link *link, struct transfer *x, uint64_t id,
    uint64_t bytes)
{
    struct pending_rndv *pending = pending_rndv_find(p, link, id);
    x->key = id;
    if (pending) pending->receive = NULL;
    if (!pending || !pending->descriptor) transfer_fail(x, TUTTI_ABORTED, 0);
    else if (transfer_meet_message(x, link->rank, bytes)) pending_rndv_fetch(p, link, x, pending);
    else {
        pending->wanted = x->wire;
        due_list_push(&p->refusing, pending);
        return;
    }
    if (pending) pending_rndv_free(p, pending);
}
/* Sends the refusals. A refusal that lacked memory is sent again later, but not if the connection has broken. */
void fabric_transport_send_refusals(struct fabric_transport *p)
{
    struct due_list due = p->refusing;
    p->refusing = (struct due_list){ NULL, NULL };
    for (struct pending_rndv *at; (at = due_list_pop(&due)) != NULL;) {
        bool told = fabric_link_send_control(p, at->link,
            &(struct header){ .kind = REFUSED, .id = at->id, .bytes = at->wanted });
        if (!told && !at->link->broken_ms && !at->link->unreachable) due_list_push(&p->refusing, at);
    }
}
void fabric_transport_fetch_met(struct fabric_transport *p)
{
    for (struct pending_rndv *at; (at = due_list_pop(&p->met)) != NULL;)
        fabric_transport_accept_rndv(p, at->link, at->receive, at->id, at->wire);
}
/* Releases a message that its sender takes back. A receive that has already met it fails in
   fabric_transport_accept_rndv. A message whose fetch has started is no longer pending. */
static void pending_rndv_withdraw(struct fabric_transport *p, const struct fabric_link *link, uint64_t id)
{
    struct pending_rndv *pending = pending_rndv_find(p, link, id);
    if (!pending) return;
    pending_rndv_release(p, pending);
    if (pending->receive) return;
    struct arrival *a =
        matching_withdraw_arrival(fabric_transport_matching(p), &p->base, link->rank, pending->name, id);
    if (a) matching_arrival_free(fabric_transport_matching(p), a);
    pending_rndv_free(p, pending);
}
void fabric_transport_free_rndvs(struct fabric_transport *p, const struct fabric_link *link)
{
    for (int i = 0; i < PENDING_RNDV_BUCKETS; i++)
        for (struct pending_rndv *at = p->pending[i], *next; at; at = next) {
            next = at->next;
            if (!link || at->link == link) pending_rndv_free(p, at);
        }
}
bool fabric_link_forget_receive(struct fabric_transport *p, struct fabric_link *link, const struct transfer *x)
{
    struct pending_rndv *pending = p->met.first;
    while (pending && (pending->link != link || pending->receive != x)) pending = pending->next_due;
    if (pending) pending_rndv_free(p, pending);
    return pending;
}

/* ---- messages ---- */
/* Rare paths are not inlined, so that the path of short expected messages stays small. */
__attribute__((noinline)) static void fabric_link_handle_announced(struct fabric_transport *p, struct fabric_link *link,
    const struct header *h)
{
    struct pending_rndv *pending = pending_rndv_find(p, link, h->id);
    /* The message is missing if it was withdrawn before its turn came. */
    if (!pending) return;
    pending->receive = matching_take_receive(fabric_transport_matching(p), link->rank, h->name);
    if (pending->receive) {
        pending->receive->source = link->rank;
        due_list_push(&p->met, pending);
        return;
    }
    struct arrival *a = matching_arrival_new(fabric_transport_matching(p), 0);
    if (!a) {
        fabric_transport_fail_memory(p, link->rank);
        return;
    }
    a->name = h->name;
    a->bytes = h->bytes;
    a->id = h->id;
    a->source = link->rank;
    a->by = &p->base;
    a->announced = true;
    matching_keep_arrival(fabric_transport_matching(p), a);
}
static void fabric_link_handle_eager(struct fabric_transport *p, struct fabric_link *link, const struct header *h,
    const unsigned char *data)
{
    struct transfer *x = matching_take_receive(fabric_transport_matching(p), link->rank, h->name);
    if (x) {
        fabric_link_owe_credit(p, link, h->bytes);
        if (!transfer_meet_message(x, link->rank, h->bytes)) return;
        pieces_scatter(x, data, (size_t)h->bytes);
        transfer_complete(x);
        return;
    }
    struct arrival *a = matching_arrival_new(fabric_transport_matching(p), (size_t)h->bytes);
    if (!a) {
        fabric_transport_fail_memory(p, link->rank);
        return;
    }
    a->name = h->name;
    a->bytes = h->bytes;
    a->source = link->rank;
    a->by = &p->base;
    memcpy(a->data, data, (size_t)h->bytes);
    matching_keep_arrival(fabric_transport_matching(p), a);
}
/* Returns the number of messages of this rank that left earlier and have not been handled. */
static int messages_missing_before(const struct fabric_transport *p, const struct header *h)
{
    return (int)(h->sequence - p->base.router->routes[h->from].handled);
}
static inline void fabric_link_handle_next(struct fabric_transport *p, struct fabric_link *link, const struct header *h,
    const void *data)
{
    p->base.router->routes[link->rank].handled++;
    if (h->id) fabric_link_handle_announced(p, link, h);
    else fabric_link_handle_eager(p, link, h, data);
}
static struct saved_msg *saved_msg_from_header(struct fabric_link *link, struct endpoint *from, const struct header *h,
    const void *data)
{
    bool announced = h->kind == MESSAGE && h->id;
    struct saved_msg *msg =
        saved_msg_new(h, announced ? NULL : data, h->kind == MESSAGE ? (size_t)h->bytes : 0, announced);
    if (!msg) return NULL;
    msg->from = from;
    /* An announced message already counts as a pending rendezvous. */
    link->pending += !msg->announced;
    return msg;
}
static void saved_msg_finish(struct fabric_transport *p, struct saved_msg *msg)
{
    p->links[msg->header.from].pending -= !msg->announced;
    saved_msg_free(p->fabric, msg);
}
static void fabric_transport_push_ahead(struct fabric_transport *p, struct saved_msg *msg)
{
    saved_msgs_push(&p->ahead, msg);
    p->base.router->ahead++;
}
__attribute__((noinline)) static void fabric_link_handle_out_of_turn(struct fabric_transport *p,
    struct fabric_link *link, struct endpoint *from, const struct header *h, const void *data)
{
    int before = messages_missing_before(p, h);
    if (before < 0 || !p->base.router->network->beside) {
        endpoint_mark_faulty(p->fabric, from, before < 0 ? twice : missing);
        return;
    }
    struct saved_msg *msg = saved_msg_from_header(link, from, h, data);
    if (msg) fabric_transport_push_ahead(p, msg);
    else fabric_transport_fail_memory(p, link->rank);
}
static inline void fabric_link_handle_message(struct fabric_transport *p, struct fabric_link *link,
    struct endpoint *from, const struct header *h, const void *data)
{
    if (messages_missing_before(p, h) == 0) fabric_link_handle_next(p, link, h, data);
    else fabric_link_handle_out_of_turn(p, link, from, h, data);
}
/* The messages of one rank are in the order in which they arrived by this network. */
bool fabric_transport_handle_ahead(struct fabric_transport *p)
{
    struct router *router = p->base.router;
    struct saved_msgs all = p->ahead;
    bool handled = false;
    p->ahead = (struct saved_msgs){ NULL, NULL, 0 };
    router->ahead -= all.count;
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&all)) != NULL;) {
        struct fabric_link *link = &p->links[msg->header.from];
        int before = link->lost ? 0 : messages_missing_before(p, &msg->header);
        if (before > 0) {
            fabric_transport_push_ahead(p, msg);
            continue;
        }
        handled = true;
        if (before < 0) endpoint_mark_faulty(p->fabric, msg->from, twice);
        else if (!link->lost) fabric_link_handle_next(p, link, &msg->header, msg->data);
        saved_msg_finish(p, msg);
    }
    return handled;
}
static inline void fabric_link_handle_header(struct fabric_transport *p, struct fabric_link *link,
    struct endpoint *from, const struct header *h, const void *data)
{
    switch ((enum fabric_kind)h->kind) {
    case MESSAGE: fabric_link_handle_message(p, link, from, h, data); return;
    case WITHDRAWN: pending_rndv_withdraw(p, link, h->id); return;
    case REFUSED: fabric_transport_handle_refused(p, h); return;
    /* fabric_link_record_arrival has already recorded the credit. */
    default: return;
    }
}
void fabric_transport_handle_saved_msgs(struct fabric_transport *p)
{
    for (struct saved_msg *msg; (msg = saved_msgs_pop(&p->saved_msgs)) != NULL; saved_msg_finish(p, msg)) {
        struct fabric_link *link = &p->links[msg->header.from];
        if (!link->lost && !msg->from->faulty) fabric_link_handle_header(p, link, msg->from, &msg->header, msg->data);
    }
}

/* ---- checks of arrivals ---- */
static bool fabric_link_owns_endpoint(const struct fabric_transport *p, struct fabric_link *link,
    const struct endpoint *from)
{
    if (link->by == from) return true;
    if (memcmp(p->callbacks.process(p->callbacks.context, link->rank), from->process, sizeof from->process) != 0)
        return false;
    link->by = from;
    return true;
}
/* Returns the fault of a message to this transport, or NULL if it is valid. */
static const char *fabric_transport_find_fault(const struct fabric_transport *p, const struct endpoint *from,
    const struct header *h, bool announced)
{
    struct fabric_link *link = h->from >= 0 && h->from < p->size ? &p->links[h->from] : NULL;
    if (!link || !fabric_link_owns_endpoint(p, link, from)) return "its process has sent a message as another process";
    if (link->lost) return NULL;
    if (h->returned - link->returned > link->charged - link->returned)
        return "its process has returned more credit than it had";
    if (announced && h->id <= link->announced) return "its process has announced a message twice";
    if (link->pending >= PENDING_RNDV_MOST) return "more than 65536 messages of its process wait to be received";
    bool unasked = h->kind == MESSAGE && !announced;
    if (unasked && link->arrived - link->owed + eager_message_charge(h->bytes) > CREDIT_BYTES)
        return "its process has sent more eager bytes than it has credit for";
    return NULL;
}
_Static_assert(PENDING_RNDV_MOST == 65536, "as the text says");
/* Records an arrival at once, even if its rank does not poll: the credit, an announcement, or a withdrawal, for which
   the sender waits. false: memory is exhausted. */
static bool fabric_link_record_arrival(struct fabric_transport *p, struct fabric_link *link, const struct header *h,
    void *data, size_t bytes, bool announced)
{
    link->returned = h->returned;
    if (h->kind == WITHDRAWN) {
        struct pending_rndv *pending = pending_rndv_find(p, link, h->id);
        if (pending) pending_rndv_release(p, pending);
    } else if (announced) {
        link->announced = h->id;
        return pending_rndv_new(p, link, h, data, bytes);
    } else if (h->kind == MESSAGE) link->arrived += eager_message_charge(h->bytes);
    return true;
}
/* Saves a message that the transport handles in its next poll. */
static void fabric_transport_save_msg(struct fabric_transport *p, struct saved_msg *msg)
{
    saved_msgs_push(&p->saved_msgs, msg);
    fabric_transport_wake(p);
}
/* Records that memory for a saved message was missing: the next poll of the transport fails its router. */
static void fabric_transport_mark_out_of_memory(struct fabric_transport *p)
{
    p->out_of_memory = true;
    fabric_transport_wake(p);
}
bool fabric_transport_handle_message(struct fabric_transport *p, struct endpoint *from, const struct header *h,
    void *data, size_t bytes, bool announced)
{
    const char *fault = fabric_transport_find_fault(p, from, h, announced);
    if (fault) endpoint_mark_faulty(p->fabric, from, fault);
    struct fabric_link *link = fault ? NULL : &p->links[h->from];
    if (!link || link->lost) return false;
    if (!fabric_link_record_arrival(p, link, h, data, bytes, announced)) {
        fabric_transport_mark_out_of_memory(p);
        return false;
    }
    if (p == p->fabric->polling) fabric_link_handle_header(p, link, from, h, data);
    else if (h->kind != CREDIT) {
        struct saved_msg *msg = saved_msg_from_header(link, from, h, data);
        if (msg) fabric_transport_save_msg(p, msg);
        else fabric_transport_mark_out_of_memory(p);
    }
    return announced;
}
