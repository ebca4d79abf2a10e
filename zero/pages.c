/* Each mapping costs the kernel time, and a process may have only a limited number. So the file has a 16th of the
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
#include <sys/syscall.h>
#include <unistd.h>

/* The file has at least LEAST_BYTES. The largest reservation needs at most MAPPINGS mappings of the file. */
enum { LEAST_BYTES = 1 << 20, PAGE_BYTES = 4096, MAPPINGS = 16 };
/* Ranges begin at a multiple of HUGE_BYTES, or as far behind one as the range that their pages move to. */
enum { HUGE_BYTES = 2 << 20 };
#if !defined(MREMAP_DONTUNMAP)
/* Headers before Linux 5.7 lack it. */
#define MREMAP_DONTUNMAP 4
#endif
#if !defined(MAP_FIXED_NOREPLACE)
/* Headers before Linux 4.17 lack it. */
#define MAP_FIXED_NOREPLACE 0x100000
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
/* Maps the file of NaNs over the range, several times if the range is longer than the file. `flags` are MAP_FIXED or
   MAP_FIXED_NOREPLACE. Returns false, with errno, if a part of the range cannot be mapped. */
static bool pages_map_nans(const struct pages *p, void *at, size_t bytes, int flags)
{
    bool is_mapped = true;
    for (size_t done = 0; done < bytes; done += p->file_bytes) {
        size_t length = size_smaller(p->file_bytes, bytes - done);
        void *wanted = (char *)at + done;
        void *mapped = mmap(wanted, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE | flags, p->file, 0);
        /* Linux before 4.17 ignores MAP_FIXED_NOREPLACE. */
        if (mapped != MAP_FAILED && mapped != wanted) munmap(mapped, length);
        is_mapped &= mapped == wanted;
    }
    return is_mapped;
}
tutti_status pages_decommit_range(const struct pages *p, void *at, size_t bytes)
{
    return pages_map_nans(p, at, bytes, MAP_FIXED) ? TUTTI_OK : pages_fail_with_errno("mmap", bytes);
}
void pages_fill_holes(const struct pages *p, void *at, size_t bytes)
{
    pages_map_nans(p, at, bytes, MAP_FIXED_NOREPLACE);
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
/* Calls mremap with the new address `to`, and returns false with errno after an error. It calls the kernel directly,
   because UCX before 1.15 replaces the function of libc by one that loses the new address. */
static bool pages_remap(void *from, size_t old_bytes, void *to, size_t bytes, int flags)
{
    return syscall(SYS_mremap, from, old_bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) == (intptr_t)to;
}
bool pages_can_move(void)
{
    if (sysconf(_SC_PAGESIZE) != PAGE_BYTES) return false;
    void *shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *target = mmap(NULL, PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool can = shared != MAP_FAILED && target != MAP_FAILED
        && pages_remap(shared, PAGE_BYTES, target, PAGE_BYTES, MREMAP_DONTUNMAP);
    if (shared != MAP_FAILED) munmap(shared, PAGE_BYTES);
    if (target != MAP_FAILED) munmap(target, PAGE_BYTES);
    return can;
}
/* Maps the shared memory a second time, at `to`: mremap duplicates a shared mapping if its old size is 0. */
static bool pages_duplicate(void *memory, void *to, size_t bytes)
{
    return pages_remap(memory, 0, to, bytes, 0) && madvise(to, bytes, MADV_DONTFORK) == 0;
}
tutti_status pages_alias_range(void *memory, size_t bytes, const void *target, void **out)
{
    TRY(pages_reserve_addresses(bytes, (uintptr_t)target % HUGE_BYTES, out));
    return pages_duplicate(memory, *out, bytes) ? TUTTI_OK : pages_fail_with_errno("mremap", bytes);
}
tutti_status pages_move_range(void *memory, void *from, void *to, size_t bytes)
{
    bool is_moved = !bytes || pages_remap(from, bytes, to, bytes, MREMAP_DONTUNMAP);
    /* The kernel moves no range of which only a part is watched by userfaultfd, as verbs does for messages. */
    return is_moved || pages_duplicate(memory, to, bytes) ? TUTTI_OK : pages_fail_with_errno("mremap", bytes);
}
