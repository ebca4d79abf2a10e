/* Commands of a stream: which are gathered into one call, and which must stay apart. */
#include "backend/streams/commands.h"
#include "tests/unit/streams/ranks.h"

enum { BYTES = 256, ARRAYS = 48 };
static struct stream_commands commands;
static CUdeviceptr memory;

static CUdeviceptr array_at(int i) { return memory + (CUdeviceptr)i * BYTES; }
/* Begins commands on a new stream, on arrays of which number i has the byte i. */
static void commands_start(struct stream_rank *rank)
{
    memory = memory_new((size_t)ARRAYS * BYTES);
    for (int i = 0; i < ARRAYS; i++) expect_success(cuMemsetD8_v2(array_at(i), (unsigned char)i, BYTES));
    expect_success(cuCtxSynchronize());
    stream_commands_begin(&commands, rank->site, stream_new());
}
static void array_copy(int to, int from) { stream_commands_copy_bytes(&commands, array_at(to), array_at(from), BYTES); }
/* Ends the commands, and checks how many batches of words and how many launches they took since these counts. */
static void calls_expect(uint64_t batches, uint64_t launches, int more_batches, int more_launches)
{
    expect_true(stream_commands_finish(&commands) == TUTTI_OK);
    expect_success(cuCtxSynchronize());
    expect_true(fake_cuda_count("cuStreamBatchMemOp") - batches == (uint64_t)more_batches);
    expect_true(fake_cuda_count("cuLaunchKernel") - launches == (uint64_t)more_launches);
}
static uint64_t batches_count(void) { return fake_cuda_count("cuStreamBatchMemOp"); }
static uint64_t launches_count(void) { return fake_cuda_count("cuLaunchKernel"); }
static uint32_t word_read(const struct stream_rank *rank, int word)
{
    return atomic_load(&stream_site_line_of_rank(rank->site, rank->rank)->position[word]);
}

static void copies_are_gathered(struct stream_rank *rank)
{
    uint64_t batches = batches_count(), launches = launches_count();
    commands_start(rank);
    for (int i = 1; i < 40; i++) array_copy(i, 0);
    calls_expect(batches, launches, 0, 2);
    for (int i = 0; i < 40; i++) expect_true(word_at(array_at(i)) == 0);
    /* Each copy touches what one before it writes or reads. */
    const int dependent[][4] = { { 1, 41, 2, 1 }, { 1, 42, 1, 43 }, { 2, 44, 44, 45 } };
    for (int i = 0; i < 3; i++) {
        launches = launches_count();
        array_copy(dependent[i][0], dependent[i][1]);
        array_copy(dependent[i][2], dependent[i][3]);
        calls_expect(batches, launches, 0, 2);
    }
    expect_true(word_at(array_at(2)) == 44 * 0x01010101u && word_at(array_at(1)) == 43 * 0x01010101u);
    launches = launches_count();
    array_copy(5, 5);
    stream_commands_copy_bytes(&commands, array_at(5), array_at(6), 0);
    calls_expect(batches, launches, 0, 0);
    rank_close(rank);
}
/* A rank awaits its own words here, which it writes itself, before or in the same batch. */
static void words_are_gathered(struct stream_rank *rank)
{
    uint64_t batches = batches_count(), launches = launches_count();
    commands_start(rank);
    array_copy(1, 2);
    stream_commands_write_word(&commands, 1, 5);
    array_copy(3, 4);
    stream_commands_write_word(&commands, 1, 6);
    stream_commands_await_word(&commands, 0, 1, 6);
    array_copy(5, 6);
    stream_commands_await_word(&commands, 0, 1, 4);
    array_copy(7, 8);
    calls_expect(batches, launches, 1, 2);
    expect_true(word_read(rank, 1) == 6 && word_at(array_at(7)) == 8 * 0x01010101u);
    /* The second wait must not join the first, because the write lies between. */
    batches = batches_count();
    stream_commands_write_word(&commands, 2, 1);
    stream_commands_await_word(&commands, 0, 2, 1);
    stream_commands_write_word(&commands, 2, 2);
    stream_commands_await_word(&commands, 0, 2, 2);
    calls_expect(batches, launches + 2, 1, 0);
    /* 300 words take two batches. */
    batches = batches_count();
    for (uint32_t i = 0; i < 150; i++) {
        stream_commands_write_word(&commands, 3, i + 1);
        stream_commands_await_word(&commands, 0, 3, i + 1);
    }
    calls_expect(batches, launches + 2, 2, 0);
    rank_close(rank);
}
static void test_copies_that_touch_others_stay_apart(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 1, 1, 0, NULL }, copies_are_gathered);
}
static void test_words_are_gathered_in_their_order(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 1, 1, 0, NULL }, words_are_gathered);
}

unit_function test_stream_commands;
int test_stream_commands(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_that_touch_others_stay_apart),
        cmocka_unit_test(test_words_are_gathered_in_their_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
