/* Short pauses between two polls of a word that another core writes, and a prefetch before a store to a line that
   another core has read. */
#pragma once

/* Tells the core that this thread spins: a pause of some nanoseconds. */
static inline void cpu_pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    /* On most cores "yield" has no effect, and "isb" waits. */
    __asm__ volatile("isb" ::: "memory");
#endif
}
/* Waits for `steps` dependent multiplications of about three cycles each, where a pause would take too long. */
static inline void cpu_spin_steps(int steps)
{
    unsigned long value = 3;
    for (int i = 0; i < steps; i++) {
        value *= value;
        __asm__ volatile("" : "+r"(value));
    }
}
/* Prefetches a cache line for writing and does not wait, so that a later store finds the line in this core's cache. The
   caller uses it only if no other core reads the line before that store. */
static inline void cache_line_prefetch_write(const void *line)
{
#if defined(__x86_64__)
    /* gcc compiles __builtin_prefetch to a prefetch for reading. */
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}
