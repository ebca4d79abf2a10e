/* libtutti_cuda.so opens without a GPU and has an image that the driver takes, a fat binary, and the hash of its
   sources. Its build has checked that no kernel spills registers, and that no instruction rounds differently from
   kernels/cpu. */
#include "kernels/cuda/image.h"
#include "tests/support/unit.h"
#include <dlfcn.h>

static void test_image_is_a_fat_binary(void **state)
{
    (void)state;
#ifdef CUDA_IMAGE
    static const unsigned char magic[] = { 0x50, 0xed, 0x55, 0xba };
    void *library = dlopen(CUDA_IMAGE, RTLD_NOW | RTLD_LOCAL);
    if (!library) fail_msg("%s", dlerror());
    const unsigned char *image = dlsym(library, "tutti_cuda_image");
    assert_non_null(image);
    assert_memory_equal(image, magic, sizeof magic);
    const uint64_t *sources = dlsym(library, "tutti_cuda_sources");
    assert_true(sources && *sources == TUTTI_CUDA_SOURCES);
    dlclose(library);
#else
    print_message(
        "skipped: this build has sanitizers, or nvcc was not found (set CUDA_HOME to the folder of a CUDA toolkit)\n");
    skip();
#endif
}

unit_function test_cuda_image;
int test_cuda_image(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_image_is_a_fat_binary) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
