/* Processes that are peers of each other, for tests: each is forked from a parent that has no peers of its own, knows
   all others by what they wrote into shared memory, and reports by its exit code. */
#pragma once
#include "backend/control/lifetime.h"
#include "backend/links/links.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { MOST = 16, GENEROUS_MS = 30000, JOIN_MS = 60000, SKIPPED = 77 };
struct world {                                          /* shared by the processes of a test */
    unsigned char key[KEY_BYTES];                       /* of the group that they are */
    struct identity identity[MOST];
    struct sock_address contact[MOST];
    _Atomic int arrived[256], skip;
    pid_t orphans[2];
};
extern struct world *world;
extern int size, rank;                                  /* of this process */

/* Runs `body` in so many processes, which all have to end with 0 but those killed on purpose (bits of `victims`). One
   that ends with SKIPPED skips the test. */
void world_run(int count, void (*body)(void), unsigned victims);
#define REQUIRE(condition) ((condition) ? (void)0 : world_fail(#condition, __FILE__, __LINE__))
_Noreturn void world_fail(const char *text, const char *file, int line);               /* ends this process */
void world_barrier(int count);
tutti_status world_acquire(struct identity *out);       /* peers_acquire, and this process knows the group's key */
extern struct key_id world_key;                         /* then */
void world_join(void);                                  /* everybody knows everybody, nobody is connected */
/* Acquires the peer and waits until it is connected. */
tutti_status world_connect(const struct identity *other, int64_t timeout_ms, struct peer **out);
tutti_status world_call(int peer, struct peer **out);
void world_connect_all(struct peer *peers[]);
void world_release_all(struct peer *peers[]);
struct sock_address world_contact(const char *address, unsigned port);
void world_listen(const char *address);                 /* joins, and all listen there; nobody is connected */
struct peer *world_hold(int peer);
struct peer *world_link(int peer);                      /* that is open */

void sleep_ms(int ms);
int count_descriptors(void);
int count_threads(void);
/* What another thread or process is about to close is given time. */
bool descriptors_settle_at(int expected);
bool threads_settle_at(int expected);

struct loss { _Atomic int count; pthread_t thread; };   /* what a peer_watch saw */
void loss_record(void *context);
void loss_await(struct loss *loss);
