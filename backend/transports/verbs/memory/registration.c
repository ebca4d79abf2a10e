/* One array of the cache has the entries, and a second one only their addresses for the linear search. A search of a
   few hundred takes less time than the device needs to begin a transfer. The lock is that of mappings.h, which keeps
   the entries consistent with the watched memory. A thread that holds it must neither allocate nor call the library,
   which allocates. */
#include "backend/transports/verbs/memory/registration.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/memory/arena.h"
#include "backend/transports/verbs/memory/mappings.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { ENTRIES = 1024, HINTS = 64, DROPS = 16 };
/* ONCE in place of an entry's index marks a registration that only its user has, for one transfer. */
enum { ONCE = -1 };
/* ALL, in place of the bytes to make room for, drops every entry without users. */
static const size_t ALL = SIZE_MAX;
enum { TENSOR_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
/* A PENDING entry is being registered, a READY one can be found, and a GONE one stays only for its users. */
enum registration_state { FREE, PENDING, READY, GONE };
struct registration_entry {
    struct ibv_mr *region;
    uintptr_t begin, end;
    /* `block` is the number of the arena's block, or 0; `last_used` is the cache's clock at the last use of the
       entry. */
    uint64_t block, last_used;
    int users;
    enum registration_state state;
    /* is_writable: the device may write the memory. is_permanent: the entry is never evicted. */
    bool is_writable, is_permanent;
};
struct registered_span { uintptr_t begin, end; };
struct registration_cache {
    struct mapping_listener listener;
    struct ibv_pd *domain;
    pid_t process;
    /* Memory can be watched here, so entries of private memory may stay when they have no user. */
    bool can_watch;
    struct registration_limits limits;
    struct registration_counts counts;
    uint64_t clock;
    /* Entries from `top` on have never been used. */
    int top;
    /* `spans` has the addresses of READY entries that are no block of the arena. */
    struct registered_span spans[ENTRIES];
    struct registration_entry entries[ENTRIES];
    int hints[HINTS];
};
static uintptr_t registration_page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

/* ---- finding, with the lock held ---- */
/* Returns where the index of the last hit for a page or a block is stored: a hash of `key` chooses one of HINTS. */
static int *registration_cache_hint_slot(struct registration_cache *cache, uint64_t key)
{
    return &cache->hints[(key * 0x9e3779b97f4a7c15u) >> 58];
}
/* Returns whether the entry with this index has the whole range, writable if is_written is set. */
static bool entry_serves(const struct registration_cache *cache, int index, uintptr_t begin, uintptr_t end,
    bool is_written)
{
    return cache->spans[index].begin <= begin && end <= cache->spans[index].end
        && (!is_written || cache->entries[index].is_writable);
}
/* Returns the index of an entry for a transfer of that range, or ONCE if no entry has it. */
static int registration_cache_find(struct registration_cache *cache, uintptr_t begin, uintptr_t end, bool is_written)
{
    int *hint = registration_cache_hint_slot(cache, begin / registration_page_bytes());
    if (entry_serves(cache, *hint, begin, end, is_written)) return *hint;
    for (int i = 0; i < cache->top; i++)
        if (entry_serves(cache, i, begin, end, is_written)) return *hint = i;
    return ONCE;
}
/* Returns whether the entry with this index is READY and has that block of the arena. */
static bool entry_is_block(const struct registration_cache *cache, int index, uint64_t block)
{
    return cache->entries[index].state == READY && cache->entries[index].block == block;
}
/* Returns the index of the entry of a block of the arena, or ONCE if the block has no entry. */
static int registration_cache_find_block(struct registration_cache *cache, uint64_t block)
{
    int *hint = registration_cache_hint_slot(cache, block);
    if (entry_is_block(cache, *hint, block)) return *hint;
    for (int i = 0; i < cache->top; i++)
        if (entry_is_block(cache, i, block)) return *hint = i;
    return ONCE;
}
/* Adds a user to the entry with this index, and writes the registration to *out. false: the index is ONCE. */
static bool entry_use(struct registration_cache *cache, int index, struct registered *out)
{
    if (index < 0) return false;
    cache->entries[index].users++;
    cache->entries[index].last_used = ++cache->clock;
    cache->counts.hits++;
    *out = (struct registered){ cache->entries[index].region, index, false };
    return true;
}

/* ---- adding and dropping entries, with the lock held ---- */
/* Returns whether an unused entry may be dropped to make room. */
static bool entry_is_evictable(const struct registration_entry *entry) { return !entry->block && !entry->is_permanent; }
/* Adds an evictable entry to the counts, or removes it from them if is_added is false. */
static void registration_cache_account_entry(struct registration_cache *cache, const struct registration_entry *entry,
    bool is_added)
{
    if (!entry_is_evictable(entry)) return;
    cache->counts.entries += is_added ? 1 : -1;
    cache->counts.bytes += is_added ? entry->end - entry->begin : -(entry->end - entry->begin);
}
/* Makes an entry GONE, so that no search finds it; its users keep it until they give it back. */
static void entry_hide(struct registration_cache *cache, int index)
{
    struct registration_entry *entry = &cache->entries[index];
    registration_cache_account_entry(cache, entry, false);
    entry->state = GONE;
    cache->spans[index] = (struct registered_span){ 0, 0 };
}
/* Hides the entries of memory that has changed in this range. The listener calls it with the lock held. */
static void registration_on_range_gone(struct mapping_listener *listener, uintptr_t begin, uintptr_t end)
{
    struct registration_cache *cache = (struct registration_cache *)(void *)listener;
    for (int i = 0; i < cache->top; i++) {
        const struct registration_entry *entry = &cache->entries[i];
        bool is_live = entry->state == READY || entry->state == PENDING;
        if (!is_live || !entry_is_evictable(entry) || entry->end <= begin || end <= entry->begin) continue;
        entry_hide(cache, i);
        cache->counts.gone++;
    }
}
/* Adds an entry to the cache. Returns its index, or ONCE if the cache is full: the registration is then used once. */
static int entry_add(struct registration_cache *cache, const struct registration_entry *entry)
{
    int i = 0;
    while (i < cache->top && cache->entries[i].state != FREE) i++;
    if (i == ENTRIES) return ONCE;
    if (i == cache->top) cache->top++;
    cache->entries[i] = *entry;
    registration_cache_account_entry(cache, entry, true);
    return i;
}
/* Frees a hidden entry, and returns its region, which the caller deregisters. */
static struct ibv_mr *entry_free(struct registration_cache *cache, int index)
{
    struct ibv_mr *region = cache->entries[index].region;
    cache->entries[index] = (struct registration_entry){ .state = FREE };
    return region;
}
/* Returns whether the arena has retired this block. block 0: false. */
static bool registration_block_is_retired(uint64_t block)
{
    return block && !arena_location_address((struct location){ block, 0 }, 1);
}
/* Returns whether an entry without users can be dropped at once: its memory is gone or retired, or `all` is set and the
   entry is not permanent. */
static bool entry_is_unneeded(const struct registration_entry *entry, bool all)
{
    if (entry->users || entry->state == FREE) return false;
    return entry->state == GONE || registration_block_is_retired(entry->block) || (all && !entry->is_permanent);
}
/* Returns the index of the least recently used evictable entry without users, or ONCE. */
static int registration_cache_find_longest_unused(const struct registration_cache *cache)
{
    int found = ONCE;
    for (int i = 0; i < cache->top; i++) {
        const struct registration_entry *entry = &cache->entries[i];
        if (entry->state != READY || entry->users || !entry_is_evictable(entry)) continue;
        if (found < 0 || entry->last_used < cache->entries[found].last_used) found = i;
    }
    return found;
}
/* Returns whether an entry of `more` bytes would exceed the limits. */
static bool registration_cache_is_full(const struct registration_cache *cache, size_t more)
{
    bool fits = more <= cache->limits.bytes && cache->counts.bytes <= cache->limits.bytes - more;
    return cache->counts.entries >= cache->limits.entries || !fits;
}
/* Frees entries, and writes up to DROPS regions of theirs to `out`, which the caller deregisters: entries that are gone
   or retired, then the least recently used ones until `more` bytes fit (ALL: all entries without users). Returns the
   number of regions. */
static int registration_cache_collect_dropped(struct registration_cache *cache, size_t more, struct ibv_mr *out[DROPS])
{
    int count = 0, i;
    for (i = 0; i < cache->top && count < DROPS; i++) {
        if (!entry_is_unneeded(&cache->entries[i], more == ALL)) continue;
        if (cache->entries[i].state == READY) entry_hide(cache, i);
        out[count++] = entry_free(cache, i);
    }
    while (more && count < DROPS && registration_cache_is_full(cache, more)
        && (i = registration_cache_find_longest_unused(cache)) >= 0) {
        entry_hide(cache, i);
        cache->counts.evicted++;
        out[count++] = entry_free(cache, i);
    }
    return count;
}

/* ---- calling the library, without the lock ---- */
/* Deregisters memory that is gone or retired, and evicts entries until `more` bytes fit. Returns the number of regions
   that it has deregistered. */
static int registration_cache_make_room(struct registration_cache *cache, size_t more)
{
    struct ibv_mr *dropped[DROPS];
    int count, total = 0;
    do {
        mappings_lock();
        count = registration_cache_collect_dropped(cache, more, dropped);
        mappings_unlock();
        for (int i = 0; i < count; i++) verbs.ibv_dereg_mr(dropped[i]);
        total += count;
    } while (count == DROPS);
    return total;
}
/* Registers memory with the device for this access (flags of ibv_reg_mr). Returns NULL with errno if the device
   refuses. If it lacks memory, unused entries are evicted and the call is repeated. */
static struct ibv_mr *registration_cache_register_region(struct registration_cache *cache, uintptr_t begin,
    uintptr_t end, int access)
{
    struct ibv_mr *region;
    do {
        errno = 0;
        region = verbs.ibv_reg_mr(cache->domain, (void *)begin, end - begin, access);
    } while (!region && errno == ENOMEM && registration_cache_make_room(cache, ALL) > 0);
    return region;
}
/* Registers the memory of a tensor, read-only if the process may only read it and is_written is false. Returns NULL
   with errno if the device refuses. *is_writable: the device may write the memory. */
static struct ibv_mr *registration_cache_register_tensor(struct registration_cache *cache, uintptr_t begin,
    uintptr_t end, bool is_written, bool *is_writable)
{
    struct ibv_mr *region = registration_cache_register_region(cache, begin, end, TENSOR_ACCESS);
    *is_writable = region != NULL;
    if (region || is_written || (errno != EFAULT && errno != EACCES && errno != EPERM)) return region;
    /* The memory may be read-only for this process. */
    return registration_cache_register_region(cache, begin, end, IBV_ACCESS_REMOTE_READ);
}
/* Returns NO_MEMORY. The text names the limit on locked memory (RLIMIT_MEMLOCK) and how to raise it, if there is a
   limit. */
static tutti_status registration_fail_limit(const char *device, size_t bytes)
{
    struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        return status_fail(TUTTI_NO_MEMORY, "%zu bytes cannot be registered with the RDMA device %s: no memory", bytes,
            device);
    return status_fail(TUTTI_NO_MEMORY,
        "%zu bytes cannot be registered with the RDMA device %s: this process may lock %llu KiB of memory. In the "
        "shell that starts it: ulimit -l unlimited. For all users: the lines \"* soft memlock unlimited\" and "
        "\"* hard memlock unlimited\" in /etc/security/limits.conf. In a systemd unit: LimitMEMLOCK=infinity. "
        "In a container: docker run --ulimit memlock=-1",
        bytes, device, (unsigned long long)limit.rlim_cur / 1024);
}
/* Returns the error of a registration that has failed with errno, with its meaning as text. */
static tutti_status registration_cache_fail_region(const struct registration_cache *cache, const void *at, size_t bytes)
{
    int error = errno;
    const char *device = verbs.ibv_get_device_name(cache->domain->context->device);
    if (error == ENOMEM) return registration_fail_limit(device, bytes);
    if (error == EFAULT)
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "%zu bytes at %p cannot be registered with the RDMA device %s: part of them is not memory that this "
            "process may use this way",
            bytes, at, device);
    return status_fail(TUTTI_SYSTEM, "%zu bytes at %p cannot be registered with the RDMA device %s: %s", bytes, at,
        device, strerror(error));
}

