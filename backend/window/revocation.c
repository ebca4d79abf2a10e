/* Revocations: a rank that frees its window alone reports this to the others, so that they do not wait for it. Ranks of
   this host that write each other directly read window_row.freed. All others get a message with a receive of its own,
   because the bytes of a put that was cancelled may hold up the headers. A rank that has freed its window still
   receives the revocations of the others, because a message without a receive would use credit of its sender for
   good. */
#include "backend/window/window.h"

/* Posts a transfer of a revocation of the window from or to rank `peer`. */
static void revocation_post(const struct tutti_window *w, struct router *router, struct transfer *transfer,
    struct piece *piece, int peer, struct window_revocation *body)
{
    struct message_name name = { OPERATION_OF_WINDOW, (uint64_t)w->number << WINDOW_SHIFT | 1 };
    bool is_send = transfer->is_send;
    *piece = (struct piece){ (unsigned char *)body, sizeof *body, sizeof *body };
    *transfer = (struct transfer){ .name = name, .peer = peer, .is_send = is_send, .pieces = piece, .piece_count = 1 };
    router_post(router, transfer);
}
void window_receive_revocations(struct tutti_window *w, struct router *router)
{
    for (int r = 0; r < w->size; r++) {
        struct window_revocations *v = w->peers[r].revocations;
        if (v) revocation_post(w, router, &v->receive, &v->pieces[0], r, &v->theirs);
    }
}
void window_publish_freed(struct tutti_window *w) { atomic_store(&w->row->freed, 1); }
void window_send_revocation(struct tutti_window *w, struct router *router, int to, uint64_t sent)
{
    struct window_revocations *v = w->peers[to].revocations;
    const struct inbound *in = w->peers[to].inbound;
    v->mine = (struct window_revocation){ sent, in ? in->handled : 0 };
    v->send.is_send = true;
    revocation_post(w, router, &v->send, &v->pieces[1], to, &v->mine);
}
void window_handle_revocations(struct tutti_window *w, bool *progressed)
{
    for (int r = 0; r < w->size; r++) {
        struct window_revocations *v = w->peers[r].revocations;
        if (!v || v->receive.state != TRANSFER_DONE || atomic_load(&v->has_freed)) continue;
        atomic_store(&v->has_freed, true);
        *progressed = true;
    }
}
bool window_is_sending_revocations(const struct tutti_window *w)
{
    for (int r = 0; r < w->size; r++) {
        const struct window_revocations *v = w->peers[r].revocations;
        if (v && v->send.state == TRANSFER_POSTED) return true;
    }
    return false;
}
bool window_revocations_are_over(const struct tutti_window *w)
{
    for (int r = 0; r < w->size; r++) {
        const struct window_revocations *v = w->peers[r].revocations;
        if (v && (v->send.state == TRANSFER_POSTED || v->receive.state == TRANSFER_POSTED)) return false;
    }
    return true;
}
bool window_cancel_revocations(struct tutti_window *w, struct router *router)
{
    for (int r = 0; r < w->size; r++) {
        struct window_revocations *v = w->peers[r].revocations;
        if (v && v->send.state == TRANSFER_POSTED) router_cancel(router, &v->send);
        if (v && v->receive.state == TRANSFER_POSTED) router_cancel(router, &v->receive);
    }
    return window_revocations_are_over(w);
}
bool window_peer_has_freed(const struct tutti_window *w, int peer)
{
    const struct window_peer *p = &w->peers[peer];
    return p->revocations ? atomic_load(&p->revocations->has_freed) : p->row && atomic_load(&p->row->freed);
}
/* A peer may have handled a message whose send is not over here yet. */
bool window_peer_ignores_message(const struct tutti_window *w, int peer, uint64_t index)
{
    return window_peer_has_freed(w, peer) && index >= w->peers[peer].revocations->theirs.handled;
}
/* A peer that writes directly counts its signals before it reports that it has freed its window. */
bool window_peer_signals_no_more(const struct tutti_window *w, int peer)
{
    const struct window_peer *p = &w->peers[peer];
    return window_peer_has_freed(w, peer) && (!p->inbound || p->inbound->handled >= p->revocations->theirs.sent);
}
int window_find_freed_peer(const struct tutti_window *w)
{
    int r = 0;
    while (r < w->size && !window_peer_has_freed(w, r)) r++;
    return r < w->size ? r : -1;
}
