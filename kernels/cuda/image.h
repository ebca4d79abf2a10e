/* The library libtutti_cuda.so exports this symbol, which dlsym finds. */
#pragma once
#include "include/tutti.h"

/* The kernels of launch.h for all GPUs that kernels/cuda/cuda.cmake lists: an image for cuModuleLoadData. */
TUTTI_API extern const unsigned char tutti_cuda_image[];
