/* tutti: collective communication between the ranks of a parallel program.
 *
 * A *communicator* is one rank's handle of a group. tutti_comm_init_rank makes one from an id that the program passes
 * around. tutti_comm_init uses a key-value store, as torch.distributed has, and tutti_comm_split another communicator.
 * A process may hold any number of communicators, for several ranks or several groups.
 *
 * The functions and the order of their arguments follow NCCL. Where NCCL takes a stream, the last argument is a
 * *request*:
 *     NULL        The call returns when the operation is over. The calling thread does the work itself when it can.
 *     &request    The call only starts the operation. tutti_wait or tutti_test reports its end. A queue reports the
 *                 next end among several requests (tutti_queue_wait).
 * A request is the caller's memory. It starts as TUTTI_REQUEST_INIT and must stay in place until the operation is over.
 * Its first members are options. The collectives of one communicator run one after another in the order of the calls.
 * That order must be the same on all ranks. Sends and receives run beside them.
 *
 * Buffers are plain host memory; large ones are faster in memory of tutti_mem_alloc. Counts are in elements. In-place
 * calls have send == recv for all_reduce, reduce and broadcast. They have send == recv + rank * count for all_gather
 * and gather, and recv == send + rank * count for reduce_scatter and scatter. The forms that end in _v use this rank's
 * offset instead. Any other overlap is refused. After a successful call the caller owns the buffers again at once.
 *
 * Functions that can fail return a tutti_status. For any error, tutti_get_last_error() describes what happened, on
 * which rank, and what to do. Wrong arguments on one rank are *refused* before anything is sent, and the communicator
 * stays unchanged: tutti_last_error_is_refusal() and request.refused are then true. Every other error (a dead peer, a
 * timeout, ranks that disagree) fails the communicator. Later calls on it return that error until it is destroyed.
 *
 * Versions: tutti_config, tutti_request, tutti_prediction and tutti_norm start with their size in the program that was
 * compiled, which TUTTI_CONFIG_INIT and the like set. Later versions add members at the end. A
 * newer library reads and writes only the members that the program's struct has, and uses defaults for the others. An
 * older library refuses a larger struct with INVALID_ARGUMENT; the error text has both sizes.
 *
 * Threads: any thread may call any function at any time. Calls on one communicator are queued in the order of arrival.
 * A thread that may run beside another thread's tutti_comm_destroy must first call tutti_comm_retain. A forked child
 * must not use its parent's communicators, requests and queues; such calls return TUTTI_FORKED. It may make its own.
 * The library installs no signal handlers. */
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

/* Returns TUTTI_VERSION of the library that is loaded. */
TUTTI_API const char *tutti_get_version(void);
/* Returns the message of the table above. */
TUTTI_API const char *tutti_get_error_string(tutti_status status);
/* Describes this thread's last error. Never NULL. */
TUTTI_API const char *tutti_get_last_error(void);
/* True if the last error concerns that call alone: the call sent nothing, and the communicator is unchanged. False if
   the communicator has failed or was not made. The status is independent of this: lack of memory may fail a group or
   refuse a call. Errors of tutti_wait, tutti_test and tutti_group_end count too, even if another thread found them. */
TUTTI_API bool tutti_last_error_is_refusal(void);

/* ---- element types and reduction operations ---- */
/* Each entry has the name, the bytes of an element, and the printed name. */
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

/* AVG divides the sum by the number of ranks, once, at the end (integers: towards zero). PREMUL_SUM multiplies each
   rank's elements by request.factor before the sum. It takes floating-point types, and the factor must be the same on
   all ranks. The bitwise operations take integers and bool. bool is logical: SUM, MAX and BOR are "or", PROD, MIN and
   BAND are "and", BXOR is "xor". Floats of 16 and 8 bits are summed in float32 and rounded once. Over several hosts
   they are rounded once on each host, and again whenever the sums of two hosts are added. */
#define TUTTI_OP_MAP(X) \
    X(SUM, "sum") X(PROD, "product") X(MIN, "min") X(MAX, "max") X(AVG, "average") X(BAND, "band") X(BOR, "bor") \
    X(BXOR, "bxor") X(PREMUL_SUM, "premul_sum")
