/* The kernels of kernels/cuda on one device: their functions are found and launched here. */
#pragma once
#include "backend/devices/cuda.h"
#include "include/tutti.h"

/* A device's module and its functions. A process has one for each device. */
struct stream_kernels;
/* Loads the image into the context of a device, which must be current, unless this process has loaded it. `stream` is
   one without work. */
tutti_status stream_kernels_load_image(CUdevice device, const void *image, CUstream stream,
    struct stream_kernels **out);
/* Computes to[0] = to[1] = … = (from[0] op from[1] op …) / divisor as the kernels do, on `count` elements. */
struct stream_reduce {
    const CUdeviceptr *to, *from;
    int to_count, from_count, divisor;
    size_t count;
    tutti_dtype dtype;
    tutti_op op;
};
tutti_status stream_kernels_launch_reduce(const struct stream_kernels *kernels, CUstream stream,
    const struct stream_reduce *reduce);
/* Multiplies `count` elements by a factor. */
struct stream_scale {
    CUdeviceptr to, from;
    size_t count;
    tutti_dtype dtype;
    double factor;
};
tutti_status stream_kernels_launch_scale(const struct stream_kernels *kernels, CUstream stream,
    const struct stream_scale *scale);
/* Copies `count` arrays, at most CUDA_COPIES, which must not overlap, in one launch. */
struct stream_copy {
    CUdeviceptr to, from;
    size_t bytes;
};
tutti_status stream_kernels_launch_copy(const struct stream_kernels *kernels, CUstream stream,
    const struct stream_copy *copies, int count);
/* Returns an error if a kernel that an operation of this type needs does not exist. */
tutti_status stream_kernels_check_operation(const struct stream_kernels *kernels, tutti_dtype dtype, tutti_op op);
