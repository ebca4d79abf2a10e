/* Which of each rank's slots an operation writes and reads: slots that are free again and cheap to write. Part of the
   executor. */
#pragma once
#include "backend/execute/execute.h"

/* Returns the largest number of bytes of a rank's slots that an operation may use. */
size_t slots_max_bytes(const struct executor *executor);
/* Returns how many scratch chunks a schedule may have with `tiles` in flight; a chunk takes at least a cache line. */
size_t slots_max_chunks(const struct executor *executor, int tiles);
/* Computes the number of tile slots of a cut, their size and where they may lie, then calls slots_choose_place. */
void slots_lay_out(struct executor *executor, struct program_cut *cut);
/* Sets run.slots_at for the operation that begins. */
void slots_choose_place(struct executor *executor);
/* Makes this rank's slots of the operation real memory. */
tutti_status slots_reserve(struct executor *executor);
/* Ends the use of the operation's slots, so that the next one takes other slots. */
void slots_end_operation(struct executor *executor);
