/* Segments as this process sees them: mapped once, shared by all its ranks. A group has one for each of its hosts and,
 * if there are several, one more for what stands for the network between simulated hosts. */
#pragma once
#include "backend/join/shm_group.h"

struct mapping {
    struct segment segment;
    unsigned char token[16];
    int users;
    bool over;  /* whoever makes it for this process is done: status tells how */
    tutti_status status;
    char detail[256];
    struct mapping *next;
};
/* Joins it: the process of its first rank makes it and sends it to every other process among them, the first rank of
   another process receives it, the rest share. */
tutti_status mapping_acquire(const struct group *group, const struct shm_group *shm_group,
    const struct segment_shape *shape, int64_t deadline_ms, struct mapping **out);
/* A rank of this process has failed while it joined: others of it that still wait for a segment fail alike, for whoever
   was to map it may have gone. */
void mapping_fail(const struct group *group, tutti_status status, const char *detail);
void mapping_release(struct mapping *mapping);                         /* NULL is fine */
