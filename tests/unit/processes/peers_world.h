/* Processes that are peers of each other, for tests. Each is forked from a parent without peers, finds the identities
   of the others in shared memory, and reports by its exit code. */
#pragma once
#include "backend/control/lifetime.h"
#include "backend/links/links.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { MOST = 16, GENEROUS_MS = 30000, JOIN_MS = 60000, SKIPPED = 77 };
/* Memory that the processes of a test share. */
struct world {
    /* The key of the group that the processes form. */
    unsigned char key[KEY_BYTES];
    struct identity identity[MOST];
    /* The addresses at which the processes listen, after world_listen. */
    struct sock_address contact[MOST];
    /* The number of processes at each barrier; `skip` and `orphans` are for the tests. */
    _Atomic int arrived[256], skip;
    pid_t orphans[2];
};
extern struct world *world;
/* The number of processes, and the number of this one. */
extern int size, rank;

/* Runs `body` in `count` forked processes. The test fails unless each exits with 0, and those with a bit in `victims`
   end by SIGKILL. A process that exits with SKIPPED skips the test. */
void world_run(int count, void (*body)(void), unsigned victims);
#define REQUIRE(condition) ((condition) ? (void)0 : world_fail(#condition, __FILE__, __LINE__))
/* Prints the text and the last error, and ends this process as failed. */
_Noreturn void world_fail(const char *text, const char *file, int line);
/* Waits until `count` processes have called it. */
void world_barrier(int count);
/* Calls peers_acquire, adds the group's key to this process, and sets world_key to the key's id. */
tutti_status world_acquire(struct identity *out);
extern struct key_id world_key;
/* Calls world_acquire in all processes, which then know each other's identities. It connects no peers. */
void world_join(void);
/* Acquires the peer and waits until it is connected. */
tutti_status world_connect(const struct identity *other, int64_t timeout_ms, struct peer **out);
/* Does world_connect for process number `peer`. */
tutti_status world_call(int peer, struct peer **out);
/* Connects to all other processes, and releases them. */
void world_connect_all(struct peer *peers[]);
void world_release_all(struct peer *peers[]);
struct sock_address world_contact(const char *address, unsigned port);
/* Does world_join, after which all processes listen for links at a port of that address. It connects no links. */
void world_listen(const char *address);
/* Acquires the link to a process, without waiting for it. */
struct peer *world_hold(int peer);
/* Acquires the link to a process, and waits until it is open. */
struct peer *world_link(int peer);

void sleep_ms(int ms);
/* The numbers of open descriptors and of threads of this process. */
int count_descriptors(void);
/* The descriptors of a registry: two sockets that listen, the poll set and the eventfd of the watch thread. */
enum { REGISTRY_DESCRIPTORS = 4 };
int count_threads(void);
/* Wait until the number is as expected, because another thread or process may be about to close something. Return false
   after GENEROUS_MS. */
bool descriptors_settle_at(int expected);
bool threads_settle_at(int expected);

/* The calls of the `lost` function of a peer_watch, for which loss_record serves. loss_await waits for the first call,
   which must be on another thread. */
struct loss { _Atomic int count; pthread_t thread; };
void loss_record(void *context);
void loss_await(struct loss *loss);
