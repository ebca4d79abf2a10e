/* Snapshots: what the communicators of this process do at this moment, as JSON (docs/status.md). */
#pragma once
#include <stddef.h>

/* Writes at most `capacity` bytes of JSON, always terminated, and sets *bytes to the whole length. The values are read
   while other threads and ranks change them, so those of one moment may not fit together. Any thread. */
void snapshot_write_process(char *buffer, size_t capacity, size_t *bytes);
