/* Two threads that each store a word and then look at the other's: with a fence in between on both sides, one of them
   at least sees what the other has stored. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>

static inline void fence_between_store_and_load(void)
{
#ifdef __SANITIZE_THREAD__                              /* it does not know fences */
    static _Atomic unsigned word;
    atomic_fetch_add(&word, 1);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}
/* Where one of the two is in a hurry, the other can have the kernel put a fence into every thread that runs, also of
   other processes (membarrier, Linux 4.16): some microseconds. Then this is enough for who is in a hurry: nothing but
   the compiler keeps the order. */
static inline void fence_of_compiler(void) { atomic_signal_fence(memory_order_seq_cst); }
bool fence_admit(void);                                 /* into this process's threads; false: the kernel refuses */
bool fence_everywhere(void);                            /* false: the kernel refuses */
