/* Every input takes the same path: the lock, the clock, the object, then the actions that the object requests
   (agreement_apply_actions): claim, decide, send, wake the driver. The lock is held no longer than that. Lock order:
   this lock, then the lock of the channels.

   Claims. Every rank has an account in the segment of its host, with room for a failure and a decision. It writes its
   own account, and then claims by one exchange to be the first. So a record is either complete or absent, whichever
   rank dies.

   In messages, a declaration is followed by the rank that the sender misses on its host. So a rank that reaches a
   timeout can name a rank of another host that has not come. */
#include "backend/engine/agreement.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/control/channel.h"
#include "backend/engine/comm.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURE, DECISION, RECORDS, POKE = AGREE_MESSAGES, POLL_MS = 5, ANSWER_LEAST_MS = 200, ANSWER_MOST_MS = 2000 };
/* The part of a declaration that all ranks must agree on. */
enum { AGREED_BYTES = offsetof(struct declaration, tensor) };
_Static_assert(AGREED_BYTES + sizeof(int32_t) <= AGREE_DECLARATION_BYTES, "it travels, and who is missed");
_Static_assert((int)AGREE_WIRE_BYTES <= (int)CHANNEL_BYTES, "a message is one of the channel");
_Static_assert((int)POKE < (int)CHANNEL_TYPES, "a word for each kind, and one for the host");

/* The last report of a rank of another host, which came while this rank was in `number`. */
struct peer_report {
    uint64_t number, begun;
    int64_t at_ms;
    /* The rank that it misses on its host in operation `begun`, or -1. */
    int missed;
};
struct agreement {
    tutti_comm *comm;
    struct channel *channel;
    /* Guards the fields below, except atomic ones and checked_ms, which the driver owns. */
    pthread_mutex_t lock;
    struct agree agree;
    struct peer_report *reports;                                /* [size] */
    /* The deaths that are not accepted yet, and the ranks that this rank waits for. */
    bool *lost, *waits;                                 /* [size] */
    bool waiting, ticks;
    /* The rank that is missed on this host in the running operation, or -1. */
    int missed;
    /* When the driver last polled, and when it asked the ranks because of the operation `late`. */
    int64_t checked_ms, asked_ms;
    uint64_t late;
    _Atomic bool *left;                                 /* [size] */
    /* The executor announces an operation that has not begun here yet. */
    _Atomic bool announcing;
    _Atomic bool has_lost, fails, over;
};
size_t agreement_account_bytes(void) { return RECORDS * AGREE_WIRE_BYTES; }
static const struct group *agreement_get_group(const struct agreement *a) { return &a->comm->group; }

/* ---- records of the host ---- */
static unsigned char *agreement_get_account(const struct agreement *a, int index, int record)
{
    return segment_account(agreement_get_group(a)->segment, index) + record * AGREE_WIRE_BYTES;
}
/* Reads a record of this host. False: the segment has no such record. */
static bool agreement_read_record(const struct agreement *a, int record, struct agree_cause *out)
{
    const struct group *g = agreement_get_group(a);
    uint32_t first = atomic_load(&g->segment->failure->first[record]);
    struct agree_message m;
    unsigned char bytes[AGREE_WIRE_BYTES];
    if (!first || first > (uint32_t)g->segment->ranks) return false;
    memcpy(bytes, agreement_get_account(a, (int)first - 1, record), sizeof bytes);
    if (!agree_message_decode(bytes, sizeof bytes, g->size, &m) || m.kind != AGREE_FAIL) return false;
    *out = m.cause;
    return true;
}
void agreement_notify_host(const struct agreement *a)
{
    const struct group *g = agreement_get_group(a);
    for (int i = 0; i < g->segment->ranks; i++)
        if (group_rank_at_index(g, i) != g->rank) channel_send(a->channel, group_rank_at_index(g, i), POKE, NULL, 0);
}
/* Every rank that reads the record repeats this, as its writer may have died. The earliest operation that any rank
   reports stands. */
