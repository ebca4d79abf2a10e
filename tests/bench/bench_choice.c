/* What the choices of the library cost beside the best there is: allreduce with every tile size, number of slots and
 * algorithm of a grid, each on a group of its own, all in one run and in turns, because the machine drifts. Beside each
 * time (median of the slowest rank) is its regret: divided by the best of the row. Below are the mean and the worst of
 * each column: those of the first are the default's, the best of the others are those of the best constant choice. The
 * flag barriers before and after a row tell how far apart the cores were.
 *
 * bench_choice [--shared] [--algorithms] [ranks] [samples] */
#include "backend/base/settings.h"
#include "tests/bench/measure.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_BYTES = 1 << 20 };                         /* of a half, before they come round */
enum { MOST_VARIANTS = 32, MOST_SIZES = 16, MOST_TIMES = 64, LIMIT_S = 300 };
static struct shared { double sample[MOST_SIZES][MOST_VARIANTS][MOST_RANKS][MOST_TIMES], flag[MOST_SIZES][2]; } *shared;
static struct variant {
    int tile_kib, slots;
    const char *algorithm;
    char name[32];
} variants[MOST_VARIANTS];
static int variant_count, ranks = 2, samples = 15;
static bool in_arena, by_algorithm;

static void add(int tile_kib, int slots, const char *algorithm)
{
    struct variant *v = &variants[variant_count++];
    *v = (struct variant){ tile_kib, slots, algorithm, "" };
    if (algorithm) snprintf(v->name, sizeof v->name, "%.20s", algorithm);
    else if (tile_kib) snprintf(v->name, sizeof v->name, "%dKx%d", tile_kib, slots);
    else snprintf(v->name, sizeof v->name, "default");
}
static tutti_comm *join(const struct variant *v, tutti_unique_id id)
{
    char text[32];
    tutti_comm *comm;
    snprintf(text, sizeof text, "%d", v->tile_kib * 1024);
    if (v->tile_kib) setenv("TUTTI_TILE_BYTES", text, 1);
    else unsetenv("TUTTI_TILE_BYTES");
    snprintf(text, sizeof text, "%d", v->slots);
    setenv("TUTTI_SLOTS", text, 1);
    settings_reload();
    must(tutti_comm_init_rank(&comm, ranks, id, measure_rank));
    if (v->algorithm) must(tutti_comm_set_algorithm(comm, "allreduce", v->algorithm));
    return comm;
}
static const size_t large[] = { 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20 };
static const size_t mixed[] = { 64, 512, 2 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 16 << 20 };
static const size_t *sizes;
static int size_count;

static int times_of(size_t bytes) { return bytes > 16 << 20 ? samples / 2 + 1 : samples; }
static int batch_of(size_t bytes) { return bytes <= 4096 ? 50 : 1; }
static double once(tutti_comm *comm, float *data, size_t bytes, int seed)
{
    int batch = batch_of(bytes);
    dirty(data, bytes, seed);
    double begin = begin_together();
    for (int k = 0; k < batch; k++) {
        if (batch > 1) data[0] = (float)k;
        must(tutti_all_reduce(data, data, bytes / sizeof(float), TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
    }
    return since_ns(begin) / batch;
}
static void note_flag(int size, int after)
{
    double flag = flag_barrier_ns();
    if (measure_rank == 0) shared->flag[size][after] = flag;
}
/* Until all slots have been in use. */
static int warm_ups(size_t bytes) { return 6 + 2 * (int)(SLOTS_BYTES / bytes) / batch_of(bytes); }
static void sweep(tutti_comm **comms, float *data, int size)
{
    for (int v = 0; v < variant_count; v++)
        for (int s = 0; s < warm_ups(sizes[size]); s++) once(comms[v], data, sizes[size], s);
    note_flag(size, 0);
    for (int s = 0; s < times_of(sizes[size]); s++)
        for (int v = 0; v < variant_count; v++) {
            int turn = (v + s * 5) % variant_count;
            shared->sample[size][turn][measure_rank][s] = once(comms[turn], data, sizes[size], s);
        }
    note_flag(size, 1);
}
static void rank_main(void *context)
{
    const tutti_unique_id *ids = context;
    tutti_comm *comms[MOST_VARIANTS];
    size_t most = sizes[size_count - 1];
    void *data = NULL;
    for (int v = 0; v < variant_count; v++) comms[v] = join(&variants[v], ids[v]);
    if (in_arena) must(tutti_mem_alloc(&data, most));
    else data = measure_map(most, false);
    memset(data, 0, most);
    for (int i = 0; i < size_count; i++) sweep(comms, data, i);
    flag_barrier();
}
static double median(int size, int variant)
{
    double slowest[MOST_TIMES];
    int times = times_of(sizes[size]);
    for (int s = 0; s < times; s++) {
        slowest[s] = 0;
        for (int r = 0; r < ranks; r++)
            if (shared->sample[size][variant][r][s] > slowest[s]) slowest[s] = shared->sample[size][variant][r][s];
    }
    return median_of(slowest, times);
}
static void print(void)
{
    double best[MOST_SIZES];
    printf("allreduce in place, %s, %d ranks on %d cores; us, and ÷ the best of the row\n",
        in_arena ? "shared" : "private", ranks, measure_cores());
    printf("%9s %11s", "bytes", "flag, ns");
    for (int v = 0; v < variant_count; v++) printf(" %14s", variants[v].name);
    printf("\n");
    for (int i = 0; i < size_count; i++) {
        best[i] = 1e30;
        for (int v = 0; v < variant_count; v++)
            if (median(i, v) < best[i]) best[i] = median(i, v);
        printf("%9zu %5.0f %5.0f", sizes[i], shared->flag[i][0], shared->flag[i][1]);
        for (int v = 0; v < variant_count; v++) printf(" %8.2f %5.2f", median(i, v) / 1e3, median(i, v) / best[i]);
        printf("\n");
    }
    printf("%21s", "mean");
    for (int v = 0; v < variant_count; v++) {
        double sum = 0;
        for (int i = 0; i < size_count; i++) sum += median(i, v) / best[i] / size_count;
        printf(" %14.3f", sum);
    }
    printf("\n%21s", "worst");
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
    static tutti_unique_id ids[MOST_VARIANTS];
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
        if (!strcmp(argv[1], "--shared")) in_arena = true;
        if (!strcmp(argv[1], "--algorithms")) by_algorithm = true;
    }
    if (argc > 1) ranks = atoi(argv[1]);
    if (argc > 2) samples = atoi(argv[2]);
    if (ranks < 1 || ranks > MOST_RANKS || samples < 1 || samples > MOST_TIMES) return 2;
    sizes = by_algorithm ? mixed : large;
    size_count = (int)(by_algorithm ? sizeof mixed / sizeof *mixed : sizeof large / sizeof *large);
    add(0, 0, NULL);
    for (int tile = 32; tile <= 512 && !by_algorithm; tile *= 2)
        for (int slots = 2; slots <= 4; slots++) add(tile, slots, NULL);
    static const char *const names[] = { "one_shot", "two_shot", "two_shot_read" };
    for (int a = 0; a < 3 && by_algorithm; a++) add(0, 0, names[a]);
    shared = measure_map(sizeof *shared, true);
    for (int v = 0; v < variant_count; v++) must(tutti_get_unique_id(&ids[v]));
    bool good = measure_run(ranks, ranks <= measure_cores(), LIMIT_S, rank_main, ids);
    if (good) print();
    return good ? 0 : 1;
}
