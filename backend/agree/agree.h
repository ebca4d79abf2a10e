/* Agreement between hosts on a failure. The object has the state of one rank, and no thread, socket, clock or memory of
   its own. Its caller feeds it events (inputs), sends its messages (agree_next_message), and writes the shared records
   for it (states CLAIMS and DECIDES). A group on one host has no such object, because words in its segment suffice.

   How it works. The ranks of a host share two records in their segment: the *failure* (a cause) and the *decision*
   (the cause that all of them report). The first rank to write a record wins. The *speaker* of a host, its first rank
   that is not gone (dead, lost or left), exchanges messages with the speakers of other hosts. A rank that finds a
   reason to fail claims the failure record of its host. Its speaker sends the cause to the other speakers, and each
   adopts the cause that precedes the others (agree_cause_precedes). A speaker decides when every other speaker has sent
   the same cause, or after 300 ms. A rank that has not decided adopts a decision that it receives.

   States of a rank:
     RUNS ── it finds a reason, or receives FAIL ─> CLAIMS ── failure record of the host ─> KNOWS
     KNOWS ── all hold the same cause, time passes, or a decision arrives ─> DECIDES ── decision record ─> OVER
     A record of the host that the rank reads leads from any earlier state to KNOWS or OVER. agree_leave leads to LEFT.
   CLAIMS and DECIDES last only until the caller has written the record or found it written.

   Messages have one size. Links keep their order until they break, and may then lose the last ones. A message carries
   state, not a change, so a repeated, late or lost message costs only time.
     ASK   asks which operations the receiver has begun, and has those of the sender for comparison. A rank that waits
           longer than 50 ms sends it to the ranks that it waits for, and again after 100, 200, 400, 400 ... ms.
     ANSWER  has the last operations that the sender has begun. A rank with a decision answers ASK with FAIL.
     FAIL  has the cause that the sender holds, and whether that is its decision. Speakers send it to each other. Every
           50 ms they repeat it to hosts that have not sent the same cause: to their first 2, 4, 8 ... ranks, because
           their speaker may be stopped. Without a decision within 150 ms other ranks send it too, because the speaker
           of their own host may be stopped.
     BYE   announces an orderly leave, with the sender's last operations. A later loss of the link is no death; the
           caller closes the link when BYE is delivered. A rank with a decision first sends FAIL to every other host.

   Invariants. The search of tests/unit/agree checks them in every state that it reaches.
     I1  A host reports one cause: all its ranks report the one in the decision record.
     I2  All hosts report the same cause, unless a link between living ranks breaks, or a speaker is silent for 300 ms
         while another failure is found. Then the causes may differ, but each is real (I4). Proof: a speaker only ever
         replaces its cause by one that precedes it. Two living speakers that decide because all hold the same cause
         have each sent the cause that the other decided, so neither cause precedes the other. Dead ranks play no part.
     I3  After a rank has learnt of a failure, it reports success only for operations before the failed one.
     I4  A reported cause was found by the rank that it names.
     I5  A rank that has left is not taken for dead. It is a reason to fail only for a rank that waits for it in an
         operation that it has not begun.
     I6  If ranks differ about an operation and no other reason is found, the cause names two that differ, with the call
         of each (unless one left before it could be asked).
     I7  An operation that a rank fails before all ranks of its host have arrived in it succeeds on none of them.
     I8  No rank hangs: from every state, all living ranks finish if no further failure occurs.
     I9  A decision waits for a timer only if a link breaks, a message is lost or a rank is stopped.
   The protocol does not guarantee that an operation fails on all hosts or on none. That would need a roll call of all
   hosts, whose own last message could be lost. So an operation may succeed on one rank and fail on others. This
   happens if the rank (the root of a broadcast, the sender of a message) has all it needs before it learns of the
   failure. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The search uses small states. */
