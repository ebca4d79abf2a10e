/* Single copy: private tensors that the kernel reads where they lie (TUTTI_SINGLE_COPY=1). Ranks do read them, the bits
   are those of staging, one rank that cannot or may not read decides for all, and memory that cannot be read is an
   error with a remedy. The tests of shared tensors, messages and failures also run once more this way. */
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "tests/support/forbid.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <sys/mman.h>
#include <sys/prctl.h>

/* The parameters of a machine with near cores, whose kernel reads as fast as slots are copied. If it took three times
   as long, plans would win in which not every rank reads. */
static const char plain[] = "line=20,hand_over=20,near=0.01,far=0.02,one_copy=1,lost_one_copy=1";
enum { COUNT = 600000, SECONDS = 60 };
/* Makes a communicator with this setting on this rank, and with these machine parameters, by which all ranks select
   late, whatever this machine's own parameters are. */
static tutti_comm *group_of_way(const struct rank *me, const char *single_copy, const char *parameters)
{
    tutti_comm *comm;
    setenv("TUTTI_SINGLE_COPY", single_copy, 1);
    setenv("TUTTI_MACHINE", parameters, 1);
    settings_reload();
    REQUIRE(tutti_comm_split(me->comm, 0, me->rank, &comm) == TUTTI_OK);
    return comm;
}
/* Returns whether the last operation of that collective could read private tensors of peers. */
static bool has_read(const tutti_comm *comm, enum collective collective)
{
    const struct program *p = comm->launcher.recent[collective].program;
    return comm->launcher.recent[collective].selects_late && p->plan->can_read_private;
}
/* Returns whether it read all tensors of peers from other processes. */
static bool all_are_sources(const tutti_comm *comm, enum collective collective)
{
    const struct program *p = comm->launcher.recent[collective].program;
    bool all = p->touch_count > 0;
    for (int i = 0; i < p->touch_count; i++)
        all &= comm->executor.peer_operands[p->touches[i].rank][p->touches[i].buffer].source != NULL;
    return all;
}
static float *numbers(size_t count, int rank)
{
    float *at = malloc(count * sizeof *at);
    for (size_t i = 0; i < count; i++) at[i] = (float)((i * 2654435761u + (size_t)rank * 40503u) % 10007) / 997.0f;
    return at;
}

/* ---- the same bits ---- */
static tutti_status call(tutti_comm *comm, enum collective collective, bool in_place, float *in, float *out)
{
    size_t p = (size_t)comm->group.size, part = COUNT / p;
    void *to = in_place ? in : out;
    switch (collective) {
    case ALLREDUCE: return tutti_all_reduce(in, to, COUNT, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL);
    case REDUCE: return tutti_reduce(in, to, COUNT, TUTTI_FLOAT32, TUTTI_AVG, 1, comm, NULL);
    case BROADCAST: return tutti_broadcast(in, to, COUNT, TUTTI_FLOAT32, 1, comm, NULL);
    case REDUCE_SCATTER: return tutti_reduce_scatter(in, out, part, TUTTI_FLOAT32, TUTTI_SUM, comm, NULL);
    case ALLGATHER: return tutti_all_gather(in, out, part, TUTTI_FLOAT32, comm, NULL);
    case ALL_TO_ALL: return tutti_all_to_all(in, out, part, TUTTI_FLOAT32, comm, NULL);
    case GATHER: return tutti_gather(in, out, part, TUTTI_FLOAT32, 1, comm, NULL);
    default: return tutti_scatter(in, out, part, TUTTI_FLOAT32, 1, comm, NULL);
    }
}
static float *result(tutti_comm *comm, enum collective collective, bool in_place, int rank)
{
    float *in = numbers(COUNT, rank), *out = calloc(COUNT, sizeof *out);
    REQUIRE(call(comm, collective, in_place, in, out) == TUTTI_OK);
    if (in_place) memcpy(out, in, COUNT * sizeof *out);
    /* A peer that still reads the input gets wrong numbers. */
    memset(in, 0xff, COUNT * sizeof *in);
    free(in);
    return out;
}
static void same_bits(struct rank *me)
{
    tutti_comm *staged = group_of_way(me, "0", plain), *read = group_of_way(me, "1", plain);
    for (int collective = ALLREDUCE; collective < BARRIER; collective++)
        for (int in_place = 0; in_place <= (collective <= BROADCAST); in_place++) {
            float *wanted = result(staged, (enum collective)collective, in_place, me->rank);
            float *got = result(read, (enum collective)collective, in_place, me->rank);
            REQUIRE(!has_read(staged, (enum collective)collective) && has_read(read, (enum collective)collective));
            bool takes = collective == ALLREDUCE || collective == ALLGATHER || collective == ALL_TO_ALL;
            REQUIRE(!takes || all_are_sources(read, (enum collective)collective));
            bool has = collective_has_buffer((enum collective)collective, 1, me->rank, OUTPUT);
            REQUIRE(!has || memcmp(wanted, got, COUNT / (size_t)me->size * sizeof *got) == 0);
            REQUIRE(!has || collective > BROADCAST || memcmp(wanted, got, COUNT * sizeof *got) == 0);
            free(wanted);
            free(got);
        }
    REQUIRE(tutti_comm_destroy(staged) == TUTTI_OK && tutti_comm_destroy(read) == TUTTI_OK);
}
static void test_single_copy_gives_the_bits_of_staging(void **state)
{
    (void)state;
    for (int size = 2; size <= 4; size++) assert_int_equal(world_processes(size, SECONDS, same_bits, NULL), 0);
}

