/* The library libtutti_cuda.so exports these symbols, which dlsym finds. */
#pragma once
#include "include/tutti.h"

/* The kernels of launch.h for all GPUs that kernels/cuda/cuda.cmake lists: an image for cuModuleLoadData. */
TUTTI_API extern const unsigned char tutti_cuda_image[];
/* A hash of the sources of the kernels. A library that launches them must have the same one. */
TUTTI_API extern const uint64_t tutti_cuda_sources;
