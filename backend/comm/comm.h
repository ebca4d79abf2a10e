/* A communicator: one rank's membership of a group. Its parts: membership (comm.c makes and unmakes it), the queue
 * of operations and who drives it (engine.c), sends and receives (messages.c), and why it failed (failure.c).
 *
 * Whoever holds `driver` may touch what is marked so; everything else is constant after creation, or atomic. */
#pragma once
#include "backend/join/bootstrap.h"
#include "backend/engine/choice.h"
#include "backend/collectives/collectives.h"
#include "backend/execute/execute.h"
#include "backend/base/status.h"

enum { POINT_TO_POINT = FAMILY_COUNT };
enum { OPERATION_PENDING, OPERATION_OVER, OPERATION_DETAIL_BYTES = 512 };
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
    reduce_function *reduce;                            /* of families that reduce */
    int root;
    double factor;
    const struct algorithm *algorithm;                  /* of this call, or NULL */
    unsigned generation;                                /* of the process that started it */
    _Atomic int64_t timeout_ms;
    _Atomic int64_t deadline_ms;                        /* 0: not computed yet */
    int64_t looked_ms;                                  /* when a driver last looked whether it is late */
    bool forgiven;                                      /* the time between the last two looks does not count */
    _Atomic bool hastened;                              /* it must not rest any more */
    struct uneven *uneven;                              /* owned */
    uint64_t sequence;
    uint32_t tag;                                       /* from here on of POINT_TO_POINT only */
    struct piece piece;
    struct transfer transfer;
    char detail[OPERATION_DETAIL_BYTES];  /* why it failed, kept here because it outlives the communicator */
};
struct recent {                                         /* the last choice of a family: most calls repeat it */
    uint64_t bytes;                                     /* 0 with uneven counts */
    int root;
    bool stage_inputs, uneven;
    const struct algorithm *asked;
    const struct algorithm *algorithm;                  /* if all tensors are private */
    size_t tile_bytes;
    int slots;
    bool late;                                          /* the plan is chosen after the roll call */
    struct program *program;                            /* late: for this placement; NULL: none yet */
    uint64_t *shared, *in_place;                        /* masks of all ranks, in the communicator's `masks` */
    bool obeys;                                         /* late: a rank has asked for this algorithm */
};
/* What makes two calls of the same kind: only their buffers and their sequence differ. */
struct call {
    int family, root;
    tutti_dtype dtype;
    tutti_op op;
    size_t part_bytes;
    double factor;
    const struct algorithm *asked;
    bool uneven;
};
struct view;
struct held_view { uint64_t block; struct view *view; bool mapped; };  /* not mapped: on its way, or NULL */
enum { HELD_RECEIVING = OUTPUT + 1, HELD_SENDING, HELD_COUNT };        /* messages: of a peer one each at a time */
struct member_watch { struct peer_watch watch; tutti_comm *comm; int rank; };

struct tutti_comm {
    int rank, size;
    char name[32];
    unsigned generation;                                /* of the process: changes with fork */
    int64_t timeout_ms;
    struct member *members;                             /* [size] */
    struct peer **peers;                                /* [size]; NULL: this process */
    struct member_watch *watches;                       /* [size] */
    bool watching, acquired;                            /* watches are set; peers_acquire was called */
    struct mapping *mapping;                            /* the segment, shared by the ranks of this process */
    struct transport *transport;
    struct held_view (*held)[HELD_COUNT];               /* [size][INPUT, OUTPUT and so on]: of the driver */
    struct layout *layout;
    uint64_t *masks;                                    /* of placements: this operation's two, then two per family */
    struct ladder ladder;                               /* of a thread that drives */
    int64_t tile_setting, slots_setting;                /* 0: by price */

    _Atomic uint32_t driver;                            /* 1: somebody drives */
    _Atomic(struct operation *) intake;                 /* submitted, newest first */
    _Atomic(const struct algorithm *) chosen[FAMILY_COUNT];  /* by the user, for this communicator */
    _Atomic uint32_t inside;                            /* threads that wait for an operation, or submit one */
    _Atomic uint32_t knock, knock_waiters;              /* wakes a driver that sleeps */
    _Atomic uint32_t lost;                              /* 1 + a rank whose process is gone */
    _Atomic uint32_t stop;                              /* a status (negated) to end with: aborted, destroyed */
    _Atomic uint64_t scheduled;                         /* > 0: in the progress thread's hands; counts the askings */
    _Atomic bool resting;                               /* what is open can be left alone; see README.md */

    /* of the progress thread */
    tutti_comm *next_scheduled;
    uint64_t heard, noticed;                            /* the askings it has answered last, and found another at */
    bool was_open;                                      /* when it had been there */
    int64_t lingers_until_ms;                           /* it stays in its hands until then although nothing is open */

    /* of the driver */
    struct executor executor;
    struct operation *head, *tail;                      /* collectives, oldest first */
    unsigned visits;                                    /* of whoever drives: every so often it looks for failures */
    bool running;                                       /* head has begun */
    const struct operation *driven;                     /* the driver's own: nobody else waits for it */
    struct operation *messages;                         /* open sends and receives */
    unsigned vain;                                      /* looks of callers that only test, since something moved */
    int idle_polls;                                     /* for messages, since something came */
    bool reaching;                                      /* one of them waits for memory of a peer to be mapped */
    struct cache *cache;
    struct chooser chooser;
    struct program *programs;
    struct recent recent[FAMILY_COUNT];
    struct call last;                                   /* what the executor's launch is for */
    int repeats;                                        /* descriptors that say so: 0 (last does not count) to 2 */
    uint64_t sequence;
    int64_t let_go_ms;                                  /* after a failure: how long to wait for peers; 0: not yet */
    bool let_go_told;                                   /* and who did not let go by then */

