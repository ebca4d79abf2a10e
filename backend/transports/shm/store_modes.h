/* Chooses the store mode in which a writer writes data that its peer reads next: ordinary stores, or stores around the
   cache. The mode that saves time for the writer may cost time for the reader, and the system moves ranks between
   cores, so the two decide together. Now and then they run an A/B test over fillings of one size, in four blocks: the
   current mode, the other mode twice, the current mode. The writer sends its time with each filling. The reader adds
   its own time, and publishes the better mode and how many tests it has decided. A test without an end changes
   nothing. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Each size class has its own mode: eager payloads from 1, 2 and 4 KiB on, slot fillings of 16, 32 and 64 KiB, and slot
   fillings of messages beyond the caches. */
enum filling { FILLS_1K, FILLS_2K, FILLS_4K, FILLS_16K, FILLS_32K, FILLS_64K, FILLS_BEYOND_CACHE, FILLINGS };
enum { FILLING_BITS = 8, FILLING_AT_LEAST = 1024, TEST_BLOCKS = 4, TEST_SAMPLES = 8 };
/* The reader publishes one word. For each size class it has a bit, set if ordinary stores are better, and a count of
   decided A/B tests. It begins with stores around the cache, which are never very bad (stores-around-the-cache.md). */

/* ---- the writer's end ---- */
/* `fillings` counts the fillings of this size class, `ab_test_from` is the one that begins the next A/B test, and
   `decided` is the reader's count of decided tests at its beginning. Zeroed memory starts an A/B test at once. */
struct store_mode_state { uint32_t fillings, ab_test_from; uint8_t decided; };
struct store_modes { struct store_mode_state of[FILLINGS]; };
/* `number` counts the fillings of an A/B test from 1; 0: the filling is not timed. */
struct store_mode { bool around; unsigned number; };
/* These return the mode of the next filling. `chosen` is the word that the reader has published. store_modes_test_next
   is for fillings of an A/B test, or between the end of one and the plan of the next. */
struct store_mode store_modes_test_next(struct store_modes *modes, enum filling filling, uint64_t chosen);
static inline bool store_mode_is_around(enum filling filling, uint64_t chosen)
{
    return !(chosen >> filling * FILLING_BITS & 1);
}
static inline struct store_mode store_modes_next(struct store_modes *w, enum filling filling, uint64_t chosen)
{
    if (++w->of[filling].fillings >= w->of[filling].ab_test_from) return store_modes_test_next(w, filling, chosen);
    return (struct store_mode){ .around = store_mode_is_around(filling, chosen) };
}
/* Returns the word that the writer sends with a timed filling. */
uint64_t store_mode_timing_word(unsigned number, int64_t ns);

/* ---- the reader's end ---- */
struct tally {
    /* The number and phase of the last sample, and the count of samples in this phase. */
    unsigned last, phase, count;
    double sample[TEST_SAMPLES], median[TEST_BLOCKS]; /* ns per byte */
};
/* `chosen` is the word that the reader publishes. */
struct store_judge { uint64_t chosen; struct tally of[FILLINGS]; };
/* Records how long it took to read a filling of `bytes` that came with this word (not 0). true: judge->chosen has
   changed. */
bool store_judge_add_sample(struct store_judge *judge, enum filling filling, uint64_t word, int64_t reading_ns,
    uint64_t bytes);
