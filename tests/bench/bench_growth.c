/* Measures what a group costs before it has done anything, and what its plans cost. Joins: the time and memory in which
 * more and more ranks of one host, as threads, join a group; up to 128 of them then call collectives. Plans: the time
 * and memory of building the plan of one rank, on a large host and among thousands of hosts. No such hosts are needed:
 * the plans are the objects that would run there.
 *
 *   bench_growth                         both (a minute)
 *   bench_growth --joins | --plans       one of them
 *   bench_growth --json FILE             also writes what was measured
 *
 * Every row runs in a process of its own, so only its own memory counts. Columns of joins: cpu, the processor time of
 * all ranks until all have joined; heap, the bytes that malloc has handed out, divided by the number of ranks; segm.,
 * the allocated pages of the host's shared memory, for all ranks together; most, the bytes reserved for it; peak, the
 * largest resident set. Columns of plans: the processor time; the bytes that the plan keeps; and at most, the growth of
 * the resident set while the plan was built. */
#include "backend/collectives/collectives.h"
#include "tests/bench/measure.h"
#include "tests/support/world.h"
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    KI = 1 << 10,
    SMALL = 8,
    LARGE = 4 << 20,
    LIMIT_S = 300,
    PLAN_LIMIT_S = 60,
    MOST_CALLING = 128,
    MOST_PLANS = 256,
    MOST_FILES = 64
};
enum which { ALLREDUCE_CALL, ALL_TO_ALL_CALL, BROADCAST_CALL, CALLS };
static const char *const call_names[CALLS] = { "allreduce", "all_to_all", "broadcast" };
static const int group_sizes[] = { 2, 8, 32, 128, 256, 512, 1024 },
                 shapes[][2] = { { 1, 8 }, { 1, 32 }, { 1, 128 }, { 4096, 1 }, { 4096, 8 } };
enum { SIZES = sizeof group_sizes / sizeof *group_sizes, SHAPES = sizeof shapes / sizeof *shapes };

struct memory { double heap, segment; };                /* bytes: heap of one rank, segment of all */
struct call_row { double first_ms; struct memory after; };
struct join_row {
    bool measured;
    double join_ms, processor_ms, reserved, peak;
    struct memory joined;
    struct call_row calls[2][CALLS];
};
struct shape { const struct algorithm *algorithm; int hosts, per_host; };
struct plan_row { bool measured; struct shape shape; double ms, bytes, peak; int steps; };
static struct results {
    struct join_row joins[SIZES];
    struct plan_row plans[MOST_PLANS];
    int plan_count;
} *results;

/* ---- memory ---- */
/* Replaces the C library's function, and keeps a descriptor of each file, so that segment_bytes can count its pages. */
static int files[MOST_FILES];
static _Atomic int file_count;
int memfd_create(const char *name, unsigned flags)
{
    int descriptor = (int)syscall(SYS_memfd_create, name, flags);
    if (descriptor >= 0 && file_count < MOST_FILES) files[file_count++] = dup(descriptor);
    return descriptor;
}
static double segment_bytes(double *reserved)
{
    double real = 0, all = 0;
    struct stat file;
    for (int i = 0; i < file_count; i++) {
        if (fstat(files[i], &file) != 0) continue;
        real += (double)file.st_blocks * 512;
        all += (double)file.st_size;
    }
    *reserved = all;
    return real;
}
static double heap_bytes(void)
{
    struct mallinfo2 m = mallinfo2();
    return (double)(m.uordblks + m.hblkhd);
}
static double most_resident(void)
{
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) == 0 ? (double)usage.ru_maxrss * KI : 0;
}
static double processor_ms(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (double)used.tv_sec * 1e3 + (double)used.tv_nsec / 1e6;
}

