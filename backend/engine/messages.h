/* Sends and receives of the user, and the callbacks of their transports. Driver only, but for
   messages_create_router. */
#pragma once
#include "backend/engine/operation.h"

/* The driver owns these fields. */
struct messages {
    struct operation *open;
    /* Polls since the last progress. */
    int idle_polls;
    /* A message waits until memory of a peer is mapped. */
    bool reaching;
    /* A private tensor has been offered to a peer for reading, at any time. */
    bool opened;
};
/* Creates the router and connects its transports. The segment must be mapped. */
tutti_status messages_create_router(tutti_comm *comm);
/* For tests whose ranks are threads: connects ranks of other hosts in place of the network segment or of networks.
   Applies to groups that join from now on. NULL restores the default. */
typedef tutti_status network_connect(struct router *router);
void messages_override_network(network_connect *connect);
void message_post(tutti_comm *comm, struct operation *op);
/* Returns true if a message made progress. */
bool messages_make_progress(tutti_comm *comm, struct wait_set *blocked);
/* Wakes that rank of this host, if its driver sleeps. */
void message_ring_host_peer(const tutti_comm *comm, int rank);
/* True if a rank waits for a message to itself whose matching call has not been made, so it would wait for itself. Call
   it after messages_make_progress. */
bool message_waits_for_itself(const tutti_comm *comm, const struct operation *op);
/* Withdraws such a message and refuses its operation. False: the transport has not released it yet. */
bool message_withdraw(tutti_comm *comm, struct operation *op);
/* Cancels the posted messages after a failure. Afterwards only peers that share their memory may still touch it. False:
   a transport has not released one yet; the caller polls and calls again. */
bool messages_cancel(tutti_comm *comm);
/* Ends the messages after messages_cancel. Those that peers may be copying stay open, so the caller repeats this while
   messages are open. */
void messages_fail(tutti_comm *comm, tutti_status status);
