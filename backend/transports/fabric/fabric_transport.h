/* A transport is one rank's end of a fabric in one communicator: its links to other ranks, its ops in flight, and its
 * arrivals. Callers hold the fabric's lock. Only the rank's own thread touches the router and its matching, within a
 * call of the contract. */
#pragma once
#include "backend/transports/fabric/fabric.h"

enum {
    /* The eager bytes that a rank may have sent to another rank before they meet their receives. */
    CREDIT_BYTES = 262144,
    /* The least charge of an eager message against the credit, in bytes. */
    LEAST_CHARGE = 64,
    /* The announced and saved messages of one rank that may wait for a receive. */
    PENDING_RNDV_MOST = 65536,
    PENDING_RNDV_BUCKETS = 256,
    /* How long a link waits, after its connection broke, for the control connection to report the reason. */
    HOLD_MS = 1000,
    /* How long a connection may take before the rank logs that messages go by another network. */
    UNCONNECTED_MS = 3000
};
/* The link with one rank. It is zero until it is used. */
struct fabric_link {
    /* Set by the first use. */
    int rank;
    /* The rank was lost: its transfers have failed, and its later messages are ignored. */
    bool is_lost;
    /* With several networks: a connection without waiting sends was refused, and is not requested again. */
    bool is_refused;
    /* OK, or the status with which no endpoint could be created. */
    tutti_status unreachable;
    /* With several networks: when the link first asked for a connection; 0: it has not. INT64_MAX: the log has reported
       that no connection was made. */
    int64_t asked_ms;
    /* When the connection with the rank's process broke, and why; 0: it is whole. */
    int64_t broken_ms;
    const char *why;
    /* NULL: not connected yet. */
    struct endpoint *endpoint;
    /* A message's charge is the credit that it takes, in bytes (eager_message_charge). */
    /* The charge of all eager messages sent to the rank, and the part of it that the rank has returned. */
    uint64_t charged, returned;
    /* The charge of the rank's eager messages that have met their receive, and the part of it that has been returned to
       the rank in a message. */
    uint64_t owed, reported;
    /* The charge of the rank's eager messages that have arrived. */
    uint64_t arrived;
    /* The id of the latest message that the rank announced. */
    uint64_t last_announced_id;
    /* The number of announced and saved messages of the rank that wait, limited by PENDING_RNDV_MOST. */
    int pending_count;
    /* The latest endpoint that was found to lead to the rank's process; NULL: none yet. */
    const struct endpoint *verified_endpoint;
    /* Sends that wait for an endpoint. */
    struct transfer_list waiting_sends;
    /* Transfers whose connection broke, and which wait for the control connection to report the reason. */
    struct transfer_list held_transfers;
};
/* An announced message, from its arrival until its fetch starts or its sender withdraws it. The link and the id
   identify it. */
struct pending_rndv {
    /* Link the rendezvous in its bucket. */
    struct pending_rndv *next, **at;
    /* Links it in the transport's due_fetches or due_refusals; is_due: it is in one of them. */
    struct pending_rndv *next_due;
    bool is_due;
    struct fabric_link *link;
    /* The name of the message; in due_refusals, that of the receive that refuses it. */
    struct message_name name;
    /* The fabric's descriptor of the message. NULL: the message was withdrawn, or its fetch has started. */
    void *descriptor;
    /* The bytes that a fetch brings: those of the message, or one byte for an empty message. */
    size_t fetch_bytes;
    uint64_t id;
    /* The size of the message. */
    uint64_t message_bytes;
    /* The receive that has met the message, or NULL. */
    struct transfer *receive;
    /* In due_refusals: the bytes of the receive that refuses the message. */
    uint64_t wanted_bytes;
};
/* Pending rendezvous, oldest first. */
struct due_list { struct pending_rndv *first, *last; };
struct fabric_transport {
    struct transport base;
    struct fabric *fabric;
    /* The number of the communicator, this rank in it, and the number of its ranks. */
    uint64_t comm;
    int rank, size;
    struct fabric_callbacks callbacks;
    /* One link for each rank, of which only the pages with used ones are resident (memory_alloc_sparse). */
    struct fabric_link *links;
    /* Ops in flight, and ops that have completed and are not handled yet. */
    struct fabric_op *ops, *completed;
    /* The number of ops in flight that are fetches. */
    int fetch_count;
    /* saved_msgs: messages that arrived while this transport did not poll. ahead: messages that must wait for earlier
       ones, which come by another network. */
    struct saved_msgs saved_msgs, ahead;
    /* The id of a pending rendezvous chooses its bucket. */
    struct pending_rndv *pending_buckets[PENDING_RNDV_BUCKETS];
    /* due_fetches: messages that have met a receive, and whose fetch must start. due_refusals: messages whose senders
       must be sent a refusal. */
    struct due_list due_fetches, due_refusals;
    /* The number of links whose sends wait for an endpoint. */
    int waiting_links;
    /* is_armed: the rank may sleep, and its bell must ring. owes_credit: a link has credit to return. */
    bool is_armed, owes_credit;
    /* The number of links that are broken and not yet lost. */
    int broken_links;
    /* The value of fabric->break_count at the last fabric_transport_record_breaks. */
    unsigned seen_breaks;
    /* Memory for a saved message was missing, so the next poll fails the router. */
    bool out_of_memory;
    /* The id of the last message that this rank announced. */
    uint64_t last_id;
    /* The next transport of the fabric. */
    struct fabric_transport *next;
};
/* Returns the link with that rank, to use it. */
static inline struct fabric_link *fabric_transport_link(const struct fabric_transport *transport, int rank)
{
    transport->links[rank].rank = rank;
    return &transport->links[rank];
}
/* Returns the credit in bytes that an eager message of this size takes. */
static inline uint64_t eager_message_charge(uint64_t bytes) { return bytes < LEAST_CHARGE ? LEAST_CHARGE : bytes; }
/* Returns whether so much credit is owed to the rank of the link that a message must return it soon. */
static inline bool fabric_link_owes_much(const struct fabric_link *link)
{
    return link->owed - link->reported >= CREDIT_BYTES / 4;
}
/* Records that an eager message of this size has met its receive, so that the rank gets its credit back. */
static inline void fabric_link_owe_credit(struct fabric_transport *transport, struct fabric_link *link, uint64_t bytes)
{
    link->owed += eager_message_charge(bytes);
    transport->owes_credit |= fabric_link_owes_much(link);
}
/* Records that the transport no longer sleeps. */
static inline void fabric_transport_disarm(struct fabric_transport *transport)
{
    transport->fabric->armed_count -= transport->is_armed;
    transport->is_armed = false;
}
/* Rings the bell of the transport's rank if the rank sleeps. */
static inline void fabric_transport_wake(struct fabric_transport *transport)
{
    const struct bell *bell = &transport->base.router->bell;
    if (transport->is_armed && bell->ring) bell->ring(bell->context);
    fabric_transport_disarm(transport);
}

