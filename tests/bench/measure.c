/* Ranks, clock, samples and references of the benchmarks in C. The ranks exchange times and flags through a mapping
 * that is made before they are forked, and never through the library that is measured. */
#include "tests/bench/measure.h"
#include "backend/base/pause.h"
#include "backend/host/wait.h"
#include "kernels/reduce.h"
#include "kernels/stream.h"
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct line { _Alignas(128) _Atomic uint64_t word; _Alignas(128) _Atomic uint32_t waiters, core; };
enum { LONG_RING = 8 << 20, SHORT_RING = 256 << 10 };
struct shared {
    struct line flag[MOST_RANKS], backoff[MOST_RANKS], ping[2], handed[2], taken[2];
    double arrival[MOST_RANKS];
    double sample[SERIES][MOST_RANKS][MOST_SAMPLES], call[BESIDE + 1][MOST_RANKS][MOST_CALLS];
    _Alignas(4096) unsigned char slot[2][COHERENT_MOST], ring[2][LONG_RING];
};
static struct shared *shared;
/* The barriers, messages and pieces of this rank so far. */
static uint64_t flags, backoffs, pings, pieces;
static double clock_ns;
/* There are more ranks than cores. */
static bool oversubscribed;
int measure_ranks, measure_rank;

/* ---- ranks ---- */
const char *measure_option(int count, char **words, int *at)
{
    if (*at + 1 < count) return words[++*at];
    fprintf(stderr, "%s needs a value\n", words[*at]);
    exit(2);
}
int measure_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}
/* Pins this process to the core number `index` of those that it may use. */
static void process_pin(int index)
{
    cpu_set_t all, one;
    if (sched_getaffinity(0, sizeof all, &all)) return;
    for (size_t core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &all) && index-- == 0) {
            CPU_ZERO(&one);
            CPU_SET(core, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
}
void *measure_map(size_t bytes, bool with_ranks)
{
    int scope = with_ranks ? MAP_SHARED : MAP_PRIVATE;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, scope | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) return at;
    perror("mmap");
    exit(1);
}
void must(tutti_status status)
{
    if (status == TUTTI_OK) return;
    fprintf(stderr, "rank %d: %s\n", measure_rank, tutti_get_last_error());
    _exit(1);
}
static void find_clock_ns(void)
{
    double least = 1e9;
    for (int i = 0; i < 1000; i++) {
        double begin = now_ns(), took = now_ns() - begin;
        if (took < least) least = took;
    }
    clock_ns = least;
}
bool measure_run(int ranks, bool pinned, unsigned limit_s, void (*rank_main)(void *), void *context)
{
    pid_t process[MOST_RANKS];
    bool good = true;
    if (!shared) shared = measure_map(sizeof *shared, true);
    memset(shared, 0, offsetof(struct shared, arrival));
    measure_ranks = ranks;
    oversubscribed = ranks > measure_cores();
    find_clock_ns();
    fflush(stdout);
    for (int r = 0; r < ranks; r++)
        if ((process[r] = fork()) == 0) {
            alarm(limit_s);
            measure_rank = r;
            if (pinned) process_pin(r % measure_cores());
            rank_main(context);
            fflush(stdout);
            _exit(0);
        }
    for (int n = 0, status; n < ranks; n++) {
        pid_t ended = wait(&status);
        if (ended > 0 && WIFEXITED(status) && !WEXITSTATUS(status)) {
            for (int r = 0; r < ranks; r++)
                if (process[r] == ended) process[r] = 0;
            continue;
        }
        /* The other ranks would wait for this one. */
        for (int r = 0; r < ranks && good; r++)
            if (process[r] > 0 && process[r] != ended) kill(process[r], SIGKILL);
        good = false;
    }
    return good;
}

/* ---- the clock ---- */
double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
double since_ns(double begin)
{
    double took = now_ns() - begin - clock_ns;
    return took > 0 ? took : 0;
}

