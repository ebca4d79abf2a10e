/* The events of the world of world.h: which are possible, and what each does. Every message is encoded and decoded. */
#include "tests/unit/agree/world.h"
#include "include/tutti.h"
#include <assert.h>
#include <string.h>

enum { NOW_MS = 1000, NONE = 255 };
static bool share_host(const struct world *w, int r, int q) { return r != q && host(w, r) == host(w, q); }
static int counterpart(int r) { return r ^ 2; }
static bool runs(const struct world *w, int r) { return lives(w, r) && w->object[r].state == AGREE_RUNS; }
static bool needs(enum pattern p, int r) { return p == BOTH || (p == DOWN && r >= 2) || (p == UP && r < 2); }
static bool sends(enum pattern p, int r) { return p == BOTH || (p == DOWN && r < 2) || (p == UP && r >= 2); }
static bool has_all(const struct world *w, const struct scenario *s, int r)
{
    int n = w->operation[r];
    return !needs(called(s, r, n), r) || w->got[r][counterpart(r)] & 1 << n;
}
static struct agree_call call_of(const struct scenario *s, int r, int n)
{
    uint64_t fingerprint = 0;
    for (int i = 1; i <= n; i++) fingerprint = fingerprint * 10 + called(s, r, i);
    return (struct agree_call){ (uint64_t)n, fingerprint, { (unsigned char)called(s, r, n) } };
}
static int ranks(const struct scenario *s) { return s->host_of[RANKS - 1] < 0 ? RANKS - 1 : RANKS; }
static int hosts(const struct scenario *s)
{
    int most = 0;
    for (int r = 0; r < RANKS; r++)
        if (s->host_of[r] > most) most = s->host_of[r];
    return most + 1;
}
void world_connect(struct world *w, const struct scenario *s)
{
    for (int r = 0; r < RANKS; r++) {
        struct agree_layout *l = &w->object[r].layout;
        *l = (struct agree_layout){ r, ranks(s), hosts(s), s->host_of, w->peers[r], w->speakers[r] };
    }
}
void world_init(struct world *w, const struct scenario *s)
{
    memset(w, 0, sizeof *w);
    world_connect(w, s);
    w->left[RANKS - 1] = ranks(s) < RANKS;
    for (int r = 0; r < ranks(s); r++) {
        struct agree_layout layout = w->object[r].layout;
        agree_init(&w->object[r], &layout);
        agree_advance_time(&w->object[r], NOW_MS);
    }
    memset(w->known, NONE, sizeof w->known);
    memset(w->refused, NONE, sizeof w->refused);
    w->deaths = (unsigned char)s->deaths;
    w->aborts = (unsigned char)s->aborts;
    w->breaks = (unsigned char)s->breaks;
    w->drops = (unsigned char)s->drops;
    w->stops = (unsigned char)s->stops;
}

/* ---- the printed trace ---- */
static const char *const kinds[] = { "disagreement", "failure", "abort", "death", "left alone", "late" };
static const char *const patterns[] = { "end", "rest", "both", "down", "up", "home", "away" };
static void print_cause(FILE *log, const char *before, const struct agree_cause *c)
{
    fprintf(log, "%s %s of operation %d found by rank %d about %d", before, kinds[c->kind], (int)c->operation,
        c->reporter, c->other);
    if (c->kind == AGREE_DISAGREEMENT)
        fprintf(log, " (%s, %s)", patterns[c->calls[0].declaration[0]],
            c->calls[1].number ? patterns[c->calls[1].declaration[0]] : "?");
    fputc('\n', log);
}
static void print_record(FILE *log, const char *what, int r, int h, const struct agree_cause *c)
{
    if (!log) return;
    fprintf(log, "      rank %d %s for host %d:", r, what, h);
    print_cause(log, "", c);
}
static void print_message(FILE *log, const char *what, int from, int to, const struct agree_message *m)
{
    static const char *const names[] = { "ASK", "ANSWER", "FAIL", "BYE" };
    fprintf(log, "      %s %d -> %d %s", what, from, to, names[m->kind]);
    if (m->kind == AGREE_FAIL) print_cause(log, m->decided ? ", decided:" : ":", &m->cause);
    for (int i = 0; m->kind != AGREE_FAIL && i < AGREE_HISTORY; i++)
        if (m->calls[i].number)
            fprintf(log, " operation %d, %s", (int)m->calls[i].number, patterns[m->calls[i].declaration[0]]);
    if (m->kind != AGREE_FAIL) fputc('\n', log);
}

