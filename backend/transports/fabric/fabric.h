/* The common part of all networks between processes, and the contract of a fabric.
 *
 * A fabric (TCP, UCX, verbs) carries messages of a fixed header and some bytes from process to process, for all groups.
 * Each fabric fills the table below. The rest is common (fabric_transport.h): links, credit, saved messages, the
 * contract of a transport, and the thread that makes progress while no rank polls.
 *
 * Callers hold the lock of a fabric for all its state and all functions below. A fabric reports arrivals and
 * completions within `progress`, on any thread. The transport that polls (fabric->polling) handles them at once. Other
 * transports get them in their lists `saved_msgs` and `completed`, and the bells of those that sleep ring.
 *
 * A process may send only for its own ranks. A message is accepted if it is valid and its sending rank belongs to the
 * process at the other end of the connection. The waiting messages of that process must stay within its budget. A
 * violation closes only that connection. */
#pragma once
#include "backend/processes/keys.h"
#include "backend/transports/router.h"
#include <pthread.h>

enum {
    FABRIC_ADDRESS_BYTES = 2048,
    /* Ops with room for 256 bytes to 2 MiB are kept for reuse, larger ones are freed. */
    FABRIC_OP_CLASSES = 14,
    /* The limits, in messages and in bytes, of what one process may send to groups that this process has not joined. */
    EARLY_MOST = 16384,
    EARLY_BYTES = 4 << 20,
};
enum fabric_kind {
    /* An eager message with its bytes, or an announced one, whose bytes are fetched. */
    MESSAGE,
    /* Carries only `returned`. */
    CREDIT,
    /* The sender has taken back its announced message `id`. */
    WITHDRAWN,
    /* The receiver refuses the announced message `id`: its receive wants `bytes` bytes. */
    REFUSED,
    KINDS,
    /* A fabric uses the numbers from here on for its own kinds. */
    KIND_OF_FABRIC = 16
};
/* The header of every message has a fixed size and no padding. */
struct header {
    uint64_t comm;
    struct message_name name;
    uint64_t bytes;
    /* The id of an announced message, which grows with each announcement of its sender; otherwise 0. */
    uint64_t id;
    /* The credit returned so far: bytes of eager messages that have met their receive. */
    uint64_t returned;
    int32_t from, to;
    /* Counts the messages from this sender to this receiver; 0 for kinds other than MESSAGE. */
    uint32_t sequence;
    uint32_t kind;
};
/* The connection to a process. An endpoint of a fabric begins with this struct. */
struct endpoint {
    unsigned char process[16];
    /* The group key that its handshake uses, and the key of the two processes that is derived from it. */
    struct key_id key;
    struct pair_key pair;
    /* Its own turn, and the least turn of the other end: handshake messages of a lower turn are outdated. */
    uint64_t turn, least_turn;
    /* The life of the other process's fabric, from its address. */
    uint64_t life;
    /* Messages may be sent. */
    bool open;
    /* The other process has announced that it shuts down, so the end of the connection is no failure. */
    bool left;
    /* The other process has sent an invalid message, so later messages are ignored. */
    bool faulty;
    /* The endpoint is faulty and still connected. */
    bool ends;
    /* The messages and bytes that came by it for groups that this process has not joined. */
    int early;
    size_t early_bytes;
    /* When the connection broke; 0: it is whole. */
    int64_t broken_ms;
    /* The value of fabric->breaks when it broke. */
    unsigned broke;
    /* The reason that the fabric gave for the break. */
    const char *why;
    struct endpoint *next;
};
struct fabric;
struct fabric_link;
struct fabric_transport;
/* An operation in flight: an eager message (its bytes are in `room`), an announced message, or a fetch. It lasts from
   its post until it has completed. */