typedef enum tutti_op {
#define X(name, printed) TUTTI_##name,
    TUTTI_OP_MAP(X)
#undef X
        TUTTI_OP_COUNT
} tutti_op;
/* Returns the bytes of one element, or 0 for an unknown type. */
TUTTI_API size_t tutti_dtype_bytes(tutti_dtype dtype);
/* Return the printed name of the tables above, or "unknown type" and "unknown operation". */
TUTTI_API const char *tutti_dtype_name(tutti_dtype dtype);
TUTTI_API const char *tutti_op_name(tutti_op op);

/* ---- requests ---- */
typedef struct tutti_comm tutti_comm;
typedef struct tutti_request tutti_request;
typedef struct tutti_queue tutti_queue;
/* A request has room for an operation, of this size in all versions. The library allocates what exceeds it. */
enum { TUTTI_REQUEST_ROOM_BYTES = 1024 };
/* The caller starts with TUTTI_REQUEST_INIT, then sets options. */
struct tutti_request {
    size_t struct_size;                                 /* bytes */
    /* A name of tutti_algorithm_name or a list as in tutti_config. NULL selects the communicator's choice. The value
       must be the same on all ranks, see tutti_comm_set_algorithm. */
    const char *algorithm;
    /* 0 selects the communicator's timeout. */
    int64_t timeout_ms;
    /* TUTTI_PREMUL_SUM multiplies by this factor. */
    double factor;
    /* The thread that finishes the operation calls `done` once, unless the call that starts it returns an error. `done`
       must not block, and of this library it may call only tutti_test. The request must stay in place until then. */
    void (*done)(tutti_request *request, void *context);
    void *context;
    /* True: the call returns when the operation is over, although it has a request. */
    bool blocking;
    /* True: a small operation, and so `done`, may be delayed until the program waits for it, tests it or detaches it,
       at most 20 ms. Then no other thread need work on it. */
    bool on_demand;
    /* The library sets this if it refuses the call, see tutti_last_error_is_refusal. */
    bool refused;
    /* The library writes the sender of a received message here. */
    int source;
    /* The library numbers the collectives of a communicator from 1, and writes the number here. Those on streams are
       numbered apart, and a large one may take several numbers. */
    uint64_t sequence;
    uint64_t reserved[TUTTI_REQUEST_ROOM_BYTES / sizeof(uint64_t)];
    /* The request enters this queue, see tutti_queue_wait. NULL uses none. A queue excludes `blocking` and `done`. */
    tutti_queue *queue;
    /* A number that must be equal on all ranks (else MISMATCH). It detects ranks that make similar calls in another
       order. 0: none. PREMUL_SUM, norms, messages and operations of windows have no label. */
    uint64_t label;
    /* True: the call enqueues the operation on `stream`, see tutti_comm_open_cuda. All ranks must give the same. It
       excludes `blocking`, and `on_demand` has no effect. Algorithms with messages do not run on streams. If the
       request or the communicator names one, another algorithm runs, the same on all ranks. */
    bool on_stream;
    /* A cudaStream_t or CUstream. NULL: the legacy default stream. */
    void *stream;
};
/* If the highest byte of a label is that of TUTTI_LABEL_ORDER, each further 4 bits are 1 + a dimension of the tensor,
   in the order in which the dimensions lie in memory. */
#define TUTTI_LABEL_ORDER (UINT64_C(0xd5) << 56)
/* All other members are zero. In C, { .struct_size = sizeof(tutti_request), .blocking = true } is equivalent. */
#define TUTTI_REQUEST_INIT \
    { sizeof(tutti_request), NULL, 0, 0, NULL, NULL, false, false, false, 0, 0, { 0 }, NULL, 0, false, NULL }
/* Returns TUTTI_IN_PROGRESS or the operation's result. Progresses a small operation, without waiting. */
TUTTI_API tutti_status tutti_test(tutti_request *request);
/* Undoes on_demand: the operation proceeds although no thread waits for it or tests it. Its former name still works. */
TUTTI_API tutti_status tutti_detach(tutti_request *request);
static inline tutti_status tutti_hasten(tutti_request *request) { return tutti_detach(request); }
/* Waits for the end and returns the result. A wait longer than timeout_ms > 0 fails the communicator (TIMEOUT). */
TUTTI_API tutti_status tutti_wait(tutti_request *request, int64_t timeout_ms);

/* ---- waiting for any of several requests ---- */
/* Creates an empty queue. A call whose request names a queue adds the request to it, unless the call returns an error.
   Each request is taken once. Until then it must stay in place and cannot be used again. Several threads may wait at
   the same time. */
