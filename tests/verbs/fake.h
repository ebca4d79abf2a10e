/* The fake RDMA provider, as a test sees it: the faults that a test can order, and the counters. A test may call each
   function at any time, from any thread. It links the library, or opens it with dlopen as the program does and finds
   the functions with dlsym; a process has one fake. Times are in microseconds, probabilities in millionths. */
#pragma once
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>

enum { FAKE_DEVICES = 2, FAKE_GIDS = 16 };

/* Faults that happen at random. */
struct fake_faults {
    /* Starts the random numbers. */
    uint64_t seed;
    /* The probability of a delay, and the longest one. A delayed request of a reliable connection begins later. A
       delayed datagram arrives later, and later datagrams of its queue pair overtake it. */
    uint32_t delay, delay_most_us;
    /* The probability that a completion reaches its completion queue late, and the longest delay. So completions of
       different queue pairs, and of the send and receive queue of one pair, change places. Those of one queue keep
       their order. */
    uint32_t late, late_most_us;
    /* The probabilities that a datagram is lost, and that it arrives twice. */
    uint32_t drop, duplicate;
};

/* The limits of a device. `retry_us` is how long a request waits for an answer of the peer before it is sent again; 0:
   as long as the `timeout` of its queue pair demands. `pinned_most` is how many bytes may be registered at a time.
   `stale`: completions of a destroyed queue pair stay in the completion queue, as with some drivers; otherwise they
   vanish. */
struct fake_limits {
    int devices, max_qp, max_qp_wr, max_sge, max_cqe, max_mr, max_rd_atomic;
    uint32_t max_inline, max_message;
    enum ibv_mtu mtu;
    uint64_t pinned_most;
    uint32_t retry_us;
    bool stale;
};

/* The calls that fake_fail_call can make fail. */
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
    /* Requests posted to send queues, and those of each opcode. */
    FAKE_REQUESTS,
    FAKE_WRITES,
    FAKE_WRITES_WITH_IMMEDIATE,
    FAKE_SENDS,
    FAKE_SENDS_WITH_IMMEDIATE,
    FAKE_READS,
    /* Calls of ibv_post_send that posted at least one request. */
    FAKE_DOORBELLS,
    /* Posted requests with inline bytes, and posted requests that are signalled. */
    FAKE_INLINED,
    FAKE_SIGNALED,
    /* Posted receives, and calls that posted at least one. */
    FAKE_RECEIVES,
    FAKE_RECEIVE_DOORBELLS,
    /* Completions that the program has polled. */
    FAKE_COMPLETIONS,
    /* Requests and receives that were flushed because their queue pair failed. */
    FAKE_FLUSHED,
    /* Events put into completion channels. */
    FAKE_EVENTS,
    /* Bytes of writes, reads and sends that were carried out. */
    FAKE_BYTES_WRITTEN,
    FAKE_BYTES_READ,
    FAKE_BYTES_SENT,
    /* Datagrams that arrived, were lost for any reason, and were sent twice. */
    FAKE_DATAGRAMS,
    FAKE_DATAGRAMS_LOST,
    FAKE_DATAGRAMS_DOUBLED,
    /* Attempts of requests that found no receive at the peer. */
    FAKE_NOT_READY,
    /* Requests sent again because the peer had not answered. */
    FAKE_RETRIES,
    /* Registrations of memory since fake_reset. */
    FAKE_REGISTRATIONS,
    FAKE_COUNTERS
};

/* The kinds of objects, for fake_alive. */
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

/* Ends all faults and ordered failures, restores the limits, the addresses and the ports, and sets the counters to 0.
   Existing objects stay. */
void fake_reset(void);
void fake_set_faults(const struct fake_faults *faults);
struct fake_limits fake_limits(void);
/* Sets the limits. Those of objects hold for objects that are created from now on, the others at once. */
void fake_set_limits(const struct fake_limits *limits);
/* Replaces all GIDs of a device by these. */
void fake_set_gids(int device, const struct ibv_gid_entry *entries, int count);

/* Makes one call of this kind fail with that errno: the next one after `after` others. A second order for the same kind
   replaces the first. */
void fake_fail_call(enum fake_call call, unsigned after, int error);
/* Makes one request fail with that status: the next one that the wire begins after `after` others. Its queue pair
   fails, too. Without `executed` the request has no effect, but if the status is an answer of the peer, the peer's
   queue pair fails as well. With `executed` the request is carried out before it fails. */
void fake_fail_request(uint64_t after, enum ibv_wc_status status, bool executed);
/* Makes one receive fail with that status: the next one that is used after `after` others. On a reliable connection the
   sender's request fails, too: with REM_INV_REQ_ERR if the status is LOC_LEN_ERR, otherwise with REM_OP_ERR. */
void fake_fail_receive(uint64_t after, enum ibv_wc_status status);

/* Sets the state of a port, with an event if it changes. */
void fake_set_port(int device, bool up);
/* Breaks a device, with the event DEVICE_FATAL: all its queue pairs fail, and no queue, queue pair or region can be
   created. */
void fake_break_device(int device);
/* Fails a queue pair, with the event QP_FATAL. */
void fake_break_pair(uint32_t qp_num);
/* With `unplugged`, packets neither reach the queue pair nor leave it. */
void fake_unplug_pair(uint32_t qp_num, bool unplugged);
/* Returns the state that the device has for the queue pair, or IBV_QPS_UNKNOWN if there is no such pair. */
enum ibv_qp_state fake_pair_state(uint32_t qp_num);

/* The events of a trace. POSTED: the program has posted the request. CARRIED: the wire has carried it out. POLLED: the
   program has polled its completion. HEARD: the program has polled the completion of a receive, which a message of the
   peer has used. */
enum fake_moment { FAKE_POSTED, FAKE_CARRIED, FAKE_POLLED, FAKE_HEARD };
struct fake_event {
    enum fake_moment moment;
    /* The queue pair of the request or receive. */
    uint32_t qp_num;
    /* The other fields are set only for POSTED and CARRIED. `rings`: it is the first request of its ibv_post_send. */
    enum ibv_wr_opcode opcode;
    uint64_t bytes;
    bool rings, inlined, signaled;
};
/* Records the events of all reliable connections from now on, in order, into room[most]. NULL ends the trace. */
void fake_trace(struct fake_event *room, size_t most);
/* Returns the number of events since the trace began, also of those beyond `most`. */
size_t fake_traced(void);

uint64_t fake_count(enum fake_counter counter);
/* Returns the number of existing objects of that kind. */
uint64_t fake_alive(enum fake_kind kind);
/* Returns the bytes of all registrations that exist. */
uint64_t fake_pinned_bytes(void);
/* Returns the number of existing objects of all kinds, and prints to stderr how many of each exist. */
uint64_t fake_left(void);
