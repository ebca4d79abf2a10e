/* Control messages wait in three kinds of queues. Each peer has one for messages that its socket does not take now.
   registry.incoming has messages to deliver or to pass on. `early` has messages that no channel of this process can
   take yet. A recently closed channel answers with its final message. registry.lock protects everything, and is
   released while a channel's user is called. */
#include "backend/control/channel.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/links/link.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The most early messages, and closed channels, that are kept. */
enum { MOST_EARLY = 256, MOST_CLOSED = 64 };
struct channel {
    /* This rank's end. */
    struct channel_address me;
    /* The caller's array: peers[r] reaches rank r, and is NULL for a rank of this process. The pointer itself is NULL
       after the channel is closed. */
    struct peer *const *peers; /* [size] */
    int size;
    /* NULL if messages take direct links. */
    struct routes *routes;
    /* The final message of this rank. Its flags are 0 until the rank has sent one. */
    struct ctrl_msg final;
    struct channel_user user;
    /* `ticks` means that tick() is called. With `closing`, the channel's user is not called again. */
    bool ticks, closing;
    /* The latest round of ticks that included this channel. */
    unsigned round;
    struct channel *next;
};
/* The channels of this process: the open ones, and the one whose user is being called, or NULL. */
static struct {
    struct channel *open, *calling;
    /* Messages that no channel can deliver or pass on until one of their communicator opens. The oldest is first. */
    struct ctrl_queue early;
    /* A ring of the channels that were closed last, and the number of all that were closed. */
    struct channel *closed[MOST_CLOSED];
    unsigned closed_count;
    /* The time and the number of the latest round of ticks. */
    int64_t ticked_ms;
    unsigned round;
} channels; /* under registry.lock */

/* ---- sending ---- */
/* Sends a message to the next process on its route. A closed channel connects no link. Returns false if the message is
   lost. */
static bool ctrl_msg_send_routed(const struct channel *channel, bool is_open, const struct ctrl_msg *msg)
{
    bool is_own = is_open && msg->from == channel->me.rank && !(msg->flags & OPTIONAL_MSG);
    struct peer *peer = routes_next_peer(channel->routes, msg->to.rank, is_own);
    bool may_connect = is_open && !(msg->flags & (FINAL_MSG | OPTIONAL_MSG));
    return peer && (may_connect || !peer->link || peer->state == OPEN || peer->unsent.first)
        && peer_post_ctrl_msg(peer, msg);
}
/* Sends a message to its rank: over the connection, by a route, or through registry.incoming to a rank of this process.
   Returns false if the message is lost: memory is short, or the peer is gone. */
static bool ctrl_msg_post(struct channel *channel, const struct ctrl_msg *msg)
{
    struct peer *peer = channel->peers[msg->to.rank];
    const bool is_open = true, is_optional = msg->flags & OPTIONAL_MSG;
    if (!peer) {
        registry_wake();
        return ctrl_queue_add_or_replace(&registry.incoming, msg, registry.self.nonce);
    }
    if (!channel->routes) return (!is_optional || !peer->link || peer->state == OPEN) && peer_post_ctrl_msg(peer, msg);
    bool sent = ctrl_msg_send_routed(channel, is_open, msg);
    if (!is_optional && !(msg->flags & FINAL_MSG)) routes_expect_answer(channel->routes, msg->to.rank);
    return sent;
}
/* Sends a message of `length` bytes, at most CHANNEL_BYTES, to rank `to`. `flags` is 0, OPTIONAL_MSG, or FINAL_MSG:
   then the channel keeps the message, to answer with it after channel_close. Returns false if the message is lost. */
