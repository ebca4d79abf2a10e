/* Segments as this process maps them: once each, shared by all its ranks. A group has one segment for each host.
 * Several simulated hosts share one more, in the place of a network. */
#pragma once
#include "backend/join/shm_group.h"

/* A segment in this process. */
struct mapping {
    struct segment segment;
    unsigned char token[16];
    /* The number of ranks of this process that hold it. */
    int users;
    /* The rank that maps the segment for this process is done. `status` and `detail` have the result. */
    bool is_over;
    tutti_status status;
    char detail[256];
    struct mapping *next;
};
/* Sets *out to the mapping of the segment of an shm group. Pair with mapping_release. The process of the group's first
   rank creates it and sends it to the other processes. The first rank of each of these receives it, and the other ranks
   share it. */
tutti_status mapping_acquire(const struct group *group, const struct shm_group *shm_group,
    const struct segment_shape *shape, int64_t deadline_ms, struct mapping **out);
/* Records that a rank of this process failed to join. Its other ranks that wait for a segment fail with the same error,
   because the rank that should map the segment may be gone. */
void mapping_record_failure(const struct group *group, tutti_status status, const char *detail);
/* Ends one rank's use of the mapping, and unmaps the segment after the last. NULL is allowed. */
void mapping_release(struct mapping *mapping);
