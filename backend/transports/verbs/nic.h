/* The network of this process consists of *rails*; each is a port of a device, or one more queue pair on a port. Every
 * access holds the lock of the fabric.
 *
 * For each peer the process has one *lane* on each rail, which is a queue pair (RC). Messages use the first lane. Each
 * side has an *eager ring* into which the peer writes its messages one after another by RDMA write; the immediate value
 * is the position. Each message also carries how far its sender has read its own eager ring, so the peer knows how much
 * room is left. The sender first builds a message in its own memory, which has the layout of the peer's eager ring. The
 * receiver reads large messages by RDMA read over all lanes that both processes have. Handshakes use datagrams (UD),
 * which need no connected pair and may get lost. */
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
    /* All queue pairs share RECEIVES receives, which are posted again in lots of 64. */
    RECEIVES = 4096,
    RECEIVES_AT_ONCE = 64,
    /* A doorbell posts up to 32 RDMA reads of up to READ_BYTES each. */
    READS_AT_ONCE = 32,
    READ_BYTES = 1 << 20,
    /* A lane reads a multiple of SHARE_BYTES of a message at a time. */
    SHARE_BYTES = 1 << 16,
    /* If the device can, a message of up to INLINE_BYTES is sent within its work request. */
    INLINE_BYTES = 128,
    RAILS_MOST = 4,
    LANE_BUCKETS = 1024,
    DATAGRAM_SLOTS = 64,
    /* A new completion queue has room for the lanes to this many processes. */
    PAIRS_AT_FIRST = 16,
    /* A received datagram begins behind the ROUTE_BYTES that the device puts at the start of its slot. */
    ROUTE_BYTES = 40,
    SLOT_BYTES = 512
};
/* The address of a queue pair. In the address of a process, `pair` is its datagram queue pair and `life` names its
   fabric. `reads` is the number of RDMA reads that the device answers at a time. */
struct verbs_address {
    uint8_t gid[16];
    uint32_t pair;
    uint16_t lid;
    uint8_t ethernet : 1, mtu : 7, reads;
    uint64_t life;
};
/* The types of messages in an eager ring. EAGER consists of header and data, OFFER of header and struct offer. DONE has
   the id of an offer that its receiver has finished with. ACK and GOODBYE have no data; ACK only acknowledges. */
enum verbs_what { EAGER, OFFER, DONE, ACK, GOODBYE };
/* The prefix precedes each message. `position` is where the message ends, counted from the start of the connection.
   `consumed` is the position up to which the sender has read its own eager ring. */
struct prefix {
    uint64_t position;
    uint64_t consumed;
    uint32_t what, bytes;
};
/* An offer announces a large message. `keys` are indexed by the rails of the process that offers. */
struct offer {
    uint64_t at, bytes, id;
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
    enum verbs_what what;
    /* `data` is the payload of an eager message that is not built yet. */
    const void *data;
    /* `offer` is this process's own offer, or the peer's offer that is fetched to `into`. */
    struct offer offer;
    unsigned char *into;
    /* `asked` counts the bytes for which reads are posted; `open` counts their doorbells that have not completed. */
    size_t asked;
    int open;
    /* `memory` is indexed by adapter; an entry without a region is not registered. */
    struct registered memory[RAILS_MOST];
};
/* An open work request. `fetch` is set only for the last read of a doorbell. `position` is the end of the messages that
   were built when the request was posted. */
struct posted {
    struct verbs_xfer *fetch;
    uint64_t position;
};
struct verbs_endpoint;
/* A lane is the queue pair of an endpoint on a rail. `begun`, `ended` and `last_signalled` count its work requests. */
struct lane {
    struct verbs_endpoint *endpoint;
    const struct rail *rail;
    struct lane *next_of_bucket;
    struct ibv_qp *pair;
    struct posted posted[SENDS];
    unsigned begun, ended, last_signalled;
};
/* The eager rings of a pair of processes. The peer writes `in`. `out` has the layout of the peer's eager ring, which
   lies at `there`. All positions count from the start of the connection. */
