/* Now and then a thread times how long it takes to fetch the first line of a slot for writing after a peer has read it.
 * On Zen 4 that takes 20 to 70 ns if the cores share a cache, unless memory is busy, and at least 120 ns if they do
 * not. So a low quantile separates the two cases. The time of many stores does not, because it depends on memory and is
 * only the writer's part. One such fetch takes a fifth of a 4 KiB call between far cores, so a settled thread measures
 * seldom. A thread is moved to another core at most once in a few seconds, and notices it within some hundred slots. A
 * thread begins with streaming (stores around the cache), the smaller of the two mistakes. */
#include "backend/execute/pace.h"
#include "backend/base/clock.h"
#include <stdatomic.h>

/* The first SETTLED calls meet memory that no peer has read yet. Then a thread measures often until OFTEN_UNTIL. */
enum { SETTLED = 8, OFTEN = 8, OFTEN_UNTIL = 128, SELDOM = 64 };
/* Below NEAR_NS ordinary stores are used, above FAR_NS streaming. line_ns stays between LEAST_NS and MOST_NS; it rises
   and falls by the factors UP and DOWN. */
static const double NEAR_NS = 60, FAR_NS = 90, LEAST_NS = 10, MOST_NS = 300, UP = 1.2, DOWN = 1.5;

static _Thread_local struct pace mine = { .line_ns = 150 };

bool pace_count_call(struct pace *pace)
{
    unsigned call = pace->calls++;
    return call >= SETTLED && call % (call < OFTEN_UNTIL ? OFTEN : SELDOM) == 0;
}
void pace_record_measurement(struct pace *pace, double line_ns)
{
    if (line_ns > pace->line_ns && pace->line_ns < MOST_NS) pace->line_ns *= UP;
    else if (line_ns < pace->line_ns && pace->line_ns > LEAST_NS) pace->line_ns /= DOWN;
    if (pace->line_ns < NEAR_NS) pace->ordinary_stores = true;
    else if (pace->line_ns > FAR_NS) pace->ordinary_stores = false;
}
/* Returns the ns that this core takes to fetch a line for writing. The addition of no bit writes nothing, but needs the
   line as a store does. */
static double line_time_fetch(void *to)
{
    int64_t begin = clock_ns();
    atomic_fetch_or_explicit((_Atomic uint64_t *)to, 0, memory_order_relaxed);
    return (double)(clock_ns() - begin);
}
bool pace_prefers_streaming(void *to)
{
    if ((uintptr_t)to % sizeof(uint64_t) == 0 && pace_count_call(&mine))
        pace_record_measurement(&mine, line_time_fetch(to));
    return !mine.ordinary_stores;
}