void agreement_close_roll_call(const struct agreement *a, uint64_t operation)
{
    const struct group *g = agreement_get_group(a);
    struct failure *failure = g->segment->failure;
    uint64_t known = atomic_load(&failure->operation);
    while (operation < known && !atomic_compare_exchange_weak(&failure->operation, &known, operation)) {}
    atomic_fetch_or(&failure->state, FAILURE_CERTAIN);
    group_alert(g);
}
/* Writes a record unless another rank of this host was first. *out is what the record contains afterwards. */
static void agreement_write_record(struct agreement *a, int record, struct agree_cause *out)
{
    const struct group *g = agreement_get_group(a);
    int mine = group_index_of_rank(g, g->rank);
    _Atomic uint32_t *first = &g->segment->failure->first[record];
    uint32_t nobody = 0;
    *out = a->agree.held;
    if (!atomic_load(first)) {
        agree_message_encode(&(struct agree_message){ .kind = AGREE_FAIL, .cause = *out },
            agreement_get_account(a, mine, record));
        if (atomic_compare_exchange_strong(first, &nobody, (uint32_t)mine + 1)) agreement_notify_host(a);
    }
    agreement_read_record(a, record, out);
    /* The shared failure counts operations from 0. */
    agreement_close_roll_call(a, out->operation - 1);
}
static void agreement_poll_host(struct agreement *a)
{
    const struct group *g = agreement_get_group(a);
    struct agree_cause cause;
    if (a->agree.state <= AGREE_CLAIMS && agreement_read_record(a, FAILURE, &cause)) {
        agreement_close_roll_call(a, cause.operation - 1);
        agree_on_failure_record(&a->agree, &cause);
    }
    if (a->agree.state < AGREE_OVER && agreement_read_record(a, DECISION, &cause)) {
        agreement_close_roll_call(a, cause.operation - 1);
        agree_on_decision_record(&a->agree, &cause);
    }
    for (int i = 0; i < g->segment->ranks; i++) {
        int r = group_rank_at_index(g, i);
        if (a->left[r] || r == g->rank || !atomic_load(&group_control_at_index(g, i)->departed)) continue;
        a->left[r] = true;
        /* The roll call waits for ranks of this host, so the object needs no operation number. */
        agree_on_peer_left(&a->agree, r, 0);
    }
}

/* ---- outputs ---- */
/* Adds the rank that is missed on this host to the message, behind the agreed part of each declaration. */
static void agreement_add_missed_rank(const struct agreement *a, struct agree_message *m)
{
    for (int i = 0; m->kind != AGREE_FAIL && i < AGREE_HISTORY; i++) {
        int32_t missed = m->calls[i].number == a->agree.begun ? a->missed : -1;
        memcpy(m->calls[i].declaration + AGREED_BYTES, &missed, sizeof missed);
    }
}
static void agreement_send_all(struct agreement *a)
{
    struct agree_message m;
    unsigned char bytes[AGREE_WIRE_BYTES];
    int to;
    while (agree_next_message(&a->agree, &to, &m)) {
        agreement_add_missed_rank(a, &m);
        agree_message_encode(&m, bytes);
        bool last = m.kind == AGREE_BYE;
        (last ? channel_send_final : channel_send)(a->channel, to, (unsigned)m.kind, bytes, sizeof bytes);
    }
}
/* ---- the effects of an input ---- */
static void agreement_accept_deaths_locked(struct agreement *a)
{
    atomic_store(&a->has_lost, false);
    for (int r = 0; r < agreement_get_group(a)->size; r++) {
        if (!a->lost[r]) continue;
        a->lost[r] = false;
        /* The object ignores the death of a rank that has left. */
        agree_on_peer_lost(&a->agree, r);
    }
}
static void agreement_apply_actions(struct agreement *a)
{
    struct agree_cause cause;
    bool open = a->agree.begun != a->agree.ended || atomic_load(&a->announcing);
    if (atomic_load(&a->has_lost) && (!open || a->agree.state > AGREE_RUNS)) agreement_accept_deaths_locked(a);
    if (a->agree.state == AGREE_CLAIMS) {
        agreement_write_record(a, FAILURE, &cause);
        agree_on_failure_record(&a->agree, &cause);
    }
    if (a->agree.state == AGREE_DECIDES) {
        agreement_write_record(a, DECISION, &cause);
        agree_on_decision_record(&a->agree, &cause);
    }
    agreement_send_all(a);
    bool fails = a->agree.state > AGREE_RUNS && a->agree.state < AGREE_LEFT, over = a->agree.state == AGREE_OVER;
    bool ticks = (fails && !over) || (a->agree.state == AGREE_RUNS && a->agree.suspect.operation);
    if (ticks != a->ticks) channel_set_tick(a->channel, ticks);
    a->ticks = ticks;
    atomic_store(&a->fails, fails);
    if (over && !atomic_exchange(&a->over, true)) comm_wake_driver(a->comm);
}
static void agreement_lock_and_tick(struct agreement *a)
{
    pthread_mutex_lock(&a->lock);
    agree_advance_time(&a->agree, clock_ms());
}
static void agreement_apply_and_unlock(struct agreement *a)
{
    agreement_apply_actions(a);
    pthread_mutex_unlock(&a->lock);
}

