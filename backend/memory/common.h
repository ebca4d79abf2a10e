/* Memory that several processes map, and that the ranks of one process share. Every rank enters it by its token, one
 * of them maps it, and the last one that leaves unmaps it. A forked child has none of these mappings. Any number of
 * threads may call the functions. */
#pragma once
#include "include/tutti.h"

struct shared_mapping;
/* Sets *out to the mapping with that token, which the first rank of this process to enter adds to a list, not mapped
   yet. Pair with shared_mapping_leave. NO_MEMORY. */
tutti_status shared_mapping_enter(const unsigned char token[16], struct shared_mapping **out);
/* Maps the file of the descriptor, which has `bytes` bytes. One rank calls it after it has entered. NO_MEMORY. */
tutti_status shared_mapping_map(struct shared_mapping *mapping, int descriptor, size_t bytes);
/* Returns the address of the mapping, or NULL before shared_mapping_map. */
void *shared_mapping_base(struct shared_mapping *mapping);
/* Ends one use of the mapping, and unmaps the memory after the last. NULL is allowed. */
void shared_mapping_leave(struct shared_mapping *mapping);
/* Does shared_mapping_leave for the mapping at this address. Returns false if no mapping is there. */
bool shared_mapping_leave_at(void *base);
