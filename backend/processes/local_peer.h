/* The connections of this host, which are Unix sockets. The watch thread calls these functions, with registry.lock
 * held; any thread may call the operations of a peer. */
#pragma once
#include "backend/processes/peer.h"

/* The operations of a peer of this host. */
extern const struct peer_ops local_peer_ops;
/* Reads from a peer whose socket is ready, and sends what waits for room. The peer may end. */
void local_peer_on_ready(struct peer *peer);

/* Accepts a connection on registry.listener as a pending one: its process has not proved that it shares a group with
   this one. */
void pending_conn_accept(void);
/* Reads from the pending connection with that descriptor. Does nothing for another descriptor. */
void pending_conns_on_ready(int descriptor);
/* Drops the pending connections that have sent no hello in their time. */
void pending_conns_expire(void);
