/* One registry per process, behind one mutex that is never held across anything that waits. The watch thread is the
 * only one that reads from sockets; all others only send, and wait for `changed`. Whoever connects sends a hello with
 * both nonces and is answered welcome. When two processes call each other at once, the connection of the one with the
 * smaller nonce stays, and the other is told that its own is superfluous. Connections stay until the process lets go of
 * all groups and says goodbye; an end without a goodbye is a death. */
#include "backend/peers.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STRANGERS = 32, HELLO_MS = 2000, KEPT = 64, SEND_MS = 10000, RETRY_MS = 5, STARVED_MS = 10 };
enum { PROTOCOL = 1 };
enum kind { HELLO = 1, WELCOME, SUPERFLUOUS, DESCRIPTOR, GOODBYE };
struct packet {                                        /* all that is ever said, always of this size */
    char magic[8];
    uint32_t version, kind;
    unsigned char to[16], token[16];
    struct identity from;
};
static const char magic[8] = "tutti-p";
static_assert(sizeof(struct identity) == 64 && sizeof(struct packet) == 112, "no padding");

enum state { CONNECTING, OPEN, REFUSED, LEFT, LOST };
struct peer {
    struct identity identity;
    enum state state;
    int descriptor;                                     /* -1: none yet, or no more */
    bool expects_theirs;                                /* CONNECTING: they call us */
    int users;
    struct peer_watch *watches;
    struct peer *next;
};
struct stranger { int descriptor; int64_t until_ms; }; /* has connected and not yet said hello       */
struct kept { int descriptor; unsigned char token[16]; };

static struct registry {
    pthread_mutex_t lock;
    pthread_cond_t changed;                            /* any state, kept descriptor, or end of call */
    int users;
    bool stop, stopping, starved;
    struct identity self;
    int listener, poller, waker;
    pthread_t thread;
    struct peer *peers;
    struct stranger strangers[STRANGERS];               /* oldest first */
    struct kept kept[KEPT];                             /* oldest first */
    int stranger_count, kept_count;
    const struct peer_watch *calling;
    uint64_t turned_away, dropped;
} registry = { .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1, .poller = -1, .waker = -1 };
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* ---- small things; the lock is held from here on ---- */
static bool same(const unsigned char a[16], const unsigned char b[16]) { return memcmp(a, b, 16) == 0; }
static void close_if_open(int *descriptor)
{
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}
static void wait_changed(int64_t until_ms)
{
    if (until_ms == INT64_MAX) { pthread_cond_wait(&registry.changed, &registry.lock); return; }
    struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
    pthread_cond_timedwait(&registry.changed, &registry.lock, &until);
}
static void wake_watcher(void)
{
    uint64_t one = 1;
    ssize_t ignored = write(registry.waker, &one, sizeof one);         /* full means that it is awake anyway */
    (void)ignored;
}
static int poller_add(int descriptor)                                  /* 0 or -errno */
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = descriptor };
    return epoll_ctl(registry.poller, EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0 : -errno;
}
/* To close is not enough: a child made without our fork handler may still hold the other reference for a moment. */
static void hang_up(int *descriptor)
{
    if (*descriptor >= 0) epoll_ctl(registry.poller, EPOLL_CTL_DEL, *descriptor, NULL);
    close_if_open(descriptor);
}
static int tell(int descriptor, const unsigned char to[16], enum kind kind, const unsigned char *token, int gift)
{
    struct packet packet = { .version = PROTOCOL, .kind = kind, .from = registry.self };
    memcpy(packet.magic, magic, sizeof magic);
    memcpy(packet.to, to, sizeof packet.to);
    if (token) memcpy(packet.token, token, sizeof packet.token);
    return socket_send(descriptor, &packet, sizeof packet, gift);
}
static bool is_for_us(int bytes, const struct packet *packet)
{
    return bytes == (int)sizeof *packet && memcmp(packet->magic, magic, sizeof magic) == 0
        && packet->version == PROTOCOL && same(packet->to, registry.self.nonce);
}

