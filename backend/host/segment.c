/* One memfd per group. It begins with a header that says whose it is, then what must be resident from the start (the
   first failure, what rank 0 tells, control blocks, introductions, counts), then the sparse part: slots and pairs, on
   pages of their own. The size is fixed by seals before anybody maps it, so no rank can make another's access fault by
   shrinking the file. */
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
#define MADV_POPULATE_WRITE 23                                         /* Linux 5.14 */
#endif
enum { ALIGNMENT = 512 };
struct header {
    char magic[8];
    unsigned char nonce[16];
    uint32_t filled;                                   /* this kernel cannot populate, so everything was allocated */
    uint32_t unused;
    struct failure failure;
    struct told told;
};
static const char magic[8] = "tutti-s1";
static_assert(sizeof(struct line) == 128, "a line is two cache lines");
static_assert(sizeof(struct control) % ALIGNMENT == 0, "control blocks follow each other without gaps");

/* ---- where things lie ---- */
struct layout { size_t controls, introductions, counts, slots, pairs, bytes; };   /* offsets, and the size of it all */

/* Sets *at to the next multiple of `step` and moves *end past count * bytes from there. */
static bool place(size_t *end, size_t count, size_t bytes, size_t step, size_t *at)
{
    size_t start, length;
    if (!size_add(*end, step - 1, &start) || !size_multiply(count, bytes, &length)) return false;
    *at = start / step * step;
    return size_add(*at, length, end);
}
static bool round_to_pages(size_t bytes, size_t *out)
{
    if (!size_add(bytes, page_bytes() - 1, out)) return false;
    *out = *out / page_bytes() * page_bytes();
    return true;
}
/* Fills in all of *out but the addresses. */
static bool layout_compute(struct segment *out, int ranks, size_t slot_bytes, size_t pair_bytes, struct layout *layout)
{
    size_t page = page_bytes(), end = sizeof(struct header), square = (size_t)ranks * (size_t)ranks, none = 0;
    *out = (struct segment){ .ranks = ranks };
    bool fits = round_to_pages(slot_bytes, &out->slot_bytes) && round_to_pages(pair_bytes, &out->pair_bytes)
        && place(&end, (size_t)ranks, sizeof(struct control), ALIGNMENT, &layout->controls)
        && place(&end, (size_t)ranks, sizeof(struct introduction), ALIGNMENT, &layout->introductions)
        && place(&end, square, 2 * COUNTS_ARRAYS * sizeof(uint64_t), ALIGNMENT, &layout->counts)
        && place(&end, (size_t)ranks, out->slot_bytes, page, &layout->slots)
        && place(&end, square, out->pair_bytes, page, &layout->pairs)
        && place(&end, 0, 0, page, &none);
    layout->bytes = out->bytes = none;
    return fits && none <= INT64_MAX;
}
static tutti_status segment_plan(struct segment *out, int ranks, size_t slot_bytes, size_t pair_bytes,
                                 struct layout *layout)
{
    assert(ranks > 0);
    if (layout_compute(out, ranks, slot_bytes, pair_bytes, layout)) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY,
        "the shared memory of %d ranks with %zu bytes of slots each is larger than an address can say", ranks,
        slot_bytes);
}
static tutti_status segment_map(struct segment *out, const struct layout *layout, int descriptor)
{
    void *base = arena_map(descriptor, layout->bytes);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY,
            "cannot map %zu bytes of shared memory: %s (limit on address space? see ulimit -v)", layout->bytes,
            strerror(errno));
    memfd_keep_out(base, layout->bytes);
    out->base = base;
    out->failure = &((struct header *)base)->failure;
    out->told = &((struct header *)base)->told;
    out->introductions = (struct introduction *)(void *)(out->base + layout->introductions);
    out->controls = (struct control *)(void *)(out->base + layout->controls);
    out->counts = (uint64_t *)(void *)(out->base + layout->counts);
    out->slots = out->base + layout->slots;
    out->pairs = out->base + layout->pairs;
    return TUTTI_OK;
}

