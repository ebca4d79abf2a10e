/* The differences between nvcc, for kernels, and the host's C compiler, for the twin: qualifiers, accesses to memory,
 * and the bits of numbers. The headers that include this one are one source for both, in the common part of C11 and
 * C++.
 *
 * Arithmetic must be IEEE's, one rounding per operation: nvcc gets -fmad=false -ftz=false -prec-div=true
 * -prec-sqrt=true, and the host's compiler -ffp-contract=off. */
#pragma once
#include "include/tutti.h"

#if defined(__CUDACC__)
#define DEVICE        static __device__ __forceinline__
#define ALIGNED       __align__(16)
#define UNROLL        _Pragma("unroll")
#define UNROLL_ONE    _Pragma("unroll 1")
#define UNROLL_TWO    _Pragma("unroll 2")
#define UNROLL_FOUR   _Pragma("unroll 4")
#define ROUNDED_SQRTF __fsqrt_rn
/* Load and store an aligned object of a type. */
#define LOAD(type, address)         (*(const type *)(address))
#define STORE(type, address, value) (*(type *)(address) = (value))
#else
#include <math.h>
#include <string.h>
#define DEVICE        static inline __attribute__((always_inline))
#define ALIGNED       _Alignas(16)
#define UNROLL
#define UNROLL_ONE
#define UNROLL_TWO
#define UNROLL_FOUR
#define ROUNDED_SQRTF sqrtf
/* A copy of bytes, because the program may have stored them as another type. */
#define LOAD(type, address) \
    ({ \
        type loaded; \
        memcpy(&loaded, address, sizeof loaded); \
        loaded; \
    })
#define STORE(type, address, value) \
    do { \
        type stored = (value); \
        memcpy(address, &stored, sizeof stored); \
    } while (0)
#endif

/* A thread among all threads of a launch: blocks and threads have one dimension. */
struct cuda_thread { size_t index, total; };

/* 16 bytes, which one instruction loads or stores. */
enum { VECTOR_BYTES = 16, VECTOR_WORDS = 4 };
struct vector16 { ALIGNED uint32_t word[VECTOR_WORDS]; };

/* The bits of a float32 or float64, and the reverse. */
DEVICE uint32_t float_to_bits(float number)
{
#if defined(__CUDACC__)
    return __float_as_uint(number);
#else
    return LOAD(uint32_t, &number);
#endif
}
DEVICE float float_from_bits(uint32_t bits)
{
#if defined(__CUDACC__)
    return __uint_as_float(bits);
#else
    return LOAD(float, &bits);
#endif
}
DEVICE uint64_t double_to_bits(double number)
{
#if defined(__CUDACC__)
    return (uint64_t)__double_as_longlong(number);
#else
    return LOAD(uint64_t, &number);
#endif
}
DEVICE double double_from_bits(uint64_t bits)
{
#if defined(__CUDACC__)
    return __longlong_as_double((long long)bits);
#else
    return LOAD(double, &bits);
#endif
}
