/* Ranks of one host that are to map the same memory: the process of the first makes it and sends its descriptor to the
 * other processes among them; of each process the first rank receives it, the rest share. */
#pragma once
#include "backend/engine/group.h"

/* In their order, and a number that tells this memory from what else the group shares. */
struct shm_group { const int *ranks; int count, number; };

static inline bool shm_group_is_maker(const struct shm_group *s, int rank) { return s->ranks[0] == rank; }
bool shm_group_is_first_of_process(const struct group *group, const struct shm_group *shm_group, int rank);
/* By the maker. The caller closes the descriptor. */
tutti_status shm_group_send(const struct group *group, const struct shm_group *shm_group, const unsigned char token[16],
    int descriptor);
/* By the first rank of another process. PEER_LOST when the maker has died, or a rank of the group gives up joining;
   `what` is for the text: "the shared memory of the group". The caller closes the descriptor. */
tutti_status shm_group_receive(const struct group *group, const struct shm_group *shm_group,
    const unsigned char token[16], int64_t deadline_ms, const char *what, int *descriptor);
/* PEER_LOST when a rank of the group could not join, before the segment was mapped, and has given up. */
tutti_status shm_group_check(const struct group *group);
