/* One rank's end in one communicator: its links to the others, what UCX is at for it, and what has come for it. */
#pragma once
#include "backend/transports/ucx/worker.h"

enum {
    EAGER_BYTES = 65536,   /* up to so many a message leaves with its bytes */
    CREDIT_BYTES = 262144, /* of such messages that a peer has been sent and that have not met their receive yet */
    LEAST_CHARGE = 64,     /* of each */
    HOLD_MS = 1000         /* how long a connection that broke is held, for the reason to come by another way */
};
struct link { /* with one rank */
    int rank;
    bool lost, unreachable;    /* unreachable: no endpoint can be had */
    int64_t broken_ms;         /* since when a connection with its process is broken; 0: none is */
    ucs_status_t status;       /* of that */
    struct endpoint *endpoint; /* NULL: none yet */
    uint32_t sent, heard;      /* messages */
    uint64_t charged, returned; /* to it: bytes of eager messages; that it has given back */
    uint64_t owed, told;       /* of it: that have met their receive; and of which it knows */
    struct queue waiting;      /* sends, until there is an endpoint */
    struct queue held;         /* transfers that a broken connection has ended */
    struct parked *parked;     /* oldest first */
};
struct ucx_port {
    struct transport base;
    uint64_t comm;
    int rank, size;
    struct ucx_ground ground;
    struct link *links;        /* [size] */
    struct flight *flights, *landed;
    struct notes notes;
    int waiting;               /* links whose sends wait for an endpoint */
    bool armed, matched, owes; /* matched, owes: a link has receives to begin, credit to give back */
    int broken;                /* links that are, and not lost yet */
    unsigned breaks;           /* of the worker that are known here */
    bool starved, refuses;     /* refuses: a sender is to be told that its message is refused */
    uint64_t ids;
    struct ucx_port *next;
};
static inline uint64_t charge_of(uint64_t bytes) { return bytes < LEAST_CHARGE ? LEAST_CHARGE : bytes; }
static inline bool link_owes_much(const struct link *link) { return link->owed - link->told >= CREDIT_BYTES / 4; }
/* An eager message of so many bytes has met its receive. */
static inline void link_owe(struct ucx_port *p, struct link *link, uint64_t bytes)
{
    link->owed += charge_of(bytes);
    p->owes |= link_owes_much(link);
}

/* ---- departure.c ---- */
void port_send(struct ucx_port *p, struct link *link, struct transfer *x);
void port_send_waiting(struct ucx_port *p);             /* those that now have an endpoint */
/* Kind, name, id and bytes of `said`. false: it cannot be told. */
bool port_tell(struct ucx_port *p, struct link *link, const struct header *said);
void port_return_credit(struct ucx_port *p);
void port_end_landed(struct ucx_port *p);               /* transfers that UCX is done with */
void port_refused(struct ucx_port *p, const struct header *header);
void link_note_broken(struct ucx_port *p, struct link *link, ucs_status_t status);
bool link_connect(struct ucx_port *p, struct link *link);  /* true: it has an endpoint; false: not yet, or never */
/* ---- arrival.c ---- */
void port_let_go(struct ucx_port *p, const struct header *withdrawal);
void port_hear_notes(struct ucx_port *p);
void port_accept(struct ucx_port *p, struct link *link, struct transfer *x, struct parked *parked, uint64_t bytes);
void port_refuse(struct ucx_port *p);
void port_begin_matched(struct ucx_port *p);            /* receives that met an announced message in a callback */
void link_forget_arrivals(struct link *link);
bool link_forget_receive(struct link *link, const struct transfer *x);
