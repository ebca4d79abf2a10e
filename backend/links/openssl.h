/* The functions of OpenSSL 3 that encryption uses. The library is opened at the first use, so it is not needed
 * otherwise. This file has the declarations of OpenSSL's headers, so these are not needed either. */
#pragma once
#include "include/tutti.h"
#include <stddef.h>

typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_session_st SSL_SESSION;
typedef struct ssl_cipher_st SSL_CIPHER;
typedef struct ssl_method_st SSL_METHOD;
typedef struct evp_md_st EVP_MD;
typedef struct bio_st BIO;
typedef struct bio_method_st BIO_METHOD;
typedef int ssl_find_session(SSL *, const unsigned char *identity, size_t bytes, SSL_SESSION **out);
typedef int ssl_use_session(SSL *, const EVP_MD *, const unsigned char **identity, size_t *bytes, SSL_SESSION **out);

/* The functions of OpenSSL: result, name, parameters. */
#define OPENSSL_CALLS(X) \
    X(int, OPENSSL_init_crypto, (uint64_t options, const void *settings)) \
    X(unsigned long, OpenSSL_version_num, (void)) \
    X(void, ERR_clear_error, (void)) \
    X(const SSL_METHOD *, TLS_method, (void)) \
    X(SSL_CTX *, SSL_CTX_new, (const SSL_METHOD *)) \
    X(void, SSL_CTX_free, (SSL_CTX *)) \
    X(long, SSL_CTX_ctrl, (SSL_CTX *, int command, long value, void *)) \
    X(int, SSL_CTX_set_ciphersuites, (SSL_CTX *, const char *)) \
    X(int, SSL_CTX_set_num_tickets, (SSL_CTX *, size_t)) \
    X(void, SSL_CTX_set_default_read_buffer_len, (SSL_CTX *, size_t)) \
    X(void, SSL_CTX_set_psk_find_session_callback, (SSL_CTX *, ssl_find_session *)) \
    X(void, SSL_CTX_set_psk_use_session_callback, (SSL_CTX *, ssl_use_session *)) \
    X(SSL *, SSL_new, (SSL_CTX *)) \
    X(void, SSL_free, (SSL *)) \
    X(int, SSL_set_ex_data, (SSL *, int index, void *)) \
    X(void *, SSL_get_ex_data, (const SSL *, int index)) \
    X(void, SSL_set_bio, (SSL *, BIO *in, BIO *out)) \
    X(void, SSL_set_verify, (SSL *, int mode, int (*)(int, void *))) \
    X(void, SSL_set_connect_state, (SSL *)) \
    X(void, SSL_set_accept_state, (SSL *)) \
    X(int, SSL_do_handshake, (SSL *)) \
    X(int, SSL_is_init_finished, (const SSL *)) \
    X(int, SSL_session_reused, (const SSL *)) \
    X(int, SSL_read_ex, (SSL *, void *, size_t, size_t *)) \
    X(int, SSL_write_ex, (SSL *, const void *, size_t, size_t *)) \
    X(int, SSL_get_error, (const SSL *, int)) \
    X(int, SSL_key_update, (SSL *, int)) \
    X(const SSL_CIPHER *, SSL_CIPHER_find, (SSL *, const unsigned char *)) \
    X(SSL_SESSION *, SSL_SESSION_new, (void)) \
    X(void, SSL_SESSION_free, (SSL_SESSION *)) \
    X(int, SSL_SESSION_set1_master_key, (SSL_SESSION *, const unsigned char *, size_t)) \
    X(int, SSL_SESSION_set_cipher, (SSL_SESSION *, const SSL_CIPHER *)) \
    X(int, SSL_SESSION_set_protocol_version, (SSL_SESSION *, int)) \
    X(BIO_METHOD *, BIO_meth_new, (int type, const char *name)) \
    X(int, BIO_meth_set_write, (BIO_METHOD *, int (*)(BIO *, const char *, int))) \
    X(int, BIO_meth_set_read, (BIO_METHOD *, int (*)(BIO *, char *, int))) \
    X(int, BIO_meth_set_ctrl, (BIO_METHOD *, long (*)(BIO *, int, long, void *))) \
    X(BIO *, BIO_new, (const BIO_METHOD *)) \
    X(void, BIO_set_data, (BIO *, void *)) \
    X(void *, BIO_get_data, (BIO *)) \
    X(void, BIO_set_init, (BIO *, int)) \
    X(void, BIO_set_flags, (BIO *, int)) \
    X(void, BIO_clear_flags, (BIO *, int))
/* Their addresses in the opened library. */
struct openssl_calls {
#define X(type, name, parameters) type(*name) parameters;
    OPENSSL_CALLS(X)
#undef X
};
extern struct openssl_calls openssl;
/* Opens the library at the first call, by the settings. UNSUPPORTED: the text gives the library and the problem. */
tutti_status openssl_load(void);
