/* The registry's data, and the functions on it that several files use. */
#include "backend/processes/registry.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/text.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { LEAST_ROOM = 64 };
struct registry registry = { .lock = PTHREAD_MUTEX_INITIALIZER, .listener = -1, .poller = -1, .waker = -1 };

bool nonce_equal(const unsigned char a[16], const unsigned char b[16]) { return memcmp(a, b, 16) == 0; }
void descriptor_close(int *descriptor)
{
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
}
void registry_wait(int64_t until_ms)
{
    if (until_ms == INT64_MAX) { pthread_cond_wait(&registry.changed, &registry.lock); return; }
    struct timespec until = { until_ms / 1000, until_ms % 1000 * 1000000 };
    pthread_cond_timedwait(&registry.changed, &registry.lock, &until);
}
void registry_wake(void)
{
    uint64_t one = 1;
    /* The write fails only if the counter is full, and then the watch thread is awake. */
    ssize_t ignored = write(registry.waker, &one, sizeof one);
    (void)ignored;
}
int registry_poll_add(int descriptor)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = descriptor };
    return epoll_ctl(registry.poller, EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0 : -errno;
}
void registry_poll_writing(int descriptor, bool on)
{
    struct epoll_event event = { .events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = descriptor };
    epoll_ctl(registry.poller, EPOLL_CTL_MOD, descriptor, &event);
}
/* A close alone may not end the polling, because a child that ran no fork handler may share the socket. */
void registry_close_descriptor(int *descriptor)
{
    if (*descriptor >= 0) epoll_ctl(registry.poller, EPOLL_CTL_DEL, *descriptor, NULL);
    descriptor_close(descriptor);
}
void registry_refuse_connection(int descriptor, const char *why)
{
    if (descriptor >= 0) registry_close_descriptor(&descriptor);
    if (registry.refused_count++ == 0)
        LOG(WARN, "a connection that %s was dropped; further ones are dropped without a warning", why);
}

/* ---- lists of the registry ---- */
/* Returns the place of the index that has the peers with that nonce. Nonces are random. */
static struct peer **registry_place_of(const unsigned char nonce[16])
{
    uint32_t number;
    memcpy(&number, nonce, sizeof number);
    return &registry.index.places[number & (registry.index.room - 1)];
}
struct peer *registry_find_kind(const unsigned char nonce[16], bool is_link)
{
    struct peer *peer = registry.index.count ? *registry_place_of(nonce) : NULL;
    while (peer && !(is_link == !!peer->link && peer->state <= OPEN && nonce_equal(peer->identity.nonce, nonce)))
        peer = peer->next_at_place;
    return peer;
}
struct peer *registry_find_peer(const unsigned char nonce[16]) { return registry_find_kind(nonce, false); }
static void registry_index_peer(struct peer *peer)
{
    struct peer **place = registry_place_of(peer->identity.nonce);
    peer->next_at_place = *place;
    *place = peer;
}
/* Makes room for one more peer in the index. Returns false if there is no index and memory is short. A full index still
   works, but slower. */
