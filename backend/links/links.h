/* Processes on other hosts. This process has one TCP connection, a link, to each of those that it needs, and all groups
 * of this process share the link. A struct peer stands for the link. It is watched (peer_watch), carries control
 * messages (control/channel.h) and is released (peer_release) like a peer of this host, but carries neither descriptors
 * nor views. A link is connected when a message is to be sent over it or a thread waits for it.
 *
 * Handshake: both ends prove that they know the key of a shared group (processes/handshake.h). A connection without
 * the proof is dropped, and the first one is logged. Death: the connection ends without a goodbye, or the other host is
 * silent for TUTTI_PEER_TIMEOUT_MS. A stopped process is alive, because its kernel answers. */
#pragma once
#include "backend/links/sock_address.h"
#include "backend/processes/peers.h"

enum { PROCESS_ADDRESS_BYTES = 2048 };
/* Listens at that address until the last peers_release. Port 0 means any port. A second call returns the first call's
   address. Call it between peers_acquire and peers_release. SYSTEM: the text gives the address and the reason. */
tutti_status links_listen(const struct sock_address *at, struct sock_address *out);
/* Sets *out to the peer of that process of another host, which listens at `at`. Pair with peer_release. Never waits or
   connects. `key` is the id of a shared group's key (processes/keys.h). */
tutti_status link_acquire(const struct identity *other, const struct key_id *key, const struct sock_address *at,
    struct peer **out);
/* Waits until the link is open, and connects it if needed. TIMEOUT, PEER_LOST, SYSTEM: the text gives both addresses,
   the reason and what to check (a firewall, another interface). */
tutti_status link_await(struct peer *peer, int64_t deadline_ms);
/* Writes why a lost process is out of reach, as in "from 10.0.0.1:4000 to 10.0.0.2:5000: no answer: …". Returns false
   if the process has ended, as far as is known, or is on this host, or is not lost. NULL: this process. */
bool link_describe_loss(const struct peer *peer, char *out, size_t bytes);
/* Returns half of the least round trip to that host in ns, which the kernel has measured on the open link. Returns 0 if
   it is unknown. */
double link_one_way_ns(const struct peer *peer);

/* Sets the process address of this process, by which transports of other hosts reach it: at most PROCESS_ADDRESS_BYTES
   bytes. A later one replaces it. Processes that asked before get it now. */
tutti_status links_publish_address(const void *process_address, size_t bytes);
/* Copies the process address of that process (NULL: of this process) to `out`, which has PROCESS_ADDRESS_BYTES bytes,
   and sets *bytes to its length. The first call requests it from the process. Never waits. IN_PROGRESS: it has not
   arrived, or this process has not published its own; call again. PEER_LOST. */
tutti_status link_get_process_address(struct peer *peer, void *out, size_t *bytes);

/* ---- for the watch thread and lifetime.c, with registry.lock held ---- */
/* Handles a link whose socket is ready. The link may end. */
void link_on_ready(struct peer *peer);
/* Drops late incoming connections, sends heartbeats, and starts or ends connection attempts that are due. */
void links_tick(void);
/* Returns the time until links_tick has work in ms, or -1 for no limit. */
int links_poll_timeout_ms(void);
/* Closes the listener and all incoming connections. The caller has ended all links before. */
void links_close(void);
/* Forgets the parent's listener and incoming connections in the child. */
void links_after_fork(void);
