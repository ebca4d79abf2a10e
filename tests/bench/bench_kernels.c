/* Measures the speed of the kernels: a line for each dtype, op and shape, with GB/s on every instruction set of this
 * machine, and with the time as a multiple of a memcpy of one array, measured next to it. The bytes counted are those
 * of all sources and destinations (of a memcpy: two arrays). Figures are the best of several runs; run this program
 * alone on the machine. Arguments select lines, whose words must include all of them: bench_kernels bfloat16 sum '2->1'
 * 65536 avx512 */
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
static int word_count; /* of the command line */
static char **words;

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

/* Returns the seconds of a call of `reduce`, or of a memcpy if it is NULL: the best of RUNS. */
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

/* Returns true if every word of the command line describes this line. */
static bool is_wanted(tutti_dtype dtype, const struct shape *shape, size_t bytes, const char *isa)
{
    char counts[16], size[24];
    snprintf(counts, sizeof counts, "%d->%d", shape->from_count, shape->to_count);
    snprintf(size, sizeof size, "%zu", bytes);
    const char *const about[] = { dtypes[dtype].name, shape->name, counts, size, isa };
    for (int i = 0; i < word_count; i++) {
        bool found = false;
        for (size_t k = 0; k < sizeof about / sizeof about[0]; k++) found |= strcmp(words[i], about[k]) == 0;
        if (!found) return false;
    }
    return true;
}

static void print_line(tutti_dtype dtype, const struct shape *shape, size_t bytes)
{
    size_t count = bytes / dtypes[dtype].bytes;
    bool begun = false;
    for (int i = 0; kernels_isa_name(i); i++) {
        kernels_select_isa(kernels_isa_name(i));
        reduce_function *reduce = reduce_find(dtype, shape->op);
        if (!reduce || !is_wanted(dtype, shape, bytes, kernels_isa())) continue;
        if (!begun)
            printf("%-14s %-8s %d->%d %9zu B ", dtypes[dtype].name, shape->name, shape->from_count, shape->to_count,
                bytes);
        begun = true;
        double copy = measure(NULL, shape, count, bytes), seconds = measure(reduce, shape, count, bytes);
        double moved = (double)bytes * (shape->from_count + shape->to_count);
        if (bytes < 1024) printf(" | %s %6.1f ns (memcpy %4.1f)", kernels_isa(), seconds * 1e9, copy * 1e9);
        else printf(" | %s %6.1f GB/s %5.2f x memcpy", kernels_isa(), moved / seconds / 1e9, seconds / copy);
    }
    if (begun) printf("\n");
}

int main(int count, char **arguments)
{
    static const size_t sizes[] = { 8, 60, 64 << 10, 64 << 20 };
    word_count = count - 1;
    words = arguments + 1;
    /* Each array begins at another offset in its page. With equal offsets a load would seem to depend on the last
       call's stores to the same offset, and would wait for them. */
    const size_t stagger = 384;
    for (size_t i = 0; i < ARRAYS; i++) {
        arrays[i] = aligned_alloc(4096, sizes[3] + 4096);
        if (!arrays[i]) return 1;
        arrays[i] += i * stagger;
        /* These bytes are an ordinary number in every floating-point format. */
        memset(arrays[i], 0x3c, sizes[3]);
    }
    for (size_t size = 0; size < sizeof sizes / sizeof sizes[0]; size++) {
        for (tutti_dtype dtype = 0; dtype < TUTTI_DTYPE_COUNT; dtype++) {
            for (int i = 0; i < SHAPES; i++) print_line(dtype, &shapes[i], sizes[size]);
        }
    }
    return 0;
}
