/* The network of this process consists of *rails*; each is a port of a device, or one more queue pair on a port. Every
 * access holds the lock of the fabric.
 *
 * For each peer the process has one *lane* on each rail, which is a queue pair (RC). Messages use the first lane. Each
 * side has an *eager ring* into which the peer writes its messages one after another by RDMA write; the immediate value
 * is the position. Each message also carries how far its sender has read its own eager ring, so the peer knows how much
 * room is left. The sender first builds a message in its own memory, which has the layout of the peer's eager ring. The
 * receiver reads large messages by RDMA read over all lanes that both processes have. Handshakes use datagrams (UD),
 * which need no connected queue pair and may get lost. */
#pragma once
#include "backend/transports/fabric/fabric.h"
#include "backend/transports/verbs/device/device.h"
#include "backend/transports/verbs/memory/registration.h"

enum {
    /* Each pair of processes has an eager ring of this size in each direction. */
    RING_BYTES = 1 << 18,
    /* The reserve of an eager ring is left for ACK and GOODBYE; ACK makes room again. */
    RING_RESERVE = 4096,
    /* Messages begin at multiples of the grain. */
    RING_GRAIN = 128,         /* bytes */
    /* A queue pair has up to SENDS open work requests, of which every 32nd is signalled at the latest. */
    SENDS = 256,
    SEND_SIGNALS = 32,
    /* The first lanes of all endpoints share up to RECEIVES receives, which are posted again in lots of 64. */
    RECEIVES = 4096,
    RECEIVES_AT_ONCE = 64,
    /* A doorbell posts up to 32 RDMA reads of up to READ_BYTES each. */
    READS_AT_ONCE = 32,
    READ_BYTES = 1 << 20,
    /* The share of a message that one lane reads is a multiple of SHARE_BYTES, except the last share. */
    SHARE_BYTES = 1 << 16,
    /* If the device can, a message of up to INLINE_BYTES is sent within its work request. */
    INLINE_BYTES = 128,
    RAILS_MOST = 4,
    LANE_BUCKETS = 1024,
    DATAGRAM_SLOTS = 64,
    /* A new completion queue has room for the lanes to this many processes. */
    PAIRS_AT_FIRST = 16,
    /* A received datagram begins behind the ROUTE_BYTES of its slot that the device fills: the global route header. */
    ROUTE_BYTES = 40,
    SLOT_BYTES = 512
};
/* The address of a queue pair. In the address of a process, it is that of the datagram queue pair, and `life` is the
   life of its fabric. `mtu` is an enum ibv_mtu. `read_limit` is the number of RDMA reads that the device answers at a
   time. */
struct verbs_address {
    uint8_t gid[16];
    uint32_t qp_number;
    uint16_t lid;
    uint8_t is_ethernet : 1, mtu : 7, read_limit;
    uint64_t life;
};
/* The types of messages in an eager ring. EAGER consists of header and data, OFFER of header and struct offer. DONE has
   the id of an offer that its receiver has fetched or released. ACK and GOODBYE have no data. ACK only reports
   `consumed`, and GOODBYE also that its sender shuts down. */
enum verbs_message_kind { EAGER, OFFER, DONE, ACK, GOODBYE };
/* The prefix precedes each message. `position` is where the message ends, counted from the start of the connection.
   `consumed` is the position up to which the sender has read its own eager ring. `bytes` is the length of the message
   behind the prefix. */
struct prefix {
    uint64_t position;
    uint64_t consumed;
    uint32_t kind, bytes;
};
/* An offer announces a large message at this address of its sender. `keys` are the memory keys, indexed by the rails of
   the sender. */
