/* The common part of all networks between processes, and the contract of a fabric.
 *
 * A fabric (TCP, UCX, verbs) carries messages of a fixed header and some bytes from process to process, for all groups.
 * Each fabric fills the table below. The rest is common (fabric_transport.h): links, credit, saved messages, the
 * contract of a transport, and the thread that makes progress while no rank polls.
 *
 * The lock of a fabric guards all its state. fabric_open, fabric_close and fabric_connect take it; callers hold it for
 * all other functions below, those of the table included. A fabric reports arrivals and completions within `progress`,
 * `arm`, `disconnect` and `shutdown`, on any thread. The transport that polls (fabric->polling) handles them at once.
 * Other transports get them in their lists `saved_msgs` and `completed`, and the bells of transports that sleep ring.
 *
 * A process may send only for its own ranks. A message is accepted if it is valid and its sending rank belongs to the
 * process at the other end of the connection. The messages of that process and of each of its ranks that wait here are
 * limited in number. A violation closes only that connection. */
#pragma once
#include "backend/processes/keys.h"
#include "backend/transports/router.h"
#include <pthread.h>

enum {
    FABRIC_ADDRESS_BYTES = 2048,
    /* Ops whose buffer has 256 bytes to 2 MiB are kept for reuse, larger ones are freed. */
    FABRIC_OP_CLASSES = 14,
    /* The limits, in messages and in bytes, of what one process may send to groups that this process has not joined. */
    EARLY_MOST = 16384,
    EARLY_BYTES = 4 << 20,
};
enum fabric_kind {
    /* An eager message with its bytes, or an announced one, whose bytes are fetched. */
    MESSAGE,
    /* Only returns credit, in `returned`. */
    CREDIT,
    /* The sender has taken back its announced message `id`. */
    WITHDRAWN,
    /* The receiver refuses the announced message `id`, because its receive wants `bytes` bytes of the type in
       `name`. */
    REFUSED,
    KINDS,
    /* A fabric uses the numbers from here on for its own kinds. */
    KIND_OF_FABRIC = 16
};
/* The header of every message has a fixed size and no padding. */
struct header {
    /* The number of the communicator. */
    uint64_t comm;
    struct message_name name;
    /* The size of the message. */
    uint64_t bytes;
    /* The id of an announced message, which grows with each announcement of its sender; otherwise 0. */
    uint64_t id;
    /* The credit returned so far: bytes of eager messages that have met their receive. */
    uint64_t returned;
    /* The ranks that send and receive the message. */
    int32_t from, to;
    /* Counts the messages from this sender to this receiver; 0 for kinds other than MESSAGE. */
    uint32_t sequence;
    uint32_t kind;
};
/* The connection to a process. An endpoint of a fabric begins with this struct. */
struct endpoint {
    /* The nonce of the other process. */
    unsigned char process[16];
    /* The group key that the handshake uses, and the key of the two processes that is derived from it. */
    struct key_id key;
    struct pair_key pair_key;
    /* The turn of this endpoint. Handshake messages of the other process whose turn is below least_turn are
       outdated. */
    uint64_t turn, least_turn;
    /* The life of the other process's fabric, from its address. */
    uint64_t life;
    /* The handshake is complete, so messages may be sent. */
    bool is_open;
    /* The other process has announced that it shuts down, so the end of the connection is no failure. */
    bool has_left;
    /* The other process has sent an invalid message, so later messages are ignored. */
    bool is_faulty;
    /* The endpoint is faulty and still connected: fabric_disconnect_faulty disconnects it. */
    bool must_disconnect;
    /* The number and the bytes of early messages: they came by the endpoint for groups that this process has not
       joined. */
    int early_count;
    size_t early_bytes;
    /* When the connection broke; 0: it is whole. */
    int64_t broken_ms;
    /* The value of fabric->break_count just after the connection broke. */
    unsigned break_number;
    /* The reason that the fabric gave for the break; NULL: the connection is whole. */
    const char *why;
    /* The next endpoint of the fabric. */
    struct endpoint *next;
};
struct fabric;
struct fabric_link;
struct fabric_transport;
/* An operation in flight: an eager message (its bytes are in `buffer`), an announced message, or a fetch. It lasts from
   its post until it has completed. */