/* ---- taking ---- */
/* Adds a PENDING entry for memory that is about to be registered, and watches the memory unless it is a block of the
   arena. Returns its index, or ONCE if the registration cannot stay in the cache. The memory is watched before it is
   registered: a change in between makes the entry GONE, and its user gives it back. */
static int entry_begin(struct registration_cache *cache, uintptr_t begin, uintptr_t end, uint64_t block)
{
    struct registration_entry entry = { .begin = begin, .end = end, .block = block, .users = 1, .state = PENDING };
    mappings_lock();
    cache->counts.misses++;
    bool fits = block
        || (!registration_cache_is_full(cache, end - begin) && cache->can_watch && mappings_watch_range(begin, end));
    int index = fits ? entry_add(cache, &entry) : ONCE;
    cache->counts.once += index == ONCE;
    mappings_unlock();
    return index;
}
/* Stores the result of a registration (region NULL: it has failed) in its entry, which other threads may use from now
   on. Returns the registration of this user. */
static struct registered entry_finish(struct registration_cache *cache, int index, struct ibv_mr *region,
    bool is_writable)
{
    if (index == ONCE) return (struct registered){ region, ONCE, false };
    mappings_lock();
    struct registration_entry *entry = &cache->entries[index];
    entry->region = region;
    entry->is_writable = is_writable;
    entry->last_used = ++cache->clock;
    if (!region) {
        if (entry->state == PENDING) entry_hide(cache, index);
        entry_free(cache, index);
    } else if (entry->state == PENDING) {
        entry->state = READY;
        if (!entry->block) cache->spans[index] = (struct registered_span){ entry->begin, entry->end };
    }
    mappings_unlock();
    return (struct registered){ region, index, false };
}
/* Registers memory that is not in the cache, and adds it if possible. block: the block of the arena that the memory is,
   or 0. The region of the result is NULL if the device refuses. */
