/* All-to-all with a random number of bytes for each pair of ranks, so that ranks have different numbers of tiles. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "tests/support/random.h"
#include "tests/unit/streams/cases.h"

#define STRICT "FAKE_CUDA_HOST_READS=0 FAKE_CUDA_DELAY_US=200 FAKE_CUDA_DELAY="
enum { OPERATIONS = 12, TILE_BYTES = 8192 };
/* An operation on one rank. */
struct exchange {
    uint64_t seed, number;
    size_t lengths[2][RANKS_MOST], offsets[2][RANKS_MOST], bytes[2];
    struct uneven uneven;
    CUdeviceptr tensors[2];
};

/* Returns the bytes that a rank sends to another. A few pairs have many. Seed 0: all have equally many. */
static size_t exchange_length(uint64_t seed, int from, int to)
{
    static const size_t lengths[] = { 0, 0, 4, 100, 4097, 30001 };
    if (!seed) return 100;
    uint64_t state = seed * 1000 + (uint64_t)(from * RANKS_MOST + to);
    random_next(&state);
    return lengths[random_next(&state) % 6];
}
static unsigned char exchange_byte(uint64_t seed, int from, int to, size_t i)
{
    return (unsigned char)(seed * 31 + (uint64_t)from * 7 + (uint64_t)to * 3 + i + i / 251);
}
/* Allocates the tensors, and fills the input. Parts lie in the reverse order of ranks, with a gap after each. */
static void exchange_prepare(const struct stream_rank *rank, uint64_t seed, struct exchange *out)
{
    unsigned char *sent;
    *out = (struct exchange){ .seed = seed, .uneven = { .agreement = IN_PAIRS } };
    for (int buffer = INPUT; buffer <= OUTPUT; buffer++) {
        for (int q = rank->ranks - 1; q >= 0; q--) {
            size_t length =
                buffer == INPUT ? exchange_length(seed, rank->rank, q) : exchange_length(seed, q, rank->rank);
            out->lengths[buffer][q] = length;
            out->offsets[buffer][q] = out->bytes[buffer];
            out->bytes[buffer] += length + 12;
        }
        out->uneven.lengths[buffer] = out->lengths[buffer];
        out->uneven.offsets[buffer] = out->offsets[buffer];
        out->tensors[buffer] = memory_new(out->bytes[buffer]);
    }
    sent = calloc(out->bytes[INPUT], 1);
    for (int q = 0; q < rank->ranks; q++)
        for (size_t i = 0; i < out->lengths[INPUT][q]; i++)
            sent[out->offsets[INPUT][q] + i] = exchange_byte(seed, rank->rank, q, i);
    expect_success(cuMemcpyHtoD_v2(out->tensors[INPUT], sent, out->bytes[INPUT]));
    free(sent);
}
static struct stream_operation exchange_describe(const struct exchange *exchange, const struct plan *plan)
{
    struct stream_operation operation = {
        .plan = plan,
        .input = exchange->tensors[INPUT],
        .output = exchange->tensors[OUTPUT],
        .tile_bytes = TILE_BYTES,
        .dtype = TUTTI_UINT8,
        .uneven = &exchange->uneven,
        .deadline_ms = clock_ms() + 60000,
    };
    for (int q = 0; q < RANKS_MOST; q++)
        operation.part_bytes =
            size_larger(operation.part_bytes, size_larger(exchange->lengths[INPUT][q], exchange->lengths[OUTPUT][q]));
    return operation;
}
static void exchange_check(const struct stream_rank *rank, const struct exchange *exchange)
{
    unsigned char *found = malloc(exchange->bytes[OUTPUT]);
    expect_success(cuMemcpyDtoH_v2(found, exchange->tensors[OUTPUT], exchange->bytes[OUTPUT]));
    for (int q = 0; q < rank->ranks; q++)
        for (size_t i = 0; i < exchange->lengths[OUTPUT][q]; i++)
            expect_true(found[exchange->offsets[OUTPUT][q] + i] == exchange_byte(exchange->seed, q, rank->rank, i));
    free(found);
}
static void exchange_free(struct exchange *exchange)
{
    for (int buffer = INPUT; buffer <= OUTPUT; buffer++) expect_success(cuMemFree_v2(exchange->tensors[buffer]));
}

