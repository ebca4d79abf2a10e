/* How the library of the kernels is opened: the first usable one, and why others are refused. */
#include "backend/base/dynamic_library.h"
#include "backend/streams/kernel_image.h"
#include "kernels/cuda/image.h"
#include "tests/unit/streams/ranks.h"
#include <dlfcn.h>
#include <sys/stat.h>

static void third_path_opens(int peer)
{
    (void)peer;
    const void *image;
    expect_true(stream_kernel_image_open(IMAGE_EMPTY ":" IMAGE_OTHER ":" IMAGE_SAME, &image) == TUTTI_OK);
    expect_true(strcmp(image, "image") == 0);
    expect_true(stream_kernel_image_open("", &image) == TUTTI_OK && image);
}
static void test_the_first_usable_library_is_opened(void **state)
{
    (void)state;
    assert_child(third_path_opens, NULL);
}
static void no_path_opens(int peer)
{
    (void)peer;
    const void *image;
    expect_true(stream_kernel_image_open("libno-such-image.so:" IMAGE_EMPTY ":" IMAGE_OTHER, &image)
        == TUTTI_UNSUPPORTED);
    expect_true(!image);
    expect_detail("libno-such-image.so: ");
    expect_detail("it has no kernels");
    expect_detail("its kernels are of other sources than this library");
    expect_detail("ninja tutti_cuda");
}
/* No library of kernels lies beside the program of this test. */
static void own_folder_has_none(int peer)
{
    (void)peer;
    const void *image;
    expect_true(stream_kernel_image_open(NULL, &image) == TUTTI_UNSUPPORTED);
    expect_detail("/libtutti_cuda.so: ");
}
static void test_unusable_libraries_are_errors_with_their_cause(void **state)
{
    (void)state;
    assert_child(no_path_opens, NULL);
    assert_child(own_folder_has_none, NULL);
}

static bool library_accept(void *opened, const char *path)
{
    (void)path;
    return dlsym(opened, "tutti_cuda_image") != NULL;
}
/* The list of paths would split at the colon, and would cut a path of more than 1,023 bytes. */
static void test_a_folder_may_have_a_colon_and_a_long_path(void **state)
{
    (void)state;
    enum { FOLDERS = 6, NAME = 200 };
    static struct dynamic_library library;
    const char *folder = getenv("TMPDIR");
    char path[2048], undo[2100];
    snprintf(path, sizeof path, "%.40s/image:XXXXXX", folder ? folder : P_tmpdir);
    assert_non_null(mkdtemp(path));
    snprintf(undo, sizeof undo, "rm -r '%s'", path);
    for (int i = 0; i < FOLDERS; i++) {
        size_t used = strlen(path);
        snprintf(path + used, sizeof path - used, "/%0*d", NAME, i);
        assert_int_equal(mkdir(path, 0700), 0);
    }
    strcat(path, "/image.so");
    assert_int_equal(symlink(IMAGE_SAME, path), 0);
    bool opens = dynamic_library_open_one(&library, path, library_accept);
    assert_int_equal(system(undo), 0);
    assert_true(opens);
}

unit_function test_kernel_image;
int test_kernel_image(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_usable_library_is_opened),
        cmocka_unit_test(test_unusable_libraries_are_errors_with_their_cause),
        cmocka_unit_test(test_a_folder_may_have_a_colon_and_a_long_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
