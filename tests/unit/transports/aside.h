/* Addresses far below all other mappings, for tests that unmap memory. If a call of mmap names no address, the kernel
   uses the highest gap. So a range that a test unmaps here stays a hole until the test maps it again, whatever other
   threads map meanwhile. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

/* Returns an address to pass to mmap for `bytes` bytes. Each call returns another range. */
static inline void *address_find_unused(size_t bytes)
{
    /* The ranges are 2^BELOW bytes (64 GiB) below an ordinary mapping, and at least APART bytes apart. */
    enum { BELOW = 36, APART = 1 << 16 };
    static _Atomic uintptr_t last;
    uintptr_t none = 0, room = (bytes / APART + 2) * APART;
    if (!last) {
        void *somewhere = mmap(NULL, APART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(somewhere, APART);
        atomic_compare_exchange_strong(&last, &none, (uintptr_t)somewhere / APART * APART - ((uintptr_t)1 << BELOW));
    }
    return (void *)(atomic_fetch_sub(&last, room) - room);
}
