/* Making and unmaking communicators: find the members, prove that they share this host, map the segment, watch the
   peers. Whatever fails on the way is undone by comm_destroy, which accepts half-built communicators. Destroying never
   waits for another rank. */
#include "backend/comm.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/host/probe.h"
#include "backend/mapping.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct segment *comm_segment(const tutti_comm *comm) { return comm->mapping ? &comm->mapping->segment : NULL; }

/* ---- algorithms by name ---- */
struct names { enum family family; };
static const char *next_algorithm(void *context,
    int index) { return tutti_algorithm_name(family_name(((struct names *)context)->family), index); }
static const char *next_family(void *context, int index)
{
    (void)context;
    return tutti_collective_name(index);
}
static tutti_status unknown(const char *what, const char *name, const char *near)
{
    return status_fail(TUTTI_INVALID_ARGUMENT, "unknown %s \"%s\"%s%s%s", what, name, near ? ", did you mean \"" : "",
        near ? near : "", near ? "\"?" : "");
}
tutti_status algorithm_by_name(const char *family, const char *name, const struct algorithm **out)
{
    struct names names = { ALLREDUCE };
    while (names.family < FAMILY_COUNT && strcmp(family_name(names.family), family) != 0) names.family++;
    if (names.family == FAMILY_COUNT) return unknown("collective", family, settings_nearest(family, next_family, NULL));
    const struct algorithm *found = collectives_find(names.family, name);
    if (!found) {
        char what[64];
        snprintf(what, sizeof what, "%s algorithm", family);
        return unknown(what, name, settings_nearest(name, next_algorithm, &names));
    }
    *out = found;
    return TUTTI_OK;
}
tutti_status algorithms_parse(const char *text, const struct algorithm *chosen[FAMILY_COUNT])
{
    char copy[512], *rest = NULL;
    if (strlen(text) >= sizeof copy) return status_fail(TUTTI_INVALID_ARGUMENT,
        "the list of algorithms is longer than %zu bytes", sizeof copy - 1);
    strcpy(copy, text);
    for (char *entry = strtok_r(copy, ", ", &rest); entry; entry = strtok_r(NULL, ", ", &rest)) {
        char *equals = strchr(entry, '=');
        const struct algorithm *algorithm;
        if (!equals) return status_fail(TUTTI_INVALID_ARGUMENT,
            "\"%s\" should read collective=algorithm, as in allreduce=ring", entry);
        *equals = 0;
        TRY(algorithm_by_name(entry, equals + 1, &algorithm));
        chosen[algorithm->family] = algorithm;
    }
    return TUTTI_OK;
}

/* ---- watching ---- */
static void peer_lost(void *context)                                    /* on the watch thread */
{
    struct member_watch *w = context;
    const struct segment *segment = comm_segment(w->comm);
    uint32_t nobody = 0;
    /* it had destroyed its communicator before */
    if (segment && atomic_load(&segment->controls[w->rank].departed)) return;
    atomic_compare_exchange_strong(&w->comm->lost, &nobody, (uint32_t)w->rank + 1);
}
static void watch_peers(tutti_comm *comm)
{
    for (int r = 0; r < comm->size; r++) {
        struct member_watch *w = &comm->watches[r];
        *w = (struct member_watch){ .watch = { .peer = comm->peers[r], .lost = peer_lost, .context = w }, .comm = comm,
            .rank = r };
        if (comm->peers[r]) peer_watch(&w->watch);
    }
    comm->watching = true;
}

