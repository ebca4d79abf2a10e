/* Cards go from rank to rank through memory that all share. */
#include "tests/unit/transports/ranks_ucx.h"
#include "backend/transports/ucx/ucx.h"
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct table_of_cards {
    struct hall hall;
    struct alarm_bell bells[MOST_RANKS];
    struct {
        unsigned char process[16], card[UCX_CARD_BYTES];
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
static void open_rank(struct table_of_cards *t, int rank, int process)
{
    unsigned char *nonce = t->rank[rank].process;
    memset(nonce, 0, 16);
    nonce[0] = (unsigned char)(1 + process);
    if (ucx_open(nonce, "lo", true, t->rank[rank].card, &t->rank[rank].bytes) != TUTTI_OK)
        ranks_stop(rank, __FILE__, __LINE__, status_detail());
    atomic_store(&t->rank[rank].ready, true);
}
static void connect_rank(struct table_of_cards *t, struct router *router)
{
    struct ucx_ground ground = { t, process_of, card_of, name_of_host };
    if (ucx_connect(router, &ground) != TUTTI_OK) ranks_stop(router->rank, __FILE__, __LINE__, status_detail());
}
bool ucx_is_there(void)
{
    char text[1024];
    int how;
    fflush(NULL);
    pid_t child = fork(); /* the library is opened once, and by each test in its own way */
    if (child == 0) {
        ucx_describe(text, sizeof text);
        printf("UCX: %s\n", text);
        fflush(NULL);
        _exit(strncmp(text, "yes", 3) != 0);
    }
    return waitpid(child, &how, 0) == child && how == 0;
}
void ranks_ucx_threads(int size, enum waiting waiting, body *each)
{
    static struct table_of_cards table;
    struct router *routers[MOST_RANKS];
    memset(&table, 0, sizeof table);
    for (int r = 0; r < size; r++) {
        open_rank(&table, r, 0);
        routers[r] = new_router(r, size, &table.bells[r]);
        connect_rank(&table, routers[r]);
    }
    run_threads(size, routers, waiting, table.bells, each);
    for (int r = 0; r < size; r++) {
        router_destroy(routers[r]);
        ucx_close();
    }
}
static void be_process(struct table_of_cards *t, int size, int rank, enum waiting waiting, body *each)
{
    struct rank me = { rank, size, new_router(rank, size, &t->bells[rank]), &t->hall, waiting, &t->bells[rank] };
    alarm(RANKS_SECONDS);
    open_rank(t, rank, rank);
    connect_rank(t, me.router);
    each(&me);
    rank_meet(&me);
    router_destroy(me.router);
    ucx_close();
    _exit(0);
}
void ranks_ucx_processes(int size, enum waiting waiting, body *each)
{
    struct table_of_cards *t = shared_memory(sizeof *t, PROT_READ | PROT_WRITE);
    pid_t children[MOST_RANKS];
    int bad = 0, how;
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        children[r] = fork();
        if (children[r] == 0) be_process(t, size, r, waiting, each);
    }
    for (int r = 0; r < size; r++) bad += waitpid(children[r], &how, 0) != children[r] || how != 0;
    munmap(t, sizeof *t);
    if (bad) ranks_stop(-1, __FILE__, __LINE__, "every process ended well");
}
