/* tutti: collective communication between the ranks of a parallel program.
 *
 * A *communicator* is one rank's membership of a group. Make one with tutti_comm_init_rank (an id passed around by
 * you), with tutti_comm_init (a key-value store, as torch.distributed has), or from another with tutti_comm_split. A
 * process may hold as many communicators as it likes, for several ranks or several groups.
 *
 * The verbs and the order of their arguments are NCCL's. Where NCCL takes a stream, the last argument is a *request*:
 *     NULL        the call returns when the operation is over (the calling thread does the work itself when it can);
 *     &request    the call only starts the operation; tutti_wait or tutti_test tell when it is over, or a queue, which
 *                 tells of any of several (tutti_queue_wait).
 * A request is the caller's memory, begins as TUTTI_REQUEST_INIT, and must stay where it is until the operation is
 * over. Its first members are options. Collectives of one communicator run one after the other, in the order of the
 * calls, which must be the same on all ranks; sends and receives run beside them.
 *
 * Buffers are plain host memory; large ones are faster in memory of tutti_mem_alloc. Counts are in elements. In place
 * means: all_reduce, reduce, broadcast with send == recv; all_gather, gather with send == recv + rank * count;
 * reduce_scatter, scatter with recv == send + rank * count, or the offset of this rank in the forms that end in _v.
 * Other overlap is refused. After a successful call the
 * buffers belong to the caller again at once.
 *
 * Every function returns a tutti_status. On anything but TUTTI_OK and TUTTI_IN_PROGRESS, tutti_get_last_error() tells
 * this thread what happened, on which rank, and what to do. Arguments that are wrong on one rank are *refused* before
 * anything is sent and leave the communicator as it was; tutti_last_error_is_refusal() and request.refused tell.
 * Everything else (a peer that died, a timeout, ranks that disagree) fails the communicator: every later call on it
 * returns the same error, and tutti_comm_destroy is all that is left to do.
 *
 * Growth: tutti_config, tutti_request and tutti_prediction say first how large they are in the program that was
 * compiled, which TUTTI_CONFIG_INIT, TUTTI_REQUEST_INIT and TUTTI_PREDICTION_INIT fill in. Later versions add members at the end. A library that is newer than
 * the program reads and writes no further than the program's structs go, and what it does not find has its default; one
 * that is older refuses structs that are larger than it knows (INVALID_ARGUMENT says both sizes).
 *
 * Threads: any thread may call any function at any time; calls on one communicator are queued in the order in which
 * they arrive. Threads that may meet a tutti_comm_destroy of another hold the communicator (tutti_comm_retain). fork: a
 * child must not use its parent's communicators, requests and queues (it gets TUTTI_FORKED); it may make its own. No
 * signal handlers are installed. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif
#define TUTTI_API __attribute__((visibility("default")))
#define TUTTI_VERSION "0.1.0"

/* ---- status: code, value, message ---- */
#define TUTTI_STATUS_MAP(X) \
    X(OK, 0, "success") \
    X(IN_PROGRESS, 1, "the operation is not over yet") \
    X(INVALID_ARGUMENT, -1, "an argument is wrong") \
    X(UNSUPPORTED, -2, "not supported") \
    X(NO_MEMORY, -3, "out of memory") \
    X(SYSTEM, -4, "the operating system refused") \
    X(TIMEOUT, -5, "timed out") \
    X(MISMATCH, -6, "ranks disagree about the operation") \
    X(PEER_LOST, -7, "a rank of the group is gone or cannot be reached") \
    X(ABORTED, -8, "the communicator was aborted") \
    X(FORKED, -9, "a communicator does not survive fork") \
    X(INTERNAL, -10, "internal error of tutti")
typedef enum tutti_status {
#define X(name, value, message) TUTTI_##name = value,
    TUTTI_STATUS_MAP(X)
#undef X
} tutti_status;

TUTTI_API const char *tutti_get_version(void);
TUTTI_API const char *tutti_get_error_string(tutti_status status);  /* the message of the table above */
TUTTI_API const char *tutti_get_last_error(void);       /* what went wrong last on this thread; never NULL */
/* Whether it concerned that call alone: nothing was sent, and the communicator, if there is one, is as it was. False: the
   communicator has failed, or was not made. The status tells what kind of error it is, which is another question: a
   group may fail for lack of memory on one of its ranks, and a call be refused for it. Also of an error that tutti_wait,
   tutti_test or tutti_group_end gave, which may have been found by another thread. */
