/* The registration of words with the driver. Ranks that are threads of one process map the words once, and the driver
 * registers memory only once. Any number of threads may call the functions, in a context of CUDA. */
#pragma once
#include "backend/devices/cuda.h"

/* Registers the words of `ranks` ranks, unless this process has, and finds their address for devices. The entry of
   another rank of this process counts one more user. */
tutti_status host_words_register(void *words, int ranks, CUdeviceptr *out);
/* Ends one use, and unregisters the words after the last. */
void host_words_unregister(void *words);
