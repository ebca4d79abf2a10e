/* This process's end of the network: its *rails*, of which each is a port of a device, or one more pair of queues on a
 * port. Touched with the lock of its fabric held.
 *
 * With each process that it speaks to it has a *lane* on each rail, a pair of queues (RC). Messages go by the first: on
 * each side of it is a *box*, memory into which the other writes its messages one after the other, with an immediate
 * that says where. How much of its box a process has heard it says with whatever it sends; so the other knows how much
 * room there is. What a process writes it first puts together in memory of its own, laid out like the other's box.
 * What is large is read, by all lanes that both have.
 * Greetings go by datagrams (UD), which need no pair and may get lost. */
#pragma once
#include "backend/transports/fabric/fabric.h"
#include "backend/transports/verbs/device.h"
#include "backend/transports/verbs/registration.h"

enum {
    BOX_BYTES = 1 << 18,     /* of each pair of processes and direction */
    BOX_RESERVE = 4096,      /* of it: for what makes room again */
    BOX_GRAIN = 128,         /* messages begin at multiples */
    SENDS = 256,             /* work requests that a pair may have open */
    SEND_SIGNALS = 32,       /* at least one in so many is signalled */
    RECEIVES = 4096,         /* of all pairs together */
    RECEIVES_AT_ONCE = 64,   /* posted anew */
    READS_AT_ONCE = 32,
    READ_BYTES = 1 << 20,    /* of each */
    SHARE_BYTES = 1 << 16,   /* of a message a lane reads so many, or a multiple */
    INLINE_BYTES = 128,      /* a message of so many bytes leaves with its work request, if the device can */
    RAILS_MOST = 4,
    LANE_BUCKETS = 1024,
    GREETING_SLOTS = 64,
    PAIRS_AT_FIRST = 16      /* of processes, whose completions there is room for */
};
struct verbs_address { /* how others reach a pair of queues */
    uint8_t gid[16];
    uint32_t pair; /* of a process: of its datagrams */
    uint16_t lid;
    uint8_t ethernet : 1, mtu : 7, reads; /* reads: that it answers at a time */
    uint64_t life;                        /* of a process: of its fabric */
};
/* What a message in a box is. */
enum verbs_what { EAGER, OFFER, DONE, HEARD, GOODBYE };
struct prefix { /* before each */
    uint64_t position; /* where it ends, counted from the first */
    uint64_t heard;    /* of the other's messages, likewise */
    uint32_t what, bytes;
};
/* EAGER: header, data. OFFER: header, this. DONE: the id of an offer that nobody needs any more. */
struct offer {
    uint64_t at, bytes, id;
    uint32_t keys[RAILS_MOST]; /* by the rails of who offers */
};
struct descriptor { /* of an offer that has come */
    struct verbs_endpoint *from;
    struct offer offer;
};
/* What an op is at here. In one list of its endpoint: waiting for room, offered, or fetching. */
struct verbs_xfer {
    struct verbs_xfer *next, **at;
    struct fabric_op *op; /* NULL: of nobody (DONE) */
    enum verbs_what what;
    const void *data;    /* of a message, until it is put together */
    struct offer offer;  /* mine; or the other's, of what is fetched */
    unsigned char *into; /* where it is fetched to */
    size_t asked;        /* bytes of it that reads are posted for */
    int open;            /* doorbells of them that are not over */
    struct registered memory[RAILS_MOST]; /* by adapter; no region: it is not registered */
};
struct posted { /* a work request that is open */
    struct verbs_xfer *fetch; /* it is the last read of a doorbell; else NULL */
    uint64_t position;    /* of what is put together so far */
};
struct verbs_endpoint;
struct lane { /* of an endpoint and a rail */
    struct verbs_endpoint *endpoint;
    const struct rail *rail;
    struct lane *next_of_bucket;
    struct ibv_qp *pair;
    struct posted posted[SENDS];
    unsigned begun, ended, last_signalled; /* work requests */
};
struct box { /* both of a pair: `in` is written by the other; `out` is laid out like the other's */
    unsigned char *in, *out;
    struct ibv_mr *in_region, *out_region;
    uint64_t there; /* the other's */
    uint32_t there_key;
    uint64_t written, sent, left; /* mine: put together; known to have been sent; that the other has heard */
    uint64_t signalled;           /* the last position that a completion will tell of */
    uint64_t heard, told;         /* the other's: heard here, and of that it knows */
};
struct verbs_endpoint {
    struct endpoint base;
    struct verbs_address address;
    struct ibv_ah *address_handle;
    uint64_t theirs; /* the turn of its endpoint to us; 0: not known yet */
    bool owes_answer, hopeless; /* hopeless: the device does not connect it */
    int64_t said_ms, poll_timeout_ms; /* when it was greeted last, and how long until it is greeted again */
    uint32_t inline_bytes;
    struct box box;
    struct lane lanes[RAILS_MOST];
    int lane_count, next_lane; /* of those that both have; 0 until they are connected */
    struct verbs_xfer *waiting, *reading, *offered, *fetching; /* waiting, reading: for room, the oldest first */
};
struct greeter {
    struct ibv_qp *pair;
    struct ibv_mr *region;
    unsigned char *memory;
    unsigned free_slots[GREETING_SLOTS];
    int free_count;
};
struct adapter { /* a device that is used, with what all its rails have in common */
    const struct device_port *port; /* of the first of them: errors name it */
    struct ibv_device_attr about;
    struct ibv_pd *domain;
    struct ibv_comp_channel *channel;
    struct ibv_cq *completions;
    struct registration *memory;
    int index;
    int beside; /* completions that are no lane's */
    int lanes;  /* there are */
};
struct rail {
    const struct device_port *port;
    struct adapter *adapter;
};
struct nic {
    struct devices *devices;
    struct adapter adapters[RAILS_MOST]; /* the first is that of messages */
    struct rail rails[RAILS_MOST];
    int adapter_count, rail_count;
    struct ibv_srq *receives;
    int used_receives;
    struct greeter greeter;
    struct lane *bucket[LANE_BUCKETS]; /* by the number of their pair */
    bool stalled;  /* some endpoint has xfers that wait, or has heard much that it has not told */
    uint32_t psn;
    uint64_t ids;
};
static inline struct nic *nic_of(const struct fabric *fabric) { return fabric->own; }
static inline struct verbs_endpoint *verbs_of(struct endpoint *e) { return (struct verbs_endpoint *)e; }
/* By which work requests of its pairs are told from those of pairs that are no more. */
static inline uint64_t endpoint_tag(const struct verbs_endpoint *e) { return e->base.turn % UINT32_MAX + 1; }

