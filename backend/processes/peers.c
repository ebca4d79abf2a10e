/* The functions for other folders send, and wait for the watch thread, which alone reads from the sockets of peers. A
 * connection stays until the process has released all groups and sends GOODBYE. An end without a GOODBYE is a death. */
#include "backend/processes/peers.h"
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/processes/local_peer.h"
#include "backend/processes/registry.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { SEND_MS = 10000, RETRY_MS = 5 };

/* ---- connecting ---- */
/* Connects to the peer's socket and prepares the handshake. Returns 0 or -errno. */
static int peer_start_connect(struct peer *peer)
{
    int descriptor = socket_connect("peer", peer->identity.nonce);
    if (descriptor < 0) return descriptor;
    int error = peer_begin_handshake(peer, handshake_of_peers);
    if (!error) error = registry_poll_add(descriptor);
    if (error) close(descriptor);
    else peer->descriptor = descriptor;
    return error;
}
/* Waits until the connection is open, connecting if needed. Returns 0 or -errno. The caller holds registry.lock. */
static int peer_await_open(struct peer *peer, int64_t deadline_ms)
{
    while (peer->state == CONNECTING) {
        int error = peer->descriptor < 0 && !peer->awaits_incoming ? peer_start_connect(peer) : 0;
        int64_t now = clock_ms(), until_ms = error ? now + RETRY_MS : deadline_ms;
        if (error && error != -EAGAIN) return error;
        if (now >= deadline_ms) return -ETIMEDOUT;
        registry_wait(until_ms < deadline_ms ? until_ms : deadline_ms);
    }
    return peer->state == OPEN ? 0 : peer->error ? peer->error : -ECONNRESET;
}
/* Ends one use of a peer. After the last, closes and frees it, unless it is open or soon will be. */
static void peer_drop_user(struct peer *peer)
{
    assert(peer->users > 0);
    /* An open connection stays for the next group. */
    if (--peer->users > 0 || peer->state == OPEN) return;
    /* A link stays until it has sent its messages. */
    if (peer->state == CONNECTING && peer->unsent.first) return;
    /* The other process may already count this connection as open, and would take its end for the end of this
       process. So it stays until the answer has arrived. */
    if (peer->state == CONNECTING && !peer->link && peer->handshake && peer->handshake->has_sent_hello) return;
    peer_close_with_goodbye(peer);
}
/* Fails with the meaning of a -errno of connecting to the process `other`. */
static tutti_status peer_explain_error(const struct identity *other, int error)
{
    const char *why = strerror(-error);
    if (error == -ECONNREFUSED)
        why = "nobody listens: it has ended, or is on another host or in another network namespace (of a container)";
    if (error == -EPERM) why = "it runs as another user";
    if (error == -ENOPROTOOPT) why = "it runs another version of tutti";
    if (error == -ECONNRESET) why = "it closed the connection: it has ended, or runs another version of tutti";
    if (error == -EKEYREJECTED)
        why = "it belongs to no group of this process, or the secret (TUTTI_SECRET_FILE) differs or is missing there";
    if (error == -ETIMEDOUT) why = "it does not answer: it is stopped or too busy";
    return status_fail(error == -ETIMEDOUT ? TUTTI_TIMEOUT : TUTTI_SYSTEM, "no connection to process %llu on %.40s: %s",
        (unsigned long long)other->pid, other->host, why);
}
tutti_status peer_acquire(const struct identity *other, const struct key_id *key, struct peer **out)
{
    pthread_mutex_lock(&registry.lock);
    assert(registry.users > 0);
    bool is_self = nonce_equal(other->nonce, registry.self.nonce);
    struct peer *peer = is_self ? NULL : registry_find_peer(other->nonce);
    if (!is_self && !peer) peer = registry_add_peer(other, key, &local_peer_ops);
    if (peer) peer->users++;
    pthread_mutex_unlock(&registry.lock);
    if (is_self) return status_fail(TUTTI_INTERNAL, "a process does not connect to itself");
    if (!peer) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    *out = peer;
    return TUTTI_OK;
}
tutti_status peer_await(struct peer *peer, int64_t deadline_ms)
{
    pthread_mutex_lock(&registry.lock);
    int error = peer_await_open(peer, deadline_ms);
    struct identity other = peer->identity;
    pthread_mutex_unlock(&registry.lock);
    return error ? peer_explain_error(&other, error) : TUTTI_OK;
}
int peer_try_await(struct peer *peer, int64_t deadline_ms)
{
    pthread_mutex_lock(&registry.lock);
    int error = peer_await_open(peer, deadline_ms);
    pthread_mutex_unlock(&registry.lock);
    return error;
}
void peer_release(struct peer *peer)
{
    if (!peer) return;
    pthread_mutex_lock(&registry.lock);
    peer_drop_user(peer);
    pthread_mutex_unlock(&registry.lock);
}
bool peer_is_gone(const struct peer *peer)
{
    pthread_mutex_lock(&registry.lock);
    /* A link that is still CONNECTING is not gone. */
    bool gone = peer->state > OPEN;
    pthread_mutex_unlock(&registry.lock);
    return gone;
}