struct offer {
    uint64_t address, bytes, id;
    uint32_t keys[RAILS_MOST];
};
/* A descriptor stands for an offer that this process has received. */
struct descriptor {
    struct verbs_endpoint *from;
    struct offer offer;
};
/* The state of an op in this fabric. It is in one list of its endpoint: waiting, offered, reading or fetching. */
struct verbs_xfer {
    struct verbs_xfer *next;
    /* `op` is NULL for a DONE message, which belongs to no op. */
    struct fabric_op *op;
    enum verbs_message_kind kind;
    /* `data` is the payload of an eager message that is not built yet. */
    const void *data;
    /* `offer` is this process's own offer, or the peer's offer that is fetched to `into`. */
    struct offer offer;
    unsigned char *into;
    /* `requested` counts the bytes for which reads are posted. The reads that are posted together are a doorbell;
       `open_doorbells` counts those that have not completed. */
    size_t requested;
    int open_doorbells;
    /* `memory` is indexed by adapter; an entry without a region is not registered. */
    struct registered memory[RAILS_MOST];
};
/* A work request that is posted and has not completed. `fetch` is set only for the last read of a doorbell, otherwise
   NULL. `position` is the end of the messages that were built when the request was posted. */
struct posted_request {
    struct verbs_xfer *fetch;
    uint64_t position;
};
struct verbs_endpoint;
/* A lane is the queue pair of an endpoint on a rail. `posted_count` and `completed_count` count its work requests, and
   `last_signalled` is the number of the last signalled one. Request n is in `requests` at n % SENDS. */
struct lane {
    struct verbs_endpoint *endpoint;
    const struct rail *rail;
    struct lane *next_of_bucket;
    struct ibv_qp *qp;
    struct posted_request requests[SENDS];
    unsigned posted_count, completed_count, last_signalled;
};
/* The eager rings of a pair of processes. The peer writes `in`. `out` has the layout of the peer's eager ring, which
   lies at `peer_address` in the peer. All positions count from the start of the connection. */
struct eager_ring {
    unsigned char *in, *out;
    struct ibv_mr *in_region, *out_region;
    uint64_t peer_address;
    uint32_t peer_key;
    /* Messages to the peer are built up to `written`, known to be sent up to `sent`, and read by the peer up to
       `peer_consumed`. The last signalled write was built up to `signalled`. */
    uint64_t written, sent, peer_consumed;
    uint64_t signalled;
    /* Messages from the peer are read up to `consumed`, which was reported to the peer up to `acked`. */
    uint64_t consumed, acked;
};
struct verbs_endpoint {
    struct endpoint base;
    struct verbs_address address;
    struct ibv_ah *address_handle;
    /* `peer_turn` is the turn of the peer's endpoint to this process, or 0 while it is unknown. */
    uint64_t peer_turn;
    /* `connect_failed` is set when the device has refused to connect the endpoint. `owes_answer` is set when the peer
       needs another HELLO of this process. `goodbye_is_sent` is set at shutdown. */
    bool owes_answer, connect_failed, goodbye_is_sent;
    /* `hello_ms` is when the last HELLO was sent, and `repeat_ms` the delay from then to the next. */
    int64_t hello_ms, repeat_ms;
    /* Messages up to this size are sent within their work request. */
    uint32_t inline_bytes;
    struct eager_ring ring;
    struct lane lanes[RAILS_MOST];
    /* `lane_count` is the number of lanes that both processes have, and 0 until they are connected. `next_lane` is the
       lane on which the next fetch starts. */
    int lane_count, next_lane;
    /* `waiting`: messages that wait for room in the eager ring. `reading`: fetches that wait for room in the send
       queues. `offered`: offers without DONE. `fetching`: fetches whose reads are all posted. The oldest is first. */
    struct verbs_xfer *waiting, *reading, *offered, *fetching;
};
/* The queue pair for datagrams, and its registered memory of 2 * DATAGRAM_SLOTS slots. `free_slots` has the numbers of
   the slots that can send. */
