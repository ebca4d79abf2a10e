/* The sender connects to all processes of its host at once, and sends to each one when it is connected. A receiver
 * waits while the sender lives, for at most half of the time that is left, so that it can still read the table. On the
 * host of rank 0 the table exists before the result, so there it waits for a few seconds only. The token under which a
 * descriptor travels follows from the group's key. A process takes at most one descriptor of a group. */
#include "backend/join/host_table.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include "backend/memory/memfd.h"
#include "backend/processes/host_election.h"
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* A receiver checks after each slice whether the join was cancelled or aborted, and after PROBE_MS whether the elected
   process still answers. A sender looks for connected processes after each round. */
enum { SLICE_MS = 50, PROBE_MS = 1000, ROUND_MS = 5 };
/* MOST_WAIT_MS is the longest wait of a sender, and of a receiver on the host of rank 0. Nobody sends the table to a
   second process that has joined as some rank. */
enum { MOST_WAIT_MS = 5000, PAUSE_NS = 1000000 };

static size_t host_table_bytes(const struct host_table *host) { return host->mine->size * sizeof(struct member); }
static bool member_shares_host(const struct member *a, const struct member *b)
{
    return memcmp(a->host_token, b->host_token, sizeof a->host_token) == 0;
}
enum host_table_role host_table_get_role(const struct host_table *host)
{
    if (host_table_bytes(host) < SHARED_TABLE_LEAST) return HOST_TABLE_READ;
    if (host->rank == 0) return HOST_TABLE_READ_AND_SEND;
    if (member_shares_process(host->first, host->mine)) return HOST_TABLE_READ;
    if (member_shares_host(host->first, host->mine)) return HOST_TABLE_RECEIVE;
    return host_election_is_won(host->first->token) ? HOST_TABLE_READ_AND_SEND : HOST_TABLE_RECEIVE;
}
/* Derives the token under which the descriptor travels. Returns false if the key is unknown. */
static bool table_token_derive(const struct key_id *key, const struct member *first, unsigned char out[16])
{
    unsigned char derived[KEY_BYTES];
    if (!group_key_derive(key, "tutti table", first->token, sizeof first->token, derived)) return false;
    memcpy(out, derived, 16);
    return true;
}
void host_table_refuse(const struct key_id *key, const struct member *first)
{
    unsigned char token[16];
    if (table_token_derive(key, first, token)) peers_refuse_descriptor(token);
}
/* Returns the time at which a process stops waiting for others: the middle of the time that is left, but at most
   `most_ms` from now. */
static int64_t host_table_limit_ms(const struct host_table *host, int64_t most_ms)
{
    int64_t now_ms = clock_ms(), left_ms = host->deadline_ms <= now_ms ? 0 : (host->deadline_ms - now_ms) / 2;
    return now_ms + (left_ms < most_ms ? left_ms : most_ms);
}
/* Fails with ABORTED if the caller has cancelled the join. Sets *is_aborted if another process has aborted its join. */
static tutti_status host_table_check_join(const struct host_table *host, bool *is_aborted)
{
    struct identity by;
    *is_aborted = peers_join_is_aborted(host->first->token, &by);
    return join_check_cancelled(host->is_cancelled, host->cancel_context, host->rank, host->mine->group);
}

