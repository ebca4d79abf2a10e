/* process_vm_readv copies all bytes, or fewer if it meets an unreadable page. */
#include "backend/host/reading.h"
#include "backend/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

/* One call copies less than 2 GiB. */
enum { MOST_BYTES = 1 << 30 };

static struct iovec iovec_of_address(uint64_t address, size_t bytes)
{
    return (struct iovec){ (void *)(uintptr_t)address, bytes };
}
/* Copies at most MOST_BYTES bytes as reading_copy does, by one system call, which also reads the nonce of the process.
   Returns 0 or -errno; -ESRCH if the nonce is that of another process. */
static int reading_copy_once(const struct read_source *from, void *to, uint64_t address, size_t bytes)
{
    unsigned char nonce[NONCE_BYTES] = { 0 };
    struct iovec local[] = { { to, bytes }, { nonce, sizeof nonce } };
    struct iovec remote[] = { iovec_of_address(address, bytes), iovec_of_address(from->nonce_at, sizeof nonce) };
    ssize_t copied;
    do copied = process_vm_readv((pid_t)from->process, local, 2, remote, 2, 0);
    while (copied < 0 && errno == EINTR);
    if (copied < 0) return -errno;
    if ((size_t)copied < bytes) return -EFAULT;
    return (size_t)copied == bytes + sizeof nonce && !memcmp(nonce, from->nonce, sizeof nonce) ? 0 : -ESRCH;
}
int reading_copy(const struct read_source *from, void *to, uint64_t address, size_t bytes)
{
    if (!from->process || !from->nonce_at) return -ESRCH;
    for (size_t done = 0, part; done < bytes; done += part) {
        part = bytes - done < MOST_BYTES ? bytes - done : MOST_BYTES;
        int error = reading_copy_once(from, (unsigned char *)to + done, address + done, part);
        if (error) return error;
    }
    return 0;
}
int reading_test_source(const struct read_source *from)
{
    unsigned char nonce[NONCE_BYTES];
    return reading_copy(from, nonce, from->nonce_at, sizeof nonce);
}
bool reading_is_possible(const void *address, size_t bytes)
{
    unsigned char first, last;
    struct iovec local[] = { { &first, 1 }, { &last, 1 } };
    struct iovec remote[] = { iovec_of_address((uintptr_t)address, 1),
        iovec_of_address((uintptr_t)address + bytes - 1, 1) };
    return bytes == 0 || process_vm_readv(getpid(), local, 2, remote, 2, 0) == 2;
}
const char *reading_reason(int error)
{
    if (error == -EPERM)
        return "the kernel forbids it (kernel.yama.ptrace_scope is 1 or more, or seccomp or a user namespace "
               "forbids process_vm_readv, or the other process is not dumpable)";
    if (error == -ENOSYS) return "seccomp or the kernel has no process_vm_readv";
    if (error == -ESRCH) return "its process is not visible: it is in another PID namespace, or has ended";
    if (error == -EFAULT) return "the memory cannot be read";
    return strerror(-error);
}
tutti_status reading_failure_status(const struct read_source *from, int error, int rank, int owner)
{
    int error_now = error == -ESRCH ? error : reading_test_source(from);
    if (error_now && error_now != -EPERM) return TUTTI_IN_PROGRESS;
    const char *change = error_now
        ? "it could when the group was formed"
        : "its memory was freed while the operation used it, or is of a kind that only its own "
          "process can read";
    return status_fail(TUTTI_SYSTEM,
        "rank %d cannot read the tensor of rank %d: %s; %s: with TUTTI_SINGLE_COPY=0 tensors go through shared memory",
        rank, owner, reading_reason(error), change);
}
/* Returns kernel.yama.ptrace_scope, or 0 if the kernel has none. At 0 a process may read all processes of its user, at
   1 only its descendants. */
static int yama_read_scope(void)
{
    char scope = '0';
    int file = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    if (read(file, &scope, 1) != 1) scope = '0';
    close(file);
    return scope - '0';
}
const char *reading_describe(void)
{
    char probe = 0;
    if (!reading_is_possible(&probe, 1)) return "no: seccomp or the kernel forbids process_vm_readv";
    if (yama_read_scope() > 0 && geteuid() != 0)
        return "no: kernel.yama.ptrace_scope is not 0, so processes may only read their children";
    return "yes: the kernel reads private tensors of other ranks (process_vm_readv) where shared memory is slower";
}