    _Atomic uint32_t failed;                            /* status and detail are valid */
    tutti_status status;
    char detail[STATUS_DETAIL_BYTES];
};

/* ---- comm.c ---- */
enum { SPLIT_NONE = -1 };
tutti_status comm_create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out);
tutti_status comm_split(tutti_comm *parent, int color, int key, tutti_comm **out);
void comm_destroy(tutti_comm *comm);
void comm_abort(tutti_comm *comm);
tutti_status comm_poll_failure(tutti_comm *comm);       /* looks for a reason to fail even when nothing runs */
unsigned process_generation(void);
const struct segment *comm_segment(const tutti_comm *comm);
void comm_pause(const tutti_comm *comm, int n);         /* the n-th fruitless look at something nobody wakes us for */

/* ---- join.c ---- */
tutti_status comm_join(tutti_comm *comm, int64_t deadline_ms);         /* members are known; afterwards it can run */

/* ---- figures.c ---- */
void figures_introduce(const tutti_comm *comm);         /* before this rank says that it has joined */
tutti_status figures_agree(tutti_comm *comm, int64_t deadline_ms);     /* when all have */

/* ---- names.c ---- */
/* "allreduce=ring,broadcast=chain": checks every name and stores the choices. */
tutti_status algorithms_parse(const char *text, _Atomic(const struct algorithm *) chosen[FAMILY_COUNT]);
tutti_status algorithms_of_settings(_Atomic(const struct algorithm *) chosen[FAMILY_COUNT]);
tutti_status algorithm_by_name(const char *family, const char *name, const struct algorithm **out);
/* `text`: a name, or a list as above, in which those of other families are only checked; *out NULL: none is chosen */
tutti_status algorithm_for(enum family family, const char *text, const struct algorithm **out);

/* ---- engine.c ---- */
/* Starts the operation; with `blocking` drives it to its end. Takes over op->uneven. */
tutti_status operation_run(struct operation *op, bool blocking);
tutti_status operation_wait(struct operation *op, int64_t timeout_ms);
tutti_status operation_test(struct operation *op);      /* IN_PROGRESS, or how it ended */
void operation_hasten(struct operation *op);            /* the progress thread sees to it, if nobody else does */
tutti_status operation_result(const struct operation *op);             /* of one that is over */
/* The operation is over: tells whoever waits. Driver only; the operation must not be touched afterwards. */
void operation_complete(struct operation *op, tutti_status status);
/* The same, for one that ends alone: this thread's last error tells why, and the communicator is as it was. */
void operation_refuse(struct operation *op, tutti_status status);
/* Looks for a reason not to go on; driver only. true: there is one and all have failed, or they got on. */
bool operations_check(tutti_comm *comm);
void operations_go_on(tutti_comm *comm);                /* as far as they get within a second; driver only */
/* Ends all with the reason to stop; driver only. false: not all yet, as a peer may still be at its tensors. */
bool operations_abandon(tutti_comm *comm);
bool driver_try(tutti_comm *comm);
void driver_acquire(tutti_comm *comm);                  /* waits for whoever drives */
void driver_release(tutti_comm *comm);                  /* hands what is left to the progress thread */
tutti_status engine_acquire(void);                      /* starts the progress thread when first used */
void engine_release(void);
void comm_knock(tutti_comm *comm);                      /* something for whoever drives to look at */
void comm_awake(tutti_comm *comm);                      /* somebody polls: no peer needs to ring; driver only */
void engine_await_leaving(tutti_comm *comm);            /* when its operations have ended: until no thread is in them */
void engine_forget(tutti_comm *comm);                   /* returns when the progress thread has let go of it */

/* ---- launch.c: from an operation to a program that can run ---- */
tutti_status launch_prepare(tutti_comm *comm, struct operation *op);      /* fills the executor's launch */
/* The rest, for an operation that waits for the roll call with it. IN_PROGRESS: not all ranks, or not all of their
   memory, are here. */
tutti_status launch_decide(tutti_comm *comm, const struct operation *op);

/* ---- messages.c ---- */
tutti_status messages_connect(tutti_comm *comm);        /* makes the transport, when the segment is mapped */
void message_post(tutti_comm *comm, struct operation *op);
bool messages_progress(tutti_comm *comm, struct wait_set *blocked);  /* true: something moved */
/* Of a rank to itself, and its other end is not there: who waits for it waits for himself. Driver only, after
   progress. */
bool message_is_alone(const tutti_comm *comm, const struct operation *op);
bool message_take_back(tutti_comm *comm, struct operation *op);        /* and refuses it; false: not yet */
/* Ends them; those that peers may be copying stay until they are not: call again while there are messages. */
void messages_fail(tutti_comm *comm, tutti_status status);

/* ---- failure.c ---- */
/* Fails the communicator, here and on the other ranks: the first to come decides. Returns the status it failed with.
   Driver only. */
tutti_status comm_fail(tutti_comm *comm, tutti_status status, const char *format, ...) __attribute__((format(printf, 3,
    4)));
tutti_status comm_failure(tutti_comm *comm);            /* OK, or the status; then this thread's last error is set */
/* Looks, while waiting, whether there is a reason not to go on waiting: OK or the failure. Driver only. */
tutti_status comm_check(tutti_comm *comm);
/* Whether it may find one. What all ranks have done by now is there to be seen after this. Driver only. */
bool comm_is_in_doubt(const tutti_comm *comm);
tutti_status comm_mismatch(tutti_comm *comm);           /* fails with both sides' descriptions */
bool comm_has_left(const tutti_comm *comm, int rank);   /* has destroyed its communicator */
