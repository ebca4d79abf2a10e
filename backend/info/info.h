/* Describes the library. Each function writes at most `capacity` bytes, always terminated, and sets *bytes to the whole
   length. */
#pragma once
#include "backend/engine/comm.h"

/* Writes JSON about the library and this machine, and measures the machine if its parameters are not known. */
tutti_status info_write_json(char *buffer, size_t capacity, size_t *bytes);
/* Writes JSON with the parameters by which the group chooses. They are constant once it has joined, so any thread may
   call it. */
tutti_status info_write_group(const tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes);
/* Writes the schedules of all ranks of a group of `ranks` ranks (1 to 4096) for an algorithm as text. The ranks are
   on one host, on two for a hierarchical algorithm, and each on its own for an algorithm of messages only.
   INVALID_ARGUMENT: wrong ranks or root. Other errors: the plan cannot be built. */
tutti_status info_write_schedule(const struct algorithm *algorithm, int ranks, int root, char *buffer, size_t capacity,
    size_t *bytes);