TUTTI_API tutti_status tutti_queue_create(tutti_queue **out);
/* Destroys the queue; NULL is allowed. INVALID_ARGUMENT while it has requests or a thread waits for it. */
TUTTI_API tutti_status tutti_queue_destroy(tutti_queue *queue);
/* Takes the request that ended first into *out; tutti_test returns its result. Waits up to timeout_ms. 0 does not wait.
   A negative value waits without limit; the operations' own timeouts apply. Returns IN_PROGRESS and *out NULL if no
   request ends in time, OK and *out NULL if the queue is empty. Waiting detaches all requests (tutti_detach). */
TUTTI_API tutti_status tutti_queue_wait(tutti_queue *queue, int64_t timeout_ms, tutti_request **out);

/* ---- communicators ---- */
/* An id is plain bytes that the program passes on whole. In this version the first 16 name the group, and the others
   must be 0. An id that was damaged, cut short, or made by a later version is refused. */
enum { TUTTI_UNIQUE_ID_BYTES = 128 };
typedef struct tutti_unique_id { unsigned char bytes[TUTTI_UNIQUE_ID_BYTES]; } tutti_unique_id;
/* Ranks find each other through this key-value store, as in torch.distributed. A store and a name may be used again
   after a group has ended, failed or died, also for another number of ranks; stale entries are ignored. */
typedef struct tutti_store {
    void *context;
    /* Stores the value, of at most 4 MiB. May block. */
    tutti_status (*put)(void *context, const char *key, const void *value, size_t bytes);
    /* Waits up to timeout_ms for the key (0: does not wait), then returns TUTTI_TIMEOUT. Returns TUTTI_NO_MEMORY if the
       value is larger than capacity. */
    tutti_status (*get)(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
        int64_t timeout_ms);
} tutti_store;
/* The caller starts with TUTTI_CONFIG_INIT, then sets options. */
typedef struct tutti_config {
    size_t struct_size;                                 /* bytes */
    int rank, size;
    /* The library uses the store only while it makes the communicator. */
    tutti_store store;
    /* The name appears in messages, as "group 0". It must be the same on all ranks. NULL means "the group". */
    const char *name; /* copied */
    /* The list has the form "allreduce=ring,broadcast=chain". */
    const char *algorithm; /* copied */
    /* The timeout limits joining and each operation. 0 selects TUTTI_TIMEOUT_MS. */
    int64_t timeout_ms;
    /* These give this rank and the number of ranks in the job that contains the group. TUTTI_HOSTS may simulate the
       job's hosts. With job_size 0 the group is the job. */
    int job_rank, job_size;
    /* The name or address of the store's host. Ranks may then be on several hosts. They use the network interface that
       leads there, or TUTTI_SOCKET_IFNAME. If both are unset, all ranks are on one host. */
    const char *store_host;
    /* Removes a key from the store, so that a joined group leaves little there; gets the store's context. The function
       may be NULL or fail: remaining keys are harmless. */
    tutti_status (*store_remove)(void *context, const char *key);
    /* [size]: the job rank of each rank, read while the communicator is made. All ranks must give the same list, or all
       that have joined get MISMATCH with both lists. In one job (job_size > 0, after the processes have made a
       communicator of all) a store's name stands for one list. NULL compares nothing. */
    const int *members;
    /* Lets the caller end tutti_comm_init early; NULL: it cannot. The thread that joins calls it again and again while
       it waits, with the store's context. After true, tutti_comm_init returns ABORTED, and the other ranks get an error
       that names this rank when all have come. The function must not wait for other ranks. */
    bool (*is_cancelled)(void *context);
    /* The program can replace the members of the group, as torch's reconfigure does. The error about a dead rank then
       recommends that. */
    bool is_reconfigurable;
} tutti_config;
#define TUTTI_CONFIG_INIT \
    { sizeof(tutti_config), 0, 0, { NULL, NULL, NULL }, NULL, NULL, 0, 0, 0, NULL, NULL, NULL, NULL, false }
