/* Applies each input to the state of agree.h. Messages that are due are flags of their peers, and agree_next_message
   composes them when it sends them. So no queue can overflow, and a message always has the current state. */
#include "backend/agree/agree.h"
#include "include/tutti.h"
#include <assert.h>
#include <string.h>

/* A peer that is LOST or LEFT is gone. WAITS means that this rank waits for the peer, and SAID that the peer has sent
   its cause. OWES and the three bits above mean that an ASK, SAY, FAIL or BYE to the peer is due. */
enum { LOST = 1, LEFT = 2, GONE = LOST | LEFT, WAITS = 4, SAID = 8, OWES = 16, OWES_ALL = 15 * OWES };
static uint16_t message_kind_owed_flag(enum agree_message_kind kind) { return (uint16_t)(OWES << kind); }
static void flags_set(uint16_t *flags, int these) { *flags = (uint16_t)(*flags | these); }
static void flags_clear(uint16_t *flags, int these) { *flags = (uint16_t)(*flags & ~these); }

/* ---- peers and speakers ---- */
static int agree_own_host(const struct agree *a) { return a->layout.host_of[a->layout.rank]; }
static bool agree_peer_is_remote(const struct agree *a, int peer)
{
    return a->layout.host_of[peer] != agree_own_host(a);
}
static bool agree_peer_is_gone(const struct agree *a, int peer) { return a->layout.peers[peer].flags & GONE; }
static bool agree_is_speaker(const struct agree *a) { return a->layout.speakers[agree_own_host(a)] == a->layout.rank; }
static void agree_peer_owe_message(struct agree *a, int peer, enum agree_message_kind kind)
{
    struct agree_peer *p = &a->layout.peers[peer];
    if (agree_peer_is_gone(a, peer)) return;
    if (!(p->flags & OWES_ALL)) a->owed++;
    flags_set(&p->flags, message_kind_owed_flag(kind));
}
/* Makes the first rank of the host from `from` on that is not gone its speaker. */
static void agree_choose_speaker(struct agree *a, int host, int from)
{
    int r = from;
    while (r < a->layout.size && (a->layout.host_of[r] != host || agree_peer_is_gone(a, r))) r++;
    a->layout.speakers[host] = r < a->layout.size ? r : -1;
}
void agree_init(struct agree *out, const struct agree_layout *layout)
{
    memset(out, 0, sizeof *out);
    out->layout = *layout;
    out->barred = UINT64_MAX;
    memset(layout->peers, 0, (size_t)layout->size * sizeof *layout->peers);
    for (int h = 0; h < layout->hosts; h++) layout->speakers[h] = -1;
    for (int r = layout->size - 1; r >= 0; r--) layout->speakers[layout->host_of[r]] = r;
}

