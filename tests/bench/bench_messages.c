/* The shm transport beside what the machine can do, all in one run because the machine drifts: 8 bytes there and back
 * against a bare flag there and back, large messages against memcpy, and a poll that finds nothing. Two processes on
 * two cores; medians and their ratios.
 *
 *     bench_messages [stream] [batches of small messages, 2000]
 *
 * stream: with the copy of kernels/stream.h, which the product uses when it proves better. */
#include "backend/transports/transport.h"
#include "kernels/stream.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BATCH = 50, MAX_BATCHES = 20000, CROWD = 8, LARGEST = 64 << 20 };
struct line {
    _Alignas(128) _Atomic uint64_t word;
};
struct shared {
    struct line flag[2];
    struct line bell[CROWD];
};
static struct shared *shared;
static unsigned char *memory;
static int ranks = 2, me;
static struct transport *transport;
static uint64_t flags;
static bool streamed;

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}
static void relax(int tries)
{
    if (tries % 4096 == 4095) sched_yield();
    else __builtin_ia32_pause();
}
static int by_size(const void *a, const void *b)
{ return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }
static double median(double *samples, int count)
{
    qsort(samples, (size_t)count, sizeof *samples, by_size);
    return samples[count / 2];
}
static void *map(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at != MAP_FAILED) return at;
    perror("mmap");
    exit(1);
}

/* ---- the ground: the bell is a shared word, as in the product ---- */
static size_t pair_bytes(void) { return (shm_pair_bytes() + 4095) / 4096 * 4096; }
static unsigned char *pair_at(void *context, int from, int to)
{
    (void)context;
    return memory + (size_t)(from * ranks + to) * pair_bytes();
}
static tutti_status reserve(void *context, void *at, size_t bytes)
{
    (void)context, (void)at, (void)bytes;
    return TUTTI_OK;
}
static void ring(void *context, int rank)
{
    (void)context;
    atomic_fetch_add(&shared->bell[rank].word, 1);
}
static struct transport *connect_rank(int rank)
{
    stream_function *stream = streamed ? stream_find() : NULL;
    struct shm_ground ground = { NULL, pair_at, reserve, ring, stream, stream };
    struct transport *t = NULL;
    if (shm_connect(&ground, rank, ranks, &t) != TUTTI_OK) exit(1);
    return t;
}

