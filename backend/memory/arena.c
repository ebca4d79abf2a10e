/* The arena has two locks. A thread holds `growth` while it makes a block, for as long as the kernel takes to clear
 * it. It holds `lock` briefly, while it changes the heap or the list of blocks. The launch of an operation takes no
 * lock: it reads a copy of the list, sorted by address, between two reads of its version. */
#include "backend/memory/arena.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/memory/available.h"
#include "backend/memory/heap.h"
#include "backend/memory/memfd.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* MOST_BLOCKS limits the number of blocks. From MANY_BLOCKS on a new block may be larger than SPARE_BYTES, the limit of
   the spare block. BLOCK_BYTES is the least that is preferred for a new block. */
enum { MOST_BLOCKS = 512, MANY_BLOCKS = 256, BLOCK_BYTES = 16 << 20, SPARE_BYTES = 64 << 20 };
/* An allocation of LARGE_BYTES or more takes whole pages. */
enum { LARGE_BYTES = 64 << 10, SMALL_ALIGNMENT = 64 };
/* The header is the first page of a block. */
struct arena_header {
    char magic[8];
    uint64_t block;
    _Atomic uint32_t retired;
};
static const char magic[8] = "tutti-a";
struct block {
    uint64_t number;
    unsigned char *base;
    /* `bytes` includes the header's page. */
    size_t bytes;
    int descriptor;
};
static pthread_mutex_t growth = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
/* A region of the heap is a block without its header. */
static struct heap heap;
/* The blocks are sorted by address. */
static struct block blocks[MOST_BLOCKS];
static int block_count;
/* The spare block is kept although it is wholly free; number 0 means no spare block. */
static struct block spare;
static uint64_t last_number;
/* A forked child has the blocks of its parent here. */
static struct block *inherited;
static int inherited_count;
/* A copy of `blocks` that threads read without a lock. */
static struct {
    /* The version is odd while the table is being changed. */
    _Atomic uint32_t version;
    _Atomic int count;
    struct { _Atomic uintptr_t base; _Atomic size_t bytes; _Atomic uint64_t number; } row[MOST_BLOCKS];
} table;

/* ---- the table ---- */
/* Copies the list of blocks into the table; the caller holds `lock`. Release and acquire on each row order the rows
   between the two versions, without fences. */
static void block_table_publish(void)
{
    uint32_t version = atomic_load_explicit(&table.version, memory_order_relaxed);
    atomic_store_explicit(&table.version, version + 1, memory_order_relaxed);
    atomic_store_explicit(&table.count, block_count, memory_order_release);
    for (int i = 0; i < block_count; i++) {
        atomic_store_explicit(&table.row[i].base, (uintptr_t)blocks[i].base, memory_order_release);
        atomic_store_explicit(&table.row[i].bytes, blocks[i].bytes, memory_order_release);
        atomic_store_explicit(&table.row[i].number, blocks[i].number, memory_order_release);
    }
    atomic_store_explicit(&table.version, version + 2, memory_order_release);
}
/* Returns row i of the table as a block without its descriptor. */
static struct block block_table_row(int i)
{
    return (struct block){ .base = (unsigned char *)atomic_load_explicit(&table.row[i].base, memory_order_acquire),
        .bytes = atomic_load_explicit(&table.row[i].bytes, memory_order_acquire),
        .number = atomic_load_explicit(&table.row[i].number, memory_order_acquire) };
}
/* Returns the last row whose base is not above the address, or the first row if every base is; a block with number 0 if
   the table is empty. If rows change meanwhile, the result may be wrong, but the index stays within bounds; the caller
   then searches again. */
static struct block block_table_find_address(uintptr_t at)
{
    int low = 0, high = atomic_load_explicit(&table.count, memory_order_acquire);
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (atomic_load_explicit(&table.row[middle].base, memory_order_acquire) <= at) low = middle;
        else high = middle;
    }
    return high ? block_table_row(low) : (struct block){ 0 };
}
/* Returns the row of that block, or a block with number 0. */
static struct block block_table_find_number(uint64_t number)
{
    int count = atomic_load_explicit(&table.count, memory_order_acquire), i = 0;
    while (i < count && atomic_load_explicit(&table.row[i].number, memory_order_acquire) != number) i++;
    return i < count ? block_table_row(i) : (struct block){ 0 };
}
/* Reads a block from the table without a lock: the one with that number, or for number 0 the one that may contain the
   address. Retries while the table is being changed. Returns false if there is no such block. */
