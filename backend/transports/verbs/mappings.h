/* Tells when memory of this process stops being what it was: given back, moved, or its pages dropped (munmap, mremap,
 * brk, mmap over it, madvise). Whoever keeps something by address (what is registered with a device) is told before the
 * call in question returns, and before anybody can find something else at that address.
 *
 * It rests on userfaultfd, which needs no privilege for this; where it is forbidden, as in many containers, it is said
 * why. Not seen: that a file mapped there is cut, or has holes punched into it, by its descriptor.
 *
 * With the lock of this module held one may neither allocate nor free, nor wait for anybody else: a thread that gives
 * memory back may hold the allocator's lock, and waits for this module. */
#pragma once
#include "backend/base/status.h"
#include <stdint.h>

struct mapping_listener {
    /* The pages from begin to end are no more what they were; called with the lock held. */
    void (*gone)(struct mapping_listener *listener, uintptr_t begin, uintptr_t end);
    struct mapping_listener *next;
};
/* Begins to listen. UNSUPPORTED: nothing can be watched here, and the text says why; leave it to mappings_leave all
   the same. */
tutti_status mappings_join(struct mapping_listener *listener);
void mappings_leave(struct mapping_listener *listener);
/* Takes the lock. true: every change of watched memory that was over before has been told. false: other threads change
   their memory without a pause, and for a millisecond no moment was found at which that was certain. */
bool mappings_settle(void);
void mappings_lock(void);                               /* the lock alone */
void mappings_unlock(void);
/* With the lock held: changes of these pages are told from now on. false: they cannot be watched (a file of a
   disk is mapped there, or memory of shmat, or somebody else watches). */
bool mappings_watch(uintptr_t begin, uintptr_t end);
