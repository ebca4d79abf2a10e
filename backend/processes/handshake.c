/* A receive fails as soon as the head of a message is wrong, and reads no byte past the expected message. */
#include "backend/processes/handshake.h"
#include "backend/base/random.h"
#include "backend/processes/secret.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

const char handshake_of_links[8] = "tutti-l", handshake_of_peers[8] = "tutti-p";
static_assert(sizeof(struct handshake_opening) == 32 && sizeof(struct handshake_hello) == 176
        && sizeof(struct handshake_answer) == 56,
    "no padding");

/* ---- messages ---- */
/* Returns the head of a message of that kind. */
static struct handshake_head handshake_head_make(const struct handshake *handshake, enum handshake_kind kind)
{
    struct handshake_head head = { .version = HANDSHAKE_VERSION, .kind = kind };
    memcpy(head.magic, handshake->magic, sizeof head.magic);
    return head;
}
/* Checks a received head of which `bytes` bytes have arrived. Returns 0 if they are right, -EPROTO for another purpose,
   or -ENOPROTOOPT for another version. */
static int handshake_head_check(const struct handshake *handshake, const struct handshake_head *head, size_t bytes)
{
    size_t known = bytes < sizeof head->magic ? bytes : sizeof head->magic;
    if (memcmp(head->magic, handshake->magic, known) != 0) return -EPROTO;
    if (bytes < offsetof(struct handshake_head, kind)) return 0;
    return head->version == HANDSHAKE_VERSION ? 0 : -ENOPROTOOPT;
}
/* Receives a message of `bytes` bytes, in parts. Returns 1 if it is complete, 0 if more must arrive, or -errno. The
   head is checked as soon as it has arrived. */
static int handshake_receive_message(struct handshake *handshake, void *message, size_t bytes, int socket)
{
    while (handshake->received < bytes) {
        ssize_t got = recv(socket, (char *)message + handshake->received, bytes - handshake->received, MSG_DONTWAIT);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return 0;
        if (got <= 0) return got ? -errno : -ECONNRESET;
        handshake->received += (size_t)got;
        int error = handshake_head_check(handshake, message, handshake->received);
        if (error) return error;
    }
    handshake->received = 0;
    return 1;
}
/* Sends a message of the handshake. Returns 0 or -errno. A new connection has room for a whole message, so a short send
   is an error. */
