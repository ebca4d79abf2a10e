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
/* Keeps the compiler, but not the core, from moving a store behind a later load. That suffices for one of the two
   threads if the other calls fence_all_threads, which takes some microseconds. */
static inline void fence_compiler_only(void) { atomic_signal_fence(memory_order_seq_cst); }
/* Registers this process, so that fence_all_threads of any process reaches its threads. Returns false if the kernel
   refuses. */
bool fence_register_process(void);
/* Makes the kernel put a fence into all running threads of registered processes (membarrier, Linux 4.16). Returns false
   if the kernel refuses. */
bool fence_all_threads(void);