struct eager_ring {
    unsigned char *in, *out;
    struct ibv_mr *in_region, *out_region;
    uint64_t there;
    uint32_t there_key;
    /* Messages to the peer are built up to `written`, known to be sent up to `sent`, and read by the peer up to `left`.
       The next signalled completion reports the position `signalled`. */
    uint64_t written, sent, left;
    uint64_t signalled;
    /* Messages from the peer are read up to `consumed`; the peer was told so up to `acked`. */
    uint64_t consumed, acked;
};
struct verbs_endpoint {
    struct endpoint base;
    struct verbs_address address;
    struct ibv_ah *address_handle;
    /* `theirs` is the turn of the peer's endpoint to this process, or 0 while it is unknown. */
    uint64_t theirs;
    /* `connect_failed` is set when the device has refused to connect the endpoint. `owes_answer` is set when the peer
       needs another HELLO of this process. */
    bool owes_answer, connect_failed;
    /* `hello_ms` is the time of the last HELLO, and `repeat_ms` the time until the next. */
    int64_t hello_ms, repeat_ms;
    uint32_t inline_bytes;
    struct eager_ring ring;
    struct lane lanes[RAILS_MOST];
    /* `lane_count` is the number of lanes that both processes have, and 0 until they are connected. */
    int lane_count, next_lane;
    /* `waiting` messages wait for room in the eager ring, `reading` fetches for room in the send queues. The oldest is
       first. */
    struct verbs_xfer *waiting, *reading, *offered, *fetching;
};
struct datagram_queue {
    struct ibv_qp *pair;
    struct ibv_mr *region;
    unsigned char *memory;
    unsigned free_slots[DATAGRAM_SLOTS];
    int free_count;
};
/* An adapter is a device that this process uses, with the objects that all its rails share. */
struct adapter {
    /* `port` is the port of its first rail; errors name it. */
    const struct device_port *port;
    struct ibv_device_attr about;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    struct registration_cache *memory;
    int index;
    /* `beside` is the room for completions of datagrams and receives; `lanes` counts the queue pairs. */
    int beside;
    int lanes;
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
    struct ibv_srq *receives;
    int used_receives;
    struct datagram_queue datagram_queue;
    /* The buckets hold the lanes by the number of their queue pair. */
    struct lane *bucket[LANE_BUCKETS];
    /* `stalled` is set when some endpoint has xfers that wait for room, or owes its peer an acknowledgement. */
    bool stalled;
    uint32_t psn;
    uint64_t ids;
};
static inline struct nic *nic_of_fabric(const struct fabric *fabric) { return fabric->own; }
static inline struct verbs_endpoint *verbs_endpoint_of(struct endpoint *endpoint)
{
    return (struct verbs_endpoint *)endpoint;
}
/* The tag in its work requests distinguishes an endpoint from a destroyed one whose queue pair had the same number. */
static inline uint64_t verbs_endpoint_tag(const struct verbs_endpoint *endpoint)
{
    return endpoint->base.turn % UINT32_MAX + 1;
}

/* ---- nic.c ---- */
tutti_status nic_create(const struct fabric *fabric, const struct fabric_place *place, struct nic **out);
/* Destroys a nic; NULL and a nic that nic_create has only begun are allowed. */
void nic_destroy(struct nic *nic);
struct verbs_address verbs_qp_address(const struct rail *rail, const struct ibv_qp *pair);
struct verbs_address nic_address(const struct fabric *fabric);
struct lane *verbs_nic_find_lane(const struct nic *nic, const struct adapter *adapter, uint32_t pair);
static inline int int_smaller(int a, int b) { return a < b ? a : b; }
static inline uint8_t rdma_reads_clamp(int most) { return (uint8_t)(most > 16 ? 16 : most < 1 ? 1 : most); }
/* Returns the port that messages use. */
static inline const struct device_port *nic_message_port(const struct nic *nic) { return nic->rails[0].port; }
/* Posts the receives again that completions have used up; returns false if the device refuses. */
bool verbs_nic_post_receives(struct nic *nic);

/* ---- adapter.c ---- */
/* Opens the shared objects of a device. The completion queue has room for `lanes` lanes at first, and for `beside`
   other completions. After an error the caller still calls adapter_finish. */
tutti_status adapter_init(struct adapter *adapter, const struct device_port *port, int beside, int lanes);
void adapter_finish(struct adapter *adapter);
/* Makes room for the completions of one more lane. SYSTEM means that the device has reached its limit. */
tutti_status verbs_adapter_reserve_lane(struct adapter *adapter);
/* Fails with SYSTEM and the reason in errno, after a call of the library has failed. */
tutti_status device_port_fail_call(const struct device_port *port, const char *what);

/* ---- lanes.c: an endpoint's queues ---- */
tutti_status lanes_create(struct nic *nic, struct verbs_endpoint *endpoint);
/* Destroys the queue pairs. From here on no device accesses memory for this endpoint. */
void lanes_destroy(struct nic *nic, struct verbs_endpoint *endpoint);
/* Creates the address handle by which datagrams reach the peer. */
tutti_status verbs_endpoint_create_ah(const struct nic *nic, struct verbs_endpoint *endpoint);
/* Connects a lane with the peer's queue pair of this address. */
tutti_status lane_connect(const struct nic *nic, struct lane *lane, const struct verbs_address *address, uint32_t psn);

