/* The functions of include/tutti.h that zero calls, for strands. The last rank that makes a call carries it out, or
 * verbs_ripen does so later. A call does no more than tutti.h promises: it reads and writes the memory of the ranks
 * only when all have made it. Until then, memory that it will write has all bits set, which is NaN. */
#pragma once
#include "include/tutti.h"

/* Begins a run. The hosts have equal numbers of ranks, in ascending order. `late`: a call that blocks no rank ends only
   in verbs_ripen. */
void verbs_begin(int ranks, int hosts, bool late);
/* Carries out the calls for which strands wait, or else the oldest call, if all ranks have made it. Returns false if
   there are none. */
bool verbs_ripen(void);
/* Returns that rank's communicator of all ranks. */
tutti_comm *verbs_comm(int rank);
/* Ends a run. A communicator or memory that a rank has kept is a fault. */
void verbs_end(void);
