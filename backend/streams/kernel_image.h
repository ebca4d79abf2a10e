/* The image of the kernels, which a library of its own has: libtutti_cuda.so. */
#pragma once
#include "backend/base/status.h"

/* Opens the first usable one of the paths, which are separated by colons; NULL: libtutti_cuda.so in the folder of this
   library. A process opens it once and keeps it, so later calls ignore the paths. *out is the image for
   stream_settings. UNSUPPORTED: there is no such library, or it was built from other kernels than this one needs. */
tutti_status stream_kernel_image_open(const char *paths, const void **out);
