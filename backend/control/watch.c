/* One turn of the thread handles the sockets that are ready, then what the time demands, and calls receivers and
 * watchers at its end. The thread holds registry.lock except while it polls and during those calls. */
#include "backend/control/watch.h"
#include "backend/base/clock.h"
#include "backend/control/channel.h"
#include "backend/control/snapshot_socket.h"
#include "backend/links/link.h"
#include "backend/links/links.h"
#include "backend/processes/host_election.h"
#include "backend/processes/local_peer.h"
#include "backend/processes/registry.h"
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

/* The pause while this process has no free descriptor, and the most time for the last messages. */
enum { OUT_OF_DESCRIPTORS_MS = 10, LINGER_MS = 50 };

/* Handles a descriptor that the poll returned as ready. It may be closed by now. */
static void watch_handle_descriptor(int descriptor)
{
    uint64_t ignored;
    if (descriptor == registry.waker && read(descriptor, &ignored, sizeof ignored) >= 0) return;
    if (descriptor == registry.listener) { pending_conn_accept(); return; }
    if (host_elections_answer(descriptor) || snapshot_socket_on_ready(descriptor)) return;
    struct peer *peer = registry_find_socket(descriptor);
    if (peer && peer->link) link_on_ready(peer);
    else if (peer) local_peer_on_ready(peer);
    else if (!incoming_links_on_ready(descriptor)) pending_conns_on_ready(descriptor);
}
/* Delivers all messages and calls all watchers of peers that are gone. Messages of a dead peer come before the report
   of its death. */
static void watch_call_watchers(void)
{
    do channels_deliver();
    while (peers_call_due_watch());
}
/* Returns the smaller of two timeouts in ms, of which -1 means without limit. */
static int timeout_sooner_ms(int a, int b) { return a < 0 || (b >= 0 && b < a) ? b : a; }
/* Returns the time until a pending connection expires or a channel or link has work, or -1 for no limit. */
static int watch_poll_timeout_ms(void)
{
    int most_ms = timeout_sooner_ms(channels_poll_timeout_ms(), links_poll_timeout_ms());
    if (!registry.pending_count) return most_ms;
    int64_t left = registry.pending[0].until_ms - clock_ms();
    return timeout_sooner_ms(most_ms, left < 0 ? 0 : (int)left + 1);
}
/* Waits for events of the poll set without registry.lock, for at most most_ms (-1: without limit). Returns their
   number, or -1 after an error. */
static int watch_await_events(struct epoll_event *events, int count, int most_ms)
{
    int poller = registry.poller;
    bool out_of_descriptors = registry.out_of_descriptors;
    registry.out_of_descriptors = false;
    pthread_mutex_unlock(&registry.lock);
    /* Without free descriptors the listener stays ready and accept fails, so the thread pauses instead of spinning. */
    if (out_of_descriptors) nanosleep(&(struct timespec){ 0, OUT_OF_DESCRIPTORS_MS * 1000000 }, NULL);
    int ready = epoll_wait(poller, events, count, most_ms);
    pthread_mutex_lock(&registry.lock);
    return ready;
}
/* Polls once, for at most most_ms (-1: without limit), and handles the events and everything that is due. Returns false
   if there were no events. */
static bool watch_poll_once(int most_ms)
{
    struct epoll_event events[16];
    int ready = watch_await_events(events, 16, most_ms);
    for (int i = 0; i < ready; i++) watch_handle_descriptor(events[i].data.fd);
    pending_conns_expire();
    links_tick();
    channels_deliver();
    channels_call_ticks();
    watch_call_watchers();
    return ready > 0;
}
/* Polls until registry.stop. Then the thread still passes on the messages that have arrived, because their senders
   count on it. */
void *watch_run_thread(void *unused)
{
    pthread_mutex_lock(&registry.lock);
    while (!registry.stop) watch_poll_once(watch_poll_timeout_ms());
    for (int64_t until_ms = clock_ms() + LINGER_MS; watch_poll_once(0) && clock_ms() < until_ms;) {}
    pthread_mutex_unlock(&registry.lock);
    return unused;
}
