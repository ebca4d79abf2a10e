/* One array has the entries, and a second one only their addresses for the linear search. A search of a few hundred
   takes less time than the device needs to begin a transfer. The lock is that of mappings.h, which keeps the entries
   consistent with the watched memory. A thread that holds it must neither allocate nor call the library, which
   allocates. */
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
/* ONCE in place of an entry marks a registration that only its user has. */
enum { ONCE = -1 };
/* ALL as the bytes to make room for drops every entry that is unused. */
static const size_t ALL = SIZE_MAX;
enum { TENSOR_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ };
/* A PENDING entry is being registered, a READY one can be found, and a GONE one stays only for its users. */
enum registration_state { FREE, PENDING, READY, GONE };
struct registration_entry {
    struct ibv_mr *region;
    uintptr_t begin, end;
    /* `block` is the number of the arena's block, or 0; `used` is the registration's clock at its last use. */
    uint64_t block, used;
    int users;
    enum registration_state state;
    bool writable, for_good;
};
struct registered_span { uintptr_t begin, end; };
struct registration {
    struct mapping_listener listener;
    struct ibv_pd *domain;
    pid_t process;
    bool watches;
    struct registration_limits limits;
    /* The entries and bytes in `counts` are those that can be evicted. */
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
static int *registration_hint_slot(struct registration *r, uint64_t key)
{
    return &r->hints[(key * 0x9e3779b97f4a7c15u) >> 58];
}
static bool entry_serves(const struct registration *r, int i, uintptr_t begin, uintptr_t end, bool writes)
{
    return r->spans[i].begin <= begin && end <= r->spans[i].end && (!writes || r->entries[i].writable);
}
static int registration_find(struct registration *r, uintptr_t begin, uintptr_t end, bool writes)
{
    int *hint = registration_hint_slot(r, begin / registration_page_bytes());
    if (entry_serves(r, *hint, begin, end, writes)) return *hint;
    for (int i = 0; i < r->top; i++)
        if (entry_serves(r, i, begin, end, writes)) return *hint = i;
    return ONCE;
}
static bool entry_is_block(const struct registration *r, int i, uint64_t block)
{
    return r->entries[i].state == READY && r->entries[i].block == block;
}
static int registration_find_block(struct registration *r, uint64_t block)
{
    int *hint = registration_hint_slot(r, block);
    if (entry_is_block(r, *hint, block)) return *hint;
    for (int i = 0; i < r->top; i++)
        if (entry_is_block(r, i, block)) return *hint = i;
    return ONCE;
}
static bool entry_use(struct registration *r, int i, struct registered *out)
{
    if (i < 0) return false;
    r->entries[i].users++;
    r->entries[i].used = ++r->clock;
    r->counts.hits++;
    *out = (struct registered){ r->entries[i].region, i, false };
    return true;
}

/* ---- adding and dropping entries, with the lock held ---- */
static bool entry_is_evictable(const struct registration_entry *e) { return !e->block && !e->for_good; }
static void registration_account_entry(struct registration *r, const struct registration_entry *e, bool comes)
{
    if (!entry_is_evictable(e)) return;
    r->counts.entries += comes ? 1 : -1;
    r->counts.bytes += comes ? e->end - e->begin : -(e->end - e->begin);
}
/* Removes an entry from the search; its users keep it until they give it back. */
static void entry_hide(struct registration *r, int i)
{
    struct registration_entry *e = &r->entries[i];
    registration_account_entry(r, e, false);
    e->state = GONE;
    r->spans[i] = (struct registered_span){ 0, 0 };
}
static void registration_on_range_gone(struct mapping_listener *listener, uintptr_t begin, uintptr_t end)
{
    struct registration *r = (struct registration *)(void *)listener;
    for (int i = 0; i < r->top; i++) {
        const struct registration_entry *e = &r->entries[i];
        bool lives = e->state == READY || e->state == PENDING;
        if (!lives || !entry_is_evictable(e) || e->end <= begin || end <= e->begin) continue;
        entry_hide(r, i);
        r->counts.gone++;
    }
}
static int entry_add(struct registration *r, const struct registration_entry *e)
{
    int i = 0;
    while (i < r->top && r->entries[i].state != FREE) i++;
    if (i == ENTRIES) return ONCE;
    if (i == r->top) r->top++;
    r->entries[i] = *e;
    registration_account_entry(r, e, true);
    return i;
}
static struct ibv_mr *entry_free(struct registration *r, int i)
{
    struct ibv_mr *region = r->entries[i].region;
    r->entries[i] = (struct registration_entry){ .state = FREE };
    return region;
}
static bool registration_block_is_retired(uint64_t block)
{
    return block && !arena_location_address((struct location){ block, 0 }, 1);
}
static bool entry_is_unneeded(const struct registration_entry *e, bool all)
{
    if (e->users || e->state == FREE) return false;
    return e->state == GONE || registration_block_is_retired(e->block) || (all && !e->for_good);
}
static int registration_find_longest_unused(const struct registration *r)
{
    int found = ONCE;
    for (int i = 0; i < r->top; i++) {
        const struct registration_entry *e = &r->entries[i];
        if (e->state != READY || e->users || !entry_is_evictable(e)) continue;
        if (found < 0 || e->used < r->entries[found].used) found = i;
    }
    return found;
}
static bool registration_is_full(const struct registration *r, size_t more)
{
    bool fits = more <= r->limits.bytes && r->counts.bytes <= r->limits.bytes - more;
    return r->counts.entries >= r->limits.entries || !fits;
}
/* Collects up to DROPS regions to deregister: entries that are gone or retired, then the least recently used ones until
   `more` bytes fit. */
static int registration_collect_dropped(struct registration *r, size_t more, struct ibv_mr *out[DROPS])
{
    int count = 0, i;
    for (i = 0; i < r->top && count < DROPS; i++) {
        if (!entry_is_unneeded(&r->entries[i], more == ALL)) continue;
        if (r->entries[i].state == READY) entry_hide(r, i);
        out[count++] = entry_free(r, i);
    }
    while (more && count < DROPS && registration_is_full(r, more) && (i = registration_find_longest_unused(r)) >= 0) {
        entry_hide(r, i);
        r->counts.evicted++;
        out[count++] = entry_free(r, i);
    }
    return count;
}

/* ---- calling the library, without the lock ---- */
static int registration_make_room(struct registration *r, size_t more)
{
    struct ibv_mr *dropped[DROPS];
    int count, all = 0;
    do {
        mappings_lock();
        count = registration_collect_dropped(r, more, dropped);
        mappings_unlock();
        for (int i = 0; i < count; i++) verbs.ibv_dereg_mr(dropped[i]);
        all += count;
    } while (count == DROPS);
    return all;
}
static struct ibv_mr *registration_register_region(struct registration *r, uintptr_t begin, uintptr_t end, int access)
{
    struct ibv_mr *region;
    do {
        errno = 0;
        region = verbs.ibv_reg_mr(r->domain, (void *)begin, end - begin, access);
    } while (!region && errno == ENOMEM && registration_make_room(r, ALL) > 0);
    return region;
}
static struct ibv_mr *registration_register_tensor(struct registration *r, uintptr_t begin, uintptr_t end, bool writes,
    bool *writable)
{
    struct ibv_mr *region = registration_register_region(r, begin, end, TENSOR_ACCESS);
    *writable = region != NULL;
    if (region || writes || (errno != EFAULT && errno != EACCES && errno != EPERM)) return region;
    /* The memory may be read-only for this process. */
    return registration_register_region(r, begin, end, IBV_ACCESS_REMOTE_READ);
}
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
static tutti_status registration_fail_region(const struct registration *r, const void *at, size_t bytes)
{
    int error = errno;
    const char *device = verbs.ibv_get_device_name(r->domain->context->device);
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
/* The memory is watched before it is registered. A change in between makes the entry GONE, and its user gives it
   back. */
static int entry_begin(struct registration *r, uintptr_t begin, uintptr_t end, uint64_t block)
{
    struct registration_entry e = { .begin = begin, .end = end, .block = block, .users = 1, .state = PENDING };
    mappings_lock();
    r->counts.misses++;
    bool fits = block || (!registration_is_full(r, end - begin) && r->watches && mappings_watch_range(begin, end));
    int i = fits ? entry_add(r, &e) : ONCE;
    r->counts.once += i == ONCE;
    mappings_unlock();
    return i;
}
static struct registered entry_finish(struct registration *r, int i, struct ibv_mr *region, bool writable)
{
    if (i == ONCE) return (struct registered){ region, ONCE, false };
    mappings_lock();
    struct registration_entry *e = &r->entries[i];
    e->region = region;
    e->writable = writable;
    e->used = ++r->clock;
    if (!region) {
        if (e->state == PENDING) entry_hide(r, i);
        entry_free(r, i);
    } else if (e->state == PENDING) {
        e->state = READY;
        if (!e->block) r->spans[i] = (struct registered_span){ e->begin, e->end };
    }
    mappings_unlock();
    return (struct registered){ region, i, false };
}
static struct registered registration_take_new(struct registration *r, uintptr_t begin, uintptr_t end, bool writes,
    uint64_t block)
{
    bool writable;
    bool kept = !block && r->watches && end - begin <= r->limits.bytes;
    registration_make_room(r, kept ? end - begin : 0);
    int i = entry_begin(r, begin, end, block);
    struct ibv_mr *region = registration_register_tensor(r, begin, end, writes, &writable);
    return entry_finish(r, i, region, writable);
}
static bool registration_take_block(struct registration *r, uint64_t number, struct registered *out)
{
    mappings_lock();
    bool found = entry_use(r, registration_find_block(r, number), out);
    mappings_unlock();
    if (found) return true;
    struct arena_block whole = arena_block(number);
    uintptr_t begin = (uintptr_t)whole.base;
    if (!begin) return false;
    *out = registration_take_new(r, begin, begin + whole.bytes, true, number);
    return out->region != NULL;
}
tutti_status registration_take(struct registration *r, const void *at, size_t bytes, bool writes,
    struct registered *out)
{
    uintptr_t begin = (uintptr_t)at, end = begin + bytes, page = registration_page_bytes();
    struct registered taken;
    struct location location;
    assert(bytes && end > begin);
    if (!arena_find(at, bytes, &location) || !registration_take_block(r, location.block, &taken)) {
        bool found = mappings_lock_settled() && entry_use(r, registration_find(r, begin, end, writes), &taken);
        mappings_unlock();
        if (!found) taken = registration_take_new(r, begin & ~(page - 1), (end + page - 1) & ~(page - 1), writes, 0);
    }
    if (!taken.region) return registration_fail_region(r, at, bytes);
    *out = taken;
    return TUTTI_OK;
}
tutti_status registration_keep(struct registration *r, void *at, size_t bytes, int access, struct registered *out)
{
    uintptr_t begin = (uintptr_t)at;
    struct ibv_mr *region = registration_register_region(r, begin, begin + bytes, access);
    if (!region) return registration_fail_region(r, at, bytes);
    bool for_all = (access & TENSOR_ACCESS) == TENSOR_ACCESS;
    struct registration_entry e = { .region = region,
        .begin = begin,
        .end = begin + bytes,
        .users = 1,
        .state = READY,
        .writable = true,
        .for_good = true };
    mappings_lock();
    int i = entry_add(r, &e);
    if (i >= 0 && for_all) r->spans[i] = (struct registered_span){ e.begin, e.end };
    mappings_unlock();
    *out = (struct registered){ region, i, true };
    return TUTTI_OK;
}
tutti_status registration_take_dmabuf(struct registration *r, int descriptor, uint64_t offset, size_t bytes,
    uint64_t iova, struct registered *out)
{
    const char *device = verbs.ibv_get_device_name(r->domain->context->device);
    if (!verbs.ibv_reg_dmabuf_mr)
        return status_fail(TUTTI_UNSUPPORTED,
            "libibverbs is too old to register memory of another device (dmabuf): rdma-core 34 can");
    errno = 0;
    struct ibv_mr *region = verbs.ibv_reg_dmabuf_mr(r->domain, offset, bytes, iova, descriptor, TENSOR_ACCESS);
    if (!region)
        return status_fail(errno == ENOMEM ? TUTTI_NO_MEMORY : TUTTI_UNSUPPORTED,
            "%zu bytes of another device cannot be registered with the RDMA device %s (dmabuf): %s", bytes, device,
            strerror(errno));
    *out = (struct registered){ region, ONCE, false };
    return TUTTI_OK;
}
void registration_give(struct registration *r, const struct registered *registered)
{
    int i = registered->entry;
    struct ibv_mr *dropped = NULL;
    if (i == ONCE) dropped = registered->region;
    else {
        mappings_lock();
        struct registration_entry *e = &r->entries[i];
        e->users--;
        if (registered->for_good) entry_hide(r, i);
        if (e->state == GONE && !e->users) dropped = entry_free(r, i);
        mappings_unlock();
    }
    if (dropped) verbs.ibv_dereg_mr(dropped);
}
void registration_sweep(struct registration *r) { registration_make_room(r, 0); }
bool registration_can_keep(const struct registration *r) { return r->watches; }
struct registration_counts registration_get_counts(struct registration *r)
{
    mappings_lock();
    struct registration_counts counts = r->counts;
    mappings_unlock();
    return counts;
}

/* ---- creating and destroying ---- */
static struct registration_limits registration_limits_clamp(struct registration_limits limits)
{
    /* The other entries are for blocks of the arena and for permanent registrations. */
    enum { DEFAULT_ENTRIES = ENTRIES / 2 };
    uint64_t quarter = (uint64_t)sysconf(_SC_PHYS_PAGES) * registration_page_bytes() / 4;
    if (!limits.bytes) limits.bytes = (size_t)quarter;
    if (limits.entries <= 0 || limits.entries > DEFAULT_ENTRIES) limits.entries = DEFAULT_ENTRIES;
    return limits;
}
tutti_status registration_create(struct ibv_pd *domain, struct registration_limits limits, struct registration **out)
{
    struct registration *r = memory_alloc_zeroed(1, sizeof *r);
    if (!r) return status_fail(TUTTI_NO_MEMORY, "no memory for the list of registrations");
    r->listener.gone = registration_on_range_gone;
    r->domain = domain;
    r->process = getpid();
    r->limits = registration_limits_clamp(limits);
    r->watches = mappings_add_listener(&r->listener) == TUTTI_OK;
    if (!r->watches) LOG(INFO, "private tensors are registered again for each message: %s", status_detail());
    *out = r;
    return TUTTI_OK;
}
void registration_destroy(struct registration *r)
{
    if (!r) return;
    /* A forked child leaves the registrations of its parent alone. */
    if (r->process == getpid()) {
        mappings_remove_listener(&r->listener);
        for (int i = 0; i < r->top; i++)
            if (r->entries[i].region) verbs.ibv_dereg_mr(r->entries[i].region);
    }
    free(r);
}
