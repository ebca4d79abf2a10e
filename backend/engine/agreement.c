/* Every input takes the same path: the lock, the clock, the object, then the actions that the object requests
   (agreement_apply_actions): claim, decide, send, wake the driver. The lock is held no longer than that. Lock order:
   this lock, then the lock of the channels.

   Claims. Every rank has an account in the segment of its host, with room for a failure and a decision. It writes its
   own account, and then claims by one compare-and-exchange to be the first. So a record is either complete or absent,
   whichever rank dies.

   In messages, a declaration is followed by the rank that the sender misses on its host. So a rank that reaches a
   timeout can name a rank of another host that has not come. */
#include "backend/engine/agreement.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/control/channel.h"
#include "backend/engine/comm.h"
#include "backend/engine/remote_states.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The records in each rank's account. */
enum { FAILURE, DECISION, RECORDS };
/* READ_RECORDS is a type of message, beside those of backend/agree: it makes a rank of this host read the records. The
   driver polls each POLL_MS at most. Awaited ranks have ANSWER_LEAST_MS to ANSWER_MOST_MS to answer. */
enum { READ_RECORDS = AGREE_MESSAGES, POLL_MS = 5, ANSWER_LEAST_MS = 200, ANSWER_MOST_MS = 2000 };
/* The part of a declaration that all ranks must agree on. */
enum { AGREED_BYTES = offsetof(struct declaration, tensor) };
_Static_assert(AGREED_BYTES + sizeof(int32_t) <= AGREE_DECLARATION_BYTES, "declaration and missed rank fit");
_Static_assert((int)AGREE_WIRE_BYTES <= (int)CHANNEL_BYTES, "a message of agree fits into one of the channel");
_Static_assert((int)READ_RECORDS < (int)STATE_QUESTION, "each message has a type of its own");

/* The last report of a rank of another host. It came at at_ms, while this rank was in operation `number`, and the peer
   has begun operations up to `begun`. */
struct peer_report {
    uint64_t number, begun;
    int64_t at_ms;
    /* The rank of the peer's host that had not arrived in operation `begun`, or -1. */
    int missed_rank;
};
struct agreement {
    tutti_comm *comm;
    struct channel *channel;
    struct remote_states states;
    /* Guards the fields below, except atomic ones and checked_ms, which the driver owns. */
    pthread_mutex_t lock;
    struct agree agree;
    struct peer_report *reports;                                /* [size] */
    /* has_died[r]: the death of rank r is recorded but not accepted. is_awaited[r]: this rank waits for rank r.
       has_left[r]: rank r has left in good order. */
    bool *has_died, *is_awaited;                        /* [size] */
    _Atomic bool *has_left;                             /* [size] */
    /* awaits_any: this rank waits for at least one rank. has_tick: the channel calls agreement_on_tick regularly. */
    bool awaits_any, has_tick;
    /* The rank of this host that has not arrived in the running operation, or -1. */
    int missed_rank;
    /* When the driver last polled, and when it asked the awaited ranks because operation late_operation was late. */
    int64_t checked_ms, asked_ms;
    uint64_t late_operation;
    /* The executor is announcing an operation that the agree object does not know yet. */
    _Atomic bool is_announcing;
    /* has_lost: deaths are recorded but not accepted. is_failing: a reason is known. has_decided: the decision is. */
    _Atomic bool has_lost, is_failing, has_decided;
};
size_t agreement_account_bytes(void) { return RECORDS * AGREE_WIRE_BYTES; }
static const struct group *agreement_get_group(const struct agreement *agreement) { return &agreement->comm->group; }

