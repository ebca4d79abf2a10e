/* The objects of the fake, and the functions that its files share. There are three kinds of locks:
   - machine.lock guards everything for which no other lock is named. The wire holds it for small portions of its work.
   - A queue's `lock` orders the program's threads that post to it, and a completion queue's `lock` those that poll it.
     The wire takes neither. The program and the wire pass requests and completions to each other only through C11
     atomics. So the thread sanitizer sees the order that hardware promises and no other: it reports a race if the
     program reuses memory before it has polled the completion of the request.
   - The `lock` of events is taken last. */
#pragma once
#include "tests/verbs/fake.h"
#include <pthread.h>
#include <stdatomic.h>

struct device {
    struct ibv_device ibv;
    int index;
    /* `up`: the port is active. `broken`: a test has called fake_break_device. */
    bool up, broken;
    struct ibv_gid_entry gids[FAKE_GIDS];
};

/* A list of events, and an eventfd that is readable while the list has any. An event of a completion channel only has
   element.cq, the completion queue. */
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
    /* The number of the context's domains, channels and completion queues. */
    int children;
};

/* `children` is the number of the domain's regions, queue pairs, shared queues and address handles. */
struct domain { struct ibv_pd ibv; int children; };
struct channel { struct ibv_comp_channel ibv; struct events events; };

/* Registered memory. Work requests name the byte memory[i] by the address begin + i. */
struct region {
    struct ibv_mr ibv;
    uint64_t begin;
    unsigned char *memory;
    /* The mapping of a dmabuf's descriptor, or NULL for the program's own memory. */
    void *mapping;                                      /* owned */
    size_t mapping_bytes;
    unsigned access;
};

struct handle { struct ibv_ah ibv; struct ibv_ah_attr attr; };

struct completion {
    struct ibv_wc wc;
    /* The queue pair whose queue gets room when the program polls the completion; NULL: it was destroyed since. */
    struct pair *pair;
    /* `of_send`: of the send queue, otherwise of the receive queue. */
    bool of_send, solicited;
    /* The value of that queue's `reclaimed` after the poll. */
    uint64_t reclaims;
    /* When a late completion reaches its completion queue. */
    uint64_t due;                                       /* ns of wire_now() */
};

struct completion_queue {
    struct ibv_cq ibv;
    pthread_mutex_t lock;
    uint64_t capacity;
    struct completion *slots;
    /* The numbers of completions that the wire has added and the program has polled so far. */
    atomic_ullong pushed, polled;
    /* 0: not armed, 1: armed for any completion, 2: armed for solicited completions and errors. */
    atomic_int armed;
    /* A completion found no room, so the queue accepts no more. */
    bool overrun;
    /* The number of send and receive queues of queue pairs that report here. */
    int pairs;
    /* The numbers of completion events and asynchronous events that the program has received; under ibv.mutex. */
    uint32_t delivered, delivered_async;
};

/* A posted work request. */
struct work {
    uint64_t id, length;
    struct ibv_sge *sges;
    /* The copied bytes of an inline request, otherwise NULL. */
    unsigned char *inlined;
    int count;
    enum ibv_wr_opcode opcode;
    unsigned flags;
    __be32 immediate;
    uint64_t remote_address;
    uint32_t rkey;
    /* The path and the queue pair to which a datagram goes. */
    struct ibv_ah_attr to;
    uint32_t remote_qpn, remote_qkey;
};

/* A queue of work requests. Request n is in slots[n % capacity]. */
struct queue {
    pthread_mutex_t lock;
    uint32_t capacity, most_sges, most_inline;
    struct work *slots;
    struct ibv_sge *sges;
    unsigned char *inlined;
    /* The number of requests posted so far, and of those whose slots are free again. */
    atomic_ullong posted, reclaimed;
    /* The number of requests that the wire has finished. */
    uint64_t taken;
    /* Late completions in their order: staged_in were added so far, staged_out have reached their completion queue. */
    struct completion *staged;
    uint64_t staged_in, staged_out;
};