/* ---- joining ---- */
static tutti_status connect_peers(tutti_comm *comm, int64_t deadline_ms)
{
    for (int r = 0; r < comm->size; r++) {
        const struct identity *other = &comm->members[r].identity;
        if (memcmp(other->nonce, comm->members[comm->rank].identity.nonce, sizeof other->nonce) == 0) continue;
        tutti_status status = peer_connect(other, deadline_ms, &comm->peers[r]);
        if (status == TUTTI_OK) continue;
        char detail[STATUS_DETAIL_BYTES / 2];
        snprintf(detail, sizeof detail, "%.500s", status_detail());
        return status_fail(status, "rank %d of %s cannot reach rank %d (process %llu on %.40s): %s", comm->rank,
            comm->name, r,
                           (unsigned long long)other->pid, other->host, detail);
    }
    return TUTTI_OK;
}
static tutti_status await_joined(tutti_comm *comm, int64_t deadline_ms)
{
    const struct segment *segment = comm_segment(comm);
    struct wait_set none;
    none.count = 0;
    atomic_store(&segment->controls[comm->rank].joined, 1);
    for (int r = 0, n = 0; r < comm->size; n++) {
        if (atomic_load(&segment->controls[r].joined)) { r++; continue; }
        TRY(comm_check(comm));
        if (clock_ms() > deadline_ms)
            return comm_fail(comm, TUTTI_TIMEOUT,
                "rank %d of %s was seen but has not joined in time: it is too slow, stopped or gone", r, comm->name);
        ladder_climb(&comm->ladder, n, &none, 1);
    }
    return TUTTI_OK;
}
/* How slots are best written is the host's business: ranks 0 and 1 try it out once per process, the others are told. */
enum { STREAMING_UNKNOWN, STREAMING_OFF, STREAMING_ON, STREAMING_PROBED };
static struct probe_side probe_side_of(const struct segment *segment, int rank)
{
    return (struct probe_side){ &segment->controls[rank].probe, segment_slots(segment, rank) };
}
static tutti_status probe_slots(tutti_comm *comm)
{
    static _Atomic uint32_t known;
    const struct segment *segment = comm_segment(comm);
    _Atomic uint32_t *verdict = &segment->controls[0].streaming;
    uint32_t found = comm->size > 1 && stream_find() ? atomic_load(&known) : STREAMING_OFF;
    if (comm->rank == 0 && found) atomic_store(verdict, found);
    if (comm->rank > 1 || found) return TUTTI_OK;
    TRY(segment_reserve(segment, segment_slots(segment, comm->rank), PROBE_BYTES, "staging slots"));
    struct wait_set none;
    none.count = 0;
    if (comm->rank == 0) atomic_store(verdict, STREAMING_PROBED);
    for (int n = 0; !atomic_load(verdict); n++) {
        TRY(comm_check(comm));
        ladder_climb(&comm->ladder, n, &none, 1);
    }
    if (atomic_load(verdict) != STREAMING_PROBED) return TUTTI_OK;
    bool better = probe_streaming(probe_side_of(segment, comm->rank), probe_side_of(segment, 1 - comm->rank),
        stream_find());
    if (comm->rank == 0) atomic_store(&known, better ? STREAMING_ON : STREAMING_OFF);
    if (comm->rank == 0) atomic_store(verdict, better ? STREAMING_ON : STREAMING_OFF);
    return TUTTI_OK;
}
static tutti_status choose_stores(tutti_comm *comm, int64_t deadline_ms)
{
    _Atomic uint32_t *verdict = &comm_segment(comm)->controls[0].streaming;
    struct wait_set none;
    none.count = 0;
    TRY(probe_slots(comm));
    for (int n = 0; atomic_load(verdict) != STREAMING_OFF && atomic_load(verdict) != STREAMING_ON; n++) {
        TRY(comm_check(comm));
        if (clock_ms() > deadline_ms) return comm_fail(comm, TUTTI_TIMEOUT, "rank 0 of %s is too slow, stopped or gone",
            comm->name);
        ladder_climb(&comm->ladder, n, &none, 1);
    }
    comm->executor.stream = atomic_load(verdict) == STREAMING_ON ? stream_find() : NULL;
    return TUTTI_OK;
}
static tutti_status map_segment(tutti_comm *comm, int64_t deadline_ms)
{
    TRY(mapping_acquire(comm->rank, comm->size, comm->members, comm->peers, deadline_ms, &comm->mapping));
    TRY(executor_init(&comm->executor, &comm->mapping->segment, comm->rank, 0, comm->size));
    comm->executor.tile_target = (size_t)(settings_get()->tile_bytes >= 4096 ? settings_get()->tile_bytes : 4096);
    return TUTTI_OK;
}

/* ---- messages ---- */
static void ring_bell(void *context, int rank)
{
    struct control *c = &((const struct segment *)context)->controls[rank];
    atomic_fetch_add(&c->bell, 1);
    if (atomic_load(&c->bell_waiters)) word_wake(&c->bell, true);
}
static unsigned char *pair_at(void *context, int from, int to) { return segment_pair(context, from, to); }
static tutti_status reserve(void *context, void *at, size_t bytes)
{
    return segment_reserve(context, at, bytes, "message buffers");
}
static tutti_status connect_transport(tutti_comm *comm)
{
    struct shm_ground ground = { .context = &comm->mapping->segment, .pair = pair_at, .reserve = reserve, .ring =
        ring_bell,
                                 .stream = comm->executor.stream };
    TRY(shm_connect(&ground, comm->rank, comm->size, &comm->transport));
    comm->executor.transport = comm->transport;
    return TUTTI_OK;
}

