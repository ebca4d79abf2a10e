/* Sends and receives of the user, and the callbacks of their transports. Driver only, but for
   messages_create_router. */
#pragma once
#include "backend/engine/operation.h"

/* The sends and receives of a communicator. The driver owns these fields. */
struct messages {
    /* The open messages, newest first. */
    struct operation *open;
    /* The number of polls since the last progress. */
    int idle_polls;
    /* A message waits until memory of a peer is mapped. */
    bool is_mapping;
    /* A private tensor has been offered to a peer for reading, at any time. */
    bool has_offered;
};
/* Creates the router and connects its transports. The segment must be mapped. */
tutti_status messages_create_router(tutti_comm *comm);
/* A function that connects the ranks of other hosts to a router. messages_override_network sets one for tests whose
   ranks are threads, in place of the network segment or of networks. It applies to groups that join from now on. NULL
   restores the default. */
typedef tutti_status network_connect(struct router *router);
void messages_override_network(network_connect *connect);
/* Posts a send or receive to the router. Completes it at once, or adds it to the open messages. */
void message_post(tutti_comm *comm, struct operation *op);
/* Polls the router and completes the messages that are done. Returns true if a message made progress. Otherwise adds
   this rank's bell to `blocked`. */
bool messages_make_progress(tutti_comm *comm, struct wait_set *blocked);
/* Wakes that rank of this host, if its driver sleeps. */
void message_ring_host_peer(const tutti_comm *comm, int rank);
/* Returns true if the message is from this rank to itself and its matching call has not been made, so a wait would not
   end. The caller calls it after messages_make_progress. */
bool message_waits_for_itself(const tutti_comm *comm, const struct operation *op);
/* Withdraws a message for which message_waits_for_itself is true, and refuses its operation. Returns false if the
   transport has not released it yet. */
bool message_withdraw(tutti_comm *comm, struct operation *op);
/* Cancels the posted messages after a failure. Afterwards only peers that map or read a message's memory may still
   touch that memory. Returns false if a transport has not released one yet; the caller polls and calls again. */
bool messages_cancel(tutti_comm *comm);
/* Ends the messages with `status` after messages_cancel. Those that peers may be copying stay open, so the caller
   repeats this while messages are open. */
void messages_fail(tutti_comm *comm, tutti_status status);
