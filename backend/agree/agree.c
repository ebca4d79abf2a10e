/* Applies each input to the state of agree.h. Messages that are due are flags of their peers, and agree_next_message
   composes them when it sends them. So no queue can overflow, and a message always has the current state. */
#include "backend/agree/agree.h"
#include "include/tutti.h"
#include <assert.h>
#include <string.h>

/* A peer that is LOST or LEFT is gone. WAITS means that this rank waits for the peer, and SENT_CAUSE that the peer has
   sent its cause. OWES and the three bits above mean that an ASK, ANSWER, FAIL or BYE to the peer is due. */
enum { LOST = 1, LEFT = 2, GONE = LOST | LEFT, WAITS = 4, SENT_CAUSE = 8, OWES = 16, OWES_ALL = 15 * OWES };
/* Returns the flag which means that a message of this kind is due. */
static uint16_t message_kind_owed_flag(enum agree_message_kind kind) { return (uint16_t)(OWES << kind); }
static void flags_set(uint16_t *flags, int these) { *flags = (uint16_t)(*flags | these); }
static void flags_clear(uint16_t *flags, int these) { *flags = (uint16_t)(*flags & ~these); }

/* ---- peers and speakers ---- */
static int agree_own_host(const struct agree *agree) { return agree->layout.host_of[agree->layout.rank]; }
static bool agree_peer_is_remote(const struct agree *agree, int peer)
{
    return agree->layout.host_of[peer] != agree_own_host(agree);
}
static bool agree_peer_is_gone(const struct agree *agree, int peer) { return agree->layout.peers[peer].flags & GONE; }
static bool agree_is_speaker(const struct agree *agree)
{
    return agree->layout.speakers[agree_own_host(agree)] == agree->layout.rank;
}
/* Makes a message of this kind to the peer due, unless the peer is gone. */
static void agree_peer_owe_message(struct agree *agree, int peer, enum agree_message_kind kind)
{
    struct agree_peer *p = &agree->layout.peers[peer];
    if (agree_peer_is_gone(agree, peer)) return;
    if (!(p->flags & OWES_ALL)) agree->owed++;
    flags_set(&p->flags, message_kind_owed_flag(kind));
}
/* Makes the first rank of the host, from rank `from` on, that is not gone the speaker of the host; -1 if all are
   gone. */