/* ---- nic.c: made, destroyed, found ---- */
tutti_status nic_create(const struct fabric *fabric, const struct fabric_place *place, struct nic **out);
void nic_destroy(struct nic *nic); /* NULL, and half built, too */
struct verbs_address verbs_address_of(const struct rail *rail, const struct ibv_qp *pair);
struct verbs_address nic_address(const struct fabric *fabric);
struct lane *nic_find(const struct nic *nic, const struct adapter *adapter, uint32_t pair);
static inline int int_smaller(int a, int b) { return a < b ? a : b; }
static inline uint8_t reads_at_once(int most) { return (uint8_t)(most > 16 ? 16 : most < 1 ? 1 : most); }
static inline const struct device_port *nic_port(const struct nic *nic) { return nic->rails[0].port; } /* of messages */
bool nic_post_receives(struct nic *nic); /* as many as have been used; false: the device refuses */

/* ---- adapter.c ---- */
/* `beside`: completions that are no lane's; `lanes`: for so many there is room at first. What has begun is for
   adapter_finish. */
tutti_status adapter_init(struct adapter *adapter, const struct device_port *port, int beside, int lanes);
void adapter_finish(struct adapter *adapter);
/* One lane more is to come: there is room for the completions of all. SYSTEM: the device has no more of it. */
tutti_status adapter_expect_lane(struct adapter *adapter);
tutti_status device_refused(const struct device_port *port, const char *what); /* of a call that has failed, by errno */