/* ---- tests ---- */
/* Even sums run between the exchanges. Ranks use their two streams in different turns. */
static void ranks_exchange(struct stream_rank *rank)
{
    struct exchange exchanges[OPERATIONS];
    struct case_run sums[OPERATIONS];
    struct plan plan;
    CUstream streams[2] = { stream_new(), stream_new() };
    struct stream_case sum = { collectives_find_algorithm(ALLREDUCE, "two_shot"), TUTTI_FLOAT32, TUTTI_SUM, 3000, 4096,
        0, 2, true, 5 };
    rank_plan(rank, collectives_find_algorithm(ALL_TO_ALL, "read"), 0, 1 + rank->ranks % 3, &plan);
    for (int i = 0; i < OPERATIONS; i++) {
        exchange_prepare(rank, (uint64_t)(i + rank->ranks * 100), &exchanges[i]);
        case_prepare(rank, &sum, &sums[i]);
    }
    for (int i = 0; i < OPERATIONS; i++) {
        struct stream_operation operation = exchange_describe(&exchanges[i], &plan);
        exchanges[i].number = rank_enqueue(rank, &operation, streams[i / (1 + rank->rank) % 2]);
        if (i % 3 == 0) case_enqueue(rank, &sums[i], streams[i % 2]);
    }
    for (int i = 0; i < OPERATIONS; i++) {
        expect_true(rank_wait(rank, exchanges[i].number) == TUTTI_OK);
        if (i % 3 == 0) expect_true(rank_wait(rank, sums[i].number) == TUTTI_OK);
    }
    expect_success(cuCtxSynchronize());
    for (int i = 0; i < OPERATIONS; i++) {
        exchange_check(rank, &exchanges[i]);
        exchange_free(&exchanges[i]);
        if (i % 3 == 0) case_check(rank, &sums[i]);
        else case_free(&sums[i]);
    }
    plan_finish(&plan);
    rank_close(rank);
}
static void test_ranks_with_different_numbers_of_tiles_exchange(void **state)
{
    (void)state;
    static const struct ranks_setup setups[] = {
        { 2, 2, 0, STRICT "shuffled" },
        { 4, 2, 64 << 10, STRICT "shuffled FAKE_CUDA_SEED=4" },
#ifndef FEW
        { 3, 1, 32 << 10, STRICT "delayed" },
        { 8, 2, 128 << 10, STRICT "immediate" },
        { 1, 1, 0, STRICT "immediate" },
#endif
    };
    for (size_t i = 0; i < sizeof setups / sizeof *setups; i++) assert_ranks(&setups[i], ranks_exchange);
}
/* One launch fills the slots, one reads them, and there are a batch of words between and one at the end. */
static void ranks_count_calls(struct stream_rank *rank)
{
    struct exchange exchange;
    struct plan plan;
    CUstream stream = stream_new();
    rank_plan(rank, collectives_find_algorithm(ALL_TO_ALL, "read"), 0, 2, &plan);
    exchange_prepare(rank, 0, &exchange);
    struct stream_operation operation = exchange_describe(&exchange, &plan);
    for (uint64_t i = 1; i <= 3; i++) {
        expect_true(rank_wait(rank, rank_enqueue(rank, &operation, stream)) == TUTTI_OK);
        expect_true(rank->site->calls <= 4 * i);
    }
    exchange_check(rank, &exchange);
    exchange_free(&exchange);
    plan_finish(&plan);
    rank_close(rank);
}
static void test_small_exchanges_take_few_calls(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 0, NULL }, ranks_count_calls);
    assert_ranks(&(struct ranks_setup){ 4, 1, 0, NULL }, ranks_count_calls);
}
/* Each exchange moves the positions by 2^20, so they come half way around while only the first slot is used. Then the
   values that ranks have awaited in the other slots are old. */
static void ranks_exchange_often(struct stream_rank *rank)
{
    enum { OFTEN = 2100 };
    static const uint64_t seeds[] = { 203, 0, 203 };
    struct plan plan;
    CUstream stream = stream_new();
    rank_plan(rank, collectives_find_algorithm(ALL_TO_ALL, "read"), 0, 4, &plan);
    for (int k = 0; k < 3; k++) {
        struct exchange exchange;
        exchange_prepare(rank, seeds[k], &exchange);
        struct stream_operation operation = exchange_describe(&exchange, &plan);
        for (int i = 0; i < (seeds[k] ? 1 : OFTEN); i++) exchange.number = rank_enqueue(rank, &operation, stream);
        expect_true(rank_wait(rank, exchange.number) == TUTTI_OK);
        expect_success(cuCtxSynchronize());
        exchange_check(rank, &exchange);
        exchange_free(&exchange);
    }
    plan_finish(&plan);
    rank_close(rank);
}
static void test_positions_of_many_exchanges_stay_in_order(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 2, 1, 16 << 10, STRICT "shuffled" }, ranks_exchange_often);
}
/* In the second of three exchanges rank 0 sends other bytes to rank 1 than that one expects, or it also has another
   type. All ranks find the two, also rank 2, which agrees with both in all counts. */
