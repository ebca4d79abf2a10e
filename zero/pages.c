/* Each mapping costs the kernel time, and a process may have only a limited number. So the file has a 64th of the
   largest reservation instead of one page. It is mapped privately, so a write to decommitted memory leaves the file
   unchanged. */
#include "zero/pages.h"
#include "backend/base/descriptor.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The file has at least LEAST_BYTES. The largest reservation needs at most MAPPINGS mappings of the file. */
enum { LEAST_BYTES = 1 << 20, PAGE_BYTES = 4096, MAPPINGS = 64 };

/* Returns the failure of the system call `what`, by errno: NO_MEMORY or SYSTEM. */
static tutti_status pages_fail_with_errno(const char *what, size_t bytes)
{
    return status_fail(errno == ENOMEM ? TUTTI_NO_MEMORY : TUTTI_SYSTEM, "zero: %s for %zu bytes of parameters: %s",
        what, bytes, strerror(errno));
}
tutti_status pages_init(struct pages *p, size_t largest)
{
    *p = (struct pages){ .file = -1 };
    p->file_bytes = size_round_up(size_larger(LEAST_BYTES, largest / MAPPINGS), PAGE_BYTES);
    p->file = descriptor_move_above_stderr(memfd_create("tutti zero", MFD_CLOEXEC));
    if (p->file < 0 || ftruncate(p->file, (off_t)p->file_bytes) != 0)
        return pages_fail_with_errno("memfd_create", p->file_bytes);
    void *at = mmap(NULL, p->file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, p->file, 0);
    if (at == MAP_FAILED) return pages_fail_with_errno("mmap", p->file_bytes);
    memset(at, 0xff, p->file_bytes);
    munmap(at, p->file_bytes);
    return TUTTI_OK;
}
void pages_finish(struct pages *p)
{
    if (p->file >= 0) close(p->file);
}
/* Maps the file of NaNs over the range, several times if the range is longer than the file. */
tutti_status pages_decommit_range(const struct pages *p, void *at, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += p->file_bytes) {
        size_t length = size_smaller(p->file_bytes, bytes - done);
        if (mmap((char *)at + done, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, p->file, 0)
            == MAP_FAILED)
            return pages_fail_with_errno("mmap", bytes);
    }
    return TUTTI_OK;
}
tutti_status pages_commit_range(void *at, size_t bytes)
{
    void *opened = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (opened == MAP_FAILED) return pages_fail_with_errno("mmap", bytes);
    /* Huge pages, if available, fault in faster. */
    madvise(at, bytes, MADV_HUGEPAGE);
    return TUTTI_OK;
}
tutti_status pages_reserve_range(const struct pages *p, size_t bytes, void **out)
{
    void *at = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return pages_fail_with_errno("mmap", bytes);
    *out = at;
    return pages_decommit_range(p, at, bytes);
}
void pages_release_range(void *at, size_t bytes)
{
    if (at) munmap(at, bytes);
}
