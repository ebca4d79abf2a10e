/* Loads and stores the last bytes of an array, 0 < bytes < WIDTH, for instruction sets without masked loads. A load
 * fills the vector with zeros, and accesses only these bytes. Small operations have one number of four or eight bytes,
 * which goes straight into a register. Pieces that are written to the stack and read back as a vector must first reach
 * the cache. */
#pragma once
#include "kernels/cpu/vector.h"

/* Copies `bytes` bytes, fewer than WIDTH, with one move for each bit of the number. */
INLINE void bytes_copy(char *to, const char *from, size_t bytes)
{
    for (size_t piece = WIDTH / 2; piece > 0; piece /= 2) {
        if (bytes & piece) {
            memcpy(to, from, piece);
            to += piece;
            from += piece;
        }
    }
}

/* Loads any number of bytes below WIDTH; the other lanes are 0. */
static __attribute__((noinline)) vector bytes_load(const char *from, size_t bytes)
{
    char whole[WIDTH] = { 0 };
    bytes_copy(whole, from, bytes);
    return vector_load(whole);
}

/* Stores the first `bytes` bytes of a vector. */
static __attribute__((noinline)) void bytes_store(char *to, vector v, size_t bytes)
{
    char whole[WIDTH];
    vector_store(whole, v);
    bytes_copy(to, whole, bytes);
}

/* Loads `bytes` bytes, fewer than WIDTH; the other lanes are 0. 4 and 8 bytes do not pass through the stack. */
INLINE vector partial_load(const char *from, size_t bytes)
{
    uint64_t eight;
    uint32_t four;
    if (bytes == 8) {
        memcpy(&eight, from, 8);
        return (vector)(lanes_u64){ eight };
    }
    if (bytes == 4) {
        memcpy(&four, from, 4);
        return (vector){ four };
    }
    return bytes_load(from, bytes);
}

/* Stores the first `bytes` bytes of a vector, fewer than WIDTH. */
INLINE void partial_store(char *to, vector v, size_t bytes)
{
    uint64_t eight = ((lanes_u64)v)[0];
    uint32_t four = v[0];
    if (bytes == 8) memcpy(to, &eight, 8);
    else if (bytes == 4) memcpy(to, &four, 4);
    else bytes_store(to, v, bytes);
}
