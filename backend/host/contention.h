/* Cores that other threads want too. On such a core a yield gives the core away for several milliseconds. A thread that
   waits for its peers should sleep instead: the kernel wakes it as soon as a peer has written the awaited word. */
#pragma once
#include <stdbool.h>

/* Yields the core. A yield that takes 0.1 ms or more is late: the core counts as contended for the next 50 ms, and the
   calling thread asks the kernel for time slices of 0.1 ms. Such a thread still gets its fair share of the core, but it
   runs sooner after a sleep and loses less by a yield. Kernels before Linux 6.12 ignore the request. */
void core_yield(void);
/* Returns true if a yield of this thread was late in the last 50 ms. */
bool core_is_contended(void);