/* ---- deaths ---- */
/* The death waits in `lost` while an operation is open: its driver first continues it as far as it gets. */
static void agreement_add_lost_rank(struct agreement *a, int rank)
{
    a->lost[rank] = true;
    atomic_store(&a->has_lost, true);
}
void agreement_accept_deaths(struct agreement *a)
{
    agreement_lock_and_tick(a);
    agreement_accept_deaths_locked(a);
    agreement_apply_and_unlock(a);
}
void agreement_record_lost(struct agreement *a, int rank)
{
    agreement_lock_and_tick(a);
    /* The rank may have left before its process ended. */
    agreement_poll_host(a);
    agreement_add_lost_rank(a, rank);
    agreement_apply_and_unlock(a);
    comm_wake_driver(a->comm);
}

/* ---- messages, on the watch thread ---- */
/* Stores the number of the peer's latest call, and the rank that the peer misses in it, which travels behind the agreed
   part of the declaration (agreement_add_missed_rank). */
static void agreement_store_report(struct agreement *a, int from, const struct agree_message *m)
{
    struct peer_report *report = &a->reports[from];
    int32_t missed = -1;
    *report = (struct peer_report){ .number = a->agree.begun, .at_ms = a->agree.now_ms, .missed = -1 };
    for (int i = 0; i < AGREE_HISTORY; i++) {
        if (m->calls[i].number < report->begun) continue;
        report->begun = m->calls[i].number;
        memcpy(&missed, m->calls[i].declaration + AGREED_BYTES, sizeof missed);
    }
    if (missed >= 0 && missed < agreement_get_group(a)->size) report->missed = missed;
}
static void agreement_on_message(void *context, int from, const void *bytes, size_t length)
{
    struct agreement *a = context;
    const struct group *g = agreement_get_group(a);
    struct agree_message m;
    agreement_lock_and_tick(a);
    bool member = from >= 0 && from < g->size;
    /* An empty message, or one from a rank of this host, only asks this rank to read the records of the host. */
    if (!member) LOG(WARN, "%s: control message from the invalid rank %d", g->name, from);
    else if (!length || group_rank_is_here(g, from)) agreement_poll_host(a);
    else if (!agree_message_decode(bytes, length, g->size, &m)) agreement_add_lost_rank(a, from);
    else {
        if (m.kind == AGREE_BYE) a->left[from] = true;
        if (m.kind != AGREE_FAIL) agreement_store_report(a, from, &m);
        agree_handle_message(&a->agree, from, &m);
    }
    agreement_apply_and_unlock(a);
}
static void agreement_on_tick(void *context)
{
    struct agreement *a = context;
    agreement_lock_and_tick(a);
    agreement_poll_host(a);
    agreement_apply_and_unlock(a);
}

