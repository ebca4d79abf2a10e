/* Processes on other hosts: a TCP connection for each that is needed, beside those of peers.h. What is held is a struct
 * peer: it is watched (peer_watch), told things (channel.h) and let go of (peer_release) as one of this host is, but
 * neither file descriptors nor views go over it. A link is made when something is to be sent over it or somebody waits
 * for it, and is one for all groups of this process.
 *
 * Handshake: both ends prove that they know the key of a group of both (handshake.h). A process that does not is
 * dropped, and logged once.
 * Death: the end of a connection without a goodbye; or silence of the other host for TUTTI_SILENCE_MS. A process that
 * is stopped is alive: its kernel answers. */
#pragma once
#include "backend/processes/peers.h"

struct contact {                                        /* where a process listens; fixed size, no padding */
    uint16_t family, port;                              /* AF_INET or AF_INET6, 0: nowhere; in the order of this host */
    uint32_t scope;                                     /* of a link-local address, as the one who listens numbers it */
    unsigned char address[16];
};
enum { CONTACT_TEXT_BYTES = 64, PROCESS_ADDRESS_BYTES = 2048 };
/* From where somebody comes: equal, it is one host, or one network of IPv6, of which a host has as many addresses as it
   likes. */
uint64_t contact_network(const struct contact *contact);
const char *contact_print(const struct contact *contact, char out[CONTACT_TEXT_BYTES]);     /* 10.0.0.1:4711; out */

/* This process listens at that address from now on, until its last peers_release; port 0: any. A second call gives what
   the first has. SYSTEM: the text says which address and why. Between peers_acquire and peers_release. */
tutti_status links_listen(const struct contact *at, struct contact *out);
/* That process of another host; pair with peer_release. Never waits, and makes no connection. `key` is the id of the
   key of a group of both (keys.h). */
tutti_status link_hold(const struct identity *other, const struct key_id *key, const struct contact *at,
    struct peer **out);
/* Until its link is open, which is made if there is none. TIMEOUT, PEER_LOST, SYSTEM: the text names both addresses,
   why, and what to look at (a firewall, another interface). */
tutti_status link_await(struct peer *peer, int64_t deadline_ms);
/* What a byte to that host takes at least, as the kernels have seen by the open link, whatever the processes do; 0: not
   known. */
double link_way_ns(const struct peer *peer);

/* Sets the *process address*, by which the transports of other hosts reach this process: up to PROCESS_ADDRESS_BYTES. A
   later one replaces it. Processes that asked for it before get it now. */
tutti_status links_publish(const void *process_address, size_t bytes);
/* The process address of that process, which is asked for when it is first called; also of this process itself (NULL).
   IN_PROGRESS: not here yet, ask again. PEER_LOST. Never waits. */
tutti_status link_process_address(struct peer *peer, void *out, size_t *bytes);