/* Makes an id. One rank calls this, and all ranks pass the id to tutti_comm_init_rank. */
TUTTI_API tutti_status tutti_get_unique_id(tutti_unique_id *out);
/* Makes the communicator of this rank in a group of `size` ranks on one host. All ranks call it with the same id. */
TUTTI_API tutti_status tutti_comm_init_rank(tutti_comm **out, int size, tutti_unique_id id, int rank);
/* Makes the communicator of config->rank. All config->size ranks call it, and find each other through the store. */
TUTTI_API tutti_status tutti_comm_init(tutti_comm **out, const tutti_config *config);
/* Makes new communicators. Collective over `comm`. Ranks with one color >= 0 form a group, sorted by key, then rank. A
   negative color gets *out NULL. */
TUTTI_API tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, tutti_comm **out);
/* Leaves the group and releases its resources; NULL is allowed. Never waits for a peer. Operations that still run 10 ms
   later end with ABORTED; those on CUDA streams have 2 s, or 10 s if all ranks have called them. Later calls of other
   threads do so too; those threads must hold the communicator, see tutti_comm_retain. Call this once for each
   communicator. */
TUTTI_API tutti_status tutti_comm_destroy(tutti_comm *comm);
/* The creator holds one reference until tutti_comm_destroy. Each retain adds one, and each release drops one; release
   allows NULL. While a thread holds a reference its calls are safe, and end with ABORTED after a destroy. The last
   release destroys a communicator that has not been destroyed. Only threads that may run beside a destroy need this. */
TUTTI_API tutti_status tutti_comm_retain(tutti_comm *comm);
TUTTI_API tutti_status tutti_comm_release(tutti_comm *comm);
/* Fails the communicator here and on all ranks. The caller destroys it afterwards. */
TUTTI_API tutti_status tutti_comm_abort(tutti_comm *comm);
/* Sets a check of the calling thread, or none (NULL). While the thread waits in a blocking call, or in tutti_wait for
   an operation that is not on a CUDA stream, it calls `is_interrupted` about ten times a second, first after a tenth
   of a second. If it returns true, for example because a signal has come, the thread fails the communicator on all
   ranks, unless the operation has ended meanwhile, and the call returns an error, usually TUTTI_ABORTED. The function
   may take locks, but must not call tutti. To end joining, use tutti_config.is_cancelled. */
TUTTI_API void tutti_set_interrupt_check(bool (*is_interrupted)(void));
/* Returns OK or the error that failed the communicator; tutti_get_last_error has the text. */
TUTTI_API tutti_status tutti_comm_get_async_error(tutti_comm *comm);
/* Returns the number of ranks, or 0 for NULL. */
TUTTI_API int tutti_comm_count(const tutti_comm *comm);
/* Returns this rank, or -1 for NULL. */
TUTTI_API int tutti_comm_user_rank(const tutti_comm *comm);
/* Returns a rank's host, numbered from 0, and its index among the ranks of that host. Either pointer may be NULL. */
TUTTI_API tutti_status tutti_comm_place(tutti_comm *comm, int rank, int *host, int *index);
/* Sets the timeout of operations that start from now on. */
TUTTI_API tutti_status tutti_comm_set_timeout(tutti_comm *comm, int64_t timeout_ms);
/* Sets the priority of operations that start from now on: 0 (the default) to TUTTI_PRIORITIES - 1. While collectives
   with a higher priority progress, this process keeps one part (at most 2 MiB) of each other collective in flight.
   Queued data is sent by priority. A collective that waits for another rank delays no other, and small ones are exempt.
   Only the duration of calls depends on it, so ranks may use different values. */
enum { TUTTI_PRIORITIES = 8 };
TUTTI_API tutti_status tutti_comm_set_priority(tutti_comm *comm, int priority);
/* Sets the name by which messages of this rank call the group, as tutti_config.name; copied, cut after 31 bytes. No
   operation of the communicator may run. Communicators that are split from it later have the name, too. */
TUTTI_API tutti_status tutti_comm_set_name(tutti_comm *comm, const char *name);
/* Sets the algorithm of a collective (tutti_collective_name, tutti_algorithm_name) from the next operation on. NULL
   restores the default. All ranks must set the same, and ideally before the first operation: later the ranks may be
   trying another algorithm (TUTTI_TUNER), and a difference is a mismatch. */
TUTTI_API tutti_status tutti_comm_set_algorithm(tutti_comm *comm, const char *collective, const char *algorithm);