#ifdef AGREE_SEARCH
enum { AGREE_DECLARATION_BYTES = 8, AGREE_DETAIL_BYTES = 8, AGREE_HISTORY = 2 };
#else
enum { AGREE_DECLARATION_BYTES = 96, AGREE_DETAIL_BYTES = 512, AGREE_HISTORY = 4 };
#endif
/* The times of the protocol, in ms, and AGREE_REPEATS, the most repetitions of FAIL. A rank asks after ASK, then at
   intervals that double up to ASK_MOST. A suspect has SUSPECT to answer. A speaker decides after SETTLE, and another
   rank after TAKE_OVER. FAIL is repeated each REPEAT, from STAND_IN on by ranks that are no speakers. */
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

/* The call that a rank makes as its operation `number`, from 1; 0 means no call. The fingerprint covers this call and
   all calls before it, so ranks that have differed once differ from then on. The cause names the first difference in
   the histories of both. The engine defines the declaration. */
struct agree_call {
    uint64_t number, fingerprint;
    unsigned char declaration[AGREE_DECLARATION_BYTES];
};
/* Kinds of causes in order of precedence: a rank's own error precedes the effects that others see. LOST: a rank has
   died or cannot be reached. LEFT_ALONE: a rank has left that the reporter waits for. LATE: a timeout. */
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
    /* `kind` is an enum agree_kind, `status` a tutti_status. */
    int32_t kind, status;
    /* The rank that has found the cause, and the rank that the cause is about, or -1. */
    int32_t reporter, other;
    /* `operation` is the first one that fails for the reporter. */
    uint64_t operation;
    /* The calls of the reporter and of the other rank; number 0 means an unknown call, or no open one. */
    struct agree_call calls[2];
    /* `detail` is an optional text of the engine. */
    char detail[AGREE_DETAIL_BYTES];
};
enum agree_message_kind { AGREE_ASK, AGREE_ANSWER, AGREE_FAIL, AGREE_BYE, AGREE_MESSAGES };
/* FAIL has `cause`, which is the sender's decision if `decided` is set. Other messages have the sender's last calls, in
   any order. */
struct agree_message {
    uint64_t kind, decided;
    struct agree_call calls[AGREE_HISTORY];
    struct agree_cause cause;
};
enum agree_state { AGREE_RUNS, AGREE_CLAIMS, AGREE_KNOWS, AGREE_DECIDES, AGREE_OVER, AGREE_LEFT };

/* The cause that a peer holds, as far as its messages have shown: operation, reporter and kind. After the peer has
   left, `operation` is its last one. */
struct agree_peer {
    uint64_t operation;
    int32_t reporter;
    /* `kind` is that of the cause. The flags are those of agree.c. */
    uint16_t kind, flags;
};
/* Stays constant, except the entries of `peers` and `speakers`, which the caller allocates for the object. */
struct agree_layout {
    int rank, size, hosts;
    const int *host_of;                                /* [size] */
    struct agree_peer *peers;                          /* [size] */
    /* The speaker of a host is its first rank that is not gone, or -1. */
    int *speakers;                                     /* [hosts] */
};
/* A suspect: `peer` has sent a message of `operation` with another `fingerprint` than this rank's call. This rank has
   asked it for its calls, and reports a disagreement at until_ms if it has not answered. Operation 0 means no
   suspect. */
struct agree_suspect { uint64_t operation, fingerprint; int64_t until_ms; int64_t peer; };
/* Only the functions of this file write the object. */
struct agree {
    struct agree_layout layout;
    /* `state` is an enum agree_state; `decided` is 1 if `held` is the decision. */
    uint64_t state, decided;
    /* `begun` and `ended` are the last operations that this rank has begun and has reported as successful. */
    uint64_t begun, ended;
    /* The operation `barred` and later ones can no longer succeed. */
    uint64_t barred;
    /* `owed` is the number of peers to which a message is due, and `cursor` the peer that agree_next_message tries
       first. */
    uint64_t owed, cursor;
    /* The time; when to send ASK next, and the interval until the one after it; when to decide without all hosts; when
       to repeat FAIL. */
    int64_t now_ms, ask_at_ms, ask_gap_ms, settle_at_ms, repeat_at_ms;   /* ms, 0 = unset */
    uint64_t repeats;
    struct agree_suspect suspect;
    struct agree_call history[AGREE_HISTORY];
    /* `held` is valid from CLAIMS on; in OVER it is the decision. */
    struct agree_cause held;
};

