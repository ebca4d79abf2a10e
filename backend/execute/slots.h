/* Which of each rank's slots an operation writes and reads: those that nobody uses any more, and that are cheap to
   write. Part of the executor. */
#pragma once
#include "backend/execute/execute.h"

size_t slots_most_bytes(const struct executor *x);      /* that an operation may need */
void slots_place(struct executor *x, struct cut *cut);  /* how many places its tiles go round in; then slots_take */
void slots_take(struct executor *x);                    /* sets slots_at for the operation that begins */
tutti_status slots_reserve(struct executor *x);         /* makes mine real memory */
void slots_leave(struct executor *x);                   /* the operation is over: the next one takes others */
