/* The collectives of peers.c on MPI. peers.c includes this and has the state that it uses. */
#pragma once
#include <mpi.h>
static void library_start(int *argc, char ***argv)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (hosts > 1) {
        host_check();
        pin();
        flags_map();
        return;
    }
    /* The window exists as long as the process. */
    MPI_Win window;
    MPI_Aint bytes = rank ? 0 : MOST_RANKS * (MPI_Aint)sizeof *flags;
    int unit;
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &flags, &window);
    MPI_Win_shared_query(window, 0, &bytes, &unit, &flags);
    pin();
}
static void library_finish(void) { MPI_Finalize(); }
static void *shared_memory(size_t bytes) { (void)bytes; return NULL; }
static void barrier(void) { MPI_Barrier(MPI_COMM_WORLD); }
static void slowest(double *times, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, times, (int)count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
}
static void allreduce(float *in, float *out, size_t n)
{
    MPI_Allreduce(in == out ? MPI_IN_PLACE : in, out, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void reduce_scatter(float *in, float *out, size_t n)
{
    MPI_Reduce_scatter_block(in, out, (int)n / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void allgather(float *in, float *out, size_t n)
{
    int part = (int)n / ranks;
    MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
}
static void broadcast(float *in, float *out, size_t n)
{
    (void)out;
    MPI_Bcast(in, (int)n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void reduce(float *in, float *out, size_t n)
{
    MPI_Reduce(in, out, (int)n, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
}
static void alltoall(float *in, float *out, size_t n)
{
    int part = (int)n / ranks;
    MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
}
static void gather(float *in, float *out, size_t n)
{
    int part = (int)n / ranks;
    MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void scatter(float *in, float *out, size_t n)
{
    int part = (int)n / ranks;
    MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, 0, MPI_COMM_WORLD);
}
static void pingpong(float *in, float *out, size_t n)
{
    int other = partner();
    if (rank == 0) MPI_Send(in, (int)n, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
    if (rank == other) MPI_Recv(out, (int)n, MPI_FLOAT, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (rank == other) MPI_Send(in, (int)n, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
    if (rank == 0) MPI_Recv(out, (int)n, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
