/* The fake RDMA provider, as a test sees it: what it can be told to do wrong, and what it has counted. All of it may be
   called at any time, from any thread. A test links the library, or opens it with dlopen as the program does and finds
   these with dlsym; one process has one fake. Times are in microseconds, probabilities in millionths. */
#pragma once
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_DEVICES = 2, FAKE_GIDS = 16 };

/* What happens by chance. `delay`: a request begins later, or a datagram arrives later (behind others of its pair).
   `late`: a completion reaches its queue later, so that completions of different queue pairs, and of the two queues of
   one, change places; those of one queue keep their order. */
struct fake_faults {
    uint64_t seed;
    uint32_t delay, delay_most_us;
    uint32_t late, late_most_us;
    uint32_t drop, duplicate;                           /* of datagrams */
};

/* What a device has. `retry_us` stands for the time that a queue pair's `timeout` says (0: that one): how long each
   silence of a peer lasts until a request is sent again. `pinned_most`: bytes that may be registered at once. `stale`:
   completions of a queue pair stay in their queue when it is destroyed, as with some drivers; else they vanish. */
struct fake_limits {
    int devices, max_qp, max_qp_wr, max_sge, max_cqe, max_mr, max_rd_atomic;
    uint32_t max_inline, max_message;
    enum ibv_mtu mtu;
    uint64_t pinned_most;
    uint32_t retry_us;
    bool stale;
};

enum fake_call {
    FAKE_GET_DEVICE_LIST,
    FAKE_OPEN_DEVICE,
    FAKE_QUERY_DEVICE,
    FAKE_QUERY_PORT,
    FAKE_QUERY_GID,
    FAKE_ALLOC_PD,
    FAKE_REG_MR,
    FAKE_CREATE_CHANNEL,
    FAKE_CREATE_CQ,
    FAKE_RESIZE_CQ,
    FAKE_CREATE_SRQ,
    FAKE_CREATE_QP,
    FAKE_MODIFY_QP,
    FAKE_CREATE_AH,
    FAKE_POST_SEND,
    FAKE_POST_RECV,
    FAKE_CALLS
};

enum fake_counter {
    FAKE_REQUESTS,                                      /* posted; then those of each opcode */
    FAKE_WRITES,
    FAKE_WRITES_WITH_IMMEDIATE,
    FAKE_SENDS,
    FAKE_SENDS_WITH_IMMEDIATE,
    FAKE_READS,
    FAKE_DOORBELLS,                                     /* calls of ibv_post_send that posted something */
    FAKE_INLINED,                                       /* requests */
    FAKE_SIGNALED,
    FAKE_RECEIVES,                                      /* posted, and calls that did */
    FAKE_RECEIVE_DOORBELLS,
    FAKE_COMPLETIONS,                                   /* polled by the program */
    FAKE_FLUSHED,
    FAKE_EVENTS,                                        /* put into completion channels */
    FAKE_BYTES_WRITTEN,                                 /* by writes that ended well */
    FAKE_BYTES_READ,
    FAKE_BYTES_SENT,
    FAKE_DATAGRAMS,                                     /* arrived */
    FAKE_DATAGRAMS_LOST,                                /* for any reason */
    FAKE_DATAGRAMS_DOUBLED,
    FAKE_NOT_READY,                                     /* refusals for want of a receive */
    FAKE_RETRIES,                                       /* requests sent again because nobody answered */
    FAKE_REGISTRATIONS,                                 /* made ever */
    FAKE_COUNTERS
};

enum fake_kind {
    FAKE_LIST,
    FAKE_CONTEXT,
    FAKE_DOMAIN,
    FAKE_REGION,
    FAKE_CHANNEL,
    FAKE_COMPLETION_QUEUE,
    FAKE_SHARED_QUEUE,
    FAKE_QUEUE_PAIR,
    FAKE_HANDLE,
    FAKE_KINDS
};

/* No faults, the usual limits and addresses, ports up, counters at 0. What is alive stays. */
void fake_reset(void);
void fake_set_faults(const struct fake_faults *faults);
struct fake_limits fake_limits(void);
void fake_set_limits(const struct fake_limits *limits); /* hold for what is made from now on */
void fake_set_gids(int device, const struct ibv_gid_entry *entries, int count);

/* Of the calls from now on the one after `after` others fails, with that errno. One for each kind of call. */
void fake_fail_call(enum fake_call call, unsigned after, int error);
/* Of the requests that the wire begins from now on, the one after `after` others ends with that status; when
   `executed`, although all of it was done. What such an error means for the queue pair and its peer follows. */
void fake_fail_request(uint64_t after, enum ibv_wc_status status, bool executed);
/* Likewise the receive that is used after `after` others; its sender gets REM_OP_ERR. */
void fake_fail_receive(uint64_t after, enum ibv_wc_status status);

void fake_set_port(int device, bool up);                /* with an event, when it changes */
void fake_break_device(int device); /* DEVICE_FATAL: all its queue pairs fail, nothing new is made */
void fake_break_pair(uint32_t qp_num);                  /* QP_FATAL */
void fake_unplug_pair(uint32_t qp_num, bool unplugged); /* nothing reaches it, and nothing of its reaches anybody */
enum ibv_qp_state fake_pair_state(uint32_t qp_num);     /* what the device thinks; IBV_QPS_UNKNOWN: there is none */

/* What happens to the requests of reliable connections from now on, in order, into room[most]; NULL: no longer. A
   request is POSTED, perhaps several by one call, which `rings`; the wire has CARRIED it out; its completion is POLLED.
   HEARD: that of a receive, which another's message has used. fake_traced: how many there were, also beyond `most`. */
enum fake_moment { FAKE_POSTED, FAKE_CARRIED, FAKE_POLLED, FAKE_HEARD };
struct fake_event {
    enum fake_moment moment;
    uint32_t qp_num;                                    /* where: of whose queue pair */
    /* of a request that is posted or carried out */
    enum ibv_wr_opcode opcode;
    uint64_t bytes;
    bool rings, inlined, signaled;
};
void fake_trace(struct fake_event *room, size_t most);
size_t fake_traced(void);

uint64_t fake_count(enum fake_counter counter);
uint64_t fake_alive(enum fake_kind kind);
uint64_t fake_pinned_bytes(void);
uint64_t fake_left(void);                               /* objects of all kinds; says on stderr which */