/* ---- reading ---- */
uint64_t peers_nonce_address(void) { return (uintptr_t)registry.self.nonce; }
struct read_source peer_memory_source(const struct peer *peer, uint64_t nonce_at)
{
    pthread_mutex_lock(&registry.lock);
    struct read_source source = { .process = peer->descriptor < 0 ? 0 : socket_peer_process(peer->descriptor),
        .nonce_at = nonce_at };
    memcpy(source.nonce, peer->identity.nonce, sizeof source.nonce);
    pthread_mutex_unlock(&registry.lock);
    return source;
}

/* ---- descriptors ---- */
/* Sends the descriptor now. Returns 0 or -errno. The caller holds registry.lock. */
static int peer_send_descriptor_now(struct peer *peer, const unsigned char token[16], int descriptor)
{
    return peer->state == OPEN ? peer_send_packet(peer, DESCRIPTOR, token, descriptor) : -ECONNRESET;
}
/* Returns true if the descriptor may be sent later: the peer has no room, or too many descriptors are on their way
   between processes of this user. */
static bool send_error_is_temporary(int error) { return error == -EAGAIN || error == -ETOOMANYREFS; }
int peer_try_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor)
{
    pthread_mutex_lock(&registry.lock);
    int error = peer_send_descriptor_now(peer, token, descriptor);
    pthread_mutex_unlock(&registry.lock);
    return send_error_is_temporary(error) ? -EAGAIN : error;
}
/* Fails with the meaning of a -errno of sending a descriptor to the process `other`. */
static tutti_status peer_explain_send_error(const struct identity *other, int error)
{
    unsigned long long pid = other->pid;
    if (error == -EPIPE || error == -ECONNRESET)
        return status_fail(TUTTI_PEER_LOST, "process %llu on %.40s is gone", pid, other->host);
    if (error == -EAGAIN)
        return status_fail(TUTTI_TIMEOUT, "process %llu on %.40s does not read: it is stopped", pid, other->host);
    if (error == -ETOOMANYREFS)
        return status_fail(TUTTI_TIMEOUT,
            "cannot send a file descriptor to process %llu on %.40s: more are on their way between processes of this "
            "user than one process may open (see ulimit -n)",
            pid, other->host);
    return status_fail(TUTTI_SYSTEM, "cannot send a file descriptor to process %llu on %.40s: %s", pid, other->host,
        strerror(-error));
}
tutti_status peer_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor)
{
    int64_t deadline_ms = clock_ms() + SEND_MS;
    int error;
    pthread_mutex_lock(&registry.lock);
    while (send_error_is_temporary(error = peer_send_descriptor_now(peer, token, descriptor))
        && clock_ms() < deadline_ms)
        registry_wait(clock_ms() + RETRY_MS);
    struct identity other = peer->identity;
    pthread_mutex_unlock(&registry.lock);
    return error ? peer_explain_send_error(&other, error) : TUTTI_OK;
}
tutti_status peers_await_descriptor(const unsigned char token[16], int64_t deadline_ms, int *out)
{
    pthread_mutex_lock(&registry.lock);
    int descriptor = -1;
    bool has_arrived = registry_take_early_descriptor(token, &descriptor), is_refused = false;
    while (!has_arrived && !(is_refused = registry_has_refused(token)) && clock_ms() < deadline_ms) {
        registry_wait(deadline_ms);
        has_arrived = registry_take_early_descriptor(token, &descriptor);
    }
    pthread_mutex_unlock(&registry.lock);
    if (is_refused) return status_fail(TUTTI_SYSTEM, "another rank of this process has ended the wait for the file");
    if (!has_arrived) return TUTTI_TIMEOUT;
    if (descriptor < 0)
        return status_fail(TUTTI_SYSTEM,
            "shared memory arrived without its file descriptor: its sender could not send it, or too many open files "
            "in this process (see ulimit -n), or more than %d arrived after it that this process has not requested yet",
            MOST_OPEN_EARLY_FDS);
    *out = descriptor;
    return TUTTI_OK;
}

