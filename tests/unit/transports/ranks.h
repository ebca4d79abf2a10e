/* Ranks for the tests of transports: the same body runs on every rank, over each transport, as threads or as
   processes. A body that finds something wrong stops the program with the place and the rank. */
#pragma once
#include "backend/transports/shm/shm.h"
#include "tests/support/bytes.h"
#include "tests/support/inproc.h"
#include <stdio.h>
#include <stdlib.h>

enum { RANKS_SECONDS = 600 };             /* then a test has hung, however busy the machine is */
struct hall { _Atomic int arrived; };   /* where ranks meet */
struct alarm_bell { _Atomic uint32_t rings, waiters; };
/* While a rank waits for messages: it polls; or sleeps on its bell, delays being counted in polls or in time. */
enum waiting { POLLS, SLEEPS, SLEEPS_IN_TIME };
struct rank {
    int rank, size;
    struct router *router;
    struct hall *hall;
    enum waiting waiting;
    struct alarm_bell *bell;
};
typedef void body(struct rank *me);
#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) rank_stop(me, __FILE__, __LINE__, #condition);                                               \
    } while (0)
_Noreturn void rank_stop(const struct rank *me, const char *file, int line, const char *condition);
_Noreturn void ranks_stop(int rank, const char *file, int line, const char *condition);

/* inproc: delays up to 40 polls or microseconds, from `seed` */
void ranks_inproc(int size, unsigned seed, enum waiting waiting, body *each);
/* shm, threads: the memory cannot be touched before it is reserved */
void ranks_threads(int size, body *each);
void ranks_processes(int size, body *each);
/* shm, threads: and peers may touch the memory of the ranks whose bits are set in `reachable` */
void ranks_sharing(int size, unsigned reachable, body *each);
/* shm between the ranks of a host, inproc between hosts, both threads; layout_host[size] */
void ranks_mixed(int size, const int *host_of, unsigned seed, body *each);
/* All ranks in this thread: connects `size` routers over shared memory that cannot be touched before it is
   reserved. `reserves`: how many reservations succeed before one is refused (-1: all). bells[rank] counts the
   rings. */
struct table {
    int size, reserves;
    unsigned char *memory;
    size_t pair_bytes;
    _Atomic uint32_t *bells;
    struct router **routers;
    /* what peers can reach: the memory of these ranks, after `delay` askings; or not any more, or not at all */
    unsigned reachable;
    int delay, asked;
    bool forbidden;
    tutti_status refusal;
    struct seat_callbacks *all_callbacks;
};
void table_open(struct table *table, int size, int reserves);
void table_open_sharing(struct table *table, int size, unsigned reachable);
void table_close(struct table *table);
struct shm_callbacks table_callbacks(struct table *table);
/* The same over both transports: ranks of one host by shm, the others by inproc. */
enum { MOST_RANKS = 16 };
struct mixed {
    int size;
    struct inproc_world *world;
    struct table hosts[MOST_RANKS];
    struct router *routers[MOST_RANKS];
};
void mixed_open(struct mixed *mixed, int size, const int *host_of, const struct inproc_options *options);
void mixed_close(struct mixed *mixed);

/* ---- for bodies ---- */
struct message_name name_of(uint64_t name); /* differs in both parts */
bool rank_poll(struct rank *me);            /* false: nothing moved, it has let others work, or slept */
void rank_settle(struct rank *me); /* polls until all that was on its way has come */
bool rank_keeps(const struct rank *me, int source, uint64_t name); /* a message that no receive has met */
void rank_meet(struct rank *me);                                               /* a barrier that polls */
void rank_await(struct rank *me, const struct transfer *transfers, int count); /* until none is posted any more */
struct transfer *rank_send(struct rank *me, struct transfer *x, int peer, uint64_t name, struct piece *piece,
    const void *at, size_t bytes);
struct transfer *rank_recv(struct rank *me, struct transfer *x, int peer, uint64_t name, struct piece *piece, void *at,
    size_t bytes);

/* ---- for those who make worlds of ranks ---- */
void *shared_memory(size_t bytes, int protection);
struct router *new_router(int rank, int size, struct alarm_bell *bell);
void run_threads(int size, struct router **routers, enum waiting waiting, struct alarm_bell *bells, body *each);