static bool ctrl_msg_send(struct channel *channel, int to, unsigned type, int flags, const void *bytes, size_t length)
{
    struct ctrl_msg msg = {
        .to = channel->me, .from = channel->me.rank, .type = (uint16_t)type, .length = (uint32_t)length
    };
    assert(length <= CHANNEL_BYTES && type < CHANNEL_TYPES);
    msg.to.rank = to;
    msg.flags = (uint8_t)flags;
    if (length) memcpy(msg.bytes, bytes, length);
    pthread_mutex_lock(&registry.lock);
    if (flags & FINAL_MSG) channel->final = msg;
    bool sent = ctrl_msg_post(channel, &msg);
    pthread_mutex_unlock(&registry.lock);
    return sent;
}
bool channel_send(struct channel *channel, int to, unsigned type, const void *bytes, size_t length)
{
    return ctrl_msg_send(channel, to, type, 0, bytes, length);
}
bool channel_send_optional(struct channel *channel, int to, unsigned type, const void *bytes, size_t length)
{
    return ctrl_msg_send(channel, to, type, OPTIONAL_MSG, bytes, length);
}
bool channel_send_final(struct channel *channel, int to, unsigned type, const void *bytes, size_t length)
{
    return ctrl_msg_send(channel, to, type, FINAL_MSG, bytes, length);
}

/* ---- delivering, on the watch thread ---- */
/* Calls the channel's user for a message, or for a tick if `msg` is NULL. Releases registry.lock during the call. */
static void channel_call_user(struct channel *channel, const struct ctrl_msg *msg)
{
    struct channel_user user = channel->user;
    channels.calling = channel;
    pthread_mutex_unlock(&registry.lock);
    if (msg) user.receive(user.context, msg->from, msg->type, msg->bytes, msg->length);
    else user.tick(user.context);
    pthread_mutex_lock(&registry.lock);
    channels.calling = NULL;
    pthread_cond_broadcast(&registry.changed);
}
/* Returns the open channel of that rank, or NULL. */
static struct channel *channel_find_open(const struct channel_address *to)
{
    struct channel *channel = channels.open;
    while (channel && !channel_address_equal(&channel->me, to)) channel = channel->next;
    return channel;
}
/* Returns the closed channel at index i of those that are kept, or NULL past the last one. */
static struct channel *channel_closed_at(unsigned i)
{
    return i < MOST_CLOSED && i < channels.closed_count ? channels.closed[i] : NULL;
}
/* Returns the closed channel of that rank that is still kept, or NULL. */
static struct channel *channel_find_closed(const struct channel_address *to)
{
    struct channel *channel = NULL;
    for (unsigned i = 0; (channel = channel_closed_at(i)) != NULL && !channel_address_equal(&channel->me, to);) i++;
    return channel;
}
/* Keeps a message whose channel is not open yet, and drops the oldest such message if there are too many. */
static void ctrl_entry_keep_early(const struct ctrl_entry *entry)
{
    ctrl_queue_add_or_replace(&channels.early, &entry->msg, entry->via);
    if (channels.early.count > MOST_EARLY) free(ctrl_queue_pop(&channels.early));
}
/* Sends the final message of a closed channel to the sender of `msg`. An answer gets no reply, so two closed channels
   do not reply to each other endlessly. */
static void channel_reply_final(const struct channel *channel, const struct ctrl_msg *msg)
{
    struct ctrl_msg final = channel->final;
    if (!channel->routes || !final.flags || msg->flags & ANSWER) return;
    if (!routes_can_forward(channel->routes, channel->me.rank, msg->from)) return;
    final.to.rank = msg->from;
    final.flags = FINAL_MSG | ANSWER;
    ctrl_msg_send_routed(channel, false, &final);
}
/* Returns true if `channel` can pass the message on, and its rank is fewer steps from the message's receiver than that
   of `best`, which may be NULL. */