struct datagram_queue {
    struct ibv_qp *qp;
    struct ibv_mr *region;
    unsigned char *memory;
    unsigned free_slots[DATAGRAM_SLOTS];
    int free_count;
};
/* An adapter is a device that this process uses, with the objects that all its rails share. */
struct adapter {
    /* `port` is the port of its first rail; errors name it. */
    const struct device_port *port;
    struct ibv_device_attr attributes;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    struct registration_cache *memory;
    /* Its index in nic->adapters. */
    int index;
    /* `other_completions` is the room for completions of datagrams and receives. `lane_count` counts the queue
       pairs. */
    int other_completions;
    int lane_count;
};
struct rail {
    const struct device_port *port;
    struct adapter *adapter;
};
struct nic {
    struct devices *devices;
    /* Messages use the first adapter. */
    struct adapter adapters[RAILS_MOST];
    struct rail rails[RAILS_MOST];
    int adapter_count, rail_count;
    /* The shared receive queue, and the number of its receives that completions have used up. */
    struct ibv_srq *receives;
    int used_receives;
    struct datagram_queue datagram_queue;
    /* The buckets hold the lanes by the number of their queue pair. */
    struct lane *bucket[LANE_BUCKETS];
    /* Some endpoint may have xfers that can go on, or owes its peer an acknowledgement. */
    bool needs_progress;
    /* Its lower 24 bits are the packet sequence number at which this process's queue pairs begin. */
    uint32_t psn;
    /* The id of the last offer. */
    uint64_t last_id;
};
static inline struct nic *nic_of_fabric(const struct fabric *fabric) { return fabric->state; }
/* Returns the endpoint of this fabric that begins with this struct. */
static inline struct verbs_endpoint *verbs_endpoint_of(struct endpoint *endpoint)
{
    return (struct verbs_endpoint *)endpoint;
}
/* Returns the upper half of the wr_id of an endpoint's work requests. It distinguishes the endpoint from a destroyed
   one whose queue pair had the same number. It is never 0, because a failed completion with wr_id 0 is that of a
   receive. */
static inline uint64_t verbs_endpoint_tag(const struct verbs_endpoint *endpoint)
{
    return endpoint->base.turn % UINT32_MAX + 1;
}

/* ---- nic.c ---- */
/* Opens the devices, and creates the rails, the shared receive queue and the datagram queue. After an error the caller
   still calls nic_destroy. */
tutti_status nic_create(const struct fabric *fabric, const struct fabric_environment *environment, struct nic **out);
/* Destroys a nic; NULL and a nic that nic_create has only begun are allowed. */
void nic_destroy(struct nic *nic);
/* Returns the address of a queue pair on this rail. `life` is 0. */
struct verbs_address verbs_qp_address(const struct rail *rail, const struct ibv_qp *qp);
/* Returns the address of this process, at which others reach its datagram queue. */
struct verbs_address nic_address(const struct fabric *fabric);
/* Returns the lane whose queue pair has this number on the adapter, or NULL. */
struct lane *verbs_nic_find_lane(const struct nic *nic, const struct adapter *adapter, uint32_t qp_number);
static inline int int_smaller(int a, int b) { return a < b ? a : b; }
/* Returns a device's limit of open RDMA reads, clamped to 1 … 16. */
static inline uint8_t rdma_reads_clamp(int limit) { return (uint8_t)(limit > 16 ? 16 : limit < 1 ? 1 : limit); }
/* Returns the port that messages use. */
static inline const struct device_port *nic_message_port(const struct nic *nic) { return nic->rails[0].port; }
/* Posts the receives again that completions have used up. false: the device refuses, and errno has the reason. */
bool verbs_nic_post_receives(struct nic *nic);

/* ---- adapter.c ---- */
/* Creates the shared objects of the device of this port. The completion queue has room for `lanes` lanes at first, and
   for `other_completions` more. After an error the caller still calls adapter_finish. */
