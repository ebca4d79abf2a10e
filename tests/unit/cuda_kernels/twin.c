#include "tests/unit/cuda_kernels/twin.h"
#include "kernels/cuda/copy.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/reduce.h"
#include "tests/fake_cuda/fake_cuda.h"

enum twin_kind { TWIN_REDUCE, TWIN_SCALE, TWIN_NORM, TWIN_COPY };
static const size_t parameter_bytes[] = { sizeof(struct cuda_reduce), sizeof(struct cuda_scale),
    sizeof(struct cuda_norm), sizeof(struct cuda_copy) };
struct twin_kernel {
    const char *name;
    enum twin_kind kind;
    tutti_dtype dtype;
    /* Runs one thread; `row` is the block's place in the grid's second dimension. */
    void (*run)(const void *parameter, unsigned row, struct cuda_thread thread);
    /* Runs a launch of the fake driver. */
    void (*launched)(struct fake_cuda_launch *launch);
};

static void kernel_run(const struct twin_kernel *kernel, const void *parameter, unsigned blocks_x, unsigned blocks_y)
{
    /* A prime, which divides no number of threads of a test. */
    enum { STEP = 7919 };
    struct cuda_thread thread = { 0, (size_t)blocks_x * CUDA_BLOCK };
    for (unsigned row = 0; row < blocks_y; row++) {
        for (size_t i = 0; i < thread.total; i++) {
            thread.index = i * STEP % thread.total;
            kernel->run(parameter, row, thread);
        }
    }
}

/* ---- launches of the fake driver: the addresses of device memory become those of the host ---- */
static bool address_read(struct fake_cuda_launch *launch, const void **address, size_t bytes)
{
    if (*address && bytes) *address = fake_cuda_read(launch, (CUdeviceptr)*address, bytes);
    return *address || !bytes;
}
static bool address_write(struct fake_cuda_launch *launch, void **address, size_t bytes)
{
    if (*address && bytes) *address = fake_cuda_write(launch, (CUdeviceptr)*address, bytes);
    return *address || !bytes;
}
static bool reduce_resolve(struct fake_cuda_launch *launch, struct cuda_reduce *r, size_t element)
{
    bool all = true;
    for (int k = 0; k < r->from_count; k++) all &= address_read(launch, &r->from[k], r->count * element);
    for (int j = 0; j < r->to_count; j++) all &= address_write(launch, &r->to[j], r->count * element);
    return all;
}
static bool norm_resolve(struct fake_cuda_launch *launch, struct cuda_norm *n, size_t element)
{
    size_t row = n->columns * element;
    bool all = address_write(launch, &n->rows, n->count * row);
    if (n->residual) all &= address_write(launch, &n->residual, n->count * row);
    if (n->weight) all &= address_read(launch, &n->weight, row);
    if (n->bias) all &= address_read(launch, &n->bias, row);
    return all;
}
static bool copy_resolve(struct fake_cuda_launch *launch, struct cuda_copy *c)
{
    bool all = true;
    for (unsigned k = 0; k < launch->grid[1]; k++) {
        struct cuda_copied *one = &c->copy[k];
        all &= address_read(launch, &one->from, one->bytes) && address_write(launch, &one->to, one->bytes);
    }
    return all;
}
/* Replaces the addresses of a parameter. Returns false if the device cannot access some of the memory. */
static bool parameter_resolve(struct fake_cuda_launch *launch, const struct twin_kernel *kernel)
{
    void *parameter = launch->parameters[0];
    size_t element = (size_t)element_bytes(kernel->dtype);
    struct cuda_scale *s = parameter;
    switch (kernel->kind) {
    case TWIN_REDUCE: return reduce_resolve(launch, parameter, element);
    case TWIN_SCALE:
        return address_read(launch, &s->from, s->count * element) && address_write(launch, &s->to, s->count * element);
    case TWIN_NORM: return norm_resolve(launch, parameter, element);
    default: return copy_resolve(launch, parameter);
    }
}
static void launch_run(struct fake_cuda_launch *launch, const struct twin_kernel *kernel)
{
    if (parameter_resolve(launch, kernel)) kernel_run(kernel, launch->parameters[0], launch->grid[0], launch->grid[1]);
}

/* ---- the kernels ---- */
/* Defines the two functions of a kernel and its row of the table. */
#define DEFINE_KERNEL(name, kind, dtype, statement) \
    static void run_##name(const void *p, unsigned row, struct cuda_thread thread) \
    { \
        (void)row; \
        statement; \
    } \
    static void launched_##name(struct fake_cuda_launch *launch); \
    static const struct twin_kernel kernel_##name = { "tutti_" #name, kind, dtype, run_##name, launched_##name }; \
    static void launched_##name(struct fake_cuda_launch *launch) { launch_run(launch, &kernel_##name); }
#define X(op, dtype) \
    DEFINE_KERNEL(reduce_##op##_##dtype, TWIN_REDUCE, TUTTI_##dtype, reduce_run(TUTTI_##dtype, TUTTI_##op, p, thread))
CUDA_REDUCE_MAP(X)
#undef X
#define X(dtype) DEFINE_KERNEL(scale_##dtype, TWIN_SCALE, TUTTI_##dtype, scale_run(TUTTI_##dtype, p, thread))
CUDA_SCALE_MAP(X)
#undef X
#define X(dtype) DEFINE_KERNEL(norm_##dtype, TWIN_NORM, TUTTI_##dtype, norm_run(TUTTI_##dtype, p, thread))
CUDA_NORM_MAP(X)
#undef X
DEFINE_KERNEL(copy, TWIN_COPY, TUTTI_UINT8, copy_run(&((const struct cuda_copy *)p)->copy[row], thread))

static const struct twin_kernel *const kernels[] = {
#define X(op, dtype) &kernel_reduce_##op##_##dtype,
    CUDA_REDUCE_MAP(X)
#undef X
#define X(dtype) &kernel_scale_##dtype,
            CUDA_SCALE_MAP(X)
#undef X
#define X(dtype) &kernel_norm_##dtype,
                CUDA_NORM_MAP(X)
#undef X
        & kernel_copy,
};
enum { KERNELS = sizeof kernels / sizeof kernels[0] };

bool twin_run(const char *name, const void *parameter, unsigned blocks_x, unsigned blocks_y)
{
    for (int i = 0; i < KERNELS; i++) {
        if (strcmp(kernels[i]->name, name) != 0) continue;
        kernel_run(kernels[i], parameter, blocks_x, blocks_y);
        return true;
    }
    return false;
}
void twin_register(void)
{
    for (int i = 0; i < KERNELS; i++) {
        struct fake_cuda_kernel kernel = { kernels[i]->name, kernels[i]->launched,
            { parameter_bytes[kernels[i]->kind] } };
        fake_cuda_register_kernel(&kernel);
    }
}
