/* The operating system says no: each refusal is a clean error that names the call, and leaves nothing open. A seccomp
   filter in a forked child refuses one system call. */
#include "c_api/tutti.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

enum { SKIPPED = 77 };
static bool refuse(long first, long second, unsigned error)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)first, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)second, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
static int open_files(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder)) count++;
    if (folder) closedir(folder);
    return count;
}
/* Makes a communicator of one rank in a child where the calls are refused, and compares what it says. */
static int child(long first, long second, unsigned error, tutti_status wanted, const char *says)
{
    tutti_comm *comm;
    tutti_config config = { .size = 1 };
    int before = open_files();
    if (!refuse(first, second, error)) return SKIPPED;
    tutti_status status = tutti_comm_init(&comm, &config);
    bool right = status == wanted && strstr(tutti_get_last_error(), says) && !comm && open_files() == before;
    if (!right) fprintf(stderr, "status %d, \"%s\", %d files before and %d after\n", status, tutti_get_last_error(),
        before, open_files());
    return right ? 0 : 1;
}
static void check(long first, long second, unsigned error, tutti_status wanted, const char *says)
{
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) _exit(child(first, second, error, wanted, says));
    assert_true(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) { print_message("no seccomp here: not tested\n"); skip(); }
    assert_int_equal(WEXITSTATUS(status), 0);
}
static void test_memfd_refused(void **state)
{
    (void)state;
    check(SYS_memfd_create, SYS_memfd_create, EPERM, TUTTI_SYSTEM, "memfd_create");
}
static void test_threads_refused(void **state)
{
    (void)state;
    check(SYS_clone3, SYS_clone, EAGAIN, TUTTI_SYSTEM, "thread");
}
static void test_sockets_refused(void **state)
{
    (void)state;
    check(SYS_socket, SYS_socket, EACCES, TUTTI_SYSTEM, "cannot listen");
}
static void test_memory_for_the_segment_refused(void **state)
{
    (void)state;
    check(SYS_fallocate, SYS_fallocate, ENOSPC, TUTTI_NO_MEMORY, "bytes");
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memfd_refused),
        cmocka_unit_test(test_threads_refused),
        cmocka_unit_test(test_sockets_refused),
        cmocka_unit_test(test_memory_for_the_segment_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