static void agree_choose_speaker(struct agree *agree, int host, int from)
{
    int r = from;
    while (r < agree->layout.size && (agree->layout.host_of[r] != host || agree_peer_is_gone(agree, r))) r++;
    agree->layout.speakers[host] = r < agree->layout.size ? r : -1;
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
/* Returns true if the speaker of a host has sent the cause that this rank holds, if the host has no speaker left, or if
   it is this rank's host. */
static bool agree_host_sent_same_cause(const struct agree *agree, int host)
{
    int speaker = agree->layout.speakers[host];
    if (host == agree_own_host(agree) || speaker < 0) return true;
    const struct agree_peer *peer = &agree->layout.peers[speaker];
    /* These three fields identify a cause, because a rank finds at most one. */
    return peer->flags & SENT_CAUSE && peer->kind == agree->held.kind && peer->operation == agree->held.operation
        && peer->reporter == agree->held.reporter;
}
static bool agree_causes_are_same(const struct agree_cause *x, const struct agree_cause *y)
{
    return !agree_cause_precedes(x, y) && !agree_cause_precedes(y, x);
}
/* Makes a speaker decide if the speakers of all other hosts have sent the cause that it holds. */
static void agree_decide_if_unanimous(struct agree *agree)
{
    if (agree->state != AGREE_KNOWS || !agree_is_speaker(agree)) return;
    for (int h = 0; h < agree->layout.hosts; h++)
        if (!agree_host_sent_same_cause(agree, h)) return;
    agree->state = AGREE_DECIDES;
}
/* Sets *at_ms to than_ms if it is unset (0) or later. */
static void deadline_set_earlier(int64_t *at_ms, int64_t than_ms)
{
    if (!*at_ms || than_ms < *at_ms) *at_ms = than_ms;
}
/* Makes this rank, if it is the speaker, send its cause to the other speakers, after the cause or the speaker has
   changed. */
static void agree_spread_cause(struct agree *agree)
{
    if (agree_is_speaker(agree)) {
        deadline_set_earlier(&agree->settle_at_ms, agree->now_ms + AGREE_SETTLE_MS);
        deadline_set_earlier(&agree->repeat_at_ms, agree->now_ms + AGREE_REPEAT_MS);
    }
    for (int h = 0; agree_is_speaker(agree) && h < agree->layout.hosts; h++)
        if (h != agree_own_host(agree) && agree->layout.speakers[h] >= 0)
            agree_peer_owe_message(agree, agree->layout.speakers[h], AGREE_FAIL);
    agree_decide_if_unanimous(agree);
}
static bool agree_knows_failure(const struct agree *agree)
{
    return agree->state >= AGREE_KNOWS && agree->state <= AGREE_OVER;
}
/* Makes `operation` and later ones fail on this rank. */
static void agree_bar_operation(struct agree *agree, uint64_t operation)
{
    if (operation < agree->barred) agree->barred = operation;
}
/* A rank reports a cause only while it knows of no failure, so every cause was found before its finder knew another. */
void agree_report_cause(struct agree *agree, const struct agree_cause *cause)
{
    if (agree->state != AGREE_RUNS) return;
    agree->held = *cause;
    agree->state = AGREE_CLAIMS;
    agree_bar_operation(agree, cause->operation);
}
/* Handles the cause in a FAIL of a peer: adopts it if it precedes the cause that this rank holds, or is a decision. A
   rank without a decision adopts every decision, whatever cause it holds. */
static void agree_handle_cause(struct agree *agree, const struct agree_cause *cause, bool decided)
{
    agree_bar_operation(agree, cause->operation);
    if (decided && agree->state < AGREE_DECIDES) {
        agree->held = *cause;
        agree->state = AGREE_DECIDES;
    } else if (agree->state == AGREE_RUNS
        || (agree->state == AGREE_CLAIMS && agree_cause_precedes(cause, &agree->held))) {
        agree->held = *cause;
        agree->state = AGREE_CLAIMS;
    } else if (agree->state == AGREE_KNOWS && agree_cause_precedes(cause, &agree->held)) {
        agree->held = *cause;
        agree_spread_cause(agree);
    }
}
/* A rank drops its own cause if another rank of its host has written the failure record first. */
void agree_on_failure_record(struct agree *agree, const struct agree_cause *record)
{
    if (agree->state != AGREE_RUNS && agree->state != AGREE_CLAIMS) return;
    bool mine = agree->state == AGREE_CLAIMS && agree->held.reporter == agree->layout.rank;
    if (agree->state == AGREE_RUNS || mine || agree_cause_precedes(record, &agree->held)) agree->held = *record;
    agree_bar_operation(agree, record->operation);
    agree->state = AGREE_KNOWS;
    /* agree_spread_cause sets earlier times if this rank is the speaker. */
    agree->settle_at_ms = agree->now_ms + AGREE_TAKE_OVER_MS;
    agree->repeat_at_ms = agree->now_ms + AGREE_STAND_IN_MS;
    agree_spread_cause(agree);
}
void agree_on_decision_record(struct agree *agree, const struct agree_cause *record)
{
    if (agree->state >= AGREE_OVER) return;
    bool same = agree->state >= AGREE_KNOWS && agree_causes_are_same(record, &agree->held);
    agree->held = *record;
    agree_bar_operation(agree, record->operation);
    agree->state = AGREE_OVER;
    agree->decided = 1;
    if (!same) agree_spread_cause(agree);
}

/* ---- causes that this object finds itself ---- */
/* Returns this rank's call of operation `number`, or NULL if it is not in the history. */
static const struct agree_call *agree_recall_call(const struct agree *agree, uint64_t number)
{
    const struct agree_call *call = &agree->history[number % AGREE_HISTORY];
    return number && call->number == number ? call : NULL;
}
/* Returns a cause that this rank reports about the rank `other`, with the call that is open on this rank, if any. */
static struct agree_cause agree_make_cause(const struct agree *agree, enum agree_kind kind, tutti_status status,
    int other, uint64_t operation)
{
    struct agree_cause cause;
    memset(&cause, 0, sizeof cause);
    cause.kind = kind;
    cause.status = status;
    cause.reporter = agree->layout.rank;
    cause.other = other;
    cause.operation = operation;
    const struct agree_call *open = agree->begun > agree->ended ? agree_recall_call(agree, agree->begun) : NULL;
    if (open) cause.calls[0] = *open;
    return cause;
}
/* Compares the calls in a peer's message with this rank's, and reports the first that differs. Later calls differ only
   as its consequence. */
static void agree_compare_calls(struct agree *agree, int peer, const struct agree_message *m)
{
    const struct agree_call *theirs = NULL;
    for (int i = 0; i < AGREE_HISTORY; i++) {
        const struct agree_call *call = &m->calls[i], *mine = agree_recall_call(agree, call->number);
        bool differs = mine && mine->fingerprint != call->fingerprint;
        if (differs && (!theirs || call->number < theirs->number)) theirs = call;
    }
    if (!theirs) return;
    struct agree_cause cause = agree_make_cause(agree, AGREE_DISAGREEMENT, TUTTI_MISMATCH, peer, theirs->number);
    cause.calls[0] = *agree_recall_call(agree, theirs->number);
    cause.calls[1] = *theirs;
    agree_bar_operation(agree, theirs->number);
    agree_report_cause(agree, &cause);
}
/* Returns the highest operation number in a message. */
static uint64_t message_last_operation(const struct agree_message *m)
{
    uint64_t last = 0;
    for (int i = 0; i < AGREE_HISTORY; i++)
        if (m->calls[i].number > last) last = m->calls[i].number;
    return last;
}
/* Reports a cause if this rank waits for a peer that has left before this rank's operation. */
static void agree_check_left_peer(struct agree *agree, int peer)
{
    const struct agree_peer *p = &agree->layout.peers[peer];
    if (!(p->flags & LEFT) || !(p->flags & WAITS) || p->operation >= agree->begun) return;
    struct agree_cause cause = agree_make_cause(agree, AGREE_LEFT_ALONE, TUTTI_PEER_LOST, peer, agree->begun);
    agree_report_cause(agree, &cause);
}
/* Chooses the next speaker of a host, from rank `from` on. If this rank is a speaker and knows of a failure, it sends
   FAIL again, because the last speaker may not have passed FAIL on. */
static void agree_replace_speaker(struct agree *agree, int host, int from)
{
    agree_choose_speaker(agree, host, from);
    int speaker = agree->layout.speakers[host];
    if (!agree_knows_failure(agree) || !agree_is_speaker(agree)) return;
    /* A new speaker of this rank's own host is this rank. */
    if (host == agree_own_host(agree)) agree_spread_cause(agree);
    else if (speaker >= 0) agree_peer_owe_message(agree, speaker, AGREE_FAIL);
    agree_decide_if_unanimous(agree);
}
/* Marks a peer as gone (flag LOST or LEFT), drops the messages that are due to it, and replaces it as speaker. */
static void agree_remove_peer(struct agree *agree, int peer, int flag)
{
    struct agree_peer *p = &agree->layout.peers[peer];
    int host = agree->layout.host_of[peer];
    if (p->flags & OWES_ALL) agree->owed--;
    flags_clear(&p->flags, OWES_ALL);
    flags_set(&p->flags, flag);
    if (agree->layout.speakers[host] == peer) agree_replace_speaker(agree, host, peer);
}
void agree_on_peer_lost(struct agree *agree, int peer, const char *detail)
{
    if (peer == agree->layout.rank) return;
    bool known = agree_peer_is_gone(agree, peer);
    agree_remove_peer(agree, peer, LOST);
    struct agree_cause cause = agree_make_cause(agree, AGREE_LOST, TUTTI_PEER_LOST, peer, agree->ended + 1);
    memcpy(cause.detail, detail, strnlen(detail, sizeof cause.detail - 1));
    if (!known) agree_report_cause(agree, &cause);
}
void agree_on_peer_left(struct agree *agree, int peer, uint64_t last)
{
    agree->layout.peers[peer].operation = last;
    agree_remove_peer(agree, peer, LEFT);
    agree_check_left_peer(agree, peer);
}

/* ---- operations ---- */
void agree_begin(struct agree *agree, const struct agree_call *call)
{
    agree->history[call->number % AGREE_HISTORY] = *call;
    agree->begun = call->number;
    agree->ask_at_ms = 0;
}
bool agree_on_first_message(struct agree *agree, int peer, uint64_t number, uint64_t fingerprint)
{
    if (number > agree->begun) return false;
    const struct agree_call *mine = agree_recall_call(agree, number);
    if (!mine || mine->fingerprint == fingerprint) return true;
    agree_bar_operation(agree, number);                                     /* fails in any case */
    if (agree->state != AGREE_RUNS || agree->suspect.operation) return true;
    agree->suspect = (struct agree_suspect){ number, fingerprint, agree->now_ms + AGREE_SUSPECT_MS, peer };
    agree_peer_owe_message(agree, peer, AGREE_ASK);
    return true;
}
void agree_set_waiting(struct agree *agree, int peer, bool waits)
{
    struct agree_peer *p = &agree->layout.peers[peer];
    assert(agree_peer_is_remote(agree, peer));
    if (!waits) { flags_clear(&p->flags, WAITS); return; }
    flags_set(&p->flags, WAITS);
    if (!agree->ask_at_ms) {
        agree->ask_gap_ms = AGREE_ASK_MS;
        agree->ask_at_ms = agree->now_ms + AGREE_ASK_MS;
    }
    agree_check_left_peer(agree, peer);
}
bool agree_try_end_operation(struct agree *agree, uint64_t number)
{
    if (agree->state == AGREE_LEFT || number >= agree->barred) return false;
    agree->ended = number;
    return true;
}
void agree_leave(struct agree *agree)
{
    for (int r = 0; r < agree->layout.size; r++) {
        if (!agree_peer_is_remote(agree, r)) continue;
        /* A rank that has not decided must learn this rank's decision, and not decide without it. */
        if (agree->decided) agree_peer_owe_message(agree, r, AGREE_FAIL);
        agree_peer_owe_message(agree, r, AGREE_BYE);
    }
    agree->state = AGREE_LEFT;
}

/* ---- messages ---- */
void agree_handle_message(struct agree *agree, int peer, const struct agree_message *m)
{
    /* A message after the sender's BYE is ignored. */
    if (agree->state == AGREE_LEFT || agree->layout.peers[peer].flags & LEFT) return;
    if (agree->state == AGREE_OVER && !m->decided) agree_peer_owe_message(agree, peer, AGREE_FAIL);
    else if (m->kind == AGREE_ASK) agree_peer_owe_message(agree, peer, AGREE_ANSWER);
    if (m->kind != AGREE_FAIL) agree_compare_calls(agree, peer, m);
    if (m->kind == AGREE_BYE) agree_on_peer_left(agree, peer, message_last_operation(m));
    if (m->kind != AGREE_FAIL) return;
    struct agree_peer *p = &agree->layout.peers[peer];
    p->operation = m->cause.operation;
    p->kind = (uint16_t)m->cause.kind;
    p->reporter = m->cause.reporter;
    flags_set(&p->flags, SENT_CAUSE);
    agree_handle_cause(agree, &m->cause, m->decided);
    agree_decide_if_unanimous(agree);
}
/* Fills a message with the cause (FAIL) or with the last calls of this rank (other kinds). */
static void agree_compose_message(const struct agree *agree, enum agree_message_kind kind, struct agree_message *out)
{
    memset(out, 0, sizeof *out);
    out->kind = kind;
    if (kind != AGREE_FAIL) { memcpy(out->calls, agree->history, sizeof out->calls); return; }
    out->cause = agree->held;
    out->decided = agree->decided;
}
/* A peer gets its messages in this order, with BYE as the last. */
bool agree_next_message(struct agree *agree, int *to, struct agree_message *out)
{
    static const enum agree_message_kind order[AGREE_MESSAGES] = { AGREE_FAIL, AGREE_ANSWER, AGREE_ASK, AGREE_BYE };
    if (!agree->owed) return false;
    while (!(agree->layout.peers[agree->cursor].flags & OWES_ALL))
        agree->cursor = (agree->cursor + 1) % (uint64_t)agree->layout.size;
    struct agree_peer *peer = &agree->layout.peers[agree->cursor];
    int i = 0;
    while (!(peer->flags & message_kind_owed_flag(order[i]))) i++;
    flags_clear(&peer->flags, message_kind_owed_flag(order[i]));
    if (!(peer->flags & OWES_ALL)) agree->owed--;
    *to = (int)agree->cursor;
    agree_compose_message(agree, order[i], out);
    return true;
}

/* ---- time ---- */
/* Asks the peers that this rank waits for about their calls, at growing intervals. */
static void agree_ask_peers_for_calls(struct agree *agree)
{
    bool any = false;
    for (int r = 0; r < agree->layout.size; r++) {
        if (!(agree->layout.peers[r].flags & WAITS) || agree_peer_is_gone(agree, r)) continue;
        agree_peer_owe_message(agree, r, AGREE_ASK);
        any = true;
    }
    agree->ask_gap_ms = agree->ask_gap_ms * 2 < AGREE_ASK_MOST_MS ? agree->ask_gap_ms * 2 : AGREE_ASK_MOST_MS;
    agree->ask_at_ms = any ? agree->now_ms + agree->ask_gap_ms : 0;
}
void agree_ask_now(struct agree *agree)
{
    if (agree->state == AGREE_RUNS) agree_ask_peers_for_calls(agree);
}
/* Reports the suspect's different call by its fingerprint alone, because the suspect has not answered. */
static void agree_report_suspected_mismatch(struct agree *agree)
{
    const struct agree_call *mine = agree_recall_call(agree, agree->suspect.operation);
    int peer = (int)agree->suspect.peer;
    struct agree_cause cause =
        agree_make_cause(agree, AGREE_DISAGREEMENT, TUTTI_MISMATCH, peer, agree->suspect.operation);
    if (mine) cause.calls[0] = *mine;
    cause.calls[1].fingerprint = agree->suspect.fingerprint;
    agree->suspect.operation = 0;
    agree_report_cause(agree, &cause);
}
/* Repeats FAIL to hosts whose speaker has not sent the same cause. The speaker may be stopped, so each repetition
   reaches twice as many ranks of its host. */
static void agree_repeat_failure(struct agree *agree)
{
    uint64_t limit = (uint64_t)1 << ++agree->repeats;
    agree->repeat_at_ms = 0;
    for (int h = 0; h < agree->layout.hosts; h++) {
        uint64_t sent_count = 0;
        int first = agree->layout.speakers[h];
        if (first < 0 || agree_host_sent_same_cause(agree, h)) continue;
        if (agree->repeats < AGREE_REPEATS) agree->repeat_at_ms = agree->now_ms + AGREE_REPEAT_MS;
        for (int r = first; r < agree->layout.size && sent_count < limit; r++)
            if (agree->layout.host_of[r] == h && !agree_peer_is_gone(agree, r)) {
                agree_peer_owe_message(agree, r, AGREE_FAIL);
                sent_count++;
            }
    }
}
/* While RUNS: asks the awaited peers for their calls, and reports a suspect that has not answered. While KNOWS: decides
   without the silent hosts, or repeats FAIL to them. */
void agree_advance_time(struct agree *agree, int64_t now_ms)
{
    agree->now_ms = now_ms;
    if (agree->state == AGREE_RUNS && agree->ask_at_ms && now_ms >= agree->ask_at_ms) agree_ask_peers_for_calls(agree);
    if (agree->state == AGREE_RUNS && agree->suspect.operation && now_ms >= agree->suspect.until_ms)
        agree_report_suspected_mismatch(agree);
    if (agree->state != AGREE_KNOWS) return;
    if (now_ms >= agree->settle_at_ms) agree->state = AGREE_DECIDES;
    else if (agree->repeat_at_ms && now_ms >= agree->repeat_at_ms) agree_repeat_failure(agree);
}
