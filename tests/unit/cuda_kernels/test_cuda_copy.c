/* The twin of the copy kernel copies up to CUDA_COPIES arrays of any length and alignment, and no other byte. */
#include "tests/support/unit.h"
#include "tests/unit/cuda_kernels/twin.h"
#include "tests/unit/kernels/data.h"

enum { ROOM = 12000 };
static _Alignas(16) char sources[CUDA_COPIES][ROOM], destinations[CUDA_COPIES][ROOM];

static void check_copies(struct cuda_copy *copies, int count, unsigned blocks)
{
    memset(destinations, 0x5a, sizeof destinations);
    assert_true(twin_run("tutti_copy", copies, blocks, (unsigned)count));
    for (int k = 0; k < CUDA_COPIES; k++) {
        const struct cuda_copied *c = &copies->copy[k];
        size_t begin = k < count ? (size_t)((char *)c->to - destinations[k]) : ROOM;
        size_t end = k < count ? begin + c->bytes : ROOM;
        if (k < count) assert_memory_equal(c->to, c->from, c->bytes);
        for (size_t i = 0; i < begin; i++) assert_true(destinations[k][i] == 0x5a);
        for (size_t i = end; i < ROOM; i++) assert_true(destinations[k][i] == 0x5a);
    }
}
static void test_copies_have_the_bytes_of_their_sources(void **state)
{
    (void)state;
    static const size_t lengths[] = { 0, 1, 3, 4, 15, 16, 17, 31, 255, 256, 1000, 4095, 4096, 4113, 9001 };
    for (int k = 0; k < CUDA_COPIES; k++)
        for (int i = 0; i < ROOM; i++) sources[k][i] = (char)random_bits();
    for (int round = 0; round < 200; round++) {
        struct cuda_copy copies = { 0 };
        int count = 1 + round % CUDA_COPIES;
        for (int k = 0; k < count; k++) {
            size_t shift = random_bits() % 16, skew = random_bits() % 2 ? 0 : random_bits() % 16;
            copies.copy[k].from = sources[k] + 16 + shift;
            copies.copy[k].to = destinations[k] + 16 + (shift + skew) % 16;
            copies.copy[k].bytes = lengths[random_bits() % (sizeof lengths / sizeof lengths[0])];
        }
        check_copies(&copies, count, 1 + (unsigned)round % 3);
    }
}

unit_function test_cuda_copy;
int test_cuda_copy(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_copies_have_the_bytes_of_their_sources) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
