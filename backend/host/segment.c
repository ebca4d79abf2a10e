/* A group on a host has one memfd. It begins with a header that identifies the group and has the first failure, the
   parameters that the first rank of the host has published, and the state of the tuners. Then come the parts that are
   resident from the start, with a fixed size for each rank: control blocks, lines, declarations, join infos and
   accounts of failures. The sparse part follows on pages of its own: counts and pairs, which grow with the square of
   the ranks, and slots. Seals fix the size before any rank maps the file, so no rank can make another's access fault by
   shrinking it. */
#include "backend/host/segment.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/memory/memfd.h"
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
/* Linux has it since 5.14. */
#define MADV_POPULATE_WRITE 23
#endif
enum { ALIGNMENT = 512 };
struct segment_header {
    char magic[8];
    unsigned char nonce[16];
    /* `filled` is set if the kernel cannot populate pages, so the creator has allocated the whole file. */
    uint32_t filled;
    uint32_t unused;
    struct failure failure;
    struct join_counter join_counter;
    struct calibration_record calibration_record;
    struct tuning tuning;
};
static const char magic[8] = "tutti-s1";
static_assert(sizeof(struct line) == 128, "a line is two cache lines");
static_assert(sizeof(struct control) % ALIGNMENT == 0, "control blocks follow each other without gaps");

/* ---- layout ---- */
/* The offsets of the parts in the file, and the bytes of the file. */
struct offsets { size_t controls, lines, declarations, join_infos, counts, accounts, slots, pairs, bytes; };

/* Places a region of count * bytes bytes behind those before it, which end at *end: sets *at to the next multiple of
   `alignment`, and *end to the end of the region. Returns false if a sum overflows. */
static bool region_place_at_end(size_t *end, size_t count, size_t bytes, size_t alignment, size_t *at)
{
    size_t start, length;
    if (!size_add(*end, alignment - 1, &start) || !size_multiply(count, bytes, &length)) return false;
    *at = start / alignment * alignment;
    return size_add(*at, length, end);
}
/* Sets *out to `bytes` rounded up to whole pages. Returns false if that overflows. */
static bool size_round_to_pages(size_t bytes, size_t *out)
{
    if (!size_add(bytes, page_bytes() - 1, out)) return false;
    *out = *out / page_bytes() * page_bytes();
    return true;
}
/* Computes the offsets of all parts, and the sizes in *out, whose addresses stay NULL. Returns false if a size
   overflows. */
static bool segment_compute_offsets(struct segment *out, const struct segment_shape *shape, struct offsets *at)
{
    size_t page = page_bytes(), end = sizeof(struct segment_header), ranks = (size_t)shape->ranks, file_bytes = 0;
    size_t counts = ranks * (size_t)shape->columns;
    *out = (struct segment){ .ranks = shape->ranks, .columns = shape->columns };
    out->account_bytes = shape->account_bytes;
    bool fits = size_round_to_pages(shape->slot_bytes, &out->slot_bytes)
        && size_round_to_pages(shape->pair_bytes, &out->pair_bytes)
        && region_place_at_end(&end, ranks, sizeof(struct control), ALIGNMENT, &at->controls)
        && region_place_at_end(&end, ranks, TRACKS * sizeof(struct line), page, &at->lines)
        && region_place_at_end(&end, ranks, DECLARATIONS * sizeof(struct declaration), ALIGNMENT, &at->declarations)
        && region_place_at_end(&end, ranks, sizeof(struct join_info), ALIGNMENT, &at->join_infos)
        && region_place_at_end(&end, ranks, out->account_bytes, ALIGNMENT, &at->accounts)
        && region_place_at_end(&end, counts, 2 * COUNTS_ARRAYS * sizeof(uint64_t), page, &at->counts)
        && region_place_at_end(&end, ranks, out->slot_bytes, page, &at->slots)
        && region_place_at_end(&end, ranks * ranks, out->pair_bytes, page, &at->pairs)
        && region_place_at_end(&end, 0, 0, page, &file_bytes);
    at->bytes = out->bytes = file_bytes;
    return fits && file_bytes <= INT64_MAX;
}
/* Computes the offsets and sizes of a segment (segment_compute_offsets), or fails with NO_MEMORY. */
static tutti_status segment_plan(struct segment *out, const struct segment_shape *shape, struct offsets *offsets)
{
    assert(shape->ranks > 0);
    if (segment_compute_offsets(out, shape, offsets)) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY,
        "the shared memory of %d ranks with %zu bytes of slots each exceeds the address space", shape->ranks,
        shape->slot_bytes);
}
/* Maps the file of a segment and sets the pointers to its parts. */
static tutti_status segment_map(struct segment *out, const struct offsets *offsets, int descriptor)
{
    void *base = shared_file_map(descriptor, offsets->bytes);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY,
            "cannot map %zu bytes of shared memory: %s (limit on address space? see ulimit -v)", offsets->bytes,
            strerror(errno));
    memory_keep_out_of_children(base, offsets->bytes);
    out->base = base;
    out->failure = &((struct segment_header *)base)->failure;
    out->join_counter = &((struct segment_header *)base)->join_counter;
    out->calibration_record = &((struct segment_header *)base)->calibration_record;
    out->tuning = &((struct segment_header *)base)->tuning;
    out->join_infos = (struct join_info *)(void *)(out->base + offsets->join_infos);
    out->controls = (struct control *)(void *)(out->base + offsets->controls);
    out->lines = (struct line *)(void *)(out->base + offsets->lines);
    out->declarations = (struct declaration *)(void *)(out->base + offsets->declarations);
    out->counts = (uint64_t *)(void *)(out->base + offsets->counts);
    out->accounts = out->base + offsets->accounts;
    out->slots = out->base + offsets->slots;
    out->pairs = out->base + offsets->pairs;
    return TUTTI_OK;
}

