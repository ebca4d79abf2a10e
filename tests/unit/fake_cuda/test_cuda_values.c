/* Tests words that streams write and wait for. */
#include "tests/unit/fake_cuda/children.h"
#include <sys/mman.h>

/* Words of memory that all children map. */
static uint32_t *shared;
enum { SHARED_BYTES = 4096, COUNT = 100 };

static int shared_map(void **state)
{
    (void)state;
    shared = mmap(NULL, SHARED_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return shared == MAP_FAILED;
}
static void shared_register(void)
{
    device_use(0);
    expect_success(cuMemHostRegister_v2(shared, SHARED_BYTES, CU_MEMHOSTREGISTER_DEVICEMAP));
}
static void stream_waits_for_host(int peer)
{
    char byte = 1;
    shared_register();
    CUstream stream = stream_new();
    CUdeviceptr memory = memory_new(4);
    expect_success(cuStreamWaitValue32_v2(stream, (uintptr_t)&shared[0], 5, CU_STREAM_WAIT_VALUE_GEQ));
    expect_success(cuMemsetD32Async(memory, 1, 1, stream));
    expect_result(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    peer_send(peer, &byte, 1);
    expect_success(cuStreamSynchronize(stream));
    expect_true(word_at(memory) == 1 && __atomic_load_n(&shared[0], __ATOMIC_SEQ_CST) == 6);
}
/* Uses no driver. */
static void host_writes_word(int peer)
{
    char byte;
    peer_receive(peer, &byte, 1);
    __atomic_store_n(&shared[0], 6, __ATOMIC_SEQ_CST);
}
static void test_a_write_of_another_process_releases_a_stream(void **state)
{
    (void)state;
    shared[0] = 4;
    assert_children(stream_waits_for_host, host_writes_word, "FAKE_CUDA_DELAY=delayed");
}
/* Two streams of two processes count in turns. */
static void turns_take(int peer, uint32_t mine, uint32_t other)
{
    (void)peer;
    shared_register();
    CUstream stream = stream_new();
    for (uint32_t i = 1; i <= COUNT; i++) {
        expect_success(cuStreamWaitValue32_v2(stream, (uintptr_t)&shared[other], i - mine, CU_STREAM_WAIT_VALUE_GEQ));
        expect_success(cuStreamWriteValue32_v2(stream, (uintptr_t)&shared[mine], i, 0));
    }
    expect_success(cuStreamSynchronize(stream));
    expect_true(__atomic_load_n(&shared[other], __ATOMIC_SEQ_CST) >= COUNT - mine);
}
static void turns_first(int peer) { turns_take(peer, 1, 0); }
static void turns_second(int peer) { turns_take(peer, 0, 1); }
static void test_streams_of_two_processes_take_turns(void **state)
{
    (void)state;
    shared[0] = shared[1] = 0;
    assert_children(turns_first, turns_second, "FAKE_CUDA_DELAY=shuffled FAKE_CUDA_DELAY_US=100");
}

static CUresult wait_is_over(CUstream stream, unsigned compare, uint32_t value, uint32_t now)
{
    __atomic_store_n(&shared[2], now, __ATOMIC_SEQ_CST);
    expect_success(cuStreamWaitValue32_v2(stream, (uintptr_t)&shared[2], value, compare));
    usleep(3000);
    CUresult result = cuStreamQuery(stream);
    /* Ends the wait in each of its forms. */
    uint32_t ends[] = { value, value, value, 0 };
    __atomic_store_n(&shared[2], ends[compare], __ATOMIC_SEQ_CST);
    expect_success(cuStreamSynchronize(stream));
    return result;
}
static void comparisons_hold(int peer)
{
    (void)peer;
    shared_register();
    CUstream stream = stream_new();
    const struct {
        unsigned compare;
        uint32_t value, waits_at;
    } cases[] = {
        { CU_STREAM_WAIT_VALUE_GEQ, 10, 9 },
        { CU_STREAM_WAIT_VALUE_GEQ, 3, 0xfffffff0 },
        { CU_STREAM_WAIT_VALUE_EQ, 10, 11 },
        { CU_STREAM_WAIT_VALUE_AND, 6, 9 },
        { CU_STREAM_WAIT_VALUE_NOR, 0xffff0000, 0xffff },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_result(wait_is_over(stream, cases[i].compare, cases[i].value, cases[i].waits_at), CUDA_ERROR_NOT_READY);
    uint64_t *wide = host_new(8);
    expect_success(cuStreamWriteValue64_v2(stream, (uintptr_t)wide, 1ull << 40, 0));
    expect_success(cuStreamWaitValue64_v2(stream, (uintptr_t)wide, 1ull << 33, CU_STREAM_WAIT_VALUE_GEQ));
    expect_success(cuStreamSynchronize(stream));
    expect_true(*wide == 1ull << 40);
}
static void test_comparisons_are_those_of_the_driver(void **state)
{
    (void)state;
    assert_child(comparisons_hold, NULL);
}

static CUstreamBatchMemOpParams op_of(CUstreamBatchMemOpType type, CUdeviceptr address, uint32_t value)
{
    return (CUstreamBatchMemOpParams){ .waitValue = { .operation = type, .address = address, .value = value } };
}
static void batches_run(int peer)
{
    (void)peer;
    shared_register();
    CUstream stream = stream_new(), other = stream_new();
    CUdeviceptr words = memory_new(64);
    expect_success(cuMemsetD8_v2(words, 0, 64));
    expect_success(cuCtxSynchronize());
    CUstreamBatchMemOpParams ops[] = {
        op_of(CU_STREAM_MEM_OP_WAIT_VALUE_32, words, 1),
        op_of(CU_STREAM_MEM_OP_WAIT_VALUE_32, words + 4, 1),
        op_of(CU_STREAM_MEM_OP_WRITE_VALUE_32, words + 8, 7),
    };
    expect_success(cuStreamBatchMemOp_v2(stream, 3, ops, 0));
    expect_success(cuStreamWriteValue32_v2(other, words + 4, 1, 0));
    expect_success(cuStreamSynchronize(other));
    expect_result(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    expect_success(cuStreamWriteValue32_v2(other, words, 1, 0));
    expect_success(cuStreamSynchronize(stream));
    expect_true(word_at(words + 8) == 7);
    expect_result(cuStreamBatchMemOp_v2(stream, 257, ops, 0), CUDA_ERROR_INVALID_VALUE);
}
static void test_batches_run_in_order(void **state)
{
    (void)state;
    assert_child(batches_run, "FAKE_CUDA_DELAY=shuffled");
}
static void words_refuse(int peer)
{
    (void)peer;
    uint32_t local = 0;
    shared_register();
    expect_result(cuStreamWaitValue32_v2(NULL, (uintptr_t)&local, 0, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuStreamWaitValue32_v2(NULL, (uintptr_t)shared + 2, 0, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuStreamWaitValue64_v2(NULL, (uintptr_t)shared + 4, 0, 0), CUDA_ERROR_INVALID_VALUE);
    expect_result(cuStreamWriteValue32_v2(NULL, (uintptr_t)shared, 0, 1), CUDA_ERROR_NOT_SUPPORTED);
    expect_success(cuStreamSynchronize(NULL));
}
static void test_words_must_be_aligned_and_registered(void **state)
{
    (void)state;
    assert_child(words_refuse, NULL);
}

unit_function test_cuda_values;
int test_cuda_values(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_write_of_another_process_releases_a_stream),
        cmocka_unit_test(test_streams_of_two_processes_take_turns),
        cmocka_unit_test(test_comparisons_are_those_of_the_driver),
        cmocka_unit_test(test_batches_run_in_order),
        cmocka_unit_test(test_words_must_be_aligned_and_registered),
    };
    return cmocka_run_group_tests(tests, shared_map, NULL);
}
