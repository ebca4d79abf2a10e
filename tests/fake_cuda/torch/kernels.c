/* A library in the place of libtutti_cuda.so, for programs on the fake CUDA: it registers the twin of the kernels with
   the fake driver when it is loaded. */
#include "kernels/cuda/image.h"
#include "tests/unit/cuda_kernels/twin.h"

/* The fake driver finds kernels by their names and ignores the image. */
const unsigned char tutti_cuda_image[] = "image";
const uint64_t tutti_cuda_sources = IMAGE_SOURCES;

__attribute__((constructor)) static void kernels_register(void) { twin_register(); }