/* ---- lanes.c: an endpoint's queues ---- */
tutti_status lanes_create(struct nic *nic, struct verbs_endpoint *e);
void lanes_destroy(struct nic *nic, struct verbs_endpoint *e); /* from here on no device touches memory for it */
tutti_status lane_address(const struct nic *nic, struct verbs_endpoint *e); /* for datagrams, by its address */
/* With that of the other process which has this address. */
tutti_status lane_connect(const struct nic *nic, struct lane *lane, const struct verbs_address *address, uint32_t psn);

/* ---- requests.c: what is posted to them ---- */
bool lane_has_room(const struct lane *lane);
/* What was put together from `begin` on. 0, or why the device refuses it. */
int requests_write(struct verbs_endpoint *e, uint64_t begin, size_t bytes, bool signalled);
/* Of a fetch as much as there is room for, in one doorbell of each lane. */
int requests_read(struct verbs_endpoint *e, struct verbs_xfer *fetch);
/* A signalled work request is over: the fetch that is over with it, or NULL. */
struct verbs_xfer *requests_end(struct lane *lane, unsigned request);

/* ---- greeting.c ---- */
tutti_status greeter_init(const struct fabric *fabric, struct nic *nic);
void greeter_finish(struct nic *nic);
void greeter_part(struct fabric *fabric, struct verbs_endpoint *e); /* tells the other that it is given up */
void greeter_hear(struct fabric *fabric, const struct ibv_wc *wc);
void verbs_greet(struct fabric *fabric);

/* ---- messages.c ---- */
bool verbs_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
bool verbs_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void verbs_release(struct fabric *fabric, void *descriptor);
/* With what waits, and with what it owes the other. */
void endpoint_go_on(struct fabric *fabric, struct verbs_endpoint *e);
struct descriptor *descriptor_new(struct verbs_endpoint *e, const void *offer); /* NULL: out of memory */
bool endpoint_offer_done(struct fabric *fabric, struct verbs_endpoint *e, uint64_t id); /* false: there is none */
void endpoint_fetched(struct fabric *fabric, struct verbs_endpoint *e, struct verbs_xfer *fetch);
/* All that is under way over it completes so. */
void endpoint_complete_all(struct fabric *fabric, struct verbs_endpoint *e, const char *why);
/* ---- box.c ---- */
/* Puts a message together where the other's box has room for it, and sends it. false: there is none now. */
bool box_send(struct fabric *fabric, struct verbs_endpoint *e, const struct verbs_xfer *xfer);
bool box_tell(struct fabric *fabric, struct verbs_endpoint *e, enum verbs_what what, bool signalled);
bool box_owes(const struct box *box); /* much was heard that the other does not know of */
void box_hear(struct fabric *fabric, struct verbs_endpoint *e, const struct ibv_wc *wc);
/* ---- endpoints.c ---- */
/* By the address and the nonce of its process; it is to be greeted before it is open. SYSTEM, NO_MEMORY. */
tutti_status endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const struct verbs_address *address, struct verbs_endpoint **out);
tutti_status refuse_link_layers(const struct nic *nic);
tutti_status verbs_connect(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
void verbs_disconnect(struct fabric *fabric, struct endpoint *endpoint);
void endpoint_fail(struct fabric *fabric, struct verbs_endpoint *e, const char *why);
void verbs_part(struct fabric *fabric);
void endpoints_destroy(struct fabric *fabric);
/* ---- verbs.c ---- */
bool verbs_progress(struct fabric *fabric);