static int handshake_send_message(const void *message, size_t bytes, int socket)
{
    ssize_t sent;
    do sent = send(socket, message, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    return sent == (ssize_t)bytes ? 0 : sent < 0 ? -errno : -ENOBUFS;
}

/* ---- proofs ---- */
/* The text that a proof covers. */
struct transcript {
    struct handshake_head head;
    /* The caller's number, then the other's, which is 0 in a hello. */
    uint64_t numbers[2];
    struct identity from;
    unsigned char to[16], challenge_of_caller[16], challenge_of_called[16];
};
static_assert(sizeof(struct transcript) == 144, "no padding");
/* Returns the text that the proof of a message of that kind covers. `number` is that of the called process, or 0. */
static struct transcript handshake_make_transcript(const struct handshake *handshake, enum handshake_kind kind,
    uint64_t number)
{
    struct transcript transcript = { .head = handshake_head_make(handshake, kind),
        .numbers = { handshake->hello.number, number },
        .from = handshake->hello.from };
    memcpy(transcript.to, handshake->hello.to, sizeof transcript.to);
    memcpy(transcript.challenge_of_caller, handshake->hello.challenge, sizeof transcript.challenge_of_caller);
    memcpy(transcript.challenge_of_called, handshake->opening.challenge, sizeof transcript.challenge_of_called);
    return transcript;
}

/* Clears the handshake of a connection for the purpose `magic`. */
static void handshake_init(struct handshake *handshake, const char magic[8])
{
    memset(handshake, 0, sizeof *handshake);
    memcpy(handshake->magic, magic, sizeof handshake->magic);
}

/* ---- the called process ---- */
int handshake_send_opening(struct handshake *handshake, const char magic[8], int socket)
{
    handshake_init(handshake, magic);
    handshake->opening.head = handshake_head_make(handshake, HANDSHAKE_OPENING);
    if (random_fill(handshake->opening.challenge, sizeof handshake->opening.challenge) != TUTTI_OK) return -EIO;
    return handshake_send_message(&handshake->opening, sizeof handshake->opening, socket);
}
int handshake_receive_hello(struct handshake *handshake, const unsigned char self[16], int socket)
{
    struct handshake_hello *hello = &handshake->hello;
    int got = handshake_receive_message(handshake, hello, sizeof *hello, socket);
    if (got <= 0) return got;
    if (hello->head.kind != HANDSHAKE_HELLO || memcmp(hello->to, self, sizeof hello->to) != 0) return -EPROTO;
    if (!hello->has_secret != !secret_is_set()) return -EKEYREJECTED;
    if (!pair_key_derive(&hello->key, hello->from.nonce, hello->to, &handshake->key)) return -ENOKEY;
    struct transcript transcript = handshake_make_transcript(handshake, HANDSHAKE_HELLO, 0);
    if (!proof_check(&handshake->key, &transcript, sizeof transcript, hello->proof)) return -EKEYREJECTED;
    hello->from.host[sizeof hello->from.host - 1] = 0;
    return 1;
}
const char *handshake_refusal_text(const struct handshake *handshake, int error)
{
    if (error == -ENOPROTOOPT) return "runs another version of tutti";
    if (error == -ENOKEY) return "belongs to no group of this process";
    if (error != -EKEYREJECTED) return "sent an invalid handshake";
    if (!handshake->hello.has_secret != !secret_is_set())
        return secret_is_set() ? "has no secret (TUTTI_SECRET_FILE)"
                               : "has a secret (TUTTI_SECRET_FILE) where this process has none";
    return secret_is_set() ? "does not know the secret (TUTTI_SECRET_FILE)" : "does not know the key of its group";
}
int handshake_send_answer(struct handshake *handshake, enum handshake_kind kind, uint64_t number, int socket)
{
    struct transcript transcript = handshake_make_transcript(handshake, kind, number);
    handshake->answer = (struct handshake_answer){ .head = handshake_head_make(handshake, kind), .number = number };
    proof_make(&handshake->key, &transcript, sizeof transcript, handshake->answer.proof);
    return handshake_send_message(&handshake->answer, sizeof handshake->answer, socket);
}
void handshake_send_refusal(struct handshake *handshake, int error, int socket)
{
    if (error != -ENOKEY && error != -EKEYREJECTED) return;
    handshake->answer = (struct handshake_answer){ .head = handshake_head_make(handshake, HANDSHAKE_REFUSED) };
    handshake_send_message(&handshake->answer, sizeof handshake->answer, socket);
}
int handshake_receive_confirm(struct handshake *handshake, int socket)
{
    int got = handshake_receive_message(handshake, &handshake->confirm, sizeof handshake->confirm, socket);
    return got <= 0 || handshake->confirm.kind == HANDSHAKE_CONFIRM ? got : -EPROTO;
}

void handshake_derive_key(const struct handshake *handshake, unsigned char out[KEY_BYTES])
{
    struct {
        char purpose[8], magic[8];
        unsigned char challenges[2][16];
    } text = { .purpose = "traffic" };
    memcpy(text.magic, handshake->magic, sizeof text.magic);
    memcpy(text.challenges[0], handshake->hello.challenge, sizeof text.challenges[0]);
    memcpy(text.challenges[1], handshake->opening.challenge, sizeof text.challenges[1]);
    proof_make(&handshake->key, &text, sizeof text, out);
}
int unproved_find_superfluous(const struct unproved *list, int count)
{
    int most = 0, found = -1;
    for (int i = 0; i < count && count - i > most; i++) {
        int network_count = 0, oldest = i;
        for (int j = i; j < count; j++) {
            if (list[j].network != list[i].network) continue;
            network_count++;
            if (list[j].since_ms < list[oldest].since_ms) oldest = j;
        }
        if (network_count > most) most = network_count, found = oldest;
    }
    return found;
}

/* ---- the caller ---- */
void handshake_begin(struct handshake *handshake, const char magic[8])
{
    handshake_init(handshake, magic);
    handshake->hello.head = handshake_head_make(handshake, HANDSHAKE_HELLO);
}
int handshake_send_version(struct handshake *handshake, int socket)
{
    handshake->has_announced = true;
    return handshake_send_message(&handshake->hello.head, sizeof handshake->hello.head, socket);
}
int handshake_receive_opening(struct handshake *handshake, int socket)
{
    int got = handshake_receive_message(handshake, &handshake->opening, sizeof handshake->opening, socket);
    return got <= 0 || handshake->opening.head.kind == HANDSHAKE_OPENING ? got : -EPROTO;
}
int handshake_send_hello(struct handshake *handshake, const struct identity *self, const unsigned char other[16],
    const struct key_id *key, uint64_t number, int socket)
{
    struct handshake_hello *hello = &handshake->hello;
    size_t sent_bytes = handshake->has_announced ? sizeof hello->head : 0;
    hello->has_secret = secret_is_set();
    hello->number = number;
    hello->from = *self;
    hello->key = *key;
    memcpy(hello->to, other, sizeof hello->to);
    if (random_fill(hello->challenge, sizeof hello->challenge) != TUTTI_OK) return -EIO;
    if (!pair_key_derive(key, self->nonce, other, &handshake->key)) return -ENOKEY;
    struct transcript transcript = handshake_make_transcript(handshake, HANDSHAKE_HELLO, 0);
    proof_make(&handshake->key, &transcript, sizeof transcript, hello->proof);
    handshake->has_sent_hello = true;
    return handshake_send_message((const char *)hello + sent_bytes, sizeof *hello - sent_bytes, socket);
}
int handshake_receive_answer(struct handshake *handshake, int socket)
{
    struct handshake_answer *answer = &handshake->answer;
    int got = handshake_receive_message(handshake, answer, sizeof *answer, socket);
    if (got <= 0) return got;
    if (answer->head.kind == HANDSHAKE_REFUSED) return -EKEYREJECTED;
    if (answer->head.kind != HANDSHAKE_WELCOME && answer->head.kind != HANDSHAKE_SUPERFLUOUS) return -EPROTO;
    struct transcript transcript =
        handshake_make_transcript(handshake, (enum handshake_kind)answer->head.kind, answer->number);
    if (!proof_check(&handshake->key, &transcript, sizeof transcript, answer->proof)) return -EKEYREJECTED;
    return answer->head.kind == HANDSHAKE_WELCOME ? 1 : -EALREADY;
}
int handshake_send_confirm(const struct handshake *handshake, int socket)
{
    struct handshake_head head = handshake_head_make(handshake, HANDSHAKE_CONFIRM);
    return handshake_send_message(&head, sizeof head, socket);
}
