/* Sends and receives of the user, and what the transport stands on. They run beside the collectives of their
   communicator, in any order; matching is the transport's. Their names have the top bit set, the messages of schedules
   do not. A message between shared tensors is copied from one to the other: this rank says so while it is at a peer's
   (`copying`), and after a failure no operation is over before no peer is at its tensor. */
#include "backend/engine/comm.h"
#include "backend/base/fence.h"
#include "backend/execute/pace.h"
#include "backend/memory/arena.h"
#include "backend/processes/views.h"

enum { LOOKS = 4 };                                     /* at the transport, for each turn: what comes is seen sooner */
enum { POLLS_BEFORE_LISTENING = 100 };
static const uint64_t USER_NAME = (uint64_t)1 << 63;

/* ---- the ground of the transport ---- */
static const struct group *group_of(const void *context) { return &((const tutti_comm *)context)->group; }
static unsigned char *pair_at(void *context, int from, int to)
{
    const struct group *g = group_of(context);
    if (g->network) return segment_pair(g->network, from, to);
    return segment_pair(g->segment, group_index(g, from), group_index(g, to));
}
static tutti_status reserve(void *context, void *at, size_t bytes)
{
    const struct group *g = group_of(context);
    return segment_reserve(g->network ? g->network : g->segment, at, bytes, "message buffers");
}
static void ring_bell(void *context, int rank)
{
    struct control *c = group_contact(group_of(context), rank);
    fence_between_store_and_load();
    if (atomic_load_explicit(&c->listening, memory_order_relaxed) != LISTENS) return;
    word_ring(&c->bell, &c->bell_waiters, true);
}
static bool find(void *context, const void *at, size_t bytes, struct shm_place *out)
{
    struct location place;
    (void)context;
    if (!arena_find(at, bytes, &place)) return false;
    *out = (struct shm_place){ place.block, place.offset };
    return true;
}
static tutti_status reach(void *context, int rank, bool sends, struct shm_place place, size_t bytes,
    unsigned char **out)
{
    tutti_comm *comm = context;
    tutti_status status = tensor_reach(comm, rank, sends ? HELD_SENDING : HELD_RECEIVING,
        (struct location){ place.block, place.offset }, bytes, out);
    comm->messages.reaching |= status == TUTTI_IN_PROGRESS;
    return status;
}
/* As may_touch of execute.c: who fails first says so and then looks whether somebody copies. */
static bool enter(void *context)
{
    const tutti_comm *comm = context;
    atomic_store(&comm->executor.site.mine->copying, 1);
    if (!(atomic_load(&group_failure(&comm->group)->state) & FAILURE_CERTAIN)) return true;
    atomic_store(&comm->executor.site.mine->copying, 0);
    return false;
}
static void leave(void *context)
{
    const tutti_comm *comm = context;
    atomic_store_explicit(&comm->executor.site.mine->copying, 0, memory_order_release);
}
tutti_status messages_connect(tutti_comm *comm)
{
    const struct site *s = &comm->executor.site;
    struct shm_ground ground = { .context = comm, .pair = pair_at, .reserve = reserve, .ring = ring_bell,
        .stream = s->paced ? pace_copy : s->stream, .stream_far = s->stream, .find = find, .reach = reach,
        .enter = enter, .leave = leave };
    if (comm->group.network) ground.find = NULL;        /* hosts do not share tensors */
    TRY(shm_connect(&ground, comm->group.rank, comm->group.size, &comm->transport));
    executor_connect(&comm->executor, comm->transport);
    return TUTTI_OK;
}

/* ---- sends and receives ---- */
void message_post(tutti_comm *comm, struct operation *op)
{
    struct message *m = &op->message;
    struct transfer *t = &m->transfer;
    m->piece = (struct piece){ t->is_send ? (unsigned char *)(uintptr_t)op->input : op->output, op->part_bytes,
        op->part_bytes };
    t->name = USER_NAME | m->tag;
    t->pieces = &m->piece;
    t->piece_count = 1;
    t->may_share = true;
    transport_post(comm->transport, t);
    if (t->state == TRANSFER_DONE && !comm->messages.open) { operation_complete(op, TUTTI_OK); return; }
    op->next = comm->messages.open;
    comm->messages.open = op;
}
static void fail_because_of(tutti_comm *comm, const struct operation *op)
{
    const struct group *g = &comm->group;
    const struct transfer *t = &op->message.transfer;
    int other = t->is_send || t->peer >= 0 ? t->peer : t->source;
    if (t->status == TUTTI_MISMATCH) {
        comm_fail(comm, TUTTI_MISMATCH, "rank %d of %s %s %zu bytes %s rank %d with tag %u, but rank %d %s %llu bytes",
            g->rank, g->name, t->is_send ? "sends" : "receives", op->part_bytes, t->is_send ? "to" : "from", other,
            op->message.tag, other, t->is_send ? "receives" : "sends", (unsigned long long)t->theirs);
        return;
    }
    /* Whoever refused memory or a place has said why; that a peer gave up is told without words. */
    const char *reason = comm->transport->reason;
    comm_fail(comm, t->status, "rank %d of %s: the message %s rank %d with tag %u failed: %s", g->rank, g->name,
        t->is_send ? "to" : "from", other, op->message.tag,
        t->status == TUTTI_ABORTED || !*reason ? status_message(t->status) : reason);
}
/* While a thread only pauses between its polls, the bell need not ring: the line it is in would go from core to core
   with each message. From the first yield of a driver on it may, and soon in any case: the progress thread climbs a
   ladder of its own. What is seen of it before then has never been its value, so that
   who goes to sleep nevertheless wakes at once. */
