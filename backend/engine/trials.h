/* Choices tried against each other while operations run. A price is a forecast: caches are shared with other machines,
 * and cores are moved. So of each kind of call one rank, its *decider*, now and then lets all ranks run something else
 * than what ran so far, measures both in turns, and keeps what took less.
 *
 * What runs is a function of the number of the operation and of a word in shared memory, which the decider writes: one
 * choice until an operation that it names, another from then on. It is to name one that nobody has reached, and may
 * write again when nobody is before that one any more. Where all await all, nobody goes beyond an operation that the
 * decider only begins, so that can be the next one; where a rank may only send, ranks are at most TRACKS - 1 operations
 * apart (execute/tracks.h). All ranks meet kinds of calls in the same order, so they number them alike; and what is
 * tried is part of the fingerprint: if they did not, they would learn it as they learn of any disagreement.
 *
 * An A/B test is six blocks of calls, this and that in turns, each judged by its median. A call is timed from when
 * the last rank has begun until the last has ended. Trials cost at most a tenth of the first calls, and a hundredth
 * later. On one host, with a core for each rank, where nobody asks for anything; the bits of a sum depend on nothing
 * that is tried. */
#pragma once
#include "backend/engine/variants.h"
#include "backend/host/segment.h"

/* ---- words ---- */
enum { TRIAL_TIMED = 1 << CHOICE_BITS, CODE_BITS = CHOICE_BITS + 1, FROM_BITS = 64 - 2 * CODE_BITS };
uint64_t trial_word(uint64_t from, uint32_t before, uint32_t after);
/* Of the choice, or 0: as priced. With TRIAL_TIMED all ranks say when they begin and end. */
uint32_t trial_code_at(uint64_t word, uint64_t operation);

/* ---- of one kind of call ---- */
enum { TRIAL_SAMPLES = 24 };
struct trial_key { enum family family; int root; bool stage_inputs; size_t message_bytes; };   /* to half octaves */
struct candidate { struct choice choice; uint32_t code; double ns, most_ns; };         /* medians of its blocks */
/* While this or that looks where tensors lie, or reads them, in spite of the price: where they lay, and what ran
   before. */
struct look { enum placement_kind seen; struct candidate before; };
struct trial {
    struct trial_key key;
    _Atomic uint64_t *word;
    /* The rest is of use to the decider. */
    struct question question;                           /* with the placement that the price goes by */
    struct choice priced;
    struct candidate this, that;                        /* what runs at rest, and what is tried */
    struct look look;
    int move, tried;                                    /* the variant to be tried next; that is which one */
    struct { unsigned char rounds, left; } skips[VARIANTS + 1];  /* for so many rounds it is not tried again */
    int block;                                          /* of the A/B test, from 0; -1: none */
    uint64_t start, change;                             /* where it and the next one begin; 0: not yet known */
    int silent, count; /* calls since one was told; so many told; below 0: to warm up */
    double sample[TRIAL_SAMPLES], first_ns;             /* what they took */
    uint64_t calls, next, begun;                        /* so far; when to look for something to try; of the block */
    double searched_ns, lost;                           /* looking; by trying, in calls of what runs at rest */
};
enum trying { TRIES_NOTHING, TRIES, TRIES_ANYTHING };   /* TUTTI_TRIALS */
struct trials {                                         /* of one communicator */
    struct tuning *tuning;
    enum trying trying;
    int count;
    struct trial *of[TRIALS];                           /* owned */
};
/* The first call of a kind gives it a word. *out is NULL if there are too many kinds: then what is priced runs.
   NO_MEMORY. */
tutti_status trials_find(struct trials *trials, const struct trial_key *key, struct trial **out);
void trials_finish(struct trials *trials);
/* This rank asks for an algorithm: others, if they do not, are to try nothing in its place. */
void trials_stop(struct trials *trials, enum family family);
int trial_decider(const struct trial_key *key, int ranks);

/* ---- by the decider ---- */
/* The operation that begins; the others are at most so many behind it, and so many ahead. */
struct moment { uint64_t operation, behind, ahead; };
void trial_begin(struct trials *trials, struct trial *trial, const struct moment *now, const struct variety *variety);
uint64_t trial_batch(const struct trial *trial);        /* so many calls are to come together before it is told */
void trial_took(struct trial *trial, uint64_t operation, double ns);    /* one that was timed */
bool trial_may_search(const struct trials *trials, const struct trial *trial);  /* in the call that begins */
/* This is what is priced where the tensors lie now; begins anew if they lay elsewhere. */
void trial_is_of(struct trial *trial, const struct question *question, const struct choice *priced);
/* Where the tensors lay when that was looked at, or they were to be read, in spite of the price. */
void trial_has_seen(struct trial *trial, enum placement_kind placement);
