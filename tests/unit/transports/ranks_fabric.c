/* Cards go from rank to rank through memory that all share. */
#include "tests/unit/transports/ranks_fabric.h"
#include "backend/base/status.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct table_of_cards {
    struct hall hall;
    struct alarm_bell bells[MOST_RANKS];
    struct {
        unsigned char process[16], card[FABRIC_CARD_BYTES];
        size_t bytes;
        _Atomic bool ready;
    } rank[MOST_RANKS];
};
static const unsigned char *process_of(void *context, int rank)
{
    return ((struct table_of_cards *)context)->rank[rank].process;
}
static tutti_status card_of(void *context, int rank, void *out, size_t *bytes)
{
    struct table_of_cards *t = context;
    if (!atomic_load(&t->rank[rank].ready)) return TUTTI_IN_PROGRESS;
    *bytes = t->rank[rank].bytes;
    memcpy(out, t->rank[rank].card, *bytes);
    return TUTTI_OK;
}
static void name_of_host(void *context, int rank, char *out, size_t bytes)
{
    (void)context;
    snprintf(out, bytes, "the host of rank %d", rank);
}
static void open_rank(struct fabric *fabric, struct table_of_cards *t, int rank, int process)
{
    const struct fabric_place place = { .device = "lo", .pretended = true };
    unsigned char *nonce = t->rank[rank].process;
    memset(nonce, 0, 16);
    nonce[0] = (unsigned char)(1 + process);
    if (fabric_open(fabric, nonce, &place, t->rank[rank].card, &t->rank[rank].bytes) != TUTTI_OK)
        ranks_stop(rank, __FILE__, __LINE__, status_detail());
    atomic_store(&t->rank[rank].ready, true);
}
static void connect_rank(struct fabric *fabric, struct table_of_cards *t, struct router *router)
{
    struct fabric_ground ground = { t, process_of, card_of, name_of_host };
    if (fabric_connect(fabric, router, &ground) != TUTTI_OK)
        ranks_stop(router->rank, __FILE__, __LINE__, status_detail());
}
bool fabric_is_there(const char *name, void (*describe)(char *out, size_t bytes))
{
    char text[1024];
    int how;
    fflush(NULL);
    pid_t child = fork(); /* the library is opened once, and by each test in its own way */
    if (child == 0) {
        describe(text, sizeof text);
        printf("%s: %s\n", name, text);
        fflush(NULL);
        _exit(strncmp(text, "yes", 3) != 0);
    }
    return waitpid(child, &how, 0) == child && how == 0;
}
static void run(struct fabric *fabrics, bool apart, int size, enum waiting waiting, body *each)
{
    static struct table_of_cards table;
    struct router *routers[MOST_RANKS];
    memset(&table, 0, sizeof table);
    for (int r = 0; r < size; r++) {
        struct fabric *fabric = &fabrics[apart ? r : 0];
        open_rank(fabric, &table, r, apart ? r : 0);
        routers[r] = new_router(r, size, &table.bells[r]);
        connect_rank(fabric, &table, routers[r]);
    }
    run_threads(size, routers, waiting, table.bells, each);
    for (int r = 0; r < size; r++) router_destroy(routers[r]);
    for (int r = 0; r < size; r++) fabric_close(&fabrics[apart ? r : 0]);
}
void ranks_fabric_threads(struct fabric *fabric, int size, enum waiting waiting, body *each)
{
    run(fabric, false, size, waiting, each);
}
void ranks_fabric_apart(struct fabric *fabrics, int size, enum waiting waiting, body *each)
{
    run(fabrics, true, size, waiting, each);
}
static void be_process(struct fabric *fabric, struct table_of_cards *t, int size, int rank, enum waiting waiting,
    body *each)
{
    struct rank me = { rank, size, new_router(rank, size, &t->bells[rank]), &t->hall, waiting, &t->bells[rank] };
    alarm(RANKS_SECONDS);
    open_rank(fabric, t, rank, rank);
    connect_rank(fabric, t, me.router);
    each(&me);
    rank_meet(&me);
    router_destroy(me.router);
    fabric_close(fabric);
    _exit(0);
}
void ranks_fabric_processes(struct fabric *fabric, int size, enum waiting waiting, body *each)
{
    struct table_of_cards *t = shared_memory(sizeof *t, PROT_READ | PROT_WRITE);
    pid_t children[MOST_RANKS];
    int bad = 0, how;
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        children[r] = fork();
        if (children[r] == 0) be_process(fabric, t, size, r, waiting, each);
    }
    for (int r = 0; r < size; r++) bad += waitpid(children[r], &how, 0) != children[r] || how != 0;
    munmap(t, sizeof *t);
    if (bad) ranks_stop(-1, __FILE__, __LINE__, "every process ended well");
}
