/* An all-reduce without Python: the parent makes an id and forks the ranks, which join a group by the id.
 *
 *     cc examples/allreduce.c -I. -Lbuild/release -ltutti -Wl,-rpath,$PWD/build/release -o allreduce
 *     ./allreduce 4 */
#include "include/tutti.h"
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void status_exit_on_error(tutti_status status)
{
    if (status == TUTTI_OK) return;
    fprintf(stderr, "%s\n", tutti_get_last_error());
    exit(1);
}
/* Joins the group and sums. Returns the exit status of the rank. */
static int rank_main(int rank, int size, tutti_unique_id id)
{
    tutti_comm *comm;
    float data[4] = { 1, 10, 100, (float)rank };
    status_exit_on_error(tutti_comm_init_rank(&comm, size, id, rank));
    status_exit_on_error(tutti_all_reduce(data, data, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
    printf("rank %d of %d: %g %g %g %g\n", rank, size, data[0], data[1], data[2], data[3]);
    status_exit_on_error(tutti_comm_destroy(comm));
    return (int)data[0] == size && (int)data[3] == size * (size - 1) / 2 ? 0 : 1;
}
int main(int argc, char **argv)
{
    int size = argc > 1 ? atoi(argv[1]) : 2, bad = 0;
    tutti_unique_id id;
    status_exit_on_error(tutti_get_unique_id(&id));
    for (int rank = 0; rank < size; rank++)
        if (fork() == 0) return rank_main(rank, size, id);
    for (int rank = 0, status; rank < size; rank++)
        if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) bad = 1;
    return bad;
}