/* ---- collectives (count: elements of one rank's part, as in NCCL; p: ranks) ---- */
/* Each rank sends count elements and receives count elements. */
TUTTI_API tutti_status tutti_all_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request);
/* RMS normalises a row x to x / sqrt(mean of x² + epsilon) * weight + bias. LAYER first subtracts the mean of x.
   Arithmetic is in float32 and rounded once; kernels/norm.h gives the order of sums. */
typedef enum tutti_norm_kind { TUTTI_NORM_RMS, TUTTI_NORM_LAYER } tutti_norm_kind;
/* The caller starts with TUTTI_NORM_INIT, then sets options. */
typedef struct tutti_norm {
    size_t struct_size;                                 /* bytes */
    tutti_norm_kind kind;
    double epsilon;
    /* Each has [columns] elements of the rows' type. NULL means 1 for weight and 0 for bias. */
    const void *weight, *bias;
    /* The call adds these rows to the sum before the norm, and writes the result back to them. NULL adds nothing. */
    void *residual;
    /* True: each rank keeps the residual of its own rows only (tutti_norm_rows). residual points to the first. */
    bool own_rows;
} tutti_norm;
#define TUTTI_NORM_INIT { sizeof(tutti_norm), TUTTI_NORM_RMS, 1e-6, NULL, NULL, NULL, false }
/* Sums rows * columns elements over the ranks, adds a residual and normalises each row, in one pass. This is the end of
   a row-parallel layer of a transformer. recv is the same on all ranks, and bit-identical to tutti_all_reduce (SUM),
   the rounded addition and the norm in sequence. Types: float32, bfloat16, float16; at most 2^24 - 1 columns. All
   arguments but pointers must be the same on all ranks. With own_rows each rank normalises only its own rows; this
   needs all ranks on one host (else UNSUPPORTED). weight, bias and residual must stay until the end, and residual must
   not overlap other buffers. After an error of the group the content of residual is undefined. */
TUTTI_API tutti_status tutti_all_reduce_norm(const void *send, void *recv, size_t rows, size_t columns,
    tutti_dtype dtype, const tutti_norm *norm, tutti_comm *comm, tutti_request *request);
/* Returns the first row of a rank and how many rows it has. All ranks have equally many, except that the last ones may
   have fewer or none. */
TUTTI_API tutti_status tutti_norm_rows(size_t rows, int size, int rank, size_t *first, size_t *count);
/* recv is used only on root. */
TUTTI_API tutti_status tutti_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    int root, tutti_comm *comm, tutti_request *request);
/* send is used only on root. */
TUTTI_API tutti_status tutti_broadcast(const void *send, void *recv, size_t count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request);
/* Each rank sends count elements and receives p * count. */
TUTTI_API tutti_status tutti_all_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype,
    tutti_comm *comm, tutti_request *request);
/* Each rank sends p * count elements and receives count. */
TUTTI_API tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype,
    tutti_op op, tutti_comm *comm, tutti_request *request);
/* Uneven forms: the part of rank q has counts[q] elements at offsets[q] of the buffer with all parts. Both arrays have
   p entries, in elements, and are read before the call returns. Counts must be equal on all ranks, or all ranks get
   TUTTI_MISMATCH, which names two ranks that differ. Offsets may differ. Received parts must not overlap, or the call
   is refused. In place: send == recv + offsets[rank], or recv == send + offsets[rank]. */
/* Each rank sends counts[rank] elements and receives all parts. */
TUTTI_API tutti_status tutti_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *offsets,
    tutti_dtype dtype, tutti_comm *comm, tutti_request *request);
/* Each rank sends all parts and receives counts[rank] elements. */
TUTTI_API tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts, const size_t *offsets, void *recv,
    tutti_dtype dtype, tutti_op op, tutti_comm *comm, tutti_request *request);
/* Each rank sends and receives p * count elements. In-place calls are refused. */
TUTTI_API tutti_status tutti_all_to_all(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request);
/* Uneven form: send_counts[q] elements at send + send_offsets[q] go to rank q. All four arrays are this rank's own,
   have p entries, in elements, and are read before the call returns. If the counts of a sender and a receiver differ,
   all ranks get TUTTI_MISMATCH. */
TUTTI_API tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_offsets,
    void *recv, const size_t *recv_counts, const size_t *recv_offsets, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request);
