/* Stores around the caches, where the instruction set (or the compiler) has none: ordinary ones. */
#pragma once
#include "kernels/cpu/vector.h"

INLINE void vector_stream(char *to, vector v) { vector_store(to, v); }
INLINE void vector_stream_end(void) {}