/* ---- peers ---- */
static struct peer *peer_find(const unsigned char nonce[16])           /* one that can be used or will be */
{
    for (struct peer *p = registry.peers; p; p = p->next)
        if (p->state <= OPEN && same(p->identity.nonce, nonce)) return p;
    return NULL;
}
static struct peer *peer_add(const struct identity *identity)
{
    struct peer *peer = memory_zeroed(1, sizeof *peer);
    if (!peer) return NULL;
    peer->identity = *identity;
    peer->identity.host[sizeof peer->identity.host - 1] = 0;
    peer->descriptor = -1;
    peer->next = registry.peers;
    return registry.peers = peer;
}
static void peer_forget(struct peer *peer)
{
    assert(peer->users == 0 && !peer->watches && peer->descriptor < 0);
    struct peer **at = &registry.peers;
    while (*at && *at != peer) at = &(*at)->next;
    if (*at) *at = peer->next;
    free(peer);
}
static void peer_end(struct peer *peer, enum state state)
{
    hang_up(&peer->descriptor);
    peer->state = state;
    pthread_cond_broadcast(&registry.changed);
    if (peer->users == 0) peer_forget(peer);
}
static void peer_open(struct peer *peer)
{
    peer->state = OPEN;
    pthread_cond_broadcast(&registry.changed);
}
static bool is_over(const struct peer *peer) { return peer->state == LEFT || peer->state == LOST; }

/* ---- what peers say ---- */
static int kept_take(const unsigned char token[16])                    /* -1: it has not come */
{
    for (int i = 0; i < registry.kept_count; i++) {
        if (!same(registry.kept[i].token, token)) continue;
        int descriptor = registry.kept[i].descriptor;
        memmove(&registry.kept[i], &registry.kept[i + 1], (size_t)(--registry.kept_count - i) * sizeof *registry.kept);
        return descriptor;
    }
    return -1;
}
static void keep(const unsigned char token[16], int descriptor)
{
    if (registry.kept_count == KEPT) {
        close(kept_take(registry.kept[0].token));
        if (registry.dropped++ == 0) LOG(WARN, "%d descriptors were sent here and not asked for; the oldest is closed",
            KEPT);
    }
    struct kept *kept = &registry.kept[registry.kept_count++];
    kept->descriptor = descriptor;
    memcpy(kept->token, token, sizeof kept->token);
    pthread_cond_broadcast(&registry.changed);
}
/* True: it is still the same connection. Takes over `gift`. */
static bool peer_hear(struct peer *peer, const struct packet *packet, int gift)
{
    bool connecting = peer->state == CONNECTING;
    if (packet->kind == DESCRIPTOR && !connecting && gift >= 0) {
        keep(packet->token, gift);
        return true;
    }
    close_if_open(&gift);
    if (packet->kind == WELCOME && connecting) {
        peer_open(peer);
        return true;
    }
    if (packet->kind == SUPERFLUOUS && connecting) {
        hang_up(&peer->descriptor);
        peer->expects_theirs = true;
        pthread_cond_broadcast(&registry.changed);
        return false;
    }
    peer_end(peer, connecting ? REFUSED : packet->kind == GOODBYE ? LEFT : LOST);
    return false;
}
static void peer_read(struct peer *peer)
{
    struct packet packet;
    int gift;
    for (;;) {
        int got = socket_receive(peer->descriptor, &packet, sizeof packet, &gift);
        if (got == -EAGAIN) return;
        if (!is_for_us(got, &packet)) break;
        if (!peer_hear(peer, &packet, gift)) return;
    }
    close_if_open(&gift);
    peer_end(peer, peer->state == CONNECTING ? REFUSED : LOST);
}

