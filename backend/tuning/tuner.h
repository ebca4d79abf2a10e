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
/* A choice with the least and the largest median of its blocks. */
struct candidate { struct choice choice; uint32_t code; double ns, most_ns; };
/* While `this` or `that` looks where tensors lie, or reads them, against the cost: the placement seen, and the
   incumbent before it. */
struct late_attempt { enum placement_kind seen; struct candidate before; };
struct tuner {
    struct tuner_key key;
    _Atomic uint64_t *word;
    /* Only the decider uses the fields from here on. The question has the placement that was predicted. */
    struct question question;
    struct choice predicted;
    /* The incumbent, which runs between tests, and the candidate of the current test. */
    struct candidate this, that;
    struct late_attempt look;
    /* The variant to try next, and the variant that `that` is. */
    int move, tried;
    /* For each variant: the length of its pause in rounds, and the rounds that are left of it. */
    struct { unsigned char rounds, left; } skips[VARIANTS + 1];
    /* The block of the A/B test, from 0. -1: no test runs. */
    int block;
    /* The operations that begin this block and the next one; 0: not yet known. */
    uint64_t start, change;
    /* Calls since the last time that was read, and times read in this block; below 0: warm-up calls. */
    int silent, count;
    /* The times of this block's calls. first_ns is that of its first warm-up call. */
    double sample[TUNER_SAMPLES], first_ns;
    /* Calls so far, the call that may look for the next candidate, and the call that set up this block. */
    uint64_t calls, next, begun;
    /* The time spent on finding candidates, and the total loss by tests, in calls of the incumbent. */
    double searched_ns, lost;
};
/* The values of TUTTI_TUNER. */
enum trying { TRIES_NOTHING, TRIES, TRIES_ANYTHING };
/* The tuners of one communicator. */
struct tuners {
    struct tuning *tuning;
    enum trying trying;
    int count;
    struct tuner *of[MOST_TUNERS];                           /* owned */
};
/* Follows TUTTI_TUNER. `crowded`: ranks share cores, so a time depends more on the other ranks than on the choice. */
void tuners_init(struct tuners *tuners, struct tuning *tuning, bool crowded);
/* Finds the tuner of a kind of call. The first call of a kind gets a new word. *out is NULL if there are too many
   kinds; then the call runs as predicted. NO_MEMORY. */
tutti_status tuners_find_or_create(struct tuners *tuners, const struct tuner_key *key, struct tuner **out);
void tuners_finish(struct tuners *tuners);
/* Call it when this rank asks for an algorithm: the other ranks then stop tuners of that collective. */
void tuners_stop_collective(struct tuners *tuners, enum collective collective);
int tuner_get_decider(const struct tuner_key *key, int ranks);

/* ---- decider only ---- */
/* The operation that begins, and how many operations other ranks may be behind and ahead of it. */
struct moment { uint64_t operation, behind, ahead; };
void tuner_begin_call(struct tuners *tuners, struct tuner *tuner, const struct moment *now,
    const struct variant_limits *limits);
/* Returns the number of calls whose times are read together. */
uint64_t tuner_get_batch(const struct tuner *tuner);
/* Adds the time of a timed call. */
void tuner_add_time(struct tuner *tuner, uint64_t operation, double ns);
/* True if the call that begins may look for a candidate. */
bool tuner_may_search(const struct tuners *tuners, const struct tuner *tuner);
/* Sets what is predicted for the tensors' present placement. If they were placed differently before, the tuner starts
   again. */
void tuner_set_placement(struct tuner *tuner, const struct question *question, const struct choice *predicted);
/* Reports where tensors lay in a call that looked first, or was to read them, against the cost. */
void tuner_report_placement(struct tuner *tuner, enum placement_kind placement);
