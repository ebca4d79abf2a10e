/* Finds which block of the message each chunk holds. If the blocks of ranks have different lengths, a chunk is as long
 * as the block that it holds. The name of a tensor's chunk gives its block. A chunk of SCRATCH holds different blocks
 * in turn, so its blocks follow from where they come from and where they go. The plan's message must not be cut. */
#pragma once
#include "backend/schedule/schedule.h"

/* The block of each chunk: chunk i of span k of a schedule (schedule.spans[k]) holds block[first[k] + i]. */
struct chunk_blocks { int *first, *block; };
/* The block of a chunk is not known; in a result: the chunk only passes through the rank. */
enum { BLOCK_UNKNOWN = -1 };
/* Finds the block of every chunk in the schedule of `rank`. The caller frees *out by chunk_blocks_finish. After a
   failure (mostly NO_MEMORY) *out is empty. */
tutti_status chunk_blocks_find(const struct plan *plan, int rank, struct chunk_blocks *out);
/* Frees the arrays and leaves an empty struct. */
void chunk_blocks_finish(struct chunk_blocks *blocks);