struct fabric_op {
    struct header header;
    /* A number that some fabrics send behind the header. */
    uint64_t connection_number;
    /* The transport that has posted the op. NULL: the transport was closed, or the fabric itself has posted the op. */
    struct fabric_transport *owner;
    struct fabric_link *link;
    struct endpoint *endpoint;
    /* NULL: the op has no transfer, or the transfer is over for its caller. */
    struct transfer *transfer;
    /* The transfer's bytes go through `buffer`. */
    bool is_packed;
    /* The op fetches the bytes of an announced message, and counts in owner->fetch_count. */
    bool is_fetch;
    /* The receiver has refused the message because its receive wants `wanted_bytes` bytes of the type in
       `wanted_name`. */
    bool is_refused;
    struct message_name wanted_name;
    uint64_t wanted_bytes;
    /* When the caller first cancelled the transfer; 0: the caller has not. */
    int64_t withdrawn_ms;
    /* The reason for which the op failed; NULL: it has succeeded. */
    const char *why;
    /* The bytes that go over the network. */
    size_t bytes;
    /* The index of the list in fabric->free_ops that the op returns to. FABRIC_OP_CLASSES: its memory is freed. */
    int size_class;
    /* Link the op in owner->ops or fabric->orphans, then in owner->completed, then in fabric->free_ops. */
    struct fabric_op *next, **at;
    /* Memory of the op for the bytes of a message. */
    unsigned char *buffer;
};
/* A message that arrived while its transport did not poll, or before its transport existed. */
struct saved_msg {
    struct saved_msg *next;
    /* The endpoint by which the message came. */
    struct endpoint *endpoint;
    struct header header;
    bool is_announced;
    /* The fabric's descriptor of an announced message that no transport has taken yet; otherwise NULL. */
    void *descriptor;
    /* The bytes in `data`, or those that a fetch of the announced message brings. */
    size_t bytes;
    unsigned char data[];
};
/* Saved messages, oldest first. */
struct saved_msgs { struct saved_msg *first, *last; int count; };
/* The facts about the host that a fabric gets when it starts. */
struct fabric_environment {
    /* The network interface that leads to the other hosts, or NULL. */
    const char *device;
    /* The hosts are simulated on one machine, and the fabric uses a network even so, such as TCP over loopback. */
    bool simulated;
};
struct fabric_operations {
    const char *name;
    /* Starts the fabric. Sets fabric->address, address_bytes and event_descriptor. After an error the caller calls
       finish. */
    tutti_status (*start)(struct fabric *fabric, const struct fabric_environment *environment);
    /* Shuts down all endpoints before the end, and waits a short time for sent messages to arrive. */
    void (*shutdown)(struct fabric *fabric);
    /* Frees everything, also after a start that failed. */
    void (*finish)(struct fabric *fabric);
    /* Creates an endpoint to the process with this nonce at this address of `bytes` bytes. The endpoint opens when both
       sides have proved that they know the key. */
    tutti_status (*connect)(struct fabric *fabric, const unsigned char process[16], const struct key_id *key,
        const unsigned char *address, size_t bytes, struct endpoint **out);
    /* Sends the header and op->bytes bytes of `data` (NULL: of op->buffer), which must stay valid until the op
       completes. An announced message completes when its bytes have been fetched or released. false: the op has already
       completed, and op->why has the result. */
    bool (*send)(struct fabric *fabric, struct fabric_op *op, const void *data, bool is_announced);
    /* Fetches the bytes of the announced message with this descriptor into `buffer` (NULL: op->buffer). false: the op
       has already completed, and op->why has the result. */
    bool (*fetch)(struct fabric *fabric, struct fabric_op *op, void *descriptor, void *buffer);
    /* Gives up the announced message with this descriptor. Its send completes with success. */
    void (*release)(struct fabric *fabric, void *descriptor);
    /* Makes progress on all connections, and reports arrivals and completions. true: something happened. */
    bool (*progress)(struct fabric *fabric);
    /* Makes progress, and lets the next event make event_descriptor readable. false: something happened or is about to,
       so the caller must not wait yet. */
    bool (*arm)(struct fabric *fabric);
    /* Closes the endpoint by force. Its ops complete within the call or soon after, and later sends fail. */
    void (*disconnect)(struct fabric *fabric, struct endpoint *endpoint);
    /* Writes the address of the other end, for error messages. The function may be NULL. */
    void (*print_address)(const struct endpoint *endpoint, char *out, size_t bytes);
};
enum { RECENTLY_CLOSED_MOST = 256 };
/* The transports that were closed last. */
struct recently_closed {
    struct { uint64_t comm; int rank; } closed[RECENTLY_CLOSED_MOST];
    /* The number of all transports that were closed so far; the last one is at (count - 1) % RECENTLY_CLOSED_MOST. */
    unsigned count;
};
/* The progress thread of a fabric. */
struct fabric_thread {
    pthread_t thread;
    bool is_running, must_stop;
    /* An eventfd that wakes the thread. */
    int waker;
    /* The number of threads in fabric_lock that wait for the lock. */
    _Atomic int lock_waiters;
};
struct fabric {
    const struct fabric_operations *operations;
    pthread_mutex_t lock;
    /* The number of calls of fabric_open that fabric_close has not undone. */
    int users;
    /* is_known: the fabric is in the list of the fork handlers. */
    bool is_stopping, is_known;
    /* The nonce of this process. */
    unsigned char process[16];
    /* A random number that is new at each start. A fabric that uses the proofs below puts it into its address, so that
       handshake messages for an earlier start are refused. */
    uint64_t life;
    /* The implementation of the fabric sets the fields from here to `endpoints`. */
    /* The state of the implementation: its struct sockets or struct nic. */
    void *state;
    /* The address at which other processes reach this one. */
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t address_bytes;
    /* A descriptor that becomes readable at the next event after arm. */
    int event_descriptor;
    /* The fabric must be polled soon, whether event_descriptor is readable or not. */
    bool needs_poll;
    struct endpoint *endpoints;
    /* The common code sets the fields from here on. */
    /* The number of endpoints that have broken so far. */
    unsigned break_count;
    /* Some faulty endpoints are still connected. */
    bool has_faulty;
    /* All transports, and the one whose poll runs now, or NULL. */
    struct fabric_transport *transports, *polling;
    struct recently_closed recently_closed;
    /* Messages to groups that this process has not joined. */
    struct saved_msgs early;
    /* Ops in flight of closed transports. */
    struct fabric_op *orphans;
    /* Lists of free ops. Those of list k have a buffer of 256 << k bytes. */
    struct fabric_op *free_ops[FABRIC_OP_CLASSES];
    struct fabric_thread thread;
    /* The number of transports that sleep. */
    int armed_count;
    /* Counts the polls of all transports. */
    unsigned poll_count;
    /* The next fabric in the list of the fork handlers. */
    struct fabric *next;
};
/* Takes the lock of the fabric for any thread but its progress thread, which yields to those that wait here. */
static inline void fabric_lock(struct fabric *fabric)
{
    if (!pthread_mutex_trylock(&fabric->lock)) return;
    atomic_fetch_add(&fabric->thread.lock_waiters, 1);
    pthread_mutex_lock(&fabric->lock);
    atomic_fetch_sub(&fabric->thread.lock_waiters, 1);
}
#define FABRIC(table) { .operations = (table), .lock = PTHREAD_MUTEX_INITIALIZER }

