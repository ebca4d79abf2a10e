/* Two threads that each store a word and then look at the other's: with this in between on both sides, one of them at
   least sees what the other has stored. */
#pragma once
#include <stdatomic.h>

static inline void fence_between_store_and_load(void)
{
#ifdef __SANITIZE_THREAD__                              /* it does not know fences */
    static _Atomic unsigned word;
    atomic_fetch_add(&word, 1);
#else
    atomic_thread_fence(memory_order_seq_cst);
#endif
}
