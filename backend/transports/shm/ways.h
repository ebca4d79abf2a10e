/* How a writer had better write what its peer reads next: by ordinary stores, or around its cache. What one way
   saves the writer it may cost the reader, and cores are moved, so both find it out together. Now and then they run
   an *A/B test* between fillings of one size: four blocks, this way, that, that, this. The writer says with each
   what writing it took, the reader adds what reading it took, and says which way is better, or that this is known
   already. Nobody waits for that: an A/B test whose end is never heard of changes nothing. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Fillings of these sizes are told apart: eager payloads from 1, 2 and 4 KiB on, and what slots are filled with, of
   messages that caches hold or not. */
enum filling { FILLS_1K, FILLS_2K, FILLS_4K, FILLS_16K, FILLS_32K, FILLS_64K, FILLS_BEYOND_CACHE, FILLINGS };
enum { FILLING_BITS = 8, FILLING_AT_LEAST = 1024, WAY_BLOCKS = 4, WAY_SAMPLES = 8 };
/* What the reader says, in one word: of each filling whether ordinary stores are better, and how many A/B tests it has
   judged. It begins with stores around the cache, which are never very bad (stores-around-the-cache.md). */

/* ---- the writer's end ---- */
struct way_state { uint32_t fillings, ab_test_from; uint8_t judged; };     /* zeroed: an A/B test begins at once */
struct ways { struct way_state of[FILLINGS]; };
struct way { bool around; unsigned number; }; /* number: of a filling of an A/B test, from 1; 0: it is not timed */
struct way ways_ab_test(struct ways *ways, enum filling filling, uint64_t said);
static inline bool way_is_around(enum filling filling, uint64_t said) { return !(said >> filling * FILLING_BITS & 1); }
static inline struct way ways_next(struct ways *w, enum filling filling, uint64_t said)
{
    if (++w->of[filling].fillings >= w->of[filling].ab_test_from) return ways_ab_test(w, filling, said);
    return (struct way){ .around = way_is_around(filling, said) };
}
/* What the writer says of one that it has timed. */
uint64_t way_word(unsigned number, int64_t ns);

/* ---- the reader's end ---- */
struct tally {
    unsigned last, phase, count; /* number and phase of the last sample; samples of this phase */
    double sample[WAY_SAMPLES], median[WAY_BLOCKS];     /* ns a byte */
};
struct judge { uint64_t says; struct tally of[FILLINGS]; };
/* A filling of `bytes` that came with that word (not 0) took so long to read. True: judge->says has changed. */
bool judge_hear(struct judge *judge, enum filling filling, uint64_t word, int64_t reading_ns, uint64_t bytes);
