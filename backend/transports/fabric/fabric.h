/* What every network between processes has in common, and what each is for itself.
 *
 * A fabric carries messages of a fixed header and some bytes from process to process, for all groups: UCX is one, verbs
 * another. Each fills the table below. What the ranks of a communicator make of that is common (port.h): links, credit,
 * messages that wait, and the contract of a transport; so is the thread that makes progress while nobody else does.
 *
 * Everything of a fabric is touched with its lock held, the functions below included; what they tell, they tell
 * within `progress`, on whichever thread that is. What has come or is over is told to the port whose it is: at once if
 * it is the one that polls (fabric->polling), else through its lists `saved_msgs` and `completed`, and its bell rings
 * if it sleeps.
 *
 * A process speaks for its own ranks alone: a message is accepted from the process at the other end of the connection
 * by which it came, if it can be at all, and if what waits here of that process stays within its budget. Otherwise
 * that connection is ended, and nothing else. */
#pragma once
#include "backend/processes/keys.h"
#include "backend/transports/router.h"
#include <pthread.h>

enum {
    FABRIC_ADDRESS_BYTES = 2048,
    FABRIC_OP_CLASSES = 14,   /* rooms of 256 bytes to 2 MiB are kept, others freed */
    EARLY_MOST = 16384,    /* messages of a process that wait here for groups that are not there yet */
    EARLY_BYTES = 4 << 20, /* of them */
};
enum fabric_kind {
    MESSAGE,   /* eager with its bytes, or announced: its bytes are fetched */
    CREDIT,    /* nothing but `returned` */
    WITHDRAWN, /* the announced message `id` is not to be fetched any more */
    REFUSED,   /* your announced message `id` is not fetched: the receive wants `bytes` */
    KINDS,
    KIND_OF_FABRIC = 16 /* from here on they are a fabric's own */
};
struct header { /* of every message; fixed size, no padding */
    uint64_t comm;
    struct message_name name;
    uint64_t bytes;
    uint64_t id;       /* of an announced message: it grows from each to the next of its sender; 0 of any other */
    uint64_t returned; /* bytes of eager messages that were sent unasked and have met their receive, so far */
    int32_t from, to;
    uint32_t sequence; /* of this message from this sender to this receiver; 0 of what is none */
    uint32_t kind;
};
struct endpoint { /* to a process; a fabric's own begins with this */
    unsigned char process[16];
    struct key_id key; /* by which it is greeted, and the key of the two processes that follows */
    struct pair_key pair;
    uint64_t turn, least_turn; /* its own; greetings of the other end with a lower one than this are over */
    uint64_t life;             /* of the other's fabric, as its address has it */
    bool open;         /* messages may be sent */
    bool left;         /* it has said that it ends: the end of the connection is none of a process */
    bool faulty;       /* it has sent what cannot be: nothing that comes by it is heard any more */
    bool ends;         /* faulty, and not disconnected yet */
    int early;         /* messages of it that wait for groups which are not there yet */
    size_t early_bytes;
    int64_t broken_ms; /* since when it is broken; 0: it is not */
    unsigned broke;    /* it did as the fabric's n-th */
    const char *why;   /* it is, in the words of the fabric */
    struct endpoint *next;
};
struct fabric;
struct fabric_link;
struct fabric_transport;
/* Something the fabric is at: an eager message on its way (room has its bytes), an announced one, or one that is
   fetched. From its post until it has completed. */