static uint32_t bell_before_poll(tutti_comm *comm)
{
    struct control *mine = comm->executor.site.contact;
    int pauses = comm->group.ladder.pauses, most = pauses < POLLS_BEFORE_LISTENING ? pauses : POLLS_BEFORE_LISTENING;
    int *polls = &comm->messages.idle_polls;
    if (*polls < most && atomic_load_explicit(&mine->listening, memory_order_relaxed) == LISTENS_NOT) {
        ++*polls;
        return atomic_load_explicit(&mine->bell, memory_order_relaxed) - 1;
    }
    bell_listen(mine);
    return atomic_load_explicit(&mine->bell, memory_order_acquire);
}
static void stop_listening(tutti_comm *comm)
{
    comm->messages.idle_polls = 0;
    comm_awake(comm);
}
bool messages_progress(tutti_comm *comm, struct wait_set *blocked)
{
    struct control *mine = comm->executor.site.contact;
    uint32_t bell = bell_before_poll(comm);
    bool reached = comm->messages.reaching;
    if (reached) views_await(blocked);
    comm->messages.reaching = false;
    bool moved = false;
    for (int look = 0; look < LOOKS && !moved; look++) moved = transport_poll(comm->transport);
    moved |= comm->messages.reaching && !reached;
    for (struct operation **at = &comm->messages.open, *op; (op = *at) != NULL;) {
        if (op->message.transfer.state == TRANSFER_FAILED && !comm_has_failed(comm)) {
            fail_because_of(comm, op);                  /* it ends with the others, when no peer copies any more */
            moved = true;
        }
        if (op->message.transfer.state != TRANSFER_DONE) { at = &op->next; continue; }
        moved = true;
        *at = op->next;
        operation_complete(op, TUTTI_OK);
    }
    if (moved) stop_listening(comm);
    else wait_add(blocked, &mine->bell, bell, &mine->bell_waiters, true);
    return moved;
}
/* ---- of a rank to itself ---- */
bool message_is_alone(const tutti_comm *comm, const struct operation *op)
{
    const struct transfer *t = &op->message.transfer;
    if (t->state != TRANSFER_POSTED || atomic_load(&comm->gate.intake)) return false;
    if (t->peer != comm->group.rank && (t->peer >= 0 || comm->group.size > 1)) return false;
    for (const struct operation *other = comm->messages.open; other; other = other->next) {
        const struct message *m = &other->message;
        bool reaches_it = m->transfer.peer == comm->group.rank || m->transfer.peer < 0;
        if (reaches_it && m->tag == op->message.tag && m->transfer.is_send != t->is_send) return false;
    }
    return true;
}
bool message_take_back(tutti_comm *comm, struct operation *op)
{
    bool sends = op->message.transfer.is_send;
    if (!transport_cancel(comm->transport, &op->message.transfer)) return false;
    transport_poll(comm->transport);                    /* a later receive must not meet what is taken back */
    struct operation **at = &comm->messages.open;
    while (*at != op) at = &(*at)->next;
    *at = op->next;
    operation_refuse(op, status_fail(TUTTI_INVALID_ARGUMENT, "rank %d of %s waits to %s itself with tag %u, but has "
        "not started the %s that this would meet: start both before waiting for one of them", comm->group.rank,
        comm->group.name, sends ? "send to" : "receive from", op->message.tag, sends ? "receive" : "send"));
    return true;
}

/* ---- the end ---- */
static bool is_exposed(const struct operation *op)
{
    struct location place;
    return arena_find(op->message.piece.at, op->message.piece.length, &place);
}
void messages_fail(tutti_comm *comm, tutti_status status)
{
    for (struct operation **at = &comm->messages.open, *op; (op = *at) != NULL;) {
        struct transfer *t = &op->message.transfer;
        while (t->state == TRANSFER_POSTED && !transport_cancel(comm->transport, t))
            transport_poll(comm->transport);
        if (is_exposed(op) && !tensors_let_go(comm)) { at = &op->next; continue; }
        *at = op->next;
        operation_complete(op, status);
    }
}
