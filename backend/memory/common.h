/* Memory that several processes map, and that the ranks of one process share. Every rank enters it by its token, one
 * of them maps it, and the last one that leaves unmaps it. A forked child has none of these mappings. Any number of
 * threads may call the functions. */
#pragma once
#include "include/tutti.h"

struct common;
tutti_status common_enter(const unsigned char token[16], struct common **out);
/* Maps the file of the descriptor, which has `bytes` bytes. Error: NO_MEMORY. */
tutti_status common_map(struct common *common, int descriptor, size_t bytes);
/* Returns the address of the mapping, or NULL before common_map. */
void *common_base(struct common *common);
/* Leaves the mapping; NULL is allowed. */
void common_leave(struct common *common);
/* Leaves the mapping at this address; returns false if no mapping is there. */
bool common_leave_at(void *base);