tutti_status adapter_init(struct adapter *adapter, const struct device_port *port, int other_completions, int lanes);
/* Destroys the shared objects of a device, as far as adapter_init has created them. */
void adapter_finish(struct adapter *adapter);
/* Enlarges the completion queue for one more lane if needed. SYSTEM: the device has reached its limit, or refuses. */
tutti_status verbs_adapter_reserve_lane(struct adapter *adapter);
/* Returns SYSTEM with the text "<port> has no <what>: <reason in errno>", after a call of the library has failed. */
tutti_status device_port_fail_call(const struct device_port *port, const char *what);

/* ---- lanes.c: an endpoint's queues ---- */
/* Creates the eager rings and the queue pairs of an endpoint, not connected yet. After an error the caller still
   destroys the endpoint. */
tutti_status lanes_create(struct nic *nic, struct verbs_endpoint *endpoint);
/* Destroys the queue pairs. From here on no device accesses memory for this endpoint. */
void lanes_destroy(struct nic *nic, struct verbs_endpoint *endpoint);
/* Creates the address handle by which datagrams reach the peer. */
tutti_status verbs_endpoint_create_ah(const struct nic *nic, struct verbs_endpoint *endpoint);
/* Connects a lane with the peer's queue pair at this address, whose packets begin with the sequence number `psn`. */
tutti_status lane_connect(const struct nic *nic, struct lane *lane, const struct verbs_address *address, uint32_t psn);

/* ---- requests.c: the work requests of the lanes ---- */
/* Returns whether the send queue of the lane accepts one more work request. */
bool lane_has_room(const struct lane *lane);
/* Posts an RDMA write of the built message at position `begin` to the peer's eager ring. is_signalled: the write has a
   completion; a write after many without a completion has one, too. Returns 0, or the errno of the device. */
int verbs_endpoint_post_write(struct verbs_endpoint *endpoint, uint64_t begin, size_t bytes, bool is_signalled);
/* Posts reads for the bytes of a fetch that have none: up to one doorbell on each lane, if its send queue has room.
   Returns 0, or the errno of the device. */
int verbs_endpoint_post_reads(struct verbs_endpoint *endpoint, struct verbs_xfer *fetch);
/* Records the completion of the signalled work request number `request`, and of all before it. Returns the fetch whose
   last read is now complete, or NULL. */
struct verbs_xfer *lane_complete_request(struct lane *lane, unsigned request);

/* ---- datagram_queue.c ---- */
/* Creates the datagram queue of the nic and posts its receives. After an error the caller still calls
   datagram_queue_finish. */
tutti_status datagram_queue_init(const struct fabric *fabric, struct nic *nic);
/* Destroys the datagram queue, as far as it has been created. */
void datagram_queue_finish(struct nic *nic);
/* Sends a datagram to the process of the endpoint `to`; the queue must have a free slot. */
void datagram_queue_send(struct datagram_queue *queue, const struct verbs_endpoint *to, const void *datagram,
    size_t bytes);
/* Handles a completion of the queue. true: a datagram of exactly `bytes` bytes has arrived, and is copied to `out`.
   false: a send has completed, or the datagram is not valid. */
bool datagram_queue_complete(struct datagram_queue *queue, const struct ibv_wc *wc, void *out, size_t bytes);

/* ---- handshake.c ---- */
/* Sends the peer a HELLO which reports that this endpoint is closed. */
void verbs_endpoint_send_closed(struct fabric *fabric, struct verbs_endpoint *endpoint);
/* Handles a completion of the datagram queue. */
void verbs_handle_datagram(struct fabric *fabric, const struct ibv_wc *wc);
/* Sends the HELLOs that are due. The caller calls it after every poll while fabric->needs_poll is set. */
void verbs_advance_handshakes(struct fabric *fabric);

/* ---- xfer.c: the life of an xfer ---- */
/* Returns an xfer of this kind for the op (NULL: for none), in no list. NULL: memory is exhausted. */
struct verbs_xfer *xfer_new(struct fabric_op *op, enum verbs_message_kind kind);
/* Registers the memory with each device whose lane accesses it. is_written: the devices write it; otherwise the peer
   reads it, and its keys go into xfer->offer. false: a device refuses; xfer_free then gives back the other
   registrations. */