/* ---- causes ---- */
bool agree_cause_precedes(const struct agree_cause *x, const struct agree_cause *y)
{
    if (x->kind != y->kind) return x->kind < y->kind;
    if (x->operation != y->operation) return x->operation < y->operation;
    return x->reporter < y->reporter;
}
static bool agree_host_sent_same_cause(const struct agree *a, int host)
{
    int speaker = a->layout.speakers[host];
    if (host == agree_own_host(a) || speaker < 0) return true;
    const struct agree_peer *p = &a->layout.peers[speaker];
    /* These three fields identify a cause, because a rank finds at most one. */
    return p->flags & SAID && p->kind == a->held.kind && p->operation == a->held.operation
        && p->reporter == a->held.reporter;
}
static bool agree_causes_are_same(const struct agree_cause *x, const struct agree_cause *y)
{
    return !agree_cause_precedes(x, y) && !agree_cause_precedes(y, x);
}
static void agree_decide_if_unanimous(struct agree *a)
{
    if (a->state != AGREE_KNOWS || !agree_is_speaker(a)) return;
    for (int h = 0; h < a->layout.hosts; h++)
        if (!agree_host_sent_same_cause(a, h)) return;
    a->state = AGREE_DECIDES;
}
static void deadline_set_earlier(int64_t *at_ms, int64_t than_ms)
{
    if (!*at_ms || than_ms < *at_ms) *at_ms = than_ms;
}
/* Makes the speaker send its cause to the other speakers, after the cause or the speaker has changed. */
static void agree_spread_cause(struct agree *a)
{
    if (agree_is_speaker(a)) {
        deadline_set_earlier(&a->settle_at_ms, a->now_ms + AGREE_SETTLE_MS);
        deadline_set_earlier(&a->repeat_at_ms, a->now_ms + AGREE_REPEAT_MS);
    }
    for (int h = 0; agree_is_speaker(a) && h < a->layout.hosts; h++)
        if (h != agree_own_host(a) && a->layout.speakers[h] >= 0)
            agree_peer_owe_message(a, a->layout.speakers[h], AGREE_FAIL);
    agree_decide_if_unanimous(a);
}
static bool agree_knows_failure(const struct agree *a) { return a->state >= AGREE_KNOWS && a->state <= AGREE_OVER; }
static void agree_bar_operation(struct agree *a, uint64_t operation)
{
    if (operation < a->barred) a->barred = operation;
}
/* A rank reports a cause only while it knows of no failure, so every cause was found before its finder knew another. */
void agree_report_cause(struct agree *a, const struct agree_cause *cause)
{
    if (a->state != AGREE_RUNS) return;
    a->held = *cause;
    a->state = AGREE_CLAIMS;
    agree_bar_operation(a, cause->operation);
}
/* A rank without a decision adopts every decision that it receives, whatever cause it holds. */
static void agree_handle_cause(struct agree *a, const struct agree_cause *cause, bool decided)
{
    agree_bar_operation(a, cause->operation);
    if (decided && a->state < AGREE_DECIDES) {
        a->held = *cause;
        a->state = AGREE_DECIDES;
    } else if (a->state == AGREE_RUNS || (a->state == AGREE_CLAIMS && agree_cause_precedes(cause, &a->held))) {
        a->held = *cause;
        a->state = AGREE_CLAIMS;
    } else if (a->state == AGREE_KNOWS && agree_cause_precedes(cause, &a->held)) {
        a->held = *cause;
        agree_spread_cause(a);
    }
}
/* A rank drops its own cause if another rank of its host has written the failure record first. */
void agree_on_failure_record(struct agree *a, const struct agree_cause *record)
{
    if (a->state != AGREE_RUNS && a->state != AGREE_CLAIMS) return;
    bool mine = a->state == AGREE_CLAIMS && a->held.reporter == a->layout.rank;
    if (a->state == AGREE_RUNS || mine || agree_cause_precedes(record, &a->held)) a->held = *record;
    agree_bar_operation(a, record->operation);
    a->state = AGREE_KNOWS;
    /* agree_spread_cause sets earlier times if this rank is the speaker. */
    a->settle_at_ms = a->now_ms + AGREE_TAKE_OVER_MS;
    a->repeat_at_ms = a->now_ms + AGREE_STAND_IN_MS;
    agree_spread_cause(a);
}
void agree_on_decision_record(struct agree *a, const struct agree_cause *record)
{
    if (a->state >= AGREE_OVER) return;
    bool same = a->state >= AGREE_KNOWS && agree_causes_are_same(record, &a->held);
    a->held = *record;
    agree_bar_operation(a, record->operation);
    a->state = AGREE_OVER;
    a->decided = 1;
    if (!same) agree_spread_cause(a);
}

