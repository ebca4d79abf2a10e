/* Encryption of a connection between hosts, where TUTTI_ENCRYPTION=required: TLS 1.3 with a key that both ends have
 * (RFC 8446, PSK with ephemeral Diffie-Hellman). The key follows from the handshake before it (handshake.h).
 *
 * A connection is used as its socket would be, by calls that do not wait, by one thread at a time. tls_send may keep
 * bytes that the socket did not take: the caller watches the socket while tls_has_unsent. */
#pragma once
#include "backend/processes/keys.h"
#include <sys/types.h>
#include <sys/uio.h>

/* INVALID_ARGUMENT: TUTTI_ENCRYPTION has a value that it cannot have; UNSUPPORTED: there is no OpenSSL. */
tutti_status encryption_check(void);
bool encryption_is_required(void); /* after encryption_check */

struct tls;
/* `called`: the other end began the connection. NULL: no memory. Call encryption_check before. */
struct tls *tls_new(bool called, const unsigned char key[KEY_BYTES]);
void tls_free(struct tls *tls); /* NULL, too */

/* Bytes that were taken, or -1 and errno: EAGAIN nothing can be taken now, EPROTO the other end is not who it was. */
ssize_t tls_send(struct tls *tls, int socket, const struct iovec *list, int count);
/* Bytes that came, 0 at the end, or -1 and errno. Fewer than there is room for: there is no more for now. */
ssize_t tls_receive(struct tls *tls, int socket, const struct iovec *list, int count);
/* Begins, or sends what is here still; 0 or -errno. */
int tls_push(struct tls *tls, int socket);
/* The TLS handshake is over. Before that tls_send returns EAGAIN, and only tls_receive brings it on. NULL: true. */
bool tls_is_open(const struct tls *tls);
bool tls_has_unsent(const struct tls *tls); /* NULL: false */
bool tls_has_unread(const struct tls *tls); /* more has come than was received: its socket does not tell. NULL: false */
