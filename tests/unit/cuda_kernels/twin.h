/* The twin: the kernels of kernels/cuda, compiled by the host's compiler. A launch runs the threads one after another,
 * in an order that differs from their numbers. */
#pragma once
#include "kernels/cuda/launch.h"

/* Runs a kernel on host memory, as a launch of blocks_x * blocks_y blocks of CUDA_BLOCK threads would. parameter: the
   kernel's struct. Returns false if there is no kernel of that name. */
bool twin_run(const char *name, const void *parameter, unsigned blocks_x, unsigned blocks_y);
/* Registers all kernels with the fake CUDA driver. They declare the arrays that they access. */
void twin_register(void);