/* recv has p * count elements and is used only on root. */
TUTTI_API tutti_status tutti_gather(const void *send, void *recv, size_t send_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request);
/* send has p * count elements and is used only on root. */
TUTTI_API tutti_status tutti_scatter(const void *send, void *recv, size_t recv_count, tutti_dtype dtype, int root,
    tutti_comm *comm, tutti_request *request);
/* The operation is over when all ranks have called it. */
TUTTI_API tutti_status tutti_barrier(tutti_comm *comm, tutti_request *request);
/* Returns when all ranks have called it, and reports absent ranks: rank 0 gets missing[r] true if rank r, of p ranks,
   did not arrive. If a rank is missing after timeout_ms (at least 1), rank 0 gets TIMEOUT and aborts the communicator.
   The other ranks see the abort, or wait twice as long; they may pass NULL. The call uses the two highest tags. */
TUTTI_API tutti_status tutti_monitored_barrier(tutti_comm *comm, int64_t timeout_ms, bool *missing);

/* ---- point to point ---- */
enum { TUTTI_ANY_SOURCE = -1 };
/* Send `count` elements to rank `peer`, and receive them from rank `peer` or, with TUTTI_ANY_SOURCE, from any rank.
   Messages from one rank with one tag arrive in the order in which they were sent. Both ends must give the same count
   and type, or both get TUTTI_MISMATCH. A rank may send to itself with requests. It must start both ends before it
   waits for either; a wait without the other end is refused and withdraws the message. */
TUTTI_API tutti_status tutti_send(const void *send, size_t count, tutti_dtype dtype, int peer, uint32_t tag,
    tutti_comm *comm, tutti_request *request);
TUTTI_API tutti_status tutti_recv(void *recv, size_t count, tutti_dtype dtype, int peer, uint32_t tag, tutti_comm *comm,
    tutti_request *request);
/* Between start and end, this thread's calls without a request only start. tutti_group_end returns when all are over.
   Groups may be nested. */
TUTTI_API tutti_status tutti_group_start(void);
TUTTI_API tutti_status tutti_group_end(void);

/* ---- memory ---- */
/* Allocates memory that the ranks of this host can access directly, so large collectives on it skip a copy. Any rank
   may use such memory in any call; results are bit-identical. The memory is aligned to 64 bytes, or to a page from 64
   KiB on. It is not cleared, belongs to the process, and needs no communicator. The error text of NO_MEMORY has the
   size. A forked child has a private view of its parent's memory, which shows the parent's current content where the
   child has not written. In the child's calls it is ordinary memory, and freeing it does nothing. */
TUTTI_API tutti_status tutti_mem_alloc(void **out, size_t bytes);
/* Frees the memory; NULL is allowed. No operation may be using it. INVALID_ARGUMENT if tutti_mem_alloc or
   tutti_mem_alloc_common did not return it, or it was freed before. */
TUTTI_API tutti_status tutti_mem_free(void *memory);
/* Allocates cleared pages that the ranks of a host share. Collective over `comm`; all ranks must give the same size, or
   all get MISMATCH. Each host has its own pages. Of n ranks on a host, the rank with index i (tutti_comm_place) first
   touches part i of n equal parts, so that the part lies near it. The memory starts at a page and may outlive `comm`.
   Each rank frees it by tutti_mem_free, in any order; the pages end when all ranks have done so or have died. If one
   rank fails, no rank gets the memory and the communicator stays unchanged. That rank's error has the cause; the errors
   of the others name the rank. A forked child does not have the memory. Collectives treat it like memory of malloc: the
   ranks themselves must order their writes. */
TUTTI_API tutti_status tutti_mem_alloc_common(void **out, size_t bytes, tutti_comm *comm);

/* ---- CUDA streams ---- */
/* Prepares operations on streams of the CUDA device with this number (as cuDeviceGet counts). Collective over `comm`;
   each rank names its own device, and ranks of several processes may name the same one. Later calls may set
   request.on_stream. Such a call enqueues the operation on request.stream and returns; buffers are memory of the
   device. The operation runs after the work that the stream has, and before work that it gets later. No kernel waits
   for other ranks. The buffers must stay until the stream has run the operation. tutti_test, tutti_wait, `done` and a
   queue report when that has happened. After an error that is no refusal, synchronize the stream before you use or free
   the buffers. A call may wait while the device has too much work, and one with uneven counts until other ranks have
   made it, if it is long or far ahead of them. Only collectives without norms run on streams, reductions take at most
   16 ranks, and uneven counts at most 100; others are refused with UNSUPPORTED. The operations on streams of a
   communicator run in the order of their calls, on any streams, and beside those of the host. If the group fails, all
   its streams go on within 100 ms, and the results are undefined. A communicator is opened once. If one rank cannot
   open its device, all ranks get an error with that rank and its cause, and the communicator stays unchanged.
   UNSUPPORTED: there is no usable driver or device, the device lacks stream memory operations, the group has several
   hosts, or two ranks of one process name the same device. */
