/* Sends and receives of the user, and the callbacks of their transports. Messages run beside the collectives of their
   communicator, in any order; the router matches them. Their names contain OPERATION_OF_USER in place of the number of
   an operation. A message between shared tensors is copied directly. The rank that copies sets its flag `copying`, and
   after a failure an operation ends only once no peer touches its tensor. */
#include "backend/base/dtype.h"
#include "backend/base/fence.h"
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "backend/engine/networks.h"
#include "backend/memory/arena.h"
#include "backend/processes/views.h"
#include "backend/transports/shm/shm.h"
#include <stdio.h>
#include <string.h>

/* The most polls of the router in each turn; several detect an arrival sooner. After POLLS_BEFORE_LISTENING polls
   without progress peers ring this rank's bell. */
enum { POLLS_PER_TURN = 4, POLLS_BEFORE_LISTENING = 100 };

/* ---- callbacks of the transports: over the segment of the host, and over a simulated network ---- */
static const struct group *messages_get_group(const void *context) { return &((const tutti_comm *)context)->group; }
static unsigned char *messages_get_host_pair(void *context, int from, int to)
{
    return segment_pair(messages_get_group(context)->segment, from, to);
}
static unsigned char *messages_get_network_pair(void *context, int from, int to)
{
    return segment_pair(messages_get_group(context)->network, from, to);
}
static tutti_status messages_reserve_host(void *context, void *at, size_t bytes)
{
    return segment_reserve(messages_get_group(context)->segment, at, bytes, "message buffers");
}
static void messages_give_back_host(void *context, void *at, size_t bytes)
{
    segment_give_back(messages_get_group(context)->segment, at, bytes);
}
static void messages_give_back_network(void *context, void *at, size_t bytes)
{
    segment_give_back(messages_get_group(context)->network, at, bytes);
}
static tutti_status messages_reserve_network(void *context, void *at, size_t bytes)
{
    return segment_reserve(messages_get_group(context)->network, at, bytes, "message buffers");
}
/* Rings the bell of a rank, if it listens. */
static void control_ring_bell(struct control *c)
{
    fence_between_store_and_load();
    if (atomic_load_explicit(&c->listening, memory_order_relaxed) != LISTENS) return;
    word_ring_bell(&c->bell, &c->bell_waiters, true);
}
static void messages_ring_host_peer(void *context, int index)
{
    const struct group *g = messages_get_group(context);
    control_ring_bell(group_control_of_rank(g, group_rank_at_index(g, index)));
}
void message_ring_host_peer(const tutti_comm *comm, int rank)
{
    control_ring_bell(group_control_of_rank(&comm->group, rank));
}
static void messages_ring_network_peer(void *context, int rank)
{
    control_ring_bell(group_control_of_rank(messages_get_group(context), rank));
}
static void messages_ring_own_bell(void *context)
{
    messages_ring_network_peer(context, messages_get_group(context)->rank);
}
/* Returns true and the block and offset of a tensor if it is in the arena. */
static bool messages_find_shared_tensor(void *context, const void *at, size_t bytes, struct remote *out)
{
    struct location place;
    (void)context;
    if (!arena_find(at, bytes, &place)) return false;
    *out = (struct remote){ place.block, place.offset };
    return true;
}
/* Returns the address here of a shared tensor of the rank with this index. IN_PROGRESS: it is being mapped. */
static tutti_status messages_map_peer_tensor(void *context, int index, bool sends, struct remote place, size_t bytes,
    unsigned char **out)
{
    tutti_comm *comm = context;
    tutti_status status = tensor_map_address(comm, group_rank_at_index(&comm->group, index),
        sends ? HELD_SENDING : HELD_RECEIVING, (struct location){ place.block, place.offset }, bytes, out);
    comm->messages.is_mapping |= status == TUTTI_IN_PROGRESS;
    return status;
}
/* Returns true if peers should read a private tensor of this size in place: as TUTTI_SINGLE_COPY says, or on one host
   by the cost of a broadcast of that size. */
