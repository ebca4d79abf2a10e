/* Selects lane by lane, with bitwise operations that every machine has. */
#pragma once
#include "kernels/cpu/vector.h"

/* Returns a vector that has the bits of `a` where the mask has ones, and those of `b` elsewhere. */
INLINE vector vector_select(vector mask, vector a, vector b) { return (a & mask) | (b & ~mask); }
