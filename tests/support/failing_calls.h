/* Defines system calls, in place of libc's, that fail as a test of shared memory requests. One file of a test program
   includes this header. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The errno with which every such call fails, or 0. */
static int fallocate_error, memfd_error;
/* fallocate fails with ENOSPC until a call frees memory. */
static bool machine_is_full;
/* Simulates a kernel before mid-2024, which restarts fallocate after each signal, and a signal whenever fallocate_most
   bytes are allocated: a call for more bytes fails with EINTR each time. 0: no signals. After MOST_INTERRUPTIONS calls
   the error is EIO, so that a test which would repeat the call without end fails. */
static off_t fallocate_most;
enum { MOST_INTERRUPTIONS = 100000 };
static bool fallocate_is_interrupted(int mode, off_t bytes)
{
    static int interruptions;
    if (!fallocate_most || mode || bytes <= fallocate_most) return false;
    errno = ++interruptions < MOST_INTERRUPTIONS ? EINTR : EIO;
    return true;
}
int fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
    if (fallocate_error) { errno = fallocate_error; return -1; }
    if (fallocate_is_interrupted(mode, bytes)) return -1;
    if (machine_is_full && !mode) { errno = ENOSPC; return -1; }
    /* A call with a mode punches a hole and so frees memory. */
    machine_is_full = false;
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, bytes);
}
int memfd_create(const char *name, unsigned flags)
{
    if (memfd_error) { errno = memfd_error; return -1; }
    return (int)syscall(SYS_memfd_create, name, flags);
}