static bool messages_read_pays(tutti_comm *comm, size_t bytes)
{
    int64_t setting = comm->launcher.single_copy;
    struct choice choice;
    struct question question = { .collective = BROADCAST, .message_bytes = bytes, .placement = TENSORS_OPEN_APART };
    if (setting >= 0 || group_has_several_hosts(&comm->group)) return setting > 0;
    return chooser_make_choice(&comm->launcher.chooser, &question, &choice) == TUTTI_OK && choice.reads_private;
}
/* Returns true if peers may read this private tensor in place. Records that it has been offered. */
static bool messages_offer_private_tensor(void *context, const void *at, size_t bytes)
{
    tutti_comm *comm = context;
    bool open = messages_read_pays(comm, bytes) && reading_is_possible(at, bytes);
    comm->messages.has_offered |= open;
    return open;
}
static bool messages_can_read_peers(void *context)
{
    tutti_comm *comm = context;
    return comm->launcher.single_copy && tensors_can_read_peers(comm);
}
/* Copies `bytes` bytes from address `at` in the process of the rank with this index to `to`. */
static tutti_status messages_read_private_tensor(void *context, int index, uint64_t at, void *to, size_t bytes)
{
    const tutti_comm *comm = context;
    const struct read_source *source = &comm->tensor_access.sources[index];
    int owner = group_rank_at_index(&comm->group, index);
    /* The owner is a rank of this process. */
    if (!comm->group.peers[owner]) {
        memcpy(to, (const void *)(uintptr_t)at, bytes);
        return TUTTI_OK;
    }
    int error = reading_copy(source, to, at, bytes);
    return error ? reading_failure_status(source, error, comm->group.rank, owner) : TUTTI_OK;
}
/* Sets this rank's flag `copying`. Returns false, with the flag cleared, if the group has failed, so nothing may be
   copied. The flag is set before the check, as in executor_try_touching_tensors (execute/execute.c). A failing rank
   first publishes the failure, then checks the flags. */
static bool messages_begin_copying(void *context)
{
    const tutti_comm *comm = context;
    atomic_store(&comm->executor.site.own_control->copying, 1);
    if (!(atomic_load(&comm->group.segment->failure->state) & FAILURE_CERTAIN)) return true;
    atomic_store(&comm->executor.site.own_control->copying, 0);
    return false;
}
static void messages_end_copying(void *context)
{
    const tutti_comm *comm = context;
    atomic_store_explicit(&comm->executor.site.own_control->copying, 0, memory_order_release);
}
/* Connects the ranks of this host to the router, through their segment. */
static tutti_status messages_connect_host(tutti_comm *comm, const struct site *s)
{
    struct shm_callbacks callbacks = { .context = comm,
        .pair = messages_get_host_pair,
        .reserve = messages_reserve_host,
        .give_back = messages_give_back_host,
        .ring = messages_ring_host_peer,
        .stream = s->stream,
        .stream_far = s->stream,
        .is_paced = s->is_paced,
        .find = messages_find_shared_tensor,
        .reach = messages_map_peer_tensor,
        .enter = messages_begin_copying,
        .leave = messages_end_copying,
        .opens = messages_offer_private_tensor,
        .reads = messages_can_read_peers,
        .read = messages_read_private_tensor };
    return shm_connect(comm->router, &callbacks, s->index, s->rank_at, s->ranks);
}
/* Connects the ranks of all simulated hosts to the router, through the network segment. Hosts share no tensors, so this
   transport has no callbacks for them. */
static tutti_status messages_connect_network(tutti_comm *comm, const struct site *s)
{
    struct shm_callbacks callbacks = { .context = comm,
        .pair = messages_get_network_pair,
        .reserve = messages_reserve_network,
        .give_back = messages_give_back_network,
        .ring = messages_ring_network_peer,
        .stream = s->stream,
        .stream_far = s->stream,
        .is_paced = s->is_paced };
    return shm_connect(comm->router, &callbacks, s->rank, NULL, comm->group.size);
}
static _Atomic(network_connect *) network;
void messages_override_network(network_connect *connect) { atomic_store(&network, connect); }
tutti_status messages_create_router(tutti_comm *comm)
{
    const struct group *g = &comm->group;
    network_connect *connect = atomic_load(&network);
    uint64_t number;
    memcpy(&number, g->members[0].token, sizeof number);
    TRY(router_create(g->rank, g->size, number, (struct bell){ messages_ring_own_bell, comm }, &comm->router));
    executor_set_router(&comm->executor, comm->router);
    TRY(messages_connect_host(comm, &comm->executor.site));
    if (!group_has_several_hosts(g)) return TUTTI_OK;
    if (connect) return connect(comm->router);
    return g->network ? messages_connect_network(comm, &comm->executor.site) : networks_connect(comm);
}