static void ranks_disagree(struct stream_rank *rank, bool about_type)
{
    struct exchange exchange;
    struct plan plan;
    struct stream_disagreement found;
    uint64_t number;
    CUstream stream = stream_new();
    tutti_status status = TUTTI_OK;
    rank_plan(rank, collectives_find_algorithm(ALL_TO_ALL, "read"), 0, 2, &plan);
    exchange_prepare(rank, 0, &exchange);
    struct stream_operation operation = exchange_describe(&exchange, &plan);
    expect_true(!stream_site_find_disagreement(rank->site, &found));
    ranks_meet(rank);
    for (int i = 1; i <= 3 && status == TUTTI_OK; i++) {
        bool differs = rank->rank == 0 && i == 2;
        exchange.lengths[INPUT][1] = differs ? 104 : 100;
        operation.dtype = differs && about_type ? TUTTI_INT32 : TUTTI_UINT8;
        status = stream_site_enqueue_operation(rank->site, &operation, stream, &number);
    }
    while (status == TUTTI_OK) status = site_poll_once(rank->site);
    expect_true(status == TUTTI_MISMATCH && stream_site_find_disagreement(rank->site, &found));
    expect_true(found.number == 2 && found.one == 0 && found.is_about_counts == !about_type);
    /* With another type rank 2 may find that before rank 1 has begun. */
    expect_true(about_type || (found.other == 1 && found.sent == 104 && found.expected == 100));
    rank_drain(rank);
    exchange_free(&exchange);
    plan_finish(&plan);
    ranks_meet(rank);
    stream_site_disconnect_peers(rank->site);
}
static void ranks_disagree_about_counts(struct stream_rank *rank) { ranks_disagree(rank, false); }
static void ranks_disagree_about_type(struct stream_rank *rank) { ranks_disagree(rank, true); }
static void test_all_ranks_find_a_disagreement_of_two(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 3, 1, 0, "FAKE_CUDA_ORDER=0" }, ranks_disagree_about_counts);
    assert_ranks(&(struct ranks_setup){ 3, 1, 0, "FAKE_CUDA_ORDER=0" }, ranks_disagree_about_type);
}
/* The slots have no room for a tile of 128 bytes from each rank, also on ranks that send less. */
static void ranks_have_small_slots(struct stream_rank *rank)
{
    struct exchange exchange;
    struct plan plan;
    uint64_t number;
    rank_plan(rank, collectives_find_algorithm(ALL_TO_ALL, "read"), 0, 8, &plan);
    exchange_prepare(rank, 1, &exchange);
    struct stream_operation operation = exchange_describe(&exchange, &plan);
    expect_true(stream_site_enqueue_operation(rank->site, &operation, stream_new(), &number) == TUTTI_UNSUPPORTED
        && status_is_refusal());
    expect_detail("are too small");
    exchange_free(&exchange);
    plan_finish(&plan);
    rank_close(rank);
}
static void test_slots_that_are_too_small_are_refused_on_all_ranks(void **state)
{
    (void)state;
    assert_ranks(&(struct ranks_setup){ 8, 1, 8192, NULL }, ranks_have_small_slots);
}
/* Cuts uneven parts of up to 1 MiB of so many ranks, without ranks that run. */
static tutti_status cut_for_ranks(enum collective collective, int ranks, size_t slot_bytes, size_t tile_bytes)
{
    struct layout *layout;
    struct stream_cut cut;
    struct stream_site site = { .ranks = ranks, .half_bytes = slot_bytes / 2 };
    struct uneven uneven = { .agreement = collective == ALL_TO_ALL ? IN_PAIRS : EQUAL_OUTPUT };
    assert_int_equal(layout_create(NULL, ranks, &layout), TUTTI_OK);
    struct plan plan = { .algorithm = collectives_find_algorithm(collective, "read"), .layout = layout, .slots = 2 };
    assert_int_equal(plan_build_staging(&plan), TUTTI_OK);
    struct stream_operation operation = {
        .plan = &plan, .part_bytes = 1 << 20, .tile_bytes = tile_bytes, .dtype = TUTTI_UINT8, .uneven = &uneven
    };
    tutti_status status = stream_cut_message(&site, &operation, &cut);
    plan_finish(&plan);
    layout_destroy(layout);
    return status;
}
/* 100 is the most that the shim passes (shim/launch.cpp), with any slots and tiles. */
static void test_too_many_ranks_for_the_queue_are_refused(void **state)
{
    (void)state;
    static const enum collective collectives[] = { ALL_TO_ALL, ALLGATHER };
    for (int f = 0; f < 2; f++) {
        assert_int_equal(cut_for_ranks(collectives[f], 100, 16 << 20, 4 << 20), TUTTI_OK);
        assert_int_equal(cut_for_ranks(collectives[f], 100, 1 << 30, 1 << 30), TUTTI_OK);
    }
    assert_int_equal(cut_for_ranks(ALL_TO_ALL, 130, 16 << 20, 4 << 20), TUTTI_UNSUPPORTED);
    assert_true(status_is_refusal());
    assert_non_null(strstr(status_detail(), "uneven counts of 130 ranks take up to"));
    assert_non_null(strstr(status_detail(), "use a group of fewer ranks"));
}

unit_function test_stream_uneven;
int test_stream_uneven(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_with_different_numbers_of_tiles_exchange),
        cmocka_unit_test(test_small_exchanges_take_few_calls),
        cmocka_unit_test(test_positions_of_many_exchanges_stay_in_order),
        cmocka_unit_test(test_all_ranks_find_a_disagreement_of_two),
        cmocka_unit_test(test_too_many_ranks_for_the_queue_are_refused),
        cmocka_unit_test(test_slots_that_are_too_small_are_refused_on_all_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
