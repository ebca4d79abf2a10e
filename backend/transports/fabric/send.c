/* The sending side. A small message is copied into the room of an op, so that its send is done at once. A large message
   is announced and stays in place. A message of several pieces is packed into one, because UCX moves lists of pieces
   over TCP at a third of the speed. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "backend/transports/pieces.h"
#include <stdio.h>
#include <stdlib.h>

static const char reset[] = "the connection was reset";

static struct fabric_op *fabric_op_new_for_link(struct fabric_transport *p, struct fabric_link *link, size_t room)
{
    struct fabric_op *f = fabric_op_new(p->fabric, room);
    if (!f) return NULL;
    f->owner = p;
    f->link = link;
    f->endpoint = link->endpoint;
    f->header = (struct header){ .comm = p->comm, .from = p->rank, .to = link->rank, .returned = link->owed };
    link->reported = link->owed;
    return f;
}
void fabric_link_mark_broken(struct fabric_transport *p, struct fabric_link *link, const char *why)
{
    if (link->broken_ms || link->lost) return;
    link->broken_ms = clock_ms();
    link->why = why;
    p->broken++;
}
/* Marks the link as broken if the failed op carried a numbered message. The receiver waits for that number, so it
   would never handle later messages. */
static void fabric_op_record_loss(struct fabric_transport *p, const struct fabric_op *f)
{
    bool expected = f->header.kind == MESSAGE && f->endpoint && !f->endpoint->left;
    if (f->why && expected) fabric_link_mark_broken(p, f->link, f->why);
}
/* Posts an op. If the fabric has already completed it, the op goes to `completed`, or is freed if it has no transfer
   and no error. */
