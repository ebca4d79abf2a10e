/* Chooses the store mode in which a writer writes data that its peer reads next: ordinary stores, or stores around the
   cache. The mode that saves time for the writer may cost time for the reader, and the system moves ranks between
   cores, so the two decide together. A filling is what the writer writes at once: an eager payload of 1 KiB or more, or
   the bytes of one slot. Now and then the two ranks run an A/B test over fillings of one size, in four blocks: the
   current mode, the other mode twice, the current mode. The writer sends its time with each filling. The reader adds
   its own time, and publishes the better mode and how many tests it has decided. A test that does not end changes
   nothing. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Each size class has its own mode: eager payloads from 1, 2 and 4 KiB on, slot fillings of 16, 32 and 64 KiB, and slot
   fillings of messages beyond the caches. */
enum filling { FILLS_1K, FILLS_2K, FILLS_4K, FILLS_16K, FILLS_32K, FILLS_64K, FILLS_BEYOND_CACHE, FILLINGS };
enum { FILLING_BITS = 8, FILLING_AT_LEAST = 1024, TEST_BLOCKS = 4, TEST_SAMPLES = 8 };
/* The reader publishes one word. For each size class it has a bit, set if ordinary stores are better, and a count of
   decided A/B tests. It begins with stores around the cache, the smaller of the two mistakes
   (stores-around-the-cache.md). */

/* ---- the writer's end ---- */
/* The state of one size class. `fillings` counts its fillings, `ab_test_from` is the number of the filling that begins
   the present or next A/B test, and `decided` is the reader's count of decided tests when that test began. Zeroed
   memory starts an A/B test at once. */
struct store_mode_state { uint32_t fillings, ab_test_from; uint8_t decided; };
struct store_modes { struct store_mode_state states[FILLINGS]; };
/* The mode of one filling. is_around: it is written around the cache. `number` counts the fillings of an A/B test from
   1; 0: the filling is not timed. */
struct store_mode { bool is_around; unsigned number; };
/* Returns the mode of a filling of an A/B test. After the last one it plans the next test, and returns the current
   mode. `chosen` is the word that the reader has published. */
struct store_mode store_modes_test_next(struct store_modes *modes, enum filling filling, uint64_t chosen);
/* Returns whether the current mode of a size class writes around the cache, by the reader's word `chosen`. */
static inline bool store_mode_is_around(enum filling filling, uint64_t chosen)
{
    return !(chosen >> filling * FILLING_BITS & 1);
}
/* Counts the next filling of a size class, and returns its mode. `chosen` is the word that the reader has published. */
static inline struct store_mode store_modes_next(struct store_modes *modes, enum filling filling, uint64_t chosen)
{
    if (++modes->states[filling].fillings >= modes->states[filling].ab_test_from)
        return store_modes_test_next(modes, filling, chosen);
    return (struct store_mode){ .is_around = store_mode_is_around(filling, chosen) };
}
/* Returns the word that the writer sends with a timed filling: its number in the A/B test, and the time to write it. */
uint64_t store_mode_timing_word(unsigned number, int64_t ns);

/* ---- the reader's end ---- */
/* The samples of one size class in the present A/B test. */
struct tally {
    /* The number and phase of the last sample, and the count of samples in this phase. `phase` is twice the block, plus
       1 unless the samples are those that may end the test early. */
    unsigned last, phase, count;
    double sample[TEST_SAMPLES], median[TEST_BLOCKS]; /* ns per byte */
};
/* `chosen` is the word that the reader publishes. */
struct store_judge { uint64_t chosen; struct tally tallies[FILLINGS]; };
/* Records that a filling of `bytes` bytes, which came with this timing word of the writer (not 0), took reading_ns to
   read. true: judge->chosen has changed. */
bool store_judge_add_sample(struct store_judge *judge, enum filling filling, uint64_t word, int64_t reading_ns,
    uint64_t bytes);
