/* What the fake's objects are. Three guards:
   - machine.lock: everything that is not said to be otherwise. The wire holds it while it works, in small portions.
   - a queue's `lock`: among the program's threads that post; a completion queue's `lock`: among those that poll. The
     wire takes neither. What passes between the program and it are counters of C11: a request is published to the
     wire, a completion to the program, and nothing flows back beside them. So the thread sanitizer sees the order that
     hardware promises and no other: who reuses memory before he has polled its completion is told that it is a race.
   - `lock` of events. It is taken last. */
#pragma once
#include "tests/verbs/fake.h"
#include <pthread.h>
#include <stdatomic.h>

struct device {
    struct ibv_device ibv;
    int index;
    bool up, broken;
    struct ibv_gid_entry gids[FAKE_GIDS];
};

/* A queue of events and a descriptor that is readable while there are any. For completions element.cq is the queue. */
struct events {
    int descriptor;
    pthread_mutex_t lock;
    struct ibv_async_event *items;
    size_t count, room;
};

struct context {
    struct ibv_context ibv;
    struct device *device;
    struct events async;
    struct context *next;
    int children;                                       /* domains, channels and completion queues */
};

struct domain { struct ibv_pd ibv; int children; };
struct channel { struct ibv_comp_channel ibv; struct events events; };

struct region {                                         /* addresses from `begin` lie at `memory` */
    struct ibv_mr ibv;
    uint64_t begin;
    unsigned char *memory;
    void *mapping;                                      /* of a descriptor; NULL: the program's own memory */
    size_t mapping_bytes;
    unsigned access;
};

struct handle { struct ibv_ah ibv; struct ibv_ah_attr attr; };

struct completion {
    struct ibv_wc wc;
    struct pair *pair; /* whose queue gets room when it is polled; NULL: destroyed since */
    bool of_send, solicited;
    uint64_t reclaims;                                  /* works of that queue that are over by then */
    uint64_t due;                                       /* on its way: when it arrives, in nanoseconds */
};

struct completion_queue {
    struct ibv_cq ibv;
    pthread_mutex_t lock;
    uint64_t capacity;
    struct completion *slots;
    atomic_ullong pushed, polled;
    atomic_int armed;                                   /* 1: for any, 2: for solicited ones and errors */
    bool overrun;
    int pairs;                                          /* ends of queue pairs that report here */
    uint32_t delivered, delivered_async;                /* events; under ibv.mutex */
};

/* A work request, as it was posted. */
struct work {
    uint64_t id, length;
    struct ibv_sge *sges;
    unsigned char *inlined;                             /* the bytes themselves, or NULL */
    int count;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    __be32 immediate;
    uint64_t remote_address;
    uint32_t rkey;
    struct ibv_ah_attr to;                              /* of a datagram */
    uint32_t remote_qpn, remote_qkey;
};

struct queue {
    pthread_mutex_t lock;
    uint32_t capacity, most_sges, most_inline;
    struct work *slots;
    struct ibv_sge *sges;
    unsigned char *inlined;
    atomic_ullong posted, reclaimed;                    /* the program's */
    uint64_t taken;                                     /* the wire's: works that are over */
    struct completion *staged;                          /* completions on their way, in order */
    uint64_t staged_in, staged_out;
};

struct pair {
    struct ibv_qp ibv;
    struct device *device;
    struct queue send, receive;
    atomic_int state;
    struct ibv_qp_attr attr;
    uint32_t max_inline;
    bool signals_all, unplugged, established;
    uint32_t send_psn, receive_psn;
    uint32_t delivered_async;                           /* under ibv.mutex */
    /* of the request under way */
    bool begun, executed;
    enum ibv_wc_status forced;
    uint64_t moved, not_before;
    uint32_t retries, not_ready;
};

/* Of many pairs; the wire takes from it, the program posts. */
struct shared_queue {
    struct ibv_srq ibv;
    struct queue queue;
    int pairs;
};

enum { PAIRS_MOST = 4096, REGIONS_MOST = 1 << 16 };

