/* Unix sockets between processes of one host and one user. Their names, random or derived from a key, are in the
 * abstract namespace, so no file can be leaked or guessed, and both ends check the user of the other. They carry whole
 * messages, each with at most one file descriptor. The functions never wait; an error is a negative errno. */
#pragma once
#include "include/tutti.h"

enum { NONCE_BYTES = 16 };

/* Listens under a name that consists of a purpose, which is a short word, and a nonce. Returns the socket, or
   -errno. */
int socket_listen(const char *purpose, const unsigned char nonce[NONCE_BYTES]);
/* Connects to the socket that listens under that name. Returns the connection, or -errno. -ECONNREFUSED means that no
   process listens, -EAGAIN that its queue is full, and -EPERM that it belongs to another user. */
int socket_connect(const char *purpose, const unsigned char nonce[NONCE_BYTES]);
/* Accepts a connection and returns it, or -errno. -EAGAIN means that no connection waits, and -EPERM that one of
   another user was closed. */
int socket_accept(int listener);
/* Returns the id of the process at the other end as this process sees it, or 0 if it is invisible. */
int64_t socket_peer_process(int socket);
/* Sends a message, with a descriptor unless that is -1. Returns 0 or -errno. -EAGAIN means that the socket is full. It
   never raises SIGPIPE. */
int socket_send(int socket, const void *message, size_t bytes, int descriptor);
/* Receives a message of at most `bytes` bytes. Returns its length, 0 at the end of the connection, or -errno: -EAGAIN
   if no message has arrived, -EMSGSIZE if it is longer. *descriptor is the descriptor that came with it, or -1; NULL
   discards it. The end is reported only after every message that came before it. */
int socket_receive(int socket, void *message, size_t bytes, int *descriptor);
