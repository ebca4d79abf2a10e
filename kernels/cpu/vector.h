/* Vectors of WIDTH bytes, and their basic operations. The including file first defines WIDTH (an enum), and is compiled
 * for its instruction set. The vector types of gcc and clang then become registers of that set. The functions here are
 * independent of the element type: a vector is plain bits, and a cast to another lane type is free. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

typedef uint8_t lanes_u8 __attribute__((vector_size(WIDTH)));
typedef int8_t lanes_i8 __attribute__((vector_size(WIDTH)));
typedef uint16_t lanes_u16 __attribute__((vector_size(WIDTH)));
typedef int16_t lanes_i16 __attribute__((vector_size(WIDTH)));
typedef uint32_t lanes_u32 __attribute__((vector_size(WIDTH)));
typedef int32_t lanes_i32 __attribute__((vector_size(WIDTH)));
typedef uint64_t lanes_u64 __attribute__((vector_size(WIDTH)));
typedef int64_t lanes_i64 __attribute__((vector_size(WIDTH)));
typedef float lanes_f32 __attribute__((vector_size(WIDTH)));
typedef double lanes_f64 __attribute__((vector_size(WIDTH)));

typedef lanes_u32 vector;
typedef vector vector_in_memory __attribute__((aligned(1), may_alias));

INLINE vector vector_load(const char *from) { return *(const vector_in_memory *)from; }
INLINE void vector_store(char *to, vector v) { *(vector_in_memory *)to = v; }

/* Returns a vector whose 32-bit lanes are all `lane`. */
INLINE vector vector_all(uint32_t lane) { return (vector){ 0 } + lane; }
