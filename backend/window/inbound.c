/* Receives puts and signals by message, and checks all that a peer sends: a header must name bytes inside the window,
   and the transport compares the length of the bytes with the length of the receive. */
#include "backend/window/window.h"

/* ---- names ---- */
struct message_name window_header_name(const struct tutti_window *w)
{
    return (struct message_name){ OPERATION_OF_WINDOW, (uint64_t)w->number << WINDOW_SHIFT };
}
struct message_name window_bytes_name(const struct tutti_window *w, uint32_t put)
{
    uint64_t window = (uint64_t)w->number << WINDOW_SHIFT;
    return (struct message_name){ OPERATION_OF_WINDOW, window | (uint64_t)1 << WINDOW_BYTES_SHIFT | put };
}

/* ---- receiving ---- */
/* Posts a receive of `bytes` bytes of a message from rank `from`. */
static void inbound_receive(struct inbound *in, struct router *router, int from, struct message_name name, void *to,
    size_t bytes)
{
    in->piece = (struct piece){ to, bytes, bytes };
    in->transfer = (struct transfer){ .name = name, .peer = from, .pieces = &in->piece, .piece_count = 1 };
    router_post(router, &in->transfer);
}
static void inbound_receive_header(struct tutti_window *w, struct router *router, int from)
{
    struct inbound *in = w->peers[from].inbound;
    in->stage = INBOUND_HEADER;
    inbound_receive(in, router, from, window_header_name(w), &in->header, sizeof in->header);
}
void window_open_inbound(struct tutti_window *w, struct router *router)
{
    for (int r = 0; r < w->size; r++)
        if (w->peers[r].inbound) {
            inbound_receive_header(w, router, r);
            w->listening = true;
        }
    window_receive_revocations(w, router);
}
/* Returns MISMATCH unless the header from rank `from` is a signal, or a put inside the window. */
static tutti_status window_check_header(const struct tutti_window *w, int from, const struct window_header *h)
{
    if (h->kind == HEADER_SIGNAL && !h->offset && !h->bytes) return TUTTI_OK;
    if (h->kind == HEADER_PUT && h->bytes && h->offset <= w->bytes && h->bytes <= w->bytes - h->offset) return TUTTI_OK;
    return status_fail(TUTTI_MISMATCH,
        "rank %d sent rank %d a put of %llu bytes at byte %llu (kind %llu) of a window of %zu bytes", from, w->rank,
        (unsigned long long)h->bytes, (unsigned long long)h->offset, (unsigned long long)h->kind, w->bytes);
}
/* Handles a received header: posts the receive of a put's bytes, or counts a signal and receives the next header. */
static tutti_status inbound_handle_header(struct tutti_window *w, struct router *router, int from)
{
    struct inbound *in = w->peers[from].inbound;
    const struct window_header *h = &in->header;
    in->stage = INBOUND_CLOSED;
    TRY(window_check_header(w, from, h));
    /* A rank that has freed its window may have cancelled an earlier header, and this one must not overtake it. */
    if (h->index != in->handled) return TUTTI_OK;
    if (h->kind == HEADER_PUT) {
        in->stage = INBOUND_BYTES;
        inbound_receive(in, router, from, window_bytes_name(w, in->puts++), w->memory + h->offset, (size_t)h->bytes);
        return TUTTI_OK;
    }
    window_count_signal(w, from);
    in->handled++;
    inbound_receive_header(w, router, from);
    return TUTTI_OK;
}
/* Closes the messages of a rank after a failed receive. MISMATCH: the bytes of a put had another length. */
static tutti_status inbound_handle_failure(struct tutti_window *w, int from)
{
    struct inbound *in = w->peers[from].inbound;
    in->stage = INBOUND_CLOSED;
    if (in->transfer.status != TUTTI_MISMATCH) return TUTTI_OK;
    return status_fail(TUTTI_MISMATCH, "rank %d sent rank %d %llu bytes for a put of %zu bytes into a window", from,
        w->rank, (unsigned long long)in->transfer.peer_bytes, in->piece.length);
}
/* Handles the message of rank `from` that is being received, if it has arrived or failed. A peer that is lost or has
   left sends no more, and the engine finds this by itself. */
static tutti_status inbound_handle_one(struct tutti_window *w, struct router *router, int from, bool *progressed)
{
    struct inbound *in = w->peers[from].inbound;
    if (in->stage == INBOUND_CLOSED || in->transfer.state == TRANSFER_POSTED) return TUTTI_OK;
    *progressed = true;
    if (in->transfer.state != TRANSFER_DONE) return inbound_handle_failure(w, from);
    if (in->stage == INBOUND_HEADER) return inbound_handle_header(w, router, from);
    in->handled++;
    inbound_receive_header(w, router, from);
    return TUTTI_OK;
}
tutti_status window_handle_inbound(struct tutti_window *w, struct router *router, bool *progressed)
{
    for (int r = 0; r < w->size; r++)
        if (w->peers[r].inbound) TRY(inbound_handle_one(w, router, r, progressed));
    window_handle_revocations(w, progressed);
    return TUTTI_OK;
}

/* ---- ending ---- */
bool window_close_inbound(struct tutti_window *w, struct router *router)
{
    bool all = true;
    for (int r = 0; r < w->size; r++) {
        struct inbound *in = w->peers[r].inbound;
        if (!in || in->stage == INBOUND_CLOSED) continue;
        if (in->transfer.state != TRANSFER_POSTED || router_cancel(router, &in->transfer)) in->stage = INBOUND_CLOSED;
        else all = false;
    }
    w->listening &= !all;
    return all;
}
bool window_has_handled(const struct tutti_window *w, const uint64_t *expected)
{
    for (int r = 0; r < w->size; r++)
        if (w->peers[r].inbound && w->peers[r].inbound->handled < expected[r]) return false;
    return true;
}