bool xfer_pin(const struct verbs_endpoint *endpoint, struct verbs_xfer *xfer, const void *at, size_t bytes,
    bool is_written);
/* Gives back the registrations of an xfer that is in no list, and frees it. */
void xfer_free(struct nic *nic, struct verbs_xfer *xfer);
/* Frees an xfer that is in no list, and completes its op. why NULL: with success. */
void xfer_complete(struct fabric *fabric, struct verbs_xfer *xfer, const char *why);
/* Appends an xfer to the list. */
void xfer_list_append(struct verbs_xfer **list, struct verbs_xfer *xfer);
/* Removes an xfer from the list, which must have it. */
void xfer_list_remove(struct verbs_xfer **list, const struct verbs_xfer *xfer);
/* Completes every xfer of the endpoint for the reason `why`. */
void verbs_endpoint_complete_all(struct fabric *fabric, struct verbs_endpoint *endpoint, const char *why);

/* ---- messages.c ---- */
/* The next three implement fabric_operations. */
bool verbs_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced);
bool verbs_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void verbs_release(struct fabric *fabric, void *descriptor);
/* Sends the waiting messages and posts the waiting reads while there is room, and sends ACK if the ring owes one. */
void verbs_endpoint_progress(struct fabric *fabric, struct verbs_endpoint *endpoint);
/* Completes a fetch whose reads are all complete, and sends DONE. */
void verbs_endpoint_complete_fetch(struct fabric *fabric, struct verbs_endpoint *endpoint, struct verbs_xfer *fetch);
/* Handles the message in the eager ring that a completion reports. */
void verbs_endpoint_receive(struct fabric *fabric, struct verbs_endpoint *endpoint, const struct ibv_wc *wc);

/* ---- eager_ring.c ---- */
/* Builds the message of an xfer and writes it to the peer's eager ring. false: the eager ring or the send queue has no
   room now. A failed write breaks the endpoint. */
bool eager_ring_send_xfer(struct fabric *fabric, struct verbs_endpoint *endpoint, const struct verbs_xfer *xfer);
/* Sends ACK or GOODBYE. is_signalled: the write has a completion. false: there is no room now. */
bool eager_ring_send_control(struct fabric *fabric, struct verbs_endpoint *endpoint, enum verbs_message_kind kind,
    bool is_signalled);
/* Returns whether a quarter of the eager ring or more is read and not acknowledged. */
static inline bool eager_ring_owes_ack(const struct eager_ring *ring)
{
    return ring->consumed - ring->acked >= RING_BYTES / 4;
}
/* Copies the prefix of the message that a completion reports to `out`. Returns the address behind the prefix, or NULL
   if the peer has written an invalid message. */
unsigned char *eager_ring_read_prefix(const struct eager_ring *ring, const struct ibv_wc *wc, struct prefix *out);

/* ---- endpoints.c ---- */
/* Creates an endpoint to the process of this address and nonce, and adds it to the fabric. The handshake then opens it.
   Errors: SYSTEM, NO_MEMORY. */
tutti_status verbs_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const struct verbs_address *address, struct verbs_endpoint **out);
/* Returns SYSTEM, with the text that one host has InfiniBand and the other RoCE. */
tutti_status verbs_fail_link_layers(const struct nic *nic);
/* Implements fabric_operations.connect. */
tutti_status verbs_connect_process(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
/* Marks the endpoint as broken for the reason `why`, destroys its queue pairs, and fails its xfers. */
void verbs_endpoint_fail(struct fabric *fabric, struct verbs_endpoint *endpoint, const char *why);
/* Destroys all endpoints. */
void verbs_endpoints_destroy(struct fabric *fabric);
