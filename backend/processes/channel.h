/* Control channels: small messages between the ranks of a communicator, beside its data, which reach a rank that only
 * computes, too: they are delivered by the watch thread. Between processes of this host they go over the connection
 * that there is anyway, and between threads of one process through a list. To other hosts they go over links (links.h),
 * by way of other processes (routes.h) or, where none is known, over a link that is made when there is something to
 * send.
 *
 * From one rank to another messages keep their order, and come before the end of the connection is told (peer_watch).
 * A message is a state: a later one of the same word from the same rank takes the place of one that is still kept, here
 * or there or on the way. So what a peer that does not read is owed has a bound: one message for each word, pair of
 * ranks and communicator. Order holds while the way stays the same.
 *
 * What goes by way of others may be lost when one of them dies: who sends says it again until it is answered, and after
 * some times it goes straight. Messages that need not be said again are last words. A process passes on also what is of
 * communicators that it has left, of the last 64 while it lives. */
#pragma once
#include "backend/processes/routes.h"

enum { CHANNEL_BYTES = 1024, CHANNEL_WORDS = 8, CHANNEL_TICK_MS = 10 };
struct channel;
struct channel_user {                                   /* on the watch thread, which may send meanwhile */
    void (*receive)(void *context, int from, const void *bytes, size_t length);
    void (*tick)(void *context);                        /* see channel_tick */
    void *context;
};
/* Of rank `rank` in the communicator of that token. peers[r], of `size` ranks: how to reach rank r, NULL: in this
   process; it is kept, not copied. A message that does not come from the process of the rank it names, or by way of
   a process of the group, ends the connection by which it came. map: messages to other hosts are passed on by
   others, and this process does so for them; or NULL. What has come before is delivered now: of messages for
   communicators that are not there yet the last 256 are kept. NO_MEMORY. */
tutti_status channel_open(const unsigned char token[16], int rank, struct peer *const *peers, int size,
    const struct route_map *map, const struct channel_user *user, struct channel **out);
/* Never waits. word: below CHANNEL_WORDS. false: no memory, or the peer is gone; then it is lost. */
bool channel_send(struct channel *channel, int to, unsigned word, const void *bytes, size_t length);
/* The same, with the last that this rank has to say in the communicator, alike to all. No link is made for it: if it is
   lost, or was not sent to a rank, then it is the answer to what that rank writes after channel_close. */
bool channel_send_last(struct channel *channel, int to, unsigned word, const void *bytes, size_t length);
void channel_tick(struct channel *channel, bool on);    /* from now on every CHANNEL_TICK_MS, or no more */
/* What was sent is still delivered. Afterwards its user is not called any more. NULL is fine. */
void channel_close(struct channel *channel);
