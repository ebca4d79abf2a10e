/* How a connection between two processes begins, whatever it carries: a link, a connection of one host, TCP.
 *
 *   called -> caller   opening   a fresh challenge
 *   caller -> called   hello     who calls, whom it means, the id of their key, a challenge of its own, a proof
 *   called -> caller   answer    welcome or superfluous, with a proof; or refused, without one
 *   caller -> called   confirm   (links only) that it has not given up meanwhile
 *
 * A proof is HMAC-SHA256 with the key of this pair (keys.h) over the purpose of the connection, the kind of the
 * message, both identities, both challenges and both numbers. So a stranger learns a version and whether it is
 * refused, and a message that was seen elsewhere, or goes the other way, proves nothing. The bytes
 * behind the handshake are not signed, and encrypted only on request (tls.h). */
#pragma once
#include "backend/processes/peers.h"
#include "backend/processes/tls.h"

enum { HANDSHAKE_VERSION = 9 };
enum handshake_kind {
    HANDSHAKE_OPENING = 1,
    HANDSHAKE_HELLO,
    HANDSHAKE_WELCOME,
    HANDSHAKE_SUPERFLUOUS,                              /* another connection of the two stays */
    HANDSHAKE_REFUSED,                                  /* its key is unknown, or its proof is wrong */
    HANDSHAKE_CONFIRM
};
struct handshake_head { char magic[8]; uint32_t version, kind; };
struct handshake_opening { struct handshake_head head; unsigned char challenge[16]; };
struct handshake_hello {
    struct handshake_head head;
    uint64_t has_secret, number;                        /* number: what the caller counts, see handshake_say_hello */
    unsigned char to[16];
    struct identity from;
    struct key_id key;
    unsigned char challenge[16], proof[PROOF_BYTES];
};
struct handshake_answer {
    struct handshake_head head;
    uint64_t number;
    unsigned char proof[PROOF_BYTES];
};
struct handshake {                                      /* of one connection, at either of its ends */
    char magic[8];                                      /* what it is for */
    size_t received;                                    /* bytes of the message that is expected */
    bool has_announced, has_said_hello;                 /* the caller: its version; all of it */
    struct handshake_opening opening;
    struct handshake_hello hello;
    struct handshake_answer answer;
    struct handshake_head confirm;
    struct pair_key key;
};
extern const char handshake_of_links[8], handshake_of_peers[8];
/* Why a hello was turned away, to follow "a connection that". */
const char *handshake_refusal_text(const struct handshake *h, int error);

/* Functions that receive read no byte too many from a socket that does not block. They return 1 when the message is
   whole and right, 0 when more is to come, or a negative errno: -ECONNRESET the connection has ended, -EPROTO this is
   something else or for another process, -ENOPROTOOPT another version, -EKEYREJECTED the proof is wrong or the other
   side refuses, -ENOKEY no such key here, -EALREADY superfluous. Functions that send return 0 or a negative errno. */

/* ---- the process that is called ---- */
int handshake_open(struct handshake *h, const char magic[8], int socket);
int handshake_await_hello(struct handshake *h, const unsigned char self[16], int socket);
/* A welcome, or superfluous. After a hello that is right. */
int handshake_answer_hello(struct handshake *h, enum handshake_kind kind, uint64_t number, int socket);
/* Tells a caller whose key is unknown or whose proof is wrong, by the error that its hello ended with, that it is
   refused; any other caller gets no answer. */
void handshake_refuse(struct handshake *h, int error, int socket);
int handshake_await_confirm(struct handshake *h, int socket);

/* Connections without a proof have a bounded number of places. When all are taken, the network with the most of them
   loses its oldest, so many callers from one network keep no other out. The index of that one; -1: there are none. */
struct unproved { uint64_t network; int64_t since_ms; };
int unproved_find_superfluous(const struct unproved *list, int count);

/* After the answer: what encrypts the connection from here on, or NULL where that is not asked for. 0, -ENOMEM or
   -ENOTSUP. */
int handshake_encrypt(const struct handshake *h, bool called, struct tls **out);

/* ---- the caller ---- */
void handshake_begin(struct handshake *h, const char magic[8]);
/* Sends the version before the opening comes, so that a process of another version can tell. Links only. */
int handshake_announce(struct handshake *h, int socket);
int handshake_await_opening(struct handshake *h, int socket);
/* The number is the caller's own business; each side receives the other's. */
int handshake_say_hello(struct handshake *h, const struct identity *self, const unsigned char other[16],
    const struct key_id *key, uint64_t number, int socket);
int handshake_await_answer(struct handshake *h, int socket);
int handshake_confirm(const struct handshake *h, int socket);
