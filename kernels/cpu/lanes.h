/* Arithmetic on the lanes of one vector. The dtype and the op are constants wherever these functions are inlined, so
 * that of every switch one line is left. Invariant: apart from the sign and payload of a NaN (which lanes_canonical
 * removes in the end), the result of each lane is what C's arithmetic gives for one element, on every instruction
 * set. */
#pragma once
#include "include/tutti.h"
#include "kernels/cpu/vector.h"
#include <assert.h>

INLINE vector lanes_add(tutti_dtype lane, vector a, vector b)
{
    switch (lane) {
    case TUTTI_INT8:
    case TUTTI_UINT8: return (vector)((lanes_u8)a + (lanes_u8)b);
    case TUTTI_INT16:
    case TUTTI_UINT16: return (vector)((lanes_u16)a + (lanes_u16)b);
    case TUTTI_INT32:
    case TUTTI_UINT32: return a + b;
    case TUTTI_INT64:
    case TUTTI_UINT64: return (vector)((lanes_u64)a + (lanes_u64)b);
    case TUTTI_FLOAT64: return (vector)((lanes_f64)a + (lanes_f64)b);
    default: return (vector)((lanes_f32)a + (lanes_f32)b);
    }
}

INLINE vector lanes_multiply(tutti_dtype lane, vector a, vector b)
{
    switch (lane) {
    case TUTTI_INT8:
    case TUTTI_UINT8: return (vector)((lanes_u8)a * (lanes_u8)b);
    case TUTTI_INT16:
    case TUTTI_UINT16: return (vector)((lanes_u16)a * (lanes_u16)b);
    case TUTTI_INT32:
    case TUTTI_UINT32: return a * b;
    case TUTTI_INT64:
    case TUTTI_UINT64: return (vector)((lanes_u64)a * (lanes_u64)b);
    case TUTTI_FLOAT64: return (vector)((lanes_f64)a * (lanes_f64)b);
    default: return (vector)((lanes_f32)a * (lanes_f32)b);
    }
}

/* All ones where a < b. */
INLINE vector lanes_less(tutti_dtype lane, vector a, vector b)
{
    switch (lane) {
    case TUTTI_INT8: return (vector)((lanes_i8)a < (lanes_i8)b);
    case TUTTI_UINT8: return (vector)((lanes_u8)a < (lanes_u8)b);
    case TUTTI_INT16: return (vector)((lanes_i16)a < (lanes_i16)b);
    case TUTTI_UINT16: return (vector)((lanes_u16)a < (lanes_u16)b);
    case TUTTI_INT32: return (vector)((lanes_i32)a < (lanes_i32)b);
    case TUTTI_UINT32: return (vector)(a < b);
    case TUTTI_INT64: return (vector)((lanes_i64)a < (lanes_i64)b);
    case TUTTI_UINT64: return (vector)((lanes_u64)a < (lanes_u64)b);
    case TUTTI_FLOAT64: return (vector)((lanes_f64)a < (lanes_f64)b);
    default: return (vector)((lanes_f32)a < (lanes_f32)b);
    }
}

INLINE bool lanes_floating(tutti_dtype lane) { return lane == TUTTI_FLOAT32 || lane == TUTTI_FLOAT64; }

/* In floating point, drops of a and b whichever is larger. Neither is when they are equal, or when one is NaN; both
   are kept then, and their bitwise or is the same number, -0 of two zeros, NaN of a NaN and anything. */
INLINE vector lanes_minimum(tutti_dtype lane, vector a, vector b)
{
    if (!lanes_floating(lane)) return vector_select(lanes_less(lane, a, b), a, b);
    return (a & ~lanes_less(lane, b, a)) | (b & ~lanes_less(lane, a, b));
}

INLINE vector lanes_negate(tutti_dtype lane, vector v)
{
    return lane == TUTTI_FLOAT64 ? (vector)((lanes_u64)v ^ (UINT64_C(1) << 63)) : v ^ (1u << 31);
}