struct fabric_op {
    struct header header;
    /* A number that some fabrics send behind the header. */
    uint64_t connection;
    /* NULL: the transport was closed. */
    struct fabric_transport *owner;
    struct fabric_link *link;
    struct endpoint *endpoint;
    /* NULL: the op has no transfer, or the transfer is over for its caller. */
    struct transfer *transfer;
    /* The transfer's bytes go through `room`. */
    bool packed;
    /* The receiver has refused the message because its receive wants `theirs` bytes. */
    bool refused;
    uint64_t theirs;
    /* When the caller cancelled the transfer; 0: it has not. */
    int64_t withdrawn_ms;
    /* The reason for which the op failed; NULL: it has succeeded. */
    const char *why;
    /* The bytes that go over the network. */
    size_t bytes;
    int class;
    /* Link the op in owner->ops or fabric->orphans, then in owner->completed, then in fabric->spare. */
    struct fabric_op *next, **at;
    unsigned char *room;
};
/* A message that arrived while its transport did not poll, or before its transport existed. */
struct saved_msg {
    struct saved_msg *next;
    struct endpoint *from;
    struct header header;
    bool announced;
    /* The fabric's descriptor of an announced message that no transport has taken yet. */
    void *pending;
    size_t bytes;
    unsigned char data[];
};
struct saved_msgs { struct saved_msg *first, *last; int count; };
/* The surroundings in which a fabric starts. */
struct fabric_place {
    /* The network interface that leads to the other hosts, or NULL. */
    const char *device;
    /* The hosts are simulated on one machine, and the fabric uses a network even so, such as TCP over loopback. */
    bool simulated;
};
struct fabric_operations {
    const char *name;
    /* Sets address, address_bytes and event, a descriptor that becomes readable after arm. After an error the caller
       calls finish. */
    tutti_status (*start)(struct fabric *fabric, const struct fabric_place *place);
    /* Shuts down all endpoints before the end, and waits a short time for sent messages to arrive. */
    void (*part)(struct fabric *fabric);
    /* Frees everything, also after a start that failed. */
    void (*finish)(struct fabric *fabric);
    /* Creates an endpoint to the process at this address. It opens when both sides have proved that they know the
       key. */
    tutti_status (*connect)(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
        const unsigned char *address, size_t bytes, struct endpoint **out);
    /* Sends the header and op->bytes of `data` (NULL: of the room), which must stay valid until the op completes. An
       announced message completes when its bytes have been fetched or released. false: the op has already completed,
       and op->why has the result. */
    bool (*send)(struct fabric *fabric, struct fabric_op *op, const void *data, bool announced);
    /* Fetches the bytes of the announced message into `buffer` (NULL: the room). false: as for send. */
    bool (*fetch)(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
    /* Gives up the announced message, which completes with success at its sender. */
    void (*release)(struct fabric *fabric, void *descriptor);
    /* true: something happened. */
    bool (*progress)(struct fabric *fabric);
    /* true: no work is left, and `event` becomes readable at the next one. */
    bool (*arm)(struct fabric *fabric);
    /* Closes the endpoint by force. Its ops complete within the call, and later sends fail. */
    void (*disconnect)(struct fabric *fabric, struct endpoint *endpoint);
    /* Writes the address of the other end, for error messages. The function may be NULL. */
    void (*address)(const struct endpoint *endpoint, char *out, size_t bytes);
};
enum { RECENTLY_CLOSED_MOST = 256 };
/* The transports that were closed last. */
struct recently_closed {
    struct { uint64_t comm; int rank; } closed[RECENTLY_CLOSED_MOST];
    unsigned count;
};
/* The progress thread of a fabric. */
struct fabric_thread {
    pthread_t thread;
    bool runs, stop;
    int waker;
};
struct fabric {
    const struct fabric_operations *operations;
    pthread_mutex_t lock;
    int users;
    /* known: the fabric is in the list of the fork handlers. */
    bool stopping, known;
    unsigned char process[16];
    /* Drawn at random at each start. A fabric that uses the proofs below puts it into its address. */
    uint64_t life;
    /* The fields from here to `faults` belong to the implementation of the fabric. */
    void *own;
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t address_bytes;
    int event;
    /* The fabric must be polled soon, whether `event` is readable or not. */
    bool needs_poll;
    struct endpoint *endpoints;
    /* The number of endpoints that have broken so far. */
    unsigned breaks;
    /* Some faulty endpoints are still connected. */
    bool faults;
    /* The common code owns the fields from here on. */
    struct fabric_transport *transports, *polling;
    struct recently_closed recently_closed;
    /* Messages to groups that this process has not joined. */
    struct saved_msgs early;
    /* Ops in flight of closed transports. */
    struct fabric_op *orphans;
    struct fabric_op *spare[FABRIC_OP_CLASSES];
    struct fabric_thread thread;
    /* The number of transports that sleep. */
    int armed;
    /* Counts the polls of all transports. */
    unsigned touched;
    struct fabric *next;
};
#define FABRIC(table) { .operations = (table), .lock = PTHREAD_MUTEX_INITIALIZER }

/* ---- for code that makes groups ---- */
/* The group provides these callbacks about the processes of its members. */
struct fabric_callbacks {
    void *context;
    /* Returns the nonce of 16 bytes that names the process of a rank. */
    const unsigned char *(*process)(void *context, int rank);
    /* Writes the address that fabric_open returned for this fabric in the process of the rank. IN_PROGRESS: the caller
       asks again later. */
    tutti_status (*address)(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes);
    /* Writes the host and address of a rank, for error messages. */
    void (*name)(void *context, int rank, char *out, size_t bytes);
    /* The key that the processes of the group share. */
    struct key_id key;
};
/* Starts the fabric for this process, whose nonce is `process`, unless it runs. Writes the address at which others
   reach it. Each open needs one fabric_close. UNSUPPORTED: the fabric is unavailable, and the text has a remedy. */
tutti_status fabric_open(struct fabric *fabric, const unsigned char process[16], const struct fabric_place *place,
    void *address, size_t *bytes);
void fabric_close(struct fabric *fabric);
/* Adds the fabric to the router as the network to all ranks without a transport. The caller calls it between
   fabric_open and fabric_close. */
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks);

