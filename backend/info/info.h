/* What the library can say about itself. Both write at most `capacity` bytes, always terminated, and the whole length
   to *bytes. */
#pragma once
#include "backend/schedule/schedule.h"

tutti_status info_json(char *buffer, size_t capacity, size_t *bytes);
tutti_status info_schedule(const struct algorithm *algorithm, int ranks, int root, char *buffer, size_t capacity,
    size_t *bytes);
