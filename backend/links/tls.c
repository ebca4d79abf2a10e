/* OpenSSL reads from the socket itself, but only in tls_receive, whose caller can ask whether OpenSSL holds more bytes
 * (tls_has_unread). OpenSSL writes into a buffer, which is then sent. So OpenSSL does not need a failed write repeated,
 * and the caller may send other bytes next. A socket that fails to write may still have bytes to read, so the two kinds
 * of errors are kept apart. */
#include "backend/links/tls.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/links/openssl.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* One tls_send encrypts about SEND_BYTES at most. The buffer of unsent bytes has a limit, because the other end could
   cause answers without end and read none. A key serves for less than a fifth of the 2^24.5 records that RFC 8446, 5.5
   allows. */
enum {
    RECORD_BYTES = 16384,
    SEND_BYTES = 256 << 10,
    READ_BYTES = 128 << 10,
    LEAST_OUT_BYTES = 4096,
    MOST_OUT_BYTES = 1 << 20,
    RECORDS_OF_A_KEY = 1 << 22
};
/* Constants of OpenSSL's headers. */
enum {
    CTRL_MODE = 33,
    CTRL_SET_READ_AHEAD = 41,
    CTRL_SET_MIN_VERSION = 123,
    MODE_RELEASE_BUFFERS = 16,
    TLS_1_3 = 0x0304,
    VERIFY_PEER = 1,
    ERROR_WANT_READ = 2,
    BIO_SOURCE_SINK = 0x0400,
    BIO_CTRL_EOF = 2,
    BIO_CTRL_FLUSH = 11,
    BIO_RETRY_READ = 0x01 | 0x08,
    BIO_RETRY = 0x0f
};
struct tls {
    SSL *ssl;
    unsigned char key[KEY_BYTES];
    /* The socket of the running call, and whether that call may read. */
    int socket;
    bool may_receive;
    /* An errno or 0. `error` comes from OpenSSL or from reading, `send_error` from writing. */
    int error, send_error;
    /* `ended` is set when the other end has closed the connection. `unread` is the result of tls_has_unread. */
    bool ended, unread;
    /* The unsent bytes are out[begin..end). */
    unsigned char *out;
    size_t begin, end, room;
    /* The number of records encrypted so far. */
    uint64_t records;
};
/* All connections share these. */
static struct {
    pthread_once_t once;
    SSL_CTX *context;
    BIO_METHOD *method;
} all = { .once = PTHREAD_ONCE_INIT };

/* ---- callbacks of OpenSSL ---- */
/* Makes the buffer of encrypted bytes at least `bytes` long. Returns false if memory is short or the limit is
   exceeded. */
static bool tls_make_room(struct tls *tls, size_t bytes)
{
    if (bytes <= tls->room) return true;
    if (bytes > MOST_OUT_BYTES) return false;
    size_t room = size_larger(bytes, size_larger(2 * tls->room, LEAST_OUT_BYTES));
    unsigned char *grown = memory_alloc_zeroed(1, room);
    if (!grown) return false;
    if (tls->end) memcpy(grown, tls->out, tls->end);
    free(tls->out);
    tls->out = grown;
    tls->room = room;
    return true;
}
/* OpenSSL's write callback: appends `count` encrypted bytes to the buffer. Returns `count`, or -1 without room. */
static int tls_on_write(BIO *bio, const char *bytes, int count)
{
    struct tls *tls = openssl.BIO_get_data(bio);
    if (!tls_make_room(tls, tls->end + (size_t)count)) return -1;
    memcpy(tls->out + tls->end, bytes, (size_t)count);
    tls->end += (size_t)count;
    return count;
}
/* OpenSSL's read callback: reads from the socket, only during tls_receive. Returns the number of bytes, 0 at the end,
   or -1. */
