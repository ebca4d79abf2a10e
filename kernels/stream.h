/* A copy that does not keep the destination in this core's cache. Where cores fight over the ownership of a line
   (writing 64 KiB that another core has just read: 2.3 GB/s on a Zen 4, against 33 GB/s for this) it makes shared slots
   many times faster; where they do not it only costs. backend/execute/pace.c finds out which. */
#pragma once
#include <stddef.h>

/* to and from do not overlap. What was written is visible to whoever sees a later store of this thread. */
typedef void stream_function(void *to, const void *from, size_t bytes);
stream_function *stream_find(void);                     /* NULL where the processor has no such stores */
