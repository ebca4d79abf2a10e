/* Computes the results that kernels must have, one element at a time, in the plain way: numbers are decoded to double
   by ldexp and rounded by nearbyint in units of the last place; integers are computed in 64 bits and cut. Only the
   enums are those of the kernels. Elements are handled as codes: their bits in the low end of a uint64_t. */
#pragma once
#include "include/tutti.h"
#include <math.h>
#include <string.h>

struct format {
    int bits, mantissa, bias;
    /* The largest exponent means infinity and NaN. */
    bool infinite;
    /* The code of NaN in results. */
    uint64_t nan;
};

static inline struct format format_of(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_FLOAT16: return (struct format){ 16, 10, 15, true, 0x7e00 };
    case TUTTI_BFLOAT16: return (struct format){ 16, 7, 127, true, 0x7fc0 };
    case TUTTI_FLOAT32: return (struct format){ 32, 23, 127, true, 0x7fc00000 };
    case TUTTI_FLOAT64: return (struct format){ 64, 52, 1023, true, 0x7ff8000000000000 };
    case TUTTI_FLOAT8_E4M3: return (struct format){ 8, 3, 7, false, 0x7f };
    case TUTTI_FLOAT8_E5M2: return (struct format){ 8, 2, 15, true, 0x7f };
    default: return (struct format){ 0 };
    }
}

static inline bool is_floating(tutti_dtype dtype) { return format_of(dtype).bits != 0; }
static inline bool is_signed(tutti_dtype dtype)
{
    return dtype == TUTTI_INT8 || dtype == TUTTI_INT16 || dtype == TUTTI_INT32 || dtype == TUTTI_INT64;
}

static inline size_t bytes_of(tutti_dtype dtype)
{
    static const size_t bytes[] = {
#define X(name, size, printed) size,
        TUTTI_DTYPE_MAP(X)
#undef X
    };
    return bytes[dtype];
}

static inline const char *name_of(tutti_dtype dtype)
{
    static const char *const names[] = {
#define X(name, size, printed) printed,
        TUTTI_DTYPE_MAP(X)
#undef X
    };
    return names[dtype];
}

static inline uint64_t cut(uint64_t code, tutti_dtype dtype)
{
    size_t bits = 8 * bytes_of(dtype);
    return bits == 64 ? code : code & ((UINT64_C(1) << bits) - 1);
}

static inline double decode(struct format f, uint64_t code)
{
    uint64_t magnitude = code & ((UINT64_C(1) << (f.bits - 1)) - 1);
    uint64_t fraction = magnitude & ((UINT64_C(1) << f.mantissa) - 1);
    int exponent = (int)(magnitude >> f.mantissa), highest = (1 << (f.bits - 1 - f.mantissa)) - 1;
    double value;
    if (f.infinite && exponent == highest) value = fraction ? NAN : INFINITY;
    else if (!f.infinite && magnitude == (UINT64_C(1) << (f.bits - 1)) - 1) value = NAN;
    else if (exponent == 0) value = ldexp((double)fraction, 1 - f.bias - f.mantissa);
    else value = ldexp((double)(fraction + (UINT64_C(1) << f.mantissa)), exponent - f.bias - f.mantissa);
    return code >> (f.bits - 1) & 1 ? -value : value;
}

/* Rounds to nearest, ties to even. Beyond the largest number returns infinity, or the largest number if the format has
   no infinity. */
static inline uint64_t encode(struct format f, double value)
{
    if (isnan(value)) return f.nan;
    uint64_t sign = (uint64_t)(signbit(value) != 0) << (f.bits - 1);
    uint64_t beyond = (UINT64_C(1) << (f.bits - 1)) - (f.infinite ? UINT64_C(1) << f.mantissa : 2);
    double magnitude = fabs(value);
    if (magnitude == 0) return sign;
    if (isinf(magnitude)) return sign | beyond;
    int lowest = 1 - f.bias, exponent = ilogb(magnitude) < lowest ? lowest : ilogb(magnitude);
    uint64_t units =
        (uint64_t)nearbyint(ldexp(magnitude, f.mantissa - exponent)); /* 2^mantissa … 2^(mantissa + 1) if normal */
    uint64_t code = ((uint64_t)(exponent - lowest) << f.mantissa) + units;
    return sign | (exponent > 2 * f.bias + 2 || code > beyond ? beyond : code);
}

static inline int64_t sign_extended(uint64_t code, tutti_dtype dtype)
{
    int above = 64 - 8 * (int)bytes_of(dtype);
    return (int64_t)(code << above) >> above;
}

static inline double smaller(double a, double b)
{
    if (isnan(a) || isnan(b)) return NAN;
    if (a == b) return signbit(a) ? a : b;
    return a < b ? a : b;
}

/* Computes in float64 if `wide` is set (for float64), otherwise in float32. */
static inline double combine_floating(bool wide, tutti_op op, double a, double b)
{
    switch (op) {
    case TUTTI_PROD: return wide ? a * b : (double)((float)a * (float)b);
    case TUTTI_MIN: return smaller(a, b);
    case TUTTI_MAX: return -smaller(-a, -b);
    default: return wide ? a + b : (double)((float)a + (float)b);
    }
}

static inline uint64_t combine_integer(tutti_dtype dtype, tutti_op op, uint64_t a, uint64_t b)
{
    bool less = is_signed(dtype) ? sign_extended(a, dtype) < sign_extended(b, dtype) : a < b;
    switch (op) {
    case TUTTI_PROD: return cut(a * b, dtype);
    case TUTTI_MIN: return less ? a : b;
    case TUTTI_MAX: return less ? b : a;
    case TUTTI_BAND: return a & b;
    case TUTTI_BOR: return a | b;
    case TUTTI_BXOR: return a ^ b;
    default: return cut(a + b, dtype);
    }
}

static inline uint64_t combine_bool(tutti_op op, uint64_t a, uint64_t b)
{
    switch (op) {
    case TUTTI_PROD:
    case TUTTI_MIN:
    case TUTTI_BAND: return a && b;
    case TUTTI_BXOR: return !a != !b;
    default: return a || b;
    }
}

static inline uint64_t divide_integer(tutti_dtype dtype, uint64_t code, int divisor)
{
    return is_signed(dtype) ? cut((uint64_t)(sign_extended(code, dtype) / divisor), dtype) : code / (uint64_t)divisor;
}

static inline uint64_t reference_floating(tutti_dtype dtype, tutti_op op, const uint64_t *codes, int count, int divisor)
{
    struct format format = format_of(dtype);
    bool wide = dtype == TUTTI_FLOAT64;
    double total = decode(format, codes[0]);
    for (int k = 1; k < count; k++) total = combine_floating(wide, op, total, decode(format, codes[k]));
    if (divisor != 1) total = wide ? total / divisor : (double)((float)total / (float)divisor);
    return encode(format, total);
}

/* Returns codes[0] op codes[1] op …, divided by the divisor. */
static inline uint64_t reference(tutti_dtype dtype, tutti_op op, const uint64_t *codes, int count, int divisor)
{
    if (count == 1 && divisor == 1) return codes[0];
    if (is_floating(dtype)) return reference_floating(dtype, op, codes, count, divisor);
    uint64_t total = codes[0];
    for (int k = 1; k < count; k++) {
        total = dtype == TUTTI_BOOL ? combine_bool(op, total, codes[k]) : combine_integer(dtype, op, total, codes[k]);
    }
    return divide_integer(dtype, total, divisor);
}