static bool registry_extend_index(void)
{
    struct peer_index *index = &registry.index;
    if (index->count < index->room) return true;
    uint32_t room = index->room ? 2 * index->room : LEAST_ROOM;
    struct peer **places = memory_alloc_zeroed(room, sizeof *places);
    if (!places) return index->room > 0;
    free(index->places);
    *index = (struct peer_index){ places, room, index->count };
    for (struct peer *peer = registry.peers; peer; peer = peer->next) registry_index_peer(peer);
    return true;
}
/* Makes the peer the first of the list. */
static void registry_list_peer(struct peer *peer)
{
    peer->next = registry.peers;
    peer->at = &registry.peers;
    if (peer->next) peer->next->at = &peer->next;
    registry.peers = peer;
}
static void registry_unlist_peer(struct peer *peer)
{
    *peer->at = peer->next;
    if (peer->next) peer->next->at = peer->at;
    peer->at = NULL;
}
bool registry_insert_peer(struct peer *peer)
{
    if (!registry_extend_index()) return false;
    registry_index_peer(peer);
    registry.index.count++;
    registry_list_peer(peer);
    return true;
}
/* Few peers of other hosts are connected, so those that were found before are the first. */
struct peer *registry_find_socket(int descriptor)
{
    struct peer *peer = registry.peers;
    while (peer && peer->descriptor != descriptor) peer = peer->next;
    if (!peer || peer == registry.peers) return peer;
    registry_unlist_peer(peer);
    registry_list_peer(peer);
    return peer;
}
struct peer *registry_add_peer(const struct identity *identity, const struct key_id *key, const struct peer_ops *ops)
{
    struct peer *peer = memory_alloc_zeroed(1, sizeof *peer);
    if (!peer) return NULL;
    peer->ops = ops;
    peer->identity = *identity;
    peer->key = *key;
    text_make_printable(peer->identity.host, sizeof peer->identity.host);
    peer->descriptor = -1;
    if (registry_insert_peer(peer)) return peer;
    free(peer);
    return NULL;
}
static void registry_free_index(void)
{
    free(registry.index.places);
    registry.index = (struct peer_index){ 0 };
}
void registry_remove_peer(struct peer *peer)
{
    if (!peer->at) return;
    struct peer **at = registry_place_of(peer->identity.nonce);
    while (*at != peer) at = &(*at)->next_at_place;
    *at = peer->next_at_place;
    registry_unlist_peer(peer);
    if (--registry.index.count == 0) registry_free_index();
}
void registry_forget_peers(void)
{
    /* A communicator of the parent may still release them. */
    for (struct peer *peer = registry.peers; peer; peer = peer->next) peer->at = NULL;
    registry.peers = NULL;
    registry_free_index();
}
bool registry_take_early_descriptor(const unsigned char token[16], int *out)
{
    for (int i = 0; i < registry.early_count; i++) {
        if (!nonce_equal(registry.early[i].token, token)) continue;
        *out = registry.early[i].descriptor;
        memmove(&registry.early[i], &registry.early[i + 1],
            (size_t)(--registry.early_count - i) * sizeof *registry.early);
        return true;
    }
    return false;
}
const struct join_abort *registry_find_join_abort(const unsigned char token[16])
{
    for (unsigned i = 0; i < MOST_JOIN_ABORTS && i < registry.join_abort_count; i++)
        if (nonce_equal(registry.join_aborts[i].token, token)) return &registry.join_aborts[i];
    return NULL;
}
/* Closes the oldest open descriptor that arrived early if MOST_OPEN_EARLY_FDS are open. A rank that waits for it later
   gets an error. */
static void early_descriptors_make_room(void)
{
    int open_count = 0, *oldest = NULL;
    for (int i = registry.early_count - 1; i >= 0; i--) {
        if (registry.early[i].descriptor < 0) continue;
        oldest = &registry.early[i].descriptor;
        open_count++;
    }
    if (open_count < MOST_OPEN_EARLY_FDS) return;
    descriptor_close(oldest);
    if (registry.closed_early_count++ == 0)
        LOG(WARN, "%d file descriptors arrived that were not requested; from now on the oldest is closed",
            MOST_OPEN_EARLY_FDS);
}
bool registry_has_refused(const unsigned char token[16])
{
    const struct refused_descriptors *refused = &registry.refused;
    for (unsigned i = 0; i < MOST_REFUSED && i < refused->count; i++)
        if (nonce_equal(refused->tokens[i], token)) return true;
    return false;
}
void registry_refuse_early_descriptor(const unsigned char token[16])
{
    int descriptor = -1;
    struct refused_descriptors *refused = &registry.refused;
    if (registry_take_early_descriptor(token, &descriptor)) descriptor_close(&descriptor);
    if (registry_has_refused(token)) return;
    memcpy(refused->tokens[refused->count++ % MOST_REFUSED], token, sizeof *refused->tokens);
    pthread_cond_broadcast(&registry.changed);
}
void registry_keep_early_descriptor(const unsigned char token[16], int descriptor)
{
    int oldest_descriptor = -1;
    if (registry_find_join_abort(token) || registry_has_refused(token)) {
        descriptor_close(&descriptor);
        return;
    }
    early_descriptors_make_room();
    if (registry.early_count == MOST_EARLY_FDS)
        registry_take_early_descriptor(registry.early[0].token, &oldest_descriptor);
    descriptor_close(&oldest_descriptor);
    struct early_descriptor *added = &registry.early[registry.early_count++];
    added->descriptor = descriptor;
    memcpy(added->token, token, sizeof added->token);
    pthread_cond_broadcast(&registry.changed);
}
bool registry_record_join_abort(const unsigned char token[16], const struct identity *by)
{
    int early_descriptor = -1;
    /* Later processes cannot join because of the first one, so only the first is recorded. */
    if (registry_find_join_abort(token)) return false;
    struct join_abort *record = &registry.join_aborts[registry.join_abort_count++ % MOST_JOIN_ABORTS];
    memcpy(record->token, token, sizeof record->token);
    record->by = *by;
    text_make_printable(record->by.host, sizeof record->by.host);
    if (registry_take_early_descriptor(token, &early_descriptor)) descriptor_close(&early_descriptor);
    return true;
}
struct pending_conn registry_take_pending_conn(int index)
{
    struct pending_conn pending = registry.pending[index];
    size_t later_count = (size_t)(--registry.pending_count - index);
    memmove(&registry.pending[index], &registry.pending[index + 1], later_count * sizeof *registry.pending);
    return pending;
}