/* ---- samples ---- */
void sample_set(enum series which, int index, double ns) { shared->sample[which][measure_rank][index] = ns; }
void call_set(enum series which, int index, double ns) { shared->call[which][measure_rank][index] = ns; }
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
double median_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}
static double of_slowest(const double *first, size_t stride, int count, double q)
{
    static double slowest[MOST_CALLS];
    for (int i = 0; i < count; i++) {
        slowest[i] = 0;
        for (int r = 0; r < measure_ranks; r++)
            if (first[(size_t)r * stride + (size_t)i] > slowest[i]) slowest[i] = first[(size_t)r * stride + (size_t)i];
    }
    qsort(slowest, (size_t)count, sizeof *slowest, by_value);
    return slowest[(int)((count - 1) * q)];
}
double sample_quantile(enum series which, int samples, double q)
{
    return of_slowest(shared->sample[which][0], MOST_SAMPLES, samples, q);
}
double call_quantile(enum series which, int calls, double q)
{
    return of_slowest(shared->call[which][0], MOST_CALLS, calls, q);
}
static double slowest_of(enum series which, int sample)
{
    double slowest = 0;
    for (int r = 0; r < measure_ranks; r++)
        if (shared->sample[which][r][sample] > slowest) slowest = shared->sample[which][r][sample];
    return slowest;
}
double sample_ratio(enum series which, enum series beside, int samples)
{
    double ratio[MOST_SAMPLES];
    for (int s = 0; s < samples; s++) ratio[s] = slowest_of(which, s) / slowest_of(beside, s);
    return median_of(ratio, samples);
}

/* ---- flags ---- */
bool flag_pauses;
void measure_relax(int tries)
{
    if (oversubscribed ? tries > 100 : tries % 65536 == 65535) sched_yield();
    else if (oversubscribed || flag_pauses) cpu_pause_briefly();
}
static void await(const struct line *line, uint64_t value)
{
    for (int n = 0; atomic_load_explicit(&line->word, memory_order_acquire) < value; n++) measure_relax(n);
}
double begin_together(void)
{
    shared->arrival[measure_rank] = now_ns();
    flag_barrier();
    if (!oversubscribed) return now_ns();
    double last = 0;
    for (int r = 0; r < measure_ranks; r++)
        if (shared->arrival[r] > last) last = shared->arrival[r];
    return last;
}
void flag_barrier(void)
{
    uint64_t mine = ++flags;
    atomic_store_explicit(&shared->flag[measure_rank].word, mine, memory_order_release);
    for (int r = 0; r < measure_ranks; r++) await(&shared->flag[r], mine);
}
/* Returns true if a rank that has not arrived yet has waited on this core, as in the executor. */
static bool is_in_the_way(uint64_t value)
{
    uint32_t core = wait_core();
    struct line *own = &shared->backoff[measure_rank];
    if (atomic_load_explicit(&own->core, memory_order_relaxed) != core) atomic_store(&own->core, core);
    for (int r = 0; r < measure_ranks; r++)
        if (atomic_load_explicit(&shared->backoff[r].core, memory_order_relaxed) == core
            && atomic_load_explicit(&shared->backoff[r].word, memory_order_acquire) < value)
            return true;
    return false;
}
static void backoff_until(const struct backoff *backoff, struct line *line, uint64_t value)
{
    uint64_t seen;
    for (int n = 0; (seen = atomic_load_explicit(&line->word, memory_order_acquire)) < value; n++) {
        struct wait_set set = { .core_is_wanted = is_in_the_way(value) };
        wait_set_add(&set, (_Atomic uint32_t *)(void *)&line->word, (uint32_t)seen, &line->waiters, true);
        backoff_wait(backoff, n, &set, 100);
    }
}
void backoff_barrier(void)
{
    static struct backoff backoff;
    struct line *own = &shared->backoff[measure_rank];
    uint64_t mine = ++backoffs;
    if (mine == 1) backoff = backoff_for_thread(true);
    counter_publish_and_wake(NULL, &own->word, mine, &own->waiters);
    for (int r = 0; r < measure_ranks; r++)
        if (r != measure_rank) backoff_until(&backoff, &shared->backoff[r], mine);
}
void flag_there_and_back(void)
{
    uint64_t turn = ++pings;
    if (measure_rank == 0) atomic_store_explicit(&shared->ping[0].word, turn, memory_order_release);
    if (measure_rank < 2) await(&shared->ping[1 - measure_rank], turn);
    if (measure_rank == 1) atomic_store_explicit(&shared->ping[1].word, turn, memory_order_release);
}
double flag_barrier_ns(void)
{
    enum { BATCHES = 9, BATCH = 100 };
    double batch[BATCHES];
    if (oversubscribed) return 0;
    for (int b = 0; b < BATCHES; b++) {
        double begin = now_ns();
        for (int k = 0; k < BATCH; k++) flag_barrier();
        batch[b] = since_ns(begin) / BATCH;
    }
    return median_of(batch, BATCHES);
}
bool flag_has_moved(double before_ns, double after_ns)
{
    double least = before_ns < after_ns ? before_ns : after_ns, most = before_ns < after_ns ? after_ns : before_ns;
    return most > FLAG_MOVED * least;
}