/* ---- records of the host ---- */
/* Returns the room for a record in the account of the rank with this index on this host. */
static unsigned char *agreement_get_account(const struct agreement *agreement, int index, int record)
{
    return segment_account(agreement_get_group(agreement)->segment, index) + record * AGREE_WIRE_BYTES;
}
/* Reads the record (FAILURE or DECISION) of this host. Returns false if no rank has written it. */
static bool agreement_read_record(const struct agreement *agreement, int record, struct agree_cause *out)
{
    const struct group *group = agreement_get_group(agreement);
    uint32_t first = atomic_load(&group->segment->failure->first[record]);
    struct agree_message m;
    unsigned char bytes[AGREE_WIRE_BYTES];
    if (!first || first > (uint32_t)group->segment->ranks) return false;
    memcpy(bytes, agreement_get_account(agreement, (int)first - 1, record), sizeof bytes);
    if (!agree_message_decode(bytes, sizeof bytes, group->size, &m) || m.kind != AGREE_FAIL) return false;
    *out = m.cause;
    return true;
}
void agreement_notify_host(const struct agreement *agreement)
{
    const struct group *group = agreement_get_group(agreement);
    for (int i = 0; i < group->segment->ranks; i++)
        if (group_rank_at_index(group, i) != group->rank)
            channel_send(agreement->channel, group_rank_at_index(group, i), READ_RECORDS, NULL, 0);
}
/* Every rank that reads a record calls this, because the writer of the record may have died before. The earliest
   operation that any rank gives stays. */
void agreement_close_roll_call(const struct agreement *agreement, uint64_t operation)
{
    const struct group *group = agreement_get_group(agreement);
    struct failure *failure = group->segment->failure;
    uint64_t known = atomic_load(&failure->operation);
    while (operation < known && !atomic_compare_exchange_weak(&failure->operation, &known, operation)) {}
    atomic_fetch_or(&failure->state, FAILURE_CERTAIN);
    group_alert(group);
}
/* Writes the cause that this rank holds as the record of this host, unless another rank was first. *out gets the
   content of the record afterwards. */
static void agreement_write_record(struct agreement *agreement, int record, struct agree_cause *out)
{
    const struct group *group = agreement_get_group(agreement);
    int mine = group_index_of_rank(group, group->rank);
    _Atomic uint32_t *first = &group->segment->failure->first[record];
    uint32_t none = 0;
    *out = agreement->agree.held;
    if (!atomic_load(first)) {
        agree_message_encode(&(struct agree_message){ .kind = AGREE_FAIL, .cause = *out },
            agreement_get_account(agreement, mine, record));
        if (atomic_compare_exchange_strong(first, &none, (uint32_t)mine + 1)) agreement_notify_host(agreement);
    }
    agreement_read_record(agreement, record, out);
    /* The shared failure counts operations from 0. */
    agreement_close_roll_call(agreement, out->operation - 1);
}
/* Passes new records of this host's shared memory, and departures of its ranks, to the agree object. */
static void agreement_poll_host(struct agreement *agreement)
{
    const struct group *group = agreement_get_group(agreement);
    struct agree_cause cause;
    if (agreement->agree.state <= AGREE_CLAIMS && agreement_read_record(agreement, FAILURE, &cause)) {
        agreement_close_roll_call(agreement, cause.operation - 1);
        agree_on_failure_record(&agreement->agree, &cause);
    }
    if (agreement->agree.state < AGREE_OVER && agreement_read_record(agreement, DECISION, &cause)) {
        agreement_close_roll_call(agreement, cause.operation - 1);
        agree_on_decision_record(&agreement->agree, &cause);
    }
    for (int i = 0; i < group->segment->ranks; i++) {
        int r = group_rank_at_index(group, i);
        if (agreement->has_left[r] || r == group->rank || !atomic_load(&group_control_at_index(group, i)->departed))
            continue;
        agreement->has_left[r] = true;
        /* The roll call waits for ranks of this host, so the object needs no operation number. */
        agree_on_peer_left(&agreement->agree, r, 0);
    }
}

