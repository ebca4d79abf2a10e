/* An operation: one call, from its arguments to its result, and the functions that run it. */
#pragma once
#include "backend/engine/queue_list.h"
#include "backend/execute/execute.h"
#include "backend/window/window.h"

/* Values of operation.collective beside those of enum collective. */
enum { POINT_TO_POINT = COLLECTIVE_COUNT, WINDOW_OPERATION };
/* Values of operation.state, and the bytes of operation.detail. An operation ON_STREAM was enqueued on a CUDA stream,
   and is open; the stream thread ends it. */
enum { OPERATION_PENDING, OPERATION_OVER, OPERATION_ON_STREAM, OPERATION_DETAIL_BYTES = 512 };
/* The time limit of an operation. */
struct limit {
    _Atomic int64_t timeout_ms;
    /* 0 until a driver computes the deadline. */
    _Atomic int64_t deadline_ms;
    /* When a driver last checked whether the operation is late. */
    int64_t checked_ms;
    /* When the driver first saw that the peer of a message, on another host, has left; 0: not yet. */
    int64_t alone_ms;
    /* The process was stopped between the last two checks, so the deadline was extended. */
    bool was_stopped;
};
/* AWAIT waits for a signal of a peer. FLUSH ends when the earlier operations of this rank's window are over, DRAIN when
   this rank has handled the messages that input[size] counts. ATTACH and DETACH add the window to the communicator and
   take it out. FREE is a DETACH that the other ranks do not take part in, and reports it to them. */
enum window_kind {
    WINDOW_PUT,
    WINDOW_SIGNAL,
    WINDOW_AWAIT,
    WINDOW_FLUSH,
    WINDOW_DRAIN,
    WINDOW_ATTACH,
    WINDOW_DETACH,
    WINDOW_FREE
};
enum window_stage { WINDOW_NEW, WINDOW_SENDS_HEADER, WINDOW_SENDS_BYTES };
/* The fields that only operations of windows have. A put writes part_bytes bytes from `input`. The operation holds a
   reference to its window. */
struct window_operation {
    struct tutti_window *of;
    enum window_kind kind;
    enum window_stage stage;
    int peer;
    /* The number of a put by message, counted from 0 for each pair of ranks. */
    uint32_t put;
    /* The byte of the peer's window at which a put begins, and the bytes that a direct put has copied. */
    uint64_t offset;
    size_t copied_bytes;
    struct window_header header;
};
/* A message of the user, or what an operation of a window sends. */
struct message {
    uint32_t tag;
    struct piece piece;
    struct transfer transfer;
    /* Set only for WINDOW_OPERATION. */
    struct window_operation window;
};
/* The function that reduces, and how the rows of the result are normalised; rows.function is NULL if they are not. */
struct sum { reduce_function *reduce; struct rows rows; };
/* An operation lives in tutti_request.reserved, or on the stack of a blocking caller. */
struct operation {
    struct operation *next;
    tutti_comm *comm;
    /* NULL for a blocking call. */
    tutti_request *request;
    _Atomic uint32_t state;
    tutti_status status;
    /* An enum collective, POINT_TO_POINT or WINDOW_OPERATION. */
    int collective;
    const void *input;
    void *output;
    /* Elements of one rank's part. */
    uint64_t count;
    size_t part_bytes;
    tutti_dtype dtype;
    tutti_op op;
    /* Set only for reductions. */
    struct sum sum;
    int root;
    /* The factor of PREMUL_SUM, the description of rows (rows_encode_bits), or the label of any other call. */
    uint64_t bits;
    /* The algorithm that this call asks for, or NULL. */
    const struct algorithm *algorithm;
    /* The process_generation of the process that started the operation. */
    unsigned generation;
    struct limit limit;
    /* The operation must not be deferred any more. */
    _Atomic bool detached;
    /* The operation failed alone and left the communicator unchanged. */
    bool refused;
    struct uneven *uneven;                              /* owned */
    /* The number of a collective on its communicator, from 1; operations on streams are counted apart. 0: it has not
       begun, or is no collective. */
    uint64_t sequence;
    struct queued queued;
    /* Set only for POINT_TO_POINT and WINDOW_OPERATION. */
    struct message message;
    /* Why the operation failed. A copy, because an operation can outlive its communicator. */
    char detail[OPERATION_DETAIL_BYTES];
};
/* Initialises a blocking call without options. It sets single fields, because zeroing the whole struct costs as much as
   the rest of the call. The caller sets part_bytes and the buffers, and for reductions op and sum. */
void operation_init(struct operation *out, tutti_comm *comm, int collective, uint64_t count, tutti_dtype dtype,
    int root);
/* Starts the operation and takes ownership of op->uneven. With `blocking` it waits for the end and returns the result.
   Otherwise it returns OK. */
tutti_status operation_run(struct operation *op, bool blocking);
/* Finishes a blocking call that has begun; `status` is how far it got: IN_PROGRESS, OK, or why it fails. The caller
   holds the driver role, which this function releases. No other operation is open. */
tutti_status operation_continue(struct operation *op, tutti_status status);
/* Waits for the end of the operation and returns its result. With timeout_ms > 0 its deadline is at most that far
   away. */
tutti_status operation_wait(struct operation *op, int64_t timeout_ms);
/* Progresses a deferred operation without waiting. Returns IN_PROGRESS or the result. */
tutti_status operation_test(struct operation *op);
/* Drives the operation for a moment. If it is not over then, hands it to the progress thread, so that it ends although
   its caller does other work. */
void operation_detach(struct operation *op);
/* Closes a communicator that has failed. Waits until no thread is inside one of its operations, and keeps the driver
   role for good. Operations that start later end at once with the failure. */
void operations_close_comm(tutti_comm *comm);

/* ---- completion.c ---- */
static inline bool operation_is_over(const struct operation *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) == OPERATION_OVER;
}
static inline bool operation_is_on_stream(const struct operation *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) == OPERATION_ON_STREAM;
}
/* Returns true if the operation is not over. Its communicator is then not destroyed until the caller decrements
   submission.inside. Returns false if it is over; its communicator may be freed. A thread that destroys the
   communicator ends its operations, waits until no thread is entering, and then until no thread is inside. */
bool operation_enter_comm(const struct operation *op);
/* Returns true while any thread is in operation_enter_comm. */
bool operations_are_entering(void);
/* Runs in the child of a fork, where no thread is inside an operation. */
void operations_reset_after_fork(void);
/* Returns the result of an operation that is over. */
tutti_status operation_get_result(const struct operation *op);
/* Ends the operation and wakes its waiters. Driver only. The driver must not touch the operation afterwards. */
void operation_complete(struct operation *op, tutti_status status);
/* Ends an operation on a stream with `status`, which is OK or the communicator's failure. Stream thread only. */
void operation_complete_on_stream(struct operation *op, tutti_status status);
/* Ends an operation that was not submitted, because its communicator is closed, with the communicator's failure. Any
   thread. */
void operation_reject_closed(struct operation *op);
/* Ends an operation with `status` and this thread's last error as its text. The communicator is unchanged. */
void operation_refuse(struct operation *op, tutti_status status);
/* Adds to `set` the word that changes whenever an operation of this process has ended. */
void completions_await(struct wait_set *set);
