/* Sockets between hosts. They never block and are closed on exec. An error is a negative errno. The kernel detects that
 * the other host is gone: that host must acknowledge data and answer probes within TUTTI_PEER_TIMEOUT_MS. */
#pragma once
#include "backend/links/sock_address.h"
#include <sys/socket.h>

/* Listens at that address; port 0 means any port that TUTTI_PORTS allows. Returns the socket, or -errno. */
int tcp_listen(const struct sock_address *at);
/* Listens with a new socket at a name, which has a port, or 0 for any. Returns the socket, or closes it and returns
   -errno. */
int tcp_listen_at_name(int descriptor, const struct sockaddr *name, socklen_t bytes);
/* Starts to connect to that address, and returns the socket, or -errno. The socket becomes writable when it is
   connected, or when tcp_take_error returns the reason. `near` gives the scope of this process's link-local addresses,
   and may be nowhere. */
int tcp_start_connect(const struct sock_address *at, const struct sock_address *near);
/* Accepts a connection and returns its socket, or -errno; -EAGAIN means that no connection waits. */
int tcp_accept(int listener);
/* Sets an option of a socket. A kernel that lacks the option works without it. */
void tcp_set_option(int socket, int level, int option, int value);
/* Returns the socket's pending error as -errno, or 0 without one, and clears it. */
int tcp_take_error(int socket);
/* These return the local address, and the address of the other end. The family is 0 if the socket has none. */
struct sock_address tcp_local_address(int socket);
struct sock_address tcp_remote_address(int socket);
/* Returns half of the least round trip so far in ns, or 0 if it is unknown. */
double tcp_one_way_ns(int socket);
/* Discards unread bytes, at most 256 KiB, because a close with unread bytes would cut off what was sent. */
void tcp_drain(int socket);
