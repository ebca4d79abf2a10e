/* Now and then the first word of a run is exchanged, with a clock beside it: how long it takes to get a line that a
 * peer has read. Where the cores share a cache that is 20 to 70 ns, apart from when the memory is busy, and 120 ns and
 * more where they do not (Zen 4); so a low quantile tells one from the other. What stores of many lines cost does not:
 * there the memory has a say, and it is the writer's part only. Begins with streaming, which is never very bad. */
#include "backend/pace.h"
#include "backend/base/clock.h"
#include "kernels/stream.h"
#include <stdatomic.h>
#include <string.h>

enum { EVERY = 8, SETTLED = 8, LEAST_BYTES = 1024 };    /* the first runs meet memory that no peer has read yet */
static const double NEAR_NS = 60, FAR_NS = 90, LEAST_NS = 10, MOST_NS = 300, UP = 1.2, DOWN = 1.5;

static _Thread_local struct pace mine = { .line_ns = 150 };

bool pace_is_due(struct pace *p)
{
    unsigned call = p->calls++;
    return call >= SETTLED && call % EVERY == 0;
}
void pace_note(struct pace *p, double line_ns)
{
    if (line_ns > p->line_ns && p->line_ns < MOST_NS) p->line_ns *= UP;
    else if (line_ns < p->line_ns && p->line_ns > LEAST_NS) p->line_ns /= DOWN;
    if (p->line_ns < NEAR_NS) p->ordinary = true;
    else if (p->line_ns > FAR_NS) p->ordinary = false;
}
static double sample(void *to, const void *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    int64_t begin = clock_ns();
    atomic_exchange_explicit((_Atomic uint64_t *)to, word, memory_order_relaxed);
    return (double)(clock_ns() - begin);
}
void pace_copy(void *to, const void *from, size_t bytes)
{
    stream_function *stream = stream_find();
    bool fit = bytes >= LEAST_BYTES && (uintptr_t)to % sizeof(uint64_t) == 0;
    if (stream && fit && pace_is_due(&mine)) pace_note(&mine, sample(to, from));
    if (!stream || mine.ordinary) memcpy(to, from, bytes);
    else stream(to, from, bytes);
}
bool pace_is_ordinary(void) { return mine.ordinary && mine.calls % EVERY != 0; }
