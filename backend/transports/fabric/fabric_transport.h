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
/* The link with one rank. */
struct fabric_link {
    int rank;
    bool lost;
    /* With several networks: a connection without waiting sends was refused, and is not requested again. */
    bool refused;
    /* A status other than OK: the reason why no endpoint is possible. */
    tutti_status unreachable;
    /* With several networks: when the link first asked for a connection. INT64_MAX: its absence was logged. */
    int64_t asked_ms;
    /* When the connection with its process broke, and why; 0: it is whole. */
    int64_t broken_ms;
    const char *why;
    /* NULL: not connected yet. */
    struct endpoint *endpoint;
    /* The charge of eager messages sent to the rank, and the part of it that the rank has returned. */
    uint64_t charged, returned;
    /* The charge of the rank's messages that have met their receive, and the part of it that the rank was sent. */
    uint64_t owed, reported;
    /* The charge of the rank's messages that have arrived. */
    uint64_t arrived;
    /* The id of the latest message that the rank announced. */
    uint64_t announced;
    /* The number of waiting messages, limited by PENDING_RNDV_MOST. */
    int pending;
    /* The latest endpoint that was found to lead to the rank's process. */
    const struct endpoint *by;
    /* Sends that wait for an endpoint. */
    struct transfer_list waiting;
    /* Transfers that the broken connection has ended. */
    struct transfer_list held;
};
/* An announced message, from its arrival until its fetch starts or its sender withdraws it. The link and the id
   identify it. */
struct pending_rndv {
    /* Its bucket. */
    struct pending_rndv *next, **at;
    /* Links it in the transport's `met` or `refusing`; `due` says whether it is in one of them. */
    struct pending_rndv *next_due;
    bool due;
    struct fabric_link *link;
    struct message_name name;
    /* NULL: the message was withdrawn. */
    void *descriptor;
    size_t bytes;
    uint64_t id, wire;
    /* The receive that has met the message, or NULL. */
    struct transfer *receive;
    /* In `refusing`: the bytes of the receive that refuses the message. */
    uint64_t wanted;
};
/* Pending rendezvous, oldest first. */
struct due_list { struct pending_rndv *first, *last; };
struct fabric_transport {
    struct transport base;
    struct fabric *fabric;
    uint64_t comm;
    int rank, size;
    struct fabric_callbacks callbacks;
    /* One link for each rank. */
    struct fabric_link *links;
    struct fabric_op *ops, *completed;
    /* ahead: messages that must wait for earlier ones, which come by another network. */
    struct saved_msgs saved_msgs, ahead;
    struct pending_rndv *pending[PENDING_RNDV_BUCKETS];
    /* met: fetches to start. refusing: messages whose senders must be sent a refusal. */
    struct due_list met, refusing;
    /* The number of links whose sends wait for an endpoint. */
    int waiting;
    /* owes: a link has credit to return. */
    bool armed, owes;
    /* The number of links that are broken and not yet lost. */
    int broken;
    /* The value of fabric->breaks up to which fabric_transport_record_breaks has looked. */
    unsigned breaks;
    /* Memory for a saved message was missing, so the next poll fails the router. */
    bool out_of_memory;
    uint64_t ids;
    struct fabric_transport *next;
};
static inline uint64_t eager_message_charge(uint64_t bytes) { return bytes < LEAST_CHARGE ? LEAST_CHARGE : bytes; }
static inline bool fabric_link_owes_much(const struct fabric_link *link)
{
    return link->owed - link->reported >= CREDIT_BYTES / 4;
}
/* Records that an eager message of this size has met its receive. */
static inline void fabric_link_owe_credit(struct fabric_transport *transport, struct fabric_link *link, uint64_t bytes)
{
    link->owed += eager_message_charge(bytes);
    transport->owes |= fabric_link_owes_much(link);
}
/* Records that the transport no longer sleeps. */
static inline void fabric_transport_disarm(struct fabric_transport *transport)
{
    transport->fabric->armed -= transport->armed;
    transport->armed = false;
}
/* Rings the bell of the transport if it sleeps. */
static inline void fabric_transport_wake(struct fabric_transport *transport)
{
    const struct bell *bell = &transport->base.router->bell;
    if (transport->armed && bell->ring) bell->ring(bell->context);
    fabric_transport_disarm(transport);
}

/* ---- send.c: the sending side ---- */
enum readiness fabric_link_readiness(struct fabric_transport *transport, struct fabric_link *link);
void fabric_link_send(struct fabric_transport *transport, struct fabric_link *link, struct transfer *transfer);
/* Sends the waiting messages of each link that now has an endpoint. true: the queue of some link is now empty. */
bool fabric_transport_send_waiting(struct fabric_transport *transport);
/* Sends a control message with kind, name, id and bytes of `said`. false: no connection or no memory. */
bool fabric_link_send_control(struct fabric_transport *transport, struct fabric_link *link, const struct header *said);
void fabric_transport_return_credit(struct fabric_transport *transport);
/* Ends the transfers of completed ops. */
void fabric_transport_end_completed(struct fabric_transport *transport);
/* Withdraws the message that its receiver has refused. */
void fabric_transport_handle_refused(struct fabric_transport *transport, const struct header *header);
void fabric_link_mark_broken(struct fabric_transport *transport, struct fabric_link *link, const char *why);
/* Looks for an endpoint or requests one. true: the link has an endpoint. false: not yet, or never. */
bool fabric_link_connect(struct fabric_transport *transport, struct fabric_link *link);
/* Records and logs that this network has refused the connection, while another network may carry the messages. */
void fabric_link_mark_refused(struct fabric_transport *transport, struct fabric_link *link, const char *why);
/* ---- receive.c: the receiving side ---- */
/* Handles or saves a message. `data` of an announced message is the descriptor. true: the transport keeps it. */
bool fabric_transport_handle_message(struct fabric_transport *transport, struct endpoint *from,
    const struct header *header, void *data, size_t bytes, bool announced);
void fabric_transport_handle_saved_msgs(struct fabric_transport *transport);
void fabric_transport_accept_rndv(struct fabric_transport *transport, struct fabric_link *link,
    struct transfer *transfer, uint64_t id, uint64_t bytes);
void fabric_transport_send_refusals(struct fabric_transport *transport);
/* Starts the receives that met an announced message within a callback of the fabric. */
void fabric_transport_fetch_met(struct fabric_transport *transport);
/* Handles the messages in `ahead` whose turn has come. true: at least one. */
bool fabric_transport_handle_ahead(struct fabric_transport *transport);
/* Frees the pending rendezvous of the link, or of all links if `link` is NULL. */
void fabric_transport_free_rndvs(struct fabric_transport *transport, const struct fabric_link *link);
/* Drops the pending rendezvous that this receive has met. true: there was one. */
bool fabric_link_forget_receive(struct fabric_transport *transport, struct fabric_link *link,
    const struct transfer *transfer);

/* ---- ops.c, thread.c ---- */
void fabric_op_add(struct fabric_op *op, struct fabric_op **list);
void fabric_op_remove(struct fabric_op *op);
/* Frees the orphans and the spare ops. */
void fabric_ops_free_all(struct fabric *fabric);
tutti_status fabric_thread_start(struct fabric *fabric);
/* Releases the lock while it waits for the thread. */
void fabric_thread_stop(struct fabric *fabric);
void fabric_thread_wake(struct fabric *fabric);