/* ---- strangers ---- */
static void turn_away(int descriptor, const char *why)
{
    if (descriptor >= 0) hang_up(&descriptor);
    if (registry.turned_away++ == 0)
        LOG(WARN, "a connection that %s was dropped; from now on such are dropped without a word", why);
}
static int stranger_take(int index)
{
    int descriptor = registry.strangers[index].descriptor;
    size_t behind = (size_t)(--registry.stranger_count - index);
    memmove(&registry.strangers[index], &registry.strangers[index + 1], behind * sizeof *registry.strangers);
    return descriptor;
}
static void stranger_accept(void)
{
    int descriptor = socket_accept(registry.listener);
    if (descriptor == -EPERM) { turn_away(-1, "belongs to another user"); return; }
    if (descriptor < 0) { registry.starved = descriptor != -EAGAIN; return; }
    if (registry.stranger_count == STRANGERS) turn_away(stranger_take(0), "said nothing while many others came");
    if (poller_add(descriptor) != 0) { close(descriptor); return; }
    registry.strangers[registry.stranger_count++] = (struct stranger){ descriptor, clock_ms() + HELLO_MS };
}
static int strangers_dismiss(void)                      /* the slow ones; ms until the next, -1: nobody */
{
    while (registry.stranger_count && registry.strangers[0].until_ms <= clock_ms())
        turn_away(stranger_take(0), "said nothing");
    return registry.stranger_count ? (int)(registry.strangers[0].until_ms - clock_ms()) + 1 : -1;
}
static void welcome(int descriptor, const struct identity *from)
{
    struct peer *peer = peer_find(from->nonce);
    if (peer && peer->state == OPEN) {                 /* perhaps it has ended, and this is the next one */
        peer_read(peer);
        peer = peer_find(from->nonce);
    }
    bool ours_is_up = peer && peer->descriptor >= 0;
    bool ours_stays = ours_is_up && (peer->state == OPEN || memcmp(registry.self.nonce, from->nonce, 16) < 0);
    if (!peer) peer = peer_add(from);
    if (!peer || ours_stays) {
        if (peer) tell(descriptor, from->nonce, SUPERFLUOUS, NULL, -1);
        hang_up(&descriptor);
        return;
    }
    hang_up(&peer->descriptor);
    peer->descriptor = descriptor;
    peer_open(peer);
    if (tell(descriptor, from->nonce, WELCOME, NULL, -1) != 0) peer_end(peer, LOST);
}
static void stranger_read(int index)
{
    struct packet packet;
    int descriptor = registry.strangers[index].descriptor;
    int got = socket_receive(descriptor, &packet, sizeof packet, NULL);
    if (got == -EAGAIN) return;
    stranger_take(index);
    bool known = is_for_us(got, &packet) && packet.kind == HELLO && !same(packet.from.nonce, registry.self.nonce);
    if (known) welcome(descriptor, &packet.from);
    else turn_away(descriptor, "did not speak as a rank of this version does");
}

/* ---- the watch thread ---- */
static void handle(int descriptor)                     /* what was ready a moment ago; it may be closed by now */
{
    uint64_t ignored;
    if (descriptor == registry.waker && read(descriptor, &ignored, sizeof ignored) >= 0) return;
    if (descriptor == registry.listener) { stranger_accept(); return; }
    for (struct peer *p = registry.peers; p; p = p->next)
        if (p->descriptor == descriptor) { peer_read(p); return; }
    for (int i = 0; i < registry.stranger_count; i++)
        if (registry.strangers[i].descriptor == descriptor) { stranger_read(i); return; }
}
static struct peer_watch *next_to_call(void)
{
    for (struct peer *p = registry.peers; p; p = p->next)
        for (struct peer_watch *w = is_over(p) ? p->watches : NULL; w; w = w->next)
            if (!w->called) return w;
    return NULL;
}
static void call_watches(void)                                         /* the lists may change during each call */
{
    for (struct peer_watch *watch; (watch = next_to_call()) != NULL;) {
        void (*lost)(void *) = watch->lost;
        void *context = watch->context;
        watch->called = true;
        registry.calling = watch;
        pthread_mutex_unlock(&registry.lock);
        lost(context);
        pthread_mutex_lock(&registry.lock);
        registry.calling = NULL;
        pthread_cond_broadcast(&registry.changed);
    }
}
static int await_events(struct epoll_event *events, int count)
{
    int poller = registry.poller, most_ms = strangers_dismiss();
    bool starved = registry.starved;
    registry.starved = false;
    pthread_mutex_unlock(&registry.lock);
    /* out of descriptors: the listener stays ready without our being able to accept, so do not run in circles */
    if (starved) nanosleep(&(struct timespec){ 0, STARVED_MS * 1000000 }, NULL);
    int ready = epoll_wait(poller, events, count, most_ms);
    pthread_mutex_lock(&registry.lock);
    return ready;
}
static void *watch_main(void *unused)
{
    struct epoll_event events[16];
    pthread_mutex_lock(&registry.lock);
    while (!registry.stop) {
        int ready = await_events(events, 16);
        for (int i = 0; i < ready; i++) handle(events[i].data.fd);
        call_watches();
    }
    pthread_mutex_unlock(&registry.lock);
    return unused;
}

