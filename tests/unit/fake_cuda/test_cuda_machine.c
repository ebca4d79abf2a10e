/* Tests that programs which are not forks of one share a machine if FAKE_CUDA_MACHINE names the same file. Each side is
   this program, started again with a variable that names its part. */
#include "tests/unit/fake_cuda/children.h"
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { BYTES = 2 << 20, VALUE = 7 };
static const char *const part_name = "FAKE_CUDA_TEST_PART";
/* The owner of memory sends the memory, and an event behind its last write. */
struct offer {
    CUipcMemHandle memory;
    CUipcEventHandle written;
};

/* ---- the parts, each in a program of its own ---- */
static void owner_play(int peer)
{
    struct offer offer;
    CUevent event;
    char answer;
    device_use(0);
    CUdeviceptr memory = memory_new(BYTES);
    CUstream stream = stream_new();
    expect_success(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    expect_success(cuMemsetD32Async(memory, VALUE, BYTES / 4, stream));
    expect_success(cuEventRecord(event, stream));
    expect_success(cuIpcGetMemHandle(&offer.memory, memory));
    expect_success(cuIpcGetEventHandle(&offer.written, event));
    peer_send(peer, &offer, sizeof offer);
    peer_receive(peer, &answer, 1);
}
static CUdeviceptr offer_open(int peer, struct offer *offer)
{
    CUdeviceptr memory;
    device_use(0);
    peer_receive(peer, offer, sizeof *offer);
    expect_success(cuIpcOpenMemHandle_v2(&memory, offer->memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return memory;
}
static void reader_play(int peer, bool waits)
{
    struct offer offer;
    CUevent event;
    CUstream stream = NULL;
    CUdeviceptr memory = offer_open(peer, &offer);
    uint32_t *got = host_new(BYTES);
    stream = stream_new();
    expect_success(cuIpcOpenEventHandle(&event, offer.written));
    if (waits) expect_success(cuStreamWaitEvent(stream, event, 0));
    expect_success(cuMemcpyDtoHAsync_v2(got, memory, BYTES, stream));
    expect_success(cuStreamSynchronize(stream));
    if (waits) expect_true(got[0] == VALUE && got[BYTES / 4 - 1] == VALUE);
    expect_success(cuIpcCloseMemHandle(memory));
    peer_send(peer, "", 1);
}
static void stranger_play(int peer)
{
    struct offer offer;
    CUevent event;
    CUdeviceptr memory = offer_open(peer, &offer);
    expect_result(cuIpcOpenEventHandle(&event, offer.written), CUDA_ERROR_INVALID_VALUE);
    expect_success(cuIpcCloseMemHandle(memory));
    peer_send(peer, "", 1);
}
static void part_play(const char *part, int peer)
{
    if (strcmp(part, "owner") == 0) owner_play(peer);
    else if (strcmp(part, "stranger") == 0) stranger_play(peer);
    else reader_play(peer, strcmp(part, "reader") == 0);
    exit(0);
}

/* ---- starting programs ---- */
static pid_t program_start(const char *part, int peer, const char *machine)
{
    char number[16];
    pid_t child = fork();
    if (child) return child;
    snprintf(number, sizeof number, "%d", peer);
    fcntl(peer, F_SETFD, 0);
    setenv(part_name, part, 1);
    setenv("FAKE_CUDA_TEST_PEER", number, 1);
    setenv("FAKE_CUDA_MACHINE", machine, 1);
    alarm(600);
    execl("/proc/self/exe", "unit_fake_cuda", "test_cuda_machine", NULL);
    _exit(127);
}
/* Runs an owner of memory and another program. Returns the exit status of the other one, or that of the owner if it
   failed: the checker runs in the program whose access comes second. */
static int programs_run(const char *part, const char *machine, const char *other_machine)
{
    int peers[2], status[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, peers), 0);
    pid_t programs[] = { program_start("owner", peers[0], machine), program_start(part, peers[1], other_machine) };
    close(peers[0]);
    close(peers[1]);
    for (int i = 0; i < 2; i++) assert_int_equal(waitpid(programs[i], &status[i], 0), programs[i]);
    assert_true(WIFEXITED(status[0]) && WIFEXITED(status[1]));
    return WEXITSTATUS(status[WEXITSTATUS(status[0]) ? 0 : 1]);
}
struct machines { char first[64], second[64]; };
static int machines_make(void **state)
{
    static struct machines machines;
    char *names[] = { machines.first, machines.second };
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], sizeof machines.first, "/dev/shm/fake-cuda-XXXXXX");
        int fd = mkstemp(names[i]);
        if (fd < 0) return -1;
        close(fd);
    }
    *state = &machines;
    return 0;
}
static int machines_remove(void **state)
{
    const struct machines *machines = *state;
    return unlink(machines->first) | unlink(machines->second);
}

static void test_programs_of_a_machine_share_events(void **state)
{
    const struct machines *machines = *state;
    assert_int_equal(programs_run("reader", machines->first, machines->first), 0);
}
/* It is a fault whichever of the two comes first. */
static void test_programs_of_a_machine_are_ordered_by_the_checker(void **state)
{
    const struct machines *machines = *state;
    assert_int_equal(programs_run("hasty reader", machines->first, machines->first), CHILD_REPORTED);
}
static void test_events_of_another_machine_are_unknown(void **state)
{
    const struct machines *machines = *state;
    assert_int_equal(programs_run("stranger", machines->first, machines->second), 0);
}

unit_function test_cuda_machine;
int test_cuda_machine(void)
{
    const char *part = getenv(part_name);
    if (part) part_play(part, atoi(getenv("FAKE_CUDA_TEST_PEER")));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_programs_of_a_machine_share_events, machines_make, machines_remove),
        cmocka_unit_test_setup_teardown(test_programs_of_a_machine_are_ordered_by_the_checker, machines_make,
            machines_remove),
        cmocka_unit_test_setup_teardown(test_events_of_another_machine_are_unknown, machines_make, machines_remove),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