TUTTI_API bool tutti_last_error_is_refusal(void);

/* ---- element types and reduction operations ---- */
/* name, bytes, printed */
#define TUTTI_DTYPE_MAP(X) \
    X(INT8, 1, "int8") X(UINT8, 1, "uint8") X(INT16, 2, "int16") X(UINT16, 2, "uint16") X(INT32, 4, "int32") \
    X(UINT32, 4, "uint32") X(INT64, 8, "int64") X(UINT64, 8, "uint64") X(FLOAT16, 2, "float16") \
    X(BFLOAT16, 2, "bfloat16") X(FLOAT32, 4, "float32") X(FLOAT64, 8, "float64") X(BOOL, 1, "bool") \
    X(FLOAT8_E4M3, 1, "float8_e4m3fn") X(FLOAT8_E5M2, 1, "float8_e5m2")
typedef enum tutti_dtype {
#define X(name, bytes, printed) TUTTI_##name,
    TUTTI_DTYPE_MAP(X)
#undef X
        TUTTI_DTYPE_COUNT
} tutti_dtype;

/* AVG divides the sum by the number of ranks, once, at the end (integers: towards zero). PREMUL_SUM multiplies what
   each rank brings by request.factor, which must be the same on all ranks, before it is summed (floating-point types).
   The bitwise operations take integers and bool. bool is logical: SUM, MAX and BOR are "or", PROD, MIN and BAND are
   "and", BXOR is "xor". Floats of 16 and 8 bits are summed in float32 and rounded once; over several hosts once on each
   host, and whenever the sums of two hosts meet. */
#define TUTTI_OP_MAP(X) \
    X(SUM, "sum") X(PROD, "product") X(MIN, "min") X(MAX, "max") X(AVG, "average") X(BAND, "band") X(BOR, "bor") \
    X(BXOR, "bxor") X(PREMUL_SUM, "premul_sum")
typedef enum tutti_op {
#define X(name, printed) TUTTI_##name,
    TUTTI_OP_MAP(X)
#undef X
        TUTTI_OP_COUNT
} tutti_op;
TUTTI_API size_t tutti_dtype_bytes(tutti_dtype dtype);                   /* 0 for an unknown type */
TUTTI_API const char *tutti_dtype_name(tutti_dtype dtype);
TUTTI_API const char *tutti_op_name(tutti_op op);

/* ---- requests ---- */
typedef struct tutti_comm tutti_comm;
typedef struct tutti_request tutti_request;
typedef struct tutti_queue tutti_queue;
/* Room for an operation. As many bytes in all versions: what does not fit is the library's to find a place for. */
enum { TUTTI_REQUEST_ROOM_BYTES = 1024 };
struct tutti_request {                                  /* begin with TUTTI_REQUEST_INIT; then set what you need */
    size_t struct_size;                                 /* sizeof(tutti_request) */
    const char *algorithm;                              /* a name, see tutti_algorithm_name, or a list as in
                                                           tutti_config; NULL: the communicator's choice. All ranks
                                                           ask alike: see tutti_comm_set_algorithm */
    int64_t timeout_ms;                                 /* 0: the communicator's */
    double factor;                                      /* of TUTTI_PREMUL_SUM */
    /* called once when the operation is over, on the thread that finished it; not when the call that should start it
       returns an error. Must not block nor call back, except tutti_test; the request must stay until then. */
    void (*done)(tutti_request *request, void *context);
    void *context;
    bool blocking;                                      /* return when over although a request is given */
    bool on_demand;                                     /* `done` may come when somebody asks (wait, test, hasten), or
                                                           20 ms later: a small call is then not handed to a thread */
    bool refused;                                       /* out: see tutti_last_error_is_refusal */
    int source;                                         /* out: a receive's sender */
    uint64_t sequence;                                  /* out: 1, 2, … for the collectives of a communicator */
    uint64_t reserved[TUTTI_REQUEST_ROOM_BYTES / sizeof(uint64_t)];
    tutti_queue *queue;                                 /* where it goes when it is over, see tutti_queue_wait, or NULL;
                                                           neither with `blocking` nor with `done` */
    uint64_t label;                                     /* of a collective, but PREMUL_SUM: a number that must be the
                                                           same on all ranks, where the order of alike calls matters */
};
/* The rest is zero. In C, { .struct_size = sizeof(tutti_request), .blocking = true } does as well. */
#define TUTTI_REQUEST_INIT { sizeof(tutti_request), NULL, 0, 0, NULL, NULL, false, false, false, 0, 0, { 0 }, NULL, 0 }
/* TUTTI_IN_PROGRESS, or how it ended. Of a small operation it does what can be done without waiting. */
TUTTI_API tutti_status tutti_test(tutti_request *request);
/* Somebody needs the operation to end, and nobody will wait for it or test it: undoes on_demand. */
TUTTI_API tutti_status tutti_hasten(tutti_request *request);
/* Until it is over. timeout_ms > 0: when it is not over in time, the communicator fails with TUTTI_TIMEOUT. */
TUTTI_API tutti_status tutti_wait(tutti_request *request, int64_t timeout_ms);

