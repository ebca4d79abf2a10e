/* Ordinary stores, for instruction sets or compilers without stores around the caches. */
#pragma once
#include "kernels/cpu/vector.h"

/* Stores a vector. The caller calls vector_stream_end after the last one. */
INLINE void vector_stream(char *to, vector v) { vector_store(to, v); }
INLINE void vector_stream_end(void) {}
