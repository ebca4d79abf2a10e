/* Measures collectives of the library with which this is compiled: MPI by default (mpicc), tutti with -DTUTTI. Prints a
 * line for each collective and size: its name, the bytes, the median, 99th percentile and best of the slowest rank's
 * times in ns, and the ns of a bare flag barrier before and after, which show how near the cores were. Every rank is
 * pinned to a core, and writes all of its buffer before each sample, as a program does. compare.py builds and runs this
 * program for each library in turn.
 *
 * peers RANKS [--hosts COUNT --store DIRECTORY [--rank RANK]] [shared] COLLECTIVE=BYTES[,BYTES…]…
 *
 * On one host this program forks the ranks of tutti; mpirun starts those of MPI. shared: buffers are of
 * tutti_mem_alloc. --hosts: the ranks are in equal blocks on hosts h0, h1, … that are namespaces of one machine
 * (tests/support/hosts.py), and find each other through the DIRECTORY, which must be new. There the ranks of a host
 * share a core if there are more ranks than cores, results are checked, and rows have fewer samples, because a call
 * that takes 0.3 µs on one host takes 10. A rank of tutti is then a process that gets its number by --rank. */
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
/* The number of cores that this process could use before it was pinned. */
static int cores;
/* The directory; NULL on one host. */
static const char *store;
static void fail(const char *what)
{
    fprintf(stderr, "rank %d: %s\n", rank, what);
    _exit(1);
}

static int host(void) { return rank / (ranks / hosts); }
/* Pins this rank to one of the cores that this process may use, which taskset can limit. */
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
/* Reads the options, and removes them from argv. */
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
/* Fails if this rank is on another host than its number says, because the figures would then be wrong. */
static void host_check(void)
{
    char name[64] = "", expected[64];
    if (ranks % hosts) fail("RANKS must be a multiple of the number of hosts");
    gethostname(name, sizeof name - 1);
    snprintf(expected, sizeof expected, "h%d", host());
    if (strcmp(name, expected)) fail("this is not the host of this rank");
}
/* Maps the flags of ranks on several hosts from a file, which is possible because these hosts are one machine. */
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

/* Returns the rank to which rank 0 sends: the first one of the next host, or rank 1 on one host. */
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
/* The output of a collective, by which its result is checked. */
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
/* Returns the median ns of a flag barrier; 0 with more ranks than cores, where it shows nothing. */
static double flag_ns(void)
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
/* Returns the number of elements that this rank has as the result of a call with n. */
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
/* Returns element i of this rank's result, if every rank q has filled its input with dirty(…, q). */
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
/* Checks a result. Returns the number of samples, equal on all ranks, that take about BUDGET_NS. */
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
    /* These samples take about a tenth of a second. */
    double most = 1.5e8 / ((double)n * 2 + 1.5e5);
    int samples = hosts > 1 ? samples_between_hosts(c, in, out, n) : most > MOST ? MOST : most < 9 ? 9 : (int)most;
    /* Two samples warm up. */
    for (int s = -2; s < samples; s++) {
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
/* Returns the next number of =BYTES,BYTES…, or 0 after the last one. */
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