/* ---- sending ---- */
/* Returns true if that rank is on this host, in another process. */
static bool host_table_is_receiver(const struct host_table *host, const struct member *member)
{
    return member_shares_host(member, host->mine) && !member_shares_process(member, host->mine);
}
/* Returns the number of ranks whose processes get the table from this one. */
static uint32_t host_table_count_receivers(const struct host_table *host, const struct member *members)
{
    uint32_t count = 0;
    if (host_table_get_role(host) != HOST_TABLE_READ_AND_SEND) return 0;
    for (uint32_t r = 0; r < host->mine->size; r++) count += host_table_is_receiver(host, &members[r]);
    return count;
}
void host_table_set(const struct host_table *host, struct member *members, struct shared_table *table, int *descriptor)
{
    const void *mapped;
    *descriptor = -1;
    tutti_status status = TUTTI_OK;
    if (host_table_count_receivers(host, members))
        status = memfd_create_constant(members, host_table_bytes(host), "the table of members", descriptor);
    if (*descriptor >= 0) status = memfd_map_constant(*descriptor, host_table_bytes(host), "this process's", &mapped);
    if (*descriptor >= 0 && status == TUTTI_OK) {
        shared_table_set_mapped(table, mapped, host_table_bytes(host));
        free(members);
        return;
    }
    if (status != TUTTI_OK)
        LOG(WARN, "%s: rank %d cannot share the table of members, so each process of its host reads it: %s",
            host->mine->group, host->rank, status_detail());
    if (*descriptor >= 0) close(*descriptor);
    *descriptor = -1;
    shared_table_set(table, members);
}
/* The processes to which the table is sent. An entry is NULL when that process has it or is gone. */
struct host_receivers { struct peer **peers; int count; };
/* Begins to connect to the other processes of this host, each once. Without memory some are left out. */
static void host_receivers_connect(const struct host_table *host, const struct member *members,
    struct host_receivers *out)
{
    for (uint32_t r = 0; r < host->mine->size; r++) {
        struct peer *peer;
        if (!host_table_is_receiver(host, &members[r])) continue;
        if (peer_acquire(&members[r].identity, host->key, &peer) != TUTTI_OK) continue;
        int known = 0;
        while (known < out->count && out->peers[known] != peer) known++;
        if (known < out->count) peer_release(peer);
        else {
            out->peers[out->count++] = peer;
            peer_try_await(peer, clock_ms());
        }
    }
}
/* Returns true if an error of connecting or sending may pass: the other process has not answered or has no room, or
   this process has too little memory or too many open files. */
static bool receiver_error_is_temporary(int error)
{
    return error == -ETIMEDOUT || error == -EAGAIN || error == -EMFILE || error == -ENFILE || error == -ENOMEM
        || error == -ENOBUFS;
}
/* Sends the descriptor to that process if it is connected by now. Returns false if it may be tried again. */
static bool host_receiver_send(struct peer *peer, const unsigned char token[16], int descriptor)
{
    int error = peer_try_await(peer, clock_ms());
    if (error) return !receiver_error_is_temporary(error);
    error = peer_try_send_descriptor(peer, token, descriptor);
    if (receiver_error_is_temporary(error)) return false;
    /* A process that gets no descriptor reads the table. */
    if (error && descriptor >= 0) peer_try_send_descriptor(peer, token, -1);
    return true;
}
/* Sends the descriptor to the processes that are connected by now, and forgets those and the ones that are gone.
   Returns a process to which it is still to be sent, or NULL. */
static struct peer *host_receivers_send(struct host_receivers *receivers, const unsigned char token[16], int descriptor)
{
    struct peer *left = NULL;
    for (int i = 0; i < receivers->count; i++) {
        struct peer *peer = receivers->peers[i];
        if (!peer) continue;
        if (!host_receiver_send(peer, token, descriptor)) { left = peer; continue; }
        peer_release(peer);
        receivers->peers[i] = NULL;
    }
    return left;
}
/* Sends the descriptor to all processes that can be reached in time. Before it gives up, it sends once more to all that
   are connected, so that they do not wait. ABORTED: the caller has cancelled the join. */
static tutti_status host_receivers_serve(const struct host_table *host, struct host_receivers *receivers,
    int descriptor)
{
    unsigned char token[16];
    const int64_t limit_ms = host_table_limit_ms(host, MOST_WAIT_MS);
    if (!table_token_derive(host->key, host->first, token)) return TUTTI_OK;
    for (struct peer *left; (left = host_receivers_send(receivers, token, descriptor)) != NULL;) {
        bool is_aborted = false;
        tutti_status status = host_table_check_join(host, &is_aborted);
        if (status != TUTTI_OK || is_aborted || clock_ms() >= limit_ms) {
            host_receivers_send(receivers, token, descriptor);
            return status;
        }
        peer_try_await(left, clock_ms() + ROUND_MS);
        /* The process may be connected but have no room. */
        nanosleep(&(struct timespec){ 0, PAUSE_NS }, NULL);
    }
    return TUTTI_OK;
}
tutti_status host_table_send(const struct host_table *host, const struct member *members, int descriptor)
{
    tutti_status status = TUTTI_OK;
    uint32_t most = host_table_count_receivers(host, members);
    if (!most) return TUTTI_OK;
    struct host_receivers receivers = { memory_alloc_zeroed(most, sizeof *receivers.peers), 0 };
    if (receivers.peers) {
        host_receivers_connect(host, members, &receivers);
        status = host_receivers_serve(host, &receivers, descriptor);
    }
    for (int i = 0; i < receivers.count; i++) peer_release(receivers.peers[i]);
    free(receivers.peers);
    if (descriptor >= 0) close(descriptor);
    return status;
}

