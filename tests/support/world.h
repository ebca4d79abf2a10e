/* Ranks for tests: threads of this process, or forked processes, each with its communicator.

   These environment variables change how tests run. WORLD_NETWORK=inproc: messages between simulated hosts of threads
   go through inproc instead of shared memory, delayed by up to WORLD_DELAY_US microseconds and reordered by the random
   numbers of WORLD_SEED; world_processes then does nothing. WORLD_HOSTS=n: world_threads simulates n hosts where the
   test simulates none. WORLD_TESTS: cmocka's filter of tests. */
#pragma once
#include "include/tutti.h"
#include <pthread.h>
#include <sys/resource.h>

/* A rank of a test, with its communicator and the caller's context. `meeting` is the barrier of world_meet; NULL in a
   process of its own. */
struct rank { tutti_comm *comm; int rank, size; void *context; pthread_barrier_t *meeting; };
typedef void rank_function(struct rank *me);
/* The neighbours of a rank in a ring. */
static inline int rank_next(const struct rank *me) { return (me->rank + 1) % me->size; }
static inline int rank_previous(const struct rank *me) { return (me->rank + me->size - 1) % me->size; }

/* Runs `body` on `size` threads, each with its communicator, which find each other through a store in memory. Then
   destroys the communicators. `options` has the other fields of their tutti_config; NULL: TUTTI_CONFIG_INIT. Ends the
   test program if a communicator cannot be made. */
void world_threads(int size, const tutti_config *options, rank_function *body, void *context);
/* Runs `body` in `size` forked processes that find each other by a unique id. Returns the number of processes that did
   not exit with 0. A signal ends a process that hangs, after ten times `seconds`; an otherwise idle machine needs at
   most `seconds`. */
int world_processes(int size, int seconds, rank_function *body, void *context);
/* Prints the condition that is not met, and this thread's last error, and ends the process as failed: the process of a
   forked rank, or the test program if the rank is a thread. */
_Noreturn void world_fail(const char *text, const char *file, int line);
#define REQUIRE(condition) ((condition) ? (void)0 : world_fail(#condition, __FILE__, __LINE__))
/* Returns `count` initialised requests, which the caller frees. */
tutti_request *world_requests(size_t count);
/* For ranks that are threads: returns when all ranks have called it. An operation that a rank has completed before then
   stays successful, whatever fails on another rank afterwards. */
void world_meet(const struct rank *me);
/* Does world_threads with the simulated hosts that TUTTI_HOSTS=hosts describes. */
void world_threads_on(const char *hosts, int size, const tutti_config *options, rank_function *body, void *context);
/* Simulates hosts from now on, as TUTTI_HOSTS=hosts does. "": simulates none. */
void world_pretend(const char *hosts);
/* Sets an environment variable, or removes it if `value` is NULL, and reads the settings again. */
void world_set(const char *variable, const char *value);
void sleep_us(int us);
/* Lowers the soft limit of a resource of this process to `most`. Returns the limits before, for setrlimit. */
struct rlimit world_limit(int resource, rlim_t most);
/* abort_main is the main function of a thread that aborts `comm` after after_us microseconds. */
struct aborter { tutti_comm *comm; int after_us; };
void *abort_main(void *aborter);
/* Creates a store in memory, for threads of this process. */
tutti_store world_store_create(void);
void world_store_destroy(tutti_store store);
/* The tutti_config.store_remove of such a store. */
tutti_status world_store_remove(void *context, const char *key);
