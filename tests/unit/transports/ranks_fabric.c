/* Ranks exchange the addresses of their fabrics through memory that they share. */
#include "tests/unit/transports/ranks_fabric.h"
#include "backend/base/status.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct table_of_addresses {
    struct hall hall;
    struct alarm_bell bells[MOST_RANKS];
    struct {
        unsigned char process[16];
        struct {
            const struct fabric_operations *of;
            unsigned char content[FABRIC_ADDRESS_BYTES];
            size_t bytes;
            _Atomic bool ready;
        } addresses[NETWORKS_AT_MOST];
    } rank[MOST_RANKS];
};
/* The networks beside each other that connect the ranks. apart: each rank has its own fabric, fabrics[k][rank];
   otherwise the ranks of a process share fabrics[k]. */
struct ways { struct fabric *fabrics[NETWORKS_AT_MOST]; int count; bool apart; };
static struct fabric *fabric_of(const struct ways *w, int k, int rank) { return w->fabrics[k] + (w->apart ? rank : 0); }
static const unsigned char *process_of(void *context, int rank)
{
    return ((struct table_of_addresses *)context)->rank[rank].process;
}
static tutti_status address_of(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes)
{
    struct table_of_addresses *t = context;
    for (int k = 0; k < NETWORKS_AT_MOST; k++) {
        if (!atomic_load(&t->rank[rank].addresses[k].ready) || t->rank[rank].addresses[k].of != fabric->operations)
            continue;
        *bytes = t->rank[rank].addresses[k].bytes;
        memcpy(out, t->rank[rank].addresses[k].content, *bytes);
        return TUTTI_OK;
    }
    return TUTTI_IN_PROGRESS;
}
static void name_of_host(void *context, int rank, char *out, size_t bytes)
{
    (void)context;
    snprintf(out, bytes, "the host of rank %d", rank);
}
struct key_id ranks_key(void)
{
    static const unsigned char key[KEY_BYTES] = "the key of the group of a test";
    struct key_id id;
    if (group_key_add(key, &id) != TUTTI_OK) ranks_stop(0, __FILE__, __LINE__, status_detail());
    return id;
}
static void open_rank(const struct ways *w, struct table_of_addresses *t, int rank, int process)
{
    ranks_key();
    const struct fabric_environment place = { .device = "lo", .simulated = true };
    unsigned char *nonce = t->rank[rank].process;
    memset(nonce, 0, 16);
    nonce[0] = (unsigned char)(1 + process);
    for (int k = 0; k < w->count; k++) {
        struct fabric *fabric = fabric_of(w, k, rank);
        t->rank[rank].addresses[k].of = fabric->operations;
        if (fabric_open(fabric, nonce, &place, t->rank[rank].addresses[k].content, &t->rank[rank].addresses[k].bytes)
            != TUTTI_OK)
            ranks_stop(rank, __FILE__, __LINE__, status_detail());
        atomic_store(&t->rank[rank].addresses[k].ready, true);
    }
}
/* Connects a rank. With these link costs messages of up to some 1,010 bytes take the first of two networks. */
static void connect_rank(const struct ways *w, struct table_of_addresses *t, struct router *router)
{
    static const struct link_cost link_costs[NETWORKS_AT_MOST] = { { 100, 100, 1 }, { 1100, 1100, 0.01 } };
    struct fabric_callbacks callbacks = { t, process_of, address_of, name_of_host, ranks_key() };
    for (int k = 0; k < w->count; k++)
        if (fabric_connect(fabric_of(w, k, router->rank), router, &callbacks) != TUTTI_OK)
            ranks_stop(router->rank, __FILE__, __LINE__, status_detail());
    router_set_link_costs(router, link_costs);
}
static void close_rank(const struct ways *w, int rank)
{
    for (int k = 0; k < w->count; k++) fabric_close(fabric_of(w, k, rank));
}
bool fabric_is_there(const char *name, void (*describe)(char *out, size_t bytes))
{
    char text[1024];
    int how;
    fflush(NULL);
    /* A child opens the library: a process opens it only once, and the caller may need other settings. */
    pid_t child = fork();
    if (child == 0) {
        describe(text, sizeof text);
        printf("%s: %s\n", name, text);
        fflush(NULL);
        _exit(strncmp(text, "yes", 3) != 0);
    }
    return waitpid(child, &how, 0) == child && how == 0;
}
static void run_as_threads(const struct ways *w, int size, enum waiting waiting, body *each)
{
    static struct table_of_addresses table;
    struct router *routers[MOST_RANKS];
    memset(&table, 0, sizeof table);
    for (int r = 0; r < size; r++) {
        open_rank(w, &table, r, w->apart ? r : 0);
        routers[r] = new_router(r, size, &table.bells[r]);
        connect_rank(w, &table, routers[r]);
    }
    run_threads(size, routers, waiting, table.bells, each);
    for (int r = 0; r < size; r++) router_destroy(routers[r]);
    for (int r = 0; r < size; r++) close_rank(w, r);
}
void ranks_fabric_threads(struct fabric *fabric, int size, enum waiting waiting, body *each)
{
    run_as_threads(&(struct ways){ { fabric }, 1, false }, size, waiting, each);
}
void ranks_fabric_apart(struct fabric *fabrics, int size, enum waiting waiting, body *each)
{
    run_as_threads(&(struct ways){ { fabrics }, 1, true }, size, waiting, each);
}
void ranks_fabric_apart_beside(struct fabric *first, struct fabric *next, int size, enum waiting waiting, body *each)
{
    run_as_threads(&(struct ways){ { first, next }, 2, true }, size, waiting, each);
}
static void be_process(const struct ways *w, struct table_of_addresses *t, int size, int rank, enum waiting waiting,
    body *each)
{
    struct rank me = { rank, size, new_router(rank, size, &t->bells[rank]), &t->hall, waiting, &t->bells[rank] };
    alarm(RANKS_SECONDS);
    open_rank(w, t, rank, rank);
    connect_rank(w, t, me.router);
    each(&me);
    rank_meet(&me);
    router_destroy(me.router);
    close_rank(w, rank);
    _exit(0);
}
static void run_as_processes(const struct ways *w, int size, enum waiting waiting, body *each)
{
    struct table_of_addresses *t = shared_memory(sizeof *t, PROT_READ | PROT_WRITE);
    pid_t children[MOST_RANKS];
    int bad = 0, how;
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        children[r] = fork();
        if (children[r] == 0) be_process(w, t, size, r, waiting, each);
    }
    for (int r = 0; r < size; r++) bad += waitpid(children[r], &how, 0) != children[r] || how != 0;
    munmap(t, sizeof *t);
    if (bad) ranks_stop(-1, __FILE__, __LINE__, "every process ended well");
}
void ranks_fabric_processes(struct fabric *fabric, int size, enum waiting waiting, body *each)
{
    run_as_processes(&(struct ways){ { fabric }, 1, false }, size, waiting, each);
}
void ranks_fabric_processes_beside(struct fabric *first, struct fabric *next, int size, enum waiting waiting,
    body *each)
{
    run_as_processes(&(struct ways){ { first, next }, 2, false }, size, waiting, each);
}