/* ---- receiving ---- */
/* A receiver's view of the process that sends the table. */
struct host_sender {
    /* The process of rank 0, or NULL if the sender is the elected process of this host. */
    struct peer *peer;
    /* The time of the next question to the elected process. */
    int64_t next_probe_ms;
};
static tutti_status host_sender_find(const struct host_table *host, struct host_sender *out)
{
    *out = (struct host_sender){ NULL, clock_ms() + PROBE_MS };
    if (!member_shares_host(host->first, host->mine)) return TUTTI_OK;
    return peer_acquire(&host->first->identity, host->key, &out->peer);
}
/* Returns true unless it is known that the sender has ended, or does not answer. */
static bool host_sender_is_alive(const struct host_table *host, struct host_sender *sender)
{
    if (sender->peer) {
        /* This also connects to it. */
        int error = peer_try_await(sender->peer, clock_ms());
        return !error || error == -ETIMEDOUT;
    }
    if (clock_ms() < sender->next_probe_ms) return true;
    bool is_alive = host_election_poll_owner(host->first->token, clock_ms() + PROBE_MS);
    sender->next_probe_ms = clock_ms() + PROBE_MS;
    return is_alive;
}
/* Waits for the descriptor of the table under `token`. */
static tutti_status host_table_await_descriptor(const struct host_table *host, struct host_sender *sender,
    const unsigned char token[16], int *descriptor)
{
    bool is_on_first_host = member_shares_host(host->first, host->mine);
    const int64_t limit_ms = host_table_limit_ms(host, is_on_first_host ? MOST_WAIT_MS : INT64_MAX);
    for (;;) {
        bool is_aborted = false;
        TRY(host_table_check_join(host, &is_aborted));
        /* A sender may have sent the table and ended since, so the descriptor is looked for after these questions. */
        bool is_alive = host_sender_is_alive(host, sender), is_late = clock_ms() >= limit_ms;
        /* The last look waits, too, because the watch thread may not have read the descriptor yet. */
        tutti_status status = peers_await_descriptor(token, clock_ms() + SLICE_MS, descriptor);
        if (status != TUTTI_TIMEOUT) return status;
        if (is_aborted) return status_fail(TUTTI_PEER_LOST, "another process has aborted its join");
        if (!is_alive)
            return status_fail(TUTTI_PEER_LOST, "the process that sends it on this host has ended, or does not answer");
        if (is_late) return status_fail(TUTTI_TIMEOUT, "the process that sends it on this host is too slow or stopped");
    }
}
/* Returns true if all texts of the records are printable. */
static bool members_are_printable(const struct member *members, uint32_t size)
{
    for (uint32_t r = 0; r < size; r++) {
        struct member copy;
        member_copy_record(&copy, &members[r]);
        if (memcmp(&copy, &members[r], sizeof copy) != 0) return false;
    }
    return true;
}
tutti_status host_table_map(uint32_t size, int descriptor, const struct member **out)
{
    const void *mapped = NULL;
    const size_t bytes = size * sizeof **out;
    tutti_status status = memfd_map_constant(descriptor, bytes, "the group's", &mapped);
    close(descriptor);
    TRY(status);
    *out = mapped;
    if (members_are_printable(*out, size)) return TUTTI_OK;
    munmap((void *)(uintptr_t)mapped, bytes);
    return status_fail(TUTTI_MISMATCH, "the table that has arrived has invalid texts");
}
tutti_status host_table_receive(const struct host_table *host, const struct member **out)
{
    unsigned char token[16];
    int descriptor = -1;
    struct host_sender sender;
    if (!table_token_derive(host->key, host->first, token))
        return status_fail(TUTTI_INTERNAL, "the group's key is unknown");
    tutti_status status = host_sender_find(host, &sender);
    if (status == TUTTI_OK) status = host_table_await_descriptor(host, &sender, token, &descriptor);
    peer_release(sender.peer);
    /* Another descriptor is not needed, and the next rank of this process must not wait for one. */
    peers_refuse_descriptor(token);
    if (status == TUTTI_OK) status = host_table_map(host->mine->size, descriptor, out);
    if (status == TUTTI_OK || status == TUTTI_ABORTED) return status;
    LOG(WARN, "%s: rank %d reads the table of members itself: %s", host->mine->group, host->rank, status_detail());
    return status;
}