static bool block_table_read(uintptr_t at, uint64_t number, struct block *out)
{
    for (;;) {
        uint32_t before = atomic_load_explicit(&table.version, memory_order_acquire);
        *out = number ? block_table_find_number(number) : block_table_find_address(at);
        if (!(before & 1) && atomic_load_explicit(&table.version, memory_order_relaxed) == before)
            return out->number != 0;
    }
}
bool arena_find(const void *at, size_t bytes, struct location *out)
{
    struct block b;
    uintptr_t address = (uintptr_t)at;
    if (!block_table_read(address, 0, &b) || address < (uintptr_t)b.base) return false;
    size_t offset = address - (uintptr_t)b.base;
    if (offset >= b.bytes || bytes > b.bytes - offset) return false;
    *out = (struct location){ b.number, offset };
    return true;
}
void *arena_location_address(struct location location, uint64_t bytes)
{
    struct block b;
    bool inside = location.block && block_table_read(0, location.block, &b) && location.offset <= b.bytes
        && bytes <= b.bytes - location.offset;
    return inside ? b.base + location.offset : NULL;
}
struct arena_block arena_block(uint64_t number)
{
    struct block b;
    bool found = number && block_table_read(0, number, &b);
    return found ? (struct arena_block){ b.base, b.bytes } : (struct arena_block){ NULL, 0 };
}
struct arena_size arena_get_size(void)
{
    struct arena_size out = { 0, 0 };
    pthread_mutex_lock(&lock);
    for (; out.blocks < block_count; out.blocks++) out.bytes += blocks[out.blocks].bytes;
    pthread_mutex_unlock(&lock);
    return out;
}

/* ---- blocks ---- */
static struct arena_header *block_header_of(void *base) { return base; }
/* These return the part of a block that the heap gives out: all pages but the first, which has the header. */
static unsigned char *block_region_of(const struct block *b) { return b->base + page_bytes(); }
static size_t block_region_bytes(const struct block *b) { return b->bytes - page_bytes(); }
/* Marks a block as retired, frees its memory at once, even if other processes still map it, and closes its descriptor.
   A part that the block does not have (base NULL, descriptor -1) is skipped. */
static void block_free_memory(struct block *b)
{
    if (b->base) {
        atomic_store(&block_header_of(b->base)->retired, 1);
        memfd_discard(b->descriptor, page_bytes(), block_region_bytes(b));
        munmap(b->base, b->bytes);
    }
    if (b->descriptor >= 0) close(b->descriptor);
}
/* Allocates the memory of a block in a sealed memfd, and maps it. */
static tutti_status block_allocate_memory(struct block *b)
{
    TRY(memory_check(b->bytes, "shared tensors"));
    TRY(memfd_create_sealed(b->bytes, &b->descriptor));
    TRY(memfd_allocate(b->descriptor, 0, b->bytes, "shared tensors"));
    void *base = mmap(NULL, b->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->descriptor, 0);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY,
            "no memory for shared tensors: %zu bytes could not be mapped: %s (limit on address space? see ulimit -v)",
            b->bytes, strerror(errno));
    b->base = base;
    memcpy(block_header_of(base)->magic, magic, sizeof magic);
    block_header_of(base)->block = b->number;
    return TUTTI_OK;
}
/* Makes a block of `bytes` bytes with a new number, not yet in the arena. The caller holds `growth`. */
static tutti_status arena_make_block(size_t bytes, struct block *out)
{
    struct block made = { .number = ++last_number, .bytes = bytes, .descriptor = -1 };
    tutti_status status = block_allocate_memory(&made);
    if (status == TUTTI_OK) *out = made;
    else block_free_memory(&made);
    return status;
}
/* Adds a block to the heap, the list and the table, which must have a free row. Returns false, without adding it, if
   memory for the heap's bookkeeping is short. The caller holds `lock`. */
static bool arena_insert_block(const struct block *b)
{
    int at = block_count;
    if (!heap_add_region(&heap, block_region_of(b), block_region_bytes(b))) return false;
    for (; at > 0 && blocks[at - 1].base > b->base; at--) blocks[at] = blocks[at - 1];
    blocks[at] = *b;
    block_count++;
    block_table_publish();
    return true;
}
/* Returns the index in `blocks` of the block with that region of the heap, which must exist. */
static int arena_block_index(const void *region)
{
    int at = 0;
    while (block_region_of(&blocks[at]) != region) at++;
    return at;
}
/* Removes the block with that index, which is wholly free, from the arena; the caller frees it. */
static struct block arena_remove_block(int index)
{
    struct block removed = blocks[index];
    heap_remove_region(&heap, block_region_of(&removed));
    for (block_count--; index < block_count; index++) blocks[index] = blocks[index + 1];
    block_table_publish();
    return removed;
}

bool arena_give_up_spare(void)
{
    struct block old = { .descriptor = -1 };
    pthread_mutex_lock(&lock);
    bool has_spare = spare.number != 0;
    if (has_spare) old = arena_remove_block(arena_block_index(block_region_of(&spare)));
    spare = (struct block){ 0 };
    pthread_mutex_unlock(&lock);
    block_free_memory(&old);
    return has_spare;
}
void *shared_file_map(int descriptor, size_t bytes)
{
    void *at;
    do at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    while (at == MAP_FAILED && arena_give_up_spare());
    return at;
}