struct fabric_op {
    struct header header;
    uint64_t connection; /* of a fabric that sends it behind the header */
    struct fabric_transport *owner; /* NULL: nobody is interested any more */
    struct fabric_link *link;
    struct endpoint *endpoint;
    struct transfer *transfer;      /* NULL: it is over for its caller */
    bool packed;                    /* the transfer's bytes go through room */
    bool refused;
    uint64_t theirs;                /* of refused */
    int64_t withdrawn_ms;           /* since when its caller wants it back; 0: it does not */
    const char *why;                /* it has not completed well; NULL: it has */
    size_t bytes;                   /* that go over the network */
    int class;
    /* Its list: owner->ops or the orphans, then owner->completed, then the spare ones. */
    struct fabric_op *next, **at;
    unsigned char *room;
};
/* A message that has come while its port did not poll, or before there was one. */
struct saved_msg {
    struct saved_msg *next;
    struct endpoint *from;
    struct header header;
    bool announced;
    void *pending; /* the fabric's descriptor of an announced one, while there is no port that has it */
    size_t bytes;
    unsigned char data[];
};
struct saved_msgs { struct saved_msg *first, *last; int count; };
struct fabric_place { /* what a fabric is told of where it is */
    const char *device; /* the network interface that leads to the other hosts, or NULL */
    bool simulated;     /* the hosts are on one machine: nothing but what stands for a network is used */
};
struct fabric_operations {
    const char *name;
    /* Sets address, address_bytes and event, a descriptor that becomes readable when it is armed. After an error call
       finish. */
    tutti_status (*start)(struct fabric *fabric, const struct fabric_place *place);
    /* Before the end: ends all endpoints, after what was sent has arrived, if that is soon. */
    void (*part)(struct fabric *fabric);
    void (*finish)(struct fabric *fabric); /* also what has begun only */
    /* An endpoint to a process, by its address; it is open when both sides have proved that they know the key. */
    tutti_status (*connect)(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
        const unsigned char *address, size_t bytes, struct endpoint **out);
    /* Sends the header and op->bytes of `data` (NULL: of the room), which stay until it completes: with its bytes, or
       announced, and then it completes when they have been fetched or let go of. false: it has completed already. */
    bool (*send)(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
    /* The bytes of what was announced by this descriptor, to `buffer` (NULL: the room). false: as above. */
    bool (*fetch)(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
    /* Nobody will fetch the announced message: it completes with success at its sender. */
    void (*release)(struct fabric *fabric, void *descriptor);
    bool (*progress)(struct fabric *fabric);                  /* true: something happened */
    bool (*arm)(struct fabric *fabric); /* true: nothing is left to do, and `event` tells of what comes */
    /* By force, and whatever is under way over it completes within; what is sent later is refused. */
    void (*disconnect)(struct fabric *fabric, struct endpoint *endpoint);
    /* Where its other end is, for messages. NULL: this is not known. */
    void (*address)(const struct endpoint *endpoint, char *out, size_t bytes);
};
enum { PAST_PORTS = 256 };
struct past { /* ports that are no more, the latest */
    struct { uint64_t comm; int rank; } closed[PAST_PORTS];
    unsigned count;
};
struct fabric_thread { /* the thread that looks after a fabric */
    pthread_t thread;
    bool runs, stop;
    int waker;
};
struct fabric {
    const struct fabric_operations *operations;
    pthread_mutex_t lock;
    int users;
    bool stopping, known; /* known: fork tells it */
    unsigned char process[16];
    uint64_t life; /* drawn when it starts; a fabric that is greeted puts it into its address */
    /* of the fabric's own */
    void *own;
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t address_bytes;
    int event;
    bool needs_poll; /* is to be looked at again soon, whatever the descriptor says */
    struct endpoint *endpoints;
    unsigned breaks; /* endpoints that have broken, ever */
    bool faults;     /* some are faulty that are not disconnected yet */
    /* of what is common */
    struct fabric_transport *ports, *polling;
    struct past past;
    struct saved_msgs early; /* for communicators that are not there yet */
    struct fabric_op *orphans; /* under way, and nobody is interested any more */
    struct fabric_op *spare[FABRIC_OP_CLASSES];
    struct fabric_thread thread;
    int armed;        /* ports that sleep */
    unsigned touched; /* by whoever polls */
    struct fabric *next;
};
#define FABRIC(table) { .operations = (table), .lock = PTHREAD_MUTEX_INITIALIZER }

/* ---- for those who make groups ---- */
struct fabric_callbacks { /* what it needs of the processes of its members */
    void *context;
    const unsigned char *(*process)(void *context, int rank); /* a nonce of 16 bytes: equal, the same process */
    /* What fabric_open gave in that process, of this fabric. IN_PROGRESS: ask again. */
    tutti_status (*address)(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes);
    void (*name)(void *context, int rank, char *out, size_t bytes); /* of its host and address, for messages */
    struct key_id key; /* by which the processes of the group know each other */
};
/* Starts the fabric for this process, whose nonce is `process`, if it does not run; *address is how others reach it.
   Pair it with fabric_close. UNSUPPORTED: it is not available, and the text says what to do. */
tutti_status fabric_open(struct fabric *fabric, const unsigned char process[16], const struct fabric_place *place,
    void *address, size_t *bytes);
void fabric_close(struct fabric *fabric);
/* Leads to those ranks that no transport of the router leads to yet. Between fabric_open and fabric_close. */
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks);

/* ---- for fabrics ---- */
/* A message has come by this endpoint. Its data is copied if it is needed later; of an announced one `data` is the
   fabric's descriptor, and true: it is kept, until fetch or release. What cannot be is not heard, and the endpoint is
   disconnected after the progress that is under way. */
bool fabric_hear(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data, size_t bytes,
    bool announced);
/* An op that was under way has completed; why NULL: well. Not for those that `send` or `fetch` say false of. */
void fabric_op_complete(struct fabric *fabric, struct fabric_op *op, const char *why);
struct fabric_op *fabric_op_new(struct fabric *fabric, size_t room); /* NULL: out of memory */
void fabric_op_free(struct fabric *fabric, struct fabric_op *op);
/* NULL: there is none, or it has broken or left. */
struct endpoint *endpoint_find(const struct fabric *fabric, const unsigned char process[16]);
void endpoint_mark_broken(struct fabric *fabric, struct endpoint *endpoint, const char *why);
/* Its process has sent what cannot be, for this reason: it is broken, and disconnected by fabric_end_faulty. */
void endpoint_mark_faulty(struct fabric *fabric, struct endpoint *endpoint, const char *why) __attribute__((cold));
bool fabric_end_faulty(struct fabric *fabric); /* not within progress; true: some were */
static inline bool endpoint_is_broken(const struct endpoint *e) { return e->broken_ms != 0; }
void fabric_pause(struct fabric *fabric); /* for some microseconds, without the lock */

/* ---- proofs: how two processes know each other (proofs.c) ---- */
struct greeting { /* what each message of one process to another begins with; a proof covers the whole message */
    unsigned char from[16], to[16];
    struct key_id key;
    uint64_t turn; /* of the endpoint that says it */
    uint64_t life; /* of the fabric that it is for */
};
/* Fills in the process of an endpoint, the life of its fabric, their key and the turn. SYSTEM: the key is unknown. */
tutti_status endpoint_introduce(const struct fabric *fabric, struct endpoint *endpoint, const unsigned char process[16],
    uint64_t life, const struct key_id *key);
void greeting_begin(const struct fabric *fabric, const struct endpoint *endpoint, struct greeting *out);
/* It is for this life of the fabric, and the proof of the text, of which the greeting is a part, is right. */
bool greeting_is_proved(const struct fabric *fabric, const struct greeting *said, const void *text, size_t bytes,
    const unsigned char proof[PROOF_BYTES]);
/* It is of an earlier endpoint of that process than one which was heard since. */
bool greeting_is_over(const struct fabric *fabric, const struct greeting *said);

/* ---- saved messages ---- */
/* Takes a copy of the data, or keeps the descriptor of what is announced. NULL: out of memory. */
struct saved_msg *saved_msg_new(const struct header *header, const void *data, size_t bytes, bool announced);
void saved_msgs_push(struct saved_msgs *saved_msgs, struct saved_msg *msg);
struct saved_msg *saved_msgs_pop(struct saved_msgs *saved_msgs);
void saved_msg_free(struct fabric *fabric, struct saved_msg *msg); /* and lets go of what is pending */
/* Of fabric->early; what waits there counts for the endpoint by which it came. */
struct saved_msg *early_pop(struct fabric *fabric); /* NULL: there is none */
void early_push(struct fabric *fabric, struct saved_msg *msg);
void early_forget(struct fabric *fabric, const struct endpoint *from); /* all that came by it */
