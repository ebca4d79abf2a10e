/* The writer numbers the fillings of an A/B test from 1, and sends the number and its own time in one word. So the
   reader knows the block of each filling and its place there, and judges a block by the median of its samples. */
#include "backend/transports/shm/store_modes.h"
#include "backend/base/ab_test.h"
#include "backend/base/sorted.h"
#include <math.h>
#include <string.h>

enum { NUMBER_BITS = 16, NUMBER_MASK = (1 << NUMBER_BITS) - 1, SECOND_AB_TEST = 1024, AB_TEST_EVERY = 8192 };
/* The longest time of a filling that a sample records; longer ones count as this. */
enum { MOST_NS = 1 << 24 };

/* Returns the length of a lap: the fillings after which memory is written again. A block begins with a lap, so that all
   memory was last written in the mode of the block. Then the first TEST_SAMPLES fillings that were read count. */
static unsigned filling_lap_length(enum filling filling)
{
    static const unsigned laps[FILLINGS] = { 52, 29, 16, 64, 32, 16, 16 };
    return laps[filling];
}
/* Returns whether a block of an A/B test uses the other mode than the current one. The two middle blocks do, so that
   the fillings of each mode fall on different places of messages of equal length. */
static bool block_uses_other_mode(unsigned block) { return block == 1 || block == 2; }
/* Returns the number of fillings in a block. */
static unsigned filling_block_length(enum filling filling) { return filling_lap_length(filling) + 2 * TEST_SAMPLES; }

/* ---- the writer's end ---- */
/* Returns the byte of a size class in the published word: bit 0 is set if ordinary stores are better, and the count of
   decided tests is above. */
static uint8_t filling_choice_byte(enum filling filling, uint64_t chosen)
{
    return (uint8_t)(chosen >> filling * FILLING_BITS);
}
struct store_mode store_modes_test_next(struct store_modes *modes, enum filling filling, uint64_t chosen)
{
    struct store_mode_state *state = &modes->states[filling];
    uint8_t decided = filling_choice_byte(filling, chosen) >> 1;
    bool is_around = store_mode_is_around(filling, chosen);
    if (state->fillings == state->ab_test_from) state->decided = decided;
    unsigned number = state->fillings - state->ab_test_from, block = number / filling_block_length(filling);
    if (block < TEST_BLOCKS && state->decided == decided)
        return (struct store_mode){ is_around != block_uses_other_mode(block), number + 1 };
    state->ab_test_from =
        state->fillings < SECOND_AB_TEST ? SECOND_AB_TEST : (state->fillings / AB_TEST_EVERY + 1) * AB_TEST_EVERY;
    return (struct store_mode){ .is_around = is_around };
}
uint64_t store_mode_timing_word(unsigned number, int64_t ns)
{
    uint64_t counted = ns < 0 ? 0 : ns < MOST_NS ? (uint64_t)ns : MOST_NS;
    return counted << NUMBER_BITS | number;
}

/* ---- the reader's end ---- */
/* Ends the A/B test of a size class: counts it as decided in judge->chosen, and switches to the other mode if
   `switches` is set. The caller publishes the word. */
static void store_judge_end_test(struct store_judge *judge, enum filling filling, bool switches)
{
    uint8_t byte = filling_choice_byte(filling, judge->chosen), next_byte = (uint8_t)((byte ^ switches) + 2);
    judge->chosen ^= (uint64_t)(byte ^ next_byte) << filling * FILLING_BITS;
    memset(judge->tallies[filling].median, 0, sizeof judge->tallies[filling].median);
}
/* Returns whether the other mode has won the A/B test with these medians of its blocks. A median of 0 marks a block
   that is missing. */
static bool other_mode_is_better(const double *median)
{
    double current = fmin(median[0], median[3]), other = fmin(median[1], median[2]);
    return current > 0 && other > 0 && ab_test_is_won(current, other, fmax(median[1], median[2]));
}
/* Ends the A/B test if the median of `block`, which is now known, allows it. true: the test has ended. is_early: the
   median is that of the first samples of the second block, which may show early that the other mode is hopeless. */
static bool store_judge_decide_block(struct store_judge *judge, enum filling filling, unsigned block, bool is_early)
{
    const double *median = judge->tallies[filling].median;
    bool is_last = block == TEST_BLOCKS - 1;
    bool is_hopeless = block == 1 && median[0] > 0 && ab_test_is_hopeless(median[0], median[1], is_early);
    if (is_last || is_hopeless) store_judge_end_test(judge, filling, is_last && other_mode_is_better(median));
    return is_last || is_hopeless;
}
bool store_judge_add_sample(struct store_judge *judge, enum filling filling, uint64_t word, int64_t reading_ns,
    uint64_t bytes)
{
    struct tally *tally = &judge->tallies[filling];
    unsigned number = (unsigned)(word & NUMBER_MASK) - 1, block = number / filling_block_length(filling);
    unsigned index = number % filling_block_length(filling);
    uint64_t writing_ns = word >> NUMBER_BITS;
    if (block >= TEST_BLOCKS || writing_ns > MOST_NS || reading_ns < 0 || bytes < FILLING_AT_LEAST) return false;
    if (reading_ns > MOST_NS) reading_ns = MOST_NS;
    /* The first samples of the second block have a median of their own, which may end the test early. */
    bool is_early = block == 1 && index < AB_TEST_FEW_SAMPLES, is_new_test = number <= tally->last;
    unsigned phase = 2 * block + !is_early;
    /* A number that does not grow begins another A/B test. */
    if (is_new_test) memset(tally->median, 0, sizeof tally->median);
    if (!is_early && index < filling_lap_length(filling)) return false;
    if (is_new_test || phase != tally->phase) tally->count = 0;
    tally->last = number;
    tally->phase = phase;
    if (tally->count == TEST_SAMPLES) return false;
    tally->sample[tally->count++] = (double)(writing_ns + (uint64_t)reading_ns) / (double)bytes;
    if (tally->count < (is_early ? AB_TEST_FEW_SAMPLES : TEST_SAMPLES)) return false;
    tally->median[block] = doubles_sort_and_get(tally->sample, (int)tally->count, (int)tally->count / 2);
    return store_judge_decide_block(judge, filling, block, is_early);
}
