/* An operation: one call, from its arguments to its result; and what callers do with it. */
#pragma once
#include "backend/engine/queue.h"
#include "backend/execute/execute.h"

enum { POINT_TO_POINT = FAMILY_COUNT };
enum { OPERATION_PENDING, OPERATION_OVER, OPERATION_DETAIL_BYTES = 512 };
struct limit {                                          /* on an operation's time */
    _Atomic int64_t timeout_ms;
    _Atomic int64_t deadline_ms;                        /* 0: not computed yet */
    int64_t looked_ms;                                  /* when a driver last looked whether it is late */
    int64_t alone_ms; /* since when its peer, of another host, is known to have left */
    bool was_stopped;                                   /* the time between the last two looks does not count */
};
struct message { uint32_t tag; struct piece piece; struct transfer transfer; };
struct sum { reduce_function *reduce; struct rows rows; };     /* how it is made, and what becomes of its rows */
struct operation {                                      /* lives in tutti_request.reserved, or on the caller's stack */
    struct operation *next;
    tutti_comm *comm;
    tutti_request *request;                             /* NULL: a blocking call */
    _Atomic uint32_t state;
    tutti_status status;
    int family;                                         /* enum family, or POINT_TO_POINT */
    const void *input;
    void *output;
    uint64_t count;                                     /* elements of one rank's part */
    size_t part_bytes;
    tutti_dtype dtype;
    tutti_op op;
    struct sum sum;                                     /* of families that reduce */
    int root;
    uint64_t bits;                                      /* of the factor of PREMUL_SUM; of all others, the label */
    const struct algorithm *algorithm;                  /* of this call, or NULL */
    unsigned generation;                                /* of the process that started it */
    struct limit limit;
    _Atomic bool hastened;                              /* it must not rest any more */
    bool refused;                                       /* it failed alone: the communicator is as it was */
    struct uneven *uneven;                              /* owned */
    uint64_t sequence;
    struct queued queued;
    struct message message;                             /* of POINT_TO_POINT only */
    char detail[OPERATION_DETAIL_BYTES];  /* why it failed, kept here because it outlives the communicator */
};
/* A blocking call without options; field by field, because zeroing the whole costs as much as all else.
   What is left: part_bytes, its buffers, and op and sum of families that reduce. */
void operation_init(struct operation *out, tutti_comm *comm, int family, uint64_t count, tutti_dtype dtype, int root);
/* Starts the operation; with `blocking` drives it to its end. Takes over op->uneven. */
tutti_status operation_run(struct operation *op, bool blocking);
/* A blocking call that has begun, and how that went; by the driver, who is it no longer afterwards. */
tutti_status operation_go_on(struct operation *op, tutti_status status);
tutti_status operation_wait(struct operation *op, int64_t timeout_ms);
tutti_status operation_test(struct operation *op);      /* IN_PROGRESS, or how it ended */
void operation_hasten(struct operation *op);            /* the progress thread sees to it, if nobody else does */
/* When the communicator has failed: returns when no thread is in one of its operations, and keeps the role of the
   driver, so that none ever is again: what is started from now on ends at once, with that failure. */
void operations_close(tutti_comm *comm);

void operations_after_fork(void);                       /* in the child: no thread is in one */

/* ---- completion.c ---- */
static inline bool operation_is_over(const struct operation *op)
{
    return atomic_load_explicit(&op->state, memory_order_acquire) == OPERATION_OVER;
}
tutti_status operation_result(const struct operation *op);             /* of one that is over */
/* The operation is over: tells whoever waits. Driver only; the operation must not be touched afterwards. */
void operation_complete(struct operation *op, tutti_status status);
/* The same for one that a closed communicator does not take; of any thread. */
void operation_turn_away(struct operation *op);
/* The same, for one that ends alone: this thread's last error tells why, and the communicator is as it was. */
void operation_refuse(struct operation *op, tutti_status status);
void completions_await(struct wait_set *set);           /* adds the word that changes when an operation has ended */