/* ---- for fabrics ---- */
/* Handles a message that arrived by this endpoint, and copies data that is needed later. For an announced message
   `data` is the fabric's descriptor; true: the transport keeps it until fetch or release. An invalid message is
   ignored, and the endpoint is disconnected after the current progress. */
bool fabric_handle_message(struct fabric *fabric, struct endpoint *from, const struct header *header, void *data,
    size_t bytes, bool announced);
/* Completes an op in flight; why NULL: with success. An op for which `send` or `fetch` returned false has already
   completed. */
void fabric_op_complete(struct fabric *fabric, struct fabric_op *op, const char *why);
/* Returns NULL if memory is exhausted. */
struct fabric_op *fabric_op_new(struct fabric *fabric, size_t room);
void fabric_op_free(struct fabric *fabric, struct fabric_op *op);
/* Returns NULL if no endpoint to the process exists, or if all have broken or left. */
struct endpoint *endpoint_find(const struct fabric *fabric, const unsigned char process[16]);
void endpoint_mark_broken(struct fabric *fabric, struct endpoint *endpoint, const char *why);
/* Marks an endpoint as broken because its process has sent an invalid message. fabric_disconnect_faulty disconnects
   it. */
void endpoint_mark_faulty(struct fabric *fabric, struct endpoint *endpoint, const char *why) __attribute__((cold));
/* Disconnects all faulty endpoints. The caller is outside of progress. true: some endpoints were faulty. */
bool fabric_disconnect_faulty(struct fabric *fabric);
static inline bool endpoint_is_broken(const struct endpoint *endpoint) { return endpoint->broken_ms != 0; }
/* Releases the lock and sleeps for some microseconds. */
void fabric_pause_unlocked(struct fabric *fabric);

/* ---- proofs: how two processes know each other (proofs.c) ---- */
/* The beginning of each handshake message of a fabric. A proof covers the whole message. */
struct fabric_handshake {
    unsigned char from[16], to[16];
    struct key_id key;
    /* The turn of the endpoint that sends it. */
    uint64_t turn;
    /* The life of the fabric that receives it. */
    uint64_t life;
};
/* Fills in the process of an endpoint, the life of its fabric, the key and the turn. SYSTEM: the key is unknown. */
tutti_status endpoint_init_identity(const struct fabric *fabric, struct endpoint *endpoint,
    const unsigned char process[16], uint64_t life, const struct key_id *key);
void fabric_handshake_init(const struct fabric *fabric, const struct endpoint *endpoint, struct fabric_handshake *out);
/* Returns true if `said` is for this life of the fabric, and the proof of the text, which contains `said`, is right. */
bool fabric_handshake_is_proved(const struct fabric *fabric, const struct fabric_handshake *said, const void *text,
    size_t bytes, const unsigned char proof[PROOF_BYTES]);
/* Returns true if the turn of `said` is below the least turn of an endpoint to that process. */
bool fabric_handshake_is_outdated(const struct fabric *fabric, const struct fabric_handshake *said);

/* ---- saved messages ---- */
/* Copies the data, or stores the descriptor of an announced message. NULL: memory is exhausted. */
struct saved_msg *saved_msg_new(const struct header *header, const void *data, size_t bytes, bool announced);
void saved_msgs_push(struct saved_msgs *saved_msgs, struct saved_msg *msg);
struct saved_msg *saved_msgs_pop(struct saved_msgs *saved_msgs);
/* Frees the message and releases its descriptor. */
void saved_msg_free(struct fabric *fabric, struct saved_msg *msg);
/* Take from fabric->early and add to it. Each message counts against the endpoint by which it came. */
struct saved_msg *early_msgs_pop(struct fabric *fabric);
void early_msgs_push(struct fabric *fabric, struct saved_msg *msg);
/* Frees all early messages that came by this endpoint. */
void early_msgs_forget(struct fabric *fabric, const struct endpoint *from);
