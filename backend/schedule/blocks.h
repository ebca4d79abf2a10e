/* Which block of the message a chunk holds. A chunk of a tensor says so by its name; a chunk of SCRATCH holds now one
 * block, now another, so that is found out from where they come and where they go. Where blocks differ in length, this
 * is how long a chunk is. Of plans whose message is not cut. */
#pragma once
#include "backend/schedule/schedule.h"

struct blocks { int *at, *of; };                            /* chunk i of span k of a schedule: block of[at[k] + i] */
enum { BLOCK_UNKNOWN = -1 };                                /* it only passes through */
tutti_status blocks_find(const struct plan *plan, int rank, struct blocks *out);      /* NO_MEMORY, and then none */
void blocks_finish(struct blocks *blocks);
