/* How the library of the kernels is opened: the first usable one, and why others are refused. */
#include "backend/streams/kernel_image.h"
#include "kernels/cuda/image.h"
#include "tests/unit/fake_cuda/children.h"
#include <dlfcn.h>

static void detail_expect(const char *text)
{
    if (strstr(status_detail(), text)) return;
    fprintf(stderr, "the error lacks \"%s\": %s\n", text, status_detail());
    expect_true(false);
}
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
    detail_expect("libno-such-image.so: ");
    detail_expect("it has no kernels");
    detail_expect("its kernels are of other sources than this library");
    detail_expect("ninja tutti_cuda");
}
/* No library of kernels lies beside the program of this test. */
static void own_folder_has_none(int peer)
{
    (void)peer;
    const void *image;
    expect_true(stream_kernel_image_open(NULL, &image) == TUTTI_UNSUPPORTED);
    detail_expect("/libtutti_cuda.so: ");
}
static void test_unusable_libraries_are_errors_with_their_cause(void **state)
{
    (void)state;
    assert_child(no_path_opens, NULL);
    assert_child(own_folder_has_none, NULL);
}

unit_function test_kernel_image;
int test_kernel_image(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_usable_library_is_opened),
        cmocka_unit_test(test_unusable_libraries_are_errors_with_their_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