/* ---- requests.c: the work requests of the lanes ---- */
bool lane_has_room(const struct lane *lane);
/* Writes the built message at position `begin` to the peer's eager ring. Returns 0, or the errno of the device. */
int verbs_endpoint_post_write(struct verbs_endpoint *endpoint, uint64_t begin, size_t bytes, bool signalled);
/* Posts as many reads of a fetch as have room, in one doorbell of each lane. Returns 0, or the errno of the device. */
int verbs_endpoint_post_reads(struct verbs_endpoint *endpoint, struct verbs_xfer *fetch);
/* Accounts for the completion of a signalled work request. Returns the fetch that is complete with it, or NULL. */
struct verbs_xfer *lane_complete_request(struct lane *lane, unsigned request);

/* ---- datagram_queue.c ---- */
tutti_status datagram_queue_init(const struct fabric *fabric, struct nic *nic);
void datagram_queue_finish(struct nic *nic);
/* Sends a datagram to the process of an endpoint; the queue must have a free slot. */
void datagram_queue_send(struct datagram_queue *queue, const struct verbs_endpoint *to, const void *datagram,
    size_t bytes);
/* Handles a completion of the queue. Returns true if it reports a datagram of `bytes` bytes, which is copied to
   `out`. */
bool datagram_queue_complete(struct datagram_queue *queue, const struct ibv_wc *wc, void *out, size_t bytes);

/* ---- handshake.c ---- */
/* Sends the peer a HELLO which reports that this endpoint is closed. */
void verbs_endpoint_send_closed(struct fabric *fabric, struct verbs_endpoint *endpoint);
/* Handles a completion of the datagram queue. */
void verbs_handle_datagram(struct fabric *fabric, const struct ibv_wc *wc);
void verbs_advance_handshakes(struct fabric *fabric);

/* ---- xfer.c: the life of an xfer ---- */
/* Returns NULL if memory is short. */
struct verbs_xfer *xfer_new(struct fabric_op *op, enum verbs_what what);
/* Registers the memory with each device that accesses it. If one refuses, the caller gives back the registrations that
   have succeeded, by xfer_free. */
bool xfer_pin(const struct verbs_endpoint *endpoint, struct verbs_xfer *xfer, const void *at, size_t bytes,
    bool writes);
void xfer_free(struct nic *nic, struct verbs_xfer *xfer);
/* Frees the xfer, which is in no list, and completes its op. `why` is NULL for success. */
void xfer_complete(struct fabric *fabric, struct verbs_xfer *xfer, const char *why);
void xfer_list_append(struct verbs_xfer **list, struct verbs_xfer *xfer);
void xfer_list_remove(struct verbs_xfer **list, const struct verbs_xfer *xfer);
/* Completes every xfer of the endpoint with this reason. */
void verbs_endpoint_complete_all(struct fabric *fabric, struct verbs_endpoint *endpoint, const char *why);

/* ---- messages.c ---- */
bool verbs_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
bool verbs_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void verbs_release(struct fabric *fabric, void *descriptor);
/* Sends the waiting messages, posts the waiting reads, and acknowledges if much is unacknowledged. */
void verbs_endpoint_progress(struct fabric *fabric, struct verbs_endpoint *endpoint);
void verbs_endpoint_complete_fetch(struct fabric *fabric, struct verbs_endpoint *endpoint, struct verbs_xfer *fetch);
/* Handles the message in the eager ring that a completion reports. */
void verbs_endpoint_receive(struct fabric *fabric, struct verbs_endpoint *endpoint, const struct ibv_wc *wc);

/* ---- eager_ring.c ---- */
/* Builds a message and writes it to the peer's eager ring; returns false if the eager ring or the send queue has no
   room now. */
bool eager_ring_send_xfer(struct fabric *fabric, struct verbs_endpoint *endpoint, const struct verbs_xfer *xfer);
bool eager_ring_send_control(struct fabric *fabric, struct verbs_endpoint *endpoint, enum verbs_what what,
    bool signalled);
/* Returns true if a quarter of the eager ring or more is read and not acknowledged. */
static inline bool eager_ring_owes_ack(const struct eager_ring *ring)
{
    return ring->consumed - ring->acked >= RING_BYTES / 4;
}
/* Reads the prefix of the message that a completion reports. Returns the bytes behind the prefix, or NULL if the peer
   has written an invalid message. */
unsigned char *eager_ring_read_prefix(const struct eager_ring *ring, const struct ibv_wc *wc, struct prefix *out);

/* ---- endpoints.c ---- */
/* Creates an endpoint to the process of this address and nonce, and adds it to the fabric. The handshake then opens it.
   Errors: SYSTEM, NO_MEMORY. */
tutti_status verbs_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const struct verbs_address *address, struct verbs_endpoint **out);
tutti_status verbs_fail_link_layers(const struct nic *nic);
tutti_status verbs_connect_process(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
void verbs_endpoint_fail(struct fabric *fabric, struct verbs_endpoint *endpoint, const char *why);
void verbs_endpoints_destroy(struct fabric *fabric);
