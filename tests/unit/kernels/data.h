/* Arrays of elements for the tests of the kernels: random numbers, and the values at which arithmetic goes wrong. */
#pragma once
#include "tests/support/random.h"
#include "tests/unit/kernels/reference.h"

static uint64_t random_state = 1;
static inline uint64_t random_bits(void) { return random_next(&random_state); }

static inline uint64_t read_code(const void *array, size_t i, tutti_dtype dtype)
{
    uint64_t code = 0;
    /* All supported machines are little-endian. */
    memcpy(&code, (const char *)array + i * bytes_of(dtype), bytes_of(dtype));
    return code;
}

static inline void write_code(void *array, size_t i, tutti_dtype dtype, uint64_t code)
{
    memcpy((char *)array + i * bytes_of(dtype), &code, bytes_of(dtype));
}

/* Returns a code at random among zero, denormals, extremes, infinities and NaN with their neighbours and payloads, of
   both signs; for integers among their extremes. */
static inline uint64_t special_code(tutti_dtype dtype)
{
    struct format f = format_of(dtype);
    uint64_t sign = random_bits() & 1;
    if (f.bits == 0) {
        static const uint64_t integers[] = { 0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0x7fffffff, 0x80000000,
            INT64_MAX };
        uint64_t code = integers[random_bits() % (sizeof integers / sizeof integers[0])];
        return cut(sign ? ~code : code, dtype);
    }
    uint64_t one = UINT64_C(1) << f.mantissa, infinity = (UINT64_C(1) << (f.bits - 1)) - one,
             payload = random_bits() % one;
    const uint64_t codes[] = { 0, 0, 1, payload, one - 1, one, one + 1, (uint64_t)f.bias << f.mantissa, infinity - 1,
        infinity, infinity, infinity + 1, infinity + payload, infinity + one / 2, infinity + one / 2 + payload / 2,
        infinity + one - 1 };
    return codes[random_bits() % (sizeof codes / sizeof codes[0])] | sign << (f.bits - 1);
}

/* Returns the code of a number of ordinary size, so that not all sums and products of several are infinite. */
static inline uint64_t ordinary_code(tutti_dtype dtype)
{
    if (!is_floating(dtype)) return cut(random_bits(), dtype);
    double value = ldexp((double)(int64_t)random_bits(), -63 + (int)(random_bits() % 5) - 2);
    return encode(format_of(dtype), dtype == TUTTI_FLOAT64 ? value : (double)(float)value);
}

static inline uint64_t any_code(tutti_dtype dtype)
{
    switch (random_bits() % 8) {
    case 0: return cut(random_bits(), dtype);
    case 1: return special_code(dtype);
    default: return ordinary_code(dtype);
    }
}

static inline void fill(void *array, size_t count, tutti_dtype dtype)
{
    for (size_t i = 0; i < count; i++) write_code(array, i, dtype, any_code(dtype));
}
