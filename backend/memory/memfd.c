/* Makes, fills and checks sealed memfds, with error texts for each call that may fail. */
#include "backend/memory/memfd.h"
#include "backend/base/descriptor.h"
#include "backend/base/status.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    CONSTANT_SEALS = SEALS | F_SEAL_WRITE,
    SLICE_BYTES = 4 << 20
};

/* The unit of st_blocks. */
enum { BLOCK_BYTES = 512 };

size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* Fails if the process may not make files of that size, because such a file would raise the signal SIGXFSZ. */
static tutti_status memfd_check_file_limit(size_t bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return TUTTI_OK;
    if (bytes <= limit.rlim_cur) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM,
        "the limit on file sizes (ulimit -f) is %llu bytes, and %zu bytes of shared memory are needed; raise the limit",
        (unsigned long long)limit.rlim_cur, bytes);
}
/* Returns advice for the user about an errno of memfd_create, to follow its text, or an empty text. */
static const char *memfd_advice(int error)
{
    if (error == EMFILE || error == ENFILE) return " (too many open files? see ulimit -n)";
    if (error == EPERM || error == ENOSYS) return " (does a seccomp filter or an old kernel forbid it?)";
    return "";
}
/* Creates a memfd of that size without seals. On failure *out is a descriptor that the caller closes, or -1. */
static tutti_status memfd_create_unsealed(size_t bytes, int *out)
{
    *out = -1;
    TRY(memfd_check_file_limit(bytes));
    *out = descriptor_move_above_stderr(memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (*out < 0)
        return status_fail(TUTTI_SYSTEM, "memfd_create, needed for shared memory: %s%s", strerror(errno),
            memfd_advice(errno));
    if (ftruncate(*out, (off_t)bytes) != 0)
        return status_fail(TUTTI_SYSTEM, "ftruncate of a memfd to %zu bytes: %s", bytes, strerror(errno));
    return TUTTI_OK;
}
static tutti_status memfd_add_seals(int descriptor, int seals)
{
    if (fcntl(descriptor, F_ADD_SEALS, seals) == 0) return TUTTI_OK;
    return status_fail(TUTTI_SYSTEM, "fcntl(F_ADD_SEALS) of a memfd: %s", strerror(errno));
}
tutti_status memfd_create_sealed(size_t bytes, int *out)
{
    TRY(memfd_create_unsealed(bytes, out));
    return memfd_add_seals(*out, SEALS);
}
/* Fails with the meaning of an errno of fallocate or pwrite. `what` names the purpose of the memory. */
static tutti_status memfd_fail_allocation(size_t bytes, const char *what)
{
    if (errno == ENOSPC || errno == ENOMEM)
        return status_fail(TUTTI_NO_MEMORY, "no memory for %s: %zu bytes of shared memory are not available (%s)", what,
            bytes, strerror(errno));
    return status_fail(TUTTI_SYSTEM, "allocation of %zu bytes for %s: %s", bytes, what, strerror(errno));
}
/* Kernels before mid-2024 restart fallocate after each signal. With a signal every few milliseconds, as a profiler
   sends them, a whole block would never be finished. So the block is allocated in slices, and smaller ones after a
   signal. */
tutti_status memfd_allocate(int descriptor, size_t offset, size_t bytes, const char *what)
{
    size_t slice = SLICE_BYTES;
    for (size_t done = 0; done < bytes;) {
        size_t next = bytes - done < slice ? bytes - done : slice;
        if (fallocate(descriptor, 0, (off_t)(offset + done), (off_t)next) == 0) {
            done += next;
            if (slice < SLICE_BYTES) slice *= 2;
        } else if (errno != EINTR) return memfd_fail_allocation(bytes, what);
        else if (slice > page_bytes()) slice /= 2;
    }
    return TUTTI_OK;
}
void memfd_discard(int descriptor, size_t offset, size_t bytes)
{
    int failed;
    do failed = fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset, (off_t)bytes);
    while (failed && errno == EINTR);
}
/* Does memfd_check for those seals, and sets *out to the state of the file. The seals are checked first, because the
   size and the pages of a file without seals may change after they were read. */
static tutti_status memfd_check_seals(int descriptor, size_t bytes, int wanted, const char *whose, struct stat *out)
{
    struct stat file;
    int seals = fcntl(descriptor, F_GET_SEALS);
    if (seals < 0 || (seals & wanted) != wanted)
        return status_fail(TUTTI_SYSTEM, "%s shared memory is not sealed against %s; it is not used", whose,
            wanted & F_SEAL_WRITE ? "changes" : "shrinking");
    if (fstat(descriptor, &file) != 0)
        return status_fail(TUTTI_SYSTEM, "fstat of %s shared memory: %s", whose, strerror(errno));
    if (file.st_size < 0 || (size_t)file.st_size != bytes)
        return status_fail(TUTTI_SYSTEM,
            "%s shared memory is %lld bytes and should be %zu: do all ranks run the same version of tutti?", whose,
            (long long)file.st_size, bytes);
    *out = file;
    return TUTTI_OK;
}
tutti_status memfd_check(int descriptor, size_t bytes, const char *whose)
{
    struct stat ignored = { 0 };
    return memfd_check_seals(descriptor, bytes, SEALS, whose, &ignored);
}

/* ---- constant contents ---- */
/* Writes all bytes to the file, from its beginning. */
static tutti_status memfd_write_all(int descriptor, const void *from, size_t bytes, const char *what)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t written = pwrite(descriptor, (const char *)from + done, bytes - done, (off_t)done);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return memfd_fail_allocation(bytes, what);
        done += (size_t)written;
    }
    return TUTTI_OK;
}
tutti_status memfd_create_constant(const void *from, size_t bytes, const char *what, int *out)
{
    tutti_status status = memfd_create_unsealed(bytes, out);
    if (status == TUTTI_OK) status = memfd_write_all(*out, from, bytes, what);
    if (status == TUTTI_OK) status = memfd_add_seals(*out, CONSTANT_SEALS);
    if (status == TUTTI_OK) return status;
    if (*out >= 0) close(*out);
    *out = -1;
    return status;
}
tutti_status memfd_map_constant(int descriptor, size_t bytes, const char *whose, const void **out)
{
    struct stat file = { 0 };
    TRY(memfd_check_seals(descriptor, bytes, CONSTANT_SEALS, whose, &file));
    /* A read of a page that is not allocated would allocate it, and fault without memory. */
    if ((size_t)file.st_blocks * BLOCK_BYTES < bytes)
        return status_fail(TUTTI_SYSTEM, "%s shared memory has pages that are not allocated; it is not used", whose);
    /* Kernels before Linux 6.7 refuse to map such a file as shared. Nothing writes, so a private mapping has the pages
       of the file, too. */
    void *base = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY, "mmap of %zu bytes of %s shared memory: %s", bytes, whose, strerror(errno));
    *out = base;
    return TUTTI_OK;
}
/* If the kernel refuses, children and core files get the memory, which is harmless. */
void memory_keep_out_of_children(void *mapped, size_t bytes)
{
    madvise(mapped, bytes, MADV_DONTFORK);
    madvise(mapped, bytes, MADV_DONTDUMP);
}
