/* A claim has a token, and stays in a list until every rank of this process that made it releases it. If this process
 * was first, the claim holds the listening socket, and the watch thread answers. registry.lock protects all of it. A
 * thread releases the lock while it waits for another process's answer, and other ranks of this process wait for that
 * thread.
 *
 * Names and answers follow from the token and the key of the group, so only its processes can compute them. A name may
 * still belong to another user: two containers that share a network may both run as "root" and be different users to
 * the kernel. Then a process tries the next name, which differs in a number. A process of the group releases its name
 * only when all have claimed. So processes that can reach each other skip the same names and end at the same one. */
#include "backend/processes/host_election.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/processes/registry.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MOST_NAMES = 64, RETRY_NS = 2000000 };
struct host_election {
    unsigned char token[16], owner[16];
    struct key_id key;
    /* The listener is -1 unless this process owns the name. */
    int users, listener;
    bool asking, known;
    struct host_election *next;
};
static struct host_election *claims; /* under registry.lock */

/* ---- the list ---- */
static struct host_election *host_election_find(const unsigned char token[16])
{
    struct host_election *c = claims;
    while (c && !nonce_equal(c->token, token)) c = c->next;
    return c;
}
static struct host_election *host_election_get(const unsigned char token[16], const struct key_id *key)
{
    struct host_election *c = host_election_find(token);
    if (c || !(c = memory_alloc_zeroed(1, sizeof *c))) return c;
    memcpy(c->token, token, sizeof c->token);
    c->key = *key;
    c->listener = -1;
    c->next = claims;
    return claims = c;
}
static void host_election_free(struct host_election *claim)
{
    struct host_election **at = &claims;
    while (*at != claim) at = &(*at)->next;
    *at = claim->next;
    registry_close_descriptor(&claim->listener);
    free(claim);
}
static void host_election_release(struct host_election *claim)
{
    if (--claim->users == 0) host_election_free(claim);
}

/* ---- the answer ---- */
/* The answer gives the owner as a number for comparison only. Its proof shows that a process of the group sent it. */
struct claim_answer { char magic[8]; uint32_t version, unused; unsigned char owner[16], proof[PROOF_BYTES]; };
static_assert(sizeof(struct claim_answer) == 64, "no padding");
static bool host_election_make_answer(const struct host_election *claim, const unsigned char owner[16],
    struct claim_answer *out)
{
    *out = (struct claim_answer){ .magic = "tutti-c", .version = PROTOCOL };
    memcpy(out->owner, owner, sizeof out->owner);
    return group_key_derive(&claim->key, "tutti claim", out, offsetof(struct claim_answer, proof), out->proof);
}
static bool host_election_answer_is_valid(const struct host_election *claim, const struct claim_answer *answer)
{
    struct claim_answer right;
    return host_election_make_answer(claim, answer->owner, &right) && secret_bytes_equal(answer, &right, sizeof right);
}

/* ---- the owner, on the watch thread ---- */
bool host_elections_answer(int descriptor)
{
    struct host_election *c = claims;
    while (c && c->listener != descriptor) c = c->next;
    if (!c) return false;
    int socket = socket_accept(descriptor);
    struct claim_answer answer;
    if (socket >= 0) {
        if (host_election_make_answer(c, c->owner, &answer)) socket_send(socket, &answer, sizeof answer, -1);
        /* The other end can still read the answer after the close. */
        close(socket);
    } else registry.out_of_descriptors = socket != -EAGAIN && socket != -EPERM;
    return true;
}

/* ---- asking ---- */
static int host_election_await_answer(int socket, const struct host_election *claim, int64_t deadline_ms,
    unsigned char out[16])
{
    struct pollfd one = { .fd = socket, .events = POLLIN };
    struct claim_answer answer;
    int64_t left_ms = deadline_ms - clock_ms();
    poll(&one, 1, left_ms < 0 ? 0 : left_ms < 60000 ? (int)left_ms : 60000);
    int got = socket_receive(socket, &answer, sizeof answer, NULL);
    /* A connection that ends without an answer means that the owner has just released the name. */
    if (got <= 0) return got ? got : -ECONNREFUSED;
    if (got != (int)sizeof answer || !host_election_answer_is_valid(claim, &answer)) return -EPERM;
    memcpy(out, answer.owner, sizeof answer.owner);
    return 0;
}
/* Derives the owner's number from its nonce, so that a stranger who connects does not learn the nonce. */
static int host_election_derive_owner(struct host_election *claim)
{
    unsigned char derived[KEY_BYTES];
    if (!group_key_derive(&claim->key, "tutti owner", registry.self.nonce, sizeof registry.self.nonce, derived))
        return -ENOKEY;
    memcpy(claim->owner, derived, sizeof claim->owner);
    return 0;
}
/* Takes the name, or asks its owner. Returns 0 if the owner is known, -EAGAIN to try again, -EPERM if the name belongs
   to another user, or another -errno. */