/* ---- populating pages ---- */
/* Makes the kernel allocate the pages of this memory now. Returns 0 or errno. */
static int pages_populate(void *at, size_t bytes)
{
    while (madvise(at, bytes, MADV_POPULATE_WRITE) != 0)
        if (errno != EINTR && errno != EAGAIN) return errno;
    return 0;
}
/* Returns true for an errno of madvise that means a shortage of memory. */
static bool error_is_shortage(int error) { return error == EFAULT || error == ENOMEM || error == ENOSPC; }
tutti_status segment_reserve(const struct segment *segment, void *at, size_t bytes, const char *what)
{
    size_t page = page_bytes(), offset = (size_t)((unsigned char *)at - segment->base),
           first_page = offset / page * page;
    assert((unsigned char *)at >= segment->base && bytes <= segment->bytes && offset <= segment->bytes - bytes);
    if (!bytes || ((const struct segment_header *)(const void *)segment->base)->filled) return TUTTI_OK;
    size_t length = size_round_up(offset + bytes - first_page, page);
    int error;
    do error = pages_populate(segment->base + first_page, length);
    while (error_is_shortage(error) && arena_give_up_spare());
    if (!error) return TUTTI_OK;
    /* madvise returns EFAULT where an access would raise SIGBUS. */
    if (error_is_shortage(error))
        return status_fail(TUTTI_NO_MEMORY, "no memory for %s: %zu bytes of shared memory are not available (%s)", what,
            length, strerror(error));
    return status_fail(TUTTI_SYSTEM, "madvise(MADV_POPULATE_WRITE) of %zu bytes for %s: %s", length, what,
        strerror(error));
}

void segment_give_back(const struct segment *segment, void *at, size_t bytes)
{
    size_t page = page_bytes(), offset = (size_t)((unsigned char *)at - segment->base),
           first = size_round_up(offset, page), end = (offset + bytes) / page * page;
    if (first >= end || ((const struct segment_header *)(const void *)segment->base)->filled) return;
    /* If the kernel refuses, the memory stays reserved. */
    madvise(segment->base + first, end - first, MADV_REMOVE);
}

/* ---- create ---- */
/* Allocates the first `bytes` bytes of a memfd, and gives the arena's spare block up if memory is short. Error texts
   name their purpose by `what`. */
static tutti_status segment_allocate_pages(int descriptor, size_t bytes, const char *what)
{
    tutti_status status;
    do status = memfd_allocate(descriptor, 0, bytes, what);
    while (status == TUTTI_NO_MEMORY && arena_give_up_spare());
    return status;
}
/* Creates the memfd of a segment, maps it and writes its header. Kernels before 5.14 need all memory at once. On
   failure fd is a descriptor that the caller closes, or -1. */
static tutti_status segment_build_file(struct segment *out, const struct offsets *offsets,
    const unsigned char nonce[16], int *fd)
{
    TRY(memfd_create_sealed(offsets->bytes, fd));
    TRY(segment_allocate_pages(*fd, offsets->counts, "control blocks"));
    TRY(segment_map(out, offsets, *fd));
    struct segment_header *header = (struct segment_header *)(void *)out->base;
    atomic_store(&out->failure->operation, UINT64_MAX);
    header->filled = pages_populate(out->base, page_bytes()) == EINVAL;
    if (header->filled)
        TRY(segment_allocate_pages(*fd, offsets->bytes, "all slots, at once because this kernel is older than 5.14"));
    memcpy(header->magic, magic, sizeof magic);
    memcpy(header->nonce, nonce, sizeof header->nonce);
    return TUTTI_OK;
}
tutti_status segment_create(struct segment *out, const struct segment_shape *shape, const unsigned char nonce[16],
    int *fd)
{
    struct segment made;
    struct offsets offsets = { 0 };
    int descriptor = -1;
    TRY(segment_plan(&made, shape, &offsets));
    tutti_status status = segment_build_file(&made, &offsets, nonce, &descriptor);
    if (status != TUTTI_OK) {
        segment_detach(&made);
        if (descriptor >= 0) close(descriptor);
        return status;
    }
    *out = made;
    *fd = descriptor;
    return TUTTI_OK;
}

/* ---- attach ---- */
/* Fails with SYSTEM unless the mapped file is the segment with that nonce. */
static tutti_status segment_check_header(const struct segment *segment, const unsigned char nonce[16])
{
    const struct segment_header *header = (const struct segment_header *)(const void *)segment->base;
    if (memcmp(header->magic, magic, sizeof magic) != 0 || memcmp(header->nonce, nonce, sizeof header->nonce) != 0)
        return status_fail(TUTTI_SYSTEM, "the received shared memory does not belong to this group");
    return TUTTI_OK;
}
tutti_status segment_attach(struct segment *out, const struct segment_shape *shape, const unsigned char nonce[16],
    int fd)
{
    struct segment found;
    struct offsets offsets = { 0 };
    tutti_status status = segment_plan(&found, shape, &offsets);
    if (status == TUTTI_OK) status = memfd_check(fd, offsets.bytes, "the group's");
    if (status == TUTTI_OK) status = segment_map(&found, &offsets, fd);
    if (status == TUTTI_OK) status = segment_check_header(&found, nonce);
    close(fd);
    if (status != TUTTI_OK) segment_detach(&found);
    else *out = found;
    return status;
}
void segment_detach(struct segment *segment)
{
    if (!segment || !segment->base) return;
    munmap(segment->base, segment->bytes);
    *segment = (struct segment){ 0 };
}