/* ---- inputs from this rank ---- */
/* Initializes the object in state RUNS, with layout->peers and layout->speakers. */
void agree_init(struct agree *out, const struct agree_layout *layout);
/* Reports that this rank begins an operation; numbers grow by 1. */
void agree_begin(struct agree *agree, const struct agree_call *call);
/* Reports the first message of an operation from a rank of another host. It returns false if this rank has not begun
   the operation; the caller then reports it again later (the matching keeps early messages). */
bool agree_on_first_message(struct agree *agree, int peer, uint64_t number, uint64_t fingerprint);
/* Reports whether this rank waits for `peer`, a rank of another host. */
void agree_set_waiting(struct agree *agree, int peer, bool waits);
/* Ends the operation on this rank if it may still succeed: records it as ended and returns true, and the caller must
   then report success. Returns false and records nothing if it fails with the decision. Operations before the failed
   one may still end after the decision. */
bool agree_try_end_operation(struct agree *agree, uint64_t number);
/* Reports a cause that this rank has found. It counts only in state RUNS. */
void agree_report_cause(struct agree *agree, const struct agree_cause *cause);
/* Leaves the group; no operation may be open. */
void agree_leave(struct agree *agree);
/* ---- inputs from the host's segment ---- */
/* Reports the content of the failure record of this host, which leads to state KNOWS. */
void agree_on_failure_record(struct agree *agree, const struct agree_cause *record);
/* Reports the content of the decision record of this host, which leads to state OVER. */
void agree_on_decision_record(struct agree *agree, const struct agree_cause *record);
/* ---- inputs from peers ---- */
/* Reports a decoded message of a rank of another host. */
void agree_handle_message(struct agree *agree, int peer, const struct agree_message *message);
/* Reports a rank of any host as lost: its process has died, its link broke or carried an invalid message, or no link to
   it can be opened. The caller first ends all operations that can still end. `detail` is a text of the engine for the
   cause, or empty. */
void agree_on_peer_lost(struct agree *agree, int peer, const char *detail);
/* Reports that a rank has left, after operation `last`. Ranks of this host send no BYE, but set a word in the
   segment. */
void agree_on_peer_left(struct agree *agree, int peer, uint64_t last);
/* ---- time ---- */
/* Sets the time. The caller calls it at least every 20 ms while an operation is open, and before other inputs, which
   set timers by it. */
void agree_advance_time(struct agree *agree, int64_t now_ms);

/* Makes ASK due now to all awaited peers, because the operation's time is running out. */
void agree_ask_now(struct agree *agree);

/* ---- outputs ---- */
/* Takes the next due message: *to is its receiver. Returns false if no message is due.
   After each input the caller does the following, in this order. In state CLAIMS it writes `held` to the failure record
   unless that is written, and passes the record to agree_on_failure_record. In state DECIDES it does so with the
   decision record and agree_on_decision_record. Then it sends the messages of agree_next_message until that returns
   false, and drops a message for which it has no link. */
bool agree_next_message(struct agree *agree, int *to, struct agree_message *out);
/* Returns true if cause x takes precedence over cause y. */
bool agree_cause_precedes(const struct agree_cause *x, const struct agree_cause *y);

/* ---- wire.c ---- */
enum {
    AGREE_VERSION = 2,
    AGREE_CALL_BYTES = 16 + AGREE_DECLARATION_BYTES,
    AGREE_CAUSE_BYTES = 24 + 2 * AGREE_CALL_BYTES + AGREE_DETAIL_BYTES,
    AGREE_CALLS_BYTES = AGREE_HISTORY * AGREE_CALL_BYTES,
    AGREE_WIRE_BYTES = 8 + (AGREE_CAUSE_BYTES > AGREE_CALLS_BYTES ? AGREE_CAUSE_BYTES : AGREE_CALLS_BYTES)
};
/* Writes a message as bytes. */
void agree_message_encode(const struct agree_message *message, unsigned char out[AGREE_WIRE_BYTES]);
/* Reads a message from `length` bytes. Returns false, with *out unchanged, if no rank of a communicator of this size
   could have sent it. */
bool agree_message_decode(const unsigned char *bytes, size_t length, int size, struct agree_message *out);
