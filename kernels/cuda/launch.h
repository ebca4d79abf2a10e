/* The names and parameters of the kernels of this folder. A kernel has one parameter, a struct that is passed by value.
 * A launch has one-dimensional blocks of CUDA_BLOCK threads, and any number of blocks; the blocks share the work.
 * Kernels access only the arrays of their parameter, use no shared memory, and never wait for other work. */
#pragma once
#include "include/tutti.h"

enum { CUDA_BLOCK = 256, CUDA_SOURCES = 16, CUDA_DESTINATIONS = 16, CUDA_COPIES = 32 };

/* Reduces as a reduce_function of kernels/reduce.h does, with its rules for sources, destinations and the divisor. */
struct cuda_reduce {
    void *to[CUDA_DESTINATIONS];
    const void *from[CUDA_SOURCES];
    uint64_t count;
    int32_t to_count, from_count, divisor;
};
/* Scales as a scale_function does. */
struct cuda_scale {
    void *to;
    const void *from;
    uint64_t count;
    double factor;
};
/* Copies several arrays, and the grid's second dimension is their number. Arrays must not overlap. */
struct cuda_copied {
    void *to;
    const void *from;
    uint64_t bytes;
};
struct cuda_copy { struct cuda_copied copy[CUDA_COPIES]; };
/* Normalizes `count` rows as a norm_function of kernels/norm.h does. A warp computes one row at a time. */
struct cuda_norm {
    void *rows, *residual;
    const void *weight, *bias;
    uint64_t count, columns;
    float epsilon;
    int32_t centred;
};

/* The kernels of reductions, X(op, dtype). Bitwise operations are those of unsigned integers of the same size. AVG and
   PREMUL_SUM use SUM. A sum of bool is BOR, as are maxima, and products and minima are BAND. */
#define CUDA_ARITHMETIC_MAP(X, dtype) X(SUM, dtype) X(PROD, dtype) X(MIN, dtype) X(MAX, dtype)
#define CUDA_BITWISE_MAP(X, dtype)    X(BAND, dtype) X(BOR, dtype) X(BXOR, dtype)
#define CUDA_REDUCE_MAP(X) \
    CUDA_ARITHMETIC_MAP(X, INT8) CUDA_ARITHMETIC_MAP(X, UINT8) CUDA_ARITHMETIC_MAP(X, INT16) \
    CUDA_ARITHMETIC_MAP(X, UINT16) CUDA_ARITHMETIC_MAP(X, INT32) CUDA_ARITHMETIC_MAP(X, UINT32) \
    CUDA_ARITHMETIC_MAP(X, INT64) CUDA_ARITHMETIC_MAP(X, UINT64) CUDA_ARITHMETIC_MAP(X, FLOAT16) \
    CUDA_ARITHMETIC_MAP(X, BFLOAT16) CUDA_ARITHMETIC_MAP(X, FLOAT32) CUDA_ARITHMETIC_MAP(X, FLOAT64) \
    CUDA_ARITHMETIC_MAP(X, FLOAT8_E4M3) CUDA_ARITHMETIC_MAP(X, FLOAT8_E5M2) CUDA_BITWISE_MAP(X, UINT8) \
    CUDA_BITWISE_MAP(X, UINT16) CUDA_BITWISE_MAP(X, UINT32) CUDA_BITWISE_MAP(X, UINT64) CUDA_BITWISE_MAP(X, BOOL)
#define CUDA_SCALE_MAP(X) \
    X(FLOAT16) X(BFLOAT16) X(FLOAT32) X(FLOAT64) X(FLOAT8_E4M3) X(FLOAT8_E5M2)
#define CUDA_NORM_MAP(X) X(FLOAT16) X(BFLOAT16) X(FLOAT32)

/* The names of kernels: tutti_reduce_SUM_FLOAT32, tutti_scale_FLOAT32, tutti_norm_FLOAT32, tutti_copy. These return
   NULL where reduce_find, scale_find and norm_find do. */
const char *cuda_reduce_name(tutti_dtype dtype, tutti_op op);
const char *cuda_scale_name(tutti_dtype dtype);
const char *cuda_norm_name(tutti_dtype dtype);
