/* The checker of order: two accesses to the same bytes, of which one is a write, must be ordered by a stream, an event,
   a wait for a value or a synchronization of a host. Memory must not be freed while an operation may use it. */
#pragma once
#include "tests/fake_cuda/machine.h"
#include "tests/fake_cuda/streams.h"

/* Declares that the operation will access these bytes. */
void operation_declare(struct operation *operation, struct location location, uint64_t bytes, bool writes);
/* Takes back what an operation has declared, for one that runs later or several times. The caller frees the list. */
struct declared {
    struct location location;
    uint64_t bytes;
    bool writes;
};
struct declared *operation_undeclare(struct operation *operation, size_t *count);
/* Checks the declared accesses of an operation against those of other streams. The stream's thread calls the first when
   the operation begins, and the second when it has ended. */
void accesses_begin(struct operation *operation);
void accesses_end(struct operation *operation);
/* Frees an operation that was not enqueued, without its declared accesses. */
void operation_forget(struct operation *operation);
/* Reports operations that have not ended and access these bytes, which the caller is about to free or unmap: operations
   of this process, or of all. */
void accesses_check_free(struct location location, uint64_t bytes, const char *call, bool of_all);
/* Forgets the accesses to bytes that have been freed. */
void accesses_forget(struct location location, uint64_t bytes);
