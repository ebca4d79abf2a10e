/* The verbs of include/tutti.h that zero calls, for strands: done by whoever comes last, or later. What they promise
 * and no more: what is sent is read, and what arrives is there, when all ranks have come; before, memory that will be
 * written is filled with ones in all bits, which is no number. */
#pragma once
#include "include/tutti.h"

/* As many ranks on each host, one host after the other. late: what nobody blocks in ends when verbs_ripen is called. */
void verbs_begin(int ranks, int hosts, bool late);
bool verbs_ripen(void);                                 /* what somebody waits for; else the oldest; false: nothing */
tutti_comm *verbs_comm(int rank);                       /* of all ranks */
void verbs_end(void);                                   /* a fault where a rank has kept something */
