/* Arithmetic on the lanes of one vector. The dtype and the op are constants where these functions are inlined, so one
 * line of each switch remains. Invariant: each lane has the result of C's arithmetic on one element, on every
 * instruction set. Only the sign and payload of a NaN may differ, until lanes_canonicalize_nans removes them. */
#pragma once
#include "include/tutti.h"
#include "kernels/cpu/vector.h"
#include <assert.h>

/* Adds the lanes of two vectors, as elements of type `lane`. */
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

/* Multiplies the lanes of two vectors, as elements of type `lane`. */
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

/* Returns all ones in the lanes where a < b. */
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

/* Returns true if lanes of this type are floating-point numbers. */
INLINE bool lanes_are_floating(tutti_dtype lane) { return lane == TUTTI_FLOAT32 || lane == TUTTI_FLOAT64; }

/* Returns the smaller of a and b in each lane. In floating point it clears the larger one and returns the bitwise or of
   both. Equal numbers and NaNs are not cleared: the or of equal numbers is that number, of zeros with different signs
   -0, and of a NaN and any number a NaN. */
INLINE vector lanes_minimum(tutti_dtype lane, vector a, vector b)
{
    if (!lanes_are_floating(lane)) return vector_select(lanes_less(lane, a, b), a, b);
    return (a & ~lanes_less(lane, b, a)) | (b & ~lanes_less(lane, a, b));
}

/* Changes the sign of each floating-point lane. */
INLINE vector lanes_negate(tutti_dtype lane, vector v)
{
    return lane == TUTTI_FLOAT64 ? (vector)((lanes_u64)v ^ (UINT64_C(1) << 63)) : v ^ (1u << 31);
}

/* Returns the larger of a and b in each lane. In floating point it is minus the minimum of the negated numbers. So +0
   is larger than -0, and a NaN stays. */
INLINE vector lanes_maximum(tutti_dtype lane, vector a, vector b)
{
    if (!lanes_are_floating(lane)) return vector_select(lanes_less(lane, a, b), b, a);
    return lanes_negate(lane, lanes_minimum(lane, lanes_negate(lane, a), lanes_negate(lane, b)));
}

/* Returns a op b in each lane. */
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

/* Replaces each NaN of floating-point lanes by the positive quiet NaN without payload, because the compiler decides
   which operand's NaN an addition returns. */
INLINE vector lanes_canonicalize_nans(tutti_dtype lane, vector v)
{
    if (lane == TUTTI_FLOAT64) {
        lanes_u64 nan = (lanes_u64){ 0 } + UINT64_C(0x7ff8000000000000);
        return vector_select((vector)((lanes_f64)v != (lanes_f64)v), (vector)nan, v);
    }
    return vector_select((vector)((lanes_f32)v != (lanes_f32)v), vector_all(0x7fc00000u), v);
}

/* Multiplies each floating-point lane by the factor. */
INLINE vector lanes_scale(tutti_dtype lane, vector v, double factor)
{
    return lane == TUTTI_FLOAT64 ? (vector)((lanes_f64)v * factor) : (vector)((lanes_f32)v * (float)factor);
}

/* Divides each lane by the divisor and rounds integers towards zero. Up to 32 bits it uses floating point, which has
   vector instructions. The result is exact: a quotient between integers is at least 1/divisor away from the next
   integer, far more than the rounding error. */
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
