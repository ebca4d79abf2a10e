/* Each process has one registry (registry.h), behind one mutex that no thread holds while it waits. Only the watch
 * thread (watch.c) reads from the sockets of peers. The functions here send, and wait for `changed`. Both ends of a
 * connection prove that they know the key of a shared group (handshake.h). If two processes connect to each other at
 * once, the connection of the smaller nonce stays, and the other is superfluous. A connection stays until the process
 * has released all groups and sends GOODBYE. An end without a GOODBYE is a death. */
#include "backend/processes/peers.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/random.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/memory/arena.h"
#include "backend/processes/registry.h"
#include "backend/processes/tcp.h"
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { SEND_MS = 10000, RETRY_MS = 5, FLUSH_MS = 200 };
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- fork ---- */
static void before_fork(void) { pthread_mutex_lock(&registry.lock); }
static void in_parent(void) { pthread_mutex_unlock(&registry.lock); }
/* The child closes its copies, because open ones would hide its parent's death. It does not touch the poll set, which
   it shares with the parent. It keeps the inherited memory, because inherited communicators still point there. */
static void in_child(void)
{
    for (struct peer *p = registry.peers; p; p = p->next) {
        descriptor_close(&p->descriptor);
        p->state = LEFT;
    }
    for (int i = 0; i < registry.pending_count; i++) close(registry.pending[i].descriptor);
    for (int i = 0; i < registry.kept_count; i++) descriptor_close(&registry.kept[i].descriptor);
    descriptor_close(&registry.listener);
    descriptor_close(&registry.poller);
    descriptor_close(&registry.waker);
    registry = (struct registry){ .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1, .poller = -1, .waker = -1 };
    clock_condition_init(&registry.changed);
    channels_after_fork();
    claims_after_fork();
    links_after_fork();
    keys_after_fork();
}
static void fork_prepare(void)
{
    /* Read the settings before a second thread may log. */
    settings_get();
    clock_condition_init(&registry.changed);
    /* The watch thread calls the arena with registry.lock held, so the arena registers its fork handlers first. */
    arena_prepare();
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- starting and stopping ---- */
/* Sends what is queued, because an exit without GOODBYE looks like a death. A peer that does not read for FLUSH_MS is
   stopped, and is not waited for. */
static void flush_everything(void)
{
    bool left = true;
    for (int64_t until_ms = clock_ms() + FLUSH_MS; left && clock_ms() < until_ms;) {
        left = false;
        for (struct peer *p = registry.peers; p; p = p->next) {
            if (p->unsent.first || p->owes_given_ups) peer_flush(p);
            left |= p->link ? link_push(p) : p->unsent.first != NULL;
        }
        if (left) registry_wait(clock_ms() + RETRY_MS);
    }
}
static void peer_leave(struct peer *peer)
{
    if (peer->descriptor >= 0) peer_tell(peer, GOODBYE, NULL, -1);
    if (peer->link && peer->descriptor >= 0) tcp_drain(peer->descriptor);
    registry_hang_up(&peer->descriptor);
    registry_forget(peer);
}
static void close_everything(void)
{
    flush_everything();
    while (registry.peers) peer_leave(registry.peers);
    links_close();
    while (registry.pending_count) close(registry_take_pending(0).descriptor);
    channels_forget();
    claims_forget();
    keys_forget();
    while (registry.kept_count) descriptor_close(&registry.kept[--registry.kept_count].descriptor);
    descriptor_close(&registry.listener);
    descriptor_close(&registry.poller);
    descriptor_close(&registry.waker);
}
static tutti_status identity_init(struct identity *out)
{
    *out = (struct identity){ .pid = (uint64_t)getpid() };
    if (gethostname(out->host, sizeof out->host - 1) != 0 && errno != ENAMETOOLONG) memcpy(out->host, "this host", 10);
    return random_fill(out->nonce, sizeof out->nonce);
}
static tutti_status start_thread(void)
{
    sigset_t all, before;
    sigfillset(&all);
    registry.stop = false;
    /* The program's own threads handle its signals. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int refused = pthread_create(&registry.thread, NULL, registry_watch, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (refused)
        return status_fail(TUTTI_SYSTEM, "cannot start the watch thread: %s (limit on threads? see ulimit -u)",
            strerror(refused));
    pthread_setname_np(registry.thread, "tutti-watch");
    return TUTTI_OK;
}
static tutti_status registry_begin(void)
{
    TRY(identity_init(&registry.self));
    registry.listener = socket_listen("peer", registry.self.nonce);
    if (registry.listener < 0)
        return status_fail(TUTTI_SYSTEM, "cannot listen for ranks of this host: %s", strerror(-registry.listener));
    registry.poller = descriptor_raised(epoll_create1(EPOLL_CLOEXEC));
    registry.waker = descriptor_raised(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (registry.poller < 0 || registry.waker < 0 || registry_poll(registry.listener) || registry_poll(registry.waker))
        return status_fail(TUTTI_SYSTEM, "cannot watch the ranks of this host: %s", strerror(errno));
    return start_thread();
}
tutti_status peers_acquire(struct identity *out)
{
    pthread_once(&once, fork_prepare);
    pthread_mutex_lock(&registry.lock);
    while (registry.stopping) registry_wait(INT64_MAX);
    tutti_status status = registry.users ? TUTTI_OK : registry_begin();
    if (status == TUTTI_OK) {
        registry.users++;
        *out = registry.self;
    } else close_everything();
    pthread_mutex_unlock(&registry.lock);
    return status;
}
void peers_release(void)
{
    pthread_mutex_lock(&registry.lock);
    /* `users` is already 0 in a child that releases its parent's use. */
    bool last = registry.users > 0 && --registry.users == 0;
    if (last) {
        assert(!pthread_equal(pthread_self(), registry.thread));
        registry.stop = registry.stopping = true;
        registry_wake();
        void (*at_end)(void) = registry.at_end;
        registry.at_end = NULL;
        pthread_mutex_unlock(&registry.lock);
        if (at_end) at_end();
        pthread_join(registry.thread, NULL);
        pthread_mutex_lock(&registry.lock);
        close_everything();
        registry.stopping = false;
        pthread_cond_broadcast(&registry.changed);
    }
    pthread_mutex_unlock(&registry.lock);
}
bool peers_at_end(void (*end)(void))
{
    pthread_mutex_lock(&registry.lock);
    bool first = !registry.at_end;
    registry.at_end = end;
    pthread_mutex_unlock(&registry.lock);
    return first;
}

/* ---- connecting ---- */
/* Connects to the peer and starts the handshake. Returns 0 or -errno. */
static int peer_call(struct peer *peer)
{
    int descriptor = socket_connect("peer", peer->identity.nonce);
    if (descriptor < 0) return descriptor;
    int error = peer_begin_handshake(peer, handshake_of_peers);
    if (!error) error = registry_poll(descriptor);
    if (error) close(descriptor);
    else peer->descriptor = descriptor;
    return error;
}
static int await_open(struct peer *peer, int64_t deadline_ms)
{
    while (peer->state == CONNECTING) {
        int error = peer->descriptor < 0 && !peer->expects_theirs ? peer_call(peer) : 0;
        int64_t now = clock_ms(), until_ms = error ? now + RETRY_MS : deadline_ms;
        if (error && error != -EAGAIN) return error;
        if (now >= deadline_ms) return -ETIMEDOUT;
        registry_wait(until_ms < deadline_ms ? until_ms : deadline_ms);
    }
    return peer->state == OPEN ? 0 : peer->error ? peer->error : -ECONNRESET;
}
static void peer_unuse(struct peer *peer)
{
    assert(peer->users > 0);
    /* An open connection stays for the next group. */
    if (--peer->users > 0 || peer->state == OPEN) return;
    /* A link stays until it has sent its messages. */
    if (peer->state == CONNECTING && peer->unsent.first) return;
    peer_leave(peer);
}
static tutti_status error_explain(const struct identity *other, int error)
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
tutti_status peer_connect(const struct identity *other, const struct key_id *key, int64_t deadline_ms,
    struct peer **out)
{
    pthread_mutex_lock(&registry.lock);
    assert(registry.users > 0);
    bool own = nonce_equal(other->nonce, registry.self.nonce);
    struct peer *peer = own ? NULL : registry_find(other->nonce);
    if (!own && !peer) peer = registry_add(other, key);
    int error = 0;
    if (peer) {
        peer->users++;
        error = await_open(peer, deadline_ms);
        if (error) peer_unuse(peer);
    }
    pthread_mutex_unlock(&registry.lock);
    if (own) return status_fail(TUTTI_INTERNAL, "a process does not connect to itself");
    if (!peer) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    if (error) return error_explain(other, error);
    *out = peer;
    return TUTTI_OK;
}
void peer_release(struct peer *peer)
{
    if (!peer) return;
    pthread_mutex_lock(&registry.lock);
    peer_unuse(peer);
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
uint64_t peers_nonce_at(void) { return (uintptr_t)registry.self.nonce; }
struct source peer_source(const struct peer *peer, uint64_t nonce_at)
{
    pthread_mutex_lock(&registry.lock);
    struct source source = { .process = peer->descriptor < 0 ? 0 : socket_process(peer->descriptor),
        .nonce_at = nonce_at };
    memcpy(source.nonce, peer->identity.nonce, sizeof source.nonce);
    pthread_mutex_unlock(&registry.lock);
    return source;
}

/* ---- descriptors ---- */
tutti_status peer_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor)
{
    int64_t deadline_ms = clock_ms() + SEND_MS;
    int error = -EAGAIN;
    pthread_mutex_lock(&registry.lock);
    while (error == -EAGAIN && peer->state == OPEN && clock_ms() < deadline_ms) {
        error = peer_tell(peer, DESCRIPTOR, token, descriptor);
        if (error == -EAGAIN) registry_wait(clock_ms() + RETRY_MS);
    }
    bool gone = peer->state != OPEN || error == -EPIPE || error == -ECONNRESET;
    struct identity other = peer->identity;
    pthread_mutex_unlock(&registry.lock);
    unsigned long long pid = other.pid;
    if (!error) return TUTTI_OK;
    if (gone) return status_fail(TUTTI_PEER_LOST, "process %llu on %.40s is gone", pid, other.host);
    if (error == -EAGAIN)
        return status_fail(TUTTI_TIMEOUT, "process %llu on %.40s does not read: it is stopped", pid, other.host);
    return status_fail(TUTTI_SYSTEM, "cannot send a file descriptor to process %llu on %.40s: %s", pid, other.host,
        strerror(-error));
}
tutti_status peers_await_descriptor(const unsigned char token[16], int64_t deadline_ms, int *out)
{
    pthread_mutex_lock(&registry.lock);
    int descriptor = -1;
    bool has_come = registry_take_kept(token, &descriptor);
    while (!has_come && clock_ms() < deadline_ms) {
        registry_wait(deadline_ms);
        has_come = registry_take_kept(token, &descriptor);
    }
    pthread_mutex_unlock(&registry.lock);
    if (!has_come) return TUTTI_TIMEOUT;
    if (descriptor < 0)
        return status_fail(TUTTI_SYSTEM,
            "shared memory arrived without its file descriptor: too many open files? see ulimit -n; or more than %d "
            "arrived after it that this process has not requested yet",
            KEPT_OPEN);
    *out = descriptor;
    return TUTTI_OK;
}

/* ---- giving up ---- */
void peers_give_up(const unsigned char token[16])
{
    pthread_mutex_lock(&registry.lock);
    /* The first process that gave up has notified all, and every error text names it. So this process sends nothing if
       it was not the first. */
    bool first = registry_record_given_up(token, &registry.self);
    if (first) registry_pass_on(token, NULL);
    pthread_mutex_unlock(&registry.lock);
}
bool peers_have_given_up(const unsigned char token[16], struct identity *out)
{
    pthread_mutex_lock(&registry.lock);
    const struct given_up *found = registry_find_given_up(token);
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
    if (peer_is_over(watch->peer)) registry_wake();
    pthread_mutex_unlock(&registry.lock);
}
void peer_unwatch(struct peer_watch *watch)
{
    pthread_mutex_lock(&registry.lock);
    struct peer_watch **at = &watch->peer->watches;
    while (*at && *at != watch) at = &(*at)->next;
    if (*at) *at = watch->next;
    while (registry.calling == watch && !pthread_equal(pthread_self(), registry.thread)) registry_wait(INT64_MAX);
    pthread_mutex_unlock(&registry.lock);
}
