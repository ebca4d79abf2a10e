/* The C core beside what the machine can do: collectives between processes of this host against memcpy and against a
 * bare flag barrier, all in one run, because the machine drifts. Ratios of medians; the owner dirties its buffer
 * before each iteration.
 *
 * bench_core [--shared] [ranks] [collective] [algorithm] (2 allreduce, the default algorithm)
 * --shared: beside each row of a large message, the same with tensors of tutti_mem_alloc */
#include "c_api/tutti.h"
#include "kernels/stream.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 16, MAX_SAMPLES = 400, SIZES = 9, TILE = 128 << 10, TILES = 6 };
struct shared {
    _Atomic uint64_t flag[MAX_RANKS][16];
    unsigned char slots[MAX_RANKS][TILES][TILE] __attribute__((aligned(64)));
    double sample[3][MAX_RANKS][MAX_SAMPLES];           /* [ours, beside, bytes only] in ns */
};
static struct shared *shared;
static int ranks = 2, cores;
static bool with_shared;
static uint64_t round_number;
static const char *collective = "allreduce", *algorithm;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static void relax(int tries)
{
    if (ranks > cores && tries > 100) sched_yield();
    else __builtin_ia32_pause();
}
static void flag_barrier(int rank)                                     /* the least any meeting of ranks can cost */
{
    uint64_t mine = ++round_number;
    atomic_store_explicit(&shared->flag[rank][0], mine, memory_order_release);
    for (int q = 0; q < ranks; q++)
        for (int n = 0; atomic_load_explicit(&shared->flag[q][0], memory_order_acquire) < mine; n++) relax(n);
}
static void must(tutti_status status)
{
    if (status == TUTTI_OK) return;
    fprintf(stderr, "%s\n", tutti_get_last_error());
    _exit(1);
}
static void call(tutti_comm *comm, float *in, float *out, size_t bytes)
{
    size_t n = bytes / sizeof(float), part = n / (size_t)ranks;
    if (!strcmp(collective, "allreduce")) must(tutti_all_reduce(in, out, n, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
    else if (!strcmp(collective, "reduce_scatter")) must(tutti_reduce_scatter(in, out, part, TUTTI_FLOAT32, TUTTI_SUM,
        comm, NULL));
    else if (!strcmp(collective, "allgather")) must(tutti_all_gather(in, out, part, TUTTI_FLOAT32, comm, NULL));
    else if (!strcmp(collective, "broadcast")) must(tutti_broadcast(in, out, n, TUTTI_FLOAT32, 0, comm, NULL));
    else if (!strcmp(collective, "all_to_all")) must(tutti_all_to_all(in, out, part, TUTTI_FLOAT32, comm, NULL));
    else { fprintf(stderr, "no benchmark of %s\n", collective); _exit(2); }
}
static void dirty(float *at, size_t bytes, int seed)
{
    for (size_t i = 0; i < bytes / sizeof(float); i++) at[i] = (float)((int)(i & 7) + seed);
}
static void measure_tiny(tutti_comm *comm, int rank, float *in, float *out, size_t bytes, int samples)
{
    enum { BATCH = 200 };
    for (int s = 0; s < samples; s++) {
        flag_barrier(rank);
        double start = now_ns();
        for (int k = 0; k < BATCH; k++) { in[0] = (float)k; call(comm, in, out, bytes); }
        shared->sample[0][rank][s] = (now_ns() - start) / BATCH;
        flag_barrier(rank);
        start = now_ns();
        for (int k = 0; k < BATCH; k++) flag_barrier(rank);
        shared->sample[1][rank][s] = (now_ns() - start) / BATCH;
    }
}
static void measure(tutti_comm *comm, int rank, float *in, float *out, size_t bytes, int samples, bool in_place)
{
    for (int s = 0; s < samples; s++) {
        dirty(in, bytes, rank + s);
        flag_barrier(rank);
        double start = now_ns();
        call(comm, in, in_place ? in : out, bytes);
        shared->sample[0][rank][s] = now_ns() - start;
        dirty(in, bytes, rank + s);
        flag_barrier(rank);
        start = now_ns();
        memcpy(out, in, bytes);
        __asm__ volatile("" ::"r"(out) : "memory");
        shared->sample[1][rank][s] = now_ns() - start;
    }
}
/* What a staged allreduce of two ranks moves, without any waiting (and so without meaning): every tile is copied into
   my slot and added to what happens to be in the other's. The better of ordinary and streaming stores. */
static void move_bytes(float *data, size_t bytes, int rank, stream_function *stream)
{
    for (size_t at = 0, tile = 0; at < bytes; at += TILE, tile++) {
        size_t length = bytes - at < TILE ? bytes - at : TILE;
        float *mine = data + at / sizeof(float);
        if (stream) stream(shared->slots[rank][tile % TILES], mine, length);
        else memcpy(shared->slots[rank][tile % TILES], mine, length);
        const float *theirs = (const float *)(const void *)shared->slots[1 - rank][tile % TILES];
        for (size_t i = 0; i < length / sizeof(float); i++) mine[i] += theirs[i];
    }
}
static void measure_bytes(int rank, float *in, size_t bytes, int samples)
{
    stream_function *stream = stream_find();
    for (int s = 0; s < samples; s++) {
        double best = 1e18;
        for (int streamed = 0; streamed < (stream ? 2 : 1); streamed++) {
            dirty(in, bytes, rank + s);
            flag_barrier(rank);
            double start = now_ns();
            move_bytes(in, bytes, rank, streamed ? stream : NULL);
            double took = now_ns() - start;
            if (took < best) best = took;
        }
        shared->sample[2][rank][s] = best;
    }
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double quantile(int which, int samples, double q)               /* of the slowest rank of each iteration */
{
    static double worst[MAX_SAMPLES];
    for (int s = 0; s < samples; s++) {
        worst[s] = 0;
        for (int r = 0; r < ranks; r++)
            if (shared->sample[which][r][s] > worst[s]) worst[s] = shared->sample[which][r][s];
    }
    qsort(worst, (size_t)samples, sizeof *worst, by_value);
    return worst[(int)((samples - 1) * q)];
}
static bool has_limit(size_t bytes, bool in_place)
{
    return ranks == 2 && bytes > 48 && in_place && !strcmp(collective, "allreduce");
}
static void print_row(size_t bytes, bool in_place, bool in_arena, int samples)
{
    double median = quantile(0, samples, 0.5), beside = quantile(1, samples, 0.5);
    printf("%10zu %-12s %-7s %11.2f %11.2f %11.2f  %-12s %11.2f %6.2f", bytes, in_place ? "in place" : "out of place",
        in_arena ? "shared" : "private", median / 1e3, quantile(0, samples, 0.99) / 1e3, quantile(0, samples, 0) / 1e3,
        bytes <= 48 ? "flag barrier" : "memcpy", beside / 1e3, median / beside);
    if (has_limit(bytes, in_place) && !in_arena) {
        double limit = quantile(2, samples, 0.5);
        printf("   %11.2f %6.2f", limit / 1e3, median / limit);
    }
    printf("\n");
    fflush(stdout);
}
static float *fresh_memory(size_t bytes, bool in_arena)
{
    void *part;
    if (in_arena) {
        must(tutti_mem_alloc(&part, bytes));
        return part;
    }
    float *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(at, 0, bytes);
    return at;
}
static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    sched_setaffinity(0, sizeof set, &set);
}
static const size_t sizes[] = { 8, 48, 4096, 65536, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 64 << 20 };
static const int samples[] = { 60, 60, 300, 300, 100, 40, 20, 12, 12 };

static void row(tutti_comm *comm, int rank, int i, float *in, float *out, bool in_arena)
{
    bool in_place = i < SIZES - 1 && (!strcmp(collective, "allreduce") || !strcmp(collective, "broadcast"));
    measure(comm, rank, in, out, sizes[i], 2, in_place);
    if (sizes[i] <= 48) measure_tiny(comm, rank, in, in_place ? in : out, sizes[i], samples[i]);
    else measure(comm, rank, in, out, sizes[i], samples[i], in_place);
    if (has_limit(sizes[i], in_place) && !in_arena) measure_bytes(rank, in, sizes[i], samples[i]);
    flag_barrier(rank);
    if (rank == 0) print_row(sizes[i], in_place, in_arena, samples[i]);
    flag_barrier(rank);
}
static void rank_main(int rank, tutti_unique_id id)
{
    tutti_comm *comm;
    float *in[2], *out[2];
    pin(rank % cores);
    must(tutti_comm_init_rank(&comm, ranks, id, rank));
    if (algorithm) must(tutti_comm_set_algorithm(comm, collective, algorithm));
    for (int in_arena = 0; in_arena <= with_shared; in_arena++) {
        in[in_arena] = fresh_memory(sizes[SIZES - 1] + 4096, in_arena);
        out[in_arena] = fresh_memory(sizes[SIZES - 1] + 4096, in_arena);
    }
    for (int i = 0; i < SIZES; i++)
        for (int in_arena = 0; in_arena <= (with_shared && sizes[i] > 65536); in_arena++)
            row(comm, rank, i, in[in_arena], out[in_arena], in_arena);
    must(tutti_comm_destroy(comm));
    _exit(0);
}
int main(int argc, char **argv)
{
    tutti_unique_id id;
    cpu_set_t set;
    int bad = 0;
    if (argc > 1 && !strcmp(argv[1], "--shared")) { with_shared = true; argc--; argv++; }
    if (argc > 1) ranks = atoi(argv[1]);
    if (argc > 2) collective = argv[2];
    if (argc > 3) algorithm = argv[3];
    if (ranks < 1 || ranks > MAX_RANKS) { fprintf(stderr, "1 to %d ranks\n", MAX_RANKS); return 2; }
    cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(tutti_get_unique_id(&id));
    printf("%s, %d ranks on %d cores, float32 sum; us, of the slowest rank\n", collective, ranks, cores);
    printf("%10s %-12s %-7s %11s %11s %11s  %-12s %11s %6s   %11s %6s\n", "bytes", "", "tensors", "median", "p99",
        "best", "beside", "median", "ratio", "bytes only", "ratio");
    fflush(stdout);
    for (int r = 0; r < ranks; r++)
        if (fork() == 0) rank_main(r, id);
    for (int r = 0, status; r < ranks; r++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) bad = 1;
    return bad;
}