/* ---- operations ---- */
/* Makes deaths wait as if the operation were open: peers may complete it and die before this rank has begun it. */
void agreement_hold_deaths(struct agreement *a) { atomic_store(&a->announcing, true); }
void agreement_begin_operation(tutti_comm *comm)
{
    struct agreement *a = comm->agreement;
    struct agree_call call = { .number = comm->run_queue.sequence,
        .fingerprint = executor_fingerprint_of_name(executor_message_name(&comm->executor)) };
    memcpy(call.declaration, comm->executor.run.declaration, AGREED_BYTES);
    agreement_lock_and_tick(a);
    a->missed = -1;
    agree_begin(&a->agree, &call);
    atomic_store(&a->announcing, false);
    agreement_apply_and_unlock(a);
}
static void agreement_set_waiting(struct agreement *a, int rank, bool waits)
{
    if (waits != a->waits[rank]) agree_set_waiting(&a->agree, rank, waits);
    a->waits[rank] = waits;
    a->waiting |= waits;
}
static void agreement_clear_waiting(struct agreement *a)
{
    for (int r = 0; a->waiting && r < agreement_get_group(a)->size; r++) agreement_set_waiting(a, r, false);
    a->waiting = false;
}
bool agreement_may_end(struct agreement *a, uint64_t number)
{
    agreement_lock_and_tick(a);
    agreement_clear_waiting(a);
    bool may = agree_may_end_operation(&a->agree, number);
    agreement_apply_and_unlock(a);
    return may;
}
static void agreement_update_waiting(struct agreement *a)
{
    const struct group *g = agreement_get_group(a);
    bool waits[64];
    bool *now = g->size <= 64 ? waits : memory_alloc_zeroed((size_t)g->size, sizeof *now);
    /* Without memory this rank asks no peer this time. */
    if (!now) return;
    memset(now, 0, (size_t)g->size * sizeof *now);
    executor_list_awaited_ranks(&a->comm->executor, now);
    for (int r = 0; r < g->size; r++)
        if (!group_rank_is_here(g, r)) agreement_set_waiting(a, r, now[r]);
    if (now != waits) free(now);
}
static void agreement_update_missed_rank(struct agreement *a)
{
    const struct group *g = agreement_get_group(a);
    a->missed = -1;
    for (int i = g->segment->ranks - 1; i >= 0; i--)
        if (!executor_rank_has_arrived(&a->comm->executor, group_rank_at_index(g, i)))
            a->missed = group_rank_at_index(g, i);
}
/* Reports an early message. It belongs to a later operation, or its rank makes another call than this one. */
static void agreement_report_early(void *context, const struct arrival *arrival)
{
    struct agreement *a = context;
    uint64_t operation = arrival->name.operation;
    if (operation >= OPERATION_OF_JOIN || group_rank_is_here(agreement_get_group(a), arrival->source)) return;
    int32_t ahead = (int32_t)((uint32_t)operation + 1 - (uint32_t)a->agree.begun);
    agree_on_first_message(&a->agree, arrival->source, a->agree.begun + (uint64_t)(int64_t)ahead,
        executor_fingerprint_of_name(operation));
}
void agreement_poll(tutti_comm *comm)
{
    struct agreement *a = comm->agreement;
    int64_t now_ms = clock_ms();
    if (now_ms < a->checked_ms + POLL_MS) return;
    a->checked_ms = now_ms;
    agreement_lock_and_tick(a);
    agreement_poll_host(a);
    if (comm->run_queue.running) {
        agreement_update_missed_rank(a);
        agreement_update_waiting(a);
        matching_visit_arrivals(&comm->router->matching, agreement_report_early, a);
    }
    agreement_apply_and_unlock(a);
}
/* True if the rank's report, which came during this operation, names a rank that has not begun it: itself, or the one
   that it misses. */
static bool agreement_knows_absent(const struct agreement *a, uint64_t number, int rank)
{
    const struct peer_report *report = &a->reports[rank];
    bool misses_another = report->begun == number && report->missed >= 0;
    return report->number == number && (report->begun < number || misses_another);
}
bool agreement_delays_timeout(struct agreement *a, uint64_t number, int64_t timeout_ms)
{
    int64_t answer_ms = timeout_ms / 4;
    bool asks = false, known = false;
    if (answer_ms < ANSWER_LEAST_MS) answer_ms = ANSWER_LEAST_MS;
    if (answer_ms > ANSWER_MOST_MS) answer_ms = ANSWER_MOST_MS;
    agreement_lock_and_tick(a);
    if (a->late != number) {
        a->late = number;
        a->asked_ms = a->agree.now_ms;
        agree_ask_now(&a->agree);
    }
    int64_t passed_ms = a->agree.now_ms - a->asked_ms;
    for (int r = 0; r < agreement_get_group(a)->size; r++) {
        asks |= a->waits[r] && a->reports[r].at_ms < a->asked_ms;
        known |= agreement_knows_absent(a, number, r);
    }
    agreement_apply_and_unlock(a);
    return (asks && passed_ms < answer_ms) || (!known && passed_ms < 2 * answer_ms);
}
void agreement_list_absent(struct agreement *a, uint64_t number, bool *absent)
{
    pthread_mutex_lock(&a->lock);
    for (int r = 0; r < agreement_get_group(a)->size; r++) {
        if (!agreement_knows_absent(a, number, r)) continue;
        absent[a->reports[r].begun < number ? r : a->reports[r].missed] = true;
    }
    pthread_mutex_unlock(&a->lock);
}