/* ---- outputs ---- */
/* Writes the rank that has not arrived on this host into the message, behind the agreed part of each declaration. */
static void agreement_add_missed_rank(const struct agreement *agreement, struct agree_message *m)
{
    for (int i = 0; m->kind != AGREE_FAIL && i < AGREE_HISTORY; i++) {
        int32_t missed = m->calls[i].number == agreement->agree.begun ? agreement->missed_rank : -1;
        memcpy(m->calls[i].declaration + AGREED_BYTES, &missed, sizeof missed);
    }
}
static void agreement_send_all(struct agreement *agreement)
{
    struct agree_message m;
    unsigned char bytes[AGREE_WIRE_BYTES];
    int to;
    while (agree_next_message(&agreement->agree, &to, &m)) {
        agreement_add_missed_rank(agreement, &m);
        agree_message_encode(&m, bytes);
        bool last = m.kind == AGREE_BYE;
        (last ? channel_send_final : channel_send)(agreement->channel, to, (unsigned)m.kind, bytes, sizeof bytes);
    }
}
/* ---- the effects of an input ---- */
/* Passes the recorded deaths of ranks to the agree object. Called with the lock. */
static void agreement_accept_deaths_locked(struct agreement *agreement)
{
    char why[AGREE_DETAIL_BYTES];
    atomic_store(&agreement->has_lost, false);
    for (int r = 0; r < agreement_get_group(agreement)->size; r++) {
        if (!agreement->has_died[r]) continue;
        agreement->has_died[r] = false;
        /* The object ignores the death of a rank that has left. */
        error_text_of_lost_link(agreement_get_group(agreement), r, why, sizeof why);
        agree_on_peer_lost(&agreement->agree, r, why);
    }
}
/* Carries out the requests of the agree object after an input: accepts recorded deaths, writes records, sends messages,
   and switches the channel's tick. Called with the lock. */
static void agreement_apply_actions(struct agreement *agreement)
{
    struct agree_cause cause;
    bool open = agreement->agree.begun != agreement->agree.ended || atomic_load(&agreement->is_announcing);
    if (atomic_load(&agreement->has_lost) && (!open || agreement->agree.state > AGREE_RUNS))
        agreement_accept_deaths_locked(agreement);
    if (agreement->agree.state == AGREE_CLAIMS) {
        agreement_write_record(agreement, FAILURE, &cause);
        agree_on_failure_record(&agreement->agree, &cause);
    }
    if (agreement->agree.state == AGREE_DECIDES) {
        agreement_write_record(agreement, DECISION, &cause);
        agree_on_decision_record(&agreement->agree, &cause);
    }
    agreement_send_all(agreement);
    bool fails = agreement->agree.state > AGREE_RUNS && agreement->agree.state < AGREE_LEFT,
         over = agreement->agree.state == AGREE_OVER;
    bool ticks = (fails && !over) || (agreement->agree.state == AGREE_RUNS && agreement->agree.suspect.operation);
    if (ticks != agreement->has_tick) channel_set_tick(agreement->channel, ticks);
    agreement->has_tick = ticks;
    atomic_store(&agreement->is_failing, fails);
    if (over && !atomic_exchange(&agreement->has_decided, true)) comm_wake_driver(agreement->comm);
}
static void agreement_lock_and_tick(struct agreement *agreement)
{
    pthread_mutex_lock(&agreement->lock);
    agree_advance_time(&agreement->agree, clock_ms());
}
static void agreement_apply_and_unlock(struct agreement *agreement)
{
    agreement_apply_actions(agreement);
    pthread_mutex_unlock(&agreement->lock);
}

/* ---- deaths ---- */
/* Records a death. It waits in has_died while an operation is open: its driver first continues it as far as it gets. */
static void agreement_add_lost_rank(struct agreement *agreement, int rank)
{
    agreement->has_died[rank] = true;
    atomic_store(&agreement->has_lost, true);
}
void agreement_accept_deaths(struct agreement *agreement)
{
    agreement_lock_and_tick(agreement);
    agreement_accept_deaths_locked(agreement);
    agreement_apply_and_unlock(agreement);
}
void agreement_record_lost(struct agreement *agreement, int rank)
{
    agreement_lock_and_tick(agreement);
    /* The rank may have left before its process ended. */
    agreement_poll_host(agreement);
    agreement_add_lost_rank(agreement, rank);
    agreement_apply_and_unlock(agreement);
    comm_wake_driver(agreement->comm);
}

/* ---- messages, on the watch thread ---- */
/* Stores the number of the peer's latest call, and the rank that has not arrived in it on the peer's host, which
   travels behind the agreed part of the declaration (agreement_add_missed_rank). */
