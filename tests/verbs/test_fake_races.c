/* Tests that the fake orders memory as hardware does and not more: the thread sanitizer must report each wrong use of
   memory, and must not report the right one. Each use runs in a process of its own: this program with the number of the
   use as its argument. */
#include "tests/support/unit.h"
#include "tests/verbs/ends.h"
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

/* RIGHT: the program waits for the completion. SOURCE_TOO_EARLY: it writes the source of a write before the completion.
   SOURCE_OF_UNSIGNALED: likewise of an unsignalled write. RESULT_TOO_EARLY: it looks at the bytes of a read before the
   completion. PEER_WITHOUT_COMPLETION: the peer writes the target of a write without a completion of its own. */
enum use { RIGHT, SOURCE_TOO_EARLY, SOURCE_OF_UNSIGNALED, RESULT_TOO_EARLY, PEER_WITHOUT_COMPLETION, USES };
/* The exit status of the thread sanitizer after a report. */
enum { FOUND = 66 };
extern char **environ;

/* Uses memory in this way, and exits. Neither the time that passes meanwhile nor another posted request orders it. */
static void use_run(enum use use)
{
    struct end e[2];
    ends_init(e, IBV_QPT_RC);
    memset(e[0].memory, 1, 4096);
    struct ibv_sge sge = sge_of(&e[0], 0, 4096);
    enum ibv_wr_opcode opcode = use == RESULT_TOO_EARLY ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
    struct ibv_send_wr wr = request(1, opcode, &sge, &e[1], 0), other = request(2, IBV_WR_RDMA_WRITE, NULL, &e[1], 0);
    if (use == SOURCE_OF_UNSIGNALED) wr.send_flags = 0;
    post(e[0].qp, &wr);
    while (fake_count(FAKE_BYTES_WRITTEN) + fake_count(FAKE_BYTES_READ) < 4096) usleep(1000);
    post(e[0].qp, &other);
    usleep(10000);
    volatile unsigned char *memory = use == PEER_WITHOUT_COMPLETION ? e[1].memory : e[0].memory;
    if (use == RIGHT)
        for (int i = 0; i < 2; i++) completion(e[0].cq);
    if (use == RESULT_TOO_EARLY) (void)memory[5];
    else memory[5] = 2;
    _exit(0);
}
/* Runs this program for one use, and returns its exit status. */
static int use_spawn(const char *program, enum use use)
{
    char number[2] = { (char)('0' + use), 0 }, *arguments[] = { (char *)program, number, NULL };
    posix_spawn_file_actions_t quiet;
    pid_t child;
    int status;
    posix_spawn_file_actions_init(&quiet);
    posix_spawn_file_actions_addopen(&quiet, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    assert_int_equal(posix_spawn(&child, "/proc/self/exe", &quiet, NULL, arguments, environ), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    posix_spawn_file_actions_destroy(&quiet);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
static void test_wrong_uses_of_memory_are_found(void **state)
{
    for (int use = RIGHT; use < USES; use++) {
        int expected = use == RIGHT ? 0 : FOUND;
        if (use_spawn(*state, (enum use)use) != expected)
            fail_msg("use %d of memory (enum use) did not end with status %d", use, expected);
    }
}

unit_function test_fake_races;
int test_fake_races(void)
{
    int count = unit_arguments.count;
    char **arguments = unit_arguments.words;
    if (count > 1) use_run((enum use)atoi(arguments[1]));
    setenv("TSAN_OPTIONS", "halt_on_error=1", 1);
    const struct CMUnitTest tests[] = { cmocka_unit_test_prestate(test_wrong_uses_of_memory_are_found, arguments[0]) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