struct pair {
    struct ibv_qp ibv;
    struct device *device;
    struct queue send, receive;
    atomic_int state;
    struct ibv_qp_attr attr;
    uint32_t max_inline;
    /* `unplugged`: a test has called fake_unplug_pair. `established`: a message of the peer has arrived. */
    bool signals_all, unplugged, established;
    uint32_t send_psn, receive_psn;
    /* The number of asynchronous events that the program has received; under ibv.mutex. */
    uint32_t delivered_async;
    /* The state of the request at the head of the send queue, once the wire has `begun` it. `forced` is the failure
       that a test has ordered. With `executed`, the request is carried out before it fails. */
    bool begun, executed;
    enum ibv_wc_status forced;
    /* The bytes moved so far, and the time before which the wire makes no attempt. */
    uint64_t moved, not_before;                         /* bytes; ns of wire_now() */
    /* The attempts so far that no peer answered, and that found no receive. */
    uint32_t retries, not_ready;
};

/* A receive queue that `pairs` queue pairs share. The program posts to it, and the wire takes receives from it. */
struct shared_queue {
    struct ibv_srq ibv;
    struct queue queue;
    int pairs;
};

enum { PAIRS_MOST = 4096, REGIONS_MOST = 1 << 16 };

struct machine {
    pthread_mutex_t lock;
    /* The number of the program's threads that wait for the lock. */
    atomic_int waiting;
    struct device devices[FAKE_DEVICES];
    struct context *contexts;
    /* Tables of objects, how often each entry was used, and the end of the entries that were ever used. */
    struct pair *pairs[PAIRS_MOST];
    uint32_t pair_uses[PAIRS_MOST], pairs_end;
    struct region *regions[REGIONS_MOST];
    uint32_t region_uses[REGIONS_MOST], regions_end;
    /* The bytes of all regions. */
    uint64_t pinned;
    struct fake_limits limits;
    struct fake_faults faults;
    /* The state of the random numbers. */
    uint64_t random;
    /* The ordered failures of fake_fail_request and fake_fail_receive. IBV_WC_SUCCESS: no failure is ordered. */
    struct {
        uint64_t after;
        enum ibv_wc_status status;
        bool executed;
    } next_request, next_receive;
    /* The number of objects of each kind that exist. */
    atomic_uint alive[FAKE_KINDS];
};
extern struct machine machine;

/* ---- machine.c ---- */
void machine_lock(void);
void machine_unlock(void);
void machine_count(enum fake_counter counter, uint64_t by);
/* Returns true with that probability. */
bool machine_chance(uint32_t millionths);
/* Returns a random number below `below`, or 0 if that is 0. */
uint64_t machine_random(uint64_t below);
/* Returns the errno with which this call must fail because a test has ordered it, or 0. */
int call_fails(enum fake_call call);

/* ---- trace.c: records events while a test traces (fake_trace) ---- */
void trace_request(enum fake_moment moment, const struct pair *p, const struct work *w, bool rings);
void trace_completion(const struct completion *c);

/* ---- events.c ---- */
/* Returns 0 or an errno. */
int events_init(struct events *e);
void events_finish(struct events *e);
void events_push(struct events *e, struct ibv_async_event event);
/* Takes the oldest event. Waits for one, or returns -1 with EAGAIN if the descriptor does not block. */
int events_pop(struct events *e, struct ibv_async_event *out);
/* Removes the events about a completion queue or queue pair. */
void events_remove(struct events *e, const void *element);
/* Sends the program an asynchronous event about the queue pair. */
void pair_raise(struct pair *p, enum ibv_event_type type);
/* Waits until *completed equals *delivered: until the program has acknowledged all events about an object. `what` names
   the waiting call. */
void wait_for_acknowledgements(pthread_mutex_t *mutex, pthread_cond_t *changed, const uint32_t *delivered,
    const uint32_t *completed, const char *what);

/* ---- device.c ---- */
/* Returns the GID with that index, or NULL if the entry is unused. */
const struct ibv_gid_entry *device_gid(const struct device *d, uint32_t index);
/* Returns the device that has this GID of this type (enum ibv_gid_type), or NULL. */
struct device *device_by_gid(const union ibv_gid *gid, uint32_t type);
/* Sends all contexts of the device an asynchronous event. */
void device_raise(struct device *d, enum ibv_event_type type);
void devices_reset(void);
bool path_is_valid(const struct device *d, const struct ibv_ah_attr *path);

