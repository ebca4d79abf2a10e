/* Control channels carry small messages between the ranks of a communicator, beside its data. The watch thread delivers
 * them, so they also reach a rank that only computes. Processes of this host send them over their connection, and
 * threads of one process through a list. Other hosts are reached over links (links/links.h): by way of other processes
 * (routes.h), or without a route map directly. A direct link is made when there is a message to send.
 *
 * Messages from one rank to another keep their order while their route stays the same. They arrive before the end of
 * the connection is reported (peer_watch). A message is a state: a later one of the same type and rank replaces an
 * earlier one that still waits in any queue. So the queue for a peer that does not read is bounded: one message for
 * each type, pair of ranks and communicator.
 *
 * A message that other processes pass on may be lost when one of them dies. So the user of a channel repeats a message
 * until it is answered, and the channel sends it directly after three without an answer (routes.h). A final message
 * is sent once: after the close, the channel answers with it. A process also passes on messages of the last 64
 * channels that it has closed. */
#pragma once
#include "backend/control/routes.h"
#include "backend/processes/packet.h"

enum { CHANNEL_TICK_MS = 10 };
struct channel;
/* The watch thread calls these functions. They may send, but not close their channel. */
struct channel_user {
    /* Called for a message of that type, of `length` bytes, from rank `from`. */
    void (*receive)(void *context, int from, unsigned type, const void *bytes, size_t length);
    /* Called while channel_set_tick is on. */
    void (*tick)(void *context);
    void *context;
};
/* Opens the channel of rank `rank` in the communicator with that token. peers[r] reaches rank r of `size`, and is NULL
   for a rank of this process; the array is not copied, and must stay valid until channel_close. With `map`, other
   processes pass on messages to other hosts, and this process does so for them; NULL means direct links. The watch
   thread then delivers messages that arrived earlier: the last 256 for unopened channels are kept. A message must come
   from the process of its rank or, with `map`, through a process of the group. Otherwise the connection that carried it
   ends. NO_MEMORY. */
tutti_status channel_open(const unsigned char token[16], int rank, struct peer *const *peers, int size,
    const struct route_map *map, const struct channel_user *user, struct channel **out);
/* Sends a message of `length` bytes (at most CHANNEL_BYTES) to rank `to`. Its type is below CHANNEL_TYPES. Never waits.
   Returns false if the message is lost here: the peer is gone, or memory is short. */
bool channel_send(struct channel *channel, int to, unsigned type, const void *bytes, size_t length);
/* Sends a message that needs no answer. Unlike channel_send, it connects no link, so the message may be lost. */
bool channel_send_optional(struct channel *channel, int to, unsigned type, const void *bytes, size_t length);
/* Sends this rank's final message in the communicator to rank `to`. The message must be equal for every `to`. It does
   not connect a link. A channel with routes also sends it, after channel_close, in reply to later messages. */
bool channel_send_final(struct channel *channel, int to, unsigned type, const void *bytes, size_t length);
/* Starts or stops calls of tick() every CHANNEL_TICK_MS. */
void channel_set_tick(struct channel *channel, bool on);
/* Closes the channel. Sent messages are still delivered. Waits for a running call of the channel's user, and does not
   call the user again. NULL is allowed. */
void channel_close(struct channel *channel);

/* ---- for the watch thread and lifetime.c, with registry.lock held ---- */
/* Delivers the messages of registry.incoming. It releases the lock while it calls the receivers. */
void channels_deliver(void);
/* Calls tick() of the channels that have it on, if CHANNEL_TICK_MS have passed. It releases the lock during each
   call. */
void channels_call_ticks(void);
/* Returns the time until the next tick in ms, or -1 if no channel ticks. */
int channels_poll_timeout_ms(void);
/* Frees closed channels and queues. No channel is open. */
void channels_free_all(void);
/* Forgets the parent's channels in the child. */
void channels_after_fork(void);
