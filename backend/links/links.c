/* The functions for other folders record what is wanted and wake the watch thread. For the watch thread this file finds
 * the links that have something to do. */
#include "backend/links/links.h"
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include "backend/links/link.h"
#include "backend/links/ports.h"
#include "backend/links/tcp.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- listening ---- */
/* Opens the listener at that address and records where it listens. Returns 0 or -errno. */
static int links_listen_at(const struct sock_address *at)
{
    int listener = tcp_listen(at);
    int error = listener < 0 ? listener : registry_poll_add(listener);
    if (error) {
        descriptor_close(&listener);
        return error;
    }
    links.listener = listener;
    links.at = tcp_local_address(listener);
    if (!links.at.scope) links.at.scope = at->scope;
    return 0;
}
tutti_status links_listen(const struct sock_address *at, struct sock_address *out)
{
    char address[SOCK_ADDRESS_TEXT_BYTES], why[PORTS_TEXT_BYTES];
    pthread_mutex_lock(&registry.lock);
    assert(registry.users > 0);
    int error = links.listener < 0 ? links_listen_at(at) : 0;
    if (!error) *out = links.at;
    pthread_mutex_unlock(&registry.lock);
    if (!error) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM, "cannot listen at %s for processes of other hosts: %s",
        sock_address_print(at, address), ports_print_listen_error(error, why));
}
/* Forgets this process's address and incoming connections, for a restart or a forked child. */
static void links_reset(void)
{
    free(links.process_address);
    links.process_address = NULL;
    links.at = (struct sock_address){ 0 };
    links.due_ms = INT64_MAX;
    links.incoming_count = 0;
}
void links_close(void)
{
    for (int i = 0; i < links.incoming_count; i++) registry_close_descriptor(&links.incoming[i].descriptor);
    registry_close_descriptor(&links.listener);
    links_reset();
}
void links_after_fork(void)
{
    for (int i = 0; i < links.incoming_count; i++) descriptor_close(&links.incoming[i].descriptor);
    descriptor_close(&links.listener);
    links_reset();
}

/* ---- holding ---- */
tutti_status link_acquire(const struct identity *other, const struct key_id *key, const struct sock_address *at,
    struct peer **out)
{
    pthread_mutex_lock(&registry.lock);
    assert(registry.users > 0);
    bool is_self = nonce_equal(other->nonce, registry.self.nonce);
    struct peer *peer = is_self ? NULL : link_find(other->nonce);
    if (!is_self && !peer) peer = link_add(other, key);
    if (peer) {
        peer->users++;
        /* A link that the other process opened has no address yet. */
        if (!peer->link->at.family) peer->link->at = *at;
    }
    pthread_mutex_unlock(&registry.lock);
    if (is_self) return status_fail(TUTTI_INTERNAL, "a process has no link to itself");
    if (!peer) return status_fail(TUTTI_NO_MEMORY, "no memory for a link to another host");
    *out = peer;
    return TUTTI_OK;
}
/* Returns the text of the reason why a link was not opened or has ended. `error` is a -errno, or 0 for no answer. */
static const char *link_error_reason(int error)
{
    switch (error) {
    case -ENOPROTOOPT: return "it runs another version of tutti";
    case -ENOKEY:
    case -EKEYREJECTED:
        return "it is of another job, or the secret (TUTTI_SECRET_FILE) differs, or is missing on one of the two hosts";
    case -EPROTO: return "what listens there is another program, or another job";
    case -EALREADY:
        return "it tries to connect to this process at the same time, without success: is there a "
               "firewall (see TUTTI_PORTS)?";
    case -ECONNRESET:
    case -EPIPE: return "it closed the connection: it has ended, or another program or job listens there";
    case -ECONNREFUSED: return "nobody listens there: it has ended, or a firewall refuses (see TUTTI_PORTS)";
    case 0:
    case -ETIMEDOUT:
    case -EHOSTUNREACH:
    case -ENETUNREACH:
        return "no answer: it is stopped, or a firewall closes this port (see TUTTI_PORTS), or this interface does not "
               "lead there (see TUTTI_SOCKET_IFNAME)";
    default: return strerror(-error);
    }
}
/* Returns true if the link ended in the way in which a process that ends closes it. */
static bool link_was_closed(const struct link *link)
{
    return link->was_open && (link->error == 0 || link->error == -ECONNRESET || link->error == -EPIPE);
}
static bool link_is_unreachable(const struct link *link)
{
    return link->error == -ETIMEDOUT || link->error == -EHOSTUNREACH || link->error == -ENETUNREACH;
}
/* Returns the text of the reason why an open link has ended, or another one was not opened. */
static const char *link_reason(const struct link *link)
{
    bool host_is_silent = link->was_open && link_is_unreachable(link);
    return host_is_silent ? "its host has stopped answering" : link_error_reason(link->error);
}
/* Fails with the reason why a link ended, or never opened. `here` is where this process listens. */
static tutti_status link_explain_error(const struct identity *other, const struct link *link,
    const struct sock_address *here)
{
    char at[SOCK_ADDRESS_TEXT_BYTES], from[SOCK_ADDRESS_TEXT_BYTES];
    unsigned long long pid = other->pid;
    sock_address_print(&link->at, at);
    sock_address_print(link->from.family ? &link->from : here, from);
    if (link_was_closed(link))
        return status_fail(TUTTI_PEER_LOST, "process %llu on %.40s (%s) is gone", pid, other->host, at);
    bool is_silent = link->error == 0 || link->error == -ETIMEDOUT || link->error == -EALREADY;
    if (link->was_open)
        return status_fail(TUTTI_PEER_LOST, "the link from %s to process %llu on %.40s at %s has ended: %s", from, pid,
            other->host, at, link_reason(link));
    return status_fail(is_silent ? TUTTI_TIMEOUT : TUTTI_SYSTEM, "no link from %s to process %llu on %.40s at %s: %s",
        from, pid, other->host, at, link_reason(link));
}
bool link_describe_loss(const struct peer *peer, char *out, size_t bytes)
{
    char at[SOCK_ADDRESS_TEXT_BYTES], from[SOCK_ADDRESS_TEXT_BYTES];
    out[0] = 0;
    if (!peer || !peer->link) return false;
    pthread_mutex_lock(&registry.lock);
    struct link link = *peer->link;
    struct sock_address here = link.from.family ? link.from : links.at;
    bool is_lost = peer->state == LOST;
    pthread_mutex_unlock(&registry.lock);
    if (!is_lost || link_was_closed(&link) || link.error == -ECONNREFUSED) return false;
    snprintf(out, bytes, "from %s to %s: %s", sock_address_print(&here, from), sock_address_print(&link.at, at),
        link_reason(&link));
    return true;
}
tutti_status link_await(struct peer *peer, int64_t deadline_ms)
{
    pthread_mutex_lock(&registry.lock);
    peer->link->waiters++;
    link_request_connect(peer);
    while (peer->state == CONNECTING && clock_ms() < deadline_ms) registry_wait(deadline_ms);
    peer->link->waiters--;
    bool is_open = peer->state == OPEN;
    /* A link with waiting messages is given up TRY_MS after wanted_since_ms (connect.c). The messages get this whole
       time from now on. */
    peer->link->wanted_since_ms = clock_ms();
    struct link link = *peer->link;
    struct sock_address here = links.at;
    pthread_mutex_unlock(&registry.lock);
    return is_open ? TUTTI_OK : link_explain_error(&peer->identity, &link, &here);
}

