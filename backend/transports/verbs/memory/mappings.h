/* Reports when memory of this process is unmapped, moved, or loses its pages (munmap, mremap, brk, mmap over it,
 * madvise). A listener that keeps data by address (registrations with a device) receives each change with the lock
 * held. When mappings_lock_and_settle returns true, it has received all changes that were made before.
 *
 * The module uses userfaultfd, which needs no privilege for this; where it is forbidden, as in many containers, the
 * error gives the reason. The kernel does not report that a mapped file is truncated, or that holes are punched into it
 * through its descriptor.
 *
 * A thread that holds the lock of this module must neither allocate, nor free, nor wait for another thread. A thread
 * that unmaps memory may hold the allocator's lock while it waits for this module. */
#pragma once
#include "backend/base/status.h"
#include <stdint.h>

struct mapping_listener {
    /* The pages from begin to end have changed; the caller holds the lock. */
    void (*on_range_gone)(struct mapping_listener *listener, uintptr_t begin, uintptr_t end);
    struct mapping_listener *next;
};
/* Adds a listener. UNSUPPORTED means that memory cannot be watched here, for the reason in the error text; the caller
   must call mappings_remove_listener in this case too. */
tutti_status mappings_add_listener(struct mapping_listener *listener);
/* Removes the listener, if it was added. The last one ends the watching. */
void mappings_remove_listener(struct mapping_listener *listener);
/* Takes the lock after all completed changes of watched memory have been reported. false: changes may be unreported
   after a millisecond, because other threads change their memory without a pause; the lock is taken all the same. */
bool mappings_lock_and_settle(void);
/* Takes the lock without waiting for reports. */
void mappings_lock(void);
void mappings_unlock(void);
/* Watches the pages from `begin` to `end`, so that their changes are reported from now on. The caller holds the lock.
   false: the pages cannot be watched: they map a file on a disk or memory of shmat, or another userfaultfd watches
   them. */
bool mappings_watch_range(uintptr_t begin, uintptr_t end);
