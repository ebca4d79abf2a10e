/* The same measurement for whichever library this is compiled with: MPI by default (mpicc), tutti with -DTUTTI. Prints
 * a line for each collective and size: its name, the bytes, the median, 99th percentile and best of the slowest rank's
 * times in ns, and what a bare flag barrier took before and after, which tells how near the cores were. Every rank is
 * pinned to a core, and writes all of its buffer before each call, as a program does. compare.py builds and runs it for
 * each library in turn.
 *
 * peers RANKS [--hosts COUNT --store DIRECTORY [--rank RANK]] [shared] COLLECTIVE=BYTES[,BYTES…]…
 *
 * Ranks of tutti on one host are forked here; mpirun starts those of MPI. shared: buffers of tutti_mem_alloc. --hosts:
 * the ranks are in equal blocks on hosts h0, h1, … that are namespaces of one machine (tests/support/hosts.py) and see
 * the same, new directory. Where there are more ranks than cores, all of a host share one; results are checked; and
 * there are fewer samples, because what takes 0.3 µs on one host takes 10 there. A rank of tutti is then a process that
 * is told its number. */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MOST_RANKS = 64 };
static struct flag { _Alignas(128) _Atomic uint64_t word; } *flags;     /* [ranks], shared by all */
static int rank, ranks;
static int hosts = 1;
static int cores;                                       /* that this process could use */
static const char *store;                               /* with several hosts: the directory */
static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    _exit(1);
}

static int host(void) { return rank / (ranks / hosts); }
/* To one of the cores that this process may use, so that taskset says which. */
static void pin(void)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all)) fail("sched_getaffinity failed");
    cores = CPU_COUNT(&all);
    int index = (hosts > 1 && ranks > cores ? host() : rank) % cores;
    size_t core = 0;
    while (!CPU_ISSET(core, &all) || index--) core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof one, &one);
}

