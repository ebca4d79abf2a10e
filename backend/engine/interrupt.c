/* A check may take milliseconds (Python's takes the GIL), so a thread calls it first after INTERVAL_MS of waiting. */
#include "backend/engine/interrupt.h"
#include "backend/base/clock.h"
#include <stddef.h>

enum { INTERVAL_MS = 100 };
static _Thread_local bool (*thread_check)(void);

void interrupt_set_check(bool (*is_interrupted)(void)) { thread_check = is_interrupted; }
bool interrupt_is_due(struct interrupt_timer *timer)
{
    if (!timer || !thread_check) return false;
    int64_t now_ms = clock_ms(), due_ms = timer->due_ms;
    if (due_ms && now_ms < due_ms) return false;
    timer->due_ms = now_ms + INTERVAL_MS;
    return due_ms != 0;
}
bool interrupt_run_check(void) { return thread_check && thread_check(); }