/* ---- what a caller does for the object ---- */
/* Records that rank r knows of a failure. */
static void learn(struct world *w, int r, const struct agree_cause *c)
{
    if (c->operation < w->known[r]) w->known[r] = (unsigned char)c->operation;
}
/* True if all ranks of r's host have begun its operation. */
static bool is_complete(const struct world *w, int r)
{
    for (int q = 0; q < RANKS; q++)
        if (share_host(w, r, q) && w->operation[q] < w->operation[r]) return false;
    return true;
}
static void world_record_cause(struct world *w, int r)
{
    const struct agree_cause *c = &w->object[r].held;
    if (w->object[r].state != AGREE_CLAIMS || c->reporter != r || w->found[r][0]) return;
    w->found[r][0] = (unsigned char)(c->kind + 1);
    w->found[r][1] = (unsigned char)c->operation;
    w->found[r][2] = (unsigned char)(c->other + 1);
    learn(w, r, c);
}
static void write_records(struct world *w, int r, FILE *log)
{
    struct agree *a = &w->object[r];
    int h = host(w, r);
    world_record_cause(w, r);
    if (a->state == AGREE_CLAIMS) {
        if (!w->has_record[h]) {
            w->record[h] = a->held;
            w->has_record[h] = 1;
            print_record(log, "claims", r, h, &a->held);
            if (a->held.operation == w->operation[r] && !is_complete(w, r)) w->refused[h] = w->operation[r];
        }
        learn(w, r, &w->record[h]);
        agree_on_failure_record(a, &w->record[h]);
    }
    if (a->state == AGREE_DECIDES) {
        if (!w->has_decision[h]) {
            w->decision[h] = a->held;
            w->has_decision[h] = 1;
            print_record(log, "decides", r, h, &a->held);
        }
        agree_on_decision_record(a, &w->decision[h]);
    }
}
static const char *send_all(struct world *w, int r, FILE *log)
{
    struct agree_message m, back;
    unsigned char wire[AGREE_WIRE_BYTES];
    int to;
    while (agree_next_message(&w->object[r], &to, &m)) {
        agree_message_encode(&m, wire);
        if (!agree_message_decode(wire, sizeof wire, RANKS, &back) || memcmp(&m, &back, sizeof m))
            return "a message differs after it was encoded and decoded";
        if (share_host(w, r, to)) return "a message within a host";
        if (!lives(w, to) || w->link[r][to] != OPEN) continue;
        if (log) print_message(log, "send", r, to, &m);
        if (w->count[r][to] == DEPTH) return "DEPTH: more messages are on a link than the model holds";
        w->queue[r][to][w->count[r][to]++] = back;
    }
    return NULL;
}
/* Makes states equal that differ only in the objects of dead or gone ranks, or in times, so that there are fewer
   states. */
