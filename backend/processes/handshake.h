/* How a link begins: hello, welcome, confirm; three messages of one length. Who calls says hello; who is called answers
 * welcome, and shows that it knows the secret, over the challenges of both; who called confirms by showing the same.
 * Each shows the other's nonce, which without a secret is all that lets it in. */
#pragma once
#include "backend/processes/registry.h"
#include "backend/processes/secret.h"

struct shake {
    char magic[8];
    uint32_t version, kind;                             /* HELLO, WELCOME, CONFIRM; SUPERFLUOUS, TURNED_AWAY: hung up */
    uint64_t has_secret;
    unsigned char to[16];
    struct identity from;
    unsigned char challenge[16], proof[PROOF_BYTES];
};
struct greeting { size_t bytes; struct shake shake; };  /* as much of one as has come */

/* The whole one: 1; 0: not yet; or -errno: -EPROTO is something else, -ENOPROTOOPT another version, -ECONNRESET the
   end. Reads not a byte more. */
int greeting_read(struct greeting *greeting, int socket);
/* Says that much to a new connection; 0 or -errno. */
int shake_send(int socket, const unsigned char to[16], enum kind kind, const unsigned char *challenge,
    const unsigned char *proof);
/* What both sign: who is called proves it first (WELCOME), then who calls (CONFIRM). */
struct oath { char label[16]; unsigned char caller[16], called[16], challenge[16], answer[16]; };
struct oath oath_of(enum kind kind, const unsigned char caller[16], const unsigned char called[16],
    const unsigned char challenge[16], const unsigned char answer[16]);