/* In floating point, minus the smallest of the negatives, so that +0 wins over -0 and NaN over all. */
INLINE vector lanes_maximum(tutti_dtype lane, vector a, vector b)
{
    if (!lanes_floating(lane)) return vector_select(lanes_less(lane, a, b), b, a);
    return lanes_negate(lane, lanes_minimum(lane, lanes_negate(lane, a), lanes_negate(lane, b)));
}

INLINE vector lanes_combine(tutti_dtype lane, tutti_op op, vector a, vector b)
{
    switch (op) {
    case TUTTI_SUM: return lanes_add(lane, a, b);
    case TUTTI_PROD: return lanes_multiply(lane, a, b);
    case TUTTI_MIN: return lanes_minimum(lane, a, b);
    case TUTTI_MAX: return lanes_maximum(lane, a, b);
    case TUTTI_BAND: return a & b;
    case TUTTI_BOR: return a | b;
    case TUTTI_BXOR: return a ^ b;
    default: assert(false); return a;
    }
}

/* Every NaN becomes the positive quiet one without payload: which operand's NaN an addition returns is the compiler's
   whim. */
INLINE vector lanes_canonical(tutti_dtype lane, vector v)
{
    if (lane == TUTTI_FLOAT64) {
        lanes_u64 nan = (lanes_u64){ 0 } + UINT64_C(0x7ff8000000000000);
        return vector_select((vector)((lanes_f64)v != (lanes_f64)v), (vector)nan, v);
    }
    return vector_select((vector)((lanes_f32)v != (lanes_f32)v), vector_all(0x7fc00000u), v);
}

INLINE vector lanes_scale(tutti_dtype lane, vector v, double factor)
{
    return lane == TUTTI_FLOAT64 ? (vector)((lanes_f64)v * factor) : (vector)((lanes_f32)v * (float)factor);
}

/* Towards zero, one element at a time. Up to 32 bits the division is done in floating point, which has vector
   instructions, and is exact: a quotient that is no integer is at least 1/divisor away from the next, far more than
   it can be rounded by. */
INLINE vector lanes_divide(tutti_dtype lane, vector v, int divisor)
{
    union {
        vector v;
        int8_t i8[WIDTH];
        uint8_t u8[WIDTH];
        int16_t i16[WIDTH / 2];
        uint16_t u16[WIDTH / 2];
        int32_t i32[WIDTH / 4];
        uint32_t u32[WIDTH / 4];
        int64_t i64[WIDTH / 8];
        uint64_t u64[WIDTH / 8];
    } x = { .v = v };
    switch (lane) {
    case TUTTI_INT8:
        for (int i = 0; i < WIDTH; i++) x.i8[i] = (int8_t)((float)x.i8[i] / (float)divisor);
        break;
    case TUTTI_UINT8:
        for (int i = 0; i < WIDTH; i++) x.u8[i] = (uint8_t)((float)x.u8[i] / (float)divisor);
        break;
    case TUTTI_INT16:
        for (int i = 0; i < WIDTH / 2; i++) x.i16[i] = (int16_t)((float)x.i16[i] / (float)divisor);
        break;
    case TUTTI_UINT16:
        for (int i = 0; i < WIDTH / 2; i++) x.u16[i] = (uint16_t)((float)x.u16[i] / (float)divisor);
        break;
    case TUTTI_INT32:
        for (int i = 0; i < WIDTH / 4; i++) x.i32[i] = (int32_t)(x.i32[i] / (double)divisor);
        break;
    case TUTTI_UINT32:
        for (int i = 0; i < WIDTH / 4; i++) x.u32[i] = (uint32_t)(x.u32[i] / (double)divisor);
        break;
    case TUTTI_INT64:
        for (int i = 0; i < WIDTH / 8; i++) x.i64[i] /= divisor;
        break;
    case TUTTI_UINT64:
        for (int i = 0; i < WIDTH / 8; i++) x.u64[i] /= (uint64_t)divisor;
        break;
    case TUTTI_FLOAT64: return (vector)((lanes_f64)v / (double)divisor);
    default: return (vector)((lanes_f32)v / (float)divisor);
    }
    return x.v;
}
