/* System calls that fail when a test of shared memory tells them to. Include it once: it defines them, before libc. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int fallocate_error, memfd_error;
int fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
    if (fallocate_error) { errno = fallocate_error; return -1; }
    return (int)syscall(SYS_fallocate, descriptor, mode, offset, bytes);
}
int memfd_create(const char *name, unsigned flags)
{
    if (memfd_error) { errno = memfd_error; return -1; }
    return (int)syscall(SYS_memfd_create, name, flags);
}