static void normalize(struct world *w, const struct scenario *s)
{
    for (int r = 0; r < RANKS; r++) {
        struct agree *a = &w->object[r];
        if (!lives(w, r)) {
            memset(a, 0, sizeof *a);
            memset(w->peers[r], 0, sizeof w->peers[r]);
            memset(w->speakers[r], 0, sizeof w->speakers[r]);
            memset(w->left_seen[r], 0, sizeof w->left_seen[r]);
            for (int p = 0; p < RANKS; p++) {
                memset(w->queue[p][r], 0, w->count[p][r] * sizeof w->queue[p][r][0]);
                w->count[p][r] = w->sent[p][r] = w->got[r][p] = 0;
                w->link[p][r] = NOTICED;
            }
        }
        a->cursor = 0;
        if (a->repeats > 2) a->repeats = 2;
        if (a->state != AGREE_KNOWS) a->repeats = 0;
        if (a->state != AGREE_RUNS) { a->ask_at_ms = a->suspect.until_ms = 0; a->suspect.operation = 0; }
        if (a->state != AGREE_KNOWS) a->settle_at_ms = a->repeat_at_ms = 0;
        if (a->state == AGREE_OVER && w->at[r] != AGREED) w->at[r] = BETWEEN;
        if (a->ask_at_ms) a->ask_at_ms = NOW_MS + AGREE_ASK_MS;
        a->ask_gap_ms = a->ask_at_ms ? AGREE_ASK_MS : 0;
        if (a->settle_at_ms) a->settle_at_ms = NOW_MS + AGREE_SETTLE_MS;
    }
    world_connect(w, s);
}

/* ---- which events are possible ---- */
struct list { struct event *at; int count; };
static void add(struct list *l, enum event_kind kind, int a, int b)
{
    assert(l->count < MOST_EVENTS);
    l->at[l->count++] = (struct event){ (unsigned char)kind, (unsigned char)a, (unsigned char)b };
}
/* True if a message is on a link from rank r or to it. */
static bool has_under_way(const struct world *w, int r)
{
    for (int p = 0; p < RANKS; p++)
        if (w->count[r][p] || w->count[p][r]) return true;
    return false;
}
static void add_rank(struct list *l, const struct world *w, const struct scenario *s, int r)
{
    const struct agree *a = &w->object[r];
    int h = host(w, r), n = w->operation[r];
    if (a->state == AGREE_RUNS && w->at[r] == BETWEEN) {
        if (s->program[r][n] > REST) add(l, BEGIN, r, 0);
        else if (s->program[r][n] == END && w->succeeded[r] == n) add(l, LEAVE, r, 0);
    }
    if (a->state == AGREE_RUNS && w->at[r] == ARRIVED && is_complete(w, r)) add(l, ROLL_CALL, r, 0);
    if (a->state < AGREE_LEFT && w->at[r] == AGREED && has_all(w, s, r)) add(l, FINISH, r, 0);
    if (s->leaves && a->state == AGREE_OVER) add(l, LEAVE, r, 0);
    if (w->has_record[h] && a->state == AGREE_RUNS) add(l, SEE_RECORD, r, 0);
    if (w->has_decision[h] && a->state < AGREE_OVER) add(l, SEE_DECISION, r, 0);
    for (int m = 0; m < RANKS; m++) {
        if (!share_host(w, r, m) || !w->left[m]) continue;
        if (!w->left_seen[r][m]) add(l, SEE_LEFT, r, m);
        if (a->state == AGREE_RUNS && w->at[r] == ARRIVED && w->operation[m] < n) add(l, ALONE, r, m);
    }
}
static void add_timers(struct list *l, const struct world *w, const struct scenario *s, int r, bool quiet)
{
    const struct agree *a = &w->object[r];
    /* A repeated message adds nothing while the first one is on its link. */
    bool idle = !has_under_way(w, r);
    if (a->state == AGREE_RUNS && a->ask_at_ms && idle && (quiet || s->haste)) add(l, ASK_TIMER, r, 0);
    if (a->state == AGREE_RUNS && a->suspect.operation && (quiet || s->haste == HASTY)) add(l, SUSPECT_TIMER, r, 0);
    if (a->state == AGREE_KNOWS && a->repeat_at_ms && idle && (quiet || s->haste == HASTY)) add(l, REPEAT_TIMER, r, 0);
    bool repeated = quiet && (!a->repeat_at_ms || a->repeats >= 2);
    if (a->state == AGREE_KNOWS && (s->haste == HASTY || repeated)) add(l, SETTLE_TIMER, r, 0);
}
static void add_links(struct list *l, const struct world *w, int p, int q)
{
    int next = 1;
    if (!lives(w, q) || p == q) return;
    if (w->count[p][q]) add(l, DELIVER, p, q);
    if (w->link[p][q] == BROKEN || (w->link[p][q] == CLOSED && !w->count[p][q])) add(l, NOTICE, p, q);
    while (next <= OPERATIONS && !(w->sent[p][q] & 1 << next)) next++;
    if (next <= w->operation[q]) add(l, FIRST_MESSAGE, p, q);
}
static void add_faults(struct list *l, const struct world *w, int p)
{
    if (lives(w, p) && w->deaths) add(l, DIE, p, 0);
    if (lives(w, p) && w->stops) add(l, STOP, p, 0);
    if (runs(w, p) && w->aborts) add(l, ABORT, p, 0);
    for (int q = 0; q < RANKS; q++) {
        bool linked = p < q && !share_host(w, p, q) && lives(w, p) && lives(w, q) && w->link[p][q] == OPEN;
        if (linked && w->breaks) add(l, BREAK, p, q);
        if (!w->count[p][q]) continue;
        if (w->drops && w->queue[p][q][0].kind != AGREE_BYE) add(l, DROP, p, q);
        if (w->link[p][q] == BROKEN || w->link[p][q] == NOTICED) add(l, LOSE, p, q);
    }
    for (int q = 0; q < RANKS; q++) {
        if (w->sent[p][q] && w->dead[p]) add(l, LOSE_FIRST, p, q);
    }
}
int world_events(const struct world *w, const struct scenario *s, struct event out[MOST_EVENTS])
{
    struct list l = { out, 0 };
    for (int r = 0; r < RANKS; r++) {
        if (lives(w, r)) add_rank(&l, w, s, r);
        for (int q = 0; q < RANKS; q++) add_links(&l, w, r, q);
    }
    bool quiet = l.count == 0;
    for (int r = 0; r < RANKS; r++)
        if (lives(w, r)) add_timers(&l, w, s, r, quiet);
    for (int r = 0; r < RANKS; r++) add_faults(&l, w, r);
    return l.count;
}

