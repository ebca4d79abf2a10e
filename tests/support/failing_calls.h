/* System calls that fail when a test of shared memory tells them to. Include it once: it defines them, before libc. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fallocate_error, memfd_error;
static bool machine_is_full;                            /* until memory is given back */
/* A kernel before mid-2024, and a signal whenever so many bytes are done: what is longer begins anew, in vain. After
   many vain calls the test has seen enough. */
static off_t fallocate_most;
enum { MOST_VAIN_CALLS = 100000 };
static bool fallocate_is_vain(int mode, off_t bytes)
{
    static int vain;
    if (!fallocate_most || mode || bytes <= fallocate_most) return false;
    errno = ++vain < MOST_VAIN_CALLS ? EINTR : EIO;
    return true;
}
int fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
    if (fallocate_error) { errno = fallocate_error; return -1; }
    if (fallocate_is_vain(mode, bytes)) return -1;
    if (machine_is_full && !mode) { errno = ENOSPC; return -1; }
    machine_is_full = false;                            /* something is given back */
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, bytes);
}
int memfd_create(const char *name, unsigned flags)
{
    if (memfd_error) { errno = memfd_error; return -1; }
    return (int)syscall(SYS_memfd_create, name, flags);
}
