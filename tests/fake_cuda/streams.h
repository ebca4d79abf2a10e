/* Streams: queues of operations, each with a thread that runs them in order. */
#pragma once
#include "tests/fake_cuda/contexts.h"
#include "tests/fake_cuda/machine.h"

enum { PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5 };
/* Only work is delayed. OPERATION_JOIN waits for the legacy stream or for those that it waits for; OPERATION_RECORD
   records a point, and a stream without other operations is idle. */
enum operation_kind { OPERATION_WORK, OPERATION_JOIN, OPERATION_RECORD };
/* An operation of a stream. A file with operations of its own embeds this as the first field. */
struct operation {
    struct operation *next;
    void (*run)(struct operation *operation);
    /* Frees what run has used; NULL: nothing but the operation. */
    void (*finish)(struct operation *operation);
    struct CUstream_st *stream;
    const char *call;
    /* The first of its accesses in the machine, or 0. */
    uint32_t accesses, epoch;
    enum operation_kind kind;
    struct call_stack stack;
    /* The clock of the host when it enqueued the operation. */
    struct clock known;
};
struct CUstream_st {
    struct CUstream_st *next;
    CUcontext context;
    unsigned flags;
    int priority;
    uint64_t id;
    pthread_t thread;
    pthread_cond_t queued;
    struct operation *first, **last;
    /* How many operations but records have been enqueued and have ended, and how many of the first are work. */
    uint64_t enqueued, ended, work;
    /* How much work of this stream the legacy stream waits for, and how much of the legacy stream's this one. */
    uint64_t legacy_awaits, awaits_legacy;
    bool has_thread, is_destroyed;
    /* Owned by the stream's thread, which takes a lane with the first operation. */
    bool has_lane;
    uint32_t lane;
    uint64_t random;
    struct clock clock;
    /* The capture that records its operations, or NULL, and the number of the stream in it. */
    struct capture *capture;
    unsigned branch;
};

/* Sets *out to the stream of a handle, which may stand for the legacy stream or the thread's own one. */
CUresult stream_find(CUstream handle, CUstream *out);
/* Allocates an operation of this size. */
void *operation_create(size_t bytes, void (*run)(struct operation *operation), const char *call);
/* Appends an operation that declares its accesses itself; the stream frees it. Streams that do not opt out of it are
   ordered with the legacy stream here. A stream that captures records the operation instead. */
void stream_enqueue(CUstream stream, struct operation *operation);
/* Enqueues, records a point, and waits for it: for calls that block the host. */
void stream_run(CUstream stream, struct operation *operation);
/* Gives an operation a new epoch while it runs: its later accesses come after what it has published. */
void operation_next_epoch(struct operation *operation);
/* Records the current end of a stream as a point, with a reference of the caller. */
uint32_t stream_record(CUstream stream);
/* Makes later operations of a stream wait for a point, of which it takes over the caller's reference. */
void stream_await(CUstream stream, uint32_t point);
/* Waits for all operations of a stream, of a context, or of all contexts. The host has seen them then. */
void stream_wait(CUstream stream);
void streams_wait(CUcontext context);
void streams_wait_all(void);
void streams_destroy(CUcontext context);

/* The host waits until a point is done, or asks whether it is: true if so, and the host has seen it then. */
void point_wait(uint32_t point);
bool point_is_done(uint32_t point);
/* Merges a clock into that of the hosts. */
void hosts_see(const struct clock *clock);
/* Merges a clock into that of a stream, on the stream's thread. */
void stream_see(CUstream stream, const struct clock *clock);