/* ---- there and back ---- */
static void flag_there_and_back(void)
{
    for (int i = 0; i < BATCH; i++) {
        flags++;
        if (me == 0) atomic_store_explicit(&shared->flag[0].word, flags, memory_order_release);
        for (int n = 0; atomic_load_explicit(&shared->flag[1 - me].word, memory_order_acquire) < flags; n++) relax(n);
        if (me == 1) atomic_store_explicit(&shared->flag[1].word, flags, memory_order_release);
    }
}
static void await(const struct transfer *x)
{
    for (int n = 0; x->state == TRANSFER_POSTED; n++)
        if (!transport_poll(transport)) relax(n);
    if (x->state != TRANSFER_DONE) exit(1);
}
static void start(struct transfer *x, bool is_send, const struct piece *piece)
{
    *x = (struct transfer){ .name = 1, .peer = 1 - me, .is_send = is_send, .pieces = piece, .piece_count = 1 };
    transport_post(transport, x);
}
static void there_and_back(unsigned char *out, unsigned char *in, size_t bytes)
{
    const struct piece sent = { out, bytes, bytes }, got = { in, bytes, bytes };
    struct transfer send, receive;
    start(&receive, false, &got);
    if (me == 0) start(&send, true, &sent);
    await(&receive);
    if (me == 1) start(&send, true, &sent);
    await(&send);
}
static void small(int batches, size_t bytes)
{
    static double flag[MAX_BATCHES], message[MAX_BATCHES];
    unsigned char out[4096] = { 0 }, in[4096];
    for (int b = 0; b < batches; b++) {
        double t0 = now_ns();
        flag_there_and_back();
        double t1 = now_ns();
        for (int i = 0; i < BATCH; i++) there_and_back(out, in, bytes);
        flag[b] = (t1 - t0) / (2 * BATCH);
        message[b] = (now_ns() - t1) / (2 * BATCH);
    }
    double f = median(flag, batches), m = median(message, batches);
    if (me == 0) printf("%9zu B  one way %8.0f ns   flag   %8.0f ns   ratio %.2f\n", bytes, m, f, m / f);
}
static void large(size_t bytes, unsigned char *out, unsigned char *in)
{
    static double copy[MAX_BATCHES], message[MAX_BATCHES];
    int count = (int)((1u << 30) / bytes < 400 ? (1u << 30) / bytes : 400);
    for (int i = 0; i < count; i++) {
        flag_there_and_back();
        double t0 = now_ns();
        if (me == 0) memcpy(in, out, bytes);
        copy[i] = now_ns() - t0;
        flag_there_and_back(); /* the copier works alone, as the pair of ranks does */
        t0 = now_ns();
        there_and_back(out, in, bytes);
        message[i] = (now_ns() - t0) / 2;
    }
    double c = median(copy, count), m = median(message, count);
    if (me == 0)
        printf("%9zu B  one way %8.1f us   memcpy %8.1f us   ratio %.2f   %.1f GB/s\n", bytes, m / 1e3, c / 1e3, m / c,
            (double)bytes / m);
}
static void idle_poll(void) /* eight ranks in one thread, all pairs open */
{
    struct transport *crowd[CROWD];
    static struct transfer x[CROWD][CROWD][2];
    const struct piece nothing = { NULL, 0, 0 };
    ranks = CROWD;
    memory = map((size_t)(CROWD * CROWD) * pair_bytes());
    for (int r = 0; r < CROWD; r++) crowd[r] = connect_rank(r);
    for (int r = 0; r < CROWD; r++)
        for (int q = 0; q < CROWD; q++) {
            x[r][q][0] = (struct transfer){ .peer = q, .is_send = true, .pieces = &nothing, .piece_count = 1 };
            x[r][q][1] = (struct transfer){ .peer = q, .pieces = &nothing, .piece_count = 1 };
            if (r == q) continue;
            transport_post(crowd[r], &x[r][q][0]);
            transport_post(crowd[r], &x[r][q][1]);
        }
    for (int n = 0; n < 100; n++)
        for (int r = 0; r < CROWD; r++) transport_poll(crowd[r]);
    double t0 = now_ns();
    for (int n = 0; n < 1000000; n++) transport_poll(crowd[0]);
    printf("idle poll, %d ranks: %.1f ns\n", CROWD, (now_ns() - t0) / 1e6);
    for (int r = 0; r < CROWD; r++) transport_destroy(crowd[r]);
}
static void be_rank(int batches)
{
    static const size_t few[] = { 8, 40, 41, 256, 1024, 4096 },
                        many[] = { 4097, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20 };
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET((size_t)me, &core);
    sched_setaffinity(0, sizeof core, &core);
    unsigned char *out = malloc(LARGEST), *in = malloc(LARGEST);
    if (!out || !in) exit(1);
    memset(out, 1, LARGEST);
    memset(in, 2, LARGEST);
    transport = connect_rank(me);
    small(batches / 4, 8); /* warm */
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) small(batches, few[i]);
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) large(many[i], out, in);
    transport_destroy(transport);
    free(out);
    free(in);
}
int main(int argc, char **argv)
{
    streamed = argc > 1 && strcmp(argv[1], "stream") == 0;
    int batches = argc > 1 + streamed ? atoi(argv[1 + streamed]) : 2000;
    if (batches < 4 || batches > MAX_BATCHES) batches = 2000;
    shared = map(sizeof *shared);
    memory = map(4 * pair_bytes());
    pid_t child = fork();
    me = child == 0;
    be_rank(batches);
    fflush(stdout);
    if (child == 0) _exit(0);
    int how;
    waitpid(child, &how, 0);
    idle_poll();
    return how;
}
