/* An image of other sources could have kernels with other parameters. So the build gives the image a hash of the
   sources of the kernels, and this file the same hash. */
#include "backend/streams/kernel_image.h"
#include "backend/base/dynamic_library.h"
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static struct dynamic_library library;
static const void *image;

static bool image_library_accept(void *opened, const char *path)
{
    const uint64_t *sources = dlsym(opened, "tutti_cuda_sources");
    const void *found = dlsym(opened, "tutti_cuda_image");
    if (!sources || !found) {
        dynamic_library_record_problem(&library, path, "it has no kernels");
        return false;
    }
    if (*sources != TUTTI_CUDA_SOURCES) {
        dynamic_library_record_problem(&library, path, "its kernels are of other sources than this library");
        return false;
    }
    image = found;
    snprintf(library.name, sizeof library.name, "%.255s", path);
    return true;
}
/* Writes the path of libtutti_cuda.so in the folder of the library that has this code. */
static void image_library_find_path(char *out, size_t bytes)
{
    Dl_info own;
    bool found = dladdr((void *)image_library_accept, &own) && own.dli_fname;
    const char *file = found ? own.dli_fname : "", *slash = strrchr(file, '/');
    snprintf(out, bytes, "%.*slibtutti_cuda.so", slash ? (int)(slash + 1 - file) : 0, file);
}
static void image_library_open(const char *paths)
{
    char path[4096];
    image_library_find_path(path, sizeof path);
    if (paths) dynamic_library_open_first(&library, paths, image_library_accept);
    else dynamic_library_open_one(&library, path, image_library_accept);
}
tutti_status stream_kernel_image_open(const char *paths, const void **out)
{
    dynamic_library_open_once(&library, image_library_open, paths);
    *out = image;
    if (image) return TUTTI_OK;
    return status_fail(TUTTI_UNSUPPORTED,
        "no usable kernels for GPUs (%s): build libtutti_cuda.so with this library (ninja tutti_cuda, which needs "
        "nvcc), and put both into one folder",
        library.problem[0] ? library.problem : "no path");
}