/* ---- for code that makes groups ---- */
/* The group provides these callbacks about the processes of its members. */
struct fabric_callbacks {
    void *context;
    /* Returns the nonce of 16 bytes that names the process of a rank. */
    const unsigned char *(*process)(void *context, int rank);
    /* Writes the address that fabric_open returned for this fabric in the process of the rank, and its length to
       *bytes. IN_PROGRESS: the caller asks again later. */
    tutti_status (*address)(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes);
    /* Writes the host and address of a rank, for error messages. */
    void (*name)(void *context, int rank, char *out, size_t bytes);
    /* The key that the processes of the group share. */
    struct key_id key;
};
/* Starts the fabric for this process, whose nonce is `process`, unless it runs. Writes the address at which others
   reach this process to `address`, which has FABRIC_ADDRESS_BYTES, and its length to *bytes. Each open needs one
   fabric_close. UNSUPPORTED: the fabric is unavailable, and the text has a remedy. */
tutti_status fabric_open(struct fabric *fabric, const unsigned char process[16],
    const struct fabric_environment *environment, void *address, size_t *bytes);
/* Undoes one fabric_open. The last close stops the fabric. */
void fabric_close(struct fabric *fabric);
/* Creates a transport over the fabric, and adds it to the router as a network to all ranks without another transport.
   The caller calls it between fabric_open and fabric_close. */
tutti_status fabric_connect(struct fabric *fabric, struct router *router, const struct fabric_callbacks *callbacks);

/* ---- for fabrics ---- */
/* Handles a message of `bytes` bytes that arrived by this endpoint, and copies data that is needed later. For an
   announced message `data` is the fabric's descriptor; true: the transport keeps it until fetch or release. An invalid
   message is ignored, and the endpoint is disconnected after the current progress. */