TUTTI_API tutti_status tutti_comm_open_cuda(tutti_comm *comm, int device);

/* ---- introspection ---- */
/* Return the name of collective 0, 1, … ("allreduce", …), and of its algorithm 0, 1, …, then NULL. */
TUTTI_API const char *tutti_collective_name(int index);
TUTTI_API const char *tutti_algorithm_name(const char *collective, int index);
/* Writes the schedule of every rank, as terminated text, to buffer. *bytes gets the full length; if it exceeds
   capacity, the caller repeats the call with more room. */
TUTTI_API tutti_status tutti_schedule_print(const char *collective, const char *algorithm, int ranks, int root,
    char *buffer, size_t capacity, size_t *bytes);
/* Writes versions, instruction set, transports (or why one is unavailable), limits and settings as JSON, as above. */
TUTTI_API tutti_status tutti_info(char *buffer, size_t capacity, size_t *bytes);
/* Return the name and the count of statistic 0, 1, …, then NULL and 0. They show how all threads of this process have
   waited: "yields" of a core, "sleeps", and "asleep_ns", their total time. Among sleeps, "timed_out" had no wake-up,
   and "late" missed a wake-up that was due. "naps" are sleeps that no thread would end, and "wakes" are calls that end
   sleeps of others. Waits of a few microseconds and idle progress threads are not counted. */
TUTTI_API const char *tutti_waiting_name(int index);
TUTTI_API uint64_t tutti_waiting_count(int index);
/* For programs that can tell where they are, such as by the stacks of their interpreter. Waits until `tutti status`, or
   a rank that has reached its timeout, has asked this process for its state, and sets *connection to a Unix socket of
   whole messages. The program sends one message, of at most 65535 bytes, and closes it: a line with its place, which
   error texts show, and further lines with more. One thread calls this in a loop. Only processes of the same user
   ask. */
TUTTI_API tutti_status tutti_await_status_caller(int *connection);
/* Writes as JSON, as above, the data by which a group chooses algorithms: its ranks on each host, the cores of a host,
   and the parameters of the machine and of messages between hosts. All ranks get the same, except for `rank`. */
TUTTI_API tutti_status tutti_comm_info(tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes);
/* The caller starts with TUTTI_PREDICTION_INIT. All other members are outputs. */
typedef struct tutti_prediction {
    size_t struct_size;                                 /* bytes */
    /* The algorithm that would run. The string stays valid. */
    const char *algorithm;
    /* The predicted time, or 0 if it is unknown: for a barrier, for one rank alone, and for algorithms that use only
       messages between ranks of one host. */
    double ns;
    /* Each round processes this many bytes. A value above the buffer's size means one round. */
    size_t tile_bytes;
    /* This many tiles are in flight. */
    int slots;
    /* True if automatic choice considers the algorithm. */
    bool candidate;
} tutti_prediction;
#define TUTTI_PREDICTION_INIT { sizeof(tutti_prediction), NULL, 0, 0, 0, false }
/* Predicts the algorithm and the time of a collective with even counts, on tensors outside tutti_mem_alloc. It runs
   nothing, and any rank may call it alone; all ranks get the same. bytes: the size of a rank's larger buffer
   (allreduce: count elements; allgather: p * count). The result is the cost model's choice; operations on one host may
   try others (TUTTI_TUNER). collective, algorithm: as in tutti_comm_set_algorithm; algorithm NULL predicts the
   communicator's choice. Waits while another thread is in a blocking call of the group. INVALID_ARGUMENT, with the
   nearest name, for an unknown name, and for an algorithm that the group's hosts exclude. */
TUTTI_API tutti_status tutti_comm_predict(tutti_comm *comm, const char *collective, const char *algorithm, size_t bytes,
    tutti_prediction *out);
#if defined(__cplusplus)
}
#endif
