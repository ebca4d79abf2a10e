/* Sites: ranks of one process, counters that cross the end of 32 bits, and why ranks cannot connect. */
#include "tests/support/random.h"
#include "tests/unit/cuda_kernels/twin.h"
#include "tests/unit/streams/cases.h"
#include <sys/mman.h>

#define STRICT "FAKE_CUDA_HOST_READS=0 FAKE_CUDA_DELAY_US=300 FAKE_CUDA_DELAY=shuffled"
enum { RANKS = 2, COUNT = 5000, BATCH = 16 };

/* ---- ranks of one process ---- */
static void sites_open(struct stream_site **sites)
{
    struct stream_address addresses[RANKS];
    size_t bytes = stream_words_count_bytes(RANKS);
    int file = memfd_create("words", MFD_CLOEXEC);
    expect_true(file >= 0 && ftruncate(file, (off_t)bytes) == 0);
    expect_true(cuda_driver_load(FAKE_CUDA) == TUTTI_OK);
    twin_register();
    for (int i = 0; i < RANKS; i++) {
        void *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        struct stream_settings settings = { i, RANKS, i, 1 << 20, words, "image" };
        expect_true(words != MAP_FAILED && stream_site_create(&settings, &sites[i]) == TUTTI_OK);
        expect_true(stream_site_export_address(sites[i], &addresses[i]) == TUTTI_OK);
    }
    for (int i = 0; i < RANKS; i++) expect_true(stream_site_connect_peers(sites[i], addresses) == TUTTI_OK);
}
/* One thread enqueues the operations of both ranks, one after the other: no call waits for the other rank. */
static void process_has_two_ranks(int peer)
{
    (void)peer;
    struct layout *layout;
    struct stream_site *sites[RANKS];
    CUdeviceptr tensors[RANKS];
    uint64_t number;
    sites_open(sites);
    device_use(0);
    float *numbers = host_new(COUNT * sizeof *numbers);
    expect_true(layout_create(NULL, RANKS, &layout) == TUTTI_OK);
    for (int i = 0; i < RANKS; i++) {
        device_use(i);
        struct plan plan;
        struct stream_rank rank = { i, RANKS, sites[i], layout };
        rank_plan(&rank, collectives_find_algorithm(ALLREDUCE, "two_shot"), 0, 2, &plan);
        tensors[i] = memory_new(COUNT * sizeof *numbers);
        for (int k = 0; k < COUNT; k++) numbers[k] = (float)(k + i);
        expect_success(cuMemcpyHtoD_v2(tensors[i], numbers, COUNT * sizeof *numbers));
        struct stream_operation operation = { &plan, tensors[i], tensors[i], COUNT * sizeof *numbers, 4096,
            TUTTI_FLOAT32, TUTTI_SUM, 1, 0, 0, NULL, 0 };
        expect_true(stream_site_enqueue_operation(sites[i], &operation, stream_new(), &number) == TUTTI_OK);
        plan_finish(&plan);
    }
    for (int i = 0; i < RANKS; i++) {
        while (site_test_operation(sites[i], number) == TUTTI_IN_PROGRESS) usleep(100);
        device_use(i);
        expect_success(cuCtxSynchronize());
        expect_success(cuMemcpyDtoH_v2(numbers, tensors[i], COUNT * sizeof *numbers));
        for (int k = 0; k < COUNT; k++) expect_true(numbers[k] == (float)(2 * k + 1));
    }
    for (int i = 0; i < RANKS; i++) stream_site_disconnect_peers(sites[i]);
    for (int i = 0; i < RANKS; i++) stream_site_destroy(sites[i]);
    layout_destroy(layout);
    expect_true(fake_cuda_reports() == 0);
}
static void test_ranks_of_one_process_share_addresses(void **state)
{
    (void)state;
    assert_child(process_has_two_ranks, STRICT);
}