/* ---- sends and receives ---- */
void message_post(tutti_comm *comm, struct operation *op)
{
    struct message *m = &op->message;
    struct transfer *t = &m->transfer;
    m->piece = (struct piece){ t->is_send ? (unsigned char *)(uintptr_t)op->input : op->output, op->part_bytes,
        op->part_bytes };
    t->name = message_name_of_user(m->tag, op->dtype);
    t->pieces = &m->piece;
    t->piece_count = 1;
    t->may_share = true;
    router_post(comm->router, t);
    if (t->state == TRANSFER_DONE && !comm->messages.open) { operation_complete(op, TUTTI_OK); return; }
    op->next = comm->messages.open;
    comm->messages.open = op;
}
/* Fails the communicator because the two ends of a message differ in type or size. */
static void message_fail_mismatch(tutti_comm *comm, const struct operation *op, int other)
{
    const struct group *g = &comm->group;
    const struct transfer *t = &op->message.transfer;
    bool types_differ = t->peer_dtype != op->dtype;
    char here[32] = "", there[32] = "";
    if (types_differ) snprintf(here, sizeof here, " of %s", dtype_name(op->dtype));
    if (types_differ) snprintf(there, sizeof there, " of %s", dtype_name(t->peer_dtype));
    comm_fail(comm, TUTTI_MISMATCH,
        "rank %d of %s %s %zu bytes%s %s rank %d with tag %u, but rank %d %s %llu bytes%s: both must give the same "
        "number of elements of the same type",
        g->rank, g->name, t->is_send ? "sends" : "receives", op->part_bytes, here, t->is_send ? "to" : "from", other,
        op->message.tag, other, t->is_send ? "receives" : "sends", (unsigned long long)t->peer_bytes, there);
}
/* Fails the communicator because the transfer of a message has failed. */
static void message_fail_comm(tutti_comm *comm, const struct operation *op)
{
    const struct group *g = &comm->group;
    const struct transfer *t = &op->message.transfer;
    int other = t->is_send || t->peer >= 0 ? t->peer : t->source;
    if (failure_adopt_from_peer(comm, t->status)) return;
    if (t->status == TUTTI_MISMATCH) {
        message_fail_mismatch(comm, op, other);
        return;
    }
    /* The router has the reason if a transfer was refused, for want of memory for instance. A cancellation by a peer
       has no text. */
    const char *reason = comm->router->reason;
    comm_fail(comm, t->status, "rank %d of %s: the message %s rank %d with tag %u failed: %s", g->rank, g->name,
        t->is_send ? "to" : "from", other, op->message.tag,
        t->status == TUTTI_ABORTED || !*reason ? status_message(t->status) : reason);
}
/* Returns the value of this rank's bell on which a thread may sleep, and makes peers ring it. While a thread only
   pauses between its polls, peers need not ring: with each message the bell's cache line would move between cores.
   Peers ring from a driver's first yield on, and after POLLS_BEFORE_LISTENING polls in any case, because the progress
   thread has a backoff of its own. Until then this returns a value that the bell never had, so a sleeper wakes
   immediately. */