static bool channel_is_nearer(const struct channel *channel, const struct ctrl_msg *msg, const struct channel *best)
{
    if (!channel->routes || !nonce_equal(channel->me.token, msg->to.token)) return false;
    if (!routes_can_forward(channel->routes, msg->from, msg->to.rank)) return false;
    return !best || routes_steps_left(channel->routes, msg->to.rank) < routes_steps_left(best->routes, msg->to.rank);
}
/* Returns true if rank `member` of an open channel belongs to the process with that nonce. */
static bool channel_member_is_process(const struct channel *channel, int member, const unsigned char nonce[16])
{
    const struct peer *peer = channel->peers[member];
    return nonce_equal(peer ? peer->identity.nonce : registry.self.nonce, nonce);
}
/* Returns true if the process that delivered a message to the channel may send it. A message that was not passed on
   must come from its rank's process, and any other from a process of the group. A closed channel does not know the
   processes of the ranks, and accepts a message from every process. */
static bool ctrl_entry_is_authentic(const struct channel *channel, const struct ctrl_entry *entry)
{
    const struct ctrl_msg *msg = &entry->msg;
    if (msg->from < 0 || msg->from >= channel->size) return false;
    if (!channel->peers || nonce_equal(entry->via, registry.self.nonce)) return true;
    if (msg->hops == 0) return channel_member_is_process(channel, msg->from, entry->via);
    for (int r = 0; channel->routes && r < channel->size; r++)
        if (channel_member_is_process(channel, r, entry->via)) return true;
    return false;
}
/* Closes the connections to a process that sent a message as a rank that it does not have. */
static void ctrl_entry_refuse(const struct ctrl_entry *entry)
{
    struct peer *local_peer = registry_find_peer(entry->via), *link_peer = link_find(entry->via);
    const struct peer *peer = local_peer ? local_peer : link_peer;
    if (peer && registry.refused_count++ == 0)
        LOG(WARN, "process %llu on %s sent a control message as rank %d, which it is not: its connection was closed",
            (unsigned long long)peer->identity.pid, peer->identity.host, entry->msg.from);
    if (local_peer) peer_end(local_peer, LOST);
    if (link_peer) link_end(link_peer, -EPROTO);
}
/* Passes a message on to another process, by the open channel, else the closed one, that is nearest to its receiver.
   Drops it if it is not authentic or was passed on too often. Returns false, without an effect, if no channel here can
   pass it on, or its receiver is in this process. */
static bool ctrl_entry_pass_on(struct ctrl_entry *entry)
{
    struct ctrl_msg *msg = &entry->msg;
    const struct channel *best = NULL, *c;
    bool is_open = true;
    for (c = channels.open; c; c = c->next)
        if (channel_is_nearer(c, msg, best)) best = c;
    for (unsigned i = 0; !best && (c = channel_closed_at(i)) != NULL; i++)
        if (channel_is_nearer(c, msg, best)) best = c, is_open = false;
    if (!best) return false;
    if (!ctrl_entry_is_authentic(best, entry)) ctrl_entry_refuse(entry);
    else if (msg->hops++ < routes_most_hops(best->routes)) ctrl_msg_send_routed(best, is_open, msg);
    return true;
}
/* Delivers a received message to its channel, replies for a closed channel, passes it on to another process, or keeps
   it until its channel opens. */
static void ctrl_entry_deliver(struct ctrl_entry *entry)
{
    struct channel *channel = channel_find_open(&entry->msg.to);
    if (channel && !ctrl_entry_is_authentic(channel, entry)) { ctrl_entry_refuse(entry); return; }
    if (channel && channel->routes) routes_record_received(channel->routes, entry->msg.from);
    if (channel && !channel->closing) channel_call_user(channel, &entry->msg);
    else if (channel || (channel = channel_find_closed(&entry->msg.to)) != NULL)
        channel_reply_final(channel, &entry->msg);
    else if (!ctrl_entry_pass_on(entry)) ctrl_entry_keep_early(entry);
}
void channels_deliver(void)
{
    while (registry.incoming.first) {
        struct ctrl_entry *entry = ctrl_queue_pop(&registry.incoming);
        ctrl_entry_deliver(entry);
        free(entry);
    }
}
/* Returns an open channel with ticks that has not been called in that round, or NULL. */
static struct channel *channel_find_due(unsigned round)
{
    struct channel *channel = channels.open;
    while (channel && (!channel->ticks || channel->closing || channel->round == round)) channel = channel->next;
    return channel;
}
int channels_poll_timeout_ms(void)
{
    int64_t left_ms = channels.ticked_ms + CHANNEL_TICK_MS - clock_ms();
    return !channel_find_due(channels.round + 1) ? -1 : left_ms > 0 ? (int)left_ms : 0;
}
/* Calls the tick of each open channel with ticks, if it is time. The list of channels may change during each call. */
void channels_call_ticks(void)
{
    if (channels_poll_timeout_ms() != 0) return;
    channels.ticked_ms = clock_ms();
    channels.round++;
    for (struct channel *channel; (channel = channel_find_due(channels.round)) != NULL;) {
        channel->round = channels.round;
        channel_call_user(channel, NULL);
    }
}

