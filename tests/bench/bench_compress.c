/* Measures how fast gradients are packed and unpacked: a line for each form and size, whose times are multiples of a
 * memcpy of the same numbers, measured next to them; the best of several runs. An argument names the instruction set;
 * without one it is the best of this processor (TUTTI_ISA has no effect here). "with what was lost": packing also reads
 * the residual, and writes what this packing loses. */
#include "kernels/compress.h"
#include "kernels/reduce.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { COUNT = 16 << 20, RUNS = 7, SOURCES = 2 };
static float *gradient, *lost, *to;
static char *packed[SOURCES];

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
enum what { COPY, PACK, PACK_ALL, UNPACK, UNPACK_SUM };
static void call(enum what what, const struct packing *how, size_t count)
{
    const void *from[SOURCES] = { packed[0], packed[1] };
    switch (what) {
    case COPY: memcpy(to, gradient, count * sizeof *to); break;
    case PACK: pack_find(TUTTI_FLOAT32)(packed[0], gradient, NULL, count, how, 0); break;
    case PACK_ALL: pack_find(TUTTI_FLOAT32)(packed[1], gradient, lost, count, how, 0); break;
    case UNPACK: unpack_find(TUTTI_FLOAT32)(to, from, 1, count, how, 0, 1.0f); break;
    case UNPACK_SUM: unpack_find(TUTTI_FLOAT32)(to, from, SOURCES, count, how, 0, 0.5f); break;
    }
}
static double measure(enum what what, const struct packing *how, size_t count)
{
    int calls = (int)(COUNT / count);
    double best = 1e9;
    for (int run = 0; run < RUNS; run++) {
        double begin = now();
        for (int i = 0; i < calls; i++) {
            call(what, how, count);
            __asm__ volatile("" ::: "memory");
        }
        double seconds = (now() - begin) / calls;
        if (seconds < best) best = seconds;
    }
    return best;
}
static void print_line(const char *name, const struct packing *how, size_t count)
{
    double copy = measure(COPY, how, count);
    printf("%-22s %9zu B %8zu packed | x memcpy:", name, count * sizeof *to, packing_bytes(how, count));
    printf(" pack %5.2f", measure(PACK, how, count) / copy);
    printf(", with what was lost %5.2f", measure(PACK_ALL, how, count) / copy);
    printf(", unpack %5.2f", measure(UNPACK, how, count) / copy);
    printf(", sum of 2 %5.2f | memcpy %.1f GB/s\n", measure(UNPACK_SUM, how, count) / copy,
        (double)(count * sizeof *to) / copy / 1e9);
}
int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        struct packing how;
    } forms[] = {
        { "float16", { .form = PACKING_FLOAT16 } },
        { "bfloat16", { .form = PACKING_BFLOAT16 } },
        { "int8", { .form = PACKING_INT8 } },
        { "int8, stochastic", { .form = PACKING_INT8, .stochastic = true, .seed = 1 } },
        { "int4", { .form = PACKING_INT4 } },
        { "int4, stochastic", { .form = PACKING_INT4, .stochastic = true, .seed = 1 } },
        { "top 1 %", { .form = PACKING_TOPK, .kept = 10 } },
        { "top 10 %", { .form = PACKING_TOPK, .kept = 102 } },
        { "random 1 %", { .form = PACKING_RANDOMK, .kept = 10, .seed = 1 } },
        { "from 1.4 on, some 1 %", { .form = PACKING_THRESHOLD, .kept = 102, .threshold = 1.4f } },
    };
    static const size_t sizes[] = { 64 << 10, COUNT };
    if (count > 1 && !kernels_select_isa(arguments[1])) return 1;
    gradient = aligned_alloc(64, COUNT * sizeof *gradient);
    lost = aligned_alloc(64, COUNT * sizeof *lost);
    to = aligned_alloc(64, COUNT * sizeof *to);
    for (int i = 0; i < SOURCES; i++) packed[i] = aligned_alloc(64, COUNT * sizeof(float) * 2);
    if (!gradient || !lost || !to || !packed[0] || !packed[1]) return 1;
    /* A sum of four random numbers is nearly normal, as gradients are. */
    for (size_t i = 0; i < COUNT; i++) {
        gradient[i] = 0;
        for (int k = 0; k < 4; k++) gradient[i] += (float)rand() / (float)RAND_MAX - 0.5f;
        lost[i] = 0;
    }
    printf("%s\n", kernels_isa());
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++)
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) print_line(forms[i].name, &forms[i].how, sizes[s]);
    return 0;
}