static struct registered registration_cache_take_new(struct registration_cache *cache, uintptr_t begin, uintptr_t end,
    bool is_written, uint64_t block)
{
    bool is_writable;
    bool is_cached = !block && cache->can_watch && end - begin <= cache->limits.bytes;
    registration_cache_make_room(cache, is_cached ? end - begin : 0);
    int index = entry_begin(cache, begin, end, block);
    struct ibv_mr *region = registration_cache_register_tensor(cache, begin, end, is_written, &is_writable);
    return entry_finish(cache, index, region, is_writable);
}
/* Takes the registration of a whole block of the arena. Returns false if the block is gone or cannot be registered. */
static bool registration_cache_take_block(struct registration_cache *cache, uint64_t number, struct registered *out)
{
    mappings_lock();
    bool found = entry_use(cache, registration_cache_find_block(cache, number), out);
    mappings_unlock();
    if (found) return true;
    struct arena_block whole = arena_block(number);
    uintptr_t begin = (uintptr_t)whole.base;
    if (!begin) return false;
    *out = registration_cache_take_new(cache, begin, begin + whole.bytes, true, number);
    return out->region != NULL;
}
tutti_status registration_cache_take(struct registration_cache *cache, const void *at, size_t bytes, bool is_written,
    struct registered *out)
{
    uintptr_t begin = (uintptr_t)at, end = begin + bytes, page = registration_page_bytes();
    struct registered taken;
    struct location location;
    assert(bytes && end > begin);
    if (!arena_find(at, bytes, &location) || !registration_cache_take_block(cache, location.block, &taken)) {
        /* The lock is taken in either case. false: changes may be unreported, so no entry can be trusted. */
        bool found = mappings_lock_and_settle()
            && entry_use(cache, registration_cache_find(cache, begin, end, is_written), &taken);
        mappings_unlock();
        if (!found)
            taken =
                registration_cache_take_new(cache, begin & ~(page - 1), (end + page - 1) & ~(page - 1), is_written, 0);
    }
    if (!taken.region) return registration_cache_fail_region(cache, at, bytes);
    *out = taken;
    return TUTTI_OK;
}
tutti_status registration_cache_add_permanent(struct registration_cache *cache, void *at, size_t bytes, int access,
    struct registered *out)
{
    uintptr_t begin = (uintptr_t)at;
    struct ibv_mr *region = registration_cache_register_region(cache, begin, begin + bytes, access);
    if (!region) return registration_cache_fail_region(cache, at, bytes);
    bool serves_tensors = (access & TENSOR_ACCESS) == TENSOR_ACCESS;
    struct registration_entry entry = { .region = region,
        .begin = begin,
        .end = begin + bytes,
        .users = 1,
        .state = READY,
        .is_writable = true,
        .is_permanent = true };
    mappings_lock();
    int index = entry_add(cache, &entry);
    if (index >= 0 && serves_tensors) cache->spans[index] = (struct registered_span){ entry.begin, entry.end };
    mappings_unlock();
    *out = (struct registered){ region, index, true };
    return TUTTI_OK;
}
tutti_status registration_cache_take_dmabuf(struct registration_cache *cache, int descriptor, uint64_t offset,
    size_t bytes, uint64_t iova, struct registered *out)
{
    const char *device = verbs.ibv_get_device_name(cache->domain->context->device);
    if (!verbs.ibv_reg_dmabuf_mr)
        return status_fail(TUTTI_UNSUPPORTED,
            "libibverbs is too old to register memory of another device (dmabuf): rdma-core 34 can");
    errno = 0;
    struct ibv_mr *region = verbs.ibv_reg_dmabuf_mr(cache->domain, offset, bytes, iova, descriptor, TENSOR_ACCESS);
    if (!region)
        return status_fail(errno == ENOMEM ? TUTTI_NO_MEMORY : TUTTI_UNSUPPORTED,
            "%zu bytes of another device cannot be registered with the RDMA device %s (dmabuf): %s", bytes, device,
            strerror(errno));
    *out = (struct registered){ region, ONCE, false };
    return TUTTI_OK;
}
void registration_cache_give(struct registration_cache *cache, const struct registered *registered)
{
    int index = registered->entry;
    struct ibv_mr *dropped = NULL;
    if (index == ONCE) dropped = registered->region;
    else {
        mappings_lock();
        struct registration_entry *entry = &cache->entries[index];
        entry->users--;
        if (registered->is_permanent) entry_hide(cache, index);
        if (entry->state == GONE && !entry->users) dropped = entry_free(cache, index);
        mappings_unlock();
    }
    if (dropped) verbs.ibv_dereg_mr(dropped);
}
void registration_cache_sweep(struct registration_cache *cache) { registration_cache_make_room(cache, 0); }
bool registration_cache_can_watch(const struct registration_cache *cache) { return cache->can_watch; }
struct registration_counts registration_cache_get_counts(struct registration_cache *cache)
{
    mappings_lock();
    struct registration_counts counts = cache->counts;
    mappings_unlock();
    return counts;
}