static void agreement_store_report(struct agreement *agreement, int from, const struct agree_message *m)
{
    struct peer_report *report = &agreement->reports[from];
    int32_t missed = -1;
    *report =
        (struct peer_report){ .number = agreement->agree.begun, .at_ms = agreement->agree.now_ms, .missed_rank = -1 };
    for (int i = 0; i < AGREE_HISTORY; i++) {
        if (m->calls[i].number < report->begun) continue;
        report->begun = m->calls[i].number;
        memcpy(&missed, m->calls[i].declaration + AGREED_BYTES, sizeof missed);
    }
    if (missed >= 0 && missed < agreement_get_group(agreement)->size) report->missed_rank = missed;
}
/* Handles a control message from rank `from`; the channel calls it. Invalid bytes count as the loss of the rank. */
static void agreement_on_message(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    struct agreement *agreement = context;
    if (type >= STATE_QUESTION) { remote_states_on_message(&agreement->states, from, type, bytes, length); return; }
    const struct group *group = agreement_get_group(agreement);
    struct agree_message m;
    agreement_lock_and_tick(agreement);
    bool member = from >= 0 && from < group->size;
    /* An empty message, or one from a rank of this host, only asks this rank to read the records of the host. */
    if (!member) LOG(WARN, "%s: control message from the invalid rank %d", group->name, from);
    else if (!length || group_rank_is_here(group, from)) agreement_poll_host(agreement);
    else if (!agree_message_decode(bytes, length, group->size, &m)) agreement_add_lost_rank(agreement, from);
    else {
        if (m.kind == AGREE_BYE) agreement->has_left[from] = true;
        if (m.kind != AGREE_FAIL) agreement_store_report(agreement, from, &m);
        agree_handle_message(&agreement->agree, from, &m);
    }
    agreement_apply_and_unlock(agreement);
}
/* Reads the records of this host, and lets time pass; the channel calls it regularly while has_tick. */
static void agreement_on_tick(void *context)
{
    struct agreement *agreement = context;
    agreement_lock_and_tick(agreement);
    agreement_poll_host(agreement);
    agreement_apply_and_unlock(agreement);
}

/* ---- operations ---- */
/* Deaths wait as if the operation were open: peers may complete it and die before this rank has begun it. */
void agreement_hold_deaths(struct agreement *agreement) { atomic_store(&agreement->is_announcing, true); }
void agreement_begin_operation(tutti_comm *comm)
{
    struct agreement *agreement = comm->agreement;
    struct agree_call call = { .number = comm->run_queue.sequence,
        .fingerprint = executor_fingerprint_of_name(executor_message_name(&comm->executor)) };
    memcpy(call.declaration, comm->executor.run.declaration, AGREED_BYTES);
    agreement_lock_and_tick(agreement);
    agreement->missed_rank = -1;
    agree_begin(&agreement->agree, &call);
    atomic_store(&agreement->is_announcing, false);
    agreement_apply_and_unlock(agreement);
}
/* Reports whether this rank waits for `rank`, if that has changed. */
static void agreement_set_waiting(struct agreement *agreement, int rank, bool waits)
{
    if (waits != agreement->is_awaited[rank]) agree_set_waiting(&agreement->agree, rank, waits);
    agreement->is_awaited[rank] = waits;
    agreement->awaits_any |= waits;
}
static void agreement_clear_waiting(struct agreement *agreement)
{
    for (int r = 0; agreement->awaits_any && r < agreement_get_group(agreement)->size; r++)
        agreement_set_waiting(agreement, r, false);
    agreement->awaits_any = false;
}
bool agreement_try_end_operation(struct agreement *agreement, uint64_t number)
{
    agreement_lock_and_tick(agreement);
    agreement_clear_waiting(agreement);
    bool ends = agree_try_end_operation(&agreement->agree, number);
    agreement_apply_and_unlock(agreement);
    return ends;
}
/* Reports to the agree object for which ranks of other hosts this rank waits now. */
static void agreement_update_waiting(struct agreement *agreement)
{
    const struct group *group = agreement_get_group(agreement);
    bool waits[64];
    bool *now = group->size <= 64 ? waits : memory_alloc_zeroed((size_t)group->size, sizeof *now);
    /* Without memory this rank asks no peer this time. */
    if (!now) return;
    memset(now, 0, (size_t)group->size * sizeof *now);
    executor_list_awaited_ranks(&agreement->comm->executor, now);
    for (int r = 0; r < group->size; r++)
        if (!group_rank_is_here(group, r)) agreement_set_waiting(agreement, r, now[r]);
    if (now != waits) free(now);
}
/* Reports an early message: it belongs to a later operation, or its sender makes another call than this rank. */
static void agreement_report_early(void *context, const struct arrival *arrival)
{
    struct agreement *agreement = context;
    uint64_t operation = arrival->name.operation;
    if (operation >= OPERATION_OF_WINDOW || group_rank_is_here(agreement_get_group(agreement), arrival->source)) return;
    int32_t ahead = (int32_t)((uint32_t)operation + 1 - (uint32_t)agreement->agree.begun);
    agree_on_first_message(&agreement->agree, arrival->source, agreement->agree.begun + (uint64_t)(int64_t)ahead,
        executor_fingerprint_of_name(operation));
}
void agreement_poll(tutti_comm *comm)
{
    struct agreement *agreement = comm->agreement;
    int64_t now_ms = clock_ms();
    if (now_ms < agreement->checked_ms + POLL_MS) return;
    agreement->checked_ms = now_ms;
    agreement_lock_and_tick(agreement);
    agreement_poll_host(agreement);
    if (comm->run_queue.head_has_begun) {
        int missed = executor_find_missing_index(&comm->executor);
        agreement->missed_rank = missed < 0 ? -1 : group_rank_at_index(&comm->group, missed);
        agreement_update_waiting(agreement);
        matching_visit_arrivals(&comm->router->matching, agreement_report_early, agreement);
    }
    agreement_apply_and_unlock(agreement);
}
/* Returns true if the last report of `rank` came during operation `number` and names a rank that has not begun it:
   `rank` itself, or its missed_rank. */