/* ---- joining ---- */
struct joining { struct join_row *row; double began, heap; char *in; };
static struct memory memory_now(const struct joining *j, int ranks)
{
    return (struct memory){ (heap_bytes() - j->heap) / ranks, segment_bytes(&j->row->reserved) };
}
static void call(const struct rank *me, enum which which, const char *in, char *out, size_t bytes)
{
    size_t part = bytes / (size_t)me->size;
    if (which == ALLREDUCE_CALL)
        must(tutti_all_reduce(in, out, bytes / sizeof(float), TUTTI_FLOAT32, TUTTI_SUM, me->comm, NULL));
    else if (which == ALL_TO_ALL_CALL) must(tutti_all_to_all(in, out, part ? part : 1, TUTTI_UINT8, me->comm, NULL));
    else must(tutti_broadcast(out, out, bytes, TUTTI_UINT8, 0, me->comm, NULL));
}
static void first_call(struct rank *me, enum which which, int large, char *out)
{
    struct joining *j = me->context;
    double began = now_ns();
    call(me, which, j->in, out, large ? LARGE : SMALL);
    world_meet(me);
    if (me->rank == 0)
        j->row->calls[large][which] = (struct call_row){ since_ns(began) / 1e6, memory_now(j, me->size) };
    world_meet(me);
}
static void join_and_call(struct rank *me)
{
    struct joining *j = me->context;
    char *out = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(out != MAP_FAILED);
    world_meet(me);
    if (me->rank == 0) {
        j->row->join_ms = since_ns(j->began) / 1e6;
        j->row->processor_ms = processor_ms();
        j->row->joined = memory_now(j, me->size);
    }
    world_meet(me);
    for (int large = 0; large < 2 && me->size <= MOST_CALLING; large++)
        for (int which = 0; which < CALLS; which++) first_call(me, (enum which)which, large, out);
    munmap(out, LARGE);
}
static void measure_join(const void *ranks, void *out)
{
    struct joining j = { .row = out, .in = measure_map(LARGE, false) };
    j.heap = heap_bytes();
    j.began = now_ns();
    world_threads(*(const int *)ranks, NULL, join_and_call, &j);
    j.row->peak = most_resident();
    j.row->measured = true;
}

/* ---- plans ---- */
static struct layout *layout_of(const struct shape *s)
{
    int ranks = s->hosts * s->per_host, *host = calloc((size_t)ranks, sizeof *host);
    struct layout *layout;
    REQUIRE(host != NULL);
    for (int r = 0; r < ranks; r++) host[r] = r / s->per_host;
    must(layout_create(host, ranks, &layout));
    free(host);
    return layout;
}
static void measure_plan(const void *shape, void *out)
{
    const struct shape *s = shape;
    struct plan_row *row = out;
    struct plan plan = { .algorithm = s->algorithm,
        .layout = layout_of(s),
        .one_host = true,
        .host = s->hosts / 3,
        .slots = 4,
        .in_place = s->algorithm->collective == ALL_TO_ALL ? NULL : mask_all,
        .hoists_receives = !s->algorithm->host_memory,
        .one_rank = true,
        .rank = s->hosts / 3 * s->per_host };
    double before = most_resident(), began = processor_ms();
    must(plan_build_staging(&plan));
    row->ms = processor_ms() - began;
    row->peak = most_resident() - before;
    row->bytes = (double)plan_held_bytes(&plan);
    row->steps = plan.ranks->step_count;
    row->measured = true;
}

