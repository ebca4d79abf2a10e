/* Nothing of a connection is looked at before its first bytes are those of a link, and no more of it is read than is
 * needed. */
#include "backend/processes/handshake.h"
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>

static const char magic[8] = "tutti-l";
static_assert(sizeof(struct shake) == 152 && offsetof(struct shake, has_secret) == 16 && sizeof(struct oath) == 80,
    "no padding");

static int check(const struct greeting *g)              /* as far as it has come */
{
    size_t known = g->bytes < sizeof magic ? g->bytes : sizeof magic;
    if (memcmp(g->shake.magic, magic, known) != 0) return -EPROTO;
    if (g->bytes < offsetof(struct shake, kind)) return 0;
    if (g->shake.version != PROTOCOL) return -ENOPROTOOPT;
    if (g->bytes < sizeof g->shake) return 0;
    return nonce_equal(g->shake.to, registry.self.nonce) ? 1 : -EPROTO;
}
int greeting_read(struct greeting *g, int socket)
{
    for (;;) {
        size_t missing = sizeof g->shake - g->bytes;
        ssize_t came = recv(socket, (char *)&g->shake + g->bytes, missing, MSG_DONTWAIT);
        if (came < 0 && errno == EINTR) continue;
        if (came < 0 && errno == EAGAIN) return 0;
        if (came <= 0) return came ? -errno : -ECONNRESET;
        g->bytes += (size_t)came;
        int said = check(g);
        if (said) return said;
    }
}
int shake_send(int socket, const unsigned char to[16], enum kind kind, const unsigned char *challenge,
    const unsigned char *proof)
{
    struct shake shake = { .version = PROTOCOL, .kind = kind, .has_secret = secret_is_set(), .from = registry.self };
    memcpy(shake.magic, magic, sizeof magic);
    memcpy(shake.to, to, sizeof shake.to);
    if (challenge) memcpy(shake.challenge, challenge, sizeof shake.challenge);
    if (proof) memcpy(shake.proof, proof, sizeof shake.proof);
    ssize_t sent = send(socket, &shake, sizeof shake, MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent == (ssize_t)sizeof shake ? 0 : sent < 0 ? -errno : -ENOBUFS;
}
struct oath oath_of(enum kind kind, const unsigned char caller[16], const unsigned char called[16],
    const unsigned char challenge[16], const unsigned char answer[16])
{
    struct oath oath = { .label = "tutti link" };
    oath.label[15] = kind == WELCOME ? 'W' : 'C';
    memcpy(oath.caller, caller, sizeof oath.caller);
    memcpy(oath.called, called, sizeof oath.called);
    memcpy(oath.challenge, challenge, sizeof oath.challenge);
    memcpy(oath.answer, answer, sizeof oath.answer);
    return oath;
}
