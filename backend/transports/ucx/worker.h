/* What all groups of a process share of UCX: one worker, an endpoint for each process that it speaks to, and a thread
 * that makes progress while nobody else does. Everything here is touched with worker.lock held, UCX itself included;
 * callbacks of UCX run inside of ucp_worker_progress, so with the lock, on whichever thread that is.
 *
 * What has come or is over is told to the transport whose it is: at once if it is the one that polls (worker.polling),
 * else through its lists `notes` and `landed`, and its bell is rung if it sleeps. */
#pragma once
#include "backend/transports/ucx/library.h"
#include "backend/transports/ucx/ucx.h"
#include <pthread.h>

enum { UCX_MESSAGE_ID = 1 };
enum kind {
    MESSAGE,   /* eager with its bytes, or announced: its bytes are fetched by rendezvous */
    CREDIT,    /* nothing but `returned` */
    WITHDRAWN, /* the announced message `id` is not to be fetched any more */
    REFUSED,   /* your announced message `id` is not fetched: the receive wants `bytes` */
    /* of one process to the other: `name` has its nonce */
    HELLO,     /* my card; `id` is my endpoint's number, `bytes` that of yours, as far as I know it */
    OPENED,    /* we have heard each other's */
    BYE,       /* I am about to close */
    BYE_HEARD
};
struct header { /* of every message; fixed size, no padding */
    uint64_t comm;
    struct message_name name;
    uint64_t bytes, id;
    uint64_t returned; /* bytes of eager messages that were sent unasked and have met their receive, so far */
    int32_t from, to;
    uint32_t sequence; /* of this sender to this receiver */
    uint32_t kind;
};
struct endpoint { /* to a process */
    unsigned char process[16];
    ucp_ep_h ep;
    uint64_t number, theirs; /* theirs: of its endpoint to us; 0: not known yet */
    bool said, opens, open;  /* HELLO is said, OPENED is sent, and messages may be */
    bool left;          /* it has said BYE: the end of the connection is none of a process */
    bool heard;         /* and has heard ours */
    int64_t broken_ms;  /* since when UCX says that it is broken; 0: it is not */
    ucs_status_t status;
    struct endpoint *next;
};
struct link;
struct ucx_port;
/* Something UCX is at: an eager message on its way (room has its bytes), an announced one, or one that is fetched. From
   its post until it has landed. */
struct flight {
    struct header header;
    struct ucx_port *owner; /* NULL: nobody is interested any more */
    struct link *link;
    struct endpoint *endpoint;
    struct transfer *transfer;      /* NULL: it is over for its caller */
    bool packed;                    /* the transfer's bytes go through room */
    bool refused;
    uint64_t theirs;                /* of refused */
    int64_t withdrawn_ms;           /* since when its caller wants it back; 0: it does not */
    ucs_status_t status;
    size_t bytes;                   /* that go over the wire */
    int class;
    struct flight *next, **at;      /* in owner->flights, then in owner->landed, then among the spare ones */
    unsigned char *room;
};
/* A message that has come while its transport did not poll. */
struct note {
    struct note *next;
    struct header header;
    bool announced;
    void *parked; /* of an announced one: UCX's descriptor */
    size_t bytes;
    unsigned char data[];
};
struct notes { struct note *first, *last; int count; };
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
enum { FLIGHT_CLASSES = 14 }; /* rooms of 256 bytes to 2 MiB are kept, others freed */
struct worker {
    pthread_mutex_t lock;
    int users;
    ucp_context_h context;
    ucp_worker_h ucp;
    unsigned char card[UCX_CARD_BYTES];
    size_t card_bytes;
    unsigned char process[16];
    struct endpoint *endpoints;
    struct ucx_port *ports, *polling;
    struct notes early;            /* for communicators that are not there yet */
    struct notes greetings;        /* HELLO and OPENED, not acted upon yet */
    bool greets;                   /* there are such, or endpoints that are not open yet */
    struct flight *spare[FLIGHT_CLASSES];
    int byes_open;                 /* not heard yet */
    unsigned breaks;               /* endpoints that have broken, ever */
    bool stopping;
    /* the thread */
    pthread_t thread;
    bool runs, stop;
    int event, waker;
    int armed;                     /* transports that sleep */
    unsigned touched;              /* by whoever polls */
};
extern struct worker worker;

void worker_pause(void); /* for some microseconds, without the lock */

/* ---- endpoints.c ---- */
struct endpoint *endpoint_find(const unsigned char process[16]); /* NULL: there is none, or it has broken */
/* To the process of that nonce, by its card; it is to be greeted before it is open. SYSTEM, NO_MEMORY. */
tutti_status endpoint_create(const unsigned char process[16], const unsigned char *card, size_t bytes,
    struct endpoint **out);
void endpoints_greet(void); /* as long as worker.greets, after every progress; never in a callback */
void endpoints_hear(const struct header *header, const void *data, size_t bytes);
void endpoint_said(const struct flight *flight); /* to the process; it has landed */
void endpoints_close(void);
/* Ends all that is on its way over it; what is sent later is refused. */
void endpoint_break(struct endpoint *endpoint, ucs_status_t why);
void endpoint_note_broken(struct endpoint *endpoint, ucs_status_t why);
static inline bool endpoint_is_broken(const struct endpoint *e) { return e->broken_ms != 0; }

/* ---- thread.c ---- */
tutti_status thread_start(void);
void thread_stop(void); /* lets go of the lock meanwhile */
void thread_wake(void);

/* ---- flights ---- */
struct flight *flight_new(size_t room);     /* NULL: out of memory */
void flight_free(struct flight *flight);
void flight_enlist(struct flight *flight, struct flight **list);
void flight_remove(struct flight *flight);
/* How its transport sends: NULL data: its room. false: it has landed already. */
bool flight_send(struct flight *flight, const void *data, unsigned flags);
bool flight_fetch(struct flight *flight, void *descriptor, void *buffer);

/* ---- of port.c, called by callbacks ---- */
struct ucx_port *port_find(uint64_t comm, int rank);
bool port_was_closed(uint64_t comm, int rank);
/* A message for it while it polls. true: the descriptor is kept. */
bool port_hear(struct ucx_port *p, const struct header *header, void *data, size_t bytes, bool announced);
void port_note(struct ucx_port *p, struct note *note); /* the same while it does not */
void port_land(struct ucx_port *p, struct flight *flight);
void port_starve(struct ucx_port *p); /* there was no memory to note a message: it fails in its next poll */
void ports_wake(void);                /* all that sleep */

/* ---- notes ---- */
/* Takes a copy of the data, or keeps the descriptor of what is announced. NULL: out of memory. */
struct note *note_new(const struct header *header, const void *data, size_t bytes, bool announced);
void notes_push(struct notes *notes, struct note *note);
struct note *notes_pop(struct notes *notes);
void note_free(struct note *note); /* and lets go of what is parked */
