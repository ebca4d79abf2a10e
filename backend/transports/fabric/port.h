/* One rank's end of a fabric in one communicator: its links to the others, what the fabric is at for it, and what has
 * come for it. Everything here is touched with the fabric's lock held; the router and its matching only by the rank's
 * own thread, in a call of the contract. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum {
    CREDIT_BYTES = 262144, /* of eager messages that a peer has been sent and that have not met their receive yet */
    LEAST_CHARGE = 64,     /* of each */
    HOLD_MS = 1000,        /* how long a connection that broke is held, for the reason to come by another way */
    UNCONNECTED_MS = 3000  /* after which it is said that messages go by another network */
};
struct link { /* with one rank */
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
    struct queue waiting;      /* sends, until there is an endpoint */
    struct queue held;         /* transfers that a broken connection has ended */
    struct parked *parked;     /* oldest first */
};
/* An announced message that nobody has asked for yet. */
struct parked {
    struct parked *next;
    void *descriptor; /* NULL: it was withdrawn */
    size_t bytes;
    uint64_t id, wire;
    struct transfer *receive; /* that has met it; NULL: none yet */
    bool refused;             /* a receive that wants `wanted` bytes has; the sender is to be told so */
    uint64_t wanted;
};
struct port {
    struct transport base;
    struct fabric *fabric;
    uint64_t comm;
    int rank, size;
    struct fabric_ground ground;
    struct link *links;        /* [size] */
    struct flight *flights, *landed;
    struct notes notes, ahead; /* ahead: that wait for others, which come by another network */
    int waiting;               /* links whose sends wait for an endpoint */
    bool armed, matched, owes; /* matched, owes: a link has receives to begin, credit to give back */
    int broken;                /* links that are, and not lost yet */
    unsigned breaks;           /* of the fabric that are known here */
    bool starved, refuses;     /* refuses: a sender is to be told that its message is refused */
    uint64_t ids;
    struct port *next;
};
static inline uint64_t charge_of(uint64_t bytes) { return bytes < LEAST_CHARGE ? LEAST_CHARGE : bytes; }
static inline bool link_owes_much(const struct link *link) { return link->owed - link->told >= CREDIT_BYTES / 4; }
/* An eager message of so many bytes has met its receive. */
static inline void link_owe(struct port *p, struct link *link, uint64_t bytes)
{
    link->owed += charge_of(bytes);
    p->owes |= link_owes_much(link);
}

/* ---- departure.c ---- */
enum readiness port_readiness(struct port *p, struct link *link);
void port_send(struct port *p, struct link *link, struct transfer *x);
bool port_send_waiting(struct port *p);             /* those whose link now has an endpoint; false: none has */
/* Kind, name, id and bytes of `said`. false: it cannot be told. */
bool port_tell(struct port *p, struct link *link, const struct header *said);
void port_return_credit(struct port *p);
void port_end_landed(struct port *p);               /* transfers that the fabric is done with */
void port_refused(struct port *p, const struct header *header);
void link_note_broken(struct port *p, struct link *link, const char *why);
bool link_connect(struct port *p, struct link *link);  /* true: it has an endpoint; false: not yet, or never */
void link_note_refused(struct port *p, struct link *link, const char *why); /* beside another network; says so */
/* ---- arrival.c ---- */
void port_let_go(struct port *p, const struct header *withdrawal);
void port_hear_notes(struct port *p);
void port_accept(struct port *p, struct link *link, struct transfer *x, struct parked *parked, uint64_t bytes);
void port_refuse(struct port *p);
void port_begin_matched(struct port *p);            /* receives that met an announced message in a callback */
bool port_hear_ahead(struct port *p);               /* those whose turn has come; false: none */
void link_forget_arrivals(struct port *p, struct link *link);
bool link_forget_receive(struct port *p, struct link *link, const struct transfer *x);

/* ---- port.c, for what a fabric tells ---- */
struct port *port_find(const struct fabric *fabric, uint64_t comm, int rank);
bool port_was_closed(const struct fabric *fabric, uint64_t comm, int rank);
/* A message for it while it polls. true: the descriptor is kept. */
bool port_hear(struct port *p, const struct header *header, void *data, size_t bytes, bool announced);
void port_note(struct port *p, struct note *note); /* the same while it does not */
void port_land(struct port *p, struct flight *flight);
void port_starve(struct port *p); /* there was no memory to note a message: it fails in its next poll */
void ports_wake(const struct fabric *fabric); /* all that sleep */

/* ---- flights.c, thread.c ---- */
void flight_enlist(struct flight *flight, struct flight **list);
void flight_remove(struct flight *flight);
void flights_free(struct fabric *fabric); /* those that are kept */
tutti_status thread_start(struct fabric *fabric);
void thread_stop(struct fabric *fabric); /* lets go of the lock meanwhile */
void thread_wake(struct fabric *fabric);
