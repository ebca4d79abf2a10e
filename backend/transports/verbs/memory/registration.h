/* Registers memory that a device may read and write: the memory is pinned, and the device knows it by a key. This
 * costs more than a small copy, so registrations are kept where possible.
 *
 * - A block of the arena is registered whole when a tensor in it is first used, until the arena retires it.
 * - Permanent registrations (rings, the segment) also serve transfers of any part of them.
 * - Other memory stays registered while it can be watched (mappings.h), within limits; the least recently used goes
 *   first. Memory that cannot be watched is registered for one transfer.
 *
 * One object serves one protection domain, and any number of threads. A forked child may call only
 * registration_destroy, because the device's keys belong to the parent's memory. */
#pragma once
#include "backend/transports/verbs/device/library.h"

struct registration;
/* The limits of kept registrations that may be evicted; 0 means the default. */
struct registration_limits { size_t bytes; int entries; };
/* The region covers at least the requested memory, by addresses of this process. The other fields are for
   registration_give. */
struct registered {
    struct ibv_mr *region;
    int entry;
    bool for_good;
};
/* Creates the registrations of a protection domain, which the caller owns and destroys later. */
tutti_status registration_create(struct ibv_pd *domain, struct registration_limits limits, struct registration **out);
/* Every registration must have been given back; NULL is allowed. */
void registration_destroy(struct registration *registration);

/* Registers memory for a transfer; the caller gives it back afterwards. The device may read the memory, and write it if
   `writes` is set. Memory that the device only reads may be read-only for this process. The text of NO_MEMORY names the
   limit and how to raise it. */
tutti_status registration_take(struct registration *registration, const void *at, size_t bytes, bool writes,
    struct registered *out);
/* Registers memory permanently; it must stay mapped until it is given back. `access` has the flags of ibv_reg_mr. */
tutti_status registration_keep(struct registration *registration, void *at, size_t bytes, int access,
    struct registered *out);
/* Registers memory that another device has exported as a descriptor: `bytes` from `offset` on, which peers address by
   `iova`. UNSUPPORTED means that the library is too old or that the device cannot do it. */
tutti_status registration_take_dmabuf(struct registration *registration, int descriptor, uint64_t offset, size_t bytes,
    uint64_t iova, struct registered *out);
void registration_give(struct registration *registration, const struct registered *registered);

/* Deregisters memory that the program has unmapped or the arena has retired; it stays pinned until then. Every
   registration_take that registers new memory sweeps as well. A sweep that finds no such memory is cheap. */
void registration_sweep(struct registration *registration);
/* Returns true if memory can be watched here, so that registrations are kept. */
bool registration_can_keep(const struct registration *registration);
struct registration_counts { uint64_t hits, misses, once, evicted, gone; int entries; size_t bytes; };
struct registration_counts registration_get_counts(struct registration *registration);
