/* Registers memory that a device may read and write: the memory is pinned, and the device knows it by a key. This
 * costs more than a small copy, so a cache has the registrations of memory that transfers use.
 *
 * - A block of the arena is registered whole when a tensor in it is first used, until the arena retires it.
 * - Other memory stays cached while it can be watched (mappings.h), within limits; the least recently used goes first.
 *   Memory that cannot be watched is registered for one transfer.
 * - Permanent registrations last until they are given back. They also serve transfers of any part of them, if the
 *   device may read and write them and the cache has room for their entry.
 *
 * One cache serves one protection domain, and any number of threads. A forked child may call only
 * registration_cache_destroy, because the device's keys belong to the parent's memory. */
#pragma once
#include "backend/transports/verbs/device/library.h"

struct registration_cache;
/* The limits of the entries that may be evicted: those that are neither a block of the arena nor permanent. 0 means the
   default. */
struct registration_limits { size_t bytes; int entries; };
/* A registration that its user holds. The region covers at least the requested memory, by addresses of this process.
   The other fields are for registration_cache_give: the index of the registration's entry in the cache, or -1 without
   an entry, and whether the entry is permanent. */
struct registered {
    struct ibv_mr *region;
    int entry;
    bool is_permanent;
};
/* Creates the cache of a protection domain. The caller owns the domain, and destroys the cache before it. */
tutti_status registration_cache_create(struct ibv_pd *domain, struct registration_limits limits,
    struct registration_cache **out);
/* Destroys the cache with its entries. Every registration must have been given back; NULL is allowed. */
void registration_cache_destroy(struct registration_cache *cache);

/* Registers memory for a transfer; the caller gives it back afterwards. The device may read the memory, and write it if
   `is_written` is set. Memory that the device only reads may be read-only for this process. NO_MEMORY: the text names
   the limit on locked memory and how to raise it, if there is a limit. INVALID_ARGUMENT: part of the bytes is not
   memory that this process may use this way. SYSTEM: any other error of the device. */
tutti_status registration_cache_take(struct registration_cache *cache, const void *at, size_t bytes, bool is_written,
    struct registered *out);
/* Gives back a registration. One that is in no entry of the cache, or whose memory is gone, is deregistered. */
void registration_cache_give(struct registration_cache *cache, const struct registered *registered);

/* Deregisters memory that the program has unmapped or the arena has retired; it stays pinned until then. Every
   registration_cache_take that registers new memory sweeps as well. A sweep that finds no such memory is cheap. */
void registration_cache_sweep(struct registration_cache *cache);

/* ---- only tests call these so far ---- */
/* Registers memory that another device has exported as a descriptor: `bytes` from `offset` on, which peers address by
   `iova`. It is for the memory of GPUs, which tensors do not use yet. UNSUPPORTED: the library is too old, or the
   device cannot do it. */
tutti_status registration_cache_take_dmabuf(struct registration_cache *cache, int descriptor, uint64_t offset,
    size_t bytes, uint64_t iova, struct registered *out);
/* Registers memory permanently; it must stay mapped until it is given back. `access` has the flags of ibv_reg_mr. The
   eager rings and the slots of datagrams do not use it: no tensor lies in them, so they need no entry of a cache. */
tutti_status registration_cache_add_permanent(struct registration_cache *cache, void *at, size_t bytes, int access,
    struct registered *out);
/* Returns whether memory can be watched here, so that its registrations are cached. */
bool registration_cache_can_watch(const struct registration_cache *cache);
/* `hits` and `misses` count lookups, `once` registrations for one transfer, `evicted` entries that made room for
   others, and `gone` entries whose memory has changed. `entries` and `bytes` count what the limits apply to. */
struct registration_counts { uint64_t hits, misses, once, evicted, gone; int entries; size_t bytes; };
struct registration_counts registration_cache_get_counts(struct registration_cache *cache);
