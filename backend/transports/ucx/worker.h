/* The fabric has one UCX worker, and one endpoint for each process that it exchanges messages with. Every access, each
   call of UCX included, holds the lock of ucx_fabric. UCX runs its callbacks within such calls. */
#pragma once
#include "backend/transports/ucx/library.h"
#include "backend/transports/ucx/ucx.h"

enum { UCX_MESSAGE_ID = 1, ENDPOINT_BUCKETS = 1024 };
/* Two processes exchange these messages about their connection. In their header, `id` is the number of the sender's
   endpoint. `bytes` is the number of the receiver's endpoint, or 0 while the sender does not know it. */
enum kind_of_ucx {
    /* HELLO carries the sender's address. */
    HELLO = KIND_OF_FABRIC,
    /* OPENED confirms that each process has received the other's HELLO. */
    OPENED,
    /* BYE announces that the sender is about to close, and BYE_HEARD acknowledges it. */
    BYE,
    BYE_HEARD
};
/* A notice is one of these messages. Only HELLO has an address. The proof follows the handshake or the address in
   `data`. */
struct notice {
    struct header header;
    union {
        struct {
            struct fabric_handshake handshake;
            unsigned char address[FABRIC_ADDRESS_BYTES];
        };
        unsigned char data[sizeof(struct fabric_handshake) + FABRIC_ADDRESS_BYTES + PROOF_BYTES];
    };
};
/* UCX does not report the connection by which a message came. So each end chooses a random number and sends
   it only to the process at the other end, which sends it behind the header of each message (op->connection_number). */
struct ucx_endpoint {
    struct endpoint base;
    struct ucx_endpoint *next_of_bucket;
    /* NULL: the endpoint was disconnected. */
    ucp_ep_h ep;
    /* `number` names this endpoint. `peer_number` names the other process's endpoint to this one; 0: it is unknown. */
    uint64_t number, peer_number;
    /* This process has sent HELLO, and OPENED, over this endpoint. */
    bool has_sent_hello, has_sent_opened;
    /* The peer has acknowledged BYE. */
    bool has_bye_answer;
};
struct worker {
    ucp_context_h context;
    ucp_worker_h ucp;
    /* `handshakes` holds HELLO and OPENED messages with a valid proof until ucx_advance_handshakes handles them. */
    struct saved_msgs handshakes;
    /* The buckets hold the endpoints by their number. */
    struct ucx_endpoint *bucket[ENDPOINT_BUCKETS];
    /* `byes_open` counts the sent BYE messages that peers have not acknowledged yet. */
    int byes_open;
};
extern struct worker worker;

/* ---- messages.c ---- */
/* ucx_send, ucx_fetch and ucx_release implement fabric_operations. */
bool ucx_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced);
/* Sends op->header, the connection number and op->bytes bytes of `data` (NULL: of op->buffer), with these flags of UCX.
   false: the op has already completed, and op->why has the result. */
bool ucx_send_with_flags(struct fabric_op *op, const void *data, unsigned flags);
bool ucx_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void ucx_release(struct fabric *fabric, void *descriptor);
/* UCX calls this function for each received message. INPROGRESS: this process keeps `data`, the descriptor of an
   announced message. */
ucs_status_t ucx_on_message(void *unused, const void *header, size_t header_bytes, void *data, size_t bytes,
    const ucp_am_recv_param_t *parameters);

/* ---- notices.c ---- */
/* Fills in a notice of this kind about the endpoint, and returns the number of bytes of its data, proof included. */
size_t notice_make(const struct fabric *fabric, const struct ucx_endpoint *endpoint, enum kind_of_ucx kind,
    struct notice *out);
/* Copies a received notice to `out` and checks its proof. false: the proof or the length is wrong. *bytes is the length
   of `data`; the function reduces it by the length of the proof. */
bool notice_read(const struct fabric *fabric, const struct header *header, const void *data, size_t *bytes,
    struct notice *out);

/* ---- endpoints.c ---- */
/* Creates an endpoint to the process with this nonce at this address of `bytes` bytes, and adds it to the fabric.
   ucx_advance_handshakes then opens it. Errors: SYSTEM, NO_MEMORY. */
tutti_status ucx_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
/* Returns the endpoint with this number. Returns NULL if there is no such endpoint, or if it was disconnected: UCX may
   still deliver messages that came over it before. */
struct ucx_endpoint *ucx_endpoint_find_by_number(uint64_t number);
/* Handles the received handshake messages and sends those that are due. The caller calls it after every progress while
   fabric->needs_poll is set, and never in a callback of UCX. */
void ucx_advance_handshakes(struct fabric *fabric);
/* Handles a received notice, or saves it for ucx_advance_handshakes. A notice with a wrong proof is ignored. */
void ucx_handle_notice(struct fabric *fabric, const struct header *header, const void *data, size_t bytes);
/* Handles the completion of a notice that this process has sent. op->why is NULL after success. */
void ucx_on_notice_sent(struct fabric *fabric, const struct fabric_op *op);
/* Finishes handshakes and exchanges BYE with the peers of open endpoints, for up to 300 ms together. Then closes every
   endpoint by force. */
void ucx_endpoints_shutdown(struct fabric *fabric);
/* Closes the endpoint by force. */
void ucx_endpoint_disconnect(struct fabric *fabric, struct endpoint *endpoint);
/* Frees all endpoints. The worker must be destroyed before, because it may still complete sends over them. */
void ucx_endpoints_free(struct fabric *fabric);

/* ---- ports.c ---- */
/* Checks that a port of TUTTI_PORTS is free, and sets *lock for ucx_unlock_ports, which the caller calls when UCX
   listens. SYSTEM: the range is used up. */
tutti_status ucx_reserve_port(int *lock);
void ucx_unlock_ports(int lock);
