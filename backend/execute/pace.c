/* Now and then the first line of a run is fetched for writing, with a clock beside it: how long it takes to get one
 * that a peer has read. Where the cores share a cache that is 20 to 70 ns, apart from when the memory is busy, and
 * 120 ns and more where they do not (Zen 4); so a low quantile tells one from the other. What stores of many lines cost
 * does not: there the memory has a say, and it is the writer's part only. Such a fetch takes as long as a fifth of a
 * call of 4 KiB between far cores, so it is done seldom once a thread knows: cores are moved once in seconds, and some
 * hundred runs later that is known. Begins with streaming, which is never very bad. */
#include "backend/execute/pace.h"
#include "backend/base/clock.h"
#include <stdatomic.h>

/* The first runs meet memory that no peer has read yet; then it is to be known soon. */
enum { SETTLED = 8, OFTEN = 8, OFTEN_UNTIL = 128, SELDOM = 64 };
static const double NEAR_NS = 60, FAR_NS = 90, LEAST_NS = 10, MOST_NS = 300, UP = 1.2, DOWN = 1.5;

static _Thread_local struct pace mine = { .line_ns = 150 };

bool pace_is_due(struct pace *p)
{
    unsigned call = p->calls++;
    return call >= SETTLED && call % (call < OFTEN_UNTIL ? OFTEN : SELDOM) == 0;
}
void pace_record(struct pace *p, double line_ns)
{
    if (line_ns > p->line_ns && p->line_ns < MOST_NS) p->line_ns *= UP;
    else if (line_ns < p->line_ns && p->line_ns > LEAST_NS) p->line_ns /= DOWN;
    if (p->line_ns < NEAR_NS) p->ordinary = true;
    else if (p->line_ns > FAR_NS) p->ordinary = false;
}
static double line_sample(void *to)
{
    int64_t begin = clock_ns();
    atomic_fetch_or_explicit((_Atomic uint64_t *)to, 0, memory_order_relaxed);
    return (double)(clock_ns() - begin);
}
bool pace_streams(void *to)
{
    if ((uintptr_t)to % sizeof(uint64_t) == 0 && pace_is_due(&mine)) pace_record(&mine, line_sample(to));
    return !mine.ordinary;
}
