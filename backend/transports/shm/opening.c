/* Opens links, and reserves the memory of their outgoing pairs before it is touched. The memory grows with the peers to
   which a rank has sent messages, and not with all pairs of the host. The writer of a pipe gives it back when no
   message needs it and newer links want pipes of their own. A pipe that is then wanted again raises the number of pipes
   that the rank keeps. */
#include "backend/transports/shm/link.h"

/* ---- opening ---- */
void shm_link_prepare(struct shm *shm, struct shm_link *link)
{
    link->peer = (int)(link - shm->links);
    link->rank = shm->ranks ? shm->ranks[link->peer] : link->peer;
    link->out.modes = &link->modes;
    link->in.judge = &link->judge;
}
/* Adds the link to those that shm_poll visits. */
static void shm_link_activate(struct shm *shm, struct shm_link *link)
{
    if (!link->is_active) shm->active[shm->active_count++] = link;
    link->is_active = true;
}
/* Allocates the memory of a range of the segment. An error: the host has none left. */
static tutti_status shm_reserve_memory(struct shm *shm, void *at, size_t bytes)
{
    return shm->callbacks.reserve(shm->callbacks.context, at, bytes);
}
/* Returns the pair for messages from one index to another. */
static struct pair *shm_pair_between(struct shm *shm, int from, int to)
{
    return (struct pair *)(void *)shm->callbacks.pair(shm->callbacks.context, from, to);
}
tutti_status shm_link_open_outgoing(struct shm *shm, struct shm_link *link)
{
    if (link->out.pair) return TUTTI_OK;
    shm_link_prepare(shm, link);
    struct pair *pair = shm_pair_between(shm, shm->me, link->peer);
    struct doorbell *doorbell = &shm_pair_between(shm, link->peer, link->peer)->doorbell;
    TRY(shm_reserve_memory(shm, pair, offsetof(struct pair, eager)));
    TRY(shm_reserve_memory(shm, doorbell, PAIR_PAGE));
    link->out.pair = pair;
    shm_link_activate(shm, link);
    atomic_fetch_or_explicit(&doorbell->opened_by[shm->me / 32], 1u << shm->me % 32, memory_order_relaxed);
    atomic_fetch_add_explicit(&doorbell->open_count, 1, memory_order_release);
    return TUTTI_OK;
}
bool shm_link_find_incoming(struct shm *shm, struct shm_link *link)
{
    if (link->in.pair || link->is_lost) return false;
    shm_link_prepare(shm, link);
    link->in.pair = shm_pair_between(shm, link->peer, shm->me);
    shm_link_activate(shm, link);
    return true;
}

/* ---- the memory of the outgoing pair ---- */
tutti_status shm_link_reserve_eager(struct shm *shm, struct shm_link *link)
{
    if (!link->eager_ready) TRY(shm_reserve_memory(shm, link->out.pair->eager, sizeof link->out.pair->eager));
    link->eager_ready = true;
    return TUTTI_OK;
}
/* Returns whether a send to the rank is announced. */
static bool open_transfers_has_send(const struct shm *shm, int rank)
{
    for (int i = 0; i < OPEN_BUCKETS; i++)
        for (const struct transfer *transfer = shm->open_transfers[i].first; transfer; transfer = transfer->next)
            if (transfer->is_send && transfer_peer_rank(transfer) == rank) return true;
    return false;
}
/* Returns whether the pipe of the link is unused: all announced messages are over, and the reader has emptied all
   slots. */
static bool shm_link_pipe_is_idle(const struct shm *shm, const struct shm_link *link)
{
    return link->out.filled == atomic_load_explicit(&link->out.pair->emptied, memory_order_acquire)
        && !link->streams.first && !link->helped_send && !open_transfers_has_send(shm, link->rank);
}
/* Gives the memory of the oldest idle pipes back, as long as more than `most` pipes are reserved. */
static void shm_give_back_pipes(struct shm *shm, int most)
{
    struct shm_link *before = NULL, *next;
    for (struct shm_link *link = shm->first_pipe; link && shm->pipe_count > most; link = next) {
        next = link->next_pipe;
        if (!shm_link_pipe_is_idle(shm, link)) { before = link; continue; }
        shm->callbacks.give_back(shm->callbacks.context, link->out.pair->pipe, sizeof link->out.pair->pipe);
        *(before ? &before->next_pipe : &shm->first_pipe) = next;
        if (shm->last_pipe == link) shm->last_pipe = before;
        link->pipe_ready = false;
        link->pipe_was_given_back = true;
        shm->pipe_count--;
    }
}
tutti_status shm_link_reserve_pipe(struct shm *shm, struct shm_link *link)
{
    if (link->pipe_ready) return TUTTI_OK;
    if (link->pipe_was_given_back) shm->pipes_kept++;
    link->pipe_was_given_back = false;
    shm_give_back_pipes(shm, shm->pipes_kept - 1);
    tutti_status status = shm_reserve_memory(shm, link->out.pair->pipe, sizeof link->out.pair->pipe);
    if (status == TUTTI_NO_MEMORY && shm->pipe_count > 0) {
        shm_give_back_pipes(shm, 0);
        status = shm_reserve_memory(shm, link->out.pair->pipe, sizeof link->out.pair->pipe);
    }
    TRY(status);
    *(shm->last_pipe ? &shm->last_pipe->next_pipe : &shm->first_pipe) = link;
    shm->last_pipe = link;
    link->next_pipe = NULL;
    link->pipe_ready = true;
    shm->pipe_count++;
    return TUTTI_OK;
}