static int tls_on_read(BIO *bio, char *bytes, int count)
{
    struct tls *tls = openssl.BIO_get_data(bio);
    ssize_t received;
    openssl.BIO_clear_flags(bio, BIO_RETRY);
    if (!tls->may_receive) {
        openssl.BIO_set_flags(bio, BIO_RETRY_READ);
        return -1;
    }
    do received = recv(tls->socket, bytes, (size_t)count, MSG_DONTWAIT);
    while (received < 0 && errno == EINTR);
    if (received < 0 && errno == EAGAIN) openssl.BIO_set_flags(bio, BIO_RETRY_READ);
    else if (received < 0) tls->error = errno;
    tls->ended |= received == 0;
    return (int)received;
}
/* OpenSSL's control callback: returns 1 for a flush, and for BIO_CTRL_EOF if the other end has closed. */
static long tls_on_control(BIO *bio, int command, long value, void *pointer)
{
    const struct tls *tls = openssl.BIO_get_data(bio);
    (void)value;
    (void)pointer;
    return command == BIO_CTRL_FLUSH || (command == BIO_CTRL_EOF && tls->ended);
}
/* Returns the connection's key in the form that OpenSSL takes, as an earlier session, or NULL if memory is short. */
static SSL_SESSION *tls_create_session(SSL *ssl)
{
    static const unsigned char aes_128_gcm_sha256[2] = { 0x13, 0x01 };
    const struct tls *tls = openssl.SSL_get_ex_data(ssl, 0);
    SSL_SESSION *session = openssl.SSL_SESSION_new();
    if (session && openssl.SSL_SESSION_set1_master_key(session, tls->key, sizeof tls->key)
        && openssl.SSL_SESSION_set_cipher(session, openssl.SSL_CIPHER_find(ssl, aes_128_gcm_sha256))
        && openssl.SSL_SESSION_set_protocol_version(session, TLS_1_3))
        return session;
    openssl.SSL_SESSION_free(session);
    return NULL;
}
/* TLS needs a name for the key. It is constant, because both ends have only this key. */
static const unsigned char key_name[] = "tutti";
/* OpenSSL's server callback: sets *out to a session with the pre-shared key of that name, or NULL for another name. */
static int tls_on_find_session(SSL *ssl, const unsigned char *name, size_t bytes, SSL_SESSION **out)
{
    bool is_our_key = bytes == sizeof key_name && memcmp(name, key_name, bytes) == 0;
    *out = is_our_key ? tls_create_session(ssl) : NULL;
    return 1;
}
/* OpenSSL's client callback: sets *out to a session with the pre-shared key, and *name to the key's name. */
static int tls_on_use_session(SSL *ssl, const EVP_MD *digest, const unsigned char **name, size_t *bytes,
    SSL_SESSION **out)
{
    (void)digest;
    *name = key_name;
    *bytes = sizeof key_name;
    *out = tls_create_session(ssl);
    return *out != NULL;
}