/* ---- allocating ---- */
/* Allocates memory in the blocks that exist, or returns NULL if they have no room. The spare block stops being spare if
   the memory is in it. */
static void *arena_allocate_part(size_t bytes, size_t alignment)
{
    pthread_mutex_lock(&lock);
    unsigned char *at = heap_allocate(&heap, bytes, alignment);
    if (at && spare.bytes && at >= spare.base && at < spare.base + spare.bytes) spare = (struct block){ 0 };
    pthread_mutex_unlock(&lock);
    return at;
}
/* Makes a new block of `bytes` bytes and adds it to the arena. */
static tutti_status arena_add_block(size_t bytes)
{
    struct block b;
    TRY(arena_make_block(bytes, &b));
    pthread_mutex_lock(&lock);
    bool has_row = block_count < MOST_BLOCKS, is_added = has_row && arena_insert_block(&b);
    pthread_mutex_unlock(&lock);
    if (is_added) return TUTTI_OK;
    block_free_memory(&b);
    if (has_row) return status_fail(TUTTI_NO_MEMORY, "no memory to manage %zu bytes of shared tensors", bytes);
    return status_fail(TUTTI_NO_MEMORY,
        "no memory for shared tensors: %zu bytes would need more blocks than the limit of %d", bytes, MOST_BLOCKS);
}
/* Returns the preferred bytes of the next block: a quarter of the arena, which keeps the number of blocks small. While
   that number is small, a block is at most as large as the spare one may be. Otherwise a small tensor that is freed and
   allocated repeatedly could make a large block each time. */
static size_t arena_preferred_block_bytes(void)
{
    struct arena_size size = arena_get_size();
    size_t most = size.blocks < MANY_BLOCKS ? SPARE_BYTES : SIZE_MAX, quarter = size.bytes / 4;
    size_t preferred = quarter < BLOCK_BYTES ? BLOCK_BYTES : quarter < most ? quarter : most;
    return size_round_up(preferred, page_bytes());
}
/* Adds a block with room for `bytes` bytes: of the preferred size, or of the needed size if memory is short. Before it
   fails, it gives the spare block up and tries again. */
static tutti_status arena_grow(size_t bytes)
{
    size_t needed, preferred = arena_preferred_block_bytes();
    if (!size_add(bytes, 2 * page_bytes() - 1, &needed) || needed > PTRDIFF_MAX)
        return status_fail(TUTTI_NO_MEMORY, "no memory for shared tensors: %zu bytes exceed the address space", bytes);
    needed = needed / page_bytes() * page_bytes();
    tutti_status status = preferred > needed ? arena_add_block(preferred) : TUTTI_NO_MEMORY;
    if (status != TUTTI_OK) status = arena_add_block(needed);
    while (status != TUTTI_OK && arena_give_up_spare()) status = arena_add_block(needed);
    return status;
}
tutti_status arena_allocate(size_t bytes, void **out)
{
    size_t alignment = SMALL_ALIGNMENT, whole = bytes;
    arena_prepare();
    if (bytes >= LARGE_BYTES) {
        alignment = page_bytes();
        if (!size_add(bytes, alignment - 1, &whole)) whole = bytes;
        else whole = whole / alignment * alignment;
    }
    void *at = arena_allocate_part(whole, alignment);
    tutti_status status = TUTTI_OK;
    if (!at) {
        pthread_mutex_lock(&growth);
        while (!(at = arena_allocate_part(whole, alignment)) && status == TUTTI_OK) status = arena_grow(whole);
        pthread_mutex_unlock(&growth);
    }
    if (at) *out = at;
    return at ? TUTTI_OK : status;
}

/* ---- giving back ---- */
/* Returns true if the address is in a block that this child process inherited from its parent. */
static bool arena_is_inherited(const void *at)
{
    const unsigned char *address = at;
    for (int i = 0; i < inherited_count; i++)
        if (address >= inherited[i].base && address < inherited[i].base + inherited[i].bytes) return true;
    return false;
}
/* Decides about the block of `region`, which has become wholly free: keeps it as the spare block, or removes it.
   Returns the block that the caller frees, which may be the former spare one, or a block without memory. The largest
   free block is kept, because making it again takes longest. A block of more than 64 MiB is never kept: glibc's malloc
   has the same limit, and a larger one would look like a leak. */
