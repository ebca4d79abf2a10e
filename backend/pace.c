/* Now and then a little is written by ordinary stores, with a clock beside it, and as much within this core's own
 * cache. Where the peers share a cache with this core, a store into a line that they have read costs 1 to 9 times as
 * much as one here, mostly 5, and where not 3 to 35 times, mostly 22 (Zen 4; what is copied is in the cache both times,
 * so it does not matter where it came from). Begins with streaming, which is never bad. */
#include "backend/pace.h"
#include "backend/base/clock.h"
#include "kernels/stream.h"
#include <stdatomic.h>
#include <string.h>

enum { EVERY = 16, LEAST_BYTES = 1024, MOST_BYTES = 4096 };            /* of a sample */
enum { SETTLED = 8 };                                   /* the first runs meet memory that no peer has read yet */
static const double NEAR = 8, FAR = 12, LEAST = 2, MOST = 32, STEP = 1.2;

static _Thread_local struct pace mine = { .ratio = 16 };

bool pace_is_due(struct pace *p)
{
    unsigned call = p->calls++;
    return call >= SETTLED && call % EVERY == 0;
}
void pace_note(struct pace *p, double ratio)
{
    if (ratio > p->ratio && p->ratio < MOST) p->ratio *= STEP;
    else if (ratio < p->ratio && p->ratio > LEAST) p->ratio /= STEP;
    if (p->ratio < NEAR) p->ordinary = true;
    else if (p->ratio > FAR) p->ordinary = false;
}
/* A few bytes fit into the buffers in which a core keeps its stores: the time until these are empty, as an exchange
   finds them, belongs to them. */
static double timed(void *to, const void *from, size_t bytes)
{
    static _Thread_local _Atomic uint32_t word;
    int64_t begin = clock_ns();
    memcpy(to, from, bytes);
    __asm__ volatile("" ::"r"(to) : "memory");
    atomic_fetch_add(&word, 1);
    return (double)(clock_ns() - begin);
}
/* Copies the sample, and tells how many times dearer it was than a copy into this core's cache. */
static double sample(void *to, const void *from, size_t bytes)
{
    unsigned char here[MOST_BYTES];
    timed(here, from, bytes);                           /* now it is in the cache */
    double own = timed(here, from, bytes);
    return timed(to, from, bytes) / (own > 1 ? own : 1);
}
void pace_copy(void *to, const void *from, size_t bytes)
{
    stream_function *stream = stream_find();
    size_t done = 0;
    if (stream && bytes >= LEAST_BYTES && pace_is_due(&mine)) {
        done = bytes < MOST_BYTES ? bytes : MOST_BYTES;
        pace_note(&mine, sample(to, from, done));
    }
    if (!stream || mine.ordinary) memcpy((char *)to + done, (const char *)from + done, bytes - done);
    else if (bytes > done) stream((char *)to + done, (const char *)from + done, bytes - done);
}
bool pace_is_ordinary(void) { return mine.ordinary && mine.calls % EVERY != 0; }
