/* Selects lane by lane, with bitwise operations that every machine has. */
#pragma once
#include "kernels/cpu/vector.h"

/* Selects a where the mask is all ones, and b elsewhere. */
INLINE vector vector_select(vector mask, vector a, vector b) { return (a & mask) | (b & ~mask); }
