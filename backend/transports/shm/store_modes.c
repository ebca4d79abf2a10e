/* The writer numbers the fillings of an A/B test from 1, and sends the number and its own time in one word. So the
   reader knows the block of each filling and its place there, and judges a block by the median of its samples. */
#include "backend/transports/shm/store_modes.h"
#include "backend/base/ab_test.h"
#include "backend/base/sorted.h"
#include <math.h>
#include <string.h>

enum { NUMBER_BITS = 16, NUMBER_MASK = (1 << NUMBER_BITS) - 1, SECOND_AB_TEST = 1024, AB_TEST_EVERY = 8192 };
enum { MOST_NS = 1 << 24 };

/* Returns the length of a lap: the fillings after which memory is written again. A block begins with a lap, so that all
   memory was last written in the mode of the block. Then the first TEST_SAMPLES fillings that were read count. */
static unsigned filling_lap_length(enum filling filling)
{
    static const unsigned laps[FILLINGS] = { 52, 29, 16, 64, 32, 16, 16 };
    return laps[filling];
}
/* The two middle blocks use the other mode, so that its fillings fall on different places of messages of equal
   length. */
static bool block_uses_other_mode(unsigned block) { return block == 1 || block == 2; }
static unsigned filling_block_length(enum filling filling) { return filling_lap_length(filling) + 2 * TEST_SAMPLES; }

/* ---- the writer's end ---- */
/* Returns the byte of a size class in the published word: the mode in bit 0, and the count of decided tests above. */
static uint8_t filling_choice_byte(enum filling filling, uint64_t chosen)
{
    return (uint8_t)(chosen >> filling * FILLING_BITS);
}
struct store_mode store_modes_test_next(struct store_modes *modes, enum filling filling, uint64_t chosen)
{
    struct store_mode_state *w = &modes->of[filling];
    uint8_t decided = filling_choice_byte(filling, chosen) >> 1;
    bool around = store_mode_is_around(filling, chosen);
    if (w->fillings == w->ab_test_from) w->decided = decided;
    unsigned number = w->fillings - w->ab_test_from, block = number / filling_block_length(filling);
    if (block < TEST_BLOCKS && w->decided == decided)
        return (struct store_mode){ around != block_uses_other_mode(block), number + 1 };
    w->ab_test_from = w->fillings < SECOND_AB_TEST ? SECOND_AB_TEST : (w->fillings / AB_TEST_EVERY + 1) * AB_TEST_EVERY;
    return (struct store_mode){ .around = around };
}
uint64_t store_mode_timing_word(unsigned number, int64_t ns)
{
    uint64_t counted = ns < 0 ? 0 : ns < MOST_NS ? (uint64_t)ns : MOST_NS;
    return counted << NUMBER_BITS | number;
}

/* ---- the reader's end ---- */
/* Ends an A/B test: counts it as decided, and switches to the other mode if `other` is set. */
static void store_judge_publish(struct store_judge *j, enum filling filling, bool other)
{
    uint8_t mine = filling_choice_byte(filling, j->chosen), next = (uint8_t)((mine ^ other) + 2);
    j->chosen ^= (uint64_t)(mine ^ next) << filling * FILLING_BITS;
    memset(j->of[filling].median, 0, sizeof j->of[filling].median);
}
/* A median of 0 marks a block that is missing. */
static bool other_mode_is_better(const double *median)
{
    double this = fmin(median[0], median[3]), least = fmin(median[1], median[2]);
    return this > 0 && least > 0 && ab_test_is_won(this, least, fmax(median[1], median[2]));
}
/* Decides after the median of a block is known. Returns true if the test has ended. `few`: the median is that of the
   first samples of the second block, which may show early that the other mode is hopeless. */
static bool store_judge_decide_block(struct store_judge *j, enum filling filling, unsigned block, bool few)
{
    const double *median = j->of[filling].median;
    bool over = block == TEST_BLOCKS - 1;
    bool hopeless = block == 1 && median[0] > 0 && ab_test_is_hopeless(median[0], median[1], few);
    if (over || hopeless) store_judge_publish(j, filling, over && other_mode_is_better(median));
    return over || hopeless;
}
bool store_judge_add_sample(struct store_judge *j, enum filling filling, uint64_t word, int64_t reading_ns,
    uint64_t bytes)
{
    struct tally *t = &j->of[filling];
    unsigned number = (unsigned)(word & NUMBER_MASK) - 1, block = number / filling_block_length(filling);
    unsigned at = number % filling_block_length(filling);
    uint64_t writing_ns = word >> NUMBER_BITS;
    if (block >= TEST_BLOCKS || writing_ns > MOST_NS || reading_ns < 0 || bytes < FILLING_AT_LEAST) return false;
    if (reading_ns > MOST_NS) reading_ns = MOST_NS;
    /* The first samples of the second block have a median of their own, which may end the test early. */
    bool few = block == 1 && at < AB_TEST_FEW_SAMPLES, again = number <= t->last;
    unsigned phase = 2 * block + !few;
    /* A number that does not grow begins another A/B test. */
    if (again) memset(t->median, 0, sizeof t->median);
    if (!few && at < filling_lap_length(filling)) return false;
    if (again || phase != t->phase) t->count = 0;
    t->last = number;
    t->phase = phase;
    if (t->count == TEST_SAMPLES) return false;
    t->sample[t->count++] = (double)(writing_ns + (uint64_t)reading_ns) / (double)bytes;
    if (t->count < (few ? AB_TEST_FEW_SAMPLES : TEST_SAMPLES)) return false;
    t->median[block] = doubles_sort_and_get(t->sample, (int)t->count, (int)t->count / 2);
    return store_judge_decide_block(j, filling, block, few);
}
