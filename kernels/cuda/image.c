/* The kernels' machine code, as a file that cuModuleLoadData takes. libtutti_cuda.so has only this, so that a process
 * without a GPU does not load it. */
#include "kernels/cuda/image.h"

const uint64_t tutti_cuda_sources = TUTTI_CUDA_SOURCES;

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".global tutti_cuda_image\n"
        ".type tutti_cuda_image, %object\n"
        "tutti_cuda_image:\n"
        ".incbin \"" TUTTI_CUDA_FATBIN "\"\n"
        ".size tutti_cuda_image, . - tutti_cuda_image\n"
        ".popsection\n");