/* ---- counters ---- */
/* Sets all counters of a rank but `awaited`, as if it had run many operations that used no slots and one stream. */
static void counters_move(struct stream_rank *rank, uint32_t base)
{
    struct stream_site *site = rank->site;
    struct stream_line *line = stream_site_line_of_rank(site, rank->rank);
    site->base = site->slots_base = base;
    site->enqueued = site->compared = site->completed = base;
    for (int q = 0; q < rank->ranks; q++) site->awaited[q][WORD_ARRIVAL] = base;
    for (int word = 0; word < WORD_DONE; word++) atomic_store(&line->position[word], base);
    atomic_store(&line->done, base);
    atomic_store(&line->enqueued, base);
    ranks_meet(rank);
}
static void ranks_count_past_the_end(struct stream_rank *rank)
{
    CUstream streams[] = { stream_new(), stream_new() };
    struct stream_case cases[BATCH];
    uint64_t random = 77;
    counters_move(rank, UINT32_MAX - 20);
    for (int batch = 0; batch < 3; batch++) {
        for (int i = 0; i < BATCH; i++) cases[i] = case_draw(rank, &random);
        cases_run(rank, cases, BATCH, streams, 2);
    }
    expect_true(rank->site->enqueued > UINT32_MAX && rank->site->base < 1000);
    rank_close(rank);
}
static void test_counters_cross_the_end_of_32_bits(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 2, 0, STRICT }, ranks_count_past_the_end);
}
/* No operation has awaited words of slots or of the end so far, and their counters have come half a turn further. A
   lost wait is a report of the checker or a wrong result. */
static void ranks_await_words_first(struct stream_rank *rank)
{
    CUstream streams[] = { stream_new(), stream_new() };
    struct stream_case cases[4];
    counters_move(rank, (1u << 31) + 5);
    for (int i = 0; i < 4; i++)
        cases[i] = (struct stream_case){ collectives_find_algorithm(ALLREDUCE, "two_shot"), TUTTI_FLOAT32, TUTTI_SUM,
            5000, 2048, 0, 4, false, (uint64_t)i };
    cases_run(rank, cases, 4, streams, 2);
    rank_close(rank);
}
static void test_waits_are_kept_after_half_a_turn_of_the_counters(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 2, 0, STRICT }, ranks_await_words_first);
}
/* Copies of 256 KiB and more are the driver's. */
static void ranks_copy_much(struct stream_rank *rank)
{
    CUstream stream = stream_new();
    struct stream_case cases[] = {
        { collectives_find_algorithm(ALLGATHER, "read"), TUTTI_FLOAT32, TUTTI_SUM, 300000, 4 << 20, 0, 1, false, 1 },
        { collectives_find_algorithm(ALLREDUCE, "two_shot"), TUTTI_FLOAT32, TUTTI_SUM, 300000, 1 << 20, 0, 2, true, 2 },
    };
    cases_run(rank, cases, 2, &stream, 1);
    expect_true(fake_cuda_count("cuMemcpyAsync") > 0);
    rank_close(rank);
}
static void test_large_copies_are_those_of_the_driver(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 2, 4 << 20, STRICT }, ranks_copy_much);
}

