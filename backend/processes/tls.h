/* Encryption of what goes over a connection between hosts: TLS 1.3 with a key that both ends have (RFC 8446, PSK with
 * ephemeral Diffie-Hellman), which follows from the handshake before it (handshake.h). Asked for by
 * TUTTI_ENCRYPTION=required.
 *
 * A connection is used as its socket would be, by calls that do not wait. What has been taken from the caller may be
 * here still, so that a socket that takes nothing must be watched while something is unsent. One thread at a time. */
#pragma once
#include "backend/processes/keys.h"
#include <sys/types.h>
#include <sys/uio.h>

/* INVALID_ARGUMENT: TUTTI_ENCRYPTION has a value that it cannot have; UNSUPPORTED: there is no OpenSSL. */
tutti_status encryption_check(void);
bool encryption_is_required(void); /* after encryption_check */

struct tls;
/* Of the process that was called, or of the caller. NULL: no memory. After encryption_check. */
struct tls *tls_new(bool called, const unsigned char key[KEY_BYTES]);
void tls_free(struct tls *tls); /* NULL, too */

/* Bytes that were taken, or -1 and errno: EAGAIN nothing can be taken now, EPROTO the other end is not who it was. */
ssize_t tls_send(struct tls *tls, int socket, const struct iovec *list, int count);
/* Bytes that came, 0 at the end, or -1 and errno. Fewer than there is room for: there is no more for now. */
ssize_t tls_receive(struct tls *tls, int socket, const struct iovec *list, int count);
/* Begins, or sends what is here still; 0 or -errno. */
int tls_push(struct tls *tls, int socket);
bool tls_has_unsent(const struct tls *tls); /* NULL: false */
bool tls_has_unread(const struct tls *tls); /* more has come than was received: its socket does not tell. NULL: false */
