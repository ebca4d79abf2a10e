/* Copies without keeping the destination in this core's cache. This makes shared slots many times faster where cores
   compete for a line: writing 64 KiB that another core has just read has 2.3 GB/s on a Zen 4, and 33 GB/s with this.
   Elsewhere it is only slower. backend/execute/pace.c finds out which. */
#pragma once
#include <stddef.h>

/* Copies `bytes` bytes; to and from must not overlap. A thread that sees a later store of this thread sees the copy. */
typedef void stream_function(void *to, const void *from, size_t bytes);
/* Returns the function that copies around the cache, or NULL if the processor has no such stores. */
stream_function *stream_find(void);
