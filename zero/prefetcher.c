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
    f->past = memory_alloc_zeroed(2 * (size_t)f->room, sizeof *f->past);
    return f->past != NULL;
}
void prefetcher_finish(struct prefetcher *f) { free(f->past); }
/* Adds an event (a use of a unit) to the history, which keeps the last `room` to 2 * room events. */
void prefetcher_record(struct prefetcher *f, int event)
{
    if (f->count == 2 * f->room) {
        memcpy(f->past, f->past + f->room, (size_t)f->room * sizeof *f->past);
        f->count = f->room;
    }
    f->past[f->count++] = event;
}
static int prefetcher_find_next(const struct prefetcher *f, int before, int last)
{
    for (int i = f->count - 2; i > 0; i--)
        if (f->past[i] == last && f->past[i - 1] == before) return f->past[i + 1];
    return PREFETCH_NONE;
}
int prefetcher_predict(const struct prefetcher *f, int most, int *out)
{
    int found = 0;
    if (f->count < 2) return 0;
    for (int before = f->past[f->count - 2], last = f->past[f->count - 1]; found < most; found++) {
        int next = prefetcher_find_next(f, before, last);
        if (next < 0) break;
        out[found] = next;
        before = last;
        last = next;
    }
    return found;
}
