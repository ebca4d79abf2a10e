/* The connections of this host, which are Unix sockets. The watch thread calls these functions, with registry.lock
 * held; any thread may call the operations of a peer. */
#pragma once
#include "backend/processes/peer.h"

/* The operations of a peer of this host. */
extern const struct peer_ops local_peer_ops;
/* Handles a peer whose socket is ready. The peer may end. */
void local_peer_on_ready(struct peer *peer);

/* Accepts a connection of a process that has not proved that it shares a group with this one. */
void pending_conn_accept(void);
/* Handles a ready descriptor of a pending connection, or of none. */
void pending_conns_on_ready(int descriptor);
/* Drops the pending connections whose time is over. */
void pending_conns_expire(void);
