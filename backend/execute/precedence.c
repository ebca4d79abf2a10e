/* The process keeps one time for each priority. Concurrent stores may overwrite each other: at worst a rank pauses a
   moment too long, or begins a tile too early. */
#include "backend/execute/precedence.h"
#include "backend/base/clock.h"

/* 50 ms, because a 1 Gbit/s link takes 17 ms for a tile of 2 MiB, and no step moves meanwhile. */
_Atomic int64_t precedence_moment_ns = 50000000;
/* [priority]: when an operation last moved; 0: none runs. */
static _Atomic int64_t moved_ns[TUTTI_PRIORITIES];
/* The highest priority that has ever moved. */
static _Atomic int highest;

void precedence_record_progress(int priority, bool is_over)
{
    if (priority > atomic_load_explicit(&highest, memory_order_relaxed))
        atomic_store_explicit(&highest, priority, memory_order_relaxed);
    atomic_store_explicit(&moved_ns[priority], is_over ? 0 : clock_ns(), memory_order_relaxed);
}
bool precedence_must_defer(int priority)
{
    int top = atomic_load_explicit(&highest, memory_order_relaxed);
    if (priority >= top) return false;
    int64_t since_ns = clock_ns() - atomic_load_explicit(&precedence_moment_ns, memory_order_relaxed);
    for (int p = priority + 1; p <= top; p++)
        if (atomic_load_explicit(&moved_ns[p], memory_order_relaxed) > since_ns) return true;
    return false;
}
