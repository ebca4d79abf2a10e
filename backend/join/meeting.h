/* All hosts wait for each other, when the ranks of each have joined. */
#pragma once
#include "backend/engine/comm.h"

/* Of a group that is linked, by the first rank of each host, when all of its host have joined: returns OK when all
   of all hosts have, and they go by the same figures of the network. Fails the group: TIMEOUT names two ranks, and what
   to look at. */
struct crossings;
tutti_status hosts_meet(tutti_comm *comm, int64_t deadline_ms, struct crossings *out);
int meeting_networks(const tutti_comm *comm);            /* that lead to other hosts: 1 or more */
/* A step of it: as many bytes to that rank as from it, under that number. */
enum {
    MEETING_JOINED,
    MEETING_OF_EACH = 64,
    MEETING_FIGURES = MEETING_OF_EACH * NETWORKS_AT_MOST,
    MEETING_MEASURES = 1024
};
tutti_status meeting_swap(tutti_comm *comm, uint64_t number, int peer, void *says, void *hears, size_t bytes,
    int64_t deadline_ms);
