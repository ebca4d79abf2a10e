#include "backend/transports/shm/ways.h"
#include "backend/base/sorted.h"
#include <math.h>
#include <string.h>

enum { NUMBER_BITS = 16, NUMBER_MASK = (1 << NUMBER_BITS) - 1, SECOND_DUEL = 1024, DUEL_EVERY = 8192 };
enum { FEW_SAMPLES = 4, MOST_NS = 1 << 24 };            /* a few show what is hopeless */
static const double BETTER = 0.97, HOPELESS = 1.1;

/* A block begins with as many fillings as come before memory is written again: by then it lies where this way of
   writing leaves it. Of the others the first that were timed and read count. */
static unsigned lap_of(enum filling filling)
{
    static const unsigned laps[FILLINGS] = { [FILLS_EAGER] = 16, [FILLS_16K] = 64, [FILLS_32K] = 32, [FILLS_64K] = 16 };
    return laps[filling];
}
static unsigned block_of(enum filling filling) { return lap_of(filling) + 2 * WAY_SAMPLES; }

/* ---- the writer's end ---- */
static uint8_t said_of(enum filling filling, uint32_t said) { return (uint8_t)(said >> filling * FILLING_BITS); }
struct way ways_duel(struct ways *w, enum filling filling, uint32_t said)
{
    uint8_t mine = said_of(filling, said);
    uint32_t fillings = w->of[filling].fillings;
    if (fillings == w->of[filling].duel_from) w->of[filling].judged = mine >> 1;
    unsigned number = fillings - w->of[filling].duel_from, block = number / block_of(filling);
    bool over = block >= WAY_BLOCKS || w->of[filling].judged != mine >> 1;
    if (!over) return (struct way){ (mine ^ block) % 2 == 0, number + 1 };
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
    uint32_t mine = said_of(filling, j->says), next = (mine ^ other) + 2;
    j->says ^= (mine ^ (next & ((1u << FILLING_BITS) - 1))) << filling * FILLING_BITS;
}
static bool is_hopeless(const double *median) { return median[0] > 0 && median[1] > HOPELESS * median[0]; }
/* Each block of that is to be better than each of this; 0: one is missing. */
static bool is_better(const double *median)
{
    double this = fmin(median[0], median[2]), that = fmax(median[1], median[3]), least = fmin(median[1], median[3]);
    return this > 0 && least > 0 && that < this && least < BETTER * this;
}
static bool decide(struct judge *j, enum filling filling, unsigned block)
{
    const double *median = j->of[filling].median;
    bool over = block == WAY_BLOCKS - 1, hopeless = block == 1 && is_hopeless(median);
    if (over || hopeless) say(j, filling, over && is_better(median));
    return over || hopeless;
}
bool judge_hear(struct judge *j, enum filling filling, uint64_t word, int64_t reading_ns, uint64_t bytes)
{
    unsigned number = (unsigned)(word & NUMBER_MASK) - 1, block = number / block_of(filling);
    unsigned at = number % block_of(filling), *count = &j->of[filling].count;
    uint64_t writing_ns = word >> NUMBER_BITS;
    if (block >= WAY_BLOCKS || writing_ns > MOST_NS || reading_ns < 0 || bytes < FILLING_AT_LEAST) return false;
    if (reading_ns > MOST_NS) reading_ns = MOST_NS;
    bool early = block == 1 && at < FEW_SAMPLES, counts = early || at >= lap_of(filling);
    if (number == 0) memset(j->of[filling].median, 0, sizeof j->of[filling].median);
    if (at == 0 || at == lap_of(filling)) *count = 0;
    if (!counts || *count == WAY_SAMPLES) return false;
    j->of[filling].sample[(*count)++] = (double)(writing_ns + (uint64_t)reading_ns) / (double)bytes;
    if (*count < (early ? FEW_SAMPLES : WAY_SAMPLES)) return false;
    j->of[filling].median[block] = sorted_at(j->of[filling].sample, *count, *count / 2);
    return decide(j, filling, block);
}
