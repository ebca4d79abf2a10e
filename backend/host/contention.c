/* A thread learns from a late yield that others want its core. A late yield costs the time slice of another thread,
   some 3 ms, so the thread makes none for a while afterwards.

   Since Linux 6.6 (EEVDF) a thread that wakes up waits until the running thread has used its time slice, and a thread
   that yields gives away a whole time slice of its own. A thread with a shorter time slice than the running one
   interrupts it when it wakes up, if it has not used more than its share, and gives away less when it yields. */
#include "backend/host/contention.h"
#include "backend/base/clock.h"
#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* This is the first version of the kernel's struct sched_attr, which glibc before 2.41 lacks. For the policy OTHER,
   `runtime` is the time slice in ns. */
struct schedule_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};
enum { LATE_NS = 100000, CONTENDED_NS = 50000000, SLICE_NS = 100000 };
/* `until_ns` is the clock_ns() until which the core counts as contended, or 0. */
static _Thread_local struct {
    int64_t until_ns;
    bool has_short_slices;
} contention;

/* Asks for short time slices. Leaves a thread alone that has another policy than OTHER, or such slices already. */
static void thread_shorten_slices(void)
{
    struct schedule_attributes now = { .size = sizeof now };
    int saved = errno;
    contention.has_short_slices = true;
    if (syscall(SYS_sched_getattr, 0, &now, sizeof now, 0) == 0 && now.policy == SCHED_OTHER
        && (now.runtime == 0 || now.runtime > SLICE_NS)) {
        now.runtime = SLICE_NS;
        syscall(SYS_sched_setattr, 0, &now, 0);
    }
    errno = saved;
}
void core_yield(void)
{
    int64_t begin = clock_ns();
    sched_yield();
    int64_t end = clock_ns();
    if (end - begin < LATE_NS) return;
    contention.until_ns = end + CONTENDED_NS;
    if (!contention.has_short_slices) thread_shorten_slices();
}
bool core_is_contended(void) { return contention.until_ns && clock_ns() < contention.until_ns; }
