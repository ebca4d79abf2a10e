/* Encrypts a connection between hosts if TUTTI_ENCRYPTION=required. It uses TLS 1.3 with a key that both ends have (RFC
 * 8446, PSK with ephemeral Diffie-Hellman). The key follows from the handshake before it
 * (processes/handshake.h, handshake_derive_key).
 *
 * A connection is used like its socket: calls do not wait, and one thread at a time makes them. tls_send may keep bytes
 * that the socket did not take, so the caller polls the socket for writing while tls_has_unsent is true. */
#pragma once
#include "backend/processes/handshake.h"
#include <sys/types.h>
#include <sys/uio.h>

/* Checks the setting of encryption, and loads OpenSSL if it is required. INVALID_ARGUMENT: TUTTI_ENCRYPTION has an
   invalid value. UNSUPPORTED: OpenSSL is missing. */
tutti_status encryption_check(void);
/* Returns true if the settings require encryption. Call it after encryption_check. */
bool encryption_is_required(void);

struct tls;
/* Creates the encryption of a connection with that key. `is_incoming` means that the other end connected. Returns NULL
   if memory is short. Call encryption_check before. */
struct tls *tls_new(bool is_incoming, const unsigned char key[KEY_BYTES]);
/* Creates the encryption of a connection after the answer of its handshake. *out is NULL if encryption is not required.
   Returns 0, -ENOMEM or -ENOTSUP. */
int tls_create_after_handshake(const struct handshake *handshake, bool is_incoming, struct tls **out);
/* Frees the encryption and erases its key. NULL is allowed. */
void tls_free(struct tls *tls);

/* Encrypts and sends bytes of a list of `count` buffers. Returns the number of bytes taken, or -1 and errno. EAGAIN: no
   byte can be taken now. EPROTO: the TLS protocol failed, so the other end may not have the key. */
ssize_t tls_send(struct tls *tls, int socket, const struct iovec *list, int count);
/* Receives and decrypts into a list of `count` buffers. Returns the number of bytes received, 0 at the end, or -1 and
   errno. A short count means that no more has arrived. */
ssize_t tls_receive(struct tls *tls, int socket, const struct iovec *list, int count);
/* Continues the TLS handshake without reading, and sends unsent bytes. Returns 0 or -errno. */
int tls_push(struct tls *tls, int socket);
/* Returns true after the TLS handshake, and for NULL. Before it, tls_send returns EAGAIN; tls_receive advances it. */
bool tls_is_open(const struct tls *tls);
/* Returns true if encrypted bytes wait to be sent. Returns false for NULL. */
bool tls_has_unsent(const struct tls *tls);
/* Returns true if OpenSSL holds bytes that tls_receive has not returned. Polling the socket does not show them. Returns
   false for NULL. */
bool tls_has_unread(const struct tls *tls);