/* ---- fork ---- */
static void before_fork(void) { pthread_mutex_lock(&registry.lock); }
static void in_parent(void) { pthread_mutex_unlock(&registry.lock); }
static void init_changed(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&registry.changed, &attributes);
    pthread_condattr_destroy(&attributes);
}
/* The child closes its copies, or it would keep the connections open and hide its parent's death. It leaves the
   poller's list alone, which is shared with the parent, and frees nothing: what it inherited still points there. */
static void in_child(void)
{
    for (struct peer *p = registry.peers; p; p = p->next) {
        close_if_open(&p->descriptor);
        p->state = LEFT;
    }
    for (int i = 0; i < registry.stranger_count; i++) close(registry.strangers[i].descriptor);
    for (int i = 0; i < registry.kept_count; i++) close(registry.kept[i].descriptor);
    close_if_open(&registry.listener);
    close_if_open(&registry.poller);
    close_if_open(&registry.waker);
    registry = (struct registry){ .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1, .poller = -1, .waker = -1 };
    init_changed();
}
static void prepare(void)
{
    init_changed();
    pthread_atfork(before_fork, in_parent, in_child);
}

/* ---- starting and stopping ---- */
static void close_everything(void)
{
    while (registry.peers) {
        struct peer *peer = registry.peers;
        if (peer->descriptor >= 0) tell(peer->descriptor, peer->identity.nonce, GOODBYE, NULL, -1);
        hang_up(&peer->descriptor);
        peer_forget(peer);
    }
    while (registry.stranger_count) close(stranger_take(0));
    while (registry.kept_count) close(kept_take(registry.kept[0].token));
    close_if_open(&registry.listener);
    close_if_open(&registry.poller);
    close_if_open(&registry.waker);
}
static tutti_status identify(struct identity *out)
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
    pthread_sigmask(SIG_SETMASK, &all, &before);                       /* signals are the program's, not ours */
    int refused = pthread_create(&registry.thread, NULL, watch_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (refused)
        return status_fail(TUTTI_SYSTEM, "cannot start the watch thread: %s (limit on threads? see ulimit -u)",
                           strerror(refused));
    pthread_setname_np(registry.thread, "tutti-watch");
    return TUTTI_OK;
}
static tutti_status begin(void)
{
    TRY(identify(&registry.self));
    registry.listener = socket_listen("peer", registry.self.nonce);
    if (registry.listener < 0)
        return status_fail(TUTTI_SYSTEM, "cannot listen for ranks of this host: %s", strerror(-registry.listener));
    registry.poller = epoll_create1(EPOLL_CLOEXEC);
    registry.waker = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (registry.poller < 0 || registry.waker < 0 || poller_add(registry.listener) || poller_add(registry.waker))
        return status_fail(TUTTI_SYSTEM, "cannot watch the ranks of this host: %s", strerror(errno));
    return start_thread();
}
tutti_status peers_acquire(struct identity *out)
{
    pthread_once(&once, prepare);
    pthread_mutex_lock(&registry.lock);
    while (registry.stopping) wait_changed(INT64_MAX);
    tutti_status status = registry.users ? TUTTI_OK : begin();
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
    bool last = registry.users > 0 && --registry.users == 0;           /* 0 before: in a child, of its parent's */
    if (last) {
        assert(!pthread_equal(pthread_self(), registry.thread));
        registry.stop = registry.stopping = true;
        wake_watcher();
        pthread_mutex_unlock(&registry.lock);
        pthread_join(registry.thread, NULL);
        pthread_mutex_lock(&registry.lock);
        close_everything();
        registry.stopping = false;
        pthread_cond_broadcast(&registry.changed);
    }
    pthread_mutex_unlock(&registry.lock);
}