/* ---- waiting for any of several requests ---- */
/* A call whose request names a queue puts it there, unless it returns an error. Each request is taken from its queue once;
   until then it must stay where it is, and cannot be used again. Any thread may wait, several at a time. */
TUTTI_API tutti_status tutti_queue_create(tutti_queue **out);
/* NULL is fine. INVALID_ARGUMENT while a request is in it, or a thread waits for it. */
TUTTI_API tutti_status tutti_queue_destroy(tutti_queue *queue);
/* Takes the request that ended first; tutti_test tells how it ended. Waits for up to timeout_ms until there is one
   (0: not at all; negative: as long as it takes, which the operations' own timeouts limit): IN_PROGRESS and *out NULL if
   there is none by then. OK and *out NULL: no request is in the queue, so there is nothing to wait for. Whoever waits
   sees to it that the requests in the queue go on, as tutti_hasten does. */
TUTTI_API tutti_status tutti_queue_wait(tutti_queue *queue, int64_t timeout_ms, tutti_request **out);

/* ---- communicators ---- */
/* Plain bytes, to be passed on whole. In this version the first 16 name the group and the rest is 0, which is checked:
   an id that was damaged or only partly passed on, or that a later version has made, is refused. */
enum { TUTTI_UNIQUE_ID_BYTES = 128 };
typedef struct tutti_unique_id { unsigned char bytes[TUTTI_UNIQUE_ID_BYTES]; } tutti_unique_id;
/* Where ranks leave word for each other, as torch.distributed has one. The same store and name may serve again after a
   group has ended, failed or died, and for another number of ranks: what is left of it there is not believed. */
typedef struct tutti_store {                            /* both may block; both return a status */
    void *context;
    tutti_status (*put)(void *context, const char *key, const void *value, size_t bytes);
    /* waits up to timeout_ms for the key (0: does not wait); TUTTI_TIMEOUT when it does not come; value larger than
       capacity: TUTTI_NO_MEMORY */
    tutti_status (*get)(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
        int64_t timeout_ms);
} tutti_store;
typedef struct tutti_config {                           /* begin with TUTTI_CONFIG_INIT; then set what you need */
    size_t struct_size;                                 /* sizeof(tutti_config) */
    int rank, size;                                     /* which rank this is, of how many */
    tutti_store store;                                  /* used only while the communicator is made */
    const char *name; /* for messages, as "group 0"; the same on all ranks; copied; NULL:
                                                           "the group" */
    const char *algorithm;                              /* for example "allreduce=ring,broadcast=chain"; copied */
    int64_t timeout_ms;                                 /* of an operation and of joining; 0: TUTTI_TIMEOUT_MS */
    int job_rank, job_size; /* in the job that the group is a part of, whose hosts TUTTI_HOSTS
                                                           may pretend; job_size 0: the group is the job */
    const char *store_host;                             /* name or address of the host that holds the store: ranks can
                                                           be on several hosts, and meet on the network interface that
                                                           leads there, unless TUTTI_SOCKET_IFNAME says another. NULL:
                                                           all ranks are on one host, unless that is set */
    /* takes a key out of the store, whose context it gets, so that a group whose ranks have all joined leaves little
       there; NULL, or where it fails: keys stay, and do no harm */
    tutti_status (*store_remove)(void *context, const char *key);
    const int *members;                                 /* [size]: what rank of the job each rank is; read while the
                                                           communicator is made. All ranks must say the same, or all that
                                                           have come get MISMATCH, which shows both lists; and within
                                                           one job (job_size > 0; the processes have made a communicator
                                                           of all before) a store's name stands for one list. NULL:
                                                           nothing is compared */
} tutti_config;
#define TUTTI_CONFIG_INIT { sizeof(tutti_config), 0, 0, { NULL, NULL, NULL }, NULL, NULL, 0, 0, 0, NULL, NULL, NULL }
TUTTI_API tutti_status tutti_get_unique_id(tutti_unique_id *out);  /* one rank makes it, all pass it to init_rank */
TUTTI_API tutti_status tutti_comm_init_rank(tutti_comm **out, int size, tutti_unique_id id, int rank);
TUTTI_API tutti_status tutti_comm_init(tutti_comm **out, const tutti_config *config);
/* Collective over `comm`: ranks with the same color >= 0 form a group, ordered by key, then by rank; color -1: *out is
   NULL. */
