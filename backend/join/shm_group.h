/* The ranks of one host that map the same memory. The process of the first rank creates it and sends its descriptor to
 * the other processes. In each process the first rank receives it, and the other ranks share it. */
#pragma once
#include "backend/engine/group.h"

/* The ranks in order, and a number that distinguishes this memory from other memory of the group. */
struct shm_group { const int *ranks; int count, number; };

static inline bool shm_group_is_maker(const struct shm_group *s, int rank) { return s->ranks[0] == rank; }
bool shm_group_is_first_of_process(const struct group *group, const struct shm_group *shm_group, int rank);
/* Called by the maker, which closes the descriptor. */
tutti_status shm_group_send_descriptor(const struct group *group, const struct shm_group *shm_group,
    const unsigned char token[16], int descriptor);
/* Called by the first rank of another process, which closes the descriptor. PEER_LOST: the maker has died, or a rank of
   the group gave up joining. `what` names the memory in errors: "the shared memory of the group". */
tutti_status shm_group_receive_descriptor(const struct group *group, const struct shm_group *shm_group,
    const unsigned char token[16], int64_t deadline_ms, const char *what, int *descriptor);
/* PEER_LOST: a rank of the group gave up joining before the segment was mapped. */
tutti_status shm_group_check_aborts(const struct group *group);
