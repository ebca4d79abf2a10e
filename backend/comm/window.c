/* Registers windows. All ranks exchange what they offer, map what they can write directly, and report whether that
   succeeded. So a window is made on all ranks or on none, and the group continues. Deregistering first lets every put
   arrive, and gives the memory back to its owner in any case. */
#include "backend/base/clock.h"
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/comm/comm.h"
#include "backend/processes/views.h"
#include <stdlib.h>
#include <string.h>

/* ---- agreeing ---- */
/* Refuses windows whose size or type differs between ranks. */
static tutti_status offers_check_equal(const tutti_comm *comm, const struct window_offer *all)
{
    for (int r = 1; r < comm->group.size; r++) {
        unsigned long long first = all[0].bytes, other = all[r].bytes;
        if (all[r].dtype != all[0].dtype)
            return status_refuse(TUTTI_MISMATCH,
                "a window of %s: rank 0 registers %s elements and rank %d %s; all ranks must register the same type",
                comm->group.name, dtype_name((tutti_dtype)all[0].dtype), r, dtype_name((tutti_dtype)all[r].dtype));
        if (other != first)
            return status_refuse(TUTTI_MISMATCH,
                "a window of %s: rank 0 registers %llu bytes and rank %d %llu; all ranks must register the same size",
                comm->group.name, first, r, other);
    }
    return TUTTI_OK;
}
/* Exchanges the status of each rank, and fails if one of them has failed. `mine` is this rank's status. */
static tutti_status window_agree_on_status(tutti_comm *comm, int64_t mine)
{
    int64_t *all = memory_alloc_zeroed((size_t)comm->group.size, sizeof *all);
    if (!all) return status_fail(TUTTI_NO_MEMORY, "rank %d has no memory to agree on a window", comm->group.rank);
    tutti_status status = comm_gather_reports(comm, &mine, sizeof mine, all, "", "map a window");
    free(all);
    return status;
}

/* ---- mapping the peers of this host ---- */
/* Maps the memory that a rank of this host has offered, and waits until it is mapped. */
static tutti_status window_map_waiting(tutti_comm *comm, struct tutti_window *w, int rank,
    const struct window_offer *offer)
{
    const struct group *g = &comm->group;
    int64_t deadline_ms = clock_deadline(comm->timeout_ms);
    for (int64_t n = 0;; n++) {
        struct wait_set set;
        wait_set_clear(&set);
        views_add_to_wait(&set);
        tutti_status status = window_map_peer(w, rank, offer, g->peers[rank]);
        if (status != TUTTI_IN_PROGRESS) return status;
        if (peer_is_gone(g->peers[rank]))
            return status_fail(TUTTI_PEER_LOST, "rank %d of %s has died while its window was mapped", rank, g->name);
        if (clock_ms() >= deadline_ms)
            return status_fail(TUTTI_TIMEOUT, "rank %d of %s did not send its window in time", rank, g->name);
        backoff_wait(&g->backoff, n, &set, 20);
    }
}
/* Prepares the window for each peer: maps memory that this rank writes directly, and allocates the state of messages
   from peers that cannot write this rank's memory directly, and of revocations. */
static tutti_status window_connect_peers(tutti_comm *comm, struct tutti_window *w, const struct window_offer *all)
{
    const struct group *g = &comm->group;
    bool mine_is_direct = window_offer_is_direct(&all[g->rank]);
    for (int r = 0; r < g->size; r++) {
        bool is_here = group_rank_is_here(g, r), direct = is_here && window_offer_is_direct(&all[r]);
        if (is_here)
            w->peers[r].row = (struct window_row *)(void *)((unsigned char *)w->shared
                + (size_t)group_index_of_rank(g, r) * window_row_bytes(g->size));
        if (r == g->rank || direct) TRY(window_map_waiting(comm, w, r, &all[r]));
        if (r == g->rank) continue;
        bool sends = !direct, receives = !is_here || !mine_is_direct;
        if (sends || receives) w->peers[r].revocations = memory_alloc_zeroed(1, sizeof *w->peers[r].revocations);
        if (receives) w->peers[r].inbound = memory_alloc_zeroed(1, sizeof *w->peers[r].inbound);
        if (((sends || receives) && !w->peers[r].revocations) || (receives && !w->peers[r].inbound))
            return status_fail(TUTTI_NO_MEMORY, "no memory for puts between rank %d and rank %d of %s", g->rank, r,
                g->name);
    }
    w->row = w->peers[g->rank].row;
    return TUTTI_OK;
}

