/* Agreement and failure between hosts: what one rank knows and says, as an object without threads, sockets, clock or
   memory of its own. Its caller tells it what happens (inputs), delivers what it wants to say (agree_next), and does
   for it what only shared memory can do (states CLAIMS and DECIDES). On one host nothing of this exists: there the
   words of the segment are enough.

   How it works. The ranks of a host share two records in their segment, each written once, by whoever comes first: the
   *failure* (a cause) and the *verdict* (the cause that all of them tell). Between hosts *speakers* talk: of each host
   the first rank that is not gone (dead, lost, or has left). Whoever finds a reason to fail claims the failure record
   of its host; its speaker tells the speakers of the other hosts, and all go over to the cause that precedes the others
   (agree_precedes). A speaker decides when every other speaker has said that it holds the same cause, or when 300 ms
   have passed. Who has not decided follows a verdict that it hears of.

   States, of a rank:
     RUNS ── reason found, or FAIL heard ─> CLAIMS ── failure record of the host ─> KNOWS
     KNOWS ── all hold the same, or time, or a verdict heard of ─> DECIDES ── verdict record of the host ─> OVER
     A record of the host that is seen leads from any state before to KNOWS or OVER. agree_leave: to LEFT.
   CLAIMS and DECIDES last no longer than the caller needs to write a record, or to find it written.

   Messages, all of one size, over links that keep the order until they break and may then lose the end of what was
   said. They are states and not changes: to get one twice, late or not at all harms nothing but time.
     ASK   What are you doing? With what I do, for the other to compare. Who waits longer than 50 ms sends it to those
           it waits for, and again 100, 200, 400, 400 ... ms later.
     SAY   The answer: the operations that this rank has begun last. From one that has a verdict: a FAIL instead.
     FAIL  The cause that this rank holds, and whether that is its verdict. Between speakers, and every 50 ms again to
           hosts that have not said the same: to their first 2, 4, 8 ... ranks, as their speaker may be stopped. If no
           verdict comes within 150 ms other ranks do this too, as the speaker of their own host may be.
     BYE   I leave in good order, and those were my last operations. Not a death, whatever happens to the link later; a
           link is closed when the BYE has been delivered. Behind a FAIL to everybody, if I have a verdict.

   Invariants. The search of tests/unit/agree looks at them in every state that it reaches.
     I1  A host tells one cause: all its ranks tell what the verdict record says.
     I2  All hosts tell the same cause, unless a link breaks between ranks that live, or a speaker is silent for 300 ms
         while another failure is found: then they may differ, but each is real (I4). Why: what a speaker holds only
         goes to causes that precede; of two speakers that live and decide because all hold the same, each has said
         what the other decided, so neither precedes the other. Who dies takes no part in this.
     I3  No rank reports success of an operation after it has learnt of a failure whose `operation` is not later.
     I4  A cause that is told was found by the rank that it names.
     I5  A rank that has left is not taken for dead. It is a reason to fail only for who waits for an operation that it
         has not begun.
     I6  When ranks differ about an operation and no other reason is found, the cause told names two that differ, with
         what each of them called (but for one that left before it could be asked).
     I7  An operation that a rank fails before all ranks of its host have arrived in it succeeds on none of them.
     I8  Nobody hangs: from every state, when nothing else goes wrong, all living ranks end.
     I9  No verdict waits for time to pass, unless a link breaks, a message is lost or a rank is stopped.
   What cannot be had: an operation that fails on all hosts or on none. There is no roll call of all hosts; and if there
   were, its own last message could be lost. So an operation succeeds on some ranks and fails on others when a rank has
   all it needs (the root of a broadcast, the sender of any message) before it learns of the failure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef AGREE_SEARCH                                    /* states of the search are small */
enum { AGREE_DECLARATION_BYTES = 8, AGREE_DETAIL_BYTES = 8, AGREE_HISTORY = 2 };
#else
enum { AGREE_DECLARATION_BYTES = 96, AGREE_DETAIL_BYTES = 512, AGREE_HISTORY = 4 };
#endif
enum {
    AGREE_ASK_MS = 50,
    AGREE_ASK_MOST_MS = 400,
    AGREE_REPEAT_MS = 50,
    AGREE_REPEATS = 10,
    AGREE_SUSPECT_MS = 200,
    AGREE_SETTLE_MS = 300,
    AGREE_STAND_IN_MS = 150,
    AGREE_TAKE_OVER_MS = 500
};

/* What a rank calls as its operation `number`. The fingerprint is that of this call and of all before: so ranks that
   have once differed differ from then on, and the first difference in both memories is what is told. */
struct agree_call {
    uint64_t number, fingerprint;                      /* from 1; number 0: none                                  */
    unsigned char declaration[AGREE_DECLARATION_BYTES]; /* in the words of the engine                              */
};
/* In the order in which they precede each other: what a rank knows of itself comes before what others see of it. */
enum agree_kind {
    AGREE_DISAGREEMENT,
    AGREE_FAILED,
    AGREE_ABORTED,
    AGREE_LOST,
    AGREE_LEFT_ALONE,
    AGREE_LATE,
    AGREE_KINDS
};
struct agree_cause {
    int32_t kind, status;                              /* enum agree_kind; a tutti_status                         */
    int32_t reporter, other;                           /* who found it; whom it is about, or -1                   */
    uint64_t operation;                                /* the first that fails for the reporter                   */
    struct agree_call calls[2];                        /* of the reporter, of the other; number 0: not known, or  */
                                                       /* none is open                                            */
    char detail[AGREE_DETAIL_BYTES];                   /* text of the engine's; empty: the rest says it all       */
};
enum agree_message_kind { AGREE_ASK, AGREE_SAY, AGREE_FAIL, AGREE_BYE, AGREE_MESSAGES };
struct agree_message {
    uint64_t kind, decided;                            /* decided: of FAIL: it is the verdict of the sender       */
    struct agree_call calls[AGREE_HISTORY];            /* of the others: the last ones, in any order              */
    struct agree_cause cause;                          /* of FAIL                                                 */
};
enum agree_state { AGREE_RUNS, AGREE_CLAIMS, AGREE_KNOWS, AGREE_DECIDES, AGREE_OVER, AGREE_LEFT };

