/* Forward and backward passes use the units in opposite orders. Two events show which pass it is; one would not. The
   record covers a few steps of training. Rarer behavior is not worth predicting. */
#include "zero/prefetcher.h"
#include "backend/base/memory.h"
#include <stdlib.h>
#include <string.h>

/* At least this many passes over all units stay recorded. */
enum { RECORDED_PASSES = 6 };

bool prefetcher_init(struct prefetcher *f, int units)
{
    *f = (struct prefetcher){ .room = RECORDED_PASSES * (units + 1) };
    f->events = memory_alloc_zeroed(2 * (size_t)f->room, sizeof *f->events);
    return f->events != NULL;
}
void prefetcher_finish(struct prefetcher *f) { free(f->events); }
/* Appends an event. The array keeps the last `room` to 2 * room events. */
void prefetcher_record(struct prefetcher *f, int event)
{
    if (f->count == 2 * f->room) {
        memcpy(f->events, f->events + f->room, (size_t)f->room * sizeof *f->events);
        f->count = f->room;
    }
    f->events[f->count++] = event;
}
/* Returns the event that last followed the events `before` and `last`, or PREFETCH_NONE. */
static int prefetcher_find_next(const struct prefetcher *f, int before, int last)
{
    for (int i = f->count - 2; i > 0; i--)
        if (f->events[i] == last && f->events[i - 1] == before) return f->events[i + 1];
    return PREFETCH_NONE;
}
int prefetcher_predict(const struct prefetcher *f, int limit, int *out)
{
    int found = 0;
    if (f->count < 2) return 0;
    for (int before = f->events[f->count - 2], last = f->events[f->count - 1]; found < limit; found++) {
        int next = prefetcher_find_next(f, before, last);
        if (next < 0) break;
        out[found] = next;
        before = last;
        last = next;
    }
    return found;
}
