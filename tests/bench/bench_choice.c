/* What the choices of the library cost beside the best there is: allreduce with every tile size, number of slots and
 * algorithm of a grid, each on a group of its own, all in one run and in turns, because the machine drifts. Beside each
 * time (median of the slowest rank) is its regret: divided by the best of the row. Below are the mean and the worst of
 * each column: those of the first are the default's, the best of the others are those of the best constant choice.
 *
 * bench_choice [--shared] [--algorithms] [ranks] [samples] */
#include "backend/base/settings.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_RANKS = 16, MAX_SAMPLES = 64, MAX_VARIANTS = 32, MAX_SIZES = 16 };
static struct shared {
    _Atomic uint64_t flag[MAX_RANKS][16];
    double sample[MAX_SIZES][MAX_VARIANTS][MAX_RANKS][MAX_SAMPLES];
} *shared;
static struct variant { int tile_kib, slots; const char *algorithm; char name[32]; } variants[MAX_VARIANTS];
static int variant_count, ranks = 2, samples = 15, cores;
static bool in_arena, by_algorithm;
static uint64_t round_number;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static void flag_barrier(int rank)
{
    uint64_t mine = ++round_number;
    atomic_store_explicit(&shared->flag[rank][0], mine, memory_order_release);
    for (int q = 0; q < ranks; q++)
        while (atomic_load_explicit(&shared->flag[q][0], memory_order_acquire) < mine)
            if (ranks > cores) sched_yield();
}
static void must(tutti_status status)
{
    if (status == TUTTI_OK) return;
    fprintf(stderr, "%s\n", tutti_get_last_error());
    _exit(1);
}
static void pin(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    sched_setaffinity(0, sizeof set, &set);
}
static void add(int tile_kib, int slots, const char *algorithm)
{
    struct variant *v = &variants[variant_count++];
    *v = (struct variant){ tile_kib, slots, algorithm, "" };
    if (algorithm) snprintf(v->name, sizeof v->name, "%.20s", algorithm);
    else if (tile_kib) snprintf(v->name, sizeof v->name, "%dKx%d", tile_kib, slots);
    else snprintf(v->name, sizeof v->name, "default");
}
static tutti_comm *join(int rank, const struct variant *v, tutti_unique_id id)
{
    char text[32];
    tutti_comm *comm;
    snprintf(text, sizeof text, "%d", v->tile_kib * 1024);
    if (v->tile_kib) setenv("TUTTI_TILE_BYTES", text, 1);
    else unsetenv("TUTTI_TILE_BYTES");
    snprintf(text, sizeof text, "%d", v->slots);
    setenv("TUTTI_SLOTS", text, 1);
    settings_reload();
    must(tutti_comm_init_rank(&comm, ranks, id, rank));
    if (v->algorithm) must(tutti_comm_set_algorithm(comm, "allreduce", v->algorithm));
    return comm;
}
static const size_t large[] = { 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20 };
static const size_t mixed[] = { 64, 512, 2 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20 };
static const size_t *sizes;
static int size_count;