/* ---- lifetime ---- */
/* Moves the early messages of a new channel's communicator to the front of registry.incoming. Some of them are for this
   rank, and the others are passed on. */
static void channel_deliver_early(const struct channel *channel)
{
    struct ctrl_queue early = channels.early, incoming = registry.incoming;
    channels.early = registry.incoming = (struct ctrl_queue){ 0 };
    while (early.first) {
        struct ctrl_entry *entry = ctrl_queue_pop(&early);
        bool is_deliverable = nonce_equal(entry->msg.to.token, channel->me.token);
        ctrl_queue_push(is_deliverable ? &registry.incoming : &channels.early, entry);
    }
    while (incoming.first) ctrl_queue_push(&registry.incoming, ctrl_queue_pop(&incoming));
}
tutti_status channel_open(const unsigned char token[16], int rank, struct peer *const *peers, int size,
    const struct route_map *map, const struct channel_user *user, struct channel **out)
{
    struct channel *channel = memory_alloc_zeroed(1, sizeof *channel);
    if (!channel) return status_fail(TUTTI_NO_MEMORY, "no memory for a control channel");
    tutti_status status = map ? routes_create(map, peers, &channel->routes) : TUTTI_OK;
    if (status != TUTTI_OK) {
        free(channel);
        return status;
    }
    memcpy(channel->me.token, token, sizeof channel->me.token);
    channel->me.rank = rank;
    channel->peers = peers;
    channel->size = size;
    channel->user = *user;
    pthread_mutex_lock(&registry.lock);
    channel->next = channels.open;
    channels.open = channel;
    channel_deliver_early(channel);
    registry_wake();
    pthread_mutex_unlock(&registry.lock);
    *out = channel;
    return TUTTI_OK;
}
void channel_set_tick(struct channel *channel, bool on)
{
    pthread_mutex_lock(&registry.lock);
    if (on && !channel->ticks) registry_wake();
    channel->ticks = on;
    pthread_mutex_unlock(&registry.lock);
}
/* Frees the channel and its routes. NULL is allowed. */
static void channel_free(struct channel *channel)
{
    if (!channel) return;
    routes_free(channel->routes);
    free(channel);
}
void channel_close(struct channel *channel)
{
    if (!channel) return;
    pthread_mutex_lock(&registry.lock);
    channel->closing = true;
    /* The channel's user may send until its call returns. */
    while (channels.calling == channel) registry_wait(INT64_MAX);
    struct channel **at = &channels.open, **place = &channels.closed[channels.closed_count++ % MOST_CLOSED];
    while (*at != channel) at = &(*at)->next;
    *at = channel->next;
    channel_free(*place);
    if (channel->routes) routes_retire(channel->routes);
    channel->peers = NULL;
    *place = channel;
    pthread_mutex_unlock(&registry.lock);
}
void channels_free_all(void)
{
    for (unsigned i = 0; channel_closed_at(i); i++) channel_free(channel_closed_at(i));
    memset(channels.closed, 0, sizeof channels.closed);
    channels.closed_count = 0;
    ctrl_queue_free(&registry.incoming);
    ctrl_queue_free(&channels.early);
}
void channels_after_fork(void) { memset(&channels, 0, sizeof channels); }
