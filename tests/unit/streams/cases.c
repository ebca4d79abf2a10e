/* The reference sums the inputs of all ranks in the order of ranks, with the kernels of the CPU. */
#include "tests/unit/streams/cases.h"
#include "backend/base/dtype.h"
#include "kernels/reduce.h"
#include "tests/support/random.h"

/* Returns the bytes of a buffer on a rank, or 0 if it does not have it. */
static size_t case_bytes(const struct stream_rank *rank, const struct stream_case *c, int of, enum buffer buffer)
{
    enum collective collective = c->algorithm->collective;
    if (!collective_has_buffer(collective, c->root, of, buffer)) return 0;
    return (size_t)collective_count_chunks(collective, buffer, rank->ranks) * c->count * dtype_bytes(c->dtype);
}
/* Fills bytes with numbers of a type, small ones, so that sums are finite. */
static void numbers_fill(const struct stream_case *c, int of, unsigned char *out, size_t bytes)
{
    uint64_t state = c->seed * 64 + (uint64_t)of;
    for (size_t i = 0; i < bytes; i++) out[i] = (unsigned char)random_next(&state);
    for (size_t i = 0; i < bytes / 4 && c->dtype == TUTTI_FLOAT32; i++) {
        float number = (float)(int64_t)(random_next(&state) >> 40) / 1e5f - 80;
        memcpy(out + 4 * i, &number, sizeof number);
    }
    for (size_t i = 0; i < bytes && c->dtype == TUTTI_BOOL; i++) out[i] &= 1;
    /* bfloat16 with exponents near that of 1. */
    for (size_t i = 1; i < bytes && c->dtype == TUTTI_BFLOAT16; i += 2)
        out[i] = (unsigned char)(0x3e | out[i] % 4 | (out[i] & 0x80));
}
static unsigned char *input_of(const struct stream_rank *rank, const struct stream_case *c, int of)
{
    size_t bytes = case_bytes(rank, c, of, INPUT);
    unsigned char *out = malloc(bytes + 1);
    numbers_fill(c, of, out, bytes);
    if (c->op == TUTTI_PREMUL_SUM) scale_find(c->dtype)(out, out, bytes / dtype_bytes(c->dtype), 0.75);
    return out;
}
/* Returns part `part` of the sum of all inputs; `bytes` is the length of a part. */
static void sum_part(const struct stream_rank *rank, const struct stream_case *c, int part, size_t bytes, void *out)
{
    unsigned char *inputs[RANKS_MOST];
    const void *from[RANKS_MOST];
    for (int q = 0; q < rank->ranks; q++) {
        inputs[q] = input_of(rank, c, q);
        from[q] = inputs[q] + (size_t)part * bytes;
    }
    reduce_find(c->dtype, c->op)(&out, 1, from, rank->ranks, c->count, c->op == TUTTI_AVG ? rank->ranks : 1);
    for (int q = 0; q < rank->ranks; q++) free(inputs[q]);
}
/* Copies part `part` of the input of a rank. */
static void copy_part(const struct stream_rank *rank, const struct stream_case *c, int of, int part, size_t bytes,
    void *out)
{
    unsigned char *input = input_of(rank, c, of);
    memcpy(out, input + (size_t)part * bytes, bytes);
    free(input);
}
static void output_expect(const struct stream_rank *rank, const struct stream_case *c, unsigned char *out)
{
    size_t bytes = c->count * dtype_bytes(c->dtype);
    int own = rank->rank, all = case_bytes(rank, c, own, OUTPUT) ? rank->ranks : 0;
    switch (c->algorithm->collective) {
    case ALLREDUCE:
    case REDUCE:
        if (all) sum_part(rank, c, 0, bytes, out);
        break;
    case REDUCE_SCATTER: sum_part(rank, c, own, bytes, out); break;
    case BROADCAST: copy_part(rank, c, c->root, 0, bytes, out); break;
    case SCATTER: copy_part(rank, c, c->root, own, bytes, out); break;
    case ALLGATHER:
    case GATHER:
        for (int q = 0; q < all; q++) copy_part(rank, c, q, 0, bytes, out + (size_t)q * bytes);
        break;
    case ALL_TO_ALL:
        for (int q = 0; q < all; q++) copy_part(rank, c, q, own, bytes, out + (size_t)q * bytes);
        break;
    default: break;
    }
}

