/* Making and unmaking communicators. Whatever fails while one is made is undone by comm_destroy, which accepts
   half-built ones. Destroying never waits for another rank. */
#include "backend/comm/comm.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/join/mapping.h"
#include "backend/engine/tensors.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_TILE_BYTES = 4096 };

const struct segment *comm_segment(const tutti_comm *comm) { return comm->mapping ? &comm->mapping->segment : NULL; }

void comm_pause(const tutti_comm *comm, int n)
{
    static const struct wait_set none;
    ladder_climb(&comm->ladder, n, &none, 1);
}

/* ---- making one ---- */
static void choose_isa(void)                            /* once per process */
{
    const char *isa = settings_get()->isa;
    if (isa[0] && !kernels_use(isa)) LOG(WARN, "TUTTI_ISA=%s is not to be had here; using %s", isa, kernels_isa());
}
static tutti_status comm_new(int rank, int size, const char *name, int64_t timeout_ms, tutti_comm **out)
{
    if (size < 1 || rank < 0 || rank >= size)
        return status_fail(TUTTI_INVALID_ARGUMENT, "rank %d of %d: the rank must be at least 0 and less than the size",
            rank, size);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_isa);
    tutti_comm *comm = memory_aligned(sizeof *comm);
    if (!comm) return status_fail(TUTTI_NO_MEMORY, "no memory for a communicator");
    comm->rank = rank;
    comm->size = size;
    snprintf(comm->name, sizeof comm->name, "%.31s", name ? name : "the group");
    comm->timeout_ms = timeout_ms > 0 ? timeout_ms : settings_get()->timeout_ms;
    comm->ladder = ladder_for(true);
    int64_t tile = settings_get()->tile_bytes, slots = settings_get()->slots;
    comm->tile_setting = tile <= 0 ? 0 : tile > LEAST_TILE_BYTES ? tile : LEAST_TILE_BYTES;
    comm->slots_setting = slots >= 1 && slots <= MAX_SLOTS ? slots : 0;
    *out = comm;
    TRY(engine_acquire());
    comm->generation = process_generation();
    comm->members = memory_zeroed((size_t)size, sizeof *comm->members);
    comm->peers = memory_zeroed((size_t)size, sizeof *comm->peers);
    comm->watches = memory_zeroed((size_t)size, sizeof *comm->watches);
    comm->held = memory_zeroed((size_t)size, sizeof *comm->held);
    comm->cache = cache_create();
    TRY(layout_create(NULL, size, &comm->layout));
    TRY(tensors_prepare(comm));
    if (!comm->members || !comm->peers || !comm->watches || !comm->held || !comm->cache)
        return status_fail(TUTTI_NO_MEMORY, "no memory for %d members", size);
    return algorithms_of_settings(comm->chosen);
}
static tutti_status introduce(tutti_comm *comm, struct member *mine)   /* what this rank tells the others */
{
    *mine = (struct member){ .timeout_ms = comm->timeout_ms, .size = (uint32_t)comm->size, .build = TUTTI_SOURCES | 1 };
    snprintf(mine->group, sizeof mine->group, "%s", comm->name);
    TRY(peers_acquire(&mine->identity));
    comm->acquired = true;
    return comm->rank == 0 ? bootstrap_random(mine->token, sizeof mine->token) : TUTTI_OK;
}
static tutti_status create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out)
{
    TRY(comm_new(config->rank, config->size, config->name, config->timeout_ms, out));
    tutti_comm *comm = *out;
    if (config->algorithm) TRY(algorithms_parse(config->algorithm, comm->chosen));
    int64_t deadline_ms = clock_deadline(comm->timeout_ms);
    struct member mine;
    TRY(introduce(comm, &mine));
    if (comm->size == 1) comm->members[0] = mine;
    else if (id) TRY(bootstrap_id(id, comm->rank, &mine, deadline_ms, comm->members));
    else TRY(bootstrap_store(&config->store, comm->rank, &mine, deadline_ms, comm->members));
    return comm_join(comm, deadline_ms);
}
static tutti_status or_nothing(tutti_status status, tutti_comm **out)  /* a communicator that is half made is undone */
{
    if (status == TUTTI_OK) return status;
    comm_destroy(*out);
    *out = NULL;
    return status;
}
tutti_status comm_create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out)
{
    *out = NULL;
    return or_nothing(create(config, id, out), out);
}