bool fabric_handle_message(struct fabric *fabric, struct endpoint *endpoint, const struct header *header, void *data,
    size_t bytes, bool is_announced);
/* Completes an op in flight; why NULL: with success. An op for which `send` or `fetch` returned false has already
   completed. */
void fabric_op_complete(struct fabric *fabric, struct fabric_op *op, const char *why);
/* Returns an op with a buffer of at least this size and otherwise empty, or NULL if memory is exhausted. */
struct fabric_op *fabric_op_new(struct fabric *fabric, size_t buffer_bytes);
/* Gives an op that is in no list back to the fabric. */
void fabric_op_free(struct fabric *fabric, struct fabric_op *op);
/* Returns an endpoint to the process with this nonce, or NULL. Its connection is whole, and the process has not
   announced its shutdown by it. */
struct endpoint *endpoint_find(const struct fabric *fabric, const unsigned char process[16]);
/* Records that the connection of the endpoint broke for the reason `why`, and wakes all transports. The first reason
   stays. */
void endpoint_mark_broken(struct fabric *fabric, struct endpoint *endpoint, const char *why);
/* Marks an endpoint as broken because its process has sent an invalid message. fabric_disconnect_faulty disconnects
   it. */
void endpoint_mark_faulty(struct fabric *fabric, struct endpoint *endpoint, const char *why) __attribute__((cold));
/* Disconnects all faulty endpoints that are still connected. The caller is outside of progress. false: there were
   none. */
bool fabric_disconnect_faulty(struct fabric *fabric);
static inline bool endpoint_is_broken(const struct endpoint *endpoint) { return endpoint->broken_ms != 0; }
/* Releases the lock and sleeps for some microseconds. */
void fabric_pause_unlocked(struct fabric *fabric);

/* ---- proofs: how two processes prove their identity (proofs.c) ---- */
/* The beginning of each handshake message of a fabric. A proof covers the whole message. */
struct fabric_handshake {
    /* The nonces of the processes that send and receive the message. */
    unsigned char from[16], to[16];
    struct key_id key;
    /* The turn of the endpoint that sends the message. */
    uint64_t turn;
    /* The life of the fabric that receives the message. */
    uint64_t life;
};
/* Fills in the other process of an endpoint, the life of that process's fabric, the key, and a new turn. SYSTEM: the
   key is unknown. */
tutti_status endpoint_init_identity(const struct fabric *fabric, struct endpoint *endpoint,
    const unsigned char process[16], uint64_t life, const struct key_id *key);
/* Fills in the beginning of a handshake message that this endpoint sends. */
void fabric_handshake_init(const struct fabric *fabric, const struct endpoint *endpoint, struct fabric_handshake *out);
/* Returns whether a received handshake is for this life of the fabric, and has the right proof. The proof covers
   `message`, the `bytes` bytes that contain the handshake. */
bool fabric_handshake_is_proved(const struct fabric *fabric, const struct fabric_handshake *handshake,
    const void *message, size_t bytes, const unsigned char proof[PROOF_BYTES]);
/* Returns whether the turn of a received handshake is below the least turn of an endpoint to its sender. */
bool fabric_handshake_is_outdated(const struct fabric *fabric, const struct fabric_handshake *handshake);

/* ---- saved messages ---- */
/* Returns a saved message with a copy of the header and of `data`. For an announced message `data` is its descriptor,
   which is stored. NULL: memory is exhausted. */
struct saved_msg *saved_msg_new(const struct header *header, const void *data, size_t bytes, bool is_announced);
/* Appends a message to the list. */
void saved_msgs_push(struct saved_msgs *saved_msgs, struct saved_msg *msg);
/* Removes and returns the oldest message, or NULL if the list is empty. */
struct saved_msg *saved_msgs_pop(struct saved_msgs *saved_msgs);
/* Frees the message and releases its descriptor. */
void saved_msg_free(struct fabric *fabric, struct saved_msg *msg);
/* Removes and returns the oldest message of fabric->early, or NULL. The message no longer counts against the limits of
   the endpoint by which it came. */
struct saved_msg *early_msgs_pop(struct fabric *fabric);
/* Appends a message to fabric->early, and counts it against the limits of the endpoint by which it came. */
void early_msgs_push(struct fabric *fabric, struct saved_msg *msg);
/* Frees all early messages that came by this endpoint. */
void early_msgs_forget(struct fabric *fabric, const struct endpoint *endpoint);
