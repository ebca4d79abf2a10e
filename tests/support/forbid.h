/* Makes system calls of the test's process fail, as the seccomp filter of a container or an older kernel does. */
#pragma once
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Makes two system calls (or one, given twice) of this process fail with the errno `error` from now on. Returns false
   if the kernel does not allow a filter. */
static inline bool forbid_calls(long first, long second, unsigned error)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)first, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)second, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof rules / sizeof *rules, rules };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
/* Forbids this process to read the memory of other processes. Returns false as forbid_calls. */
static inline bool forbid_reading(void) { return forbid_calls(SYS_process_vm_readv, SYS_process_vm_readv, EPERM); }
/* Returns true if forbid_reading works here. A child process tries it. */
static inline bool can_forbid_reading(void)
{
    int how;
    pid_t child = fork();
    if (!child) _exit(forbid_reading() ? 0 : 1);
    return waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0;
}
