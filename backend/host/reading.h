/* Reads the private memory of another process of this host by single copy (process_vm_readv), and never writes it. A
 * process is named by its process id, which another process may have got since. So the same call also reads the nonce
 * that the process has sent when it connected, from the address that it has published. All bytes of a call come from
 * one process, so a right nonce proves that the data is that process's. */
#pragma once
#include "backend/host/socket.h"

/* A process that can be read; the fields stay constant. `process` is its id as this process sees it, or 0 if it is
   invisible. `nonce_at` is the address of its nonce in its memory, or 0 if unknown. */
struct read_source {
    int64_t process;
    uint64_t nonce_at;
    unsigned char nonce[NONCE_BYTES];
};
/* Copies `bytes` bytes from an address in the memory of another process to `to`. Returns 0 or -errno. -EPERM means that
   the kernel forbids it, -ESRCH that the process is gone, invisible, or another one has its id, and -EFAULT that the
   address is unreadable. After an error `to` may be written in part. */
int reading_copy(const struct read_source *from, void *to, uint64_t address, size_t bytes);
/* Tests whether the process can be read at all, by its nonce. Returns 0 or -errno, as reading_copy. */
int reading_test_source(const struct read_source *from);
/* Returns true if process_vm_readv can read this memory of this process; it cannot read the memory of a device. The
   function checks only the first and the last byte. */
bool reading_is_possible(const void *address, size_t bytes);
/* Returns the meaning of a -errno of reading_copy in words. */
const char *reading_reason(int error);
/* Describes for this process alone whether single copy works: "yes: …" or "no: …". */
const char *reading_describe(void);
/* Returns the status of an operation of `rank` that could not read a tensor of rank `owner` because of `error`, a
   -errno of reading_copy. IN_PROGRESS means that the owner may be gone, which its other connections will report.
   Otherwise it fails with SYSTEM and the reason. */
tutti_status reading_failure_status(const struct read_source *from, int error, int rank, int owner);
