/* The collectives of peers.c on tutti. peers.c includes this and has the state that it uses. */
#pragma once
#include "include/tutti.h"
#include <signal.h>
#include <sys/wait.h>
static tutti_comm *comm;
static void must(tutti_status status)
{
    if (status != TUTTI_OK) fail(tutti_get_last_error());
}
/* Waits for all ranks, and ends the program. After a failure of one it kills the others, which would wait for it. */
static void await_ranks(pid_t *process)
{
    bool failed = false;
    pid_t ended;
    for (int status; (ended = wait(&status)) > 0;) {
        for (int r = 0; r < ranks; r++) {
            if (process[r] == ended) process[r] = 0;
            else if (status && process[r] > 0) kill(process[r], SIGKILL);
        }
        failed |= status != 0;
    }
    exit(failed ? 1 : 0);
}
/* A store for ranks of several hosts: a file for each key, which appears with its whole value, by rename. */
static void store_path(const char *key, char *out, size_t room)
{
    int before = snprintf(out, room, "%s/key.", store);
    snprintf(out + before, room - (size_t)before, "%s", key);
    for (char *c = out + before; *c; c++)
        if (*c == '/') *c = '.';
}
static tutti_status store_put(void *context, const char *key, const void *value, size_t bytes)
{
    char path[4096], made[4096];
    (void)context;
    store_path(key, path, sizeof path);
    snprintf(made, sizeof made, "%s/made.%d", store, rank);
    FILE *file = fopen(made, "wb");
    if (!file || fwrite(value, 1, bytes, file) != bytes || fclose(file) || rename(made, path)) return TUTTI_SYSTEM;
    return TUTTI_OK;
}
static tutti_status store_get(void *context, const char *key, void *value, size_t capacity, size_t *bytes,
    int64_t timeout_ms)
{
    char path[4096];
    struct timespec pause = { 0, 1000000 };
    FILE *file;
    (void)context;
    store_path(key, path, sizeof path);
    while (!(file = fopen(path, "rb")) && timeout_ms-- > 0) nanosleep(&pause, NULL);
    if (!file) return TUTTI_TIMEOUT;
    *bytes = fread(value, 1, capacity, file);
    bool more = fgetc(file) != EOF;
    fclose(file);
    return more ? TUTTI_NO_MEMORY : TUTTI_OK;
}
static void hosts_join(void)
{
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = rank;
    config.size = ranks;
    config.store = (tutti_store){ NULL, store_put, store_get };
    config.store_host = "10.77.0.1";
    host_check();
    pin();
    must(tutti_comm_init(&comm, &config));
    flags_map();
}
static void library_start(int *argc, char ***argv)
{
    static pid_t process[MOST_RANKS];
    tutti_unique_id id;
    if (*argc < 2) fail("the number of ranks is missing");
    ranks = atoi((*argv)[1]);
    if (ranks < 1 || ranks > MOST_RANKS) fail("that many ranks cannot be measured here");
    if (hosts > 1) return hosts_join();
    must(tutti_get_unique_id(&id));
    flags = mmap(NULL, MOST_RANKS * sizeof *flags, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (flags == MAP_FAILED) fail("no memory for the flags");
    for (rank = 0; rank < ranks; rank++)
        if ((process[rank] = fork()) == 0) {
            /* The rank is pinned before it joins, because joining looks at how far apart the ranks' cores are. */
            pin();
            must(tutti_comm_init_rank(&comm, ranks, id, rank));
            return;
        }
    await_ranks(process);
}
static void library_finish(void) { must(tutti_comm_destroy(comm)); _exit(0); }
static void *shared_memory(size_t bytes)
{
    void *at;
    must(tutti_mem_alloc(&at, bytes));
    return at;
}
static void barrier(void) { must(tutti_barrier(comm, NULL)); }
static void slowest(double *times, size_t count)
{
    must(tutti_all_reduce(times, times, count, TUTTI_FLOAT64, TUTTI_MAX, comm, NULL));
}
static void allreduce(float *in, float *out, size_t n)
{
    must(tutti_all_reduce(in, out, n, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
}
static void reduce_scatter(float *in, float *out, size_t n)
{
    must(tutti_reduce_scatter(in, out, n / (size_t)ranks, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL));
}
static void allgather(float *in, float *out, size_t n)
{
    must(tutti_all_gather(in, out, n / (size_t)ranks, TUTTI_FLOAT32, comm, NULL));
}
static void broadcast(float *in, float *out, size_t n)
{
    (void)out;
    must(tutti_broadcast(in, in, n, TUTTI_FLOAT32, 0, comm, NULL));
}
static void reduce(float *in, float *out, size_t n)
{
    must(tutti_reduce(in, out, n, TUTTI_FLOAT32, TUTTI_SUM, 0, comm, NULL));
}
static void alltoall(float *in, float *out, size_t n)
{
    must(tutti_all_to_all(in, out, n / (size_t)ranks, TUTTI_FLOAT32, comm, NULL));
}
static void gather(float *in, float *out, size_t n)
{
    must(tutti_gather(in, out, n / (size_t)ranks, TUTTI_FLOAT32, 0, comm, NULL));
}
static void scatter(float *in, float *out, size_t n)
{
    must(tutti_scatter(in, out, n / (size_t)ranks, TUTTI_FLOAT32, 0, comm, NULL));
}
static void pingpong(float *in, float *out, size_t n)
{
    int other = partner();
    if (rank == 0) must(tutti_send(in, n, TUTTI_FLOAT32, other, 0, comm, NULL));
    if (rank == other) must(tutti_recv(out, n, TUTTI_FLOAT32, 0, 0, comm, NULL));
    if (rank == other) must(tutti_send(in, n, TUTTI_FLOAT32, 0, 0, comm, NULL));
    if (rank == 0) must(tutti_recv(out, n, TUTTI_FLOAT32, other, 0, comm, NULL));
}