TUTTI_API tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, tutti_comm **out);
/* Leaves the group and gives back what it took; NULL is fine. Never waits for a peer; what still runs 10 ms later ends with
   ABORTED, as do calls that other threads make afterwards; those must hold it, see below. Once for each communicator. */
TUTTI_API tutti_status tutti_comm_destroy(tutti_comm *comm);
/* Who makes a communicator holds it until he destroys it. Each retain holds it once more, until a release: for as long,
   any call on it is safe, and once it is destroyed ends with ABORTED. The last release of one that nobody has destroyed
   does that, too. Without threads that may meet a destroy there is no need for either. */
TUTTI_API tutti_status tutti_comm_retain(tutti_comm *comm);
TUTTI_API tutti_status tutti_comm_release(tutti_comm *comm);           /* NULL is fine */
TUTTI_API tutti_status tutti_comm_abort(tutti_comm *comm);  /* fails it here and on all ranks; destroy it afterwards */
/* OK, or why it failed (text: tutti_get_last_error) */
TUTTI_API tutti_status tutti_comm_get_async_error(tutti_comm *comm);
TUTTI_API int tutti_comm_count(const tutti_comm *comm);
TUTTI_API int tutti_comm_user_rank(const tutti_comm *comm);
/* Where a rank is: its host, by a number from 0, and its index among the ranks of that host, in their order. Either may
   be NULL. */
TUTTI_API tutti_status tutti_comm_place(tutti_comm *comm, int rank, int *host, int *index);
/* of operations started from now on */
TUTTI_API tutti_status tutti_comm_set_timeout(tutti_comm *comm, int64_t timeout_ms);
/* 0 (the usual one) to TUTTI_PRIORITIES - 1. While collectives of a communicator with a higher priority get on, those of
   others that this process has under way have one part of theirs (2 MiB at most) on its way at a time, and what waits
   to leave leaves by priority. Nobody waits for one that waits for another rank, and small ones take no part. Only how
   long calls take depends on it: ranks may say different things. Of operations started from now on. */
enum { TUTTI_PRIORITIES = 8 };
TUTTI_API tutti_status tutti_comm_set_priority(tutti_comm *comm, int priority);
/* Collective verb names as in the algorithm tables; algorithm NULL: back to the default. Takes effect with the next
   operation. All ranks should ask alike, or else before the first operation: later the others may be trying something
   else (TUTTI_TRIALS), and that is a disagreement. */
TUTTI_API tutti_status tutti_comm_set_algorithm(tutti_comm *comm, const char *collective, const char *algorithm);

/* ---- collectives (count: elements of one rank's part, as in NCCL; p: ranks) ---- */
/* count elements in, count elements out on every rank */
TUTTI_API tutti_status tutti_all_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request);
/* How rows are normalised: x / sqrt(mean of x² + epsilon) * weight + bias (RMSNorm), or the same of x - mean of x
   (LayerNorm). Arithmetic is in float32 and rounded once; kernels/norm.h has the order of sums. */
