/* Starts and ends the registry (processes/registry.h). The end has an order: the queues are sent, all peers get a
 * GOODBYE, and then the listeners are closed and the keys forgotten. Meanwhile registry.stopping makes peers_acquire
 * wait in other threads. */
#include "backend/control/lifetime.h"
#include "backend/base/clock.h"
#include "backend/base/descriptor.h"
#include "backend/base/random.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/base/thread.h"
#include "backend/control/channel.h"
#include "backend/control/snapshot_socket.h"
#include "backend/control/watch.h"
#include "backend/host/socket.h"
#include "backend/links/link.h"
#include "backend/links/links.h"
#include "backend/memory/arena.h"
#include "backend/processes/host_election.h"
#include "backend/processes/keys.h"
#include "backend/processes/registry.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FLUSH_MS = 200, FLUSH_PAUSE_MS = 5 };
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- fork ---- */
static void registry_before_fork(void) { pthread_mutex_lock(&registry.lock); }
static void registry_after_fork_parent(void) { pthread_mutex_unlock(&registry.lock); }
/* Resets the registry in a forked child. The child closes its copies of the sockets, because open ones would hide its
   parent's death. It does not touch the poll set, which it shares with the parent. It keeps the inherited memory,
   because inherited communicators still point there. */
static void registry_after_fork_child(void)
{
    for (struct peer *peer = registry.peers; peer; peer = peer->next) {
        descriptor_close(&peer->descriptor);
        peer->state = LEFT;
    }
    registry_forget_peers();
    for (int i = 0; i < registry.pending_count; i++) close(registry.pending[i].descriptor);
    for (int i = 0; i < registry.early_count; i++) descriptor_close(&registry.early[i].descriptor);
    snapshot_socket_after_fork();
    descriptor_close(&registry.listener);
    descriptor_close(&registry.poller);
    descriptor_close(&registry.waker);
    registry = (struct registry){ .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1, .poller = -1, .waker = -1 };
    clock_condition_init(&registry.changed);
    channels_after_fork();
    host_elections_after_fork();
    links_after_fork();
    group_keys_after_fork();
}
/* Prepares the registry's condition and registers the fork handlers, once in a process. */
static void registry_prepare_fork(void)
{
    /* Read the settings before a second thread may log. */
    settings_get();
    clock_condition_init(&registry.changed);
    /* The watch thread takes the arena's lock with registry.lock held, and so must fork(). fork() runs handlers in the
       reverse order of their registration, so the arena registers first. */
    arena_prepare();
    pthread_atfork(registry_before_fork, registry_after_fork_parent, registry_after_fork_child);
}

/* ---- starting and stopping ---- */
/* Sends what is queued for all peers, so that GOODBYE finds room: an exit without GOODBYE looks like a death. Gives up
   after FLUSH_MS, because a peer that does not read may be stopped. */
static void peers_flush_all(void)
{
    bool has_unsent = true;
    for (int64_t until_ms = clock_ms() + FLUSH_MS; has_unsent && clock_ms() < until_ms;) {
        has_unsent = false;
        for (struct peer *peer = registry.peers; peer; peer = peer->next) {
            if (peer->unsent.first || peer->owes_join_aborts) peer_flush_queue(peer);
            has_unsent |= peer->link ? link_push(peer) : peer->unsent.first != NULL;
        }
        if (has_unsent) registry_wait(clock_ms() + FLUSH_PAUSE_MS);
    }
}
/* Sends what is queued and GOODBYE to all peers, and closes all connections and descriptors of the registry. Frees the
   channels and host elections, and forgets the group keys. */
static void registry_close_all(void)
{
    peers_flush_all();
    while (registry.peers) peer_close_with_goodbye(registry.peers);
    links_close();
    while (registry.pending_count) close(registry_take_pending_conn(0).descriptor);
    channels_free_all();
    host_elections_free_all();
    group_keys_forget();
    snapshot_socket_close();
    while (registry.early_count) descriptor_close(&registry.early[--registry.early_count].descriptor);
    descriptor_close(&registry.listener);
    descriptor_close(&registry.poller);
    descriptor_close(&registry.waker);
}
/* Makes the identity of this process with a new nonce. */
static tutti_status identity_init(struct identity *out)
{
    *out = (struct identity){ .pid = (uint64_t)getpid() };
    if (gethostname(out->host, sizeof out->host - 1) != 0 && errno != ENAMETOOLONG) memcpy(out->host, "this host", 10);
    return random_fill(out->nonce, sizeof out->nonce);
}
/* Starts the watch thread. */
static tutti_status registry_start_thread(void)
{
    registry.stop = false;
    int error = thread_start_blocking_signals(&registry.thread, watch_run_thread, NULL);
    if (error)
        return status_fail(TUTTI_SYSTEM, "cannot start the watch thread: %s (limit on threads? see ulimit -u)",
            strerror(error));
    pthread_setname_np(registry.thread, "tutti-watch");
    return TUTTI_OK;
}
/* Creates this process's identity and listener, and starts the watch thread. */
static tutti_status registry_start(void)
{
    TRY(identity_init(&registry.self));
    registry.listener = socket_listen("peer", registry.self.nonce);
    if (registry.listener < 0)
        return status_fail(TUTTI_SYSTEM, "cannot listen for ranks of this host: %s", strerror(-registry.listener));
    registry.poller = descriptor_move_above_stderr(epoll_create1(EPOLL_CLOEXEC));
    registry.waker = descriptor_move_above_stderr(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (registry.poller < 0 || registry.waker < 0 || registry_poll_add(registry.listener)
        || registry_poll_add(registry.waker))
        return status_fail(TUTTI_SYSTEM, "cannot watch the ranks of this host: %s", strerror(errno));
    snapshot_socket_open();
    return registry_start_thread();
}
tutti_status peers_acquire(struct identity *out)
{
    pthread_once(&once, registry_prepare_fork);
    pthread_mutex_lock(&registry.lock);
    while (registry.stopping) registry_wait(INT64_MAX);
    tutti_status status = registry.users ? TUTTI_OK : registry_start();
    if (status == TUTTI_OK) {
        registry.users++;
        *out = registry.self;
    } else registry_close_all();
    pthread_mutex_unlock(&registry.lock);
    return status;
}
void peers_release(void)
{
    pthread_mutex_lock(&registry.lock);
    /* `users` is already 0 in a child that releases its parent's use. */
    bool is_last = registry.users > 0 && --registry.users == 0;
    if (is_last) {
        assert(!pthread_equal(pthread_self(), registry.thread));
        registry.stop = registry.stopping = true;
        registry_wake();
        void (*at_end)(void) = registry.at_end;
        registry.at_end = NULL;
        pthread_mutex_unlock(&registry.lock);
        if (at_end) at_end();
        pthread_join(registry.thread, NULL);
        pthread_mutex_lock(&registry.lock);
        registry_close_all();
        registry.stopping = false;
        pthread_cond_broadcast(&registry.changed);
    }
    pthread_mutex_unlock(&registry.lock);
}
bool peers_set_at_end(void (*at_end)(void))
{
    pthread_mutex_lock(&registry.lock);
    bool is_first = !registry.at_end;
    registry.at_end = at_end;
    pthread_mutex_unlock(&registry.lock);
    return is_first;
}
