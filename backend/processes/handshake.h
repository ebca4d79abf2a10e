/* The start of every connection between two processes: of a link, on one host, or for TCP. The caller is the process
 * that connects, and the called process is the one that accepts.
 *
 *   called -> caller   opening   a fresh challenge
 *   caller -> called   hello     both identities, the id of the shared key, a challenge, a proof
 *   called -> caller   answer    welcome or superfluous, with a proof; or refused, without one
 *   caller -> called   confirm   (links only) that the caller still wants the link
 *
 * A proof is HMAC-SHA256 with the key of this pair (keys.h). It covers the purpose of the connection, the kind of the
 * message, both identities, both challenges and both numbers. So a stranger learns only the version and that it is
 * refused. A message that is replayed, or sent the other way, proves nothing. The bytes behind the handshake are not
 * signed, and are encrypted only on request (links/tls.h). */
#pragma once
#include "backend/processes/peers.h"

enum { HANDSHAKE_VERSION = 9 };
/* The kinds of messages. An answer is WELCOME, SUPERFLUOUS or REFUSED. */
enum handshake_kind {
    HANDSHAKE_OPENING = 1,
    HANDSHAKE_HELLO,
    /* The called process accepts the connection. */
    HANDSHAKE_WELCOME,
    /* The two processes keep another connection. */
    HANDSHAKE_SUPERFLUOUS,
    /* The caller's key is unknown, or its proof is wrong. */
    HANDSHAKE_REFUSED,
    HANDSHAKE_CONFIRM
};
struct handshake_head { char magic[8]; uint32_t version, kind; };
struct handshake_opening { struct handshake_head head; unsigned char challenge[16]; };
struct handshake_hello {
    struct handshake_head head;
    /* `has_secret` is 1 if the caller has a secret (secret.h); `number` is the caller's (handshake_send_hello). */
    uint64_t has_secret, number;
    /* The nonce of the called process. */
    unsigned char to[16];
    struct identity from;
    struct key_id key;
    unsigned char challenge[16], proof[PROOF_BYTES];
};
struct handshake_answer {
    struct handshake_head head;
    /* The number of the called process (handshake_send_answer). */
    uint64_t number;
    unsigned char proof[PROOF_BYTES];
};
/* The state of one connection's handshake, at either end. */
struct handshake {
    /* The purpose of the connection. */
    char magic[8];
    /* The bytes of the expected message that have arrived. */
    size_t received;
    /* The caller has sent its version, and the whole hello. */
    bool has_announced, has_sent_hello;
    struct handshake_opening opening;
    struct handshake_hello hello;
    struct handshake_answer answer;
    struct handshake_head confirm;
    /* The key of the two processes, which both prove to know. */
    struct pair_key key;
};
/* The purposes of connections: links, and connections between processes of one host. */
extern const char handshake_of_links[8], handshake_of_peers[8];
/* Returns the reason for which a hello was refused, to follow the words "a connection that". `error` is the result of
   handshake_receive_hello. */
const char *handshake_refusal_text(const struct handshake *handshake, int error);

/* Sockets do not block. Functions that receive read no byte past their message. They return 1 when the message is whole
   and valid, 0 when more is to come, or a negative errno. -ECONNRESET: the connection has ended. -EPROTO: the message
   is not a handshake, or is for another process. -ENOPROTOOPT: another version. -EKEYREJECTED: the proof is wrong, or
   the other side refuses. -ENOKEY: the key is unknown here. -EALREADY: superfluous. Functions that send return 0 or a
   negative errno. */

/* ---- the called process ---- */
/* Begins the handshake and sends the opening. `magic` is the purpose of the connection. */
int handshake_send_opening(struct handshake *handshake, const char magic[8], int socket);
/* Receives the hello and checks the caller's proof. `self` is the nonce of this process. */
int handshake_receive_hello(struct handshake *handshake, const unsigned char self[16], int socket);
/* Sends a welcome or superfluous (`kind`) after a valid hello. The caller receives `number`, whose meaning is up to the
   user of the connection. */
int handshake_send_answer(struct handshake *handshake, enum handshake_kind kind, uint64_t number, int socket);
/* Sends a refusal if `error`, the result of the caller's hello, is an unknown key or a wrong proof. Any other caller
   gets no answer. */
void handshake_send_refusal(struct handshake *handshake, int error, int socket);
/* Receives the caller's confirmation that it still wants the link. */
int handshake_receive_confirm(struct handshake *handshake, int socket);

/* A connection without a proof yet: the network of its caller (sock_address_network), and the time when it began. */
struct unproved { uint64_t network; int64_t since_ms; };
/* Returns the index of the connection to drop when all places are taken, or -1 for an empty list. It is the oldest
   connection of the network that has the most, so callers of one network leave room for callers of others. */
int unproved_find_superfluous(const struct unproved *list, int count);

/* Derives a key for encrypting this connection, after the answer. It is equal at both ends. */
void handshake_derive_key(const struct handshake *handshake, unsigned char out[KEY_BYTES]);

/* ---- the caller ---- */
/* Begins the handshake of a connection for that purpose. */
void handshake_begin(struct handshake *handshake, const char magic[8]);
/* Sends the version before the opening arrives, so that a process of another version can report it. Links only. */
int handshake_send_version(struct handshake *handshake, int socket);
/* Receives the opening, with the challenge of the called process. */
int handshake_receive_opening(struct handshake *handshake, int socket);
/* Sends the hello with a proof. `other` is the nonce of the called process, and `key` the id of a shared group's key.
   The called process receives `number`, whose meaning is up to the user of the connection. -ENOKEY: the key is
   unknown. */
int handshake_send_hello(struct handshake *handshake, const struct identity *self, const unsigned char other[16],
    const struct key_id *key, uint64_t number, int socket);
/* Receives the answer. Returns 1 for a welcome with a valid proof, -EALREADY for superfluous. */
int handshake_receive_answer(struct handshake *handshake, int socket);
/* Confirms that this process still wants the link. */
int handshake_send_confirm(const struct handshake *handshake, int socket);
