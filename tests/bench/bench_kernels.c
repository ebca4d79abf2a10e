/* Speed of the kernels, one line per dtype, op and shape: GB/s on every instruction set of this machine, and the
 * time as a multiple of a memcpy of one array measured next to it. The bytes counted are those of all sources and
 * destinations (a memcpy: two arrays). Best of several runs; for numbers worth keeping, run it alone on the machine.
 * bench_kernels [dtype] for example: bench_kernels bfloat16 */
#include "kernels/reduce.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ARRAYS = 10, RUNS = 9 };

struct shape {
    tutti_op op;
    const char *name;
    int from_count, to_count, divisor;
};
static const struct shape shapes[] = {
    { TUTTI_SUM, "copy", 1, 1, 1 },
    { TUTTI_SUM, "copy", 1, 3, 1 },
    { TUTTI_SUM, "sum", 2, 1, 1 },
    { TUTTI_SUM, "sum", 2, 2, 1 },
    { TUTTI_SUM, "sum", 4, 1, 1 },
    { TUTTI_SUM, "sum", 4, 4, 1 },
    { TUTTI_SUM, "sum", 8, 1, 1 },
    { TUTTI_AVG, "average", 2, 1, 2 },
    { TUTTI_PROD, "product", 2, 1, 1 },
    { TUTTI_MIN, "min", 2, 1, 1 },
    { TUTTI_MAX, "max", 2, 1, 1 },
    { TUTTI_BXOR, "bxor", 2, 1, 1 },
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static const struct {
    size_t bytes;
    const char *name;
} dtypes[] = {
#define X(name, bytes, printed) { bytes, printed },
    TUTTI_DTYPE_MAP(X)
#undef X
};

static char *arrays[ARRAYS];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Destinations are the last arrays, sources the first, as in a host collective out of place. */
static void call(reduce_function *reduce, const struct shape *shape, size_t count)
{
    void *to[ARRAYS];
    const void *from[ARRAYS];
    for (int i = 0; i < shape->to_count; i++) to[i] = arrays[ARRAYS - 1 - i];
    for (int i = 0; i < shape->from_count; i++) from[i] = arrays[i % (ARRAYS - shape->to_count)];
    reduce(to, shape->to_count, from, shape->from_count, count, shape->divisor);
}

/* Seconds of one call, the best of RUNS; reduce NULL: of a memcpy. */
static double measure(reduce_function *reduce, const struct shape *shape, size_t count, size_t bytes)
{
    int calls = (int)((16u << 20) / (bytes + 256)) + 1;
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        double begin = now();
        for (int i = 0; i < calls; i++) {
            if (reduce) call(reduce, shape, count);
            else memcpy(arrays[ARRAYS - 1], arrays[0], bytes);
            __asm__ volatile("" ::: "memory");
        }
        double seconds = (now() - begin) / calls;
        if (seconds < best) best = seconds;
    }
    return best;
}

static void print_line(tutti_dtype dtype, const struct shape *shape, size_t bytes)
{
    size_t count = bytes / dtypes[dtype].bytes;
    printf("%-14s %-8s %d -> %d %9zu B ", dtypes[dtype].name, shape->name, shape->from_count, shape->to_count, bytes);
    for (int i = 0; kernels_isa_name(i); i++) {
        kernels_use(kernels_isa_name(i));
        reduce_function *reduce = reduce_find(dtype, shape->op);
        double copy = measure(NULL, shape, count, bytes), seconds = measure(reduce, shape, count, bytes);
        double moved = (double)bytes * (shape->from_count + shape->to_count);
        if (bytes < 1024) printf(" | %s %6.1f ns (memcpy %4.1f)", kernels_isa(), seconds * 1e9, copy * 1e9);
        else printf(" | %s %6.1f GB/s %5.2f x memcpy", kernels_isa(), moved / seconds / 1e9, seconds / copy);
    }
    printf("\n");
}

int main(int count, char **arguments)
{
    static const size_t sizes[] = { 8, 60, 64 << 10, 64 << 20 };
    const size_t stagger = 384; /* else loads look like the last call's stores, modulo a page */
    for (size_t i = 0; i < ARRAYS; i++) {
        arrays[i] = aligned_alloc(4096, sizes[3] + 4096);
        if (!arrays[i]) return 1;
        arrays[i] += i * stagger;
        memset(arrays[i], 0x3c, sizes[3]); /* an ordinary number in every floating-point format */
    }
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            for (int i = 0; i < SHAPES; i++) {
                if (count > 1 && strcmp(arguments[1], dtypes[dtype].name) != 0) continue;
                if (reduce_find(dtype, shapes[i].op)) print_line(dtype, &shapes[i], sizes[size]);
            }
        }
    }
    return 0;
}
