/* Two threads each store a word and then load the other's. With a fence in between in both, at least one of them sees
   the other's store. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

/* Orders an earlier store before a later load, for protocols in which two threads each store and then read the other's
   word. */
static inline void fence_between_store_and_load(void)
{
/* ThreadSanitizer does not support fences. */
#ifdef __SANITIZE_THREAD__
    static _Atomic unsigned word;
    atomic_fetch_add(&word, 1);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}
/* One of the two threads can avoid its fence if the other makes the kernel put one into every running thread, also of
   other processes (membarrier, Linux 4.16). That takes some microseconds. The first thread then needs only the order of
   the compiler, which this function keeps. */
static inline void fence_compiler_only(void) { atomic_signal_fence(memory_order_seq_cst); }
/* Registers this process for the fences of others; returns false if the kernel refuses. */
bool fence_register_process(void);
/* Puts a fence into all running threads of registered processes; returns false if the kernel refuses. */
bool fence_all_threads(void);
