/* A copy is fetched into its first destination, and the other destinations are copied from there. Terms of a sum are
   fetched block by block into memory of the program. A block is added while it is in the nearest cache, so it crosses
   memory only once, on its way from the peer. */
#include "backend/execute/fetch.h"
#include "backend/execute/bind.h"

enum { CACHE_LINE = 64 };

static const struct operand *executor_peer_operand(const struct executor *x, struct span a)
{
    return &x->theirs[site_index(&x->site, a.rank)][a.buffer];
}
static bool span_is_fetched(const struct executor *x, struct span a)
{
    return a.rank != x->site.rank && a.buffer != SCRATCH && executor_peer_operand(x, a)->source;
}
static bool span_fetch(struct executor *x, struct span a, void *to, const void *at, size_t bytes)
{
    int error = bytes ? reading_copy(executor_peer_operand(x, a)->source, to, (uintptr_t)at, bytes) : 0;
    if (error) x->run.failed_read = (struct failed_read){ a.rank, a.buffer, error };
    return !error;
}
static bool step_fetch_copy(struct executor *x, const struct step *t, struct span from, const struct part *part)
{
    struct program *p = x->launch.program;
    if (!span_fetch(x, from, p->piece.to[0], p->piece.from[0], part->bytes)) return false;
    p->piece.from[0] = p->piece.to[0];
    bind_compute_piece(x, t, p->piece.to, p->piece.from, part);
    return true;
}
static bool step_fetch_and_add_block(struct executor *x, const struct step *t, size_t begin, size_t bytes, size_t block)
{
    struct program *p = x->launch.program;
    const struct span *spans = step_from(p->schedule, t);
    unsigned char *room = p->fetched;
    for (int f = 0; f < t->from_count; f++) {
        const unsigned char *at = (const unsigned char *)p->piece.from[f] + begin;
        p->block.from[f] = at;
        if (!span_is_fetched(x, spans[f])) continue;
        if (!span_fetch(x, spans[f], room, at, bytes)) return false;
        p->block.from[f] = room;
        room += block;
    }
    for (int d = 0; d < t->to_count; d++) p->block.to[d] = (unsigned char *)p->piece.to[d] + begin;
    bind_compute_piece(x, t, p->block.to, p->block.from,
        &(struct part){ .bytes = bytes, .count = bytes / x->launch.element_bytes });
    return true;
}
bool fetch_compute_step(struct executor *x, const struct step *t, const struct part *part)
{
    struct program *p = x->launch.program;
    const struct span *from = step_from(p->schedule, t);
    size_t peers = 0;
    for (int f = 0; f < t->from_count; f++) peers += span_is_fetched(x, from[f]);
    if (!peers) {
        bind_compute_piece(x, t, p->piece.to, p->piece.from, part);
        return true;
    }
    if (t->from_count == 1 && !t->finish) return step_fetch_copy(x, t, from[0], part);
    size_t block = fetch_buffer_bytes(peers) / peers / CACHE_LINE * CACHE_LINE;
    for (size_t begin = 0; begin < part->bytes; begin += block) {
        size_t left = part->bytes - begin;
        if (!step_fetch_and_add_block(x, t, begin, left < block ? left : block, block)) return false;
    }
    return true;
}
tutti_status fetch_handle_failure(struct executor *x)
{
    const struct failed_read *u = &x->run.failed_read;
    const struct read_source *source = x->theirs[site_index(&x->site, u->rank)][u->buffer].source;
    tutti_status status = reading_failure_status(source, u->error, x->site.rank, u->rank);
    x->run.failed_read.error = 0;
    x->blocked_peer = u->rank;
    x->blocked.soon = true;
    return status;
}
