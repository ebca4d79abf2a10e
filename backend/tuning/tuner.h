/* The tuner compares choices while operations run. A cost is only a prediction: caches are shared with other virtual
 * machines, and the hypervisor moves cores. So for each kind of call one rank, its *decider*, sometimes lets all ranks
 * run a candidate. It measures the candidate and the incumbent, the choice that ran so far, in turns, and keeps the
 * faster one.
 *
 * The number of an operation and a word in shared memory determine what the operation runs. The decider writes the
 * word: one choice until an operation that it names, another from then on. It must name an operation that no rank has
 * reached. It may write again once every rank has reached that operation. If each rank waits for all others, no rank
 * gets beyond an operation that the decider only begins, so the decider can name the next one. If a rank may only
 * send, ranks are at most TRACKS - 1 operations apart (execute/tracks.h). All ranks meet kinds of calls in the same
 * order, so they number them the same. The candidate is part of the operation's fingerprint, so ranks detect a
 * difference like any other disagreement.
 *
 * An A/B test is six blocks of calls, of incumbent and candidate in turns, each judged by its median. A call lasts
 * from when the last rank has begun until the last rank has ended. A/B tests cost at most a tenth of the first calls,
 * and a hundredth later. They run on one host with a core for each rank, and only while no setting and no rank asks for
 * a choice. The bits of a sum are the same for all candidates. */
#pragma once
#include "backend/tuning/survey.h"

/* ---- the shared word ---- */
enum { TUNER_TIMED = 1 << CHOICE_BITS, CODE_BITS = CHOICE_BITS + 1, FROM_BITS = 64 - 2 * CODE_BITS };
/* Packs a word: code `before` runs until operation `from`, `after` from then on. */
uint64_t tuner_pack_word(uint64_t from, uint32_t before, uint32_t after);
/* Returns the code of the choice that an operation runs; 0: as predicted. With TUNER_TIMED all ranks record when they
   begin and end the operation. */
uint32_t tuner_code_at(uint64_t word, uint64_t operation);

/* ---- one kind of call ---- */
enum { TUNER_SAMPLES = 24 };
/* A kind of call. The message size is rounded down to a half octave. */
struct tuner_key { enum collective collective; int root; bool stage_inputs; size_t message_bytes; };
/* The state for placement-dependent variants, which select late or read tensors although the predicted cost is against
   it. seen: where the tensors of the last call lay that allowed the variant; before such a call, where they might lie.
   fallback: while such a variant is the incumbent, the last incumbent that was none. */
struct tuner_placement { enum placement_kind seen; struct candidate fallback; };
/* The present block of an A/B test. */
struct tuner_block {
    /* From 0. -1: no test runs. */
    int number;
    /* The number of the call that set it up, and those of the operations that begin this block and the next one; 0: not
       yet known. */
    uint64_t begun, start, change;
    /* The number of calls since a time was last added, and of times; below 0: warm-up calls. */
    int calls_without_time, count;
    /* The times of its calls. first_ns is that of the first warm-up call. */
    double sample[TUNER_SAMPLES], first_ns;
};
/* The time spent on finding candidates, and the total loss by tests and surveys, in calls of the incumbent, since call
   number `opened`: the first one, or the one in which a survey replaced the incumbent. */
struct tuner_budget {
    double searched_ns, lost;
    uint64_t opened;
};
/* The tuner of one kind of call. */
struct tuner {
    struct tuner_key key;
    struct tuner_line *line;
    /* The number of calls so far, which all ranks count alike. */
    uint64_t number;
    /* Only the decider uses the fields from here on. The question has the placement that was predicted. */
    struct question question;
    struct choice predicted;
    /* The incumbent, which runs between tests, and the candidate of the current test. */
    struct candidate incumbent, candidate;
    struct tuner_placement placement;
    /* The variant to test next, and the variant of the incumbent that the candidate is. */
    int next_variant, tested_variant;
    /* For each variant: the length of its pause in rounds, and the rounds that are left of it. */
    struct { unsigned char rounds, left; } skips[VARIANTS + 2];
    struct tuner_block block;
    /* The number of calls that began with a predicted choice, and the one of these from which on a candidate may be
       searched. */
    uint64_t calls, next_search;
    struct tuner_budget budget;
    /* The candidate is one that a survey proposes. */
    bool is_proposed;
    struct watch watch;
    struct survey survey;
};
struct tuners;
/* Counts a call of this kind that begins. Returns the code that it runs, perhaps with TUNER_TIMED. *is_watched: all
   ranks record when they begin it. Every rank calls this once for each call, the decider after tuner_begin_call. */
uint32_t tuner_count_call(struct tuner *tuner, uint64_t operation, bool *is_watched);
/* Returns the decider of a kind of call: the rank that runs its A/B tests, for all of the group's `ranks` ranks. */
int tuner_get_decider(const struct tuner_key *key, int ranks);

/* ---- decider only ---- */
/* The operation that begins, and how many operations other ranks may be behind and ahead of it. */
struct moment { uint64_t operation, behind, ahead; };
/* Counts a call of this kind that begins, and continues, ends or starts an A/B test. */
void tuner_begin_call(struct tuners *tuners, struct tuner *tuner, const struct moment *now,
    const struct variant_limits *limits);
/* Returns how many calls have their times read together. */
uint64_t tuner_get_batch(const struct tuner *tuner);
/* Adds the ns of an operation, if it belongs to the current block. */
void tuner_add_time(struct tuner *tuner, uint64_t operation, double ns);
/* Adds the ns of the present call, which ran `code`, from when the last rank has begun it until the decider has
   ended. */
void tuner_add_watched_time(struct tuner *tuner, uint32_t code, double ns);
/* True if the call that begins, before tuner_begin_call, may look for a candidate. */
bool tuner_may_search(const struct tuners *tuners, const struct tuner *tuner);
/* Sets the question and the predicted choice for the present placement of the tensors. If the placement has changed,
   the tuner starts again. */
void tuner_set_placement(struct tuner *tuner, const struct question *question, const struct choice *predicted);
/* Reports where the tensors of a call lay that selected late, or was to read them, against the cost. A
   placement-dependent variant ends if they do not allow it. */
void tuner_report_placement(struct tuner *tuner, enum placement_kind placement);
