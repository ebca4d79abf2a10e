/* This process's sockets: one that listens, one for each process that it speaks to, and those of callers that have not
 * proved yet who they are. Touched with the lock of their fabric held.
 *
 * What goes over a connection, after the handshake, are frames: a message with its bytes (EAGER), or announced (OFFER);
 * that the other's receive is there (PULL), and then its bytes in parts (DATA), each from the one tensor and into the
 * other; or that nobody will receive it (RELEASE). A frame that is begun is finished before another, and small ones go
 * before the next part. */
#pragma once
#include "backend/processes/handshake.h"
#include "backend/processes/tls.h"
#include "backend/transports/fabric/port.h"
#include <sys/epoll.h>

enum {
    PENDING_MOST = 128,       /* callers that have not proved who they are */
    PENDING_MS = 5000,        /* and have so long to do it */
    CALL_MS = 30000,          /* until a call that nobody answers has failed */
    RECALL_MS = 50,           /* until the next call, where a connection was closed before it was answered */
    RECALLS = 100,            /* so often: strangers may have taken all places there */
    BUFFER_BYTES = 128 << 10, /* one read takes so much of small frames */
    AHEAD_BYTES = 4 << 10,    /* and so much behind bytes that are read to their place */
    PART_BYTES = 2 << 20,     /* of DATA */
    READ_BYTES = 512 << 10,   /* of one connection, before it is another's turn */
    WRITE_BYTES = 512 << 10,  /* likewise */
    NOT_SENT_BYTES = 128 << 10, /* of what the kernel has taken: more would only stand before what is small */
    UNASKED = 2,                  /* so many connections are read without asking which of them has something */
    ASK_EVERY = 32            /* looks, until the others are asked nevertheless */
};
struct tcp_address { /* how others reach a process */
    uint16_t family, port;
    uint8_t address[16];
};
enum tcp_what { EAGER, OFFER, PULL, RELEASE, DATA, GOODBYE };
struct tcp_frame { /* then, of EAGER and OFFER, the header; then `bytes` of EAGER and DATA */
    uint64_t what, bytes;
    uint64_t id;     /* of an announced message, by its sender: it grows from each to the next */
    uint64_t extent; /* OFFER: its bytes; DATA: how many come before these */
};
enum { MOST_HEAD = sizeof(struct tcp_frame) + sizeof(struct header) };
struct tcp_endpoint;
/* A message at one of its ends, from beginning to end: in one list of its endpoint, or pending. */
struct tcp_xfer {
    struct tcp_xfer *next;
    struct tcp_endpoint *endpoint;
    struct fabric_op *op; /* NULL: none, or not yet */
    struct tcp_frame frame;
    const unsigned char *from;
    unsigned char *into;
    size_t bytes, moved; /* of an announced message: all, and those that have been */
    size_t written;      /* of the frame */
};
struct tcp_xfers { struct tcp_xfer *first, *last; };
enum purpose { LISTENER, PENDING, ENDPOINT };
struct handle { /* what the kernel tells of */
    enum purpose purpose;
    int descriptor; /* -1: none */
    uint32_t events;
};
struct pending_connection { /* of a caller that has not proved who it is */
    struct handle handle;
    int64_t since_ms;
    uint64_t network; /* from where it has called */
    struct handshake handshake;
};
struct incoming { /* the frame that is being received */
    unsigned char head[MOST_HEAD];
    size_t head_bytes;
    unsigned char *into; /* its bytes */
    size_t left;
    struct fabric_op *room;  /* of EAGER */
    struct tcp_xfer *fetch; /* of DATA */
};
struct tcp_endpoint {
    struct endpoint base;
    struct handle handle;
    struct tcp_address address;
    bool connected;              /* our call has reached it */
    bool parted;                 /* nothing is sent any more */
    int64_t since_ms;            /* when it was called */
    int64_t again_ms;            /* when it is called again; 0: it is not */
    int recalls;                 /* so far */
    uint64_t theirs;             /* the number of its last call that is known */
    int spare;                   /* its call, while ours is not decided; -1: none */
    struct handshake handshake;  /* of our call */
    struct handshake spare_handshake;
    struct tls *tls;             /* NULL: it is not encrypted */
    struct incoming in;
    uint64_t last_offer;                               /* the id of the latest that has come */
    struct tcp_xfer *current;                            /* partly written */
    struct tcp_xfers waiting, pulled, offered, fetching; /* the first two are to be written */
    struct tcp_xfer goodbye;
    struct tcp_endpoint *loopback_peer; /* the other end, of a connection with oneself */
    bool busy;                 /* in sockets->busy */
    struct tcp_endpoint *next_busy;
};
struct sockets {
    struct handle listener;
    uint32_t scope; /* of addresses that need one */
    struct tcp_address address;
    struct pending_connection pending[PENDING_MOST];
    int pending_count;
    int64_t deaf_ms; /* since when no more callers can be heard for want of descriptors; 0: they can */
    uint64_t calls, ids;
    struct tcp_endpoint *busy; /* have something to write that the socket takes, or to read that it does not tell of */
    int open, blocked;         /* endpoints; blocked: whose sockets do not */
    struct tcp_endpoint *few[UNASKED];
    unsigned looks;
    struct tcp_xfer *spare;
    unsigned char buffer[BUFFER_BYTES];
};
static inline struct sockets *sockets_of(const struct fabric *fabric) { return fabric->own; }
static inline struct tcp_endpoint *tcp_of(struct endpoint *e) { return (struct tcp_endpoint *)e; }
static inline bool is_connected(const struct tcp_endpoint *e) { return e->base.open && e->handle.descriptor >= 0; }

