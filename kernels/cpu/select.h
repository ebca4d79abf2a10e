/* Choosing lane by lane, with the bitwise operations that every machine has. */
#pragma once
#include "kernels/cpu/vector.h"

/* Where the mask is all ones a, elsewhere b. */
INLINE vector vector_select(vector mask, vector a, vector b) { return (a & mask) | (b & ~mask); }