/* ---- lines that two cores hand to each other ---- */
bool coherent_can_stream(void) { return stream_find() != NULL; }
static void write_lines(void *to, const void *from, size_t bytes, bool streamed)
{
    if (streamed) stream_find()(to, from, bytes);
    else memcpy(to, from, bytes);
}
static void read_lines(const void *from, size_t bytes)
{
    const uint64_t *at = from;
    uint64_t sum = 0;
    for (size_t i = 0; i < bytes / sizeof *at; i++) sum += at[i];
    __asm__ volatile("" ::"r"(sum));
}
double coherent_ns(const void *from, size_t bytes, bool streamed)
{
    double took = 0;
    /* The first round only brings the lines into the cache of the peer. */
    for (int round = 0; round < 2; round++) {
        flag_barrier();
        double begin = now_ns();
        write_lines(shared->slot[measure_rank], from, bytes, streamed);
        /* Without the fence the last stores would still be on their way. */
        atomic_thread_fence(memory_order_seq_cst);
        took = since_ns(begin);
        flag_barrier();
        begin = now_ns();
        read_lines(shared->slot[1 - measure_rank], bytes);
        took += since_ns(begin);
    }
    return took;
}
/* Reads a word of each line, which brings the whole line. */
static void fetch_lines(const void *from, size_t bytes)
{
    enum { LINE = 64 };
    const unsigned char *at = from;
    uint64_t sum = 0, word;
    for (size_t i = 0; i + sizeof word <= bytes; i += LINE) {
        memcpy(&word, at + i, sizeof word);
        sum += word;
    }
    __asm__ volatile("" ::"r"(sum));
}
/* Hands `count` pieces to the peer, and takes as many from it. Pieces are numbered over all calls and ways, and so are
   the counters of pieces that were handed over and taken. */
static void cross(const void *from, size_t piece, uint64_t count, size_t ring, bool streamed)
{
    int mine = measure_rank, peer = 1 - measure_rank;
    uint64_t slots = ring / CROSSING_PIECE, first = pieces;
    for (uint64_t k = 0; k <= count; k++) {
        uint64_t at = first + k;
        if (k < count) {
            if (at >= slots) await(&shared->taken[peer], at - slots + 1);
            write_lines(shared->ring[mine] + at % slots * CROSSING_PIECE, from, piece, streamed);
            atomic_store_explicit(&shared->handed[mine].word, at + 1, memory_order_release);
        }
        /* The peer's piece number k - 1 is on its way while this rank writes its own number k. */
        if (k == 0) continue;
        await(&shared->handed[peer], at);
        fetch_lines(shared->ring[peer] + (at - 1) % slots * CROSSING_PIECE, piece);
        atomic_store_explicit(&shared->taken[mine].word, at, memory_order_release);
    }
    pieces += count;
}
double crossing_ns(const void *from, size_t bytes, int way)
{
    size_t piece = bytes < CROSSING_PIECE ? bytes : CROSSING_PIECE,
           ring = way < CROSSING_SHORT_WAYS ? SHORT_RING : LONG_RING;
    bool streamed = way % 2 && coherent_can_stream();
    flag_barrier();
    double begin = now_ns();
    cross(from, piece, bytes / piece, ring, streamed);
    double took = since_ns(begin);
    flag_barrier();
    return took * (double)bytes / (double)(bytes / piece * piece);
}
double update_ns(void *at, size_t bytes)
{
    double begin = begin_together();
    reduce_find(TUTTI_FLOAT32, TUTTI_SUM)(&at, 1, (const void *[]){ at, at }, 2, bytes / sizeof(float), 1);
    return since_ns(begin);
}
void dirty(void *at, size_t bytes, int seed)
{
    float *value = at;
    for (size_t i = 0; i < bytes / sizeof *value; i++) value[i] = (float)((int)(i & 7) + seed);
}
