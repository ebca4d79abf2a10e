/* Arithmetic on one element. A *code* is an element's bits, in the low end of a uint64_t. A *lane* is the bits of the
 * number in the type in which it is computed: float32 for shorter floats, 32 bits for shorter integers. The dtype and
 * the op are constants where these functions are inlined, so one line of each switch remains. Results are those of
 * kernels/cpu, bit for bit, once lane_pack has replaced the NaNs. */
#pragma once
#include "kernels/cuda/portable.h"

/* ---- types ---- */
DEVICE int element_bytes(tutti_dtype dtype)
{
    switch (dtype) {
#define X(name, bytes, printed) \
    case TUTTI_##name: return bytes;
        TUTTI_DTYPE_MAP(X)
#undef X
    default: return 1;
    }
}
/* A float of 16 or 8 bits whose exponent has fewer bits than float32's. */
struct short_float {
    /* The explicit bits of the mantissa, and by how much the exponent's bias is smaller than float32's. */
    int mantissa, bias_below;
    /* Codes without sign: the smallest that is infinity or NaN, and the NaN of results. */
    uint32_t special, nan;
    /* The bits of a float32. Larger magnitudes become `limit`: 65536 is infinity, and 448 the largest of E4M3. */
    uint32_t limit;
};
DEVICE struct short_float short_float_of(tutti_dtype dtype)
{
    struct short_float half = { 10, 112, 0x7c00, 0x7e00, 143u << 23 };
    struct short_float e4m3 = { 3, 120, 0x7f, 0x7f, 0x43e00000 };
    struct short_float e5m2 = { 2, 112, 0x7c, 0x7f, 143u << 23 };
    return dtype == TUTTI_FLOAT16 ? half : dtype == TUTTI_FLOAT8_E4M3 ? e4m3 : e5m2;
}
DEVICE bool dtype_is_short_float(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT16 || dtype == TUTTI_FLOAT8_E4M3 || dtype == TUTTI_FLOAT8_E5M2;
}
DEVICE bool dtype_is_float(tutti_dtype dtype)
{
    return dtype_is_short_float(dtype) || dtype == TUTTI_BFLOAT16 || dtype == TUTTI_FLOAT32;
}
DEVICE bool dtype_is_signed(tutti_dtype dtype)
{
    return dtype == TUTTI_INT8 || dtype == TUTTI_INT16 || dtype == TUTTI_INT32 || dtype == TUTTI_INT64;
}
DEVICE bool dtype_is_wide(tutti_dtype dtype) { return dtype == TUTTI_INT64 || dtype == TUTTI_UINT64; }

/* ---- conversions ---- */
/* Returns the float32 of a code. The product moves the exponent, and is exact for denormals too. */
DEVICE uint32_t short_float_widen(struct short_float f, uint32_t code, int bits)
{
    uint32_t magnitude = code & ((1u << (bits - 1)) - 1), sign = code >> (bits - 1) << 31;
    float scale = float_from_bits((uint32_t)(127 + f.bias_below) << 23);
    uint32_t number = float_to_bits(float_from_bits(magnitude << (23 - f.mantissa)) * scale);
    return sign | number | (magnitude >= f.special ? 0x7f800000u : 0);
}
/* Rounds a float32 that is no NaN to a code, to nearest even. The addition of a power of two, whose last bit has the
   weight of the last bit that stays, rounds (kernels/cpu/rounding.h). */
DEVICE uint32_t short_float_round(struct short_float f, uint32_t number, int bits)
{
    const int dropped = 23 - f.mantissa;
    const uint32_t smallest_normal = (uint32_t)(f.bias_below + 1) << 23, raise = (uint32_t)dropped << 23;
    uint32_t whole = number & 0x7fffffffu, magnitude = whole < f.limit ? whole : f.limit;
    uint32_t exponent = magnitude & 0x7f800000u;
    uint32_t magic = (exponent > smallest_normal ? exponent : smallest_normal) + raise;
    uint32_t quanta = float_to_bits(float_from_bits(magnitude) + float_from_bits(magic)) - magic;
    return number >> 31 << (bits - 1) | (quanta + ((magic - raise - smallest_normal) >> dropped));
}
DEVICE uint64_t lane_unpack(tutti_dtype dtype, uint64_t code)
{
    if (dtype_is_short_float(dtype))
        return short_float_widen(short_float_of(dtype), (uint32_t)code, 8 * element_bytes(dtype));
    switch (dtype) {
    case TUTTI_BOOL: return code != 0;
    case TUTTI_INT8: return (uint32_t)(int32_t)(int8_t)code;
    case TUTTI_INT16: return (uint32_t)(int32_t)(int16_t)code;
    case TUTTI_BFLOAT16: return (uint32_t)code << 16;
    default: return code;
    }
}
/* Returns the code of a lane; its bits above the element are undefined. A NaN becomes the positive quiet NaN without
   payload. */
