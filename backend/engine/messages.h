/* Sends and receives of the user, and what the transport stands on. Driver only, but for messages_connect. */
#pragma once
#include "backend/engine/operation.h"

struct messages {                                       /* of the driver */
    struct operation *open;
    int idle_polls;                                     /* since something came */
    bool reaching;                                      /* one of them waits for memory of a peer to be mapped */
    bool opened;                                        /* a private tensor has ever been offered to be read */
};
tutti_status messages_connect(tutti_comm *comm);        /* makes the router, when the segment is mapped */
/* For tests whose ranks are threads: leads to the ranks of other hosts in place of the pairs of the network segment,
   or of networks. NULL: nothing does. Of groups that are joined from now on. */
typedef tutti_status network_connect(struct router *router);
void messages_use_network(network_connect *connect);
void message_post(tutti_comm *comm, struct operation *op);
bool messages_progress(tutti_comm *comm, struct wait_set *blocked);  /* true: something moved */
/* Of a rank to itself, and its other end is not there: who waits for it waits for himself. After progress. */
bool message_is_alone(const tutti_comm *comm, const struct operation *op);
bool message_take_back(tutti_comm *comm, struct operation *op);        /* and refuses it; false: not yet */
/* After a failure: what is posted is forgotten, and nobody touches its memory any more but peers that share it. false:
   a transport has not let go yet; poll, and ask again. */
bool messages_cancel(tutti_comm *comm);
/* Then ends them; those that peers may be copying stay until they are not: call again while there are messages. */
void messages_fail(tutti_comm *comm, tutti_status status);