/* ---- what each event does ---- */
static void fail(struct world *w, const struct scenario *s, int r, enum agree_kind kind, int other)
{
    int n = w->operation[r];
    bool open = w->at[r] != BETWEEN;
    struct agree_cause c;
    memset(&c, 0, sizeof c);
    c.kind = (int)kind;
    c.status = TUTTI_MISMATCH;
    c.reporter = r;
    c.other = other;
    c.operation = (uint64_t)n + !open;
    if (kind == AGREE_DISAGREEMENT) {
        c.calls[0] = call_of(s, r, n);
        c.calls[1] = call_of(s, other, n);
    }
    agree_report_cause(&w->object[r], &c);
}
static void begin(struct world *w, const struct scenario *s, int r)
{
    int n = ++w->operation[r], c = counterpart(r);
    struct agree_call call = call_of(s, r, n);
    enum pattern p = called(s, r, n);
    w->at[r] = ARRIVED;
    agree_begin(&w->object[r], &call);
    if (needs(p, r) && !(w->got[r][c] & 1 << n)) agree_set_waiting(&w->object[r], c, true);
    if (sends(p, r) && lives(w, c)) w->sent[r][c] |= (unsigned char)(1 << n);
}
static void roll_call(struct world *w, const struct scenario *s, int r)
{
    int n = w->operation[r], h = host(w, r), other = -1;
    for (int m = 0; m < RANKS; m++)
        if (share_host(w, r, m) && called(s, m, n) != called(s, r, n)) other = m;
    if (other >= 0) fail(w, s, r, AGREE_DISAGREEMENT, other);
    else if (w->has_record[h] && (int)w->record[h].operation <= n) {
        learn(w, r, &w->record[h]);
        agree_on_failure_record(&w->object[r], &w->record[h]);
    } else w->at[r] = AGREED;
}
static const char *finish(struct world *w, int r)
{
    int n = w->operation[r];
    w->at[r] = agree_try_end_operation(&w->object[r], (uint64_t)n) ? BETWEEN : REFUSED;
    if (w->at[r] == REFUSED) return NULL;
    w->succeeded[r] = (unsigned char)n;
    if (n >= w->known[r]) return "I3: success of an operation after its failure was known";
    if (n == w->refused[host(w, r)]) return "I7: success of an operation that a rank failed before all had arrived";
    return NULL;
}
static void first_message(struct world *w, const struct scenario *s, int p, int q)
{
    int n = 1;
    while (!(w->sent[p][q] & 1 << n)) n++;
    w->sent[p][q] &= (unsigned char)~(1 << n);
    uint64_t fingerprint = call_of(s, p, n).fingerprint;
    /* A message of another call matches no receive. */
    bool meets = fingerprint == call_of(s, q, n).fingerprint;
    agree_on_first_message(&w->object[q], p, (uint64_t)n, fingerprint);
    if (!meets && n < w->known[q]) w->known[q] = (unsigned char)n;
    if (!meets || !needs(called(s, q, n), q)) return;
    w->got[q][p] |= (unsigned char)(1 << n);
    if (n == w->operation[q]) agree_set_waiting(&w->object[q], p, false);
}
static void deliver(struct world *w, int p, int q, bool drop, FILE *log)
{
    struct agree_message m = w->queue[p][q][0];
    w->count[p][q]--;
    memmove(&w->queue[p][q][0], &w->queue[p][q][1], w->count[p][q] * sizeof m);
    memset(&w->queue[p][q][w->count[p][q]], 0, sizeof m);
    if (log) print_message(log, drop ? "drop" : "deliver", p, q, &m);
    if (drop) return;
    if (m.kind == AGREE_FAIL) learn(w, q, &m.cause);
    agree_handle_message(&w->object[q], p, &m);
    if (w->link[p][q] != CLOSED || w->count[p][q]) return;
    /* I5: the loss of the link after BYE is no death. */
    w->link[p][q] = NOTICED;
    agree_on_peer_lost(&w->object[q], p, "");
}
static void end_links(struct world *w, int r, enum link how)
{
    for (int q = 0; q < RANKS; q++) {
        if (q == r) continue;
        /* A rank that leaves shows this to the ranks of its host in the segment. */
        bool by_segment = how == CLOSED && share_host(w, r, q);
        w->link[r][q] = w->link[r][q] != OPEN ? w->link[r][q] : by_segment ? NOTICED : (unsigned char)how;
    }
}
static void timer_expire(struct world *w, struct event e)
{
    struct agree *a = &w->object[e.a];
    if (e.kind == ASK_TIMER) a->ask_at_ms = NOW_MS;
    if (e.kind == SUSPECT_TIMER) a->suspect.until_ms = NOW_MS;
    if (e.kind == REPEAT_TIMER) a->repeat_at_ms = NOW_MS;
    if (e.kind == SETTLE_TIMER) a->settle_at_ms = NOW_MS;
    agree_advance_time(a, NOW_MS);
    if (a->suspect.operation) a->suspect.until_ms = NOW_MS + AGREE_SUSPECT_MS;
}
static void fault(struct world *w, const struct scenario *s, struct event e, FILE *log)
{
    switch (e.kind) {
    case DIE:
        w->dead[e.a] = 1;
        w->deaths--;
        end_links(w, e.a, BROKEN);
        break;
    case STOP:
        w->stopped[e.a] = 1;
        w->stops--;
        break;
    case ABORT:
        w->aborts--;
        fail(w, s, e.a, AGREE_ABORTED, -1);
        break;
    case BREAK:
        w->breaks--;
        w->broke = 1;
        w->link[e.a][e.b] = w->link[e.b][e.a] = BROKEN;
        break;
    case DROP:
        w->drops--;
        deliver(w, e.a, e.b, true, log);
        break;
    case LOSE: memset(&w->queue[e.a][e.b][--w->count[e.a][e.b]], 0, sizeof(struct agree_message)); break;
    case LOSE_FIRST: w->sent[e.a][e.b] = 0; break;
    default: break;
    }
}
static void leave(struct world *w, int r)
{
    w->told[r] = w->object[r].state == AGREE_OVER;
    agree_leave(&w->object[r]);
}
static const char *perform(struct world *w, const struct scenario *s, struct event e, FILE *log)
{
    struct agree *a = &w->object[e.a];
    int h = host(w, e.a);
    switch (e.kind) {
    case BEGIN: begin(w, s, e.a); break;
    case ROLL_CALL: roll_call(w, s, e.a); break;
    case FINISH: return finish(w, e.a);
    case LEAVE: leave(w, e.a); break;
    case SEE_RECORD:
        learn(w, e.a, &w->record[h]);
        agree_on_failure_record(a, &w->record[h]);
        break;
    case SEE_DECISION:
        learn(w, e.a, &w->decision[h]);
        agree_on_decision_record(a, &w->decision[h]);
        break;
    case SEE_LEFT:
        w->left_seen[e.a][e.b] = 1;
        agree_on_peer_left(a, e.b, w->operation[e.b]);
        break;
    case ALONE: fail(w, s, e.a, AGREE_LEFT_ALONE, e.b); break;
    case FIRST_MESSAGE: first_message(w, s, e.a, e.b); break;
    case DELIVER: deliver(w, e.a, e.b, false, log); break;
    case NOTICE:
        w->link[e.a][e.b] = NOTICED;
        agree_on_peer_lost(&w->object[e.b], e.a, "");
        break;
    case ASK_TIMER:
    case SUSPECT_TIMER:
    case REPEAT_TIMER:
    case SETTLE_TIMER: timer_expire(w, e); break;
    default: fault(w, s, e, log);
    }
    return NULL;
}
static const char *const events[EVENT_KINDS] = { "begins an operation", "reads the roll call", "finishes", "leaves",
    "sees the failure record", "sees the decision record", "sees that a rank of its host has left",
    "is left alone by a rank of its host", "-> : first message of an operation", "-> : delivery",
    "-> : the end of the link is noticed", "asks", "has waited long enough for a suspect", "repeats FAIL",
    "has waited long enough for the other hosts", "DIES", "IS STOPPED", "ABORTS", "-- : the link BREAKS",
    "-> : a message is DROPPED", "-> : the end is LOST in the break", "-> : first messages are LOST with the sender" };
const char *world_step(struct world *w, const struct scenario *s, struct event e, FILE *log)
{
    const char *broken = NULL;
    bool pair = e.kind == FIRST_MESSAGE || e.kind == DELIVER || e.kind == NOTICE || e.kind >= BREAK;
    if (log && pair) fprintf(log, "    %d, %d %s\n", e.a, e.b, events[e.kind]);
    else if (log) fprintf(log, "    rank %d %s\n", e.a, events[e.kind]);
    bool smooth = s->haste == PATIENT && !s->breaks && !s->drops && !s->stops;
    if (smooth && e.kind == SETTLE_TIMER) return "I9: a decision that waits for time to pass";
    broken = perform(w, s, e, log);
    for (int r = 0; r < RANKS && !broken; r++) {
        if (!lives(w, r)) continue;
        write_records(w, r, log);
        broken = send_all(w, r, log);
    }
    if (e.kind == LEAVE) { w->left[e.a] = 1; end_links(w, e.a, CLOSED); }
    normalize(w, s);
    return broken ? broken : world_check(w, s);
}
