/* The counts of a peer say where a chunk of its tensor lies. They are in shared memory, so a faulty peer may change
   them after they were checked. Even then a located chunk lies within the mapped tensor. */
#include "backend/execute/bind.h"
#include "tests/support/unit.h"

enum { MAPPED = 4096, TILE = 1024 };
static unsigned char memory[MAPPED];

/* Locates a tile of rank 0's chunk in `memory`, where rank 0's counts give the chunk `length` bytes at `offset`. */
static struct piece locate(size_t length, size_t offset, int tile)
{
    size_t lengths[] = { length }, offsets[] = { offset };
    struct operand theirs[1][2] = { { { memory, lengths, offsets, MAPPED, NULL } } };
    struct program_cut cut = { .tile_bytes = TILE };
    static const struct place places[] = { { 0, 0 }, { 0, 1 } };
    struct uneven uneven = { .agreement = IN_PAIRS };
    struct executor x = {
        .launch.uneven = &uneven, .site.rank = 1, .site.places = places, .peer_operands = theirs, .run.cut = &cut
    };
    return bind_locate_chunk(&x, &(struct span){ .rank = 0, .buffer = INPUT, .count = 1 }, 0, tile);
}
static void expect_inside(size_t length, size_t offset, int tile)
{
    struct piece p = locate(length, offset, tile);
    assert_true(p.at >= memory && p.at <= memory + MAPPED && p.length <= (size_t)(memory + MAPPED - p.at));
}
static void test_chunk_lies_where_the_counts_say(void **state)
{
    (void)state;
    struct piece p = locate(3000, 1096, 2);
    assert_ptr_equal(p.at, memory + 1096 + 2 * TILE);
    assert_int_equal(p.length, 3000 - 2 * TILE);
}
static void test_chunk_stays_within_the_mapping_whatever_the_counts(void **state)
{
    static const size_t values[] = { 0, 1, 3000, MAPPED, MAPPED + 1, SIZE_MAX / 2, SIZE_MAX - TILE, SIZE_MAX };
    enum { COUNT = sizeof values / sizeof *values };
    for (int length = 0; length < COUNT; length++)
        for (int offset = 0; offset < COUNT; offset++)
            for (int tile = 0; tile < 5; tile++) expect_inside(values[length], values[offset], tile);
    (void)state;
}

unit_function test_bind;
int test_bind(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunk_lies_where_the_counts_say),
        cmocka_unit_test(test_chunk_stays_within_the_mapping_whatever_the_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
