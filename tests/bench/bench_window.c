/* Compares windows with other ways to move the same bytes. On one host: a put into shared memory beside a memcpy to the
 * same place. Between two simulated hosts: a put and a signal, there and back, beside a send and a receive of the same
 * bytes there and back, over the same transport. Figures are medians of one run, in which both take turns.
 *
 *     bench_window [TRANSPORT]
 *
 * TRANSPORT: the transport between the two hosts, as in TUTTI_TRANSPORT. Without it, shared memory stands for the
 * network. */
#include "include/tutti_window.h"
#include "tests/bench/measure.h"
#include "tests/support/world.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST = 4 << 20, SAMPLES = 200, WARM = 20, LIMIT_S = 300 };
struct bench { tutti_unique_id id; bool has_hosts; };
struct end { tutti_comm *comm; tutti_window *window; unsigned char *mine, *from, *theirs; int peer; };

/* ---- one host ---- */
static void end_put(const struct end *e, size_t bytes)
{
    must(tutti_window_put(e->window, e->from, bytes, TUTTI_UINT8, e->peer, 0, NULL));
}
/* Returns the ns of one of `calls` puts, or of as many copies to the same place. */
static double end_time_writes(const struct end *e, size_t bytes, int calls, bool puts)
{
    double begin = now_ns();
    for (int n = 0; n < calls; n++) {
        if (puts) end_put(e, bytes);
        else memcpy(e->theirs, e->from, bytes);
        __asm__ volatile("" ::: "memory");
    }
    return since_ns(begin) / calls;
}
/* ---- two hosts ---- */
static void end_give(const struct end *e, size_t bytes, bool puts)
{
    if (!puts) { must(tutti_send(e->from, bytes, TUTTI_UINT8, e->peer, 0, e->comm, NULL)); return; }
    end_put(e, bytes);
    must(tutti_window_signal(e->window, e->peer, NULL));
}
static void end_take(const struct end *e, size_t bytes, bool puts)
{
    if (puts) must(tutti_window_wait_signal(e->window, e->peer, NULL));
    else must(tutti_recv(e->mine, bytes, TUTTI_UINT8, e->peer, 0, e->comm, NULL));
}
/* Returns half the ns of one of `calls` exchanges there and back. */
static double end_time_exchanges(const struct end *e, size_t bytes, int calls, bool puts)
{
    double begin = now_ns();
    for (int n = 0; n < calls; n++) {
        if (measure_rank == 0) end_give(e, bytes, puts);
        end_take(e, bytes, puts);
        if (measure_rank == 1) end_give(e, bytes, puts);
    }
    return since_ns(begin) / (2 * calls);
}

static void print_row(const struct bench *b, size_t bytes)
{
    const char *ours = b->has_hosts ? "put and signal" : "put", *beside = b->has_hosts ? "send and receive" : "memcpy";
    printf("%s, %7zu bytes: %s %.0f ns, %s %.0f ns, ratio %.2f\n", b->has_hosts ? "two hosts" : "one host ", bytes,
        ours, sample_quantile(OURS, SAMPLES, 0.5), beside, sample_quantile(BESIDE, SAMPLES, 0.5),
        sample_ratio(OURS, BESIDE, SAMPLES));
    fflush(stdout);
}
static void measure_size(const struct bench *b, const struct end *e, size_t bytes)
{
    int calls = bytes < LARGEST ? 100 : 1;
    for (int n = -WARM; n < SAMPLES; n++)
        for (int turn = 0; turn < 2; turn++) {
            bool puts = (n + turn) & 1;
            bool is_idle = !b->has_hosts && measure_rank;
            double ns = is_idle ? 0
                : b->has_hosts  ? end_time_exchanges(e, bytes, calls, puts)
                                : end_time_writes(e, bytes, calls, puts);
            if (n >= 0) sample_set(puts ? OURS : BESIDE, n, ns);
        }
    must(tutti_barrier(e->comm, NULL));
    if (measure_rank == 0) print_row(b, bytes);
}
static void bench_main(void *context)
{
    const struct bench *b = context;
    struct end e = { .peer = 1 - measure_rank };
    must(tutti_comm_init_rank(&e.comm, 2, b->id, measure_rank));
    must(tutti_mem_alloc((void **)&e.mine, LARGEST));
    must(tutti_mem_alloc((void **)&e.from, LARGEST));
    memset(e.mine, 1, LARGEST);
    memset(e.from, 2, LARGEST);
    must(tutti_window_register(e.mine, LARGEST, TUTTI_UINT8, e.comm, &e.window));
    if (!b->has_hosts) must(tutti_window_map(e.window, e.peer, (void **)&e.theirs));
    measure_size(b, &e, 8);
    measure_size(b, &e, LARGEST);
    must(tutti_window_deregister(e.window));
    must(tutti_window_free(e.window));
    must(tutti_comm_destroy(e.comm));
}
int main(int count, char **words)
{
    bool ended_well = true;
    for (int has_hosts = 0; has_hosts < 2; has_hosts++) {
        struct bench b = { .has_hosts = has_hosts };
        if (has_hosts && count > 1) world_set("TUTTI_TRANSPORT", words[1]);
        world_pretend(has_hosts ? "2" : "");
        must(tutti_get_unique_id(&b.id));
        ended_well &= measure_run(2, true, LIMIT_S, bench_main, &b);
    }
    return !ended_well;
}
