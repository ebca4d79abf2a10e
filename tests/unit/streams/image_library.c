/* A library in the place of libtutti_cuda.so, with the hash that it is compiled with. */
#include "kernels/cuda/image.h"

#ifdef IMAGE_SOURCES
const unsigned char tutti_cuda_image[] = "image";
const uint64_t tutti_cuda_sources = IMAGE_SOURCES;
#else
TUTTI_API const int tutti_cuda_nothing = 0;
#endif