static void fabric_op_post(struct fabric_transport *p, struct fabric_op *f, const void *data, bool announced)
{
    bool flies = p->fabric->operations->send(p->fabric, f, data, announced);
    if (!flies) fabric_op_record_loss(p, f);
    if (!flies && !f->why && !f->transfer) fabric_op_free(p->fabric, f);
    else fabric_op_add(f, flies ? &p->ops : &p->completed);
}
static void fabric_transport_refuse(struct fabric_transport *p, struct transfer *x, tutti_status status)
{
    router_refuse_transfer(p->base.router, x, status);
}
/* Returns NULL if memory is exhausted, and has then failed the transfer. */
static struct fabric_op *fabric_op_new_for_message(struct fabric_transport *p, struct fabric_link *link,
    struct transfer *x, size_t room)
{
    struct fabric_op *f = fabric_op_new_for_link(p, link, room);
    if (!f) {
        fabric_transport_refuse(p, x,
            status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for a message to rank %d", p->rank, link->rank));
        return NULL;
    }
    f->header.kind = MESSAGE;
    f->header.sequence = p->base.router->routes[link->rank].sent++;
    f->header.name = x->name;
    f->header.bytes = x->wire;
    return f;
}
static bool fabric_link_has_credit(const struct fabric_link *link, uint64_t bytes)
{
    return link->charged - link->returned + eager_message_charge(bytes) <= CREDIT_BYTES;
}
static void fabric_link_send_eager(struct fabric_transport *p, struct fabric_link *link, struct transfer *x)
{
    struct fabric_op *f = fabric_op_new_for_message(p, link, x, (size_t)x->wire);
    if (!f) return;
    f->bytes = (size_t)x->wire;
    link->charged += eager_message_charge(x->wire);
    pieces_gather(x, f->room, f->bytes);
    fabric_op_post(p, f, NULL, false);
    transfer_complete(x);
}
static bool transfer_is_one_run(const struct transfer *x) { return x->piece_count == 1 && x->pieces[0].length > 0; }
static void fabric_link_announce_transfer(struct fabric_transport *p, struct fabric_link *link, struct transfer *x)
{
    bool packed = !transfer_is_one_run(x);
    /* An empty message is announced with one byte, because an announcement needs at least one. */
    size_t room = x->wire ? (size_t)x->wire : 1;
    struct fabric_op *f = fabric_op_new_for_message(p, link, x, packed ? room : 0);
    if (!f) return;
    f->header.id = x->key = ++p->ids;
    f->transfer = x;
    f->packed = packed;
    f->bytes = packed ? room : x->pieces[0].length;
    if (packed) pieces_gather(x, f->room, (size_t)x->wire);
    fabric_op_post(p, f, packed ? NULL : x->pieces[0].at, true);
}
/* Holds a transfer whose connection has broken. The control connection reports whether the process died or ended. The
   transfer fails with `why` only if no report arrives in time. */
static void fabric_link_hold_transfer(struct fabric_transport *p, struct fabric_link *link, struct transfer *x,
    const char *why)
{
    transfer_list_push(&link->held, x);
    fabric_link_mark_broken(p, link, why);
}
static void fabric_link_send_now(struct fabric_transport *p, struct fabric_link *link, struct transfer *x)
{
    if (link->broken_ms) fabric_link_hold_transfer(p, link, x, link->why);
    else if (endpoint_is_broken(link->endpoint)) fabric_link_hold_transfer(p, link, x, link->endpoint->why);
    else if (x->wire <= EAGER_BYTES && fabric_link_has_credit(link, x->wire)) fabric_link_send_eager(p, link, x);
    else fabric_link_announce_transfer(p, link, x);
}
static tutti_status fabric_link_find_endpoint(struct fabric_transport *p, struct fabric_link *link)
{
    unsigned char address[FABRIC_ADDRESS_BYTES];
    const unsigned char *process = p->callbacks.process(p->callbacks.context, link->rank);
    size_t bytes = 0;
    struct endpoint *e = endpoint_find(p->fabric, process);
    if (!e) {
        tutti_status status = p->callbacks.address(p->callbacks.context, p->fabric, link->rank, address, &bytes);
        if (status != TUTTI_OK) return status;
        TRY(p->fabric->operations->connect(p->fabric, process, &p->callbacks.key, address, bytes, &e));
    }
    if (!e->open) return TUTTI_IN_PROGRESS;
    link->endpoint = e;
    return TUTTI_OK;
}
bool fabric_link_connect(struct fabric_transport *p, struct fabric_link *link)
{
    char name[256], why[STATUS_DETAIL_BYTES / 2];
    if (link->endpoint || link->unreachable || link->broken_ms) return link->endpoint;
    tutti_status status = fabric_link_find_endpoint(p, link);
    if (status == TUTTI_OK || status == TUTTI_IN_PROGRESS) return status == TUTTI_OK;
    /* The code that reported the loss also reports its reason. */
    if (status == TUTTI_PEER_LOST) {
        fabric_link_mark_broken(p, link, reset);
        return false;
    }
    snprintf(why, sizeof why, "%.500s", status_detail());
    p->callbacks.name(p->callbacks.context, link->rank, name, sizeof name);
    status_fail(status, "rank %d cannot send to rank %d on %s: %s", p->rank, link->rank, name, why);
    router_keep_reason(p->base.router);
    link->unreachable = status;
    fabric_link_mark_broken(p, link, "no connection is possible");
    for (struct transfer *x; link->waiting.first;) {
        x = transfer_list_take(&link->waiting, NULL);
        fabric_transport_refuse(p, x, status);
    }
    return false;
}

/* ---- several networks: messages take another network while this one is not connected ---- */
static void fabric_link_log_unconnected(const struct fabric_transport *p, const struct fabric_link *link,
    const char *why)
{
    char name[256];
    p->callbacks.name(p->callbacks.context, link->rank, name, sizeof name);
    LOG(WARN, "rank %d has no connection by %s with rank %d on %s (%s): messages go by another network", p->rank,
        p->base.network, link->rank, name, why);
}
void fabric_link_mark_refused(struct fabric_transport *p, struct fabric_link *link, const char *why)
{
    if (!link->refused) fabric_link_log_unconnected(p, link, why);
    link->refused = true;
}
static bool fabric_link_is_late(struct fabric_link *link)
{
    int64_t now_ms = clock_ms();
    if (!link->asked_ms) link->asked_ms = now_ms;
    return now_ms - link->asked_ms >= UNCONNECTED_MS;
}
/* Messages also wait behind transfers that a broken connection holds, because by another network they would overtake
   them. */
enum readiness fabric_link_readiness(struct fabric_transport *p, struct fabric_link *link)
{
    if (link->waiting.first || link->broken_ms) return SENDS_WAIT;
    if (link->refused) return UNCONNECTED;
    if (fabric_link_connect(p, link)) return CONNECTED;
    if (fabric_link_is_late(link)) {
        fabric_link_log_unconnected(p, link, "it is still asked for");
        link->asked_ms = INT64_MAX;
    }
    return UNCONNECTED;
}

/* ---- sending ---- */
void fabric_link_send(struct fabric_transport *p, struct fabric_link *link, struct transfer *x)
{
    bool waits = link->waiting.first;
    if (link->endpoint && !waits) {
        fabric_link_send_now(p, link, x);
        return;
    }
    transfer_list_push(&link->waiting, x);
    p->waiting += !waits;
    if (!waits) fabric_transport_send_waiting(p);
}
bool fabric_transport_send_waiting(struct fabric_transport *p)
{
    bool moved = false;
    p->waiting = 0;
    for (int r = 0; r < p->size; r++) {
        struct fabric_link *link = &p->links[r];
        if (!link->waiting.first) continue;
        if (fabric_link_connect(p, link))
            while (link->waiting.first) fabric_link_send_now(p, link, transfer_list_take(&link->waiting, NULL));
        moved |= !link->waiting.first;
        p->waiting += link->waiting.first != NULL;
    }
    return moved;
}
bool fabric_link_send_control(struct fabric_transport *p, struct fabric_link *link, const struct header *said)
{
    bool can = fabric_link_connect(p, link) && !endpoint_is_broken(link->endpoint);
    struct fabric_op *f = can ? fabric_op_new_for_link(p, link, 0) : NULL;
    /* A missing credit message is harmless, because a peer without credit announces its messages. */
    if (!f) return false;
    f->header.kind = said->kind;
    f->header.name = said->name;
    f->header.id = said->id;
    f->header.bytes = said->bytes;
    fabric_op_post(p, f, NULL, false);
    return true;
}
/* Returns credit to ranks that only send to this one. Other ranks get their credit with the next message. */
void fabric_transport_return_credit(struct fabric_transport *p)
{
    p->owes = false;
    for (int r = 0; r < p->size; r++) {
        struct fabric_link *link = &p->links[r];
        if (fabric_link_owes_much(link) && !link->lost)
            fabric_link_send_control(p, link, &(struct header){ .kind = CREDIT });
    }
}

/* ---- completed ops ---- */
static void fabric_op_end_send(struct fabric_transport *p, struct fabric_op *f)
{
    struct transfer *x = f->transfer;
    if (f->refused) transfer_fail(x, TUTTI_MISMATCH, f->theirs);
    else if (!f->why) transfer_complete(x);
    else fabric_link_hold_transfer(p, f->link, x, f->why);
}
static void fabric_op_end_receive(struct fabric_transport *p, struct fabric_op *f)
{
    struct transfer *x = f->transfer;
    if (f->why) {
        fabric_link_hold_transfer(p, f->link, x, f->why);
        return;
    }
    if (f->packed) pieces_scatter(x, f->room, size_smaller(f->bytes, (size_t)x->wire));
    transfer_complete(x);
}
void fabric_transport_end_completed(struct fabric_transport *p)
{
    for (struct fabric_op *f; (f = p->completed) != NULL; fabric_op_free(p->fabric, f)) {
        fabric_op_remove(f);
        if (!f->transfer) {
            fabric_op_record_loss(p, f);
            continue;
        }
        if (f->transfer->is_send) fabric_op_end_send(p, f);
        else fabric_op_end_receive(p, f);
    }
}
void fabric_transport_handle_refused(struct fabric_transport *p, const struct header *header)
{
    for (struct fabric_op *f = p->ops; f; f = f->next)
        if (f->transfer && f->transfer->is_send && f->link->rank == header->from && f->header.id == header->id) {
            if (f->refused) return;
            f->refused = true;
            f->theirs = header->bytes;
            if (!fabric_link_send_control(p, f->link, &(struct header){ .kind = WITHDRAWN, .id = header->id }))
                fabric_link_mark_broken(p, f->link, "no memory to take a message back");
            return;
        }
}