/* ---- the whole ---- */
/* Gathers the offers of all ranks, compares them, and numbers the window. */
static tutti_status window_exchange_offers(tutti_comm *comm, struct tutti_window *w, struct window_offer *all)
{
    struct window_offer mine;
    window_describe_memory(w, &mine);
    mine.number = comm->windows.last_number;
    TRY(comm_gather(comm, &mine, sizeof mine, all));
    TRY(offers_check_equal(comm, all));
    for (int r = 0; r < comm->group.size; r++)
        if (all[r].number > comm->windows.last_number) comm->windows.last_number = all[r].number;
    w->number = ++comm->windows.last_number;
    return TUTTI_OK;
}
/* Connects the window with all ranks, and attaches it to the communicator. */
static tutti_status window_make(tutti_comm *comm, struct tutti_window *w, struct window_offer *all)
{
    const struct group *g = &comm->group;
    size_t row = window_row_bytes(g->size), ranks = (size_t)g->layout->largest;
    TRY(window_exchange_offers(comm, w, all));
    TRY(comm_allocate_common(comm, row * ranks, &w->shared));
    TRY(window_agree_on_status(comm, window_connect_peers(comm, w, all)));
    return window_run_operation(comm, w, WINDOW_ATTACH, NULL);
}
tutti_status comm_register_window(tutti_comm *comm, void *memory, size_t bytes, tutti_dtype dtype,
    struct tutti_window **out)
{
    const struct group *g = &comm->group;
    struct window_offer *all = memory_alloc_zeroed((size_t)g->size, sizeof *all);
    struct tutti_window *w = NULL;
    tutti_status status = all ? window_create(g->rank, g->size, memory, bytes, dtype, &w)
                              : status_fail(TUTTI_NO_MEMORY, "no memory to register a window of %s", g->name);
    /* Without its struct a rank reports nothing, and the other ranks time out. */
    if (status == TUTTI_OK) status = window_make(comm, w, all);
    free(all);
    if (status != TUTTI_OK) {
        window_release(w);
        return status;
    }
    w->comm = comm;
    comm_retain(comm);
    *out = w;
    return TUTTI_OK;
}

/* ---- the end ---- */
/* Waits until the puts of all ranks have arrived. mine: room for [size] counts. sent[r][q] gets the number of messages
   of rank r to rank q. */
static tutti_status window_await_puts(struct tutti_window *w, uint64_t *mine, uint64_t *sent)
{
    size_t row = (size_t)w->size * sizeof *mine;
    TRY(window_run_operation(w->comm, w, WINDOW_FLUSH, NULL));
    for (int r = 0; r < w->size; r++) mine[r] = w->peers[r].sent;
    TRY(comm_gather(w->comm, mine, row, sent));
    for (int r = 0; r < w->size; r++) mine[r] = sent[(size_t)r * (size_t)w->size + (size_t)w->rank];
    return window_run_operation(w->comm, w, WINDOW_DRAIN, mine);
}
tutti_status comm_deregister_window(struct tutti_window *w)
{
    atomic_store(&w->deregistering, true);
    uint64_t *counts = memory_alloc_zeroed((size_t)w->size * ((size_t)w->size + 1), sizeof *counts);
    tutti_status status = counts ? window_await_puts(w, counts, counts + w->size)
                                 : status_fail(TUTTI_NO_MEMORY, "no memory to deregister a window");
    char detail[STATUS_DETAIL_BYTES];
    strcpy(detail, status_detail());
    windows_detach(w->comm, w, status == TUTTI_OK ? WINDOW_DETACH : WINDOW_FREE);
    free(counts);
    return status == TUTTI_OK ? TUTTI_OK : status_repeat(status, detail);
}
void comm_release_window(struct tutti_window *w)
{
    tutti_comm *comm = w->comm;
    window_release(w);
    comm_release(comm);
}