static struct block arena_retire_block(const void *region)
{
    int index = arena_block_index(region);
    if (block_region_bytes(&blocks[index]) > SPARE_BYTES) return arena_remove_block(index);
    if (!spare.number) {
        spare = blocks[index];
        return (struct block){ .descriptor = -1 };
    }
    if (blocks[index].bytes <= spare.bytes) return arena_remove_block(index);
    int spare_index = arena_block_index(block_region_of(&spare));
    spare = blocks[index];
    return arena_remove_block(spare_index);
}
tutti_status arena_free(void *at)
{
    void *region = NULL;
    struct block old = { .descriptor = -1 };
    if (!at) return TUTTI_OK;
    pthread_mutex_lock(&lock);
    bool is_ours = heap_free(&heap, at, &region), is_inherited = !is_ours && arena_is_inherited(at);
    if (is_ours && region) old = arena_retire_block(region);
    pthread_mutex_unlock(&lock);
    block_free_memory(&old);
    if (is_ours || is_inherited) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "tutti_mem_free of %p: tutti_mem_alloc did not return it, or it was freed before", at);
}

/* ---- fork ---- */
static void arena_lock_before_fork(void)
{
    pthread_mutex_lock(&growth);
    pthread_mutex_lock(&lock);
}
static void arena_unlock_in_parent(void)
{
    pthread_mutex_unlock(&lock);
    pthread_mutex_unlock(&growth);
}
/* In a forked child: replaces the shared mapping of a block by a private one, and closes its descriptor. */
static void block_remap_privately(struct block *b)
{
    void *same = mmap(b->base, b->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, b->descriptor, 0);
    /* If the private mapping fails, the child must at least not write the parent's data. */
    if (same == MAP_FAILED && mprotect(b->base, b->bytes, PROT_READ) != 0) munmap(b->base, b->bytes);
    close(b->descriptor);
    b->descriptor = -1;
}
/* In a forked child: empties the arena. The child keeps the list of its parent's blocks, so that it can ignore the
   freeing of inherited tensors. If memory for the list is short, freeing them is a harmless error. */
static void arena_adopt_in_child(void)
{
    if (!block_count) { arena_unlock_in_parent(); return; }
    for (int i = 0; i < block_count; i++) block_remap_privately(&blocks[i]);
    int count = inherited_count + block_count;
    struct block *list = memory_alloc_zeroed((size_t)count, sizeof *list);
    if (list) {
        if (inherited_count) memcpy(list, inherited, (size_t)inherited_count * sizeof *list);
        memcpy(list + inherited_count, blocks, (size_t)block_count * sizeof *list);
        free(inherited);
        inherited = list;
        inherited_count = count;
    }
    block_count = 0;
    spare = (struct block){ 0 };
    block_table_publish();
    heap_finish(&heap);
    arena_unlock_in_parent();
}
static void arena_register_fork(void)
{
    pthread_atfork(arena_lock_before_fork, arena_unlock_in_parent, arena_adopt_in_child);
}
void arena_prepare(void) { pthread_once(&once, arena_register_fork); }

/* ---- for peers ---- */
int arena_copy_descriptor(uint64_t number, size_t *bytes)
{
    int copy = -1;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < block_count; i++) {
        if (blocks[i].number != number) continue;
        *bytes = blocks[i].bytes;
        copy = fcntl(blocks[i].descriptor, F_DUPFD_CLOEXEC, 0);
        if (copy < 0) copy = -errno;
    }
    pthread_mutex_unlock(&lock);
    return copy;
}
/* Maps a block of another process, whose descriptor was received, and checks its size, its seals and its number. */
static tutti_status peer_block_map(int descriptor, uint64_t number, size_t bytes, const char *whose, void **out)
{
    TRY(memfd_check(descriptor, bytes, whose));
    void *base = bytes < page_bytes() ? MAP_FAILED : shared_file_map(descriptor, bytes);
    if (base == MAP_FAILED)
        return status_fail(TUTTI_NO_MEMORY,
            "cannot map %zu bytes of %s shared tensors: %s (limit on address space? see ulimit -v)", bytes, whose,
            strerror(errno));
    const struct arena_header *header = block_header_of(base);
    if (memcmp(header->magic, magic, sizeof magic) != 0 || header->block != number) {
        munmap(base, bytes);
        return status_fail(TUTTI_SYSTEM, "the received block of %s shared tensors is not the requested one", whose);
    }
    memory_keep_out_of_children(base, bytes);
    *out = base;
    return TUTTI_OK;
}
tutti_status arena_attach(int descriptor, uint64_t number, size_t bytes, const char *whose, void **out)
{
    tutti_status status = peer_block_map(descriptor, number, bytes, whose, out);
    close(descriptor);
    return status;
}
bool arena_block_is_retired(const void *attached)
{
    return atomic_load(&((const struct arena_header *)attached)->retired) != 0;
}
void arena_detach(void *attached, size_t bytes) { munmap(attached, bytes); }
