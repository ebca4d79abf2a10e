/* Copies of small arrays, many in one launch. Larger ones are quicker by the driver's copies. */
#pragma once
#include "kernels/cuda/arrays.h"
#include "kernels/cuda/launch.h"

/* Does a thread's part of a copy whose arrays are aligned alike: words of `unit`, and at both ends bytes. */
DEVICE void copy_by_unit(tutti_dtype unit, const struct cuda_copied *c, struct cuda_thread thread)
{
    const size_t bytes = (size_t)element_bytes(unit);
    char *to = (char *)c->to;
    const char *from = (const char *)c->from;
    size_t head = (bytes - (uintptr_t)to % bytes) % bytes;
    if (head > c->bytes) head = c->bytes;
    size_t units = (c->bytes - head) / bytes, rest = c->bytes - units * bytes;
    UNROLL_ONE
    for (size_t i = thread.index; i < units; i += thread.total)
        code_store(unit, to + head + i * bytes, code_load(unit, from + head + i * bytes));
    UNROLL_ONE
    for (size_t i = thread.index; i < rest; i += thread.total) {
        size_t at = i < head ? i : i + units * bytes;
        code_store(TUTTI_UINT8, to + at, code_load(TUTTI_UINT8, from + at));
    }
}
/* Does a thread's part of one copy. */
DEVICE void copy_run(const struct cuda_copied *c, struct cuda_thread thread)
{
    uintptr_t skew = (uintptr_t)c->to ^ (uintptr_t)c->from;
    if (skew % 4) {
        copy_by_unit(TUTTI_UINT8, c, thread);
        return;
    }
    if (skew % VECTOR_BYTES) {
        copy_by_unit(TUTTI_UINT32, c, thread);
        return;
    }
    struct division d = array_divide(TUTTI_UINT8, c->to, skew, c->bytes);
    UNROLL_ONE
    for (size_t i = thread.index; i < d.vectors; i += thread.total) {
        size_t at = d.head + i * VECTOR_BYTES;
        struct vector16 v = LOAD(struct vector16, (const char *)c->from + at);
        STORE(struct vector16, (char *)c->to + at, v);
    }
    UNROLL_ONE
    for (size_t i = thread.index; i < d.singles; i += thread.total) {
        size_t at = division_find_single(TUTTI_UINT8, d, i);
        code_store(TUTTI_UINT8, (char *)c->to + at, code_load(TUTTI_UINT8, (const char *)c->from + at));
    }
}
