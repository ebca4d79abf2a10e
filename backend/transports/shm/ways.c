#include "backend/transports/shm/ways.h"
#include "backend/base/sorted.h"
#include <math.h>
#include <string.h>

enum { NUMBER_BITS = 16, NUMBER_MASK = (1 << NUMBER_BITS) - 1, SECOND_DUEL = 1024, DUEL_EVERY = 8192 };
enum { FEW_SAMPLES = 4, MOST_NS = 1 << 24 };            /* a few show what is hopeless */
static const double BETTER = 0.97, HOPELESS = 1.1, HOPELESS_AT_ONCE = 1.3;

/* A block begins with as many fillings as come before memory is written again: by then it lies where this way of
   writing leaves it. Of the others the first that were timed and read count. */
static unsigned lap_of(enum filling filling)
{
    static const unsigned laps[FILLINGS] = { 52, 29, 16, 64, 32, 16, 16 };
    return laps[filling];
}
/* This, that, that, this: the other way's fillings are not all of one place in messages that all have as many. */
static bool is_other(unsigned block) { return block == 1 || block == 2; }
static unsigned block_of(enum filling filling) { return lap_of(filling) + 2 * WAY_SAMPLES; }

/* ---- the writer's end ---- */
static uint8_t said_of(enum filling filling, uint64_t said) { return (uint8_t)(said >> filling * FILLING_BITS); }
struct way ways_duel(struct ways *w, enum filling filling, uint64_t said)
{
    uint8_t mine = said_of(filling, said);
    uint32_t fillings = w->of[filling].fillings;
    if (fillings == w->of[filling].duel_from) w->of[filling].judged = mine >> 1;
    unsigned number = fillings - w->of[filling].duel_from, block = number / block_of(filling);
    bool over = block >= WAY_BLOCKS || w->of[filling].judged != mine >> 1;
    if (!over) return (struct way){ (mine & 1) == is_other(block), number + 1 };
    w->of[filling].duel_from = fillings < SECOND_DUEL ? SECOND_DUEL : (fillings / DUEL_EVERY + 1) * DUEL_EVERY;
    return (struct way){ .around = mine % 2 == 0 };
}
uint64_t way_word(unsigned number, int64_t ns)
{
    uint64_t counted = ns < 0 ? 0 : ns < MOST_NS ? (uint64_t)ns : MOST_NS;
    return counted << NUMBER_BITS | number;
}

/* ---- the reader's end ---- */
static void say(struct judge *j, enum filling filling, bool other)
{
    uint8_t mine = said_of(filling, j->says), next = (uint8_t)((mine ^ other) + 2);
    j->says ^= (uint64_t)(mine ^ next) << filling * FILLING_BITS;
    memset(j->of[filling].median, 0, sizeof j->of[filling].median);
}
/* Each block of that is to be better than each of this; 0: one is missing. */
static bool is_better(const double *median)
{
    double this = fmin(median[0], median[3]), that = fmax(median[1], median[2]), least = fmin(median[1], median[2]);
    return this > 0 && least > 0 && that < this && least < BETTER * this;
}
static bool decide(struct judge *j, enum filling filling, unsigned block, double hopeless)
{
    const double *median = j->of[filling].median;
    bool over = block == WAY_BLOCKS - 1, is_hopeless = block == 1 && median[0] > 0 && median[1] > hopeless * median[0];
    if (over || is_hopeless) say(j, filling, over && is_better(median));
    return over || is_hopeless;
}
bool judge_hear(struct judge *j, enum filling filling, uint64_t word, int64_t reading_ns, uint64_t bytes)
{
    unsigned number = (unsigned)(word & NUMBER_MASK) - 1, block = number / block_of(filling);
    unsigned at = number % block_of(filling), *count = &j->of[filling].count;
    uint64_t writing_ns = word >> NUMBER_BITS;
    if (block >= WAY_BLOCKS || writing_ns > MOST_NS || reading_ns < 0 || bytes < FILLING_AT_LEAST) return false;
    if (reading_ns > MOST_NS) reading_ns = MOST_NS;
    if (number <= j->of[filling].last) memset(j->of[filling].median, 0, sizeof j->of[filling].median); /* a new duel */
    bool early = block == 1 && at < FEW_SAMPLES, counts = early || at >= lap_of(filling);
    unsigned phase = 2 * block + !early;
    if (!counts) return false;
    if (number <= j->of[filling].last || phase != j->of[filling].phase) *count = 0;
    j->of[filling].last = number;
    j->of[filling].phase = phase;
    if (*count == WAY_SAMPLES) return false;
    j->of[filling].sample[(*count)++] = (double)(writing_ns + (uint64_t)reading_ns) / (double)bytes;
    if (*count < (early ? FEW_SAMPLES : WAY_SAMPLES)) return false;
    j->of[filling].median[block] = sorted_at(j->of[filling].sample, *count, *count / 2);
    return decide(j, filling, block, early ? HOPELESS_AT_ONCE : HOPELESS);
}