typedef enum tutti_norm_kind { TUTTI_NORM_RMS, TUTTI_NORM_LAYER } tutti_norm_kind;
typedef struct tutti_norm {                             /* begin with TUTTI_NORM_INIT; then set what you need */
    size_t struct_size;                                 /* sizeof(tutti_norm) */
    tutti_norm_kind kind;
    double epsilon;
    const void *weight, *bias;                          /* [columns], of the rows' type; NULL: 1, 0 */
    void *residual;                                     /* rows that are added to the sum before it is normalised, and
                                                           become what has been; NULL: none */
    bool own_rows;                                      /* each rank keeps the residual of those rows alone that
                                                           tutti_norm_rows says; residual points to the first of them */
} tutti_norm;
#define TUTTI_NORM_INIT { sizeof(tutti_norm), TUTTI_NORM_RMS, 1e-6, NULL, NULL, NULL, false }
/* What follows the row-parallel layers of a transformer, in one pass: rows * columns elements are summed over the ranks,
   a residual is added, each row is normalised; recv is the same on all ranks. Bitwise what tutti_all_reduce (SUM),
   the rounded addition of the residual, and the norm give one after the other. float32, bfloat16, float16. Ranks must
   say the same but for pointers. With own_rows a rank normalises its rows alone, so each row is worked on once: for
   ranks of one host (else UNSUPPORTED). At most 2^24 - 1 columns. weight, bias and residual must stay until the end, and
   residual overlap nothing. After an error of the group residual is undefined. */
TUTTI_API tutti_status tutti_all_reduce_norm(const void *send, void *recv, size_t rows, size_t columns,
    tutti_dtype dtype, const tutti_norm *norm, tutti_comm *comm, tutti_request *request);
/* The rows of a rank: as many as of the other ranks, but for the last that have any. */
TUTTI_API tutti_status tutti_norm_rows(size_t rows, int size, int rank, size_t *first, size_t *count);
/* recv only matters on root */
TUTTI_API tutti_status tutti_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    int root, tutti_comm *comm, tutti_request *request);
/* send only matters on root */
TUTTI_API tutti_status tutti_broadcast(const void *send, void *recv, size_t count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request);
/* send count elements, receive p * count */
TUTTI_API tutti_status tutti_all_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype,
    tutti_comm *comm, tutti_request *request);
/* send p * count elements, receive count */
TUTTI_API tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype,
    tutti_op op, tutti_comm *comm, tutti_request *request);
/* Uneven: rank q's part has counts[q] elements and begins at offsets[q] of the buffer that has all parts. Both arrays have
   p entries, in elements, and are read before the call returns. Counts must be equal on all ranks, or all get
   TUTTI_MISMATCH, which names two ranks that differ; offsets are each rank's own affair. Parts that are received must
   not overlap each other: refused. In place: send == recv + offsets[rank], or recv == send + offsets[rank]. */
/* send counts[rank] elements, receive all parts */
TUTTI_API tutti_status tutti_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *offsets,
    tutti_dtype dtype, tutti_comm *comm, tutti_request *request);
/* send all parts, receive counts[rank] elements */
TUTTI_API tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts, const size_t *offsets, void *recv,
    tutti_dtype dtype, tutti_op op, tutti_comm *comm, tutti_request *request);
/* p * count elements each way; not in place */
TUTTI_API tutti_status tutti_all_to_all(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request);
/* Uneven: here the counts are each rank's own, too: send_counts[q] elements at send + send_offsets[q] go to rank q; all four arrays have p entries, in elements,
   and are read before the call returns. Ranks whose counts do not add up all get TUTTI_MISMATCH. */
TUTTI_API tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_offsets,
    void *recv, const size_t *recv_counts, const size_t *recv_offsets, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request);
/* recv (p * count elements) only matters on root */
TUTTI_API tutti_status tutti_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request);
/* send (p * count elements) only matters on root */
TUTTI_API tutti_status tutti_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request);
TUTTI_API tutti_status tutti_barrier(tutti_comm *comm, tutti_request *request);
/* Returns when all ranks have called it, as tutti_barrier, but tells who has not: on rank 0 missing[r], of p ranks, says
   whether nothing came from rank r. Not all in timeout_ms (at least 1): TIMEOUT on rank 0, which aborts the communicator;
   the others hear of that, or wait twice as long. Takes messages with the two highest tags. missing may be NULL elsewhere. */
TUTTI_API tutti_status tutti_monitored_barrier(tutti_comm *comm, int64_t timeout_ms, bool *missing);

/* ---- point to point ---- */
enum { TUTTI_ANY_SOURCE = -1 };
/* Messages from one rank with one tag arrive in the order in which they were sent. The counts of both ends must be
   equal: TUTTI_MISMATCH on both. A rank may send to itself, with requests, and starts both ends before it waits for one:
   a wait for one whose other end is not there is refused, and takes the message back. */
TUTTI_API tutti_status tutti_send(const void *send, size_t count, tutti_dtype dtype, int peer, uint32_t tag,
    tutti_comm *comm, tutti_request *request);