void peers_refuse_descriptor(const unsigned char token[16])
{
    pthread_mutex_lock(&registry.lock);
    registry_refuse_early_descriptor(token);
    pthread_mutex_unlock(&registry.lock);
}

/* ---- aborted joins ---- */
void peers_abort_join(const unsigned char token[16])
{
    pthread_mutex_lock(&registry.lock);
    /* The first process that could not join has notified all, and every error text names it. So this process sends
       nothing if it was not the first. */
    bool is_first = registry_record_join_abort(token, &registry.self);
    if (is_first) peers_forward_join_abort(token, NULL);
    pthread_mutex_unlock(&registry.lock);
}
bool peers_join_is_aborted(const unsigned char token[16], struct identity *out)
{
    pthread_mutex_lock(&registry.lock);
    const struct join_abort *found = registry_find_join_abort(token);
    if (found) *out = found->by;
    pthread_mutex_unlock(&registry.lock);
    return found;
}

/* ---- watching ---- */
void peer_watch(struct peer_watch *watch)
{
    pthread_mutex_lock(&registry.lock);
    watch->called = false;
    watch->next = watch->peer->watches;
    watch->peer->watches = watch;
    if (peer_is_over(watch->peer)) {
        registry.watch_calls.are_due = true;
        registry_wake();
    }
    pthread_mutex_unlock(&registry.lock);
}
void peer_unwatch(struct peer_watch *watch)
{
    pthread_mutex_lock(&registry.lock);
    struct peer_watch **at = &watch->peer->watches;
    while (*at && *at != watch) at = &(*at)->next;
    if (*at) *at = watch->next;
    while (registry.watch_calls.running == watch && !pthread_equal(pthread_self(), registry.thread))
        registry_wait(INT64_MAX);
    pthread_mutex_unlock(&registry.lock);
}
/* Returns a watch of a peer that is gone whose function was not called yet, or NULL. */
static struct peer_watch *peer_watch_find_due(void)
{
    for (struct peer *peer = registry.watch_calls.are_due ? registry.peers : NULL; peer; peer = peer->next)
        for (struct peer_watch *watch = peer_is_over(peer) ? peer->watches : NULL; watch; watch = watch->next)
            if (!watch->called) return watch;
    registry.watch_calls.are_due = false;
    return NULL;
}
bool peers_call_due_watch(void)
{
    struct peer_watch *watch = peer_watch_find_due();
    if (!watch) return false;
    void (*lost)(void *) = watch->lost;
    void *context = watch->context;
    watch->called = true;
    registry.watch_calls.running = watch;
    pthread_mutex_unlock(&registry.lock);
    lost(context);
    pthread_mutex_lock(&registry.lock);
    registry.watch_calls.running = NULL;
    pthread_cond_broadcast(&registry.changed);
    return true;
}