/* ---- memory.c ---- */
/* Returns true if the device may read the local memory of the request, or write it (`written`). */
bool local_is_allowed(const struct ibv_pd *pd, const struct work *w, bool written);
/* Returns true if a peer may access the memory of `s` this way; s->lkey is an rkey. */
bool remote_is_allowed(const struct ibv_pd *pd, const struct ibv_sge *s, unsigned access);
/* Memory for bytes_move: `bytes`, or if that is NULL, a list of `count` pieces of regions. */
struct place { const struct ibv_sge *sges; int count; unsigned char *bytes; };
void bytes_move(struct place to, uint64_t to_offset, struct place from, uint64_t from_offset, uint64_t bytes);

/* ---- completion.c ---- */
/* Adds a completion, on the wire, and sends the program an event if the queue is armed for it. */
void completion_queue_push(struct completion_queue *q, const struct completion *c);
/* Removes the completions of a queue pair, or with limits.stale only their reference to it. */
void completion_queue_forget(struct completion_queue *q, struct pair *p);
int completion_queue_poll(struct ibv_cq *cq, int most, struct ibv_wc *out);
int completion_queue_arm(struct ibv_cq *cq, int solicited_only);

/* ---- pair.c ---- */
struct pair *pair_find(uint32_t qp_num);
int queue_init(struct queue *q, uint32_t works, uint32_t sges, uint32_t inlined);
void queue_finish(struct queue *q);
/* Forgets all requests, completions and attributes of a queue pair, as the state RESET does. */
void pair_clear(struct pair *p);
/* Moves a queue pair to the state ERR. The wire then flushes its requests. */
void pair_fail(struct pair *p);

/* ---- requests.c ---- */
/* Returns the cleared slot for the next request, or NULL if the queue is full. */
struct work *queue_slot(struct queue *q);
/* Publishes the request in that slot to the wire. */
void queue_publish(struct queue *q);
int receives_post(struct queue *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);
int pair_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int pair_post_receive(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* ---- shared.c ---- */
struct shared_queue *shared_of(struct ibv_srq *srq);
/* Returns the receive that the next message to this queue pair uses, or NULL. May take one from the shared queue. */
struct work *receive_head(struct pair *p);
int shared_post_receive(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* ---- wire.c ---- */
/* Each open context uses the wire's thread: the first wire_start starts it, and the last wire_stop ends it. */
int wire_start(void);
void wire_stop(void);
/* Wakes the wire, because it may have work. */
void wire_ring(void);
/* Returns the time of the monotonic clock in ns. */
uint64_t wire_now(void);
/* Returns the oldest request that is not finished, or NULL. */
struct work *queue_head(struct queue *q);
/* Finishes the request at the head of the queue. Its completion is `wc`, at once or late; `silent`: it has none. */
void work_complete(struct pair *p, struct queue *q, const struct ibv_wc *wc, bool silent, bool solicited);
/* Finishes the request at the head of the send queue with this status, or with the failure that a test has ordered. A
   failure also moves the queue pair to ERR, or to SQE if it is for datagrams. */
void send_complete(struct pair *p, enum ibv_wc_status status);
/* Finishes the receive at the head of the receive queue. A failure also moves the queue pair to ERR. */
void receive_complete(struct pair *p, struct ibv_wc wc, bool solicited);
/* Returns true if a test has ordered the next receive to fail, and sets *out to the status. */
bool receive_is_forced(enum ibv_wc_status *out);

/* ---- reliable.c, datagram.c ---- */
/* Each does a portion of the request at the head of the send queue. Returns the amount of work: bytes or steps. */
uint64_t reliable_step(struct pair *p, struct work *w, uint64_t now);
uint64_t datagram_step(struct pair *p, struct work *w, uint64_t now);
/* Delivers the datagrams that are due, and returns their number. Lowers *next to when the first other one is due. */
uint64_t datagrams_deliver(uint64_t now, uint64_t *next);
void datagrams_forget(void);