TUTTI_API tutti_status tutti_recv(void *recv, size_t count, tutti_dtype dtype, int peer, uint32_t tag, tutti_comm *comm,
    tutti_request *request);
/* Between start and end, calls of this thread without a request only start; end returns when all are over. May be
   nested. */
TUTTI_API tutti_status tutti_group_start(void);
TUTTI_API tutti_status tutti_group_end(void);

/* ---- memory ---- */
/* Memory that the ranks of this host can reach directly: large collectives on it leave out a copy. Any rank may use it
   or not, in any call, and results are the same to the bit. It starts at a multiple of 64 (of 64 KiB and more: of a
   page), is not cleared, belongs to the process, and needs no communicator. NO_MEMORY names the bytes that could not be
   had. fork: a child has a private view of its parent's memory, which shows what the parent has there at the moment
   unless the child has written to it; for the child's calls it is like any other memory, and to free it does nothing. */
TUTTI_API tutti_status tutti_mem_alloc(void **out, size_t bytes);
/* NULL is fine. Not while an operation on it runs. INVALID_ARGUMENT: not from here, or freed before. */
TUTTI_API tutti_status tutti_mem_free(void *memory);
/* Memory that the ranks of a host have in common: the same pages for all of them, cleared. Collective over `comm`, with
   as many bytes on all its ranks (else all get MISMATCH); ranks of other hosts have pages of their own. Of n ranks on a
   host, the one of index i (tutti_comm_place) makes the i-th n-th real, so that it lies near it. It starts at a page,
   lives longer than `comm` if need be, and is given back by tutti_mem_free on each rank, in any order; the pages go when
   all have done so, or have died. A rank that could not get it says why, to itself; the others are told which it was;
   nobody has it then, and the communicator is as it was. A child after fork does not have it. To collectives it is like
   memory of malloc: who writes into it when is the ranks' own affair. */
TUTTI_API tutti_status tutti_mem_alloc_common(void **out, size_t bytes, tutti_comm *comm);

/* ---- grids: which ranks work together in tensor, pipeline, data, … parallelism. Pure data: nobody is asked ---- */
enum { TUTTI_GRID_AXES = 8, TUTTI_GRID_NAME = 8 };
typedef struct tutti_grid {                             /* owns nothing; its axes in the order of the string */
    int ranks, axes;
    int size[TUTTI_GRID_AXES];
    char name[TUTTI_GRID_AXES][TUTTI_GRID_NAME];
} tutti_grid;
/* order: names of up to 7 letters and digits, as in "tp-cp-ep-dp-pp"; the first varies fastest: rank = the sum of each
   index times the product of the sizes before it (as Megatron-Core's RankGenerator). sizes: as in "tp=2,dp=4"; who has
   none has 1, and who is not in the order must have 1. INVALID_ARGUMENT, in words, also where the sizes do not multiply
   to `ranks`. */
TUTTI_API tutti_status tutti_grid_make(tutti_grid *out, const char *order, const char *sizes, int ranks);
/* Experts have a grid of their own over the same ranks, in the same order: tp ranks share an expert, ep have different
   ones, pp stays, dp is the rest, all others are 1. INVALID_ARGUMENT where its pipeline groups would not be those of the
   dense grid. */
TUTTI_API tutti_status tutti_grid_experts(tutti_grid *out, const tutti_grid *dense, int tp, int ep);
/* Of a rank, its index on each axis: out[axes]. */
TUTTI_API tutti_status tutti_grid_index(const tutti_grid *grid, int rank, int *out);
/* Ranks that differ in the named axes alone are a group; names as in "dp" or "tp-dp", in any order. How many groups
   there are, of how many ranks. */
TUTTI_API tutti_status tutti_grid_groups(const tutti_grid *grid, const char *names, int *groups, int *size);
/* The ranks of one, ascending: out[size]. Groups are numbered by the other indices, in the order of the string. */
TUTTI_API tutti_status tutti_grid_group(const tutti_grid *grid, const char *names, int group, int *out);
/* The group that a rank is in, and its place there. */
TUTTI_API tutti_status tutti_grid_find(const tutti_grid *grid, const char *names, int rank, int *group, int *place);
/* host: [ranks]. The first group with ranks on several hosts, or -1, and the most hosts that one is on. */
TUTTI_API tutti_status tutti_grid_straddles(const tutti_grid *grid, const char *names, const int *host, int *group,
    int *most);

