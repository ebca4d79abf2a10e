/* One rank's end of a fabric in one communicator: its links to the others, what the fabric is at for it, and what has
 * come for it. Everything here is touched with the fabric's lock held; the router and its matching only by the rank's
 * own thread, in a call of the contract. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum {
    CREDIT_BYTES = 262144, /* of eager messages that a peer has been sent and that have not met their receive yet */
    LEAST_CHARGE = 64,     /* of each */
    PENDING_RNDV_MOST = 65536, /* announced and saved messages of a rank that no receive has taken */
    PENDING_RNDV_BUCKETS = 256,
    HOLD_MS = 1000,        /* how long a connection that broke is held, for the reason to come by another way */
    UNCONNECTED_MS = 3000  /* after which it is said that messages go by another network */
};
struct fabric_link { /* with one rank */
    int rank;
    bool lost;
    bool refused; /* beside another network: a connection that nobody waited for was, and is not asked for */
    tutti_status unreachable;  /* not OK: why no endpoint can be had */
    int64_t asked_ms; /* beside another: since when one is asked for; INT64_MAX: it has been said that none is */
    int64_t broken_ms;         /* since when a connection with its process is broken; 0: none is */
    const char *why;           /* it is */
    struct endpoint *endpoint; /* NULL: none yet */
    uint64_t charged, returned; /* to it: bytes of eager messages; that it has given back */
    uint64_t owed, told;       /* of it: that have met their receive; and of which it knows */
    uint64_t arrived;          /* of it: that have come */
    uint64_t announced;        /* by it: the id of its latest message */
    int pending;                /* of PENDING_RNDV_MOST */
    const struct endpoint *by; /* it was heard last: of its process */
    struct queue waiting;      /* sends, until there is an endpoint */
    struct queue held;         /* transfers that a broken connection has ended */
};
/* An announced message that nobody has asked for yet. It is found by the link that it came from and its id, which no
   other message of that link has. */
struct pending_rndv {
    struct pending_rndv *next, **at; /* of its bucket */
    struct pending_rndv *next_due;   /* of the port's `met` or `refusing` */
    bool due;                  /* it is in one of them */
    struct fabric_link *link;
    struct message_name name;
    void *descriptor; /* NULL: it was withdrawn */
    size_t bytes;
    uint64_t id, wire;
    struct transfer *receive; /* that has met it; NULL: none yet */
    uint64_t wanted;          /* of refusing: bytes of the receive that has */
};
struct due { struct pending_rndv *first, *last; }; /* oldest first */
struct fabric_transport {
    struct transport base;
    struct fabric *fabric;
    uint64_t comm;
    int rank, size;
    struct fabric_callbacks callbacks;
    struct fabric_link *links;        /* [size] */
    struct fabric_op *ops, *completed;
    struct saved_msgs saved_msgs, ahead; /* ahead: that wait for others, which come by another network */
    struct pending_rndv *pending[PENDING_RNDV_BUCKETS];
    struct due met, refusing; /* receives to begin; senders to be told that their message is refused */
    int waiting;               /* links whose sends wait for an endpoint */
    bool armed, owes;          /* owes: a link has credit to give back */
    int broken;                /* links that are, and not lost yet */
    unsigned breaks;           /* of the fabric that are known here */
    bool out_of_memory;
    uint64_t ids;
    struct fabric_transport *next;
};
static inline uint64_t charge_of(uint64_t bytes) { return bytes < LEAST_CHARGE ? LEAST_CHARGE : bytes; }
static inline bool link_owes_much(const struct fabric_link *link)
{
    return link->owed - link->told >= CREDIT_BYTES / 4;
}
/* An eager message of so many bytes has met its receive. */
static inline void link_owe(struct fabric_transport *p, struct fabric_link *link, uint64_t bytes)
{
    link->owed += charge_of(bytes);
    p->owes |= link_owes_much(link);
}

/* ---- departure.c ---- */
enum readiness port_readiness(struct fabric_transport *p, struct fabric_link *link);
void port_send(struct fabric_transport *p, struct fabric_link *link, struct transfer *x);
bool port_send_waiting(struct fabric_transport *p); /* those whose link now has an endpoint; false: none has */
/* Kind, name, id and bytes of `said`. false: it cannot be told. */
bool port_tell(struct fabric_transport *p, struct fabric_link *link, const struct header *said);
void port_return_credit(struct fabric_transport *p);
void port_end_completed(struct fabric_transport *p);               /* transfers that the fabric is done with */
void port_refused(struct fabric_transport *p, const struct header *header);
void link_mark_broken(struct fabric_transport *p, struct fabric_link *link, const char *why);
/* true: the link has an endpoint; false: not yet, or never. */
bool link_connect(struct fabric_transport *p, struct fabric_link *link);
/* This network does not connect, but another one may: logs why. */
void link_mark_refused(struct fabric_transport *p, struct fabric_link *link, const char *why);
/* ---- arrival.c ---- */
/* A message for it has come, or has waited for it: `data` of an announced one is the descriptor. true: it is kept. */
bool port_hear(struct fabric_transport *p, struct endpoint *from, const struct header *header, void *data, size_t bytes,
    bool announced);
void port_handle_saved_msgs(struct fabric_transport *p);
void port_accept(struct fabric_transport *p, struct fabric_link *link, struct transfer *x, uint64_t id, uint64_t bytes);
void port_refuse(struct fabric_transport *p);
void port_begin_met(struct fabric_transport *p); /* receives that met an announced message in a callback */
bool port_hear_ahead(struct fabric_transport *p);               /* those whose turn has come; false: none */
void port_forget_arrivals(struct fabric_transport *p, const struct fabric_link *link); /* from it; NULL: from all */
bool link_forget_receive(struct fabric_transport *p, struct fabric_link *link, const struct transfer *x);

/* ---- port.c, for what a fabric tells ---- */
struct fabric_transport *port_find(const struct fabric *fabric, uint64_t comm, int rank);
bool port_was_closed(const struct fabric *fabric, uint64_t comm, int rank);
void port_save_msg(struct fabric_transport *p, struct saved_msg *msg); /* is heard in its next poll */
void port_complete(struct fabric_transport *p, struct fabric_op *op);
void port_starve(struct fabric_transport *p); /* no memory to save a message: it fails in its next poll */
void ports_wake(const struct fabric *fabric); /* all that sleep */

/* ---- ops.c, thread.c ---- */
void fabric_op_add(struct fabric_op *op, struct fabric_op **list);
void fabric_op_remove(struct fabric_op *op);
void fabric_ops_free(struct fabric *fabric); /* those that are kept */
tutti_status thread_start(struct fabric *fabric);
void thread_stop(struct fabric *fabric); /* lets go of the lock meanwhile */
void thread_wake(struct fabric *fabric);
