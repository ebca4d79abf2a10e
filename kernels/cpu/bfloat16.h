/* Rounds to bfloat16, the upper half of a float32, by integer arithmetic that any instruction set has. */
#pragma once
#include "kernels/cpu/vector.h"

/* Rounds float32 lanes to nearest even, so that their upper halves are bfloat16; the lower halves are undefined. A
   canonical NaN stays canonical. */
INLINE vector bfloat16_round(vector v) { return v + 0x7fffu + ((v >> 16) & 1); }

/* Rounds two vectors of float32: part[0] to the lower halves of the lanes, part[1] to the upper halves. */
INLINE vector bfloat16_pack(const vector *part)
{
    return bfloat16_round(part[0]) >> 16 | (bfloat16_round(part[1]) & 0xffff0000u);
}
