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
#include "backend/host/segment.h"
#include "backend/tuning/choice_code.h"
#include "backend/tuning/variants.h"

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
/* A choice with its code, and the least and the largest median of its blocks in ns. */
struct candidate { struct choice choice; uint32_t code; double ns, max_ns; };
/* The state for placement-dependent variants, which select late or read tensors although the predicted cost is against
   it. seen: where the tensors of the last call lay that allowed the variant; before such a call, where they might lie.
   fallback: while such a variant is the incumbent, the last incumbent that was none. */
struct tuner_placement { enum placement_kind seen; struct candidate fallback; };
/* The tuner of one kind of call. */
struct tuner {
    struct tuner_key key;
    /* The shared word. */
    _Atomic uint64_t *word;
    /* Only the decider uses the fields from here on. The question has the placement that was predicted. */
    struct question question;
    struct choice predicted;
    /* The incumbent, which runs between tests, and the candidate of the current test. */
    struct candidate incumbent, candidate;
    struct tuner_placement placement;
    /* The variant to test next, and the variant of the incumbent that the candidate is. */
    int next_variant, tested_variant;
    /* For each variant: the length of its pause in rounds, and the rounds that are left of it. */
    struct { unsigned char rounds, left; } skips[VARIANTS + 1];
    /* The block of the A/B test, from 0. -1: no test runs. */
    int block;
    /* The operations that begin this block and the next one; 0: not yet known. */
    uint64_t start, change;
    /* The number of calls since a time was last added, and of times in this block; below 0: warm-up calls. */
    int calls_without_time, count;
    /* The times of this block's calls. first_ns is that of its first warm-up call. */
    double sample[TUNER_SAMPLES], first_ns;
    /* The number of calls so far, of the call that may next look for a candidate, and of the call that set up this
       block. */
    uint64_t calls, next_search, block_begun;
    /* The time spent on finding candidates, and the total loss by tests, in calls of the incumbent. */
    double searched_ns, lost;
};
/* The values of TUTTI_TUNER. */
enum tuner_mode { TUNER_OFF, TUNER_ON, TUNER_TAKES_ANY_VARIANT };
/* The tuners of one communicator. */
struct tuners {
    /* The part of the segment that has the words. */
    struct tuning *tuning;
    enum tuner_mode mode;
    int count;
    struct tuner *of[MOST_TUNERS];                           /* owned */
};
/* Sets the mode by TUTTI_TUNER. shares_cores: ranks share cores, so a time depends more on the other ranks than on the
   choice, and tests are off. */
void tuners_init(struct tuners *tuners, struct tuning *tuning, bool shares_cores);
/* Finds the tuner of a kind of call. The first call of a kind gets a new word. *out is NULL if there are too many
   kinds; then the call runs as predicted. NO_MEMORY. */
tutti_status tuners_find_or_create(struct tuners *tuners, const struct tuner_key *key, struct tuner **out);
/* Frees all tuners. */
void tuners_finish(struct tuners *tuners);
/* Stops the tuners of a collective on all ranks of the host, because this rank asks for an algorithm. */
void tuners_stop_collective(struct tuners *tuners, enum collective collective);
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
/* True if the call that begins, before tuner_begin_call, may look for a candidate. */
bool tuner_may_search(const struct tuners *tuners, const struct tuner *tuner);
/* Sets the question and the predicted choice for the present placement of the tensors. If the placement has changed,
   the tuner starts again. */
void tuner_set_placement(struct tuner *tuner, const struct question *question, const struct choice *predicted);
/* Reports where the tensors of a call lay that selected late, or was to read them, against the cost. A
   placement-dependent variant ends if they do not allow it. */
void tuner_report_placement(struct tuner *tuner, enum placement_kind placement);
