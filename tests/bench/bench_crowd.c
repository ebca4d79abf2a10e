/* More ranks than cores: 10,000 8-byte allreduces one by one, and how long the slowest of them took. Nothing is pinned.
 *
 *     bench_crowd [ranks] [calls]        (8 10000) */
#include "c_api/tutti.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}
static void must(tutti_status status)
{
    if (status == TUTTI_OK) return;
    fprintf(stderr, "%s\n", tutti_get_last_error());
    _exit(1);
}
static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static void rank_main(int rank, int ranks, int calls, tutti_unique_id id)
{
    tutti_comm *comm;
    double *took = calloc((size_t)calls, sizeof *took), sum;
    must(tutti_comm_init_rank(&comm, ranks, id, rank));
    for (int k = 0; k < calls; k++) {
        double mine = k, start = now_us();
        must(tutti_all_reduce(&mine, &sum, 1, TUTTI_FLOAT64, TUTTI_SUM, comm, NULL));
        took[k] = now_us() - start;
        if (sum != (double)k * ranks) { fprintf(stderr, "wrong result\n"); _exit(1); }
    }
    qsort(took, (size_t)calls, sizeof *took, by_value);
    if (rank == 0)
        printf("%d ranks, %d calls of 8 bytes, rank 0: median %.1f us, p99 %.1f us, p99.9 %.1f us, slowest %.1f us\n",
            ranks, calls, took[calls / 2],
               took[(size_t)calls * 99 / 100], took[(size_t)calls * 999 / 1000], took[calls - 1]);
    fflush(stdout);
    must(tutti_comm_destroy(comm));
    _exit(0);
}
int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 8, calls = argc > 2 ? atoi(argv[2]) : 10000, bad = 0;
    tutti_unique_id id;
    must(tutti_get_unique_id(&id));
    for (int r = 0; r < ranks; r++)
        if (fork() == 0) rank_main(r, ranks, calls, id);
    for (int r = 0, status; r < ranks; r++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status)) bad = 1;
    return bad;
}
