/* A rank's place for operations on streams: its device, its slots there, the slots of its peers, and the words of the
 * host. One thread at a time enqueues. Others may call the functions of release.h meanwhile, because the driver may
 * block the thread that enqueues. */
#pragma once
#include "backend/devices/cuda.h"
#include "backend/streams/kernels.h"
#include "backend/streams/words.h"
#include <pthread.h>

/* The most calls of the driver whose work is not done. A GPU's queue takes about 1,024 launches; after that the driver
   blocks the host. */
enum { STREAM_CALLS = 768 };

/* How a site is made. All but `rank`, `device` and `words` are equal on all ranks. */
struct stream_settings {
    /* `rank` and `ranks` count the ranks of this host. */
    int rank, ranks;
    CUdevice device;
    /* The bytes of this rank's slots; rounded up to blocks of 2 MiB. */
    size_t slot_bytes;
    /* stream_words_count_bytes(ranks) bytes of shared memory, which every rank keeps mapped as long as the site. Ranks
       of one process may use one mapping. */
    void *words;
    /* The kernels, as cuModuleLoadData takes them. */
    const void *image;
};
/* The address of a rank's slots, by which its peers reach them: plain bytes, which ranks may exchange in any way. */
struct stream_address {
    /* The process of the rank, by a random number. */
    uint64_t process;
    /* Where the slots are in that process, how many bytes each half has, and at which offset they are in the memory
       that the handle opens. */
    CUdeviceptr slots;
    uint64_t half_bytes, offset;
    int32_t device, has_handle;
    CUipcMemHandle handle;
};
/* The positions of operations count from a base (enqueue.c), and cross the end of 32 bits. */
struct stream_site {
    int rank, ranks;
    CUdevice device;
    CUcontext context;
    struct stream_kernels *kernels;
    struct stream_words *words;
    /* The address of the words for devices. */
    CUdeviceptr words_at;
    /* The slots of each rank, in two halves of half_bytes, and what this rank has opened to reach them, or 0. */
    CUdeviceptr *slots, *opened;
    size_t half_bytes;
    /* [rank][word]: the highest values that this rank's streams have awaited. */
    uint32_t (*awaited)[STREAM_WORDS];
    /* The bases of WORD_ARRIVAL, and of the other positions. */
    _Atomic uint32_t base, slots_base;
    /* The numbers of the last operation of which the host has begun to enqueue work, that all ranks have declared
       equally, and that the host has seen to be done, counted from 1. */
    _Atomic uint64_t enqueued, compared, completed;
    /* The number of an operation whose end no stream writes, so that the host does; 0: none. */
    _Atomic uint64_t host_end;
    /* The calls that enqueued all work so far, and the work up to operation n, in entry n % STREAM_OPERATIONS. */
    uint64_t calls, calls_before[STREAM_OPERATIONS];
    /* A thread that calls the driver for operations holds `driver_lock`. `compare_lock` protects `compared`. */
    pthread_mutex_t driver_lock, compare_lock;
    /* A stream without work, by which polls ask whether the device has failed; `polls` counts them. */
    CUstream idle_stream;
    _Atomic unsigned polls;
    /* The id of the last operation's stream. */
    uint64_t stream_id;
    /* The last call that was to enqueue found a failure of the group, so its error is not the cause. */
    bool found_failure;
};
/* Opens the device, loads all kernels, and allocates the slots. It may wait for all work of the device. */
tutti_status stream_site_create(const struct stream_settings *settings, struct stream_site **out);
/* Describes this rank's slots to its peers. */
tutti_status stream_site_export_address(const struct stream_site *site, struct stream_address *out);
/* Opens the slots of all ranks, by what each has exported. */
tutti_status stream_site_connect_peers(struct stream_site *site, const struct stream_address *addresses);
/* Closes the slots of all other ranks, after all operations are done, and announces that in the words. */
void stream_site_disconnect_peers(struct stream_site *site);
/* Frees the slots, after all ranks have disconnected or died. NULL is fine. */
void stream_site_destroy(struct stream_site *site);
/* Makes the site's context current on this thread, if it is not; *entered tells stream_site_leave_context to undo that.
   */
tutti_status stream_site_enter_context(const struct stream_site *site, bool *entered);
void stream_site_leave_context(bool entered);

/* Returns the words of a rank of this host. */
static inline struct stream_line *stream_site_line_of_rank(const struct stream_site *site, int rank)
{
    return &site->words->rank[rank];
}
