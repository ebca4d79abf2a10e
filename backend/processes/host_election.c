/* An election finds the owner: the process of a group that was the first on its host to take the socket's name. It has
 * a token, and stays in a list until every rank of this process that joined it has left it. If this process was first,
 * the election holds the listening socket, and the watch thread answers. registry.lock protects all of it. A thread
 * releases the lock while it waits for another process's answer, and other ranks of this process wait for that thread.
 *
 * Names and answers follow from the token and the key of the group, so only its processes can compute them. A name may
 * still belong to another user: two containers that share a network may both run as "root" and be different users to
 * the kernel. Then a process tries the next name, which differs in a number. A process of the group releases its name
 * only when all have joined the election. So processes that can reach each other skip the same names and end at the
 * same one. */
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
    /* `owner` is the number of the elected process, and `name` that of its socket, once `is_known`. */
    unsigned char token[16], owner[16], name[16];
    struct key_id key;
    /* `users` counts the ranks of this process in the election. `listener` is -1 unless this process owns the name. */
    int users, listener;
    /* is_asking: a thread of this process asks for the owner. is_known: `owner` is set. */
    bool is_asking, is_known;
    struct host_election *next;
};
static struct host_election *elections; /* under registry.lock */

/* ---- the list ---- */
/* Returns this process's election with that token, or NULL. */
static struct host_election *host_election_find(const unsigned char token[16])
{
    struct host_election *election = elections;
    while (election && !nonce_equal(election->token, token)) election = election->next;
    return election;
}
/* Finds or adds the election. Returns NULL without memory. */
static struct host_election *host_election_get(const unsigned char token[16], const struct key_id *key)
{
    struct host_election *election = host_election_find(token);
    if (election || !(election = memory_alloc_zeroed(1, sizeof *election))) return election;
    memcpy(election->token, token, sizeof election->token);
    election->key = *key;
    election->listener = -1;
    election->next = elections;
    return elections = election;
}
/* Removes the election from the list, closes its listener and frees it. */
static void host_election_free(struct host_election *election)
{
    struct host_election **at = &elections;
    while (*at != election) at = &(*at)->next;
    *at = election->next;
    registry_close_descriptor(&election->listener);
    free(election);
}
/* Ends one rank's use of the election, and frees it after the last. */
static void host_election_release(struct host_election *election)
{
    if (--election->users == 0) host_election_free(election);
}

/* ---- the answer ---- */
/* The answer gives the owner as a number for comparison only. Its proof shows that a process of the group sent it. */
struct election_answer { char magic[8]; uint32_t version, unused; unsigned char owner[16], proof[PROOF_BYTES]; };
static_assert(sizeof(struct election_answer) == 64, "no padding");
/* Makes the answer that `owner` was elected, with a proof. Returns false if the group's key is unknown. */
static bool host_election_make_answer(const struct host_election *election, const unsigned char owner[16],
    struct election_answer *out)
{
    *out = (struct election_answer){ .magic = "tutti-c", .version = PROTOCOL };
    memcpy(out->owner, owner, sizeof out->owner);
    return group_key_derive(&election->key, "tutti claim", out, offsetof(struct election_answer, proof), out->proof);
}
/* Returns true if the proof of a received answer is right. */
static bool host_election_answer_is_valid(const struct host_election *election, const struct election_answer *answer)
{
    struct election_answer right;
    return host_election_make_answer(election, answer->owner, &right)
        && secret_bytes_equal(answer, &right, sizeof right);
}

/* ---- the owner, on the watch thread ---- */
bool host_elections_answer(int descriptor)
{
    struct host_election *election = elections;
    while (election && election->listener != descriptor) election = election->next;
    if (!election) return false;
    int socket = socket_accept(descriptor);
    struct election_answer answer;
    if (socket >= 0) {
        if (host_election_make_answer(election, election->owner, &answer))
            socket_send(socket, &answer, sizeof answer, -1);
        /* The other end can still read the answer after the close. */
        close(socket);
    } else registry.out_of_descriptors = socket != -EAGAIN && socket != -EPERM;
    return true;
}

/* ---- asking ---- */
/* Waits for the answer of the name's owner on a connection to it. Returns 0 with the owner's number in `out`, or
   -errno. */
static int host_election_await_answer(int socket, const struct host_election *election, int64_t deadline_ms,
    unsigned char out[16])
{
    struct pollfd one = { .fd = socket, .events = POLLIN };
    struct election_answer answer;
    int64_t left_ms = deadline_ms - clock_ms();
    poll(&one, 1, left_ms < 0 ? 0 : left_ms < 60000 ? (int)left_ms : 60000);
    int got = socket_receive(socket, &answer, sizeof answer, NULL);
    /* A connection that ends without an answer means that the owner has just released the name. */
    if (got <= 0) return got ? got : -ECONNREFUSED;
    if (got != (int)sizeof answer || !host_election_answer_is_valid(election, &answer)) return -EPERM;
    memcpy(out, answer.owner, sizeof answer.owner);
    return 0;
}
/* Makes this process the owner: derives its number from its nonce, so that a stranger who connects does not learn the
   nonce. Returns 0 or -ENOKEY. */
