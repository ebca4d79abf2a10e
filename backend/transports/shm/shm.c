/* The shm transport: the contract and its lifetime; link.c has the protocol. A rank polls only the peers that
   have opened a pair to it, which they tell by knocking at its door; and it keeps all its state in private memory, so
   a peer that dies leaves nothing locked. */
#include "backend/transports/shm/shm.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/transports/pieces.h"
#include <stdlib.h>

/* ---- failure ends every transfer ---- */
static void fail_queue(struct shm *shm, struct queue *q)
{
    while (q->first) transfer_fail(queue_take(q, NULL), shm->failure, 0);
}
static void fail_all(struct shm *shm)
{
    for (struct transfer *x; (x = matching_pop(&shm->matching)) != NULL;) transfer_fail(x, shm->failure, 0);
    for (int i = 0; i < OPEN_BUCKETS; i++) fail_queue(shm, &shm->open[i]);
    for (int i = 0; i < shm->active_count; i++) {
        fail_queue(shm, &shm->active[i]->outbox);
        fail_queue(shm, &shm->active[i]->streams);
        fail_queue(shm, &shm->active[i]->shares);
        if (shm->active[i]->helped) transfer_fail(shm->active[i]->helped, shm->failure, 0);
        shm->active[i]->helped = NULL;
    }
}

/* ---- the contract ---- */
static void post_receive(struct shm *shm, struct transfer *x)
{
    struct arrival *a = matching_post(&shm->matching, x);
    if (!a) return;
    struct link *l = &shm->links[a->source];
    const struct envelope announcement = { a->name, a->bytes, a->id, ENVELOPE_ANNOUNCE, a->place };
    if (a->announced) link_accept(shm, l, x, &announcement);
    else {
        x->source = a->source;
        if (x->wire != a->bytes) transfer_fail(x, TUTTI_MISMATCH, a->bytes);
        else {
            pieces_scatter(x, a->data, (size_t)a->bytes);
            transfer_done(x);
        }
        reader_return(&l->in, a->bytes);
    }
    matching_free(&shm->matching, a);
    link_settle(shm, l);
}
static void shm_post(struct transport *t, struct transfer *x)
{
    struct shm *shm = (struct shm *)t;
    x->state = TRANSFER_POSTED;
    x->source = -1;
    x->key = 0;
    if (shm->failure) transfer_fail(x, shm->failure, 0);
    else if (!pieces_start(x)) {
        tutti_status status = status_fail(TUTTI_INVALID_ARGUMENT, "the pieces of a message exceed 2^64 bytes");
        transfer_refuse(t, x, status);
    } else if (x->is_send) {
        link_send(shm, &shm->links[x->peer], x);
    } else post_receive(shm, x);
    if (shm->failure) fail_all(shm);
}
static void answer_door(struct shm *shm, uint32_t opened)
{
    shm->knocks = opened;
    for (int r = 0; r < shm->base.size; r++)
        if (atomic_load_explicit(&shm->door->who[r / 32], memory_order_relaxed) >> r % 32 & 1)
            link_knock(shm, &shm->links[r]);
}
static bool shm_poll(struct transport *t)
{
    struct shm *shm = (struct shm *)t;
    if (shm->failure) return false;
    uint32_t opened = atomic_load_explicit(&shm->door->opened, memory_order_acquire);
    if (opened != shm->knocks) answer_door(shm, opened);
    bool moved = false;
    for (int i = 0; i < shm->active_count; i++)
        if (!link_is_quiet(shm->active[i])) moved |= link_poll(shm, shm->active[i]);
    if (!shm->failure) return moved;
    fail_all(shm);
    return true;
}
static bool shm_cancel(struct transport *t, struct transfer *x)
{
    struct shm *shm = (struct shm *)t;
    if (x->is_send || x->source >= 0) link_cancel(shm, &shm->links[x->is_send ? x->peer : x->source], x);
    else matching_cancel(&shm->matching, x);
    x->state = TRANSFER_IDLE;
    if (shm->failure) fail_all(shm);
    return true;
}

/* ---- lifetime ---- */
static void free_notes(struct note *note)
{
    for (struct note *next; note; note = next) {
        next = note->next;
        free(note);
    }
}
static void shm_destroy(struct transport *t)
{
    struct shm *shm = (struct shm *)t;
    for (int r = 0; shm->links && r < shm->base.size; r++) free_notes(shm->links[r].notes);
    free_notes(shm->spare_notes);
    matching_finish(&shm->matching);
    free(shm->active);
    free(shm->links);
    free(shm);
}
static const struct transport_operations operations = { "shm", shm_post, shm_poll, shm_cancel, shm_destroy };

size_t shm_pair_bytes(void) { return sizeof(struct pair); }
static struct shm *shm_new(const struct shm_ground *ground, int rank, int size)
{
    struct shm *shm = memory_aligned(sizeof *shm);
    if (!shm) return NULL;
    shm->base = (struct transport){ .operations = &operations, .rank = rank, .size = size };
    shm->ground = *ground;
    shm->links = memory_aligned((size_t)size * sizeof *shm->links);
    shm->active = memory_zeroed((size_t)size, sizeof *shm->active);
    for (int r = 0; shm->links && r < size; r++) shm->links[r].peer = r;
    if (shm->links && shm->active) return shm;
    shm_destroy(&shm->base);
    return NULL;
}
tutti_status shm_connect(const struct shm_ground *ground, int rank, int size, struct transport **out)
{
    if (size > DOOR_RANKS)
        return status_fail(TUTTI_UNSUPPORTED, "%d ranks on one host: the shm transport serves %d", size, DOOR_RANKS);
    struct pair *mine = (struct pair *)(void *)ground->pair(ground->context, rank, rank);
    TRY(ground->reserve(ground->context, mine, PAIR_PAGE));
    struct shm *shm = shm_new(ground, rank, size);
    if (!shm)
        return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory for the transport between %d ranks", rank, size);
    shm->door = &mine->door;
    *out = &shm->base;
    return TUTTI_OK;
}
