/* Addresses far below all that is mapped, where the kernel, which takes the highest gap, puts nothing by itself: what
 * is unmapped here stays a hole until the test fills it, whatever other threads map meanwhile. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

static inline void *aside(size_t bytes)                 /* for mmap to begin at; each call another */
{
    enum { BELOW = 36, APART = 1 << 16 };               /* 64 GiB */
    static _Atomic uintptr_t last;
    uintptr_t none = 0, room = (bytes / APART + 2) * APART;
    if (!last) {
        void *somewhere = mmap(NULL, APART, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        munmap(somewhere, APART);
        atomic_compare_exchange_strong(&last, &none, (uintptr_t)somewhere / APART * APART - ((uintptr_t)1 << BELOW));
    }
    return (void *)(atomic_fetch_sub(&last, room) - room);
}
