/* The ranks of one host that map the same memory. The process of the first rank creates it and sends its descriptor to
 * the other processes. In each process the first rank receives it, and the other ranks share it. */
#pragma once
#include "backend/engine/group.h"

/* The ranks in order, and a number that distinguishes this memory from other memory of the group. */
struct shm_group { const int *ranks; int count, number; };

/* Returns true if that rank creates the memory. */
static inline bool shm_group_is_maker(const struct shm_group *s, int rank) { return s->ranks[0] == rank; }
/* Returns true if that rank is the first of the shm group in its process. */
bool shm_group_is_first_of_process(const struct group *group, const struct shm_group *shm_group, int rank);
/* Sends the descriptor of the memory to the other processes of the shm group, under `token`. The maker calls it, and
   closes the descriptor. */
tutti_status shm_group_send_descriptor(const struct group *group, const struct shm_group *shm_group,
    const unsigned char token[16], int descriptor);
/* Waits for the descriptor that the maker sends under `token`. The first rank of each other process calls it, and
   closes the descriptor. PEER_LOST: the maker has died, or a rank of the group gave up joining. ABORTED: the caller has
   cancelled the join. `what` names the memory in errors: "the shared memory of the group". */
tutti_status shm_group_receive_descriptor(const struct group *group, const struct shm_group *shm_group,
    const unsigned char token[16], int64_t deadline_ms, const char *what, int *descriptor);
/* Fails with ABORTED if the caller of this rank has cancelled its join. */
tutti_status shm_group_check_cancelled(const struct group *group);
/* Fails as shm_group_check_cancelled, and with PEER_LOST if a rank of the group has aborted its join before the segment
   was mapped. Asks the caller, so call it without locks. */
tutti_status shm_group_check_join(const struct group *group);