static int host_election_try_name(struct host_election *claim, const unsigned char name[16], int64_t deadline_ms)
{
    int listener = socket_listen("host", name);
    if (listener >= 0) {
        int error = registry_poll_add(listener);
        claim->listener = listener;
        if (error) descriptor_close(&claim->listener);
        return error ? error : host_election_derive_owner(claim);
    }
    if (listener != -EADDRINUSE) return listener;
    int socket = socket_connect("host", name);
    /* The owner is about to listen, or has just released the name. */
    if (socket == -ECONNREFUSED) return -EAGAIN;
    if (socket < 0) return socket;
    pthread_mutex_unlock(&registry.lock);
    unsigned char owner[16];
    int error = host_election_await_answer(socket, claim, deadline_ms, owner);
    close(socket);
    pthread_mutex_lock(&registry.lock);
    if (!error) memcpy(claim->owner, owner, sizeof owner);
    return error == -ECONNREFUSED ? -EAGAIN : error;
}
static void registry_pause_unlocked(void)
{
    pthread_mutex_unlock(&registry.lock);
    nanosleep(&(struct timespec){ 0, RETRY_NS }, NULL);
    pthread_mutex_lock(&registry.lock);
}
/* Tries the names in order until the owner is known. Returns 0 or -errno. */
static int host_election_try_names(struct host_election *claim, int64_t deadline_ms)
{
    unsigned char name[KEY_BYTES];
    if (!group_key_derive(&claim->key, "tutti host", claim->token, sizeof claim->token, name)) return -ENOKEY;
    const unsigned char last = name[15];
    for (int number = 0; number < MOST_NAMES;) {
        name[15] = (unsigned char)(last ^ number);
        int error = host_election_try_name(claim, name, deadline_ms);
        if (error == -EPERM) number++;
        else if (error != -EAGAIN) return error;
        else if (clock_ms() >= deadline_ms) return -ETIMEDOUT;
        else registry_pause_unlocked();
    }
    return -EPERM;
}
/* One thread of this process asks while the others wait for it. If it fails, the next one asks. */
static int host_election_run(struct host_election *claim, int64_t deadline_ms)
{
    while (claim->asking) {
        if (clock_ms() >= deadline_ms) return -ETIMEDOUT;
        registry_wait(deadline_ms);
    }
    if (claim->known) return 0;
    claim->asking = true;
    int error = host_election_try_names(claim, deadline_ms);
    claim->asking = false;
    claim->known = !error;
    pthread_cond_broadcast(&registry.changed);
    return error;
}
static tutti_status host_election_explain_error(int error)
{
    if (error == -ETIMEDOUT)
        return status_fail(TUTTI_TIMEOUT,
            "the first process of the group on this host does not answer: it is stopped or too busy");
    return status_fail(TUTTI_SYSTEM, "cannot find the other ranks of the group on this host: %s",
        error == -EPERM ? "other users have taken all socket names" : strerror(-error));
}
tutti_status host_election_join(const unsigned char token[16], const struct key_id *key, int64_t deadline_ms,
    unsigned char out[16])
{
    pthread_mutex_lock(&registry.lock);
    struct host_election *claim = host_election_get(token, key);
    int error = claim ? 0 : -ENOMEM;
    if (claim) {
        claim->users++;
        error = host_election_run(claim, deadline_ms);
        if (error) host_election_release(claim);
        else memcpy(out, claim->owner, sizeof claim->owner);
    }
    pthread_mutex_unlock(&registry.lock);
    return error ? host_election_explain_error(error) : TUTTI_OK;
}
void host_election_leave(const unsigned char token[16])
{
    pthread_mutex_lock(&registry.lock);
    struct host_election *claim = host_election_find(token);
    if (claim) host_election_release(claim);
    pthread_mutex_unlock(&registry.lock);
}

/* ---- the end ---- */
void host_elections_free_all(void)
{
    while (claims) host_election_free(claims);
}
void host_elections_after_fork(void)
{
    for (struct host_election *c = claims; c; c = c->next) descriptor_close(&c->listener);
    claims = NULL;
}
