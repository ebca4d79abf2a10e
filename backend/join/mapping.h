/* Segments as this process sees them: mapped once, shared by all its ranks. */
#pragma once
#include "backend/join/bootstrap.h"
#include "backend/host/segment.h"

struct mapping {
    struct segment segment;
    unsigned char token[16];
    int users;
    bool over;  /* whoever makes it for this process is done: status tells how */
    tutti_status status;
    char detail[256];
    struct mapping *next;
};
/* Joins the group's segment: rank 0's process makes it and sends it to every other process of the table, the first rank
   of another process receives it, the rest share. peers[r]: connection to rank r's process, NULL: this process. */
tutti_status mapping_acquire(int rank, int size, const struct member *table, struct peer *const *peers,
    int64_t deadline_ms, struct mapping **out);
/* PEER_LOST when a rank of the table could not join, before the segment was mapped, and has given up. */
tutti_status mapping_check(const struct member *table, int size);
void mapping_release(struct mapping *mapping);                         /* NULL is fine */