/* ---- causes that this object finds itself ---- */
static const struct agree_call *agree_recall_call(const struct agree *a, uint64_t number)
{
    const struct agree_call *call = &a->history[number % AGREE_HISTORY];
    return number && call->number == number ? call : NULL;
}
static struct agree_cause agree_make_cause(const struct agree *a, enum agree_kind kind, tutti_status status, int other,
    uint64_t operation)
{
    struct agree_cause cause;
    memset(&cause, 0, sizeof cause);
    cause.kind = kind;
    cause.status = status;
    cause.reporter = a->layout.rank;
    cause.other = other;
    cause.operation = operation;
    const struct agree_call *open = a->begun > a->ended ? agree_recall_call(a, a->begun) : NULL;
    if (open) cause.calls[0] = *open;
    return cause;
}
/* Fails with the first call that differs, because later calls differ only as its consequence. */
static void agree_compare_calls(struct agree *a, int peer, const struct agree_message *m)
{
    const struct agree_call *theirs = NULL;
    for (int i = 0; i < AGREE_HISTORY; i++) {
        const struct agree_call *call = &m->calls[i], *mine = agree_recall_call(a, call->number);
        bool differs = mine && mine->fingerprint != call->fingerprint;
        if (differs && (!theirs || call->number < theirs->number)) theirs = call;
    }
    if (!theirs) return;
    struct agree_cause cause = agree_make_cause(a, AGREE_DISAGREEMENT, TUTTI_MISMATCH, peer, theirs->number);
    cause.calls[0] = *agree_recall_call(a, theirs->number);
    cause.calls[1] = *theirs;
    agree_bar_operation(a, theirs->number);
    agree_report_cause(a, &cause);
}
static uint64_t message_last_operation(const struct agree_message *m)
{
    uint64_t last = 0;
    for (int i = 0; i < AGREE_HISTORY; i++)
        if (m->calls[i].number > last) last = m->calls[i].number;
    return last;
}
static void agree_check_left_peer(struct agree *a, int peer)
{
    const struct agree_peer *p = &a->layout.peers[peer];
    if (!(p->flags & LEFT) || !(p->flags & WAITS) || p->operation >= a->begun) return;
    struct agree_cause cause = agree_make_cause(a, AGREE_LEFT_ALONE, TUTTI_PEER_LOST, peer, a->begun);
    agree_report_cause(a, &cause);
}
static void agree_replace_speaker(struct agree *a, int host, int from)
{
    agree_choose_speaker(a, host, from);
    int speaker = a->layout.speakers[host];
    if (!agree_knows_failure(a) || !agree_is_speaker(a)) return;
    /* A new speaker of this rank's own host is this rank. */
    if (host == agree_own_host(a)) agree_spread_cause(a);
    else if (speaker >= 0) agree_peer_owe_message(a, speaker, AGREE_FAIL);
    agree_decide_if_unanimous(a);
}
static void remove_peer(struct agree *a, int peer, int flag)
{
    struct agree_peer *p = &a->layout.peers[peer];
    int host = a->layout.host_of[peer];
    if (p->flags & OWES_ALL) a->owed--;
    flags_clear(&p->flags, OWES_ALL);
    flags_set(&p->flags, flag);
    if (a->layout.speakers[host] == peer) agree_replace_speaker(a, host, peer);
}
void agree_on_peer_lost(struct agree *a, int peer)
{
    if (peer == a->layout.rank) return;
    bool known = agree_peer_is_gone(a, peer);
    remove_peer(a, peer, LOST);
    struct agree_cause cause = agree_make_cause(a, AGREE_LOST, TUTTI_PEER_LOST, peer, a->ended + 1);
    if (!known) agree_report_cause(a, &cause);
}
void agree_on_peer_left(struct agree *a, int peer, uint64_t last)
{
    a->layout.peers[peer].operation = last;
    remove_peer(a, peer, LEFT);
    agree_check_left_peer(a, peer);
}

/* ---- operations ---- */
void agree_begin(struct agree *a, const struct agree_call *call)
{
    a->history[call->number % AGREE_HISTORY] = *call;
    a->begun = call->number;
    a->ask_at_ms = 0;
}
bool agree_on_first_message(struct agree *a, int peer, uint64_t number, uint64_t fingerprint)
{
    if (number > a->begun) return false;
    const struct agree_call *mine = agree_recall_call(a, number);
    if (!mine || mine->fingerprint == fingerprint) return true;
    agree_bar_operation(a, number);                                     /* fails in any case */
    if (a->state != AGREE_RUNS || a->suspect.operation) return true;
    a->suspect = (struct agree_suspect){ number, fingerprint, a->now_ms + AGREE_SUSPECT_MS, peer };
    agree_peer_owe_message(a, peer, AGREE_ASK);
    return true;
}
void agree_set_waiting(struct agree *a, int peer, bool waits)
{
    struct agree_peer *p = &a->layout.peers[peer];
    assert(agree_peer_is_remote(a, peer));
    if (!waits) { flags_clear(&p->flags, WAITS); return; }
    flags_set(&p->flags, WAITS);
    if (!a->ask_at_ms) {
        a->ask_gap_ms = AGREE_ASK_MS;
        a->ask_at_ms = a->now_ms + AGREE_ASK_MS;
    }
    agree_check_left_peer(a, peer);
}
bool agree_may_end_operation(struct agree *a, uint64_t number)
{
    if (a->state == AGREE_LEFT || number >= a->barred) return false;
    a->ended = number;
    return true;
}
void agree_leave(struct agree *a)
{
    for (int r = 0; r < a->layout.size; r++) {
        if (!agree_peer_is_remote(a, r)) continue;
        /* A rank that has not decided must not decide without this rank. */
        if (a->decided) agree_peer_owe_message(a, r, AGREE_FAIL);
        agree_peer_owe_message(a, r, AGREE_BYE);
    }
    a->state = AGREE_LEFT;
}

