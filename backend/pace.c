/* Begins with streaming, which is never bad, and stays with it until ordinary stores prove to be about as good. */
#include "backend/pace.h"
#include "backend/base/clock.h"
#include "kernels/stream.h"
#include <string.h>

enum { EVERY = 32, SAMPLE_BYTES = 4096, SETTLED = 8 };  /* the first runs meet memory that no peer has read yet */
static const double TOLERABLE = 1.5, FORGETTING = 1.1;  /* ordinary stores cost 0.8 to 1.1 times as much, or 4 to 14 */

static _Thread_local struct pace mine;

enum pace_call pace_next(struct pace *p)
{
    unsigned call = p->calls++;
    if (call < SETTLED) return PACE_AS_EVER;
    if (call % EVERY == 0) return p->ordinary ? PACE_TIME_STREAMED : PACE_TIME_BOTH;
    return p->ordinary && call % (EVERY / 4) == 0 ? PACE_TIME_ORDINARY : PACE_AS_EVER;
}
void pace_note_streamed(struct pace *p, double cost)
{
    double remembered = p->streamed * FORGETTING;
    p->streamed = remembered > 0 && remembered < cost ? remembered : cost;
}
void pace_note_ordinary(struct pace *p, double cost)
{
    bool better = cost < TOLERABLE * p->streamed;
    p->against = better == p->ordinary ? 0 : p->against + 1;
    if (p->against < 2) return;
    p->ordinary = better;
    p->against = 0;
}
static double timed(void (*copy)(void *, const void *, size_t), void *to, const void *from, size_t bytes)
{
    int64_t begin = clock_ns();
    copy(to, from, bytes);
    return (double)(clock_ns() - begin) / (double)bytes;
}
static void copy_plainly(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); }
void pace_copy(void *to, const void *from, size_t bytes)
{
    stream_function *stream = stream_find();
    enum pace_call call = stream && bytes > SAMPLE_BYTES ? pace_next(&mine) : PACE_AS_EVER;
    size_t sample = call == PACE_TIME_BOTH ? SAMPLE_BYTES : bytes;
    switch (call) {
    case PACE_AS_EVER:
        if (!stream || mine.ordinary) memcpy(to, from, bytes);
        else stream(to, from, bytes);
        return;
    case PACE_TIME_STREAMED: pace_note_streamed(&mine, timed(stream, to, from, bytes)); return;
    case PACE_TIME_BOTH:
        pace_note_streamed(&mine, timed(stream, (char *)to + sample, (const char *)from + sample, bytes - sample));
        /* fall through */
    case PACE_TIME_ORDINARY: pace_note_ordinary(&mine, timed(copy_plainly, to, from, sample)); return;
    }
}
bool pace_is_ordinary(void) { return mine.ordinary && mine.calls % (EVERY / 4) != 0; }
