/* Ordinary stores, for instruction sets or compilers without stores around the caches. */
#pragma once
#include "kernels/cpu/vector.h"

INLINE void vector_stream(char *to, vector v) { vector_store(to, v); }
INLINE void vector_stream_end(void) {}
