/* Ranks for the tests of transports: the same body runs on every rank, over each transport, as threads or as
   processes. A body that finds something wrong stops the program with the place and the rank. */
#pragma once
#include "backend/transports/shm/shm.h"
#include "tests/support/bytes.h"
#include "tests/support/inproc.h"
#include <stdio.h>
#include <stdlib.h>

/* A test that takes longer has hung, however busy the machine is. */
enum { RANKS_SECONDS = 600 };
/* The barrier of rank_meet, which counts all arrivals. */
struct hall { _Atomic int arrived; };
struct alarm_bell { _Atomic uint32_t rings, waiters; };
/* How a rank waits for messages: POLLS only polls, the others sleep on the bell. Delays of inproc count microseconds
   with SLEEPS_IN_TIME, and polls otherwise. */
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
/* These print the condition that is not met, with its place and rank, and end the process. rank_stop also prints the
   reason of the router. */
_Noreturn void rank_stop(const struct rank *me, const char *file, int line, const char *condition);
_Noreturn void ranks_stop(int rank, const char *file, int line, const char *condition);

/* The next five run `each` on all ranks, and return when all ranks have returned from it. */
/* Threads over inproc, with delays of up to 40 polls or microseconds, drawn from `seed`. */
void ranks_inproc(int size, unsigned seed, enum waiting waiting, body *each);
/* Threads over shm, whose memory is inaccessible until it is reserved. */
void ranks_threads(int size, body *each);
/* Processes over shm. */
void ranks_processes(int size, body *each);
/* Threads over shm. Peers can reach the memory of the ranks whose bits are set in `reachable`. */
void ranks_sharing(int size, unsigned reachable, body *each);
/* Threads, over shm on a host and over inproc between hosts. Rank r is on host host_of[r]. */
void ranks_mixed(int size, const int *host_of, unsigned seed, body *each);
/* The routers of `size` ranks over shm, for tests in which one thread acts as all ranks. The shared memory is
   inaccessible until it is reserved. */
enum { MOST_RANKS = 32 };
struct table {
    /* `reserves` more reservations succeed, and one more for each that is given back; -1: all. */
    int size, reserves;
    /* The pairs, pair_bytes each, by sender and receiver. */
    unsigned char *memory;
    size_t pair_bytes;
    /* The number of rings of each rank's bell. */
    _Atomic uint32_t *bells;
    struct router **routers;
    /* Peers can reach the memory of the ranks whose bits are set. */
    unsigned reachable;
    /* The first `delay` calls of the callback `reach` return IN_PROGRESS; `asked` counts the calls. */
    int delay, asked;
    /* The callback `enter` returns false. */
    bool forbidden;
    /* The error that the callback `reach` returns, or OK. */
    tutti_status refusal;
    /* Peers can only read this memory, and cannot map it. */
    const unsigned char *readable;
    size_t readable_bytes;
    struct seat_callbacks *all_callbacks;
    /* The rank of each member, if the members are some of the ranks. */
    int ranks[MOST_RANKS];
    /* The bytes of all pairs that are reserved and not given back. */
    _Atomic size_t reserved_bytes;
};
/* These create and connect the routers. table_open_sharing lets peers reach the memory of the ranks in `reachable`. */
void table_open(struct table *table, int size, int reserves);
void table_open_sharing(struct table *table, int size, unsigned reachable);
void table_close(struct table *table);
/* Returns the callbacks of table_open. */
struct shm_callbacks table_callbacks(struct table *table);
/* Posts a transfer of one piece with rank `peer` on a rank, and returns it. All transfers have the same name. */
struct transfer *table_post(struct table *table, int rank, struct transfer *x, int peer, bool is_send,
    struct piece *piece);
/* Polls all ranks this many times in turn. */
void table_poll(struct table *table, int times);
/* Returns the pair for messages from one rank to another. */
struct pair *table_pair(struct table *table, int from, int to);
/* Returns the piece of `bytes` bytes at `at`. */
struct piece piece_whole(unsigned char *at, size_t bytes);
/* The routers of `size` ranks on several hosts: shm connects the ranks of a host, inproc the others. */
struct mixed {
    int size;
    struct inproc_world *world;
    struct table hosts[MOST_RANKS];
    struct router *routers[MOST_RANKS];
};
void mixed_open(struct mixed *mixed, int size, const int *host_of, const struct inproc_options *options);
void mixed_close(struct mixed *mixed);

/* ---- for bodies ---- */
/* Returns a message name with this number. */
struct message_name name_of(uint64_t name);
/* Polls once. false: nothing moved, and the rank has yielded or slept. */
bool rank_poll(struct rank *me);
/* Polls for long enough that messages under way arrive. */
void rank_settle(struct rank *me);
/* Returns whether a message of this name from `source` has arrived and met no receive. */
bool rank_keeps(const struct rank *me, int source, uint64_t name);
/* A barrier of all ranks, which polls while it waits. */
void rank_meet(struct rank *me);
/* Polls until all transfers are over. */
void rank_await(struct rank *me, const struct transfer *transfers, int count);
/* These post a transfer of one piece, and return x. They fill in x and *piece. */
struct transfer *rank_send(struct rank *me, struct transfer *x, int peer, uint64_t name, struct piece *piece,
    const void *at, size_t bytes);
struct transfer *rank_recv(struct rank *me, struct transfer *x, int peer, uint64_t name, struct piece *piece, void *at,
    size_t bytes);

/* ---- for functions that create ranks ---- */
/* Maps zeroed memory that forked children share. */
void *shared_memory(size_t bytes, int protection);
/* Creates a router whose bell is `bell`; NULL: it has none. */
struct router *new_router(int rank, int size, struct alarm_bell *bell);
/* Runs `each` on a thread for each router. bells: one for each rank, or NULL if no rank sleeps. */
void run_threads(int size, struct router **routers, enum waiting waiting, struct alarm_bell *bells, body *each);
