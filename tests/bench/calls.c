/* Makes the calls of the library that the rows of cases.h measure. */
#include "tests/bench/calls.h"
#include <string.h>

static void call_send_recv(const char *in, char *out, size_t n, tutti_dtype dtype, bool back, tutti_comm *comm)
{
    if (measure_rank == 0) must(tutti_send(in, n, dtype, 1, 0, comm, NULL));
    if (measure_rank == 1) must(tutti_recv(out, n, dtype, 0, 0, comm, NULL));
    if (!back) return;
    if (measure_rank == 1) must(tutti_send(in, n, dtype, 0, 0, comm, NULL));
    if (measure_rank == 0) must(tutti_recv(out, n, dtype, 1, 0, comm, NULL));
}
void case_call(const struct bench_case *c, struct pair at, tutti_dtype dtype, tutti_comm *comm)
{
    size_t n = c->bytes / tutti_dtype_bytes(dtype), ranks = (size_t)c->ranks, part = n / ranks > 0 ? n / ranks : 1;
    size_t own = (size_t)measure_rank * part * tutti_dtype_bytes(dtype);
    switch (c->verb) {
    case ALLREDUCE: must(tutti_all_reduce(at.in, at.out, n, dtype, TUTTI_SUM, comm, NULL)); return;
    case BROADCAST: must(tutti_broadcast(at.in, at.out, n, dtype, 0, comm, NULL)); return;
    case ALL_TO_ALL: must(tutti_all_to_all(at.in, at.out, part, dtype, comm, NULL)); return;
    case REDUCE_SCATTER:
        must(tutti_reduce_scatter(at.in, c->in_place ? at.in + own : at.out, part, dtype, TUTTI_SUM, comm, NULL));
        return;
    case ALLGATHER: must(tutti_all_gather(c->in_place ? at.out + own : at.in, at.out, part, dtype, comm, NULL)); return;
    case REDUCE: must(tutti_reduce(at.in, at.out, n, dtype, TUTTI_SUM, 0, comm, NULL)); return;
    case GATHER: must(tutti_gather(at.in, at.out, part, dtype, 0, comm, NULL)); return;
    case SCATTER: must(tutti_scatter(at.in, at.out, part, dtype, 0, comm, NULL)); return;
    case SEND_RECV: call_send_recv(at.in, at.out, n, dtype, c->bytes < TINY, comm); return;
    case VERBS: return;
    }
}
struct pair case_pair(const struct bench_case *c, struct pair own, struct pair shared)
{
    struct pair at = c->shared ? shared : own;
    if (c->in_place) at.out = at.in;
    return at;
}
void case_dirty(const struct bench_case *c, struct pair at, int seed)
{
    size_t bytes = c->verb == ALLGATHER || c->verb == GATHER ? c->bytes / (size_t)c->ranks : c->bytes;
    size_t own = c->verb == ALLGATHER && c->in_place ? (size_t)measure_rank * bytes : 0;
    dirty(at.in + own, bytes, measure_rank + seed);
}
void case_use(const struct bench_case *c, struct pair at)
{
    const uint64_t *word = (const uint64_t *)(const void *)at.out;
    uint64_t sum = 0;
    for (size_t i = 0; i < c->bytes / sizeof *word; i++) sum += word[i];
    __asm__ volatile("" ::"r"(sum));
}
void case_touch(struct pair at, int value)
{
    float number = (float)value;
    memcpy(at.in, &number, sizeof number);
}
void case_repeat(const struct bench_case *c, struct pair at, tutti_comm *comm, int calls)
{
    for (int k = 0; k < calls; k++) {
        case_use(c, at);
        case_dirty(c, at, k);
        begin_together();
        case_call(c, at, c->dtype, comm);
    }
    flag_barrier();
}
void case_settle(const struct bench_case *c, struct pair at, tutti_comm *comm)
{
    static const struct {
        size_t below;
        int calls;
    } most[] = { { TINY, 0 }, { (64 << 10) + 1, 10000 }, { (1 << 20) + 1, 4000 }, { (4 << 20) + 1, 2000 },
        { (64 << 20) + 1, 400 }, { SIZE_MAX, 100 } };
    int i = 0;
    while (c->bytes >= most[i].below) i++;
    case_repeat(c, at, comm, most[i].calls);
}
