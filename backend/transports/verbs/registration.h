/* Memory that a device may read and write: registered, that is pinned and known to the device by a key, which costs
 * more than a small copy and is therefore kept where it can be.
 *
 * - A block of the arena is registered whole when a tensor in it is first used, and stays so until it is given back.
 * - What others register for good (rings, the segment) serves whoever uses a part of it.
 * - Other memory stays registered as long as it can be watched (mappings.h), within bounds; the longest unused goes
 *   first. Where it cannot be watched it is registered for one use.
 *
 * For one protection domain. Safe for several threads. Nothing here may be called by a child of fork but
 * registration_destroy: the device's keys are of its parent's memory. */
#pragma once
#include "backend/transports/verbs/library.h"

/* From here on registering for one transfer costs no more than copying: where memory is not kept, and the tensor not in
   what is registered for good, what is smaller goes through registered rings. */
enum { REGISTRATION_WORTH_BYTES = 256 << 10 };
struct registration;
struct registration_limits { size_t bytes; int entries; };     /* of memory that is kept while unused; 0: the default */
struct registered {
    struct ibv_mr *region; /* lkey, rkey; covers what was asked for, addresses are those of this process */
    int entry; /* this one and the next are for registration_give */
    bool for_good;
};
/* `domain` is the caller's, and outlives it. */
tutti_status registration_create(struct ibv_pd *domain, struct registration_limits limits, struct registration **out);
void registration_destroy(struct registration *registration);  /* all must have been given back; NULL is fine */

/* For a transfer; give it back after. The device may always read it, and write it if `writes`. What is only read may be
   memory that this process may not write. NO_MEMORY names the limit and what mends it. */
tutti_status registration_take(struct registration *registration, const void *at, size_t bytes, bool writes,
    struct registered *out);
/* For good: memory that stays mapped until it is given back. `access` as ibv_reg_mr has it. */
tutti_status registration_keep(struct registration *registration, void *at, size_t bytes, int access,
    struct registered *out);
/* Memory of another device, which has exported it as a descriptor: `bytes` from `offset` on, which peers shall address
   by `iova`. UNSUPPORTED: the library is too old for it, or the device cannot. */
tutti_status registration_of_dmabuf(struct registration *registration, int descriptor, uint64_t offset, size_t bytes,
    uint64_t iova, struct registered *out);
void registration_give(struct registration *registration, const struct registered *registered);

/* Lets go of what is registered, but gone or given back. Unused memory of the program stays pinned until then, so
   somebody calls it now and then, as whoever takes does. Cheap where there is nothing to do. */
void registration_sweep(struct registration *registration);
bool registration_keeps(const struct registration *registration);      /* memory can be watched here */
struct registration_counts { uint64_t hits, misses, once, evicted, gone; int entries; size_t bytes; };
struct registration_counts registration_count(struct registration *registration);