/* ---- send.c: the sending side ---- */
/* Returns how the network would handle a send on the link (transport.h), and requests a connection if it is missing. */
enum readiness fabric_link_readiness(struct fabric_transport *transport, struct fabric_link *link);
/* Sends a message, or keeps it until the link has an endpoint. */
void fabric_link_send(struct fabric_transport *transport, struct fabric_link *link, struct transfer *transfer);
/* Sends the waiting messages of each link that now has an endpoint. true: the queue of some link is now empty. */
bool fabric_transport_send_waiting(struct fabric_transport *transport);
/* Sends a control message with the kind, name, id and bytes of `control`. false: no connection or no memory. */
bool fabric_link_send_control(struct fabric_transport *transport, struct fabric_link *link,
    const struct header *control);
/* Sends CREDIT on the links that owe much. */
void fabric_transport_return_credit(struct fabric_transport *transport);
/* Ends the transfers of completed ops, and frees the ops. */
void fabric_transport_end_completed(struct fabric_transport *transport);
/* Handles REFUSED: withdraws the message that its receiver has refused. */
void fabric_transport_handle_refused(struct fabric_transport *transport, const struct header *header);
/* Records that the connection of the link broke for the reason `why`. The first reason stays. */
void fabric_link_mark_broken(struct fabric_transport *transport, struct fabric_link *link, const char *why);
/* Looks for an open endpoint of the link, or requests one. true: the link has an endpoint. false: not yet, or never. */
bool fabric_link_connect(struct fabric_transport *transport, struct fabric_link *link);
/* Records and logs that this network has refused the connection, while another network may carry the messages. */
void fabric_link_mark_refused(struct fabric_transport *transport, struct fabric_link *link, const char *why);
/* ---- receive.c: the receiving side ---- */
/* Handles a message that came by this endpoint, or saves it until the next poll. For an announced message `data` is the
   fabric's descriptor; true: the transport keeps it. */
bool fabric_transport_handle_message(struct fabric_transport *transport, struct endpoint *endpoint,
    const struct header *header, void *data, size_t bytes, bool is_announced);
/* Handles the messages that arrived while this transport did not poll. */
void fabric_transport_handle_saved_msgs(struct fabric_transport *transport);
/* Handles a receive that has met the announced message `id` of `bytes` bytes: fetches it, refuses it if the sizes
   differ, or fails the receive with ABORTED if the message was withdrawn. */
void fabric_transport_accept_rndv(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer, uint64_t id, uint64_t bytes);
/* Sends the refusals of due_refusals. A refusal that lacked memory is sent again later. */
void fabric_transport_send_refusals(struct fabric_transport *transport);
/* Handles due_fetches: the receives that met an announced message within a callback of the fabric. */
void fabric_transport_fetch_met(struct fabric_transport *transport);
/* Handles the messages in `ahead` whose turn has come. true: at least one. */
bool fabric_transport_handle_ahead(struct fabric_transport *transport);
/* Frees the pending rendezvous of the link, or of all links if `link` is NULL. */
void fabric_transport_free_rndvs(struct fabric_transport *transport, const struct fabric_link *link);
/* Drops the message of due_fetches that this receive has met. false: the receive has met no such message. */
bool fabric_link_forget_receive(struct fabric_transport *transport, struct fabric_link *link,
    const struct transfer *transfer);

/* ---- ops.c, thread.c ---- */
/* Adds an op at the beginning of the list. */
void fabric_op_add(struct fabric_op *op, struct fabric_op **list);
/* Removes an op from its list, if it is in one. */
void fabric_op_remove(struct fabric_op *op);
/* Frees the orphans and the free ops. */
void fabric_ops_free_all(struct fabric *fabric);
/* Starts the progress thread of the fabric. SYSTEM: no thread or descriptor can be created. */
tutti_status fabric_thread_start(struct fabric *fabric);
/* Ends the progress thread if it runs. Releases the lock of the fabric while it waits for the thread. */
void fabric_thread_stop(struct fabric *fabric);
/* Makes the progress thread return from its wait. */
void fabric_thread_wake(struct fabric *fabric);
