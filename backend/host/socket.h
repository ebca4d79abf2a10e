/* Unix sockets between processes of one host and one user. Their names are random numbers in the abstract namespace, so
 * there is no file to leak or to guess; the other end's user is checked on both sides. They carry whole messages, each
 * with at most one file descriptor. Nothing here waits; an error is a negative errno. */
#pragma once
#include "include/tutti.h"

enum { NONCE_BYTES = 16 };

/* The name is made of what the socket is for, a short word, and a nonce. */
int socket_listen(const char *purpose, const unsigned char nonce[NONCE_BYTES]);
/* -ECONNREFUSED: nobody listens; -EAGAIN: too many are waiting to be accepted; -EPERM: it belongs to another user. */
int socket_connect(const char *purpose, const unsigned char nonce[NONCE_BYTES]);
/* -EAGAIN: nobody there; -EPERM: somebody of another user was, and was turned away. */
int socket_accept(int listener);
/* The number of the process at the other end, as this process sees it; 0: it does not. */
int64_t socket_process(int socket);
/* A message, and with it a descriptor unless that is -1. -EAGAIN: no room now. Never a SIGPIPE. */
int socket_send(int socket, const void *message, size_t bytes, int descriptor);
/* The length of a message of at most `bytes` bytes, or 0 at the end. A longer one is -EMSGSIZE. *descriptor is what
   came with it, or -1; NULL: none is wanted. The end is reported only after every message that came before it. */
int socket_receive(int socket, void *message, size_t bytes, int *descriptor);