struct machine {
    pthread_mutex_t lock;
    atomic_int waiting;                                 /* program threads that want the lock */
    struct device devices[FAKE_DEVICES];
    struct context *contexts;
    struct pair *pairs[PAIRS_MOST];
    uint32_t pair_uses[PAIRS_MOST], pairs_end;
    struct region *regions[REGIONS_MOST];
    uint32_t region_uses[REGIONS_MOST], regions_end;
    uint64_t pinned;
    struct fake_limits limits;
    struct fake_faults faults;
    uint64_t random;
    struct {
        uint64_t after;
        enum ibv_wc_status status;
        bool executed;
    } next_request, next_receive;
    atomic_uint alive[FAKE_KINDS];
};
extern struct machine machine;

/* machine.c */
void machine_lock(void);
void machine_unlock(void);
void machine_count(enum fake_counter counter, uint64_t by);
bool machine_chance(uint32_t millionths);
uint64_t machine_random(uint64_t below);
int call_fails(enum fake_call call);                    /* 0, or the errno that a test has ordered */

/* trace.c: costs a look while nothing is traced */
void trace_request(enum fake_moment moment, const struct pair *p, const struct work *w, bool rings);
void trace_completion(const struct completion *c);

/* events.c */
int events_init(struct events *e);
void events_finish(struct events *e);
void events_push(struct events *e, struct ibv_async_event event);
int events_pop(struct events *e, struct ibv_async_event *out);
void events_remove(struct events *e, const void *element);             /* those about that object */
void pair_raise(struct pair *p, enum ibv_event_type type);
void wait_for_acknowledgements(pthread_mutex_t *mutex, pthread_cond_t *changed, const uint32_t *delivered,
    const uint32_t *completed, const char *what);

/* device.c */
const struct ibv_gid_entry *device_gid(const struct device *d, uint32_t index);
struct device *device_by_gid(const union ibv_gid *gid, uint32_t type);
void device_raise(struct device *d, enum ibv_event_type type);
void devices_reset(void);
bool path_is_valid(const struct device *d, const struct ibv_ah_attr *path);

/* memory.c: where bytes of a list lie. What is remote is a list of one, with the rkey in place of the lkey. */
bool local_is_allowed(const struct ibv_pd *pd, const struct work *w, bool written);
bool remote_is_allowed(const struct ibv_pd *pd, const struct ibv_sge *s, unsigned access);
struct place { const struct ibv_sge *sges; int count; unsigned char *bytes; };
void bytes_move(struct place to, uint64_t to_offset, struct place from, uint64_t from_offset, uint64_t bytes);

/* completion.c */
void completion_queue_push(struct completion_queue *q, const struct completion *c);
void completion_queue_forget(struct completion_queue *q, struct pair *p);      /* its completions */
int completion_queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *out);
int completion_queue_arm(struct ibv_cq *cq, int solicited_only);

/* pair.c */
struct pair *pair_find(uint32_t qp_num);
int queue_init(struct queue *q, uint32_t works, uint32_t sges, uint32_t inlined);
void queue_finish(struct queue *q);
void pair_clear(struct pair *p);                        /* as after RESET */
void pair_fail(struct pair *p);                         /* to ERR; what is posted will be flushed */

/* requests.c */
struct work *queue_slot(struct queue *q); /* for the next request, cleared; NULL: it is full */
void queue_publish(struct queue *q);
int receives_post(struct queue *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int pair_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* shared.c */
struct shared_queue *shared_of(struct ibv_srq *srq);
struct work *receive_head(struct pair *p); /* what a message would use, or NULL */
int shared_post_receive(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* wire.c */
int wire_start(void);
void wire_stop(void);
void wire_ring(void);                                   /* there may be something to do */
uint64_t wire_now(void);
struct work *queue_head(struct queue *q);               /* what the wire has to do next, or NULL */
/* The head of the queue is over: a completion with what is in `wc`, at once or late, unless `silent`. */
void work_complete(struct pair *p, struct queue *q, const struct ibv_wc *wc, bool silent, bool solicited);
void send_complete(struct pair *p, enum ibv_wc_status status);
void receive_complete(struct pair *p, struct ibv_wc wc, bool solicited);
bool receive_is_forced(enum ibv_wc_status *out);

/* reliable.c, datagram.c: a portion of the request at the head; returns the bytes moved, or 1 */
uint64_t reliable_step(struct pair *p, struct work *w, uint64_t now);
uint64_t datagram_step(struct pair *p, struct work *w, uint64_t now);
uint64_t datagrams_deliver(uint64_t now, uint64_t *next); /* those that are due; *next: when the first other one is */
void datagrams_forget(void);