/* ---- one rank does not read ---- */
static void expect_no_read(tutti_comm *comm, int rank)
{
    for (int collective = ALLREDUCE; collective < BARRIER; collective++) {
        free(result(comm, (enum collective)collective, false, rank));
        REQUIRE(!has_read(comm, (enum collective)collective));
    }
}
static void one_will_not(struct rank *me)
{
    tutti_comm *comm = group_of_way(me, me->rank == 1 ? "0" : "1", plain);
    expect_no_read(comm, me->rank);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void one_cannot(struct rank *me)
{
    char info[16384];
    tutti_comm *comm = group_of_way(me, "1", plain);
    if (me->rank == 1 && !forbid_reading()) _exit(77);
    expect_no_read(comm, me->rank);
    REQUIRE(tutti_comm_info(comm, info, sizeof info, NULL) == TUTTI_OK);
    const char *text = me->rank == 1 ? "the memory of rank 0 cannot be read" : "\"single_copy\": \"possible";
    if (!strstr(info, text)) fprintf(stderr, "%.300s\n", info);
    REQUIRE(strstr(info, text));
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_one_that_does_not_read_decides_for_all(void **state)
{
    (void)state;
    assert_int_equal(world_processes(3, SECONDS, one_will_not, NULL), 0);
    if (can_forbid_reading()) assert_int_equal(world_processes(3, SECONDS, one_cannot, NULL), 0);
}

/* ---- memory is short once ---- */
static void tries_again_after_a_failure(struct rank *me)
{
    tutti_comm *comm = group_of_way(me, "1", plain);
    memory_fail_after(1);
    tensors_can_read_peers(comm);
    memory_fail_after(0);
    free(result(comm, ALLREDUCE, false, me->rank));
    REQUIRE(has_read(comm, ALLREDUCE));
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void test_a_failed_allocation_does_not_end_reading(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, tries_again_after_a_failure, NULL), 0);
}

/* ---- memory that cannot be read ---- */
/* Returns memory with an unmapped page in the middle. */
static unsigned char *with_a_hole(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(at != MAP_FAILED && munmap(at + bytes / 2 / page * page, page) == 0);
    return at;
}
static void expect_unread(const struct rank *me, tutti_status status)
{
    const char *text = tutti_get_last_error();
    if (status == TUTTI_OK || !strstr(text, "cannot read the tensor of rank 0")) fprintf(stderr, "%s\n", text);
    REQUIRE(status == TUTTI_SYSTEM && strstr(text, "cannot read the tensor of rank 0"));
    REQUIRE(strstr(text, "TUTTI_SINGLE_COPY=0") && me->rank >= 0);
}
static void broadcasts_a_hole(struct rank *me)
{
    enum { BYTES = 1 << 20 };
    tutti_comm *comm = group_of_way(me, "1", plain);
    unsigned char *at = me->rank ? malloc(BYTES) : with_a_hole(BYTES);
    expect_unread(me, tutti_broadcast(at, at, BYTES, TUTTI_UINT8, 0, comm, NULL));
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
static void sends_a_hole(struct rank *me)
{
    enum { BYTES = 1 << 20 };
    tutti_comm *comm = group_of_way(me, "1", plain);
    unsigned char *at = me->rank ? malloc(BYTES) : with_a_hole(BYTES);
    if (me->rank) expect_unread(me, tutti_recv(at, BYTES, TUTTI_UINT8, 0, 1, comm, NULL));
    else expect_unread(me, tutti_send(at, BYTES, TUTTI_UINT8, 1, 1, comm, NULL));
    REQUIRE(me->rank || comm->messages.has_offered);
    REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
}
/* Rank 0 forbids others to read its memory, as programs with secrets do. root could read it even so, so all ranks
   become another user. */
static void hides(struct rank *me)
{
    enum { BYTES = 1 << 20, NOBODY = 65534 };
    REQUIRE(setuid(NOBODY) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    if (*reading_describe() == 'n') return;
    tutti_comm *comm = group_of_way(me, "1", plain);
    unsigned char *at = calloc(1, BYTES);
    REQUIRE(tutti_broadcast(at, at, BYTES, TUTTI_UINT8, 0, comm, NULL) == TUTTI_OK && has_read(comm, BROADCAST));
    REQUIRE(prctl(PR_SET_DUMPABLE, me->rank != 0) == 0);
    expect_unread(me, tutti_broadcast(at, at, BYTES, TUTTI_UINT8, 0, comm, NULL));
    REQUIRE(strstr(tutti_get_last_error(), "dumpable") && tutti_comm_destroy(comm) == TUTTI_OK);
    /* The leak sanitizer needs this. */
    REQUIRE(prctl(PR_SET_DUMPABLE, 1) == 0);
    free(at);
}
static void test_memory_that_cannot_be_read_is_an_error(void **state)
{
    (void)state;
    if (geteuid() == 0) assert_int_equal(world_processes(2, SECONDS, hides, NULL), 0);
    assert_int_equal(world_processes(3, SECONDS, broadcasts_a_hole, NULL), 0);
    assert_int_equal(world_processes(2, SECONDS, sends_a_hole, NULL), 0);
}

/* ---- when it pays ---- */
/* Single copy is chosen with the parameters of a machine on which two copies cost twice as much as one, and not with
   those of a machine whose kernel copies slowly. */
static void by_machine_parameters(struct rank *me)
{
    const char *const parameters[] = {
        "line=20,near=0.01,far=0.02,lost_write=0.1,lost_read=0.1,fetch=0.001,lost_fetch=0.001,reading=100,"
        "one_copy=0.5,lost_one_copy=0.5",
        "line=20,near=0.01,far=0.02,lost_write=0.1,lost_read=0.1,fetch=2,lost_fetch=2,one_copy=3,lost_one_copy=3",
    };
    for (int k = 0; k < 2; k++) {
        tutti_comm *comm = group_of_way(me, "-1", parameters[k]);
        free(result(comm, ALLGATHER, false, me->rank));
        REQUIRE(has_read(comm, ALLGATHER) == (k == 0));
        tutti_request send = TUTTI_REQUEST_INIT;
        float *out = numbers(COUNT, me->rank), *in = numbers(COUNT, 7), *wanted = numbers(COUNT, 1 - me->rank);
        REQUIRE(tutti_send(out, COUNT, TUTTI_FLOAT32, 1 - me->rank, 1, comm, &send) == TUTTI_OK);
        REQUIRE(tutti_recv(in, COUNT, TUTTI_FLOAT32, 1 - me->rank, 1, comm, NULL) == TUTTI_OK);
        REQUIRE(tutti_wait(&send, 0) == TUTTI_OK && memcmp(in, wanted, COUNT * sizeof *in) == 0);
        REQUIRE(comm->messages.has_offered == (k == 0));
        free(out);
        free(in);
        free(wanted);
        REQUIRE(tutti_comm_destroy(comm) == TUTTI_OK);
    }
}
static void test_machine_parameters_choose_single_copy(void **state)
{
    (void)state;
    assert_int_equal(world_processes(2, SECONDS, by_machine_parameters, NULL), 0);
}

unit_function test_single_copy;
int test_single_copy(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_copy_gives_the_bits_of_staging),
        cmocka_unit_test(test_one_that_does_not_read_decides_for_all),
        cmocka_unit_test(test_a_failed_allocation_does_not_end_reading),
        cmocka_unit_test(test_memory_that_cannot_be_read_is_an_error),
        cmocka_unit_test(test_machine_parameters_choose_single_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
