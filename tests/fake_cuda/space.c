/* Addresses of device memory, its files, and what is mapped where. */
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/settings.h"
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const size_t window_bytes = 1ul << 36;
static const uint64_t trailer_magic = 0x66616b6563756461;
enum { TRAILER_BYTES = 4096, TABLE_MOST = 65536 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char *window, *shadow;
static struct physical *physicals;
static size_t used[DEVICES_MOST];
/* Sorted by address. */
static struct range {
    CUdeviceptr begin;
    size_t bytes;
} ranges[TABLE_MOST];
static struct mapping mappings[TABLE_MOST];
static size_t range_count, mapping_count;

void memory_lock(void) { pthread_mutex_lock(&lock); }
void memory_unlock(void) { pthread_mutex_unlock(&lock); }
uint64_t buffer_number(void)
{
    static uint64_t next;
    return __atomic_add_fetch(&next, 1, __ATOMIC_SEQ_CST);
}
size_t device_bytes_used(int device) { return used[device]; }

/* ---- addresses ---- */
static char *window_map(void)
{
    char *base = mmap(NULL, window_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) abort();
    return base;
}
static void window_open(void)
{
    if (window) return;
    char *base = window_map();
    shadow = window_map();
    __atomic_store_n(&window, base, __ATOMIC_RELEASE);
}
bool memory_is_device(CUdeviceptr address)
{
    const char *base = __atomic_load_n(&window, __ATOMIC_ACQUIRE);
    return base && address - (uintptr_t)base < window_bytes;
}
void *memory_shadow(CUdeviceptr address)
{
    return memory_is_device(address) ? shadow + (address - (uintptr_t)window) : (char *)(uintptr_t)address;
}
static size_t range_above(CUdeviceptr address)
{
    size_t at = 0;
    while (at < range_count && ranges[at].begin <= address) at++;
    return at;
}
static bool range_is_free(CUdeviceptr begin, size_t bytes)
{
    size_t above = range_above(begin);
    bool below_ends = !above || ranges[above - 1].begin + ranges[above - 1].bytes <= begin;
    return below_ends && (above == range_count || begin + bytes <= ranges[above].begin) && memory_is_device(begin)
        && memory_is_device(begin + bytes - 1);
}
static CUdeviceptr address_align(CUdeviceptr address, size_t alignment)
{
    return (address + alignment - 1) / alignment * alignment;
}
/* Takes the first addresses that are free. One granule stays free after each range, so that an access beyond it is
   found. */
CUdeviceptr space_take(size_t bytes, size_t alignment, CUdeviceptr hint)
{
    window_open();
    if (alignment < GRANULE) alignment = GRANULE;
    if (!bytes || bytes > window_bytes || range_count == TABLE_MOST) return 0;
    CUdeviceptr begin = hint && hint % alignment == 0 && range_is_free(hint, bytes) ? hint : 0;
    if (!begin) begin = address_align((uintptr_t)window, alignment);
    for (size_t i = 0; i < range_count && !range_is_free(begin, bytes); i++)
        begin = address_align(ranges[i].begin + ranges[i].bytes + GRANULE, alignment);
    if (!range_is_free(begin, bytes)) return 0;
    size_t at = range_above(begin);
    memmove(ranges + at + 1, ranges + at, (range_count++ - at) * sizeof *ranges);
    ranges[at] = (struct range){ begin, bytes };
    return begin;
}
bool space_give(CUdeviceptr address, size_t bytes)
{
    size_t above = range_above(address);
    if (!above || ranges[above - 1].begin != address || ranges[above - 1].bytes != bytes) return false;
    memmove(ranges + above - 1, ranges + above, (range_count-- - above) * sizeof *ranges);
    return true;
}
bool space_contains(CUdeviceptr address, size_t bytes)
{
    size_t above = range_above(address);
    return above && address + bytes <= ranges[above - 1].begin + ranges[above - 1].bytes;
}

/* ---- files ---- */
static struct trailer *trailer_map(int fd, size_t bytes)
{
    void *trailer = mmap(NULL, TRAILER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)bytes);
    return trailer == MAP_FAILED ? NULL : trailer;
}
static uint64_t file_identity(int fd)
{
    struct stat status;
    return fstat(fd, &status) ? 0 : (uint64_t)status.st_dev << 40 ^ (uint64_t)status.st_ino << 1 ^ 1;
}
static struct physical *physical_add(struct physical physical)
{
    struct physical *added = malloc(sizeof *added);
    if (!added) abort();
    *added = physical;
    added->next = physicals;
    return physicals = added;
}
struct physical *physical_create(int device, size_t bytes, unsigned handle_types)
{
    if (bytes > settings()->memory_bytes - used[device]) return NULL;
    int fd = memfd_create("fake device memory", MFD_CLOEXEC);
    struct trailer *trailer = NULL;
    if (fd >= 0 && ftruncate(fd, (off_t)(bytes + TRAILER_BYTES)) == 0) trailer = trailer_map(fd, bytes);
    if (!trailer) {
        if (fd >= 0) close(fd);
        return NULL;
    }
    uint64_t file = file_identity(fd);
    *trailer = (struct trailer){ trailer_magic, file, bytes, device, getpid(), handle_types, 0, { 0 } };
    used[device] += bytes;
    return physical_add((struct physical){ NULL, 1, fd, bytes, device, file, handle_types, false, trailer });
}
static void importer_replace(struct trailer *trailer, int32_t from, int32_t to)
{
    for (int i = 0; i < IMPORTERS; i++)
        if (__atomic_compare_exchange_n(&trailer->importers[i], &(int32_t){ from }, to, false, __ATOMIC_SEQ_CST,
                __ATOMIC_SEQ_CST))
            return;
}
struct physical *physical_import(int fd)
{
    struct stat status;
    if (fd < 0 || fstat(fd, &status) || status.st_size <= TRAILER_BYTES) return NULL;
    size_t bytes = (size_t)status.st_size - TRAILER_BYTES;
    struct trailer *trailer = trailer_map(fd, bytes);
    if (trailer && (trailer->magic != trailer_magic || trailer->device >= settings()->devices)) {
        munmap(trailer, TRAILER_BYTES);
        trailer = NULL;
    }
    int own = trailer ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    if (own < 0) return NULL;
    importer_replace(trailer, 0, getpid());
    return physical_add((struct physical){
        NULL, 1, own, bytes, trailer->device, trailer->file, trailer->handle_types, true, trailer });
}
bool physical_exists(const struct physical *physical)
{
    const struct physical *at = physicals;
    while (at && at != physical) at = at->next;
    return at;
}
void physical_drop(struct physical *physical)
{
    if (--physical->references) return;
    if (physical->is_imported) importer_replace(physical->trailer, getpid(), 0);
    else used[physical->device] -= physical->bytes;
    struct physical **at = &physicals;
    while (*at != physical) at = &(*at)->next;
    *at = physical->next;
    munmap(physical->trailer, TRAILER_BYTES);
    close(physical->fd);
    free(physical);
}