/* ---- pipelines: which rank works on which stage and microbatch, in which order. Pure data, too ---- */
typedef enum tutti_work {                               /* BACKWARD: of inputs and weights together */
    TUTTI_FORWARD,
    TUTTI_BACKWARD,
    TUTTI_BACKWARD_INPUT,
    TUTTI_BACKWARD_WEIGHT,
    TUTTI_WORKS
} tutti_work;
typedef struct tutti_action { tutti_work work; int stage, microbatch; } tutti_action;
typedef struct tutti_pipeline tutti_pipeline;
/* The names of schedules: index 0, 1, … until NULL. */
TUTTI_API const char *tutti_pipeline_name(int index);
/* schedule: "naive" (one microbatch at a time), "gpipe" (all forwards, then all backwards; Huang et al. 2019), "1f1b"
   (Narayanan et al. 2019), "interleaved" (several stages a rank, round and round; Narayanan et al. 2021), "zb-h1", "zb-v"
   (gradients of weights fill the gaps; zb-v: two stages a rank, up and down again; Qi et al. 2023), "dualpipe-v" (the same
   stages, forwards and backwards in pairs; DeepSeek-AI 2025; at least twice as many microbatches as ranks). chunks: stages of a
   rank. INVALID_ARGUMENT for what a schedule cannot have. */
TUTTI_API tutti_status tutti_pipeline_make(tutti_pipeline **out, const char *schedule, int ranks, int chunks,
    int microbatches);
TUTTI_API tutti_status tutti_pipeline_destroy(tutti_pipeline *pipeline);       /* NULL is fine */
TUTTI_API int tutti_pipeline_rank(const tutti_pipeline *pipeline, int stage);  /* that has it; -1: none */
/* What a rank does, in this order; they live as long as the pipeline. NULL: no such rank. */
TUTTI_API const tutti_action *tutti_pipeline_actions(const tutti_pipeline *pipeline, int rank, int *count);
/* That all is done once, that lists taken in order come to their ends, and that between two ranks activations, and
   gradients, are used in the order in which they are sent. INVALID_ARGUMENT says what is not. */
TUTTI_API tutti_status tutti_pipeline_check(const tutti_pipeline *pipeline);
/* Time, in any unit: of each stage forward, and backward for its inputs and its weights; of a message between ranks. */
typedef struct tutti_pipeline_cost { const double *forward, *input, *weight; double message; } tutti_pipeline_cost;
/* What it would take. ends: of each action, rank after rank, or NULL. busy: [ranks] time at work. held: [ranks] the most
   activations (of a microbatch in a stage) that a rank has at a time. The bubble of a rank is 1 - busy / makespan. */
TUTTI_API tutti_status tutti_pipeline_time(const tutti_pipeline *pipeline, const tutti_pipeline_cost *cost,
    double *ends, double *makespan, double *busy, int *held);

/* ---- experts: which rows of a mixture of experts go where, and what is done with them. Nothing is sent: rows are reached
   by their addresses, those of other ranks in memory that is common (tutti_mem_alloc_common) ---- */
/* Of each token its choices, numbers of experts, expert[tokens][choices]; -1: none. place: the same shape, the how many-th
   of this rank's rows for that expert it is, in the order of tokens; -1: none, or there is no more room: of each expert
   the first `capacity` rows are taken. counts: [experts], those taken. INVALID_ARGUMENT names a token whose expert there
   is not. */
TUTTI_API tutti_status tutti_experts_place(const int64_t *expert, size_t tokens, int choices, int experts,
    uint64_t capacity, int64_t *place, uint64_t *counts);
/* counts: [ranks][experts], of all ranks. Experts are dealt out to ranks in order, as many to each; a rank has the rows of
   its experts in one array, expert by expert, and of each from rank to rank. first: [ranks][experts], the row there at
   which those of a rank for an expert begin; rows: [ranks], of each rank's array. padded: 0, rows follow one another; or
   so many for each rank and expert, whether taken or not. */
TUTTI_API tutti_status tutti_experts_offsets(const uint64_t *counts, int ranks, int experts, uint64_t padded,
    uint64_t *first, uint64_t *rows);
