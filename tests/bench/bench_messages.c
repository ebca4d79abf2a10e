/* Measures the shm transport beside what the machine can do, all in one run because the machine drifts: small messages
 * there and back beside a bare flag there and back, large messages beside memcpy, and a poll that finds nothing. Two
 * processes run on two cores. Figures are medians and their ratios.
 *
 *     bench_messages [stream] [BATCHES]
 *
 * BATCHES: of small messages, 2000 by default. stream: messages are copied by kernels/stream.h, which the library uses
 * where it proves faster. */
#include "backend/transports/shm/shm.h"
#include "kernels/stream.h"
#include "tests/bench/measure.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 50, MAX_BATCHES = 20000, CROWD = 8, LARGEST = 64 << 20, LIMIT_S = 300 };
struct line { _Alignas(128) _Atomic uint64_t word; };
static struct line *bells;
static unsigned char *memory;
static int ranks = 2, batches = 2000;
static struct router *router;
static bool streamed;

/* ---- the callbacks: the bell is a shared word, as in the product ---- */
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
static void give_back(void *context, void *at, size_t bytes) { (void)context, (void)at, (void)bytes; }
static void ring(void *context, int rank)
{
    (void)context;
    atomic_fetch_add(&bells[rank].word, 1);
}
static struct router *connect_rank(int rank)
{
    stream_function *stream = streamed ? stream_find() : NULL;
    struct shm_callbacks callbacks = { .pair = pair_at,
        .reserve = reserve,
        .give_back = give_back,
        .ring = ring,
        .stream = stream,
        .stream_far = stream };
    struct router *r = NULL;
    if (router_create(rank, ranks, 1, (struct bell){ NULL, NULL }, &r) != TUTTI_OK) exit(1);
    if (shm_connect(r, &callbacks, rank, NULL, ranks) != TUTTI_OK) exit(1);
    return r;
}

/* ---- there and back ---- */
static void await(const struct transfer *x)
{
    for (int n = 0; x->state == TRANSFER_POSTED; n++)
        if (!router_poll(router)) measure_relax(n);
    if (x->state != TRANSFER_DONE) exit(1);
}
static void start(struct transfer *x, bool is_send, const struct piece *piece)
{
    int peer = 1 - measure_rank;
    *x = (struct transfer){ .name = { 0, 1 }, .peer = peer, .is_send = is_send, .pieces = piece, .piece_count = 1 };
    router_post(router, x);
}
static void there_and_back(unsigned char *out, unsigned char *in, size_t bytes)
{
    const struct piece sent = { out, bytes, bytes }, got = { in, bytes, bytes };
    struct transfer send, receive;
    start(&receive, false, &got);
    if (measure_rank == 0) start(&send, true, &sent);
    await(&receive);
    if (measure_rank == 1) start(&send, true, &sent);
    await(&send);
}
static void small(int count, size_t bytes)
{
    static double flag[MAX_BATCHES], message[MAX_BATCHES];
    unsigned char out[4096] = { 0 }, in[4096];
    for (int b = 0; b < count; b++) {
        double t0 = now_ns();
        for (int i = 0; i < BATCH; i++) flag_there_and_back();
        double t1 = now_ns();
        for (int i = 0; i < BATCH; i++) there_and_back(out, in, bytes);
        flag[b] = (t1 - t0) / (2 * BATCH);
        message[b] = (now_ns() - t1) / (2 * BATCH);
    }
    double f = median_of(flag, count), m = median_of(message, count);
    if (measure_rank == 0) printf("%9zu B  one way %8.0f ns   flag   %8.0f ns   ratio %.2f\n", bytes, m, f, m / f);
}
/* The reference is a memcpy on rank 0 alone, because a message moves its bytes once. */
static void large(size_t bytes, unsigned char *out, unsigned char *in)
{
    static double copy[MAX_BATCHES], message[MAX_BATCHES];
    int count = (int)((1u << 30) / bytes < 400 ? (1u << 30) / bytes : 400);
    for (int i = 0; i < count; i++) {
        flag_there_and_back();
        double t0 = now_ns();
        if (measure_rank == 0) memcpy(in, out, bytes);
        copy[i] = now_ns() - t0;
        flag_there_and_back();
        t0 = now_ns();
        there_and_back(out, in, bytes);
        message[i] = (now_ns() - t0) / 2;
    }
    double c = median_of(copy, count), m = median_of(message, count);
    if (measure_rank == 0)
        printf("%9zu B  one way %8.1f us   memcpy %8.1f us   ratio %.2f   %.1f GB/s\n", bytes, m / 1e3, c / 1e3, m / c,
            (double)bytes / m);
}
/* Measures a poll of one of eight ranks that run in one thread, with all pairs open. */
static void idle_poll(void)
{
    struct router *crowd[CROWD];
    static struct transfer x[CROWD][CROWD][2];
    const struct piece nothing = { NULL, 0, 0 };
    ranks = CROWD;
    memory = measure_map((size_t)(CROWD * CROWD) * pair_bytes(), true);
    for (int r = 0; r < CROWD; r++) crowd[r] = connect_rank(r);
    for (int r = 0; r < CROWD; r++)
        for (int q = 0; q < CROWD; q++) {
            x[r][q][0] = (struct transfer){ .peer = q, .is_send = true, .pieces = &nothing, .piece_count = 1 };
            x[r][q][1] = (struct transfer){ .peer = q, .pieces = &nothing, .piece_count = 1 };
            if (r == q) continue;
            router_post(crowd[r], &x[r][q][0]);
            router_post(crowd[r], &x[r][q][1]);
        }
    for (int n = 0; n < 100; n++)
        for (int r = 0; r < CROWD; r++) router_poll(crowd[r]);
    double t0 = now_ns();
    for (int n = 0; n < 1000000; n++) router_poll(crowd[0]);
    printf("idle poll, %d ranks: %.1f ns\n", CROWD, (now_ns() - t0) / 1e6);
    for (int r = 0; r < CROWD; r++) router_destroy(crowd[r]);
}
static void rank_main(void *context)
{
    static const size_t few[] = { 8, 40, 41, 256, 1024, 4096 },
                        many[] = { 4097, 16384, 65536, 262144, 1 << 20, 4 << 20, 16 << 20, 64 << 20 };
    unsigned char *out = measure_map(LARGEST, false), *in = measure_map(LARGEST, false);
    (void)context;
    flag_pauses = true;
    memset(out, 1, LARGEST);
    memset(in, 2, LARGEST);
    router = connect_rank(measure_rank);
    /* The first line only warms up. */
    small(batches / 4, 8);
    for (size_t i = 0; i < sizeof few / sizeof *few; i++) small(batches, few[i]);
    for (size_t i = 0; i < sizeof many / sizeof *many; i++) large(many[i], out, in);
    router_destroy(router);
}
int main(int argc, char **argv)
{
    streamed = argc > 1 && strcmp(argv[1], "stream") == 0;
    if (argc > 1 + streamed) batches = atoi(argv[1 + streamed]);
    if (batches < 4 || batches > MAX_BATCHES) batches = 2000;
    bells = measure_map(CROWD * sizeof *bells, true);
    memory = measure_map(4 * pair_bytes(), true);
    bool good = measure_run(ranks, true, LIMIT_S, rank_main, NULL);
    idle_poll();
    return good ? 0 : 1;
}