/* ---- process addresses ---- */
tutti_status links_publish_address(const void *content, size_t bytes)
{
    if (bytes > PROCESS_ADDRESS_BYTES)
        return status_fail(TUTTI_INTERNAL, "an address of %zu bytes; the limit is %d", bytes, PROCESS_ADDRESS_BYTES);
    pthread_mutex_lock(&registry.lock);
    assert(registry.users > 0);
    if (!links.process_address) links.process_address = memory_alloc_zeroed(1, sizeof *links.process_address);
    bool has_memory = links.process_address;
    if (has_memory) {
        links.process_address->bytes = bytes;
        if (bytes) memcpy(links.process_address->content, content, bytes);
    }
    for (struct peer *peer = registry.peers; has_memory && peer; peer = peer->next)
        if (peer->link && peer->link->was_asked) {
            peer->link->owes_address = true;
            link_send_owed(peer);
        }
    pthread_mutex_unlock(&registry.lock);
    return has_memory ? TUTTI_OK : status_fail(TUTTI_NO_MEMORY, "no memory for this process's address");
}
/* Asks the peer once for its process address, connecting first if needed. */
static void link_request_address(struct peer *peer)
{
    struct link *link = peer->link;
    if (!link->has_asked) link->has_asked = link->wants_address = true;
    if (!link->wants_address) return;
    link_request_connect(peer);
    link_send_owed(peer);
}
tutti_status link_get_process_address(struct peer *peer, void *out, size_t *bytes)
{
    pthread_mutex_lock(&registry.lock);
    const struct process_address *process_address = peer ? peer->link->process_address : links.process_address;
    bool is_gone = peer && !process_address && peer_is_over(peer);
    if (process_address) {
        *bytes = process_address->bytes;
        memcpy(out, process_address->content, process_address->bytes);
    } else if (peer && !is_gone) link_request_address(peer);
    pthread_mutex_unlock(&registry.lock);
    if (is_gone)
        return status_fail(TUTTI_PEER_LOST, "process %llu on %.40s is gone", (unsigned long long)peer->identity.pid,
            peer->identity.host);
    return process_address ? TUTTI_OK : TUTTI_IN_PROGRESS;
}
double link_one_way_ns(const struct peer *peer)
{
    pthread_mutex_lock(&registry.lock);
    double ns = peer && peer->link && peer->descriptor >= 0 ? tcp_one_way_ns(peer->descriptor) : 0;
    pthread_mutex_unlock(&registry.lock);
    return ns;
}

/* ---- the watch thread ---- */
void link_on_ready(struct peer *peer)
{
    if (peer->state == CONNECTING) link_connect_on_ready(peer);
    else link_receive(peer);
}
void links_tick(void)
{
    int64_t now_ms = clock_ms();
    if (now_ms < links.due_ms) return;
    links.due_ms = INT64_MAX;
    incoming_links_tick(now_ms);
    for (struct peer *peer = registry.peers, *next; peer; peer = next) {
        next = peer->next;
        if (peer->link && peer->state == OPEN) link_tick_open(peer, now_ms);
        if (peer->link && peer->state == CONNECTING) link_connect_tick(peer, now_ms);
    }
}
int links_poll_timeout_ms(void)
{
    if (links.due_ms == INT64_MAX) return -1;
    int64_t left_ms = links.due_ms - clock_ms();
    return left_ms <= 0 ? 0 : left_ms < INT32_MAX ? (int)left_ms : INT32_MAX;
}