/* ---- creating and destroying ---- */
/* Replaces unset limits by a quarter of the machine's memory and half of ENTRIES, which is also the most entries. */
static struct registration_limits registration_limits_clamp(struct registration_limits limits)
{
    /* The other entries are for blocks of the arena and for permanent registrations. */
    enum { DEFAULT_ENTRIES = ENTRIES / 2 };
    uint64_t quarter = (uint64_t)sysconf(_SC_PHYS_PAGES) * registration_page_bytes() / 4;
    if (!limits.bytes) limits.bytes = (size_t)quarter;
    if (limits.entries <= 0 || limits.entries > DEFAULT_ENTRIES) limits.entries = DEFAULT_ENTRIES;
    return limits;
}
tutti_status registration_cache_create(struct ibv_pd *domain, struct registration_limits limits,
    struct registration_cache **out)
{
    struct registration_cache *cache = memory_alloc_zeroed(1, sizeof *cache);
    if (!cache) return status_fail(TUTTI_NO_MEMORY, "no memory for the list of registrations");
    cache->listener.on_range_gone = registration_on_range_gone;
    cache->domain = domain;
    cache->process = getpid();
    cache->limits = registration_limits_clamp(limits);
    cache->can_watch = mappings_add_listener(&cache->listener) == TUTTI_OK;
    if (!cache->can_watch) LOG(INFO, "private tensors are registered again for each message: %s", status_detail());
    *out = cache;
    return TUTTI_OK;
}
void registration_cache_destroy(struct registration_cache *cache)
{
    if (!cache) return;
    /* A forked child leaves the registrations of its parent alone. */
    if (cache->process == getpid()) {
        mappings_remove_listener(&cache->listener);
        for (int i = 0; i < cache->top; i++)
            if (cache->entries[i].region) verbs.ibv_dereg_mr(cache->entries[i].region);
    }
    free(cache);
}
