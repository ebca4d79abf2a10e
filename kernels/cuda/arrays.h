/* Accesses to arrays, by vectors of 16 bytes and by elements, and the division of an array between threads. */
#pragma once
#include "kernels/cuda/numbers.h"

/* ---- elements ---- */
DEVICE uint64_t code_load(tutti_dtype dtype, const char *from)
{
    switch (element_bytes(dtype)) {
    case 1: return LOAD(uint8_t, from);
    case 2: return LOAD(uint16_t, from);
    case 4: return LOAD(uint32_t, from);
    default: return LOAD(uint64_t, from);
    }
}
DEVICE void code_store(tutti_dtype dtype, char *to, uint64_t code)
{
    switch (element_bytes(dtype)) {
    case 1: STORE(uint8_t, to, (uint8_t)code); break;
    case 2: STORE(uint16_t, to, (uint16_t)code); break;
    case 4: STORE(uint32_t, to, (uint32_t)code); break;
    default: STORE(uint64_t, to, code);
    }
}

/* ---- vectors ---- */
DEVICE int vector_count_elements(tutti_dtype dtype) { return VECTOR_BYTES / element_bytes(dtype); }
/* Returns the code of element i of a vector. */
DEVICE uint64_t vector_get(tutti_dtype dtype, const struct vector16 *v, int i)
{
    const int bytes = element_bytes(dtype);
    if (bytes == 8) return (uint64_t)v->word[2 * i + 1] << 32 | v->word[2 * i];
    if (bytes == 4) return v->word[i];
    uint32_t word = v->word[i * bytes / 4] >> (i * bytes % 4 * 8);
    return bytes == 2 ? (uint16_t)word : (uint8_t)word;
}
/* Sets element i of a vector whose elements from i on are 0. */
DEVICE void vector_set(tutti_dtype dtype, struct vector16 *v, int i, uint64_t code)
{
    const int bytes = element_bytes(dtype);
    if (bytes == 8) {
        v->word[2 * i] = (uint32_t)code;
        v->word[2 * i + 1] = (uint32_t)(code >> 32);
        return;
    }
    uint32_t cut = bytes == 4 ? (uint32_t)code : bytes == 2 ? (uint16_t)code : (uint8_t)code;
    v->word[i * bytes / 4] |= cut << (i * bytes % 4 * 8);
}

/* ---- the work of a thread ---- */
/* An array whose first `head` elements are single, then come vectors, and at the end single elements again. */
struct division { size_t head, vectors, singles; };
/* Divides arrays of `count` elements. `skew` is a bitwise or: the differences between the addresses of the arrays. If
   they lie differently in 16 bytes, all elements are single. */
DEVICE struct division array_divide(tutti_dtype dtype, const void *first, uintptr_t skew, size_t count)
{
    const size_t bytes = (size_t)element_bytes(dtype), elements = VECTOR_BYTES / bytes;
    struct division d = { 0, 0, count };
    size_t head = (VECTOR_BYTES - (uintptr_t)first % VECTOR_BYTES) % VECTOR_BYTES / bytes;
    if (skew % VECTOR_BYTES || head > count) return d;
    d.head = head;
    d.vectors = (count - head) / elements;
    d.singles = count - d.vectors * elements;
    return d;
}
/* Returns which element is the i-th single one. */
DEVICE size_t division_find_single(tutti_dtype dtype, struct division d, size_t i)
{
    return i < d.head ? i : i + d.vectors * (size_t)vector_count_elements(dtype);
}
