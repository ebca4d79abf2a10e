/* Which of each rank's slots an operation writes and reads: those that nobody uses any more, and that are cheap to
   write. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

size_t slots_most_bytes(const struct executor *x);      /* that an operation may need */
/* Chunks of scratch that a schedule may have, if so many tiles are in flight: each has a cache line at least. */
size_t slots_most_chunks(const struct executor *x, int tiles);
void slots_lay_out(struct executor *x, struct program_cut *cut); /* how many tile slots there are; then slots_take */
void slots_take(struct executor *x);                    /* sets slots_at for the operation that begins */
tutti_status slots_reserve(struct executor *x);         /* makes mine real memory */
void slots_leave(struct executor *x);                   /* the operation is over: the next one takes others */