/* ---- address.c: descriptors; or the negative of why there is none ---- */
tutti_status address_listen(struct sockets *sockets, const struct fabric_place *place);
int address_call(const struct sockets *sockets, const struct tcp_address *address);
int address_accept(int listener);
int address_error(int descriptor); /* of a call: 0, or why it failed */
void address_print(int descriptor, char *out, size_t bytes); /* of its other end */
/* ---- handshakes.c ---- */
tutti_status tcp_connect(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out);
void pending_accept(struct fabric *fabric);
void pending_read(struct fabric *fabric, struct pending_connection *pending);
void pending_drop_all(struct fabric *fabric);
void call_advance(struct fabric *fabric, struct tcp_endpoint *e); /* of an endpoint that is not open */
void handshakes_expire(struct fabric *fabric);                    /* those that have taken too long */
/* ---- endpoints.c ---- */
/* By events of epoll; a handle of a descriptor that was not watched is added. 0: not any more. */
tutti_status handle_watch(const struct fabric *fabric, struct handle *handle, uint32_t events);
void handle_close(const struct fabric *fabric, struct handle *handle);
struct tcp_endpoint *endpoint_new(struct fabric *fabric, const unsigned char process[16]); /* NULL: no memory */
/* After this handshake, in which it was the other that called or not; NULL: with oneself. May end it. */
void endpoint_open(struct fabric *fabric, struct tcp_endpoint *e, int descriptor, const struct handshake *h,
    bool called);
tutti_status endpoint_open_pair(struct fabric *fabric, struct tcp_endpoint *e); /* with oneself */
void endpoint_end(struct fabric *fabric, struct tcp_endpoint *e, const char *why);
void tcp_disconnect(struct fabric *fabric, struct endpoint *endpoint);
void tcp_part(struct fabric *fabric);
void endpoints_free(struct fabric *fabric);
/* ---- messages.c ---- */
struct tcp_xfer *tcp_xfer_new(struct fabric *fabric, struct tcp_endpoint *e); /* NULL: no memory */
void tcp_xfer_free(struct fabric *fabric, struct tcp_xfer *xfer);
void tcp_xfers_push(struct tcp_xfers *list, struct tcp_xfer *xfer);
void tcp_xfers_push_by_priority(struct tcp_xfers *list, struct tcp_xfer *xfer); /* behind its equals */
void tcp_xfers_remove(struct tcp_xfers *list, const struct tcp_xfer *xfer);
struct tcp_xfer *tcp_xfers_find(const struct tcp_xfers *list, uint64_t id); /* NULL: it has none of it */
void tcp_xfer_complete(struct fabric *fabric, struct tcp_xfer *xfer, const char *why);
void tcp_xfers_complete(struct fabric *fabric, struct tcp_endpoint *e, const char *why); /* all */
bool tcp_send(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
bool tcp_fetch(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
void tcp_release(struct fabric *fabric, void *descriptor);
/* ---- outgoing.c ---- */
/* Its frame, now or when it is its turn. Of what waits it is told when it has left; what has failed is the caller's,
   and so is the endpoint's reason. */
enum send_status { SENT, QUEUED, FAILED };
enum send_status tcp_xfer_write(struct fabric *fabric, struct tcp_endpoint *e, struct tcp_xfer *xfer);
void tcp_xfer_begin_part(struct tcp_xfer *xfer); /* of what the other side has asked for: the next */
void endpoint_make_busy(struct fabric *fabric, struct tcp_endpoint *e);
bool endpoint_write(struct fabric *fabric, struct tcp_endpoint *e); /* what waits; true: something has left */
void endpoint_push(struct fabric *fabric, struct tcp_endpoint *e);  /* what encryption holds; may end it */
/* ---- incoming.c ---- */
bool endpoint_read(struct fabric *fabric, struct tcp_endpoint *e); /* true: something has come */
void incoming_forget(struct fabric *fabric, struct incoming *in);
/* ---- tcp.c ---- */
bool tcp_progress(struct fabric *fabric);
