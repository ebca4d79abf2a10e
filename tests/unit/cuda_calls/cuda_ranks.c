/* Numbers are small integers, so that sums in any order are equal. */
#include "tests/unit/cuda_calls/cuda_ranks.h"
#include "backend/base/settings.h"
#include "backend/collectives/collectives.h"
#include "tests/unit/cuda_kernels/twin.h"

#define SUCCESS(call) REQUIRE((call) == CUDA_SUCCESS)
enum { SECONDS = 60, SETTINGS_MOST = 8, RANKS_MOST = 32 };
struct cuda_start {
    cuda_body *body;
    bool opens;
    /* The number of ranks that are threads of the process; 0: each rank is a process. */
    int threads;
};

/* ---- ranks ---- */
static int rank_device(const struct rank *me)
{
    int devices;
    SUCCESS(cuDeviceGetCount(&devices));
    return me->rank % devices;
}
void cuda_rank_use_device(struct cuda_rank *rank)
{
    CUcontext context;
    SUCCESS(cuInit(0));
    SUCCESS(cuDevicePrimaryCtxRetain(&context, rank_device(rank->me)));
    SUCCESS(cuCtxSetCurrent(context));
    for (int i = 0; i < CUDA_STREAMS; i++) SUCCESS(cuStreamCreate(&rank->streams[i], CU_STREAM_NON_BLOCKING));
}
void cuda_rank_open(struct cuda_rank *rank)
{
    REQUIRE(tutti_comm_open_cuda(rank->me->comm, rank_device(rank->me)) == TUTTI_OK);
}
static void rank_run(struct rank *me)
{
    const struct cuda_start *start = me->context;
    struct cuda_rank rank = { .me = me };
    if (!start->threads) twin_register();
    cuda_rank_use_device(&rank);
    if (start->opens) cuda_rank_open(&rank);
    start->body(&rank);
    REQUIRE(fake_cuda_reports() == 0);
}
static void rank_run_threads(struct rank *me)
{
    const struct cuda_start *start = me->context;
    SUCCESS(cuInit(0));
    twin_register();
    world_threads(start->threads, NULL, rank_run, me->context);
}
/* Applies "A=1 B=2", or removes these variables. */
static void settings_apply(const char *settings, bool set)
{
    char text[512], *rest = text, *setting;
    snprintf(text, sizeof text, "%s", settings ? settings : "");
    while ((setting = strsep(&rest, " ")) != NULL) {
        char *value = strchr(setting, '=');
        if (!value) continue;
        *value++ = 0;
        if (set) setenv(setting, value, 1);
        else unsetenv(setting);
    }
    settings_reload();
}
static int ranks_start(int size, const char *settings, struct cuda_start start)
{
    setenv("TUTTI_CUDA", FAKE_CUDA, 0);
    setenv("TUTTI_CUDA_KERNELS", IMAGE_SAME, 0);
    /* Reports also of work after the body, when the process ends by _exit. */
    setenv("FAKE_CUDA_REPORT", "abort", 1);
    settings_apply(settings, true);
    int bad = world_processes(size, SECONDS, start.threads ? rank_run_threads : rank_run, &start);
    settings_apply(settings, false);
    return bad;
}
int cuda_ranks_run(int size, const char *settings, cuda_body *body)
{
    return ranks_start(size, settings, (struct cuda_start){ body, true, 0 });
}
void assert_cuda_ranks(int size, const char *settings, cuda_body *body)
{
    assert_int_equal(cuda_ranks_run(size, settings, body), 0);
}
void assert_cuda_ranks_unopened(int size, const char *settings, cuda_body *body)
{
    assert_int_equal(ranks_start(size, settings, (struct cuda_start){ body, false, 0 }), 0);
}
void assert_cuda_threads(int size, const char *settings, cuda_body *body)
{
    assert_int_equal(ranks_start(1, settings, (struct cuda_start){ body, true, size }), 0);
}
void assert_cuda_threads_unopened(int size, const char *settings, cuda_body *body)
{
    assert_int_equal(ranks_start(1, settings, (struct cuda_start){ body, false, size }), 0);
}
_Atomic uint32_t *cuda_stream_block(CUstream stream)
{
    void *word;
    SUCCESS(cuMemHostAlloc(&word, sizeof(uint32_t), CU_MEMHOSTALLOC_PORTABLE));
    memset(word, 0, sizeof(uint32_t));
    SUCCESS(cuStreamWaitValue32_v2(stream, (uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    return word;
}
void cuda_rank_check_device(struct cuda_rank *rank)
{
    CUdeviceptr memory;
    uint32_t found[16];
    for (int i = 0; i < CUDA_STREAMS; i++) SUCCESS(cuStreamSynchronize(rank->streams[i]));
    SUCCESS(cuMemAlloc_v2(&memory, sizeof found));
    SUCCESS(cuMemsetD32Async(memory, 7, 16, rank->streams[0]));
    SUCCESS(cuCtxSynchronize());
    SUCCESS(cuMemcpyDtoH_v2(found, memory, sizeof found));
    REQUIRE(found[0] == 7 && found[15] == 7);
    SUCCESS(cuMemFree_v2(memory));
}

/* ---- calls ---- */
static enum collective call_collective(const struct cuda_call *call)
{
    for (int f = 0; f < COLLECTIVE_COUNT; f++)
        if (strcmp(collective_name((enum collective)f), call->collective) == 0) return (enum collective)f;
    fail_msg("no collective %s", call->collective);
    return COLLECTIVE_COUNT;
}
size_t cuda_call_count(const struct cuda_call *call, int from, int to)
{
    return call->uneven ? call->count * ((unsigned)(from * 3 + to * 6) % 4) / 2 : call->count;
}
/* The parts of an uneven call in a buffer with a part of each rank. */
struct parts { size_t counts[RANKS_MOST], offsets[RANKS_MOST], all; };
static struct parts call_parts(const struct cuda_rank *rank, const struct cuda_call *call, enum buffer buffer)
{
    int own = rank->me->rank, in_pairs = call_collective(call) == ALL_TO_ALL;
    struct parts parts = { .all = 0 };
    for (int q = rank->me->size - 1; q >= 0; q--) {
        int from = in_pairs && buffer == INPUT ? own : q, to = in_pairs && buffer == OUTPUT ? own : q;
        parts.offsets[q] = parts.all;
        parts.counts[q] = cuda_call_count(call, from, to);
        parts.all += parts.counts[q];
    }
    return parts;
}
static size_t call_bytes(const struct cuda_rank *rank, const struct cuda_call *call, enum buffer buffer)
{
    enum collective collective = call_collective(call);
    if (call->uneven) {
        bool has_all = collective_count_chunks(collective, buffer, 2) == 2;
        return (has_all ? call_parts(rank, call, buffer).all : cuda_call_count(call, rank->me->rank, rank->me->rank))
            * tutti_dtype_bytes(call->dtype);
    }
    if (collective == BARRIER || !collective_has_buffer(collective, call->root, rank->me->rank, buffer)) return 0;
    return (size_t)collective_count_chunks(collective, buffer, rank->me->size) * call->count
        * tutti_dtype_bytes(call->dtype);
}
static void numbers_fill(const struct cuda_call *call, int rank, unsigned char *out, size_t bytes)
{
    size_t element = tutti_dtype_bytes(call->dtype);
    for (size_t i = 0; i < bytes / element; i++) {
        unsigned number = (unsigned)(i * 7 + i / 31 + (size_t)rank * 13) % 15 + 1;
        float as_float = (float)number;
        uint32_t bits;
        memcpy(&bits, &as_float, sizeof bits);
        uint16_t half = (uint16_t)(bits >> 16);
        uint64_t integer = call->dtype == TUTTI_BOOL ? number & 1 : number;
        const void *from = call->dtype == TUTTI_FLOAT32 ? (const void *)&as_float
            : call->dtype == TUTTI_BFLOAT16             ? (const void *)&half
                                                        : (const void *)&integer;
        memcpy(out + i * element, from, element);
    }
}
/* Lays input and output into one tensor, as the in-place form of the collective requires. */
static void run_place(const struct cuda_rank *rank, struct cuda_run *run)
{
    size_t in = run->input_bytes, out = run->output_bytes;
    size_t mine = run->call.uneven ? call_parts(rank, &run->call, in > out ? INPUT : OUTPUT).offsets[rank->me->rank]
                                   : (size_t)rank->me->rank * run->call.count;
    mine *= tutti_dtype_bytes(run->call.dtype);
    SUCCESS(cuMemAlloc_v2(&run->memory, in + out + 1024));
    run->input = run->memory;
    run->output = run->memory + (in + 511) / 256 * 256;
    if (!run->call.in_place || !in || !out) return;
    run->output = run->input;
    if (in > out) run->output += mine;
    if (out > in) run->input += mine;
}
void cuda_run_prepare(struct cuda_rank *rank, const struct cuda_call *call, struct cuda_run *out)
{
    *out = (struct cuda_run){ .call = *call, .request = TUTTI_REQUEST_INIT };
    out->input_bytes = call_bytes(rank, call, INPUT);
    out->output_bytes = call_bytes(rank, call, OUTPUT);
    run_place(rank, out);
    out->sent = malloc(out->input_bytes + 1);
    numbers_fill(call, rank->me->rank, out->sent, out->input_bytes);
    SUCCESS(cuMemcpyHtoD_v2(out->input, out->sent, out->input_bytes));
    out->request.on_stream = true;
    out->request.stream = rank->streams[call->stream];
    out->request.algorithm = call->algorithm;
    out->request.factor = 2;
}
static tutti_status call_run_uneven(const struct cuda_rank *rank, const struct cuda_call *c, const void *in, void *out,
    tutti_request *request)
{
    tutti_comm *comm = rank->me->comm;
    struct parts sent = call_parts(rank, c, INPUT), received = call_parts(rank, c, OUTPUT);
    switch (call_collective(c)) {
    case ALLGATHER: return tutti_all_gather_v(in, out, received.counts, received.offsets, c->dtype, comm, request);
    case REDUCE_SCATTER:
        return tutti_reduce_scatter_v(in, sent.counts, sent.offsets, out, c->dtype, c->op, comm, request);
    default:
        return tutti_all_to_all_v(in, sent.counts, sent.offsets, out, received.counts, received.offsets, c->dtype, comm,
            request);
    }
}
static tutti_status call_run(const struct cuda_rank *rank, const struct cuda_call *c, const void *in, void *out,
    tutti_request *request)
{
    tutti_comm *comm = rank->me->comm;
    if (c->uneven) return call_run_uneven(rank, c, in, out, request);
    switch (call_collective(c)) {
    case ALLREDUCE: return tutti_all_reduce(in, out, c->count, c->dtype, c->op, comm, request);
    case REDUCE: return tutti_reduce(in, out, c->count, c->dtype, c->op, c->root, comm, request);
    case BROADCAST: return tutti_broadcast(in, out, c->count, c->dtype, c->root, comm, request);
    case REDUCE_SCATTER: return tutti_reduce_scatter(in, out, c->count, c->dtype, c->op, comm, request);
    case ALLGATHER: return tutti_all_gather(in, out, c->count, c->dtype, comm, request);
    case ALL_TO_ALL: return tutti_all_to_all(in, out, c->count, c->dtype, comm, request);
    case GATHER: return tutti_gather(in, out, c->count, c->dtype, c->root, comm, request);
    case SCATTER: return tutti_scatter(in, out, c->count, c->dtype, c->root, comm, request);
    default: return tutti_barrier(comm, request);
    }
}
tutti_status cuda_run_start(struct cuda_rank *rank, struct cuda_run *run)
{
    return call_run(rank, &run->call, (void *)(uintptr_t)run->input, (void *)(uintptr_t)run->output, &run->request);
}
tutti_status cuda_run_wait(struct cuda_run *run) { return tutti_wait(&run->request, 0); }
void cuda_run_check(struct cuda_rank *rank, const struct cuda_run *run)
{
    tutti_request request = TUTTI_REQUEST_INIT;
    unsigned char *found = malloc(run->output_bytes + 1), *expected = malloc(run->output_bytes + 1);
    request.blocking = true;
    request.factor = 2;
    SUCCESS(cuCtxSynchronize());
    SUCCESS(cuMemcpyDtoH_v2(found, run->output, run->output_bytes));
    REQUIRE(call_run(rank, &run->call, run->sent, expected, &request) == TUTTI_OK);
    if (memcmp(found, expected, run->output_bytes))
        fprintf(stderr, "rank %d: a wrong result of %s(%zu x %s)\n", rank->me->rank, run->call.collective,
            run->call.count, tutti_dtype_name(run->call.dtype));
    REQUIRE(memcmp(found, expected, run->output_bytes) == 0);
    free(found);
    free(expected);
}
void cuda_run_free(struct cuda_run *run)
{
    SUCCESS(cuCtxSynchronize());
    SUCCESS(cuMemFree_v2(run->memory));
    free(run->sent);
}
void cuda_call_and_check(struct cuda_rank *rank, const struct cuda_call *call)
{
    struct cuda_run run;
    cuda_run_prepare(rank, call, &run);
    REQUIRE(cuda_run_start(rank, &run) == TUTTI_OK);
    REQUIRE(cuda_run_wait(&run) == TUTTI_OK);
    cuda_run_check(rank, &run);
    cuda_run_free(&run);
}
