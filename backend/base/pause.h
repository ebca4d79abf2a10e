/* What a thread does between two looks at a word that another core is to write. */
#pragma once

static inline void pause_briefly(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");                              /* yield is a no-op on most cores; this is not */
#endif
}