static bool agreement_knows_absent(const struct agreement *agreement, uint64_t number, int rank)
{
    const struct peer_report *report = &agreement->reports[rank];
    bool misses_another = report->begun == number && report->missed_rank >= 0;
    return report->number == number && (report->begun < number || misses_another);
}
bool agreement_ask_before_timeout(struct agreement *agreement, uint64_t number, int64_t timeout_ms)
{
    int64_t answer_ms = timeout_ms / 4;
    bool lacks_answer = false, known = false;
    if (answer_ms < ANSWER_LEAST_MS) answer_ms = ANSWER_LEAST_MS;
    if (answer_ms > ANSWER_MOST_MS) answer_ms = ANSWER_MOST_MS;
    agreement_lock_and_tick(agreement);
    if (agreement->late_operation != number) {
        agreement->late_operation = number;
        agreement->asked_ms = agreement->agree.now_ms;
        agree_ask_now(&agreement->agree);
    }
    int64_t passed_ms = agreement->agree.now_ms - agreement->asked_ms;
    for (int r = 0; r < agreement_get_group(agreement)->size; r++) {
        lacks_answer |= agreement->is_awaited[r] && agreement->reports[r].at_ms < agreement->asked_ms;
        known |= agreement_knows_absent(agreement, number, r);
    }
    agreement_apply_and_unlock(agreement);
    return (lacks_answer && passed_ms < answer_ms) || (!known && passed_ms < 2 * answer_ms);
}
void agreement_list_absent(struct agreement *agreement, uint64_t number, bool *absent)
{
    pthread_mutex_lock(&agreement->lock);
    for (int r = 0; r < agreement_get_group(agreement)->size; r++)
        if (agreement_knows_absent(agreement, number, r))
            absent[agreement->reports[r].begun < number ? r : agreement->reports[r].missed_rank] = true;
    pthread_mutex_unlock(&agreement->lock);
}

/* ---- failing ---- */
void agreement_propose_cause(struct agreement *agreement, const struct agree_cause *cause)
{
    struct agree_cause mine = *cause;
    agreement_lock_and_tick(agreement);
    mine.reporter = agreement_get_group(agreement)->rank;
    mine.operation = agreement->agree.ended + 1;
    agree_report_cause(&agreement->agree, &mine);
    agreement_apply_and_unlock(agreement);
}
bool agreement_has_lost_ranks(const struct agreement *agreement) { return atomic_load(&agreement->has_lost); }
bool agreement_rank_has_left(const struct agreement *agreement, int rank)
{
    return atomic_load(&agreement->has_left[rank]);
}
struct remote_states *agreement_get_states(struct agreement *agreement) { return &agreement->states; }
bool agreement_is_failing(const struct agreement *agreement) { return atomic_load(&agreement->is_failing); }
bool agreement_has_decided(const struct agreement *agreement) { return atomic_load(&agreement->has_decided); }
void agreement_get_decision(struct agreement *agreement, struct agree_cause *out)
{
    pthread_mutex_lock(&agreement->lock);
    *out = agreement->agree.held;
    pthread_mutex_unlock(&agreement->lock);
}

