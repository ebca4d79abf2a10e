/* Refusals by the operating system: each is an error that names the call and leaves no descriptor open. A seccomp
   filter in a forked child refuses one system call. */
#include "tests/support/forbid.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include <dirent.h>
#include <errno.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { SKIPPED = 77 };
static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}
/* Makes a communicator of one rank in a process where the calls are refused, and checks its error. Returns the exit
   code. */
static int child(long first, long second, unsigned error, tutti_status wanted, const char *says)
{
    tutti_comm *comm;
    tutti_config config = { .struct_size = sizeof config, .size = 1 };
    int before = open_files();
    if (!forbid_calls(first, second, error)) return SKIPPED;
    tutti_status status = tutti_comm_init(&comm, &config);
    bool right = status == wanted && strstr(tutti_get_last_error(), says) && !comm && open_files() == before;
    if (!right)
        fprintf(stderr, "status %d, \"%s\", %d files before and %d after\n", status, tutti_get_last_error(), before,
            open_files());
    return right ? 0 : 1;
}
static void check(long first, long second, unsigned error, tutti_status wanted, const char *says)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(child(first, second, error, wanted, says));
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) {
        print_message("SKIPPED: this process cannot forbid itself system calls\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
}
static void test_a_refused_memfd_is_an_error(void **state)
{
    (void)state;
    check(SYS_memfd_create, SYS_memfd_create, EPERM, TUTTI_SYSTEM, "memfd_create");
}
static void test_a_refused_thread_is_an_error(void **state)
{
    (void)state;
    check(SYS_clone3, SYS_clone, EAGAIN, TUTTI_SYSTEM, "thread");
}
static void test_a_refused_socket_is_an_error(void **state)
{
    (void)state;
    check(SYS_socket, SYS_socket, EACCES, TUTTI_SYSTEM, "cannot listen");
}
static void test_refused_memory_for_the_segment_is_an_error(void **state)
{
    (void)state;
    check(SYS_fallocate, SYS_fallocate, ENOSPC, TUTTI_NO_MEMORY, "bytes");
}
/* Rank 0 gets no more memory: for its slots, or, if it has slots already, for the messages of a ring. */
static void no_more_memory(struct rank *me)
{
    enum { COUNT = 1 << 20 };
    bool slots_first = *(const bool *)me->context;
    float *data = calloc(COUNT, sizeof *data);
    tutti_request ring = { .struct_size = sizeof ring, .algorithm = "ring", .blocking = true, .timeout_ms = 10000 };
    tutti_request one_shot = { .struct_size = sizeof one_shot, .algorithm = "one_shot", .blocking = true };
    if (!slots_first)
        for (int k = 0; k < 2; k++)
            REQUIRE(tutti_all_reduce(data, data, COUNT, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &one_shot) == TUTTI_OK);
    if (me->rank == 0 && !forbid_calls(SYS_madvise, SYS_madvise, ENOMEM)) _exit(0);
    tutti_status status = tutti_all_reduce(data, data, COUNT, TUTTI_FLOAT32, TUTTI_SUM, me->comm, &ring);
    /* The call was not refused: the whole group has failed. */
    REQUIRE(status == TUTTI_NO_MEMORY && !ring.refused);
    REQUIRE(me->rank == 0 || strstr(tutti_get_last_error(), "rank 0 failed the group") != NULL);
    free(data);
}
static void test_memory_that_is_refused_later_is_an_error_on_every_rank(void **state)
{
    (void)state;
    for (int slots_first = 0; slots_first < 2; slots_first++) {
        bool context = slots_first;
        assert_int_equal(world_processes(2, 30, no_more_memory, &context), 0);
    }
}
unit_function test_refused;
int test_refused(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_refused_memfd_is_an_error),
        cmocka_unit_test(test_a_refused_thread_is_an_error),
        cmocka_unit_test(test_a_refused_socket_is_an_error),
        cmocka_unit_test(test_refused_memory_for_the_segment_is_an_error),
        cmocka_unit_test(test_memory_that_is_refused_later_is_an_error_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
