/* The private memory of another process of this host, read where it lies: the kernel copies it (process_vm_readv). It
 * is never written. A process is named by a number, which another may have by the time it is used; so with the bytes,
 * in the same call, the nonce is read that the process has shown when it connected, from where it said that it lies.
 * All bytes of a call come from the memory of one process: if the nonce is right, so are they. */
#pragma once
#include "backend/host/socket.h"

struct source {                                         /* a process that can be read; constant */
    int64_t process;                                    /* its number, as this process sees it; 0: it does not */
    uint64_t nonce_at;                                  /* where in its memory its nonce lies; 0: it does not say */
    unsigned char nonce[NONCE_BYTES];
};
/* 0, or -errno: -EPERM: the kernel does not allow it; -ESRCH: it is gone, or another process has its number; -EFAULT:
   nothing can be read there. `to` may have been written in part. */
int reading_copy(const struct source *from, void *to, uint64_t at, size_t bytes);
/* Whether anything can be read of it at all: 0, or -errno as above, -ESRCH also when it cannot be seen. */
int reading_try(const struct source *from);
/* Whether others could read these bytes of this process, as far as the kernel goes by what kind of memory it is (not
   that of a device, for instance): looks at the first and the last. */
bool reading_is_possible(const void *at, size_t bytes);
const char *reading_reason(int error);                  /* what -errno of the above means */
/* What this process can know of it without others: "yes: …" or "no: …". */
const char *reading_describe(void);
/* What becomes of whatever needed the bytes, of a tensor of rank `owner`: IN_PROGRESS if that process may be gone,
   which is for others to find out and tell; else SYSTEM, in words. */
tutti_status reading_failed(const struct source *from, int error, int rank, int owner);