/* ---- for all connections ---- */
/* Creates the context for TLS 1.3 with pre-shared keys, without certificates. */
static void tls_create_context(void)
{
    SSL_CTX *context = openssl.SSL_CTX_new(openssl.TLS_method());
    all.method = openssl.BIO_meth_new(BIO_SOURCE_SINK, "tutti");
    if (!context || !all.method) return;
    openssl.BIO_meth_set_write(all.method, tls_on_write);
    openssl.BIO_meth_set_read(all.method, tls_on_read);
    openssl.BIO_meth_set_ctrl(all.method, tls_on_control);
    openssl.SSL_CTX_ctrl(context, CTRL_SET_MIN_VERSION, TLS_1_3, NULL);
    openssl.SSL_CTX_ctrl(context, CTRL_MODE, MODE_RELEASE_BUFFERS, NULL);
    openssl.SSL_CTX_ctrl(context, CTRL_SET_READ_AHEAD, 1, NULL);
    openssl.SSL_CTX_set_default_read_buffer_len(context, READ_BYTES);
    openssl.SSL_CTX_set_num_tickets(context, 0);
    openssl.SSL_CTX_set_psk_find_session_callback(context, tls_on_find_session);
    openssl.SSL_CTX_set_psk_use_session_callback(context, tls_on_use_session);
    if (openssl.SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256")) all.context = context;
    else openssl.SSL_CTX_free(context);
}
bool encryption_is_required(void) { return *settings_get()->encryption; }
tutti_status encryption_check(void)
{
    const char *asked = settings_get()->encryption;
    if (!*asked) return TUTTI_OK;
    if (strcmp(asked, "required") != 0)
        return status_fail(TUTTI_INVALID_ARGUMENT, "TUTTI_ENCRYPTION is \"%.40s\": it must be required, or empty",
            asked);
    TRY(openssl_load());
    pthread_once(&all.once, tls_create_context);
    return all.context ? TUTTI_OK : status_fail(TUTTI_UNSUPPORTED, "OpenSSL does not offer TLS 1.3 with AES-GCM");
}

/* ---- a connection ---- */
void tls_free(struct tls *tls)
{
    if (!tls) return;
    if (tls->ssl) openssl.SSL_free(tls->ssl);
    free(tls->out);
    explicit_bzero(tls, sizeof *tls);
    free(tls);
}
/* Creates the OpenSSL object of the connection. `is_incoming`: the other end connected. Returns false if memory is
   short. */
static bool tls_attach(struct tls *tls, bool is_incoming)
{
    BIO *bio = openssl.BIO_new(all.method);
    tls->ssl = bio ? openssl.SSL_new(all.context) : NULL;
    if (!tls->ssl) return false;
    openssl.BIO_set_data(bio, tls);
    openssl.BIO_set_init(bio, 1);
    openssl.SSL_set_bio(tls->ssl, bio, bio);
    if (is_incoming) openssl.SSL_set_accept_state(tls->ssl);
    else openssl.SSL_set_connect_state(tls->ssl);
    /* The caller refuses any certificate: only the key proves who answers. */
    if (!is_incoming) openssl.SSL_set_verify(tls->ssl, VERIFY_PEER, NULL);
    return openssl.SSL_set_ex_data(tls->ssl, 0, tls);
}
struct tls *tls_new(bool is_incoming, const unsigned char key[KEY_BYTES])
{
    struct tls *tls = memory_alloc_zeroed(1, sizeof *tls);
    if (!tls) return NULL;
    memcpy(tls->key, key, sizeof tls->key);
    openssl.ERR_clear_error();
    if (tls_attach(tls, is_incoming)) return tls;
    tls_free(tls);
    return NULL;
}
int tls_create_after_handshake(const struct handshake *handshake, bool is_incoming, struct tls **out)
{
    unsigned char key[KEY_BYTES];
    *out = NULL;
    if (!encryption_is_required()) return 0;
    /* A rank that joins a group has reported the reason. */
    if (encryption_check() != TUTTI_OK) return -ENOTSUP;
    handshake_derive_key(handshake, key);
    *out = tls_new(is_incoming, key);
    explicit_bzero(key, sizeof key);
    return *out ? 0 : -ENOMEM;
}
bool tls_has_unsent(const struct tls *tls) { return tls && tls->begin < tls->end; }
bool tls_has_unread(const struct tls *tls) { return tls && tls->unread; }
/* Sends the unsent bytes as far as the socket takes them. Returns 0 or -errno. */
static int tls_flush(struct tls *tls)
{
    while (tls->begin < tls->end && !tls->send_error) {
        ssize_t sent = send(tls->socket, tls->out + tls->begin, tls->end - tls->begin, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) return 0;
        if (sent < 0) tls->send_error = errno;
        else tls->begin += (size_t)sent;
    }
    tls->begin = tls->end = 0;
    return -tls->send_error;
}
/* Returns the error of a failed OpenSSL call as -errno, or 0 if it only needs more bytes. Clears the thread's list of
   errors, because the program may use OpenSSL on this thread, too. */
static int tls_take_error(struct tls *tls)
{
    bool needs_bytes = openssl.SSL_get_error(tls->ssl, 0) == ERROR_WANT_READ;
    openssl.ERR_clear_error();
    if (needs_bytes) return 0;
    if (!tls->error && !tls->ended) tls->error = EPROTO;
    return tls->error ? -tls->error : -ECONNRESET;
}
/* Continues the TLS handshake. Returns 1 if both ends have proved that they have the key, 0 if not yet, or -errno. */
static int tls_advance_handshake(struct tls *tls)
{
    if (openssl.SSL_is_init_finished(tls->ssl)) return 1;
    openssl.ERR_clear_error();
    if (openssl.SSL_do_handshake(tls->ssl) != 1) return tls_take_error(tls);
    /* A handshake with the key counts as one with an earlier session. Any other handshake proves nothing. */
    if (!openssl.SSL_session_reused(tls->ssl)) return -(tls->error = EPROTO);
    return 1;
}
/* Begins a call with that socket, from which OpenSSL reads if `may_receive`, and continues the TLS handshake. Returns 1
   after it, 0 if it is not over, or -errno. */
static int tls_begin_call(struct tls *tls, int socket, bool may_receive)
{
    tls->socket = socket;
    tls->may_receive = may_receive;
    return tls->error ? -tls->error : tls_advance_handshake(tls);
}
int tls_push(struct tls *tls, int socket)
{
    int progress = tls_begin_call(tls, socket, false);
    return progress < 0 ? progress : tls_flush(tls);
}
bool tls_is_open(const struct tls *tls) { return !tls || openssl.SSL_is_init_finished(tls->ssl); }

/* ---- sending ---- */
/* Skips `bytes` bytes of a list of buffers, whose first is used up to *at, and updates *list, *count and *at. Returns
   `bytes`. */
static size_t iovec_skip_bytes(const struct iovec **list, int *count, size_t *at, size_t bytes)
{
    for (*at += bytes; *count > 0 && *at >= (*list)->iov_len; ++*list, --*count) *at -= (*list)->iov_len;
    return bytes;
}
/* Encrypts one record from the list of buffers, whose first is used up to `at`; joins short buffers. Returns 1 with the
   number of bytes in *taken, 0 if OpenSSL needs more bytes of the other end first, or -errno. */
static int tls_send_record(struct tls *tls, const struct iovec *list, int count, size_t at, size_t *taken)
{
    unsigned char together[RECORD_BYTES];
    const unsigned char *from = (const unsigned char *)list->iov_base + at;
    size_t bytes = size_smaller(list->iov_len - at, RECORD_BYTES), done;
    if (bytes < RECORD_BYTES && count > 1) {
        memcpy(together, from, bytes);
        for (int i = 1; i < count && bytes < RECORD_BYTES; i++) {
            size_t more = size_smaller(list[i].iov_len, RECORD_BYTES - bytes);
            memcpy(together + bytes, list[i].iov_base, more);
            bytes += more;
        }
        from = together;
    }
    if (++tls->records % RECORDS_OF_A_KEY == 0) openssl.SSL_key_update(tls->ssl, 0);
    if (!openssl.SSL_write_ex(tls->ssl, from, bytes, &done)) return tls_take_error(tls);
    *taken = done;
    return 1;
}
ssize_t tls_send(struct tls *tls, int socket, const struct iovec *list, int count)
{
    size_t all_taken = 0, at = 0, taken = 0;
    int progress = tls_push(tls, socket);
    if (progress == 0) progress = tls_is_open(tls) && !tls_has_unsent(tls);
    openssl.ERR_clear_error();
    iovec_skip_bytes(&list, &count, &at, 0);
    while (progress > 0 && count > 0 && all_taken < SEND_BYTES) {
        progress = tls_send_record(tls, list, count, at, &taken);
        if (progress > 0) all_taken += iovec_skip_bytes(&list, &count, &at, taken);
    }
    if (progress >= 0 && (progress = tls_flush(tls)) == 0 && !all_taken) progress = -EAGAIN;
    if (progress >= 0) return (ssize_t)all_taken;
    errno = -progress;
    return -1;
}

/* ---- receiving ---- */
ssize_t tls_receive(struct tls *tls, int socket, const struct iovec *list, int count)
{
    size_t all_received = 0, at = 0, received = 0;
    int progress = tls_begin_call(tls, socket, true);
    openssl.ERR_clear_error();
    iovec_skip_bytes(&list, &count, &at, 0);
    while (progress > 0 && count > 0) {
        if (openssl.SSL_read_ex(tls->ssl, (unsigned char *)list->iov_base + at, list->iov_len - at, &received))
            all_received += iovec_skip_bytes(&list, &count, &at, received);
        else progress = tls_take_error(tls);
    }
    tls->unread = progress > 0;
    tls_flush(tls);
    if (all_received) return (ssize_t)all_received;
    if (progress < 0 && tls->ended) return 0;
    errno = progress < 0 ? -progress : EAGAIN;
    return -1;
}
