/* One time for each priority, of the process. What is stored last wins: at worst somebody rests a moment too long, or
   begins a tile too early. */
#include "backend/execute/precedence.h"
#include "backend/base/clock.h"

/* A link of 1 Gbit/s takes a tile of 2 MiB in 17 ms; meanwhile nothing moves here. */
_Atomic int64_t precedence_moment_ns = 50000000;
static _Atomic int64_t moved_ns[TUTTI_PRIORITIES];
static _Atomic int highest;                             /* that has ever moved */

void precedence_record(int priority, bool over)
{
    if (priority > atomic_load_explicit(&highest, memory_order_relaxed))
        atomic_store_explicit(&highest, priority, memory_order_relaxed);
    atomic_store_explicit(&moved_ns[priority], over ? 0 : clock_ns(), memory_order_relaxed);
}
bool precedence_is_deferred(int priority)
{
    int top = atomic_load_explicit(&highest, memory_order_relaxed);
    if (priority >= top) return false;
    int64_t since_ns = clock_ns() - atomic_load_explicit(&precedence_moment_ns, memory_order_relaxed);
    for (int p = priority + 1; p <= top; p++)
        if (atomic_load_explicit(&moved_ns[p], memory_order_relaxed) > since_ns) return true;
    return false;
}