/* ---- errors ---- */
/* Opens the site of a rank alone, on device `rank`. */
static tutti_status site_open_alone(int rank, struct stream_site **out)
{
    size_t bytes = stream_words_count_bytes(RANKS);
    void *words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct stream_settings settings = { rank, RANKS, rank, 1 << 20, words, "image" };
    expect_true(words != MAP_FAILED && cuda_driver_load(FAKE_CUDA) == TUTTI_OK);
    twin_register();
    return stream_site_create(&settings, out);
}
/* Two processes exchange addresses; the test expects that neither can open the other's slots. */
static void ranks_cannot_connect(int peer, int rank, const char *why)
{
    struct stream_site *site;
    struct stream_address addresses[RANKS];
    expect_true(site_open_alone(rank, &site) == TUTTI_OK);
    expect_true(stream_site_export_address(site, &addresses[rank]) == TUTTI_OK);
    peer_send(peer, &addresses[rank], sizeof addresses[rank]);
    peer_receive(peer, &addresses[!rank], sizeof addresses[!rank]);
    expect_true(stream_site_connect_peers(site, addresses) != TUTTI_OK);
    expect_detail(why);
    stream_site_disconnect_peers(site);
    peer_send(peer, &rank, sizeof rank);
    peer_receive(peer, &rank, sizeof rank);
    stream_site_destroy(site);
}
static void first_has_no_handle(int peer) { ranks_cannot_connect(peer, 0, "rank 0 cannot open the slots of rank 1"); }
static void second_has_no_handle(int peer) { ranks_cannot_connect(peer, 1, "cuIpcGetMemHandle"); }
static void first_has_no_peer_access(int peer) { ranks_cannot_connect(peer, 0, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"); }
static void second_has_no_peer_access(int peer) { ranks_cannot_connect(peer, 1, "cuIpcOpenMemHandle"); }
static void test_ranks_that_cannot_connect_report_the_cause(void **state)
{
    (void)state;
    assert_children(first_has_no_handle, second_has_no_handle, "FAKE_CUDA_IPC=0");
    assert_children(first_has_no_peer_access, second_has_no_peer_access, "FAKE_CUDA_PEER=0");
}
/* The second rank has other slots than the first. */
static void ranks_have_other_slots(int peer)
{
    (void)peer;
    struct stream_site *site;
    struct stream_address addresses[RANKS];
    expect_true(site_open_alone(0, &site) == TUTTI_OK);
    for (int i = 0; i < RANKS; i++) expect_true(stream_site_export_address(site, &addresses[i]) == TUTTI_OK);
    addresses[1].half_bytes += 4096;
    expect_true(stream_site_connect_peers(site, addresses) == TUTTI_MISMATCH);
    expect_detail("rank 0 has two halves of 524288 bytes of slots, but rank 1 of 528384");
    stream_site_disconnect_peers(site);
    stream_site_destroy(site);
}
static void test_ranks_with_other_slots_cannot_connect(void **state)
{
    (void)state;
    assert_child(ranks_have_other_slots, NULL);
}
/* Fails each call of the creation in turn. A later creation succeeds, so no failure has left anything behind. */
static void creation_fails(int peer)
{
    (void)peer;
    static const char *const calls[] = { "cuMemAlloc", "cuMemHostRegister", "cuMemHostGetDevicePointer",
        "cuModuleGetFunction", "cuModuleLoadData", "cuStreamCreate", "cuDevicePrimaryCtxRetain" };
    struct stream_site *site;
    for (int i = (int)(sizeof calls / sizeof *calls) - 1; i >= 0; i--) {
        fake_cuda_fail(calls[i], 1, false, CUDA_ERROR_OUT_OF_MEMORY);
        expect_true(site_open_alone(0, &site) == TUTTI_NO_MEMORY);
    }
    expect_detail("slots on device 0");
    fake_cuda_fail("cuStreamBatchMemOp", 1, false, CUDA_ERROR_NOT_SUPPORTED);
    expect_true(site_open_alone(0, &site) == TUTTI_UNSUPPORTED);
    expect_detail("device 0 or its driver has no stream memory operations");
    expect_true(site_open_alone(0, &site) == TUTTI_OK);
    stream_site_destroy(site);
}
static void test_a_site_that_cannot_be_made_frees_all(void **state)
{
    (void)state;
    assert_child(creation_fails, NULL);
}

unit_function test_stream_site;
int test_stream_site(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_of_one_process_share_addresses),
        cmocka_unit_test(test_counters_cross_the_end_of_32_bits),
        cmocka_unit_test(test_waits_are_kept_after_half_a_turn_of_the_counters),
        cmocka_unit_test(test_large_copies_are_those_of_the_driver),
        cmocka_unit_test(test_ranks_that_cannot_connect_report_the_cause),
        cmocka_unit_test(test_ranks_with_other_slots_cannot_connect),
        cmocka_unit_test(test_a_site_that_cannot_be_made_frees_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