/* ---- connecting ---- */
static int peer_call(struct peer *peer)                                /* 0 or -errno */
{
    int descriptor = socket_connect("peer", peer->identity.nonce);
    if (descriptor < 0) return descriptor;
    int error = tell(descriptor, peer->identity.nonce, HELLO, NULL, -1);
    if (!error) error = poller_add(descriptor);
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
        wait_changed(until_ms < deadline_ms ? until_ms : deadline_ms);
    }
    return peer->state == OPEN ? 0 : -ECONNRESET;
}
static void peer_let_go(struct peer *peer)
{
    assert(peer->users > 0);
    if (--peer->users > 0 || peer->state == OPEN) return;              /* open ones stay for the next group */
    if (peer->descriptor >= 0) tell(peer->descriptor, peer->identity.nonce, GOODBYE, NULL, -1);
    hang_up(&peer->descriptor);
    peer_forget(peer);
}
static tutti_status explain(const struct identity *other, int error)
{
    const char *why = strerror(-error);
    if (error == -ECONNREFUSED)
        why = "nobody listens: it has ended, or is on another host or in another network namespace (of a container)";
    if (error == -EPERM) why = "it runs as another user";
    if (error == -ECONNRESET) why = "it hung up: it has ended, or runs another version of tutti";
    if (error == -ETIMEDOUT) why = "it does not answer: it is stopped or too busy";
    return status_fail(error == -ETIMEDOUT ? TUTTI_TIMEOUT : TUTTI_SYSTEM, "no connection to process %llu on %.40s: %s",
                       (unsigned long long)other->pid, other->host, why);
}
tutti_status peer_connect(const struct identity *other, int64_t deadline_ms, struct peer **out)
{
    pthread_mutex_lock(&registry.lock);
    assert(registry.users > 0);
    bool own = same(other->nonce, registry.self.nonce);
    struct peer *peer = own ? NULL : peer_find(other->nonce);
    if (!own && !peer) peer = peer_add(other);
    int error = 0;
    if (peer) {
        peer->users++;
        error = await_open(peer, deadline_ms);
        if (error) peer_let_go(peer);
    }
    pthread_mutex_unlock(&registry.lock);
    if (own) return status_fail(TUTTI_INTERNAL, "a process does not connect to itself");
    if (!peer) return status_fail(TUTTI_NO_MEMORY, "no memory for a connection");
    if (error) return explain(other, error);
    *out = peer;
    return TUTTI_OK;
}
void peer_release(struct peer *peer)
{
    if (!peer) return;
    pthread_mutex_lock(&registry.lock);
    peer_let_go(peer);
    pthread_mutex_unlock(&registry.lock);
}
bool peer_is_gone(const struct peer *peer)
{
    pthread_mutex_lock(&registry.lock);
    bool gone = peer->state != OPEN;
    pthread_mutex_unlock(&registry.lock);
    return gone;
}

/* ---- descriptors ---- */
tutti_status peer_send_descriptor(struct peer *peer, const unsigned char token[16], int descriptor)
{
    int64_t deadline_ms = clock_ms() + SEND_MS;
    int error = -EAGAIN;
    pthread_mutex_lock(&registry.lock);
    while (error == -EAGAIN && peer->state == OPEN && clock_ms() < deadline_ms) {
        error = tell(peer->descriptor, peer->identity.nonce, DESCRIPTOR, token, descriptor);
        if (error == -EAGAIN) wait_changed(clock_ms() + RETRY_MS);
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
    int descriptor = kept_take(token);
    while (descriptor < 0 && clock_ms() < deadline_ms) {
        wait_changed(deadline_ms);
        descriptor = kept_take(token);
    }
    pthread_mutex_unlock(&registry.lock);
    if (descriptor < 0) return status_fail(TUTTI_TIMEOUT, "shared memory that was promised has not been sent in time");
    *out = descriptor;
    return TUTTI_OK;
}

/* ---- watching ---- */
void peer_watch(struct peer_watch *watch)
{
    pthread_mutex_lock(&registry.lock);
    watch->called = false;
    watch->next = watch->peer->watches;
    watch->peer->watches = watch;
    if (is_over(watch->peer)) wake_watcher();
    pthread_mutex_unlock(&registry.lock);
}
void peer_unwatch(struct peer_watch *watch)
{
    pthread_mutex_lock(&registry.lock);
    struct peer_watch **at = &watch->peer->watches;
    while (*at && *at != watch) at = &(*at)->next;
    if (*at) *at = watch->next;
    while (registry.calling == watch && !pthread_equal(pthread_self(), registry.thread)) wait_changed(INT64_MAX);
    pthread_mutex_unlock(&registry.lock);
}