static uint32_t messages_read_bell(tutti_comm *comm)
{
    struct control *mine = comm->executor.site.contact;
    int pauses = comm->group.backoff.pauses, most = pauses < POLLS_BEFORE_LISTENING ? pauses : POLLS_BEFORE_LISTENING;
    int *polls = &comm->messages.idle_polls;
    if (*polls < most && atomic_load_explicit(&mine->listening, memory_order_relaxed) == LISTENS_NOT) {
        ++*polls;
        return atomic_load_explicit(&mine->bell, memory_order_relaxed) - 1;
    }
    bell_listen(mine);
    return atomic_load_explicit(&mine->bell, memory_order_acquire);
}
/* Records that a thread polls. Peers then do not ring the bell. */
static void messages_stop_listening(tutti_comm *comm)
{
    comm->messages.idle_polls = 0;
    comm_stop_listening(comm);
}
bool messages_make_progress(tutti_comm *comm, struct wait_set *blocked)
{
    struct control *mine = comm->executor.site.contact;
    uint32_t bell = messages_read_bell(comm);
    bool was_mapping = comm->messages.is_mapping;
    if (was_mapping) views_add_to_wait(blocked);
    comm->messages.is_mapping = false;
    bool progressed = false;
    for (int poll = 0; poll < POLLS_PER_TURN && !progressed; poll++) progressed = router_poll(comm->router);
    progressed |= comm->messages.is_mapping && !was_mapping;
    for (struct operation **at = &comm->messages.open, *op; (op = *at) != NULL;) {
        if (op->message.transfer.state == TRANSFER_FAILED && !comm_is_failing(comm)) {
            /* The operation ends with the others, when no peer copies any more. */
            message_fail_comm(comm, op);
            progressed = true;
        }
        if (op->message.transfer.state != TRANSFER_DONE) { at = &op->next; continue; }
        progressed = true;
        *at = op->next;
        operation_complete(op, TUTTI_OK);
    }
    if (progressed) messages_stop_listening(comm);
    else wait_set_add(blocked, &mine->bell, bell, &mine->bell_waiters, true);
    return progressed;
}
/* ---- messages of a rank to itself ---- */
bool message_waits_for_itself(const tutti_comm *comm, const struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    if (t->state != TRANSFER_POSTED || atomic_load(&comm->submission.submitted)) return false;
    if (t->peer != comm->group.rank && (t->peer >= 0 || comm->group.size > 1)) return false;
    for (const struct operation *other = comm->messages.open; other; other = other->next) {
        const struct message *m = &other->message;
        bool reaches_it = m->transfer.peer == comm->group.rank || m->transfer.peer < 0;
        if (reaches_it && m->tag == op->message.tag && m->transfer.is_send != t->is_send) return false;
    }
    return true;
}
bool message_withdraw(tutti_comm *comm, struct operation *op)
{
    bool sends = op->message.transfer.is_send;
    if (!router_cancel(comm->router, &op->message.transfer)) return false;
    /* A later receive must not match the withdrawn message. */
    router_poll(comm->router);
    struct operation **at = &comm->messages.open;
    while (*at != op) at = &(*at)->next;
    *at = op->next;
    operation_refuse(op,
        status_fail(TUTTI_INVALID_ARGUMENT,
            "rank %d of %s waits to %s itself with tag %u, but has not started the matching %s: start both before "
            "waiting for either",
            comm->group.rank, comm->group.name, sends ? "send to" : "receive from", op->message.tag,
            sends ? "receive" : "send"));
    return true;
}

/* ---- the end ---- */
/* Returns true if peers may copy from or to the message's tensor directly. */
static bool message_is_exposed(const tutti_comm *comm, const struct operation *op)
{
    struct location place;
    if (comm->messages.has_offered && op->message.transfer.is_send) return true;
    return arena_find(op->message.piece.at, op->message.piece.length, &place);
}
bool messages_cancel(tutti_comm *comm)
{
    int lost = (int)atomic_load(&comm->outcome.lost) - 1;
    bool all = true;
    /* A dead peer is not asked to release its transfers. */
    if (lost >= 0) router_lose_peer(comm->router, lost, comm_get_failure(comm));
    for (struct operation *op = comm->messages.open; op; op = op->next) {
        struct transfer *t = &op->message.transfer;
        if (t->state == TRANSFER_POSTED && !router_cancel(comm->router, t)) all = false;
    }
    return all;
}
void messages_fail(tutti_comm *comm, tutti_status status)
{
    for (struct operation **at = &comm->messages.open, *op; (op = *at) != NULL;) {
        if (message_is_exposed(comm, op) && !tensors_poll_release(comm)) { at = &op->next; continue; }
        *at = op->next;
        operation_complete(op, status);
    }
}