/* ---- several hosts ---- */
/* Takes the options out of the words. */
static void options_take(int *argc, char **argv)
{
    int taken = 0;
    for (; 2 + taken + 1 < *argc && !strncmp(argv[2 + taken], "--", 2); taken += 2) {
        const char *name = argv[2 + taken], *value = argv[3 + taken];
        if (!strcmp(name, "--hosts")) hosts = atoi(value);
        else if (!strcmp(name, "--store")) store = value;
        else if (!strcmp(name, "--rank")) rank = atoi(value);
        else fail("the options are --hosts, --store and --rank");
    }
    if (hosts < 1 || (hosts > 1 && !store)) fail("--hosts needs a number and --store");
    for (int i = 2; i + taken <= *argc; i++) argv[i] = argv[i + taken];
    *argc -= taken;
}
/* Where this rank runs is where its number says; else what is measured is something else. */
static void host_check(void)
{
    char name[64] = "", expected[64];
    if (ranks % hosts) fail("the ranks are not as many on each host");
    gethostname(name, sizeof name - 1);
    snprintf(expected, sizeof expected, "h%d", host());
    if (strcmp(name, expected)) fail("this is not the host of this rank");
}
/* Flags of ranks on several hosts lie in a file, which is possible as these hosts are one machine. */
static void flags_map(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/flags", store);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ftruncate(file, MOST_RANKS * sizeof *flags)) fail("no file for the flags");
    flags = mmap(NULL, MOST_RANKS * sizeof *flags, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (flags == MAP_FAILED) fail("no memory for the flags");
    close(file);
}

/* Whom rank 0 sends to: the first rank of another host, if there is one. */
static int partner(void) { return hosts > 1 ? ranks / hosts : 1; }

/* ---- the library ---- */
#if defined(TUTTI)
#include "tests/bench/peers/with_tutti.h"
#else
#include "tests/bench/peers/with_mpi.h"
#endif
static void allreduce_in_place(float *in, float *out, size_t n)
{
    (void)out;
    allreduce(in, in, n);
}

/* ---- measuring ---- */
/* What is where afterwards, so that results can be checked. */
enum result { ALL_SUMMED, PART_SUMMED, PARTS, FIRST, FIRST_SUMMED, PARTS_FOR_ME, FIRST_PARTS, PART_OF_FIRST, BACK };
struct collective {
    const char *name;
    void (*call)(float *in, float *out, size_t n);
    enum result result;
    bool in_place;
};
static const struct collective collectives[] = {
    { "allreduce", allreduce_in_place, ALL_SUMMED, true },
    { "allreduce, out of place", allreduce, ALL_SUMMED, false },
    { "reduce_scatter", reduce_scatter, PART_SUMMED, false },
    { "allgather", allgather, PARTS, false },
    { "broadcast", broadcast, FIRST, true },
    { "reduce", reduce, FIRST_SUMMED, false },
    { "all_to_all", alltoall, PARTS_FOR_ME, false },
    { "gather", gather, FIRST_PARTS, false },
    { "scatter", scatter, PART_OF_FIRST, false },
    { "send and back", pingpong, BACK, false },
};
enum { MOST = 1000, LEAST = 5, BATCH = 50, FLAG_BATCHES = 9, FLAG_BATCH = 100 };
static const double BUDGET_NS = 2e8;                    /* of a row, between hosts */

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void flag_barrier(void)
{
    static uint64_t times;
    times++;
    atomic_store_explicit(&flags[rank].word, times, memory_order_release);
    for (int r = 0; r < ranks; r++)
        while (atomic_load_explicit(&flags[r].word, memory_order_acquire) < times) {}
}
static double flag_ns(void)                             /* 0: more ranks than cores, where it tells nothing */
{
    double batch[FLAG_BATCHES];
    if (ranks > cores) return 0;
    for (int b = 0; b < FLAG_BATCHES; b++) {
        double begin = now_ns();
        for (int k = 0; k < FLAG_BATCH; k++) flag_barrier();
        batch[b] = (now_ns() - begin) / FLAG_BATCH;
    }
    qsort(batch, FLAG_BATCHES, sizeof *batch, by_value);
    return batch[FLAG_BATCHES / 2];
}
static void dirty(float *at, size_t n, int seed)
{
    for (size_t i = 0; i < n; i++) at[i] = (float)((int)(i & 7) + seed);
}
/* How many elements this rank has as a result of n. */
static size_t result_count(enum result result, size_t n)
{
    switch (result) {
    case PART_SUMMED:
    case PART_OF_FIRST: return n / (size_t)ranks;
    case FIRST_SUMMED: return rank ? 0 : n;
    case PARTS:
    case PARTS_FOR_ME: return n / (size_t)ranks * (size_t)ranks;
    case FIRST_PARTS: return rank ? 0 : n / (size_t)ranks * (size_t)ranks;
    case BACK: return rank == 0 || rank == partner() ? n : 0;
    case ALL_SUMMED:
    case FIRST:
    default: return n;
    }
}
/* Element i of it, when every rank q has filled its input with dirty(…, q). */
static float result_element(enum result result, size_t n, size_t i)
{
    size_t part = n / (size_t)ranks, mine = (size_t)rank * part;
    int sum = ranks * (ranks - 1) / 2, from = part ? (int)(i / part) : 0;
    switch (result) {
    case ALL_SUMMED:
    case FIRST_SUMMED: return (float)(ranks * (int)(i & 7) + sum);
    case PART_SUMMED: return (float)(ranks * (int)((mine + i) & 7) + sum);
    case PARTS:
    case FIRST_PARTS: return (float)((int)(i % part & 7) + from);
    case PARTS_FOR_ME: return (float)((int)((mine + i % part) & 7) + from);
    case PART_OF_FIRST: return (float)((mine + i) & 7);
    case BACK: return (float)((int)(i & 7) + (rank ? 0 : partner()));
    case FIRST:
    default: return (float)(i & 7);
    }
}
static void check(const struct collective *c, float *in, float *out, size_t n)
{
    const float *found = c->in_place ? in : out;
    dirty(in, n, rank);
    if (!c->in_place) dirty(out, n, -100);
    c->call(in, out, n);
    for (size_t i = 0; i < result_count(c->result, n); i++)
        if (found[i] != result_element(c->result, n, i)) {
            fprintf(stderr, "rank %d: %s of %zu: element %zu is %g instead of %g\n", rank, c->name, n, i,
                (double)found[i], (double)result_element(c->result, n, i));
            _exit(1);
        }
}
/* Small messages are timed in batches, because a clock costs as much as they do. */
static double sample(const struct collective *c, float *in, float *out, size_t n, int seed)
{
    int batch = n * sizeof *in <= 4096 ? BATCH : 1;
    dirty(in, n, seed);
    barrier();
    double begin = now_ns();
    for (int i = 0; i < batch; i++) {
        in[0] = (float)(seed + i);
        c->call(in, out, n);
    }
    return (now_ns() - begin) / batch;
}
/* Checks a result, and says how many samples take about as long as a row may; all ranks say the same. */
static int samples_between_hosts(const struct collective *c, float *in, float *out, size_t n)
{
    check(c, in, out, n);
    double begin = now_ns();
    sample(c, in, out, n, rank);
    double took = now_ns() - begin;
    slowest(&took, 1);
    double most = BUDGET_NS / took;
    return most > MOST ? MOST : most < LEAST ? LEAST : (int)most;
}
static void measure(const struct collective *c, float *in, float *out, size_t n)
{
    static double times[MOST];
    double before = flag_ns();
    double most = 1.5e8 / ((double)n * 2 + 1.5e5);                      /* about a tenth of a second */
    int samples = hosts > 1 ? samples_between_hosts(c, in, out, n) : most > MOST ? MOST : most < 9 ? 9 : (int)most;
    for (int s = -2; s < samples; s++) {                                /* two to warm up */
        double took = sample(c, in, out, n, rank + s);
        if (s >= 0) times[s] = took;
    }
    double after = flag_ns();
    slowest(times, (size_t)samples);
    qsort(times, (size_t)samples, sizeof *times, by_value);
    if (rank == 0)
        printf("%s\t%zu\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\n", c->name, n * sizeof *in, times[samples / 2],
            times[(int)(0.99 * (samples - 1))], times[0], before, after);
    fflush(stdout);
}
static const struct collective *find(const char *word, const char **sizes)
{
    size_t length = strcspn(word, "=");
    for (size_t c = 0; c < sizeof collectives / sizeof *collectives; c++)
        if (strlen(collectives[c].name) == length && !memcmp(word, collectives[c].name, length)) {
            *sizes = word + length;
            return &collectives[c];
        }
    fail("there is no such collective");
    return NULL;
}
/* The next of =BYTES,BYTES…; 0: that was all. */
static size_t next(const char **sizes)
{
    char *end = NULL;
    if (!**sizes) return 0;
    size_t bytes = strtoul(*sizes + 1, &end, 10);
    *sizes = end;
    return bytes;
}
static size_t largest(char **words, int count)
{
    size_t most = 0;
    const char *sizes;
    for (int i = 0; i < count; i++) {
        find(words[i], &sizes);
        for (size_t bytes; (bytes = next(&sizes)) > 0;)
            if (bytes > most) most = bytes;
    }
    return most;
}
int main(int argc, char **argv)
{
    if (argc > 1) options_take(&argc, argv);
    library_start(&argc, &argv);
    bool shared = argc > 2 && !strcmp(argv[2], "shared");
    int first = 2 + shared;
    if (argc <= first || ranks > MOST_RANKS)
        fail("usage: peers RANKS [--hosts COUNT --store DIRECTORY [--rank RANK]] [shared] COLLECTIVE=BYTES[,BYTES]...");
    size_t room = largest(argv + first, argc - first) / 4096 * 4096 + 8192;
    float *in = shared ? shared_memory(room) : aligned_alloc(4096, room);
    float *out = shared ? shared_memory(room) : aligned_alloc(4096, room);
    if (!in || !out) fail("no memory for the buffers");
    memset(in, 0, room);
    memset(out, 0, room);
    for (int i = first; i < argc; i++) {
        const char *sizes;
        const struct collective *c = find(argv[i], &sizes);
        for (size_t bytes; (bytes = next(&sizes)) > 0;) measure(c, in, out, bytes / sizeof *in);
    }
    library_finish();
    return 0;
}