/* ---- messages ---- */
void agree_handle_message(struct agree *a, int peer, const struct agree_message *m)
{
    /* A message after the sender's BYE is ignored. */
    if (a->state == AGREE_LEFT || a->layout.peers[peer].flags & LEFT) return;
    if (a->state == AGREE_OVER && !m->decided) agree_peer_owe_message(a, peer, AGREE_FAIL);
    else if (m->kind == AGREE_ASK) agree_peer_owe_message(a, peer, AGREE_ANSWER);
    if (m->kind != AGREE_FAIL) agree_compare_calls(a, peer, m);
    if (m->kind == AGREE_BYE) agree_on_peer_left(a, peer, message_last_operation(m));
    if (m->kind != AGREE_FAIL) return;
    struct agree_peer *p = &a->layout.peers[peer];
    p->operation = m->cause.operation;
    p->kind = (uint16_t)m->cause.kind;
    p->reporter = m->cause.reporter;
    flags_set(&p->flags, SAID);
    agree_handle_cause(a, &m->cause, m->decided);
    agree_decide_if_unanimous(a);
}
static void agree_compose_message(const struct agree *a, enum agree_message_kind kind, struct agree_message *out)
{
    memset(out, 0, sizeof *out);
    out->kind = kind;
    if (kind != AGREE_FAIL) { memcpy(out->calls, a->history, sizeof out->calls); return; }
    out->cause = a->held;
    out->decided = a->decided;
}
/* A peer gets its messages in this order, with BYE as the last. */
bool agree_next_message(struct agree *a, int *to, struct agree_message *out)
{
    static const enum agree_message_kind order[AGREE_MESSAGES] = { AGREE_FAIL, AGREE_ANSWER, AGREE_ASK, AGREE_BYE };
    if (!a->owed) return false;
    while (!(a->layout.peers[a->cursor].flags & OWES_ALL)) a->cursor = (a->cursor + 1) % (uint64_t)a->layout.size;
    struct agree_peer *p = &a->layout.peers[a->cursor];
    int i = 0;
    while (!(p->flags & message_kind_owed_flag(order[i]))) i++;
    flags_clear(&p->flags, message_kind_owed_flag(order[i]));
    if (!(p->flags & OWES_ALL)) a->owed--;
    *to = (int)a->cursor;
    agree_compose_message(a, order[i], out);
    return true;
}

/* ---- time ---- */
static void agree_ask_awaited_peers(struct agree *a)
{
    bool any = false;
    for (int r = 0; r < a->layout.size; r++) {
        if (!(a->layout.peers[r].flags & WAITS) || agree_peer_is_gone(a, r)) continue;
        agree_peer_owe_message(a, r, AGREE_ASK);
        any = true;
    }
    a->ask_gap_ms = a->ask_gap_ms * 2 < AGREE_ASK_MOST_MS ? a->ask_gap_ms * 2 : AGREE_ASK_MOST_MS;
    a->ask_at_ms = any ? a->now_ms + a->ask_gap_ms : 0;
}
void agree_ask_now(struct agree *a)
{
    if (a->state == AGREE_RUNS) agree_ask_awaited_peers(a);
}
/* Reports the suspect's different call by its fingerprint alone, because the suspect has not answered. */
static void agree_accuse_suspect(struct agree *a)
{
    const struct agree_call *mine = agree_recall_call(a, a->suspect.operation);
    int peer = (int)a->suspect.peer;
    struct agree_cause cause = agree_make_cause(a, AGREE_DISAGREEMENT, TUTTI_MISMATCH, peer, a->suspect.operation);
    if (mine) cause.calls[0] = *mine;
    cause.calls[1].fingerprint = a->suspect.fingerprint;
    a->suspect.operation = 0;
    agree_report_cause(a, &cause);
}
/* Repeats FAIL to hosts whose speaker has not sent the same cause. The speaker may be stopped, so each repetition
   reaches twice as many ranks of its host. */
static void agree_repeat_failure(struct agree *a)
{
    uint64_t most = (uint64_t)1 << ++a->repeats;
    a->repeat_at_ms = 0;
    for (int h = 0; h < a->layout.hosts; h++) {
        uint64_t told = 0;
        int first = a->layout.speakers[h];
        if (first < 0 || agree_host_sent_same_cause(a, h)) continue;
        if (a->repeats < AGREE_REPEATS) a->repeat_at_ms = a->now_ms + AGREE_REPEAT_MS;
        for (int r = first; r < a->layout.size && told < most; r++)
            if (a->layout.host_of[r] == h && !agree_peer_is_gone(a, r)) {
                agree_peer_owe_message(a, r, AGREE_FAIL);
                told++;
            }
    }
}
void agree_advance_time(struct agree *a, int64_t now_ms)
{
    a->now_ms = now_ms;
    if (a->state == AGREE_RUNS && a->ask_at_ms && now_ms >= a->ask_at_ms) agree_ask_awaited_peers(a);
    if (a->state == AGREE_RUNS && a->suspect.operation && now_ms >= a->suspect.until_ms) agree_accuse_suspect(a);
    if (a->state != AGREE_KNOWS) return;
    if (now_ms >= a->settle_at_ms) a->state = AGREE_DECIDES;
    else if (a->repeat_at_ms && now_ms >= a->repeat_at_ms) agree_repeat_failure(a);
}
