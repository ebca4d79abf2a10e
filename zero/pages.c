/* Each mapping costs the kernel time, and a process may have only a limited number. So the file has a 64th of the
   largest reservation instead of one page. It is mapped privately, so a write to decommitted memory leaves the file
   unchanged.

   Shared memory that is gathered again and again keeps its pages, and its entries in the page table too: to fault in an
   alias of 12 MB takes longer than to copy the bytes. The kernel moves all entries of a huge page at once if both
   addresses have the same position in it, so ranges begin at huge pages. MREMAP_DONTUNMAP keeps the emptied range
   mapped: another thread could otherwise map something there. */
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
/* Ranges begin at a multiple of HUGE_BYTES, or as far behind one as the range that their pages move to. */
enum { HUGE_BYTES = 2 << 20 };
#if !defined(MREMAP_DONTUNMAP)
/* Headers before Linux 5.7 lack it. */
#define MREMAP_DONTUNMAP 4
#endif

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
/* Reserves an address range that begins `position` bytes behind a multiple of HUGE_BYTES. */
static tutti_status pages_reserve_addresses(size_t bytes, size_t position, void **out)
{
    size_t whole = bytes + HUGE_BYTES;
    char *base = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return pages_fail_with_errno("mmap", bytes);
    size_t before = (HUGE_BYTES + position - (uintptr_t)base % HUGE_BYTES) % HUGE_BYTES;
    if (before) munmap(base, before);
    if (before < HUGE_BYTES) munmap(base + before + size_round_up(bytes, PAGE_BYTES), HUGE_BYTES - before);
    *out = base + before;
    return TUTTI_OK;
}
tutti_status pages_reserve_range(const struct pages *p, size_t bytes, void **out)
{
    TRY(pages_reserve_addresses(bytes, 0, out));
    return pages_decommit_range(p, *out, bytes);
}
void pages_release_range(void *at, size_t bytes)
{
    if (at) munmap(at, bytes);
}

/* ---- shared memory at a second address ---- */
/* Moves page table entries, and returns false with errno after an error. */
static bool page_entries_move(void *from, void *to, size_t bytes)
{
    return mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) != MAP_FAILED;
}
bool pages_can_move(void)
{
    if (sysconf(_SC_PAGESIZE) != PAGE_BYTES) return false;
    void *shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *target = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool can = shared != MAP_FAILED && target != MAP_FAILED && page_entries_move(shared, target, PAGE_BYTES);
    if (shared != MAP_FAILED) munmap(shared, PAGE_BYTES);
    if (target != MAP_FAILED) munmap(target, PAGE_BYTES);
    return can;
}
tutti_status pages_alias_range(void *memory, size_t bytes, const void *target, void **out)
{
    TRY(pages_reserve_addresses(bytes, (uintptr_t)target % HUGE_BYTES, out));
    /* mremap duplicates a shared mapping if its old size is 0. */
    if (mremap(memory, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, *out) == MAP_FAILED)
        return pages_fail_with_errno("mremap", bytes);
    madvise(*out, bytes, MADV_DONTFORK);
    return TUTTI_OK;
}
tutti_status pages_move_range(void *from, void *to, size_t bytes)
{
    return !bytes || page_entries_move(from, to, bytes) ? TUTTI_OK : pages_fail_with_errno("mremap", bytes);
}
