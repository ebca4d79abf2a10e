/* Chooses the instruction set and looks up functions. Invariant: `current` is NULL (not chosen yet) or a set that this
 * machine runs. Threads that choose at the same time choose the same set. */
#include "kernels/reduce.h"
#include "kernels/cpu/kernels.h"
#include "kernels/update.h"
#include <stdatomic.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static _Atomic(const struct kernels *) current;

#if defined(__x86_64__)
/* Returns true if the processor converts float16. It executes cpuid only once, because that takes tens of microseconds
   under a hypervisor. __builtin_cpu_supports of clang 14 has no name for this feature. */
static bool cpu_supports_f16c(void)
{
    enum { UNKNOWN, NO, YES };
    static atomic_int answer = UNKNOWN;
    if (atomic_load_explicit(&answer, memory_order_relaxed) == UNKNOWN) {
        unsigned a, b, c, d;
        bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
        atomic_store_explicit(&answer, has_f16c ? YES : NO, memory_order_relaxed);
    }
    return atomic_load_explicit(&answer, memory_order_relaxed) == YES;
}

/* Returns true if the processor runs all instructions of avx2.c. */
static bool cpu_supports_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_supports_f16c();
}

/* Returns true if the processor runs all instructions of avx512.c, and of avx2.c, to which that falls back. */
static bool cpu_supports_avx512(void)
{
    return cpu_supports_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

/* Returns the kernels of the index-th instruction set that this machine runs, from worst to best, or NULL for an index
   out of range. */
static const struct kernels *kernels_get_supported(int index)
{
    const struct kernels *supported[4] = { &kernels_scalar };
    int count = 1;
#if defined(__x86_64__)
    if (cpu_supports_avx2()) supported[count++] = &kernels_avx2;
    if (cpu_supports_avx512()) supported[count++] = &kernels_avx512;
#elif defined(__aarch64__)
    supported[count++] = &kernels_neon;
#endif
    return index >= 0 && index < count ? supported[index] : NULL;
}

/* Returns the kernels in use. The first call chooses the best instruction set of this machine. */
static const struct kernels *kernels_get_current(void)
{
    const struct kernels *chosen = atomic_load_explicit(&current, memory_order_relaxed);
    if (chosen) return chosen;
    for (int i = 0; kernels_get_supported(i); i++) chosen = kernels_get_supported(i);
    /* If another thread has chosen first, `found` gets its choice. */
    const struct kernels *found = NULL;
    if (!atomic_compare_exchange_strong(&current, &found, chosen)) chosen = found;
    return chosen;
}

reduce_function *reduce_find(tutti_dtype dtype, tutti_op op)
{
    if ((unsigned)dtype >= TUTTI_DTYPE_COUNT || (unsigned)op >= TUTTI_OP_COUNT) return NULL;
    if (op == TUTTI_AVG && dtype == TUTTI_BOOL) return NULL;
    if (op == TUTTI_PREMUL_SUM && !scale_find(dtype)) return NULL;
    tutti_op stored = op == TUTTI_AVG || op == TUTTI_PREMUL_SUM ? TUTTI_SUM : op;
    const struct kernels *kernels = kernels_get_current();
    while (kernels->below && !kernels->reduce[dtype][stored]) kernels = kernels->below;
    return kernels->reduce[dtype][stored];
}

reduce_streamed_function *reduce_streamed_find(tutti_dtype dtype, tutti_op op)
{
    if ((unsigned)dtype >= TUTTI_DTYPE_COUNT) return NULL;
    if (op != TUTTI_SUM && op != TUTTI_AVG && op != TUTTI_PREMUL_SUM) return NULL;
    const struct kernels *kernels = kernels_get_current();
    while (kernels->below && !kernels->streamed_sum[dtype]) kernels = kernels->below;
    return kernels->streamed_sum[dtype];
}

scale_function *scale_find(tutti_dtype dtype)
{
    if ((unsigned)dtype >= TUTTI_DTYPE_COUNT) return NULL;
    const struct kernels *kernels = kernels_get_current();
    while (kernels->below && !kernels->scale[dtype]) kernels = kernels->below;
    return kernels->scale[dtype];
}

update_function *update_find(enum update_rule rule, tutti_dtype gradient)
{
    if ((unsigned)gradient >= TUTTI_DTYPE_COUNT || (unsigned)rule >= UPDATE_RULES) return NULL;
    return kernels_get_current()->update[gradient][rule];
}

squares_function *squares_find(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? kernels_get_current()->squares[dtype] : NULL;
}

/* Returns the best kernels that have functions for rows of this type. If none have, the functions are NULL. */
static const struct kernels *kernels_find_for_rows(tutti_dtype dtype)
{
    const struct kernels *kernels = kernels_get_current();
    while (kernels->below && !kernels->norm[dtype]) kernels = kernels->below;
    return kernels;
}
norm_function *norm_find(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? kernels_find_for_rows(dtype)->norm[dtype] : NULL;
}
blend_function *blend_find(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? kernels_find_for_rows(dtype)->blend[dtype] : NULL;
}
dot_function *dot_find(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? kernels_find_for_rows(dtype)->dot[dtype] : NULL;
}

pack_function *pack_find(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? kernels_get_current()->pack[dtype] : NULL;
}

unpack_function *unpack_find(tutti_dtype dtype)
{
    return (unsigned)dtype < TUTTI_DTYPE_COUNT ? kernels_get_current()->unpack[dtype] : NULL;
}

const char *kernels_isa_name(int index)
{
    const struct kernels *kernels = kernels_get_supported(index);
    return kernels ? kernels->isa : NULL;
}

const char *kernels_isa(void) { return kernels_get_current()->isa; }

bool kernels_select_isa(const char *isa)
{
    const struct kernels *kernels;
    for (int i = 0; (kernels = kernels_get_supported(i)) != NULL; i++) {
        if (strcmp(kernels->isa, isa) == 0) {
            atomic_store(&current, kernels);
            return true;
        }
    }
    return false;
}