/* ---- a process for each row ---- */
static void in_child(unsigned limit_s, void (*measure)(const void *what, void *row), const void *what, void *row)
{
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        alarm(limit_s);
        measure(what, row);
        _exit(0);
    }
    if (child > 0) waitpid(child, &status, 0);
}
static void print_join(int ranks, const struct join_row *r)
{
    if (!r->measured) {
        printf("%5d did not come to an end within %d s\n", ranks, LIMIT_S);
        return;
    }
    printf("%5d %9.1f %9.1f %10.1f %10.0f %10.0f %10.0f\n", ranks, r->join_ms, r->processor_ms, r->joined.heap / KI,
        r->joined.segment / KI, r->reserved / KI / KI, r->peak / KI / KI);
    for (int large = 0; large < 2 && ranks <= MOST_CALLING; large++)
        for (int which = 0; which < CALLS; which++) {
            const struct call_row *c = &r->calls[large][which];
            printf("      %9.1f %10.1f %10.0f   after the first %s of %s\n", c->first_ms, c->after.heap / KI,
                c->after.segment / KI, call_names[which], large ? "4 MiB" : "8 bytes");
        }
}
static void run_joins(void)
{
    printf("%5s %9s %9s %10s %10s %10s %10s\n", "ranks", "ms", "cpu, ms", "heap, KiB", "segm., KiB", "most, MiB",
        "peak, MiB");
    for (int i = 0; i < SIZES; i++) {
        in_child(LIMIT_S, measure_join, &group_sizes[i], &results->joins[i]);
        print_join(group_sizes[i], &results->joins[i]);
    }
}
static void run_plan(struct shape s)
{
    struct plan_row *row = &results->plans[results->plan_count++];
    row->shape = s;
    in_child(PLAN_LIMIT_S, measure_plan, &s, row);
    printf("%5d x %-4d %-14s %-24s", s.hosts, s.per_host, collective_name(s.algorithm->collective), s.algorithm->name);
    if (row->measured) printf("%9.2f %10.1f %10.0f %8d\n", row->ms, row->bytes / KI, row->peak / KI, row->steps);
    else printf(" was not built within %d s\n", PLAN_LIMIT_S);
}
static void run_plans(void)
{
    printf("%12s %-39s%9s %10s %10s %8s\n", "hosts, ranks", "plan", "ms", "KiB", "at most", "steps");
    for (int i = 0; i < SHAPES; i++)
        for (const struct algorithm *a = collectives_table; a->name; a++)
            if (shapes[i][0] == 1 ? a->host_memory : a->hierarchical)
                run_plan((struct shape){ a, shapes[i][0], shapes[i][1] });
}

/* ---- JSON ---- */
static void write_joins(FILE *out)
{
    const char *comma = "";
    for (int i = 0; i < SIZES; i++) {
        const struct join_row *r = &results->joins[i];
        const struct call_row *last = &r->calls[1][CALLS - 1];
        if (!r->measured) continue;
        fprintf(out,
            "%s\n  {\"ranks\": %d, \"join_ms\": %.3f, \"processor_ms\": %.3f, \"heap\": %.0f, "
            "\"segment\": %.0f, \"heap_after\": %.0f, \"segment_after\": %.0f, \"reserved\": %.0f}",
            comma, group_sizes[i], r->join_ms, r->processor_ms, r->joined.heap, r->joined.segment, last->after.heap,
            last->after.segment, r->reserved);
        comma = ",";
    }
}
static void write_plans(FILE *out)
{
    const char *comma = "";
    for (int i = 0; i < results->plan_count; i++) {
        const struct plan_row *r = &results->plans[i];
        if (!r->measured) continue;
        fprintf(out,
            "%s\n  {\"hosts\": %d, \"per_host\": %d, \"family\": \"%s\", \"algorithm\": \"%s\", \"ms\": %.3f, "
            "\"bytes\": %.0f, \"peak\": %.0f}",
            comma, r->shape.hosts, r->shape.per_host, collective_name(r->shape.algorithm->collective),
            r->shape.algorithm->name, r->ms, r->bytes, r->peak);
        comma = ",";
    }
}
static int write_json(const char *path)
{
    FILE *out = fopen(path, "w");
    if (!out) {
        perror(path);
        return 1;
    }
    fprintf(out, "{\"joins\": [");
    write_joins(out);
    fprintf(out, "],\n \"plans\": [");
    write_plans(out);
    fprintf(out, "]}\n");
    return fclose(out) != 0;
}
int main(int argc, char **argv)
{
    const char *json = NULL;
    bool joins = true, plans = true;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--joins")) plans = false;
        else if (!strcmp(argv[i], "--plans")) joins = false;
        else if (!strcmp(argv[i], "--json") && i + 1 < argc) json = argv[++i];
        else {
            fprintf(stderr, "bench_growth [--joins | --plans] [--json FILE]\n");
            return 2;
        }
    }
    results = measure_map(sizeof *results, true);
    if (joins) run_joins();
    if (plans) run_plans();
    return json ? write_json(json) : 0;
}
