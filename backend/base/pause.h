/* What a thread does between two looks at a word that another core is to write, and before it writes one that another
   core has read. */
#pragma once

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");                              /* yield is a no-op on most cores; this is not */
#endif
}
/* So many multiplications, one after the other: three cycles each, where a pause would be too long. */
static inline void pass_steps(int steps)
{
    unsigned long value = 3;
    for (int i = 0; i < steps; i++) {
        value *= value;
        __asm__ volatile("" : "+r"(value));
    }
}
/* Asks for the cache line to be made this core's own, and does not wait for it: a later store finds it here. To be used
   when no other core is going to look at the line before that store. */
static inline void line_own(const void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" ::"m"(*(const char *)line));       /* gcc makes a read of __builtin_prefetch */
#else
    __builtin_prefetch(line, 1);
#endif
}
