/* Ranks as threads or processes over one piece of memory. A barrier polls the transport while it waits, as an engine
   would. */
#include "tests/unit/transports/ranks.h"
#include "backend/base/clock.h"
#include "backend/host/wait.h"
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_RANKS = MOST_RANKS, BELL_BYTES = 4096 };

_Noreturn void ranks_stop(int rank, const char *file, int line, const char *condition)
{
    fprintf(stderr, "rank %d, %s:%d: not so: %s\n", rank, file, line, condition);
    _exit(1);
}
_Noreturn void rank_stop(const struct rank *me, const char *file, int line, const char *condition)
{
    if (me->router->reason[0]) fprintf(stderr, "rank %d: %s\n", me->rank, me->router->reason);
    ranks_stop(me->rank, file, line, condition);
}
void *shared_memory(size_t bytes, int protection)
{
    void *at = mmap(NULL, bytes, protection, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) return at;
    perror("mmap");
    _exit(1);
}

/* ---- the callbacks ---- */
static unsigned char *callback_pair(void *context, int from, int to)
{
    struct table *t = context;
    return t->memory + ((size_t)from * (size_t)t->size + (size_t)to) * t->pair_bytes;
}
/* Makes the range accessible. Processes cannot use it, because each has its own protection of the memory. */
static tutti_status callback_open(void *context, void *at, size_t bytes)
{
    struct table *t = context;
    if (t->reserves == 0) return TUTTI_NO_MEMORY;
    if (t->reserves > 0) t->reserves--;
    atomic_fetch_add(&t->reserved_bytes, bytes);
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0) return TUTTI_OK;
    perror("mprotect");
    _exit(1);
}
/* Makes the range inaccessible again. */
static void callback_give_back(void *context, void *at, size_t bytes)
{
    struct table *t = context;
    atomic_fetch_sub(&t->reserved_bytes, bytes);
    if (t->reserves >= 0) t->reserves++;
    if (mprotect(at, bytes, PROT_NONE) == 0) return;
    perror("mprotect");
    _exit(1);
}
static tutti_status callback_is_open(void *context, void *at, size_t bytes)
{
    (void)context, (void)at, (void)bytes;
    return TUTTI_OK;
}
static void callback_ring(void *context, int rank) { atomic_fetch_add(&((struct table *)context)->bells[rank], 1); }
static void callback_stream(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
/* The context of one rank's callbacks. Offsets of locations are addresses, because all ranks are in one process. */
struct seat_callbacks {
    struct table *table;
    int rank;
};
static bool callback_opens(void *context, const void *at, size_t bytes)
{
    const struct table *t = ((struct seat_callbacks *)context)->table;
    uintptr_t offset = (uintptr_t)at - (uintptr_t)t->readable;
    return offset < t->readable_bytes && bytes <= t->readable_bytes - offset;
}
static bool callback_reads(void *context)
{
    (void)context;
    return true;
}
static tutti_status callback_read(void *context, int rank, uint64_t at, void *to, size_t bytes)
{
    (void)context;
    (void)rank;
    memcpy(to, (const void *)(uintptr_t)at, bytes);
    return TUTTI_OK;
}
static bool callback_find(void *context, const void *at, size_t bytes, struct remote *out)
{
    struct seat_callbacks *g = context;
    *out = (struct remote){ 1, (uintptr_t)at };
    return (g->table->reachable >> g->rank & 1) && !callback_opens(context, at, bytes);
}
static tutti_status callback_reach(void *context, int rank, bool sends, struct remote place, size_t bytes,
    unsigned char **out)
{
    struct table *t = ((struct seat_callbacks *)context)->table;
    (void)sends;
    (void)bytes;
    if (!(t->reachable >> rank & 1) || place.block != 1) return TUTTI_INVALID_ARGUMENT;
    if (t->refusal) return status_fail(t->refusal, "no way to the memory of rank %d", rank);
    if (t->delay && t->asked++ < t->delay) return TUTTI_IN_PROGRESS;
    *out = (unsigned char *)(uintptr_t)place.offset;
    return TUTTI_OK;
}
static bool callback_enter(void *context) { return !((struct seat_callbacks *)context)->table->forbidden; }
static void callback_leave(void *context) { (void)context; }
static unsigned char *seat_pair(void *context, int from, int to)
{
    return callback_pair(((struct seat_callbacks *)context)->table, from, to);
}
static tutti_status seat_open(void *context, void *at, size_t bytes)
{
    return callback_open(((struct seat_callbacks *)context)->table, at, bytes);
}
static void seat_give_back(void *context, void *at, size_t bytes)
{
    callback_give_back(((struct seat_callbacks *)context)->table, at, bytes);
}
static void seat_ring(void *context, int rank) { callback_ring(((struct seat_callbacks *)context)->table, rank); }
static void table_allocate(struct table *t, int size, int protection)
{
    *t = (struct table){ .size = size, .reserves = -1, .pair_bytes = (shm_pair_bytes() + 4095) / 4096 * 4096 };
    t->memory = shared_memory((size_t)size * (size_t)size * t->pair_bytes, protection);
    t->bells = shared_memory(BELL_BYTES, PROT_READ | PROT_WRITE);
    t->routers = calloc((size_t)size, sizeof *t->routers);
}
static void clear_away(struct table *t)
{
    munmap(t->memory, (size_t)t->size * (size_t)t->size * t->pair_bytes);
    munmap((void *)t->bells, BELL_BYTES);
    free(t->all_callbacks);
    free(t->routers);
}
struct shm_callbacks table_callbacks(struct table *t)
{
    return (struct shm_callbacks){ .context = t,
        .pair = callback_pair,
        .reserve = callback_open,
        .give_back = callback_give_back,
        .ring = callback_ring,
        .stream = callback_stream,
        .stream_far = callback_stream,
        .is_paced = true };
}
static void alarm_bell_ring(void *context)
{
    struct alarm_bell *bell = context;
    word_ring_bell(&bell->rings, &bell->waiters, false);
}
struct router *new_router(int rank, int size, struct alarm_bell *bell)
{
    struct router *router;
    if (router_create(rank, size, 1, (struct bell){ bell ? alarm_bell_ring : NULL, bell }, &router) != TUTTI_OK)
        ranks_stop(rank, __FILE__, __LINE__, "router_create");
    return router;
}
static void seat_rank(struct table *t, int member, struct router *router, const struct shm_callbacks *callbacks,
    const int *ranks)
{
    if (shm_connect(router, callbacks, member, ranks, t->size) != TUTTI_OK)
        ranks_stop(router->rank, __FILE__, __LINE__, "shm_connect");
    t->routers[member] = router;
}
void table_open(struct table *t, int size, int reserves)
{
    table_allocate(t, size, PROT_NONE);
    struct shm_callbacks callbacks = table_callbacks(t);
    for (int r = 0; r < size; r++) seat_rank(t, r, new_router(r, size, NULL), &callbacks, NULL);
    t->reserves = reserves;
}
void table_open_sharing(struct table *t, int size, unsigned reachable)
{
    table_allocate(t, size, PROT_NONE);
    t->reachable = reachable;
    t->all_callbacks = calloc((size_t)size, sizeof *t->all_callbacks);
    for (int r = 0; r < size; r++) {
        t->all_callbacks[r] = (struct seat_callbacks){ t, r };
        struct shm_callbacks callbacks = { &t->all_callbacks[r], seat_pair, seat_open, seat_give_back, seat_ring,
            callback_stream, callback_stream, true, callback_find, callback_reach, callback_enter, callback_leave,
            callback_opens, callback_reads, callback_read };
        seat_rank(t, r, new_router(r, size, NULL), &callbacks, NULL);
    }
}
struct transfer *table_post(struct table *t, int rank, struct transfer *x, int peer, bool is_send, struct piece *piece)
{
    *x = (struct transfer){ .name = { 0, 1 }, .peer = peer, .is_send = is_send, .pieces = piece, .piece_count = 1 };
    router_post(t->routers[rank], x);
    return x;
}
struct piece piece_whole(unsigned char *at, size_t bytes) { return (struct piece){ at, bytes, bytes }; }
void table_poll(struct table *t, int times)
{
    for (int n = 0; n < times; n++)
        for (int r = 0; r < t->size; r++) router_poll(t->routers[r]);
}
struct pair *table_pair(struct table *t, int from, int to)
{
    struct shm_callbacks callbacks = table_callbacks(t);
    return (struct pair *)(void *)callbacks.pair(callbacks.context, from, to);
}
void table_close(struct table *t)
{
    for (int r = 0; r < t->size; r++) router_destroy(t->routers[r]);
    clear_away(t);
}
static void open_host(struct mixed *m, int host, const int *host_of)
{
    int count = 0;
    for (int r = 0; r < m->size; r++) count += host_of[r] == host;
    if (!count) return;
    struct table *t = &m->hosts[host];
    table_allocate(t, count, PROT_NONE);
    count = 0;
    for (int r = 0; r < m->size; r++)
        if (host_of[r] == host) t->ranks[count++] = r;
    struct shm_callbacks callbacks = table_callbacks(t);
    for (int member = 0; member < count; member++) {
        struct router *router = new_router(t->ranks[member], m->size, NULL);
        seat_rank(t, member, router, &callbacks, t->ranks);
        m->routers[router->rank] = router;
    }
}
void mixed_open(struct mixed *m, int size, const int *host_of, const struct inproc_options *options)
{
    *m = (struct mixed){ .size = size, .world = inproc_world_create(size, options) };
    for (int host = 0; host < size; host++) open_host(m, host, host_of);
    if (!m->world) ranks_stop(-1, __FILE__, __LINE__, "inproc_create");
    for (int r = 0; r < size; r++) inproc_world_connect(m->world, m->routers[r]);
}
void mixed_close(struct mixed *m)
{
    for (int r = 0; r < m->size; r++) router_destroy(m->routers[r]);
    for (int host = 0; host < m->size; host++)
        if (m->hosts[host].size) clear_away(&m->hosts[host]);
    inproc_world_destroy(m->world);
}

/* ---- ranks ---- */
struct rank_host {
    struct rank rank;
    body *each;
    pthread_t thread;
};
static void *rank_thread_main(void *context)
{
    struct rank_host *seat = context;
    seat->each(&seat->rank);
    rank_meet(&seat->rank);
    return NULL;
}
void run_threads(int size, struct router **routers, enum waiting waiting, struct alarm_bell *bells, body *each)
{
    struct rank_host seats[MAX_RANKS];
    struct hall hall = { 0 };
    alarm(RANKS_SECONDS);
    for (int r = 0; r < size; r++) {
        seats[r] = (struct rank_host){ { r, size, routers[r], &hall, waiting, bells ? &bells[r] : NULL }, each, 0 };
        if (pthread_create(&seats[r].thread, NULL, rank_thread_main, &seats[r]))
            ranks_stop(r, __FILE__, __LINE__, "pthread_create");
    }
    for (int r = 0; r < size; r++) pthread_join(seats[r].thread, NULL);
    alarm(0);
}
/* A cancel waits for the reader of its send as long as a test may take, because the reader may not get a core. */
static struct inproc_options options_of(unsigned seed)
{
    return (struct inproc_options){ .seed = seed, .delay = 40, .budget = 8, .cancel_ms = RANKS_SECONDS * 1000 };
}
void ranks_inproc(int size, unsigned seed, enum waiting waiting, body *each)
{
    struct router *routers[MAX_RANKS];
    struct alarm_bell bells[MAX_RANKS] = { 0 };
    struct inproc_options options = options_of(seed);
    options.in_time = waiting == SLEEPS_IN_TIME;
    struct inproc_world *world = inproc_world_create(size, &options);
    if (!world) ranks_stop(-1, __FILE__, __LINE__, "inproc_create");
    for (int r = 0; r < size; r++) {
        routers[r] = new_router(r, size, &bells[r]);
        inproc_world_connect(world, routers[r]);
    }
    run_threads(size, routers, waiting, bells, each);
    for (int r = 0; r < size; r++) router_destroy(routers[r]);
    inproc_world_destroy(world);
}
void ranks_mixed(int size, const int *host_of, unsigned seed, body *each)
{
    struct mixed mixed;
    struct inproc_options options = options_of(seed);
    mixed_open(&mixed, size, host_of, &options);
    run_threads(size, mixed.routers, POLLS, NULL, each);
    mixed_close(&mixed);
}
void ranks_threads(int size, body *each)
{
    struct table table;
    table_open(&table, size, -1);
    run_threads(size, table.routers, POLLS, NULL, each);
    table_close(&table);
}
void ranks_sharing(int size, unsigned reachable, body *each)
{
    struct table table;
    table_open_sharing(&table, size, reachable);
    run_threads(size, table.routers, POLLS, NULL, each);
    table_close(&table);
}
static void be_process(struct table *table, int rank, struct hall *hall, body *each)
{
    struct shm_callbacks callbacks = table_callbacks(table);
    struct rank me = { rank, table->size, new_router(rank, table->size, NULL), hall, POLLS, NULL };
    callbacks.reserve = callback_is_open;
    callbacks.stream = callbacks.stream_far = NULL;
    alarm(RANKS_SECONDS);
    seat_rank(table, rank, me.router, &callbacks, NULL);
    each(&me);
    rank_meet(&me);
    router_destroy(me.router);
    _exit(0);
}
void ranks_processes(int size, body *each)
{
    struct table table;
    pid_t children[MAX_RANKS];
    table_allocate(&table, size, PROT_READ | PROT_WRITE);
    struct hall *hall = shared_memory(sizeof *hall, PROT_READ | PROT_WRITE);
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        children[r] = fork();
        if (children[r] == 0) be_process(&table, r, hall, each);
    }
    int bad = 0, how;
    for (int r = 0; r < size; r++) bad += waitpid(children[r], &how, 0) != children[r] || how != 0;
    munmap(hall, sizeof *hall);
    clear_away(&table);
    if (bad) ranks_stop(-1, __FILE__, __LINE__, "every process ended well");
}

