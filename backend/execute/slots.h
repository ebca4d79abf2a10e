/* Which of each rank's slots an operation writes and reads: slots that are free again and cheap to write. Part of the
   executor. */
#pragma once
#include "backend/execute/execute.h"

/* Returns the largest number of bytes that an operation may use. */
size_t slots_most_bytes(const struct executor *executor);
/* Returns how many scratch chunks a schedule may have with `tiles` in flight; a chunk takes at least a cache line. */
size_t slots_most_chunks(const struct executor *executor, int tiles);
/* Computes the number of tile slots and their size, then calls slots_choose_place. */
void slots_lay_out(struct executor *executor, struct program_cut *cut);
/* Sets slots_at for the operation that begins. */
void slots_choose_place(struct executor *executor);
/* Makes this rank's slots of the operation real memory. */
tutti_status slots_reserve(struct executor *executor);
/* Ends the operation, so that the next one takes other slots. */
void slots_end_operation(struct executor *executor);
