/* A communicator's part for operations on CUDA streams. It is made when the program opens the communicator for CUDA
 * (comm/streams.c), and outlives the communicator until no rank uses this rank's slots. The calls of the program hold
 * `call_lock`; the stream thread (stream_thread.h) owns the other fields, unless a comment names another owner. */
#pragma once
#include "backend/base/status.h"
#include "backend/engine/group.h"
#include "backend/engine/operation.h"
#include "backend/streams/release.h"

/* OPENING: the ranks are still agreeing. LEAVING: the communicator is being destroyed, and accepts no operations. LEFT:
   it has no operations any more, and its fields are not used any more. */
enum stream_comm_state { STREAMS_OPENING, STREAMS_OPEN, STREAMS_LEAVING, STREAMS_LEFT };
/* Why operations on streams fail, before the communicator has failed for that reason. */
struct stream_failure {
    /* Set once status and detail are valid. */
    _Atomic uint32_t is_set;
    tutti_status status;
    char detail[STATUS_DETAIL_BYTES];
};
struct stream_comm {
    tutti_comm *comm;
    /* The ranks of the group, which are all on this host, and the number of this rank. */
    int rank, ranks;
    /* NULL until they exist. The words are memory of the ranks in common. This struct owns them, the references to
       peers and the cache of plans. */
    struct stream_site *site;
    void *words;
    /* A reference to the process of each rank, by its index on the host. NULL: this process. */
    struct peer **peers;
    /* The process stays connected to others. */
    bool holds_peers;
    /* The communicator and the stream thread are the holders. */
    _Atomic int holders;
    /* An enum stream_comm_state. The program opens it, and begins to leave. */
    _Atomic int state;
    /* Serializes the calls, which own the cache of plans. */
    pthread_mutex_t call_lock;
    struct plan_cache *plans;
    /* A call holds the lock. It may have enqueued work that is not in the list yet. */
    _Atomic bool has_call;
    /* Protects the list of open operations, in the order of their numbers, and the writing of `failure`. */
    pthread_mutex_t lock;
    struct operation *first, **end;
    struct stream_failure failure;
    /* When the thread last looked for late operations, and when it first saw a failure of the streams, a failure of the
       communicator, and that it leaves. 0: not yet. */
    int64_t checked_ms, site_failed_ms, failed_ms, leaves_ms;
    /* The thread has begun to close the slots of the peers. */
    bool disconnects;
    /* The next one in the list of the stream thread. */
    struct stream_comm *next;
};
/* Makes the part of a communicator, without words and site. Its holder is the caller. */
tutti_status stream_comm_create(tutti_comm *comm, struct stream_comm **out);
/* Drops a holder. The last one frees the memory. NULL is fine. */
void stream_comm_release(struct stream_comm *streams);
/* Frees plans, site, words and references to peers, after all other ranks have disconnected or died. */
void stream_comm_close(struct stream_comm *streams);
/* Records why operations on streams fail, unless a reason is known. Any thread. */
void stream_comm_fail(struct stream_comm *streams, tutti_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Appends an operation that was enqueued, and takes the first one from the list. Any thread. */
void stream_comm_append_operation(struct stream_comm *streams, struct operation *op);
void stream_comm_remove_first(struct stream_comm *streams);
/* Returns the open operation with the lowest number, or NULL. Only the stream thread may use the operation. */
struct operation *stream_comm_get_first(struct stream_comm *streams);
/* Describes an operation, as in "allreduce(8 x float32, sum), operation 3 on streams of the group". */
void stream_comm_describe_operation(const tutti_comm *comm, const struct operation *op, char *out, size_t bytes);
/* Describes the first open operation, or a call under way. Returns false if there is neither. Any thread. */
bool stream_comm_describe_first(struct stream_comm *streams, char *out, size_t bytes);
/* Writes the ranks that have not enqueued an operation of the site, as "1, 3". */
void stream_comm_list_absent_ranks(const struct stream_comm *streams, uint64_t number, char *out, size_t bytes);
/* Returns the number of an operation that `rank` has called and this rank has not, or 0 if it finds none. NULL is fine.
   Any thread. */
uint64_t stream_comm_find_call_ahead(struct stream_comm *streams, int rank);
/* True if an operation is open, or a call is under way. */
bool stream_comm_has_work(struct stream_comm *streams);

/* Returns true if operations on streams have failed for a reason that is known. NULL is fine. */
static inline bool stream_comm_has_failed(const struct stream_comm *streams)
{
    return streams && atomic_load_explicit(&streams->failure.is_set, memory_order_acquire);
}