static int host_election_derive_owner(struct host_election *election)
{
    unsigned char derived[KEY_BYTES];
    if (!group_key_derive(&election->key, "tutti owner", registry.self.nonce, sizeof registry.self.nonce, derived))
        return -ENOKEY;
    memcpy(election->owner, derived, sizeof election->owner);
    return 0;
}
/* Takes the socket name for this process, or asks the process that owns it. Returns 0 if the owner is known, -EAGAIN to
   try again, -EPERM if the name belongs to another user, or another -errno. */
static int host_election_try_name(struct host_election *election, const unsigned char name[16], int64_t deadline_ms)
{
    int listener = socket_listen("host", name);
    if (listener >= 0) {
        int error = registry_poll_add(listener);
        election->listener = listener;
        if (error) descriptor_close(&election->listener);
        return error ? error : host_election_derive_owner(election);
    }
    if (listener != -EADDRINUSE) return listener;
    int socket = socket_connect("host", name);
    /* The owner is about to listen, or has just released the name. */
    if (socket == -ECONNREFUSED) return -EAGAIN;
    if (socket < 0) return socket;
    pthread_mutex_unlock(&registry.lock);
    unsigned char owner[16];
    int error = host_election_await_answer(socket, election, deadline_ms, owner);
    close(socket);
    pthread_mutex_lock(&registry.lock);
    if (!error) memcpy(election->owner, owner, sizeof owner);
    return error == -ECONNREFUSED ? -EAGAIN : error;
}
/* Releases registry.lock for RETRY_NS. */
static void registry_pause_unlocked(void)
{
    pthread_mutex_unlock(&registry.lock);
    nanosleep(&(struct timespec){ 0, RETRY_NS }, NULL);
    pthread_mutex_lock(&registry.lock);
}
/* Tries the names of the election in order until the owner is known. Returns 0, -ETIMEDOUT or another -errno. */
static int host_election_try_names(struct host_election *election, int64_t deadline_ms)
{
    unsigned char name[KEY_BYTES];
    if (!group_key_derive(&election->key, "tutti host", election->token, sizeof election->token, name)) return -ENOKEY;
    const unsigned char last = name[15];
    for (int number = 0; number < MOST_NAMES;) {
        name[15] = (unsigned char)(last ^ number);
        int error = host_election_try_name(election, name, deadline_ms);
        if (!error) memcpy(election->name, name, sizeof election->name);
        if (error == -EPERM) number++;
        else if (error != -EAGAIN) return error;
        else if (clock_ms() >= deadline_ms) return -ETIMEDOUT;
        else registry_pause_unlocked();
    }
    return -EPERM;
}
/* Finds the owner, unless it is known. One thread of this process asks while the others wait for it; if it fails, the
   next one asks. Returns 0 or -errno. */
static int host_election_run(struct host_election *election, int64_t deadline_ms)
{
    while (election->is_asking) {
        if (clock_ms() >= deadline_ms) return -ETIMEDOUT;
        registry_wait(deadline_ms);
    }
    if (election->is_known) return 0;
    election->is_asking = true;
    int error = host_election_try_names(election, deadline_ms);
    election->is_asking = false;
    election->is_known = !error;
    pthread_cond_broadcast(&registry.changed);
    return error;
}
/* Fails with the meaning of an error of the election, a -errno. */
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
    struct host_election *election = host_election_get(token, key);
    int error = election ? 0 : -ENOMEM;
    if (election) {
        election->users++;
        error = host_election_run(election, deadline_ms);
        if (error) host_election_release(election);
        else memcpy(out, election->owner, sizeof election->owner);
    }
    pthread_mutex_unlock(&registry.lock);
    return error ? host_election_explain_error(error) : TUTTI_OK;
}
bool host_election_is_won(const unsigned char token[16])
{
    pthread_mutex_lock(&registry.lock);
    const struct host_election *election = host_election_find(token);
    bool is_won = election && election->listener >= 0;
    pthread_mutex_unlock(&registry.lock);
    return is_won;
}
/* Connects to the elected process. Its socket's queue may be full, so this tries again until the deadline. Returns the
   connection, or -errno. */
static int host_election_connect_owner(const struct host_election *election, int64_t deadline_ms)
{
    int socket;
    while ((socket = socket_connect("host", election->name)) == -EAGAIN && clock_ms() < deadline_ms)
        nanosleep(&(struct timespec){ 0, RETRY_NS }, NULL);
    return socket;
}
bool host_election_poll_owner(const unsigned char token[16], int64_t deadline_ms)
{
    pthread_mutex_lock(&registry.lock);
    const struct host_election *found = host_election_find(token);
    bool is_asking = found && found->listener < 0, is_won = found && !is_asking;
    const struct host_election election = is_asking ? *found : (struct host_election){ .listener = -1 };
    pthread_mutex_unlock(&registry.lock);
    if (!is_asking) return is_won;
    int socket = host_election_connect_owner(&election, deadline_ms);
    if (socket < 0) return false;
    unsigned char owner[16];
    int error = host_election_await_answer(socket, &election, deadline_ms, owner);
    close(socket);
    return !error && nonce_equal(owner, election.owner);
}
void host_election_leave(const unsigned char token[16])
{
    pthread_mutex_lock(&registry.lock);
    struct host_election *election = host_election_find(token);
    if (election) host_election_release(election);
    pthread_mutex_unlock(&registry.lock);
}

/* ---- the end ---- */
void host_elections_free_all(void)
{
    while (elections) host_election_free(elections);
}
void host_elections_after_fork(void)
{
    for (struct host_election *e = elections; e; e = e->next) descriptor_close(&e->listener);
    elections = NULL;
}