typedef struct tutti_experts_rows {                     /* begin with TUTTI_EXPERTS_ROWS_INIT */
    size_t struct_size;                                 /* sizeof(tutti_experts_rows) */
    size_t tokens, columns;
    int choices;                                        /* 1 to 64 */
    tutti_dtype dtype;                                  /* float32, bfloat16, float16 */
    const int64_t *expert, *place;                      /* [tokens][choices], of tutti_experts_place */
    void *const *first;                                 /* [experts]: where this rank's rows for it begin */
} tutti_experts_rows;
#define TUTTI_EXPERTS_ROWS_INIT { sizeof(tutti_experts_rows), 0, 0, 1, TUTTI_FLOAT32, NULL, NULL, NULL }
/* from: [tokens][columns], each to the rows of its choices, times weight[tokens][choices]; NULL: as it is. */
TUTTI_API tutti_status tutti_experts_scatter(const tutti_experts_rows *rows, const void *from, const float *weight);
/* to: [tokens][columns], the sum of each token's rows times their weights, in the order of its choices, in float32,
   rounded once; NULL: the sum. */
TUTTI_API tutti_status tutti_experts_gather(const tutti_experts_rows *rows, void *to, const float *weight);
/* out: [tokens][choices], each row times with[tokens][columns]; 0 for those that were not taken. */
TUTTI_API tutti_status tutti_experts_dot(const tutti_experts_rows *rows, const void *with, float *out);

/* ---- introspection ---- */
/* The names of the algorithms of a collective ("allreduce", …): index 0, 1, … until NULL. tutti_collective_name the
   same. */
TUTTI_API const char *tutti_collective_name(int index);
TUTTI_API const char *tutti_algorithm_name(const char *collective, int index);
/* The schedule of every rank, as text, into buffer (always terminated). *bytes: its whole length; call again with more
   if larger. */
TUTTI_API tutti_status tutti_schedule_print(const char *collective, const char *algorithm, int ranks, int root,
    char *buffer, size_t capacity, size_t *bytes);
/* Versions, instruction set, transports or why not, limits, settings, as JSON; same convention. */
TUTTI_API tutti_status tutti_info(char *buffer, size_t capacity, size_t *bytes);
/* How this process has waited so far, over all its threads: the name and the count of index 0, 1, … until NULL and 0.
   "yields" of a core; "sleeps", and "asleep_ns", the time they took; of these "timed_out", which nobody ended, and "late",
   which somebody should have; "naps", which nobody would end; "wakes", calls to end sleeps of others. Waits that end
   within some microseconds are in none of them, nor is a progress thread that has nothing to do. */
TUTTI_API const char *tutti_waiting_name(int index);
TUTTI_API uint64_t tutti_waiting_count(int index);
/* What a group goes by when it chooses algorithms, as JSON: its ranks on each host, the cores of a host, and every
   figure of the machine and of messages between hosts; alike on all ranks but for `rank`. Same convention. */
TUTTI_API tutti_status tutti_comm_info(tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes);
typedef struct tutti_prediction {                       /* begin with TUTTI_PREDICTION_INIT; all else is out */
    size_t struct_size;                                 /* sizeof(tutti_prediction) */
    const char *algorithm;                              /* that would run; a name that stays */
    double ns;                                          /* its price, what it would take; 0: none is known, as of a
                                                           barrier, of one rank alone, or of algorithms of messages
                                                           alone between ranks of one host */
    size_t tile_bytes;                                  /* that are worked on at a time; more than there are: all */
    int slots;                                          /* tiles in flight */
    bool candidate;                                     /* one that is chosen from when nobody asks for one */
} tutti_prediction;
#define TUTTI_PREDICTION_INIT { sizeof(tutti_prediction), NULL, 0, 0, 0, false }
/* What a collective with even counts, on tensors that are not of tutti_mem_alloc, would run as and take; nothing runs,
   and other ranks need not ask, but would hear the same. bytes: of a rank's larger buffer (allreduce: count elements;
   allgather: p * count). It is what is priced; while operations run on one host, others are tried in its place
   (TUTTI_TRIALS). collective, algorithm: as in tutti_comm_set_algorithm; algorithm NULL: what the communicator
   would choose. Waits while another thread is in a blocking call of the group. INVALID_ARGUMENT, with the nearest name,
   for a name that does not exist, and for an algorithm that the group's hosts do not allow. */
TUTTI_API tutti_status tutti_comm_predict(tutti_comm *comm, const char *collective, const char *algorithm, size_t bytes,
    tutti_prediction *out);
#if defined(__cplusplus)
}
#endif
