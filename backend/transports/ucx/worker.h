/* What this fabric has of UCX: one worker, an endpoint for each process that it speaks to. Touched with the lock of
   ucx_fabric held, UCX itself included; callbacks of UCX run inside of ucp_worker_progress. */
#pragma once
#include "backend/transports/ucx/library.h"
#include "backend/transports/ucx/ucx.h"

enum { UCX_MESSAGE_ID = 1, ENDPOINT_BUCKETS = 1024 };
enum kind_of_ucx { /* of one process to the other: `id` is my endpoint's number, `bytes` that of yours, if I know it */
    HELLO = KIND_OF_FABRIC, /* my address */
    OPENED,                 /* we have heard each other's */
    BYE,                    /* I am about to close */
    BYE_HEARD
};
struct notice { /* such a message */
    struct header header;
    union {
        struct {
            struct greeting greeting;
            unsigned char address[FABRIC_ADDRESS_BYTES]; /* of HELLO */
        };
        unsigned char data[sizeof(struct greeting) + FABRIC_ADDRESS_BYTES + PROOF_BYTES]; /* with the proof behind it */
    };
};
/* UCX does not say by which connection a message came. So each end has a number, drawn at random, which only the
   process at the other end is told: what it sends has that number behind the header (op->connection). */
struct ucx_endpoint {
    struct endpoint base;
    struct ucx_endpoint *next_of_bucket;
    ucp_ep_h ep;
    uint64_t number, theirs; /* theirs: of its endpoint to us; 0: not known yet */
    bool said, opens;        /* HELLO is said, OPENED is sent */
    bool heard;              /* it has heard our BYE */
};
struct worker {
    ucp_context_h context;
    ucp_worker_h ucp;
    struct saved_msgs greetings; /* HELLO and OPENED that are proved, not acted upon yet */
    struct ucx_endpoint *bucket[ENDPOINT_BUCKETS]; /* by their number */
    int byes_open;          /* not heard yet */
};
extern struct worker worker;

/* ---- messages.c ---- */
bool ucx_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
bool ucx_send_flags(struct fabric_op *op, const void *data, unsigned flags);
bool ucx_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void ucx_release(struct fabric *fabric, void *descriptor);
ucs_status_t ucx_on_message(void *unused, const void *said, size_t said_bytes, void *data, size_t bytes,
    const ucp_am_recv_param_t *p);

/* ---- notices.c ---- */
/* Bytes of its data. */
size_t notice_make(const struct fabric *fabric, const struct ucx_endpoint *e, enum kind_of_ucx kind,
    struct notice *out);
/* false: its proof is not right. *bytes: of its data, which then are those without the proof. */
bool notice_read(const struct fabric *fabric, const struct header *header, const void *data, size_t *bytes,
    struct notice *out);

/* ---- endpoints.c ---- */
/* It is to be greeted before it is open. SYSTEM, NO_MEMORY. */
tutti_status ucx_endpoint_create(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
struct ucx_endpoint *ucx_endpoint_numbered(uint64_t number); /* NULL: there is none */
void ucx_greet(struct fabric *fabric); /* while it needs polling, after every progress; never in a callback */
void ucx_hear(struct fabric *fabric, const struct header *header, const void *data, size_t bytes);
void ucx_said(struct fabric *fabric, const struct fabric_op *op); /* to the process; it has completed */
void ucx_part(struct fabric *fabric);
void ucx_disconnect(struct fabric *fabric, struct endpoint *endpoint);
void ucx_endpoints_free(struct fabric *fabric); /* after the worker, which may still end what was sent over them */