struct agree_peer {
    uint64_t operation;                                /* the cause it holds, as it has said: operation, reporter,  */
    int32_t reporter;                                  /* kind. Of one that has left: its last operation            */
    uint16_t kind, flags;
};
struct agree_layout {                                  /* constant                                                */
    int rank, size, hosts;
    const int *host_of;                                /* [size]; ranks of a host speak in the order of ranks     */
    struct agree_peer *peers;                          /* [size], zeroed: memory of the object                    */
    int *speakers;                                     /* [hosts], the same; -1: no rank of that host is left     */
};
struct agree_suspect { uint64_t operation, fingerprint; int64_t until_ms; int64_t peer; };  /* operation 0: none    */
struct agree {                                         /* written by this object only                             */
    struct agree_layout layout;
    uint64_t state, decided;                           /* enum agree_state; 1: `held` is the verdict              */
    uint64_t begun, ended;                             /* the last operation this rank has begun, has reported    */
    uint64_t barred;                                   /* this operation and later ones succeed no more           */
    uint64_t owed, cursor;                             /* peers that something is to be sent to                   */
    int64_t now_ms, ask_at_ms, ask_gap_ms, settle_at_ms, repeat_at_ms;   /* 0: not set                              */
    uint64_t repeats;
    struct agree_suspect suspect;                      /* differs by its fingerprint; its words are asked for     */
    struct agree_call history[AGREE_HISTORY];
    struct agree_cause held;                           /* from CLAIMS on; in OVER: the verdict                    */
};

/* ---- inputs of this rank ---- */
void agree_init(struct agree *out, const struct agree_layout *layout);
void agree_begin(struct agree *a, const struct agree_call *call);      /* numbers grow by 1 */
/* The first message of an operation has come from a rank of another host. false: this rank has not begun that one; say
   it again then (the matching keeps what is early). */
bool agree_arrived(struct agree *a, int peer, uint64_t number, uint64_t fingerprint);
void agree_wait(struct agree *a, int peer, bool waits);                /* for that rank of another host, or no more */
/* The last look before success is reported: true, and it must be; false: it fails, with the verdict. Operations before
   the failed one may end after the verdict, too. */
bool agree_may_end(struct agree *a, uint64_t number);
void agree_fail(struct agree *a, const struct agree_cause *cause);     /* found here, if nothing is known before */
void agree_leave(struct agree *a);                                     /* when no operation is open */
/* ---- of the host: what its segment says ---- */
void agree_host_failed(struct agree *a, const struct agree_cause *record);
void agree_host_decided(struct agree *a, const struct agree_cause *record);
/* ---- of peers ---- */
void agree_receive(struct agree *a, int peer, const struct agree_message *message);
/* Its process has died, its link broke or said what it may not, or a link to it cannot be had. Of any host. The caller
   goes on as far as it gets before it says so: what can end by then ends. */
void agree_lost(struct agree *a, int peer);
void agree_left(struct agree *a, int peer, uint64_t last);             /* the BYE of a rank of this host is a word */
/* ---- of time: at least every 20 ms while something is open. Set before other inputs, which arm timers by it ---- */
void agree_tick(struct agree *a, int64_t now_ms);

void agree_hurry(struct agree *a);                      /* asks now: there is no time left to wait */

/* ---- outputs. After each input, in this order:
   CLAIMS: write `held` into the failure record unless that is written; then agree_host_failed with what it says.
   DECIDES: the same with the verdict record and agree_host_decided.
   Then send what agree_next gives until it gives nothing. What cannot be sent for want of a link, drop. ---- */
bool agree_next(struct agree *a, int *to, struct agree_message *out);
bool agree_precedes(const struct agree_cause *x, const struct agree_cause *y);

/* ---- wire.c ---- */
enum {
    AGREE_VERSION = 2,
    AGREE_CALL_BYTES = 16 + AGREE_DECLARATION_BYTES,
    AGREE_CAUSE_BYTES = 24 + 2 * AGREE_CALL_BYTES + AGREE_DETAIL_BYTES,
    AGREE_CALLS_BYTES = AGREE_HISTORY * AGREE_CALL_BYTES,
    AGREE_WIRE_BYTES = 8 + (AGREE_CAUSE_BYTES > AGREE_CALLS_BYTES ? AGREE_CAUSE_BYTES : AGREE_CALLS_BYTES)
};
void agree_encode(const struct agree_message *message, unsigned char out[AGREE_WIRE_BYTES]);
/* false: this is no message that a rank of a communicator of that size could have sent; *out is untouched. */
bool agree_decode(const unsigned char *bytes, size_t length, int size, struct agree_message *out);