/* ---- runs ---- */
bool algorithm_is_for_streams(const struct stream_rank *rank, const struct algorithm *algorithm)
{
    struct plan plan = { .algorithm = algorithm, .layout = rank->layout, .slots = 1, .in_place = mask_all };
    bool fits = (algorithm->host_memory || algorithm->hierarchical) && plan_build_staging(&plan) == TUTTI_OK
        && !plan.has_messages;
    plan_finish(&plan);
    return fits;
}
/* Lays input and output into one tensor, as the in-place form of the collective requires. */
static void case_place(const struct stream_rank *rank, struct case_run *run)
{
    const struct stream_case *c = &run->given;
    size_t in = case_bytes(rank, c, rank->rank, INPUT), out = case_bytes(rank, c, rank->rank, OUTPUT);
    size_t mine = (size_t)rank->rank * c->count * dtype_bytes(c->dtype);
    run->memory = memory_new(in + out + 1024);
    run->input = run->memory;
    run->output = run->memory + (in + 511) / 256 * 256;
    if (!c->in_place || !in || !out) return;
    run->output = run->input;
    if (in > out) run->output += mine;
    if (out > in) run->input += mine;
}
void case_prepare(const struct stream_rank *rank, const struct stream_case *given, struct case_run *out)
{
    *out = (struct case_run){ .given = *given };
    rank_plan(rank, given->algorithm, given->root, given->slots, &out->plan);
    if (given->op == TUTTI_PREMUL_SUM) {
        plan_finish(&out->plan);
        out->plan = (struct plan){ .algorithm = given->algorithm,
            .layout = rank->layout,
            .root = given->root,
            .slots = given->slots,
            .in_place = mask_all,
            .stage_inputs = true };
        expect_true(plan_build_staging(&out->plan) == TUTTI_OK);
    }
    case_place(rank, out);
    size_t bytes = case_bytes(rank, given, rank->rank, INPUT);
    out->sent = malloc(bytes + 1);
    numbers_fill(given, rank->rank, out->sent, bytes);
    expect_success(cuMemcpyHtoD_v2(out->input, out->sent, bytes));
}
void case_enqueue(struct stream_rank *rank, struct case_run *run, CUstream stream)
{
    const struct stream_case *c = &run->given;
    struct stream_operation operation = { &run->plan, run->input, run->output, c->count * dtype_bytes(c->dtype),
        c->tile_bytes, c->dtype, c->op, 0.75, 0, 0, NULL, 0 };
    struct stream_cut cut;
    uint64_t calls = rank->site->calls;
    if (stream_cut_message(rank->site, &operation, &cut)) fprintf(stderr, "%s\n", status_detail());
    run->number = rank_enqueue(rank, &operation, stream);
    expect_true(rank->site->calls - calls <= cut.most_calls && cut.most_calls <= STREAM_CALLS);
}
static _Noreturn void case_fail(const struct stream_rank *rank, const struct case_run *run, size_t at, const char *what)
{
    const struct stream_case *c = &run->given;
    fprintf(stderr,
        "rank %d: %s, collective %d, %s %s, %zu elements, tiles of %zu, root %d, %d slots%s: %s at byte %zu\n",
        rank->rank, c->algorithm->name, (int)c->algorithm->collective, op_name(c->op), dtype_name(c->dtype), c->count,
        c->tile_bytes, c->root, c->slots, c->in_place ? ", in place" : "", what, at);
    expect_true(false);
    exit(CHILD_FAILED);
}
static void memory_compare(const struct stream_rank *rank, const struct case_run *run, CUdeviceptr memory,
    const unsigned char *expected, size_t bytes, const char *what)
{
    unsigned char *found = malloc(bytes + 1);
    expect_success(cuMemcpyDtoH_v2(found, memory, bytes));
    for (size_t i = 0; i < bytes; i++)
        if (found[i] != expected[i]) case_fail(rank, run, i, what);
    free(found);
}
tutti_status case_try_sum(struct stream_rank *rank, struct case_run *run, CUstream stream)
{
    struct stream_operation operation = { &run->plan, run->input, run->output, run->given.count * sizeof(float),
        run->given.tile_bytes, TUTTI_FLOAT32, TUTTI_SUM, 1, 0, 0, NULL, 0 };
    return stream_site_enqueue_operation(rank->site, &operation, stream, &run->number);
}
void case_free(struct case_run *run)
{
    expect_success(cuMemFree_v2(run->memory));
    plan_finish(&run->plan);
    free(run->sent);
}
void case_check(struct stream_rank *rank, struct case_run *run)
{
    const struct stream_case *c = &run->given;
    size_t in = case_bytes(rank, c, rank->rank, INPUT), out = case_bytes(rank, c, rank->rank, OUTPUT);
    unsigned char *expected = malloc(out + 1);
    output_expect(rank, c, expected);
    if (c->algorithm->collective != BARRIER) memory_compare(rank, run, run->output, expected, out, "a wrong result");
    if (!c->in_place) memory_compare(rank, run, run->input, run->sent, in, "a changed input");
    free(expected);
    case_free(run);
}

