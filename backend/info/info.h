/* What the library can say about itself. All write at most `capacity` bytes, always terminated, and the whole length
   to *bytes. */
#pragma once
#include "backend/engine/comm.h"

tutti_status info_json(char *buffer, size_t capacity, size_t *bytes);
/* What it goes by; constant once it has joined, so of any thread. */
tutti_status info_group(const tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes);
tutti_status info_schedule(const struct algorithm *algorithm, int ranks, int root, char *buffer, size_t capacity,
    size_t *bytes);
