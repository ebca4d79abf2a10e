/* Ranks for tests: threads of this process, or forked processes, each with its communicator. */
#pragma once
#include "include/tutti.h"
#include <pthread.h>
#include <sys/resource.h>

struct rank { tutti_comm *comm; int rank, size; void *context; pthread_barrier_t *meeting; };
typedef void rank_function(struct rank *me);
/* The neighbours of a rank in a ring. */
static inline int rank_next(const struct rank *me) { return (me->rank + 1) % me->size; }
static inline int rank_previous(const struct rank *me) { return (me->rank + me->size - 1) % me->size; }

/* Runs `body` on `size` threads that share a store in memory, with the config's options; destroys the communicators.
   Fails the test when a communicator cannot be made. */
void world_threads(int size, const tutti_config *options, rank_function *body, void *context);
/* Messages between hosts of threads go through shared memory; with WORLD_NETWORK=inproc in the environment through
   inproc, delayed (up to WORLD_DELAY_US microseconds) and reordered (from WORLD_SEED), and world_processes does
   nothing. WORLD_HOSTS=n pretends hosts where the test pretends none; WORLD_TESTS: cmocka's filter of tests. */
/* Runs `body` in `size` forked processes that find each other by a unique id. Returns the number that did not exit with
   0. A process that hangs is killed: `seconds` are enough for one that does not, where nothing else runs, and it has
   ten times as many. */
int world_processes(int size, int seconds, rank_function *body, void *context);
/* In a rank's body: ends a forked rank's process as failed, with a text; in a thread aborts the test program. */
_Noreturn void world_fail(const char *text, const char *file, int line);
#define REQUIRE(condition) ((condition) ? (void)0 : world_fail(#condition, __FILE__, __LINE__))
tutti_request *world_requests(size_t count);                           /* ready for use; to be freed */
/* On threads: returns when all ranks have called it. What a rank has finished then, no failure of another undoes. */
void world_meet(const struct rank *me);
/* The same as world_threads over hosts that are pretended (TUTTI_HOSTS); pretend sets them alone, "": none. */
void world_threads_on(const char *hosts, int size, const tutti_config *options, rank_function *body, void *context);
void world_pretend(const char *hosts);
void world_set(const char *variable, const char *value);                /* a setting; NULL: as if it were not given */
void sleep_us(int us);
/* Lowers the soft limit of a resource of this process; returns what it was, for setrlimit. */
struct rlimit world_limit(int resource, rlim_t most);
/* For pthread_create: aborts the communicator after a while. */
struct aborter { tutti_comm *comm; int after_us; };
void *abort_main(void *aborter);
tutti_store world_store_create(void);                                  /* in memory, for threads of this process */
void world_store_destroy(tutti_store store);
tutti_status world_store_remove(void *context, const char *key);       /* tutti_config.store_remove */