/* ---- many cases ---- */
static const struct {
    tutti_dtype dtype;
    tutti_op op;
} sums[] = {
    { TUTTI_FLOAT32, TUTTI_SUM },
    { TUTTI_BFLOAT16, TUTTI_SUM },
    { TUTTI_FLOAT32, TUTTI_AVG },
    { TUTTI_FLOAT32, TUTTI_PREMUL_SUM },
    { TUTTI_INT64, TUTTI_SUM },
    { TUTTI_UINT8, TUTTI_BXOR },
    { TUTTI_BOOL, TUTTI_SUM },
    { TUTTI_INT32, TUTTI_MAX },
    { TUTTI_BFLOAT16, TUTTI_AVG },
};
struct stream_case case_draw(const struct stream_rank *rank, uint64_t *random)
{
    static const size_t counts[] = { 1, 3, 64, 333, 2000, 5001 };
    enum { ALGORITHMS_MOST = 128 };
    int algorithms = 0;
    const struct algorithm *found[ALGORITHMS_MOST];
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a->host_memory) found[algorithms++] = a;
    uint64_t sum = random_next(random) % (sizeof sums / sizeof *sums);
    struct stream_case c = {
        .algorithm = found[random_next(random) % (uint64_t)algorithms],
        .dtype = sums[sum].dtype,
        .op = sums[sum].op,
        .count = counts[random_next(random) % 6],
        .tile_bytes = (size_t)512 << random_next(random) % 9,
        .root = (int)(random_next(random) % (uint64_t)rank->ranks),
        .slots = 1 + (int)(random_next(random) % 4),
        .in_place = random_next(random) & 1,
        .seed = random_next(random) >> 8,
    };
    if (!collective_has_root(c.algorithm->collective)) c.root = 0;
    if (!collective_is_reduction(c.algorithm->collective)) c.op = TUTTI_SUM;
    if (c.algorithm->collective == ALL_TO_ALL) c.in_place = false;
    if (c.algorithm->collective == BARRIER) c.count = 0;
    return c;
}
void cases_run(struct stream_rank *rank, const struct stream_case *cases, int count, CUstream *streams,
    int stream_count)
{
    struct case_run *runs = calloc((size_t)count, sizeof *runs);
    for (int i = 0; i < count; i++) case_prepare(rank, &cases[i], &runs[i]);
    for (int i = 0; i < count; i++) case_enqueue(rank, &runs[i], streams[i % stream_count]);
    for (int i = 0; i < count; i++)
        if (rank_wait(rank, runs[i].number)) case_fail(rank, &runs[i], 0, status_detail());
    expect_success(cuCtxSynchronize());
    for (int i = 0; i < count; i++) case_check(rank, &runs[i]);
    free(runs);
}