/* ---- failing ---- */
void agreement_propose_cause(struct agreement *a, const struct agree_cause *cause)
{
    struct agree_cause mine = *cause;
    agreement_lock_and_tick(a);
    mine.reporter = agreement_get_group(a)->rank;
    mine.operation = a->agree.ended + 1;
    agree_report_cause(&a->agree, &mine);
    agreement_apply_and_unlock(a);
}
bool agreement_has_lost_ranks(const struct agreement *a) { return atomic_load(&a->has_lost); }
bool agreement_rank_has_left(const struct agreement *a, int rank) { return atomic_load(&a->left[rank]); }
bool agreement_is_failing(const struct agreement *a) { return atomic_load(&a->fails); }
bool agreement_has_decided(const struct agreement *a) { return atomic_load(&a->over); }
void agreement_get_decision(struct agreement *a, struct agree_cause *out)
{
    pthread_mutex_lock(&a->lock);
    *out = a->agree.held;
    pthread_mutex_unlock(&a->lock);
}

/* ---- lifetime ---- */
/* A pending decision comes within half a second (AGREE_TAKE_OVER_MS). This rank sends it before it leaves. */
void agreement_announce_leaving(tutti_comm *comm)
{
    struct agreement *a = comm->agreement;
    for (int64_t n = 0; agreement_is_failing(a) && !agreement_has_decided(a); n++) group_back_off(&comm->group, n);
    agreement_lock_and_tick(a);
    agree_leave(&a->agree);
    agreement_apply_and_unlock(a);
}
void agreement_destroy(struct agreement *a)
{
    if (!a) return;
    channel_close(a->channel);
    pthread_mutex_destroy(&a->lock);
    free((void *)(uintptr_t)a->agree.layout.host_of);
    free(a->agree.layout.peers);
    free(a->agree.layout.speakers);
    free(a->reports);
    free(a->lost);
    free(a->waits);
    free((void *)a->left);
    free(a);
}
static tutti_status agreement_init_tables(struct agreement *a)
{
    const struct group *g = agreement_get_group(a);
    size_t size = (size_t)g->size;
    int *host_of_rank = memory_alloc_zeroed(size, sizeof *host_of_rank);
    struct agree_peer *peers = memory_alloc_zeroed(size, sizeof *peers);
    int *speakers = memory_alloc_zeroed((size_t)g->layout->hosts, sizeof *speakers);
    a->agree.layout = (struct agree_layout){ g->rank, g->size, g->layout->hosts, host_of_rank, peers, speakers };
    a->reports = memory_alloc_zeroed(size, sizeof *a->reports);
    a->lost = memory_alloc_zeroed(size, sizeof *a->lost);
    a->waits = memory_alloc_zeroed(size, sizeof *a->waits);
    a->left = memory_alloc_zeroed(size, sizeof *a->left);
    if (!host_of_rank || !peers || !speakers || !a->reports || !a->lost || !a->waits || !a->left)
        return status_fail(TUTTI_NO_MEMORY, "no memory for the agreement of %d ranks", g->size);
    for (int r = 0; r < g->size; r++) host_of_rank[r] = layout_host(g->layout, r);
    struct agree_layout layout = a->agree.layout;
    agree_init(&a->agree, &layout);
    a->missed = -1;
    return TUTTI_OK;
}
static tutti_status agreement_allocate_and_open(tutti_comm *comm, struct agreement **out)
{
    const struct group *g = &comm->group;
    struct agreement *a = memory_alloc_zeroed(1, sizeof *a);
    *out = a;
    if (!a) return status_fail(TUTTI_NO_MEMORY, "no memory for the agreement of %d ranks", g->size);
    a->comm = comm;
    pthread_mutex_init(&a->lock, NULL);
    TRY(agreement_init_tables(a));
    /* Callbacks that come already wait for the lock until the channel is stored. */
    pthread_mutex_lock(&a->lock);
    struct route_map map = { g->size, g->layout->hosts, g->host, a->agree.layout.host_of };
    tutti_status status =
        channel_open(g->members[0].token, g->rank, g->peers, g->size, group_uses_links(g) ? &map : NULL,
            &(struct channel_user){ agreement_on_message, agreement_on_tick, a }, &a->channel);
    pthread_mutex_unlock(&a->lock);
    return status;
}
tutti_status agreement_create(tutti_comm *comm, struct agreement **out)
{
    tutti_status status = agreement_allocate_and_open(comm, out);
    if (status == TUTTI_OK) return status;
    agreement_destroy(*out);
    *out = NULL;
    return status;
}