/* ---- splitting ---- */
struct split { struct member member; int32_t color, key; };
static int split_order(const struct split *all, int a, int b)
{
    if (all[a].key != all[b].key) return all[a].key < all[b].key ? -1 : 1;
    return a - b;
}
static tutti_status split_join(const tutti_comm *parent, const struct split *all, tutti_comm *comm)
{
    int color = all[parent->rank].color;
    for (int r = 0; r < parent->size; r++) {
        int at = 0;
        for (int q = 0; all[r].color == color && q < parent->size; q++) at += all[q].color == color && split_order(all,
            q, r) < 0;
        if (all[r].color == color) comm->members[at] = all[r].member;
    }
    return comm_join(comm, clock_deadline(comm->timeout_ms));
}
static const unsigned char *split_token(const tutti_comm *parent, const struct split *all)      /* of its first rank */
{
    int first = parent->rank;
    for (int q = 0; q < parent->size; q++)
        if (all[q].color == all[first].color && split_order(all, q, first) < 0) first = q;
    return all[first].member.token;
}
static tutti_status split(tutti_comm *parent, const struct split *all, int rank, int size, tutti_comm **out)
{
    struct member mine;
    tutti_status status = comm_new(rank, size, parent->name, parent->timeout_ms, out);
    if (status == TUTTI_OK) status = introduce(*out, &mine);
    if (status != TUTTI_OK) { peers_give_up(split_token(parent, all)); return status; }
    for (int f = 0; f < FAMILY_COUNT; f++) atomic_store(&(*out)->chosen[f], atomic_load(&parent->chosen[f]));
    return split_join(parent, all, *out);
}
tutti_status comm_split(tutti_comm *parent, int color, int key, tutti_comm **out)
{
    *out = NULL;
    struct split *all = memory_zeroed((size_t)parent->size + 1, sizeof *all), *mine = all ? &all[parent->size] : NULL;
    if (!all) return status_fail(TUTTI_NO_MEMORY, "no memory to split %d ranks", parent->size);
    mine->member = parent->members[parent->rank];
    mine->color = color;
    mine->key = key;
    /* whoever becomes rank 0 names the group */
    tutti_status status = bootstrap_random(mine->member.token, sizeof mine->member.token);
    tutti_request gather = { .blocking = true };        /* at once, also between group calls */
    if (status == TUTTI_OK) status = tutti_all_gather(mine, all, sizeof *all, TUTTI_UINT8, parent, &gather);
    int rank = 0, size = 0;
    for (int q = 0; q < parent->size; q++) {
        size += all[q].color == color;
        rank += all[q].color == color && split_order(all, q, parent->rank) < 0;
    }
    if (status == TUTTI_OK && color >= 0) status = or_nothing(split(parent, all, rank, size, out), out);
    free(all);
    return status;
}

/* ---- unmaking ---- */
/* Ends what runs. `always`: fails the communicator even if nothing does. Whoever drives sees `stop` within
   milliseconds. A peer that is at a shared tensor is given the time to let go. */
static void stop_running(tutti_comm *comm, bool always)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&comm->stop, &none, (uint32_t)-TUTTI_ABORTED);
    comm_knock(comm);
    driver_acquire(comm);
    if (!always) operations_go_on(comm);                /* what the others have done already does not fail */
    bool open = always || comm->head || comm->messages || atomic_load(&comm->intake);
    for (int n = 0; open && !operations_abandon(comm); n++) comm_pause(comm, n);
    driver_release(comm);
}
void comm_abort(tutti_comm *comm) { stop_running(comm, true); }
tutti_status comm_poll_failure(tutti_comm *comm)
{
    if (!driver_try(comm)) return comm_failure(comm);   /* whoever drives looks anyway */
    operations_check(comm);
    driver_release(comm);
    return comm_failure(comm);
}
static void release_everything(tutti_comm *comm)
{
    for (int r = 0; comm->watching && r < comm->size; r++)
        if (comm->peers[r]) peer_unwatch(&comm->watches[r].watch);
    transport_destroy(comm->transport);
    executor_finish(&comm->executor);
    for (struct program *p = comm->programs, *next; p; p = next) { next = p->next; program_destroy(p); }
    chooser_finish(&comm->chooser);
    cache_destroy(comm->cache);
    tensors_release(comm);
    mapping_release(comm->mapping);
    for (int r = 0; comm->peers && r < comm->size; r++)
        if (comm->peers[r]) peer_release(comm->peers[r]);
    if (comm->acquired) peers_release();
    free(comm->members);
    free(comm->peers);
    free(comm->watches);
    free(comm->held);
    free(comm->masks);
    layout_destroy(comm->layout);
}
void comm_destroy(tutti_comm *comm)
{
    if (!comm) return;
    /* a child's copy: nothing in it is the child's */
    if (comm->generation && comm->generation != process_generation()) return;
    LOG(INFO, "%s: rank %d of %d leaves", comm->name, comm->rank, comm->size);
    if (comm->mapping) {
        stop_running(comm, false);
        engine_await_leaving(comm);
        engine_forget(comm);
        atomic_store(&comm->mapping->segment.controls[comm->rank].departed, 1);
    }
    release_everything(comm);
    if (comm->generation) engine_release();
    free(comm);
}