/* ---- for bodies ---- */
struct message_name name_of(uint64_t name) { return (struct message_name){ name % 3, name }; }
static void sleep_until_bell(struct rank *me, uint32_t seen)
{
    struct wait_set set = { .count = 0 };
    wait_set_add(&set, &me->bell->rings, seen, &me->bell->waiters, false);
    wait_set_sleep(&set, RANKS_SECONDS * 1000 / 2);
    if (atomic_load(&me->bell->rings) == seen) ranks_stop(me->rank, __FILE__, __LINE__, "its bell has rung");
}
bool rank_poll(struct rank *me)
{
    uint32_t seen = me->waiting == POLLS ? 0 : atomic_load(&me->bell->rings);
    if (router_poll(me->router)) return true;
    if (me->waiting != POLLS && router_arm(me->router)) sleep_until_bell(me, seen);
    else sched_yield();
    return false;
}
void rank_settle(struct rank *me)
{
    int64_t until_ms = me->waiting == SLEEPS_IN_TIME ? clock_ms() + 2 : 0;
    for (int n = 0; n < 100 || clock_ms() < until_ms; n++) router_poll(me->router);
}
struct wanted { int source; struct message_name name; bool found; };
static void look_for(void *context, const struct arrival *arrival)
{
    struct wanted *w = context;
    w->found |= arrival->source == w->source && message_names_equal(arrival->name, w->name);
}
bool rank_keeps(const struct rank *me, int source, uint64_t name)
{
    struct wanted w = { source, name_of(name), false };
    matching_visit_arrivals(&me->router->matching, look_for, &w);
    return w.found;
}
void rank_meet(struct rank *me)
{
    int target = (atomic_fetch_add(&me->hall->arrived, 1) / me->size + 1) * me->size;
    while (atomic_load(&me->hall->arrived) < target)
        if (!router_poll(me->router)) sched_yield();
}
void rank_await(struct rank *me, const struct transfer *transfers, int count)
{
    for (int i = 0; i < count; i++)
        while (transfers[i].state == TRANSFER_POSTED) rank_poll(me);
}
static struct transfer *rank_post(struct rank *me, struct transfer *x, int peer, uint64_t name, bool is_send,
    struct piece *piece)
{
    *x = (struct transfer){
        .name = name_of(name), .peer = peer, .is_send = is_send, .pieces = piece, .piece_count = 1, .may_share = true
    };
    router_post(me->router, x);
    return x;
}
struct transfer *rank_send(struct rank *me, struct transfer *x, int peer, uint64_t name, struct piece *piece,
    const void *at, size_t bytes)
{
    *piece = (struct piece){ (unsigned char *)(uintptr_t)at, bytes, bytes };
    return rank_post(me, x, peer, name, true, piece);
}
struct transfer *rank_recv(struct rank *me, struct transfer *x, int peer, uint64_t name, struct piece *piece, void *at,
    size_t bytes)
{
    *piece = (struct piece){ at, bytes, bytes };
    return rank_post(me, x, peer, name, false, piece);
}