static double once(tutti_comm *comm, int rank, float *data, size_t bytes, int seed)
{
    int batch = bytes <= 4096 ? 50 : 1;
    for (size_t i = 0; i < bytes / sizeof(float); i++) data[i] = (float)((int)(i & 7) + seed);
    flag_barrier(rank);
    double start = now_ns();
    for (int k = 0; k < batch; k++) {
        if (batch > 1) data[0] = (float)k;
        must(tutti_all_reduce(data, data, bytes / sizeof(float), TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
    }
    return (now_ns() - start) / batch;
}
static void rank_main(int rank, const tutti_unique_id *ids)
{
    tutti_comm *comms[MAX_VARIANTS];
    void *data = NULL;
    if (ranks <= cores) pin(rank % cores);
    for (int v = 0; v < variant_count; v++) comms[v] = join(rank, &variants[v], ids[v]);
    if (in_arena) must(tutti_mem_alloc(&data, sizes[size_count - 1]));
    else data = aligned_alloc(4096, sizes[size_count - 1]);
    memset(data, 0, sizes[size_count - 1]);
    for (int i = 0; i < size_count; i++) {
        int times = sizes[i] > 16 << 20 ? samples / 2 + 1 : samples;
        for (int v = 0; v < variant_count; v++)
            for (int s = 0; s < 6; s++) once(comms[v], rank, data, sizes[i], s);
        for (int s = 0; s < times; s++)
            for (int v = 0; v < variant_count; v++) {
                int turn = (v + s * 5) % variant_count;
                shared->sample[i][turn][rank][s] = once(comms[turn], rank, data, sizes[i], s);
            }
    }
    flag_barrier(rank);
    _exit(0);
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(int size, int variant)
{
    double worst[MAX_SAMPLES];
    int times = sizes[size] > 16 << 20 ? samples / 2 + 1 : samples;
    for (int s = 0; s < times; s++) {
        worst[s] = 0;
        for (int r = 0; r < ranks; r++)
            if (shared->sample[size][variant][r][s] > worst[s]) worst[s] = shared->sample[size][variant][r][s];
    }
    qsort(worst, (size_t)times, sizeof *worst, by_value);
    return worst[times / 2];
}
static void print(void)
{
    double best[MAX_SIZES];
    printf("allreduce in place, %s, %d ranks on %d cores; us, and ÷ the best of the row\n%9s", in_arena ? "shared" :
        "private", ranks, cores, "bytes");
    for (int v = 0; v < variant_count; v++) printf(" %14s", variants[v].name);
    printf("\n");
    for (int i = 0; i < size_count; i++) {
        best[i] = 1e30;
        for (int v = 0; v < variant_count; v++)
            if (median(i, v) < best[i]) best[i] = median(i, v);
        printf("%9zu", sizes[i]);
        for (int v = 0; v < variant_count; v++) printf(" %8.2f %5.2f", median(i, v) / 1e3, median(i, v) / best[i]);
        printf("\n");
    }
    printf("%9s", "mean");
    for (int v = 0; v < variant_count; v++) {
        double sum = 0;
        for (int i = 0; i < size_count; i++) sum += median(i, v) / best[i] / size_count;
        printf(" %14.3f", sum);
    }
    printf("\n%9s", "worst");
    for (int v = 0; v < variant_count; v++) {
        double worst = 0;
        for (int i = 0; i < size_count; i++)
            if (median(i, v) / best[i] > worst) worst = median(i, v) / best[i];
        printf(" %14.3f", worst);
    }
    printf("\n");
}
int main(int argc, char **argv)
{
    static tutti_unique_id ids[MAX_VARIANTS];
    cpu_set_t set;
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
        if (!strcmp(argv[1], "--shared")) in_arena = true;
        if (!strcmp(argv[1], "--algorithms")) by_algorithm = true;
    }
    if (argc > 1) ranks = atoi(argv[1]);
    if (argc > 2) samples = atoi(argv[2]);
    if (ranks < 1 || ranks > MAX_RANKS || samples < 1 || samples > MAX_SAMPLES) return 2;
    sizes = by_algorithm ? mixed : large;
    size_count = (int)(by_algorithm ? sizeof mixed / sizeof *mixed : sizeof large / sizeof *large);
    add(0, 0, NULL);
    for (int tile = 32; tile <= 256 && !by_algorithm; tile *= 2)
        for (int slots = 2; slots <= 4; slots++) add(tile, slots, NULL);
    static const char *const names[] = { "one_shot", "two_shot", "two_shot_read" };
    for (int a = 0; a < 3 && by_algorithm; a++) add(0, 0, names[a]);
    cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int v = 0; v < variant_count; v++) must(tutti_get_unique_id(&ids[v]));
    for (int r = 0; r < ranks; r++)
        if (fork() == 0) rank_main(r, ids);
    int bad = 0;
    for (int r = 0, status; r < ranks; r++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) bad = 1;
    if (!bad) print();
    return bad;
}
