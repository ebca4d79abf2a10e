/* The state that processes on one simulated machine share: streams' clocks, recorded points of streams, accesses to
   memory, and words that streams wait for. Forked processes share the machine of their parent; others share one if
   FAKE_CUDA_MACHINE names the same file.

   Order is kept in vector clocks. A lane is a stream's entry in all clocks. Each operation of a stream gets the next
   epoch of its lane. A clock has, for each lane, the last epoch whose operation comes before whatever has this clock.
   */
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

enum { LANES = 256, POINTS = 8192, ACCESSES = 16384, WORDS = 4096, EVENTS = 4096, FRAMES = 16, BUCKETS = 1024 };

struct clock { uint32_t seen[LANES]; };
/* A call stack. `image` is an address in the fake's code: where it is equal, frames have the same names. */
struct call_stack {
    int32_t count, pid;
    const void *image;
    void *frames[FRAMES];
};
/* Bytes of memory, by the file that they are in, so that they are the same in all processes and mappings. Private
   memory of a process counts as a file of its own, with addresses as offsets. */
struct location { uint64_t file, offset; };
/* A point in a stream, which is done when the operations before it are. The clock is valid then. */
struct point {
    uint32_t references, done;
    int64_t time_ns;
    struct clock clock;
};
/* An event: its last recorded point, or 0. */
struct event_slot {
    uint32_t references, point;
    uint64_t key;
};
enum access_state { ACCESS_UNUSED, ACCESS_PENDING, ACCESS_BEGUN, ACCESS_OVER };
/* The bytes that one operation reads or writes: pending until its stream begins the operation, and over when that has
   ended. `next` is another access of the operation; `before` and `after` are those of files with the same hash. */
struct access {
    uint32_t state, lane, epoch, next, before, after;
    uint32_t writes;
    struct location location;
    uint64_t bytes;
    char call[32];
    struct call_stack stack;
};
/* A word that streams have written, and the clock of the last stream that wrote it. */
struct word {
    struct location location;
    uint64_t value;
    struct clock clock;
};
struct lane {
    int32_t pid;
    uint32_t epoch;
};
struct machine {
    uint32_t ready, changes, next_point, next_access, next_word, next_lane;
    uint64_t next_key;
    pthread_mutex_t lock;
    /* The clock of everything that has happened before whatever a host enqueues. All hosts have one clock, because the
       fake cannot see how they synchronize. */
    struct clock hosts;
    struct lane lanes[LANES];
    struct event_slot events[EVENTS];
    struct access accesses[ACCESSES];
    uint32_t buckets[BUCKETS];
    struct word words[WORDS];
    struct point points[POINTS];
};
extern struct machine *machine;

/* The lock of the machine. No caller holds it while it waits. */
void machine_lock(void);
void machine_unlock(void);
/* Wakes the waiting threads of all processes. Call it after a change that they may wait for. */
void machine_notify(void);
/* Waits until a change after `seen` (machine_changes) or `most_us` have passed. */
void machine_wait(uint32_t seen, unsigned most_us);
uint32_t machine_changes(void);
/* Prints what is used up, and aborts the process. */
_Noreturn void machine_full(const char *what, int most);

/* The callers of these functions hold the lock. */
void clock_merge(struct clock *clock, const struct clock *other);
/* Gives a stream of this process a lane. */
uint32_t lane_take(void);
void lane_release(uint32_t lane);
/* Makes a point with one reference, or adds or drops a reference. A point is a number above 0. */
uint32_t point_create(void);
void point_hold(uint32_t point);
void point_drop(uint32_t point);