DEVICE uint64_t lane_pack(tutti_dtype dtype, uint64_t lane)
{
    uint32_t number = (uint32_t)lane;
    bool is_nan = (number & 0x7fffffffu) > 0x7f800000u;
    if (dtype_is_short_float(dtype)) {
        struct short_float f = short_float_of(dtype);
        return is_nan ? f.nan : short_float_round(f, number, 8 * element_bytes(dtype));
    }
    switch (dtype) {
    case TUTTI_BFLOAT16: return is_nan ? 0x7fc0u : (number + 0x7fffu + (number >> 16 & 1)) >> 16;
    case TUTTI_FLOAT32: return is_nan ? 0x7fc00000u : number;
    case TUTTI_FLOAT64:
        return (lane & UINT64_C(0x7fffffffffffffff)) > UINT64_C(0x7ff0000000000000) ? UINT64_C(0x7ff8000000000000)
                                                                                    : lane;
    default: return lane;
    }
}

/* ---- operations ---- */
DEVICE bool lane_is_less(tutti_dtype dtype, uint64_t a, uint64_t b)
{
    if (dtype == TUTTI_FLOAT64) return double_from_bits(a) < double_from_bits(b);
    if (dtype_is_float(dtype)) return float_from_bits((uint32_t)a) < float_from_bits((uint32_t)b);
    if (dtype_is_wide(dtype)) return dtype_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
    return dtype_is_signed(dtype) ? (int32_t)a < (int32_t)b : (uint32_t)a < (uint32_t)b;
}
/* Returns the smaller of a and b. In floating point it clears the larger one and returns the bitwise or, as
   kernels/cpu/lanes.h does: of equal numbers that number, of zeros with different signs -0, with a NaN a NaN. */
DEVICE uint64_t lane_minimum(tutti_dtype dtype, uint64_t a, uint64_t b)
{
    bool b_less = lane_is_less(dtype, b, a), a_less = lane_is_less(dtype, a, b);
    if (!dtype_is_float(dtype) && dtype != TUTTI_FLOAT64) return a_less ? a : b;
    return (b_less ? 0 : a) | (a_less ? 0 : b);
}
DEVICE uint64_t lane_maximum(tutti_dtype dtype, uint64_t a, uint64_t b)
{
    if (!dtype_is_float(dtype) && dtype != TUTTI_FLOAT64) return lane_is_less(dtype, a, b) ? b : a;
    uint64_t sign = dtype == TUTTI_FLOAT64 ? UINT64_C(1) << 63 : 1u << 31;
    return lane_minimum(dtype, a ^ sign, b ^ sign) ^ sign;
}
DEVICE uint64_t lane_add(tutti_dtype dtype, uint64_t a, uint64_t b)
{
    if (dtype == TUTTI_FLOAT64) return double_to_bits(double_from_bits(a) + double_from_bits(b));
    if (dtype_is_float(dtype)) return float_to_bits(float_from_bits((uint32_t)a) + float_from_bits((uint32_t)b));
    return dtype_is_wide(dtype) ? a + b : (uint32_t)a + (uint32_t)b;
}
DEVICE uint64_t lane_multiply(tutti_dtype dtype, uint64_t a, uint64_t b)
{
    if (dtype == TUTTI_FLOAT64) return double_to_bits(double_from_bits(a) * double_from_bits(b));
    if (dtype_is_float(dtype)) return float_to_bits(float_from_bits((uint32_t)a) * float_from_bits((uint32_t)b));
    return dtype_is_wide(dtype) ? a * b : (uint32_t)a * (uint32_t)b;
}
DEVICE uint64_t lane_combine(tutti_dtype dtype, tutti_op op, uint64_t a, uint64_t b)
{
    switch (op) {
    case TUTTI_PROD: return lane_multiply(dtype, a, b);
    case TUTTI_MIN: return lane_minimum(dtype, a, b);
    case TUTTI_MAX: return lane_maximum(dtype, a, b);
    case TUTTI_BAND: return a & b;
    case TUTTI_BOR: return a | b;
    case TUTTI_BXOR: return a ^ b;
    default: return lane_add(dtype, a, b);
    }
}
/* Divides a sum by a divisor >= 1; integers towards zero, after they have wrapped to their type. */
DEVICE uint64_t lane_divide(tutti_dtype dtype, uint64_t lane, int divisor)
{
    if (dtype == TUTTI_FLOAT64) return double_to_bits(double_from_bits(lane) / (double)divisor);
    if (dtype_is_float(dtype)) return float_to_bits(float_from_bits((uint32_t)lane) / (float)divisor);
    switch (dtype) {
    case TUTTI_INT8: return (uint32_t)((int8_t)lane / divisor);
    case TUTTI_UINT8: return (uint8_t)lane / (uint32_t)divisor;
    case TUTTI_INT16: return (uint32_t)((int16_t)lane / divisor);
    case TUTTI_UINT16: return (uint16_t)lane / (uint32_t)divisor;
    case TUTTI_INT32: return (uint32_t)((int32_t)lane / divisor);
    case TUTTI_UINT32: return (uint32_t)lane / (uint32_t)divisor;
    case TUTTI_INT64: return (uint64_t)((int64_t)lane / divisor);
    default: return lane / (uint64_t)divisor;
    }
}
DEVICE uint64_t lane_scale(tutti_dtype dtype, uint64_t lane, double factor)
{
    if (dtype == TUTTI_FLOAT64) return double_to_bits(double_from_bits(lane) * factor);
    return float_to_bits(float_from_bits((uint32_t)lane) * (float)factor);
}