/* ---- making memory real ---- */
static int populate(void *at, size_t bytes)                            /* 0 or errno */
{
    while (madvise(at, bytes, MADV_POPULATE_WRITE) != 0)
        if (errno != EINTR && errno != EAGAIN) return errno;
    return 0;
}
static bool is_shortage(int error) { return error == EFAULT || error == ENOMEM || error == ENOSPC; }
tutti_status segment_reserve(const struct segment *segment, void *at, size_t bytes, const char *what)
{
    size_t page = page_bytes(), offset = (size_t)((unsigned char *)at - segment->base), first = offset / page * page;
    assert((unsigned char *)at >= segment->base && bytes <= segment->bytes && offset <= segment->bytes - bytes);
    if (!bytes || ((const struct header *)(const void *)segment->base)->filled) return TUTTI_OK;
    size_t length = size_round_up(offset + bytes - first, page);
    int error;
    do error = populate(segment->base + first, length);
    while (is_shortage(error) && arena_give_up_spare());
    if (!error) return TUTTI_OK;
    if (is_shortage(error))                             /* EFAULT: else a SIGBUS */
        return status_fail(TUTTI_NO_MEMORY, "no memory for %s: %zu bytes of shared memory could not be had (%s)", what,
            length, strerror(error));
    return status_fail(TUTTI_SYSTEM, "madvise(MADV_POPULATE_WRITE) of %zu bytes for %s: %s", length, what,
        strerror(error));
}

/* ---- create ---- */
static tutti_status allocate(int descriptor, size_t bytes, const char *what)
{
    tutti_status status;
    do status = memfd_allocate(descriptor, bytes, what);
    while (status == TUTTI_NO_MEMORY && arena_give_up_spare());
    return status;
}
static tutti_status build(struct segment *out, const struct layout *layout, const unsigned char nonce[16], int *fd)
{
    TRY(memfd_create_sealed(layout->bytes, fd));
    TRY(allocate(*fd, layout->slots, "control blocks"));
    TRY(segment_map(out, layout, *fd));
    struct header *header = (struct header *)(void *)out->base;
    header->filled = populate(out->base, page_bytes()) == EINVAL;
    if (header->filled)
        TRY(allocate(*fd, layout->bytes, "all slots, at once because this kernel is older than 5.14"));
    memcpy(header->magic, magic, sizeof magic);
    memcpy(header->nonce, nonce, sizeof header->nonce);
    return TUTTI_OK;
}
tutti_status segment_create(struct segment *out, int ranks, size_t slot_bytes, size_t pair_bytes,
                            const unsigned char nonce[16], int *fd)
{
    struct segment made;
    struct layout layout = { 0 };
    int descriptor = -1;
    TRY(segment_plan(&made, ranks, slot_bytes, pair_bytes, &layout));
    tutti_status status = build(&made, &layout, nonce, &descriptor);
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
static tutti_status check_header(const struct segment *segment, const unsigned char nonce[16])
{
    const struct header *header = (const struct header *)(const void *)segment->base;
    if (memcmp(header->magic, magic, sizeof magic) != 0 || memcmp(header->nonce, nonce, sizeof header->nonce) != 0)
        return status_fail(TUTTI_SYSTEM, "the shared memory that was received is not that of this group");
    return TUTTI_OK;
}
tutti_status segment_attach(struct segment *out, int ranks, size_t slot_bytes, size_t pair_bytes,
                            const unsigned char nonce[16], int fd)
{
    struct segment found;
    struct layout layout = { 0 };
    tutti_status status = segment_plan(&found, ranks, slot_bytes, pair_bytes, &layout);
    if (status == TUTTI_OK) status = memfd_check(fd, layout.bytes, "the group's");
    if (status == TUTTI_OK) status = segment_map(&found, &layout, fd);
    if (status == TUTTI_OK) status = check_header(&found, nonce);
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