/* ---- mappings ---- */
static size_t mapping_above(CUdeviceptr address)
{
    size_t low = 0, high = mapping_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (mappings[middle].begin <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}
bool mapping_add(CUdeviceptr address, struct physical *physical, enum mapping_kind kind)
{
    size_t at = mapping_above(address), bytes = physical->bytes;
    void *program = (void *)(uintptr_t)address;
    if (mapping_count == TABLE_MOST) return false;
    if (mmap(memory_shadow(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, physical->fd, 0)
            == MAP_FAILED
        || mmap(program, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->fd, 0) == MAP_FAILED)
        return false;
    memmove(mappings + at + 1, mappings + at, (mapping_count++ - at) * sizeof *mappings);
    mappings[at] = (struct mapping){ address, bytes, physical, kind, 0, 0, 1, buffer_number() };
    physical->references++;
    return true;
}
void mapping_remove(struct mapping *mapping)
{
    struct mapping removed = *mapping;
    void *views[] = { (void *)(uintptr_t)removed.begin, memory_shadow(removed.begin) };
    for (int i = 0; i < 2; i++)
        if (mmap(views[i], removed.bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0)
            == MAP_FAILED)
            abort();
    size_t at = (size_t)(mapping - mappings);
    memmove(mappings + at, mappings + at + 1, (--mapping_count - at) * sizeof *mappings);
    physical_drop(removed.physical);
}
struct mapping *mapping_from(CUdeviceptr address)
{
    size_t above = mapping_above(address);
    if (above && address < mappings[above - 1].begin + mappings[above - 1].bytes) above--;
    return above < mapping_count ? &mappings[above] : NULL;
}
struct mapping *mapping_find(CUdeviceptr address)
{
    struct mapping *mapping = mapping_from(address);
    return mapping && mapping->begin <= address ? mapping : NULL;
}
struct mapping *mapping_of_file(uint64_t file, enum mapping_kind kind)
{
    for (size_t i = 0; i < mapping_count; i++)
        if (mappings[i].physical->file == file && mappings[i].kind == kind) return &mappings[i];
    return NULL;
}