/* ---- making one ---- */
static tutti_status comm_new(int rank, int size, const char *name, int64_t timeout_ms, tutti_comm **out)
{
    if (size < 1 || rank < 0 || rank >= size)
        return status_fail(TUTTI_INVALID_ARGUMENT, "rank %d of %d: the rank must be at least 0 and less than the size",
            rank, size);
    tutti_comm *comm = memory_aligned(sizeof *comm);
    if (!comm) return status_fail(TUTTI_NO_MEMORY, "no memory for a communicator");
    comm->rank = rank;
    comm->size = size;
    snprintf(comm->name, sizeof comm->name, "%.31s", name ? name : "group");
    comm->timeout_ms = timeout_ms > 0 ? timeout_ms : settings_get()->timeout_ms;
    comm->layout = (struct layout){ 1, comm->layout_first };
    comm->layout_first[1] = size;
    comm->ladder = ladder_for(size, true);
    *out = comm;
    TRY(engine_acquire());
    comm->generation = process_generation();
    comm->members = memory_zeroed((size_t)size, sizeof *comm->members);
    comm->peers = memory_zeroed((size_t)size, sizeof *comm->peers);
    comm->watches = memory_zeroed((size_t)size, sizeof *comm->watches);
    comm->cache = cache_create();
    if (!comm->members || !comm->peers || !comm->watches || !comm->cache) return status_fail(TUTTI_NO_MEMORY,
        "no memory for %d members", size);
    return algorithms_parse(settings_get()->algorithm, comm->chosen);
}
static tutti_status introduce(tutti_comm *comm, struct member *mine)   /* what this rank tells the others */
{
    *mine = (struct member){ .timeout_ms = comm->timeout_ms, .size = (uint32_t)comm->size, .version = MEMBER_VERSION };
    snprintf(mine->group, sizeof mine->group, "%s", comm->name);
    TRY(peers_acquire(&mine->identity));
    comm->acquired = true;
    return comm->rank == 0 ? bootstrap_random(mine->token, sizeof mine->token) : TUTTI_OK;
}
static tutti_status join(tutti_comm *comm, int64_t deadline_ms)        /* members are known */
{
    TRY(connect_peers(comm, deadline_ms));
    TRY(map_segment(comm, deadline_ms));
    watch_peers(comm);
    TRY(await_joined(comm, deadline_ms));
    TRY(choose_stores(comm, deadline_ms));
    return connect_transport(comm);
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
    return join(comm, deadline_ms);
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
    return join(comm, clock_deadline(comm->timeout_ms));
}
static tutti_status split(tutti_comm *parent, const struct split *all, int rank, int size, tutti_comm **out)
{
    struct member mine;
    TRY(comm_new(rank, size, parent->name, parent->timeout_ms, out));
    memcpy((*out)->chosen, parent->chosen, sizeof parent->chosen);
    TRY(introduce(*out, &mine));
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
    if (status == TUTTI_OK) status = tutti_all_gather(mine, all, sizeof *all, TUTTI_UINT8, parent, NULL);
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
   milliseconds. */
static void stop_running(tutti_comm *comm, bool always)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&comm->stop, &none, (uint32_t)-TUTTI_ABORTED);
    driver_acquire(comm);
    if (always || comm->head || comm->messages || atomic_load(&comm->intake)) operations_abandon(comm);
    driver_release(comm);
}
void comm_abort(tutti_comm *comm) { stop_running(comm, true); }
tutti_status comm_poll_failure(tutti_comm *comm)
{
    driver_acquire(comm);
    tutti_status status = comm_check(comm);
    if (status != TUTTI_OK) operations_abandon(comm);
    driver_release(comm);
    return status == TUTTI_OK ? status : comm_failure(comm);
}
static void release_everything(tutti_comm *comm)
{
    for (int r = 0; comm->watching && r < comm->size; r++)
        if (comm->peers[r]) peer_unwatch(&comm->watches[r].watch);
    transport_destroy(comm->transport);
    executor_finish(&comm->executor);
    for (struct program *p = comm->programs, *next; p; p = next) { next = p->next; program_destroy(p); }
    cache_destroy(comm->cache);
    mapping_release(comm->mapping);
    for (int r = 0; comm->peers && r < comm->size; r++)
        if (comm->peers[r]) peer_release(comm->peers[r]);
    if (comm->acquired) peers_release();
    free(comm->members);
    free(comm->peers);
    free(comm->watches);
}
void comm_destroy(tutti_comm *comm)
{
    if (!comm) return;
    /* a child's copy: nothing in it is the child's */
    if (comm->generation && comm->generation != process_generation()) return;
    if (comm->mapping) {
        stop_running(comm, false);
        engine_forget(comm);
        atomic_store(&comm->mapping->segment.controls[comm->rank].departed, 1);
    }
    release_everything(comm);
    if (comm->generation) engine_release();
    free(comm);
}