/* ---- lifetime ---- */
/* A pending decision comes within half a second (AGREE_TAKE_OVER_MS). This rank sends it before it leaves. */
void agreement_announce_leaving(tutti_comm *comm)
{
    struct agreement *agreement = comm->agreement;
    for (int64_t n = 0; agreement_is_failing(agreement) && !agreement_has_decided(agreement); n++)
        group_back_off(&comm->group, n);
    agreement_lock_and_tick(agreement);
    agree_leave(&agreement->agree);
    agreement_apply_and_unlock(agreement);
}
void agreement_destroy(struct agreement *agreement)
{
    if (!agreement) return;
    channel_close(agreement->channel);
    remote_states_finish(&agreement->states);
    pthread_mutex_destroy(&agreement->lock);
    free((void *)(uintptr_t)agreement->agree.layout.host_of);
    free(agreement->agree.layout.peers);
    free(agreement->agree.layout.speakers);
    free(agreement->reports);
    free(agreement->has_died);
    free(agreement->is_awaited);
    free((void *)agreement->has_left);
    free(agreement);
}
/* Allocates the tables with an entry for each rank or host, and initializes the agree object. */
static tutti_status agreement_init_tables(struct agreement *agreement)
{
    const struct group *group = agreement_get_group(agreement);
    size_t size = (size_t)group->size;
    int *host_of_rank = memory_alloc_zeroed(size, sizeof *host_of_rank);
    struct agree_peer *peers = memory_alloc_zeroed(size, sizeof *peers);
    int *speakers = memory_alloc_zeroed((size_t)group->layout->hosts, sizeof *speakers);
    agreement->agree.layout =
        (struct agree_layout){ group->rank, group->size, group->layout->hosts, host_of_rank, peers, speakers };
    agreement->reports = memory_alloc_zeroed(size, sizeof *agreement->reports);
    agreement->has_died = memory_alloc_zeroed(size, sizeof *agreement->has_died);
    agreement->is_awaited = memory_alloc_zeroed(size, sizeof *agreement->is_awaited);
    agreement->has_left = memory_alloc_zeroed(size, sizeof *agreement->has_left);
    if (!host_of_rank || !peers || !speakers || !agreement->reports || !agreement->has_died || !agreement->is_awaited
        || !agreement->has_left)
        return status_fail(TUTTI_NO_MEMORY, "no memory for the agreement of %d ranks", group->size);
    for (int r = 0; r < group->size; r++) host_of_rank[r] = layout_host(group->layout, r);
    struct agree_layout layout = agreement->agree.layout;
    agree_init(&agreement->agree, &layout);
    agreement->missed_rank = -1;
    return TUTTI_OK;
}
/* Creates the agreement and opens its channel to all ranks. After an error *out is incomplete, or NULL. */
static tutti_status agreement_allocate_and_open(tutti_comm *comm, struct agreement **out)
{
    const struct group *group = &comm->group;
    struct agreement *agreement = memory_alloc_zeroed(1, sizeof *agreement);
    *out = agreement;
    if (!agreement) return status_fail(TUTTI_NO_MEMORY, "no memory for the agreement of %d ranks", group->size);
    agreement->comm = comm;
    pthread_mutex_init(&agreement->lock, NULL);
    remote_states_init(&agreement->states, comm);
    TRY(agreement_init_tables(agreement));
    /* Callbacks that come already wait for the lock until the channel is stored, or use no channel before the join. */
    pthread_mutex_lock(&agreement->lock);
    struct route_map map = { group->size, group->layout->hosts, group->host, agreement->agree.layout.host_of };
    tutti_status status = channel_open(group->members[0].token, group->rank, group->peers, group->size,
        group_uses_links(group) ? &map : NULL,
        &(struct channel_user){ agreement_on_message, agreement_on_tick, agreement }, &agreement->channel);
    agreement->states.channel = agreement->channel;
    pthread_mutex_unlock(&agreement->lock);
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
